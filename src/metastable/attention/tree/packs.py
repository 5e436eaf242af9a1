"""Packs: the tokens of a patch of the sphere are replaced by a few signed weights on a grid, with an error bound.

A node that is small against the scale |u|^{−1/2} on which the softmax varies can be replaced by few points. Its tokens
are y = c + Σ_k h_k t_k e_k + q(t) c with c on the unit sphere, e_k tangent at c, t_k ∈ [−1, 1] and q = √(1 − w) − 1,
w = Σ_k h_k² t_k². This is true on the half of the sphere around c, so a node with tokens on both halves has no grid.
Interpolation on a grid of n_k Chebyshev points a coordinate turns Σ_j w_j F(y_j) into
Σ_g ω_g F(y_g) with ω_g = Σ_j w_j ℓ_g(t_j), y_g on the sphere: the same for every polynomial of degree n_k − 1 in t_k.

*Error.* At one query write F = e^{⟨u, y − c⟩} as Π_k e^{α_k t_k + γ_k t_k²} · e^{⟨u, c⟩ χ(w)}, with α_k = h_k ⟨u, e_k⟩,
γ_k = −½ ⟨u, c⟩ h_k² and χ(w) = q + w/2. The power series of χ has coefficients of one sign, so |χ(w)| ≤ χ̄(R²) =
1 − R²/2 − √(1 − R²) where |w| ≤ R² < 1. Let t_k range over the ellipse with foci ±1 and semi-axes A = (ρ + 1/ρ)/2,
B = (ρ − 1/ρ)/2 and the others over [−1, 1]: then |F| ≤ M_k Π_{m≠k} S_m e^{|⟨u, c⟩| χ̄(R²)}, R² = h_k² A² + Σ_{m≠k} h_m²,

    M(α, γ) = max over |x| ≤ 1 of e^{|α|Ax + γ(A²x² − B²(1 − x²))},      S = M with A = 1, B = 0,

the Chebyshev coefficients in t_k are at most 2ρ^{−m} times this, and what n points miss is at most twice the tail of
these (Trefethen, Approximation Theory and Approximation Practice, theorems 8.1 and 8.2). One coordinate after the
other, with Lebesgue constants Λ_n ≤ 1 + (2/π) log n: the sum over the node is off by at most W e^{⟨u, c⟩} times

    E_f(u) = Σ_k (Π_{m<k} Λ_m) · 4 ρ_k^{1−n_k}/(ρ_k − 1) · M_k Π_{m≠k} S_m e^{|⟨u, c⟩| χ̄(R_k²)},     W its weight,

and Σ w F(y) (y − c') by the same with each term times the largest |y − c'| over that ellipse. α and γ are linear in u
and log M is a maximum of functions linear in them, so e^{⟨u, c⟩} E_f(u) is convex: over a box of queries it is largest
in a corner, and the corners are where it is computed. ρ_k = 2 √n_k / (h_k |u|^{1/2}) is the best for a Gaussian.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.threads import run_all

from .boxes import Ordered, depth_of, first_point
from .expansion import BLOCK
from .vectors import dot, fast_exp, inlined, inner, kernel, loose, score

# Half-width of a packed node in units of |u|^{−1/2}.
WIDTH = 1.5
# A pack must save at least this factor in tokens.
WORTH = 1.5
# Largest number of grid points along one coordinate.
MOST = 24
# Share of the tolerance that one pack is designed for. Its true error is bounded for each box of queries.
QUOTA = 0.003
EMPTY, ABOVE = -1, -2


class Packs(NamedTuple):
    """The packed nodes, for queries of length `scale`.

    slot (nodes,): EMPTY, ABOVE (packs below), or the pack of a node; first (packs + 1,): where the grids begin among
    the packed tokens; shape (packs, d² + 2d − 2): c | e_k (d − 1 rows) | h_k | n_k.
    """

    scale: float
    slot: np.ndarray
    shape: np.ndarray
    first: np.ndarray


class Tokens(NamedTuple):
    """The token tree as the kernels take it.

    `points`, `log_weights` and `records` are those of the tree; `columns`, `logs` and `signs` hold the same tokens
    axis by axis and then the grids of the packs.
    """

    points: np.ndarray
    log_weights: np.ndarray
    records: np.ndarray
    depth: int
    packs: Packs
    columns: np.ndarray
    logs: np.ndarray
    signs: np.ndarray


@inlined
def _points_needed(x, quota):
    """The least n with 4 e^{n/2} (x / 2√n)^n ≤ quota, the error of n points for a Gaussian x deviations wide."""
    for n in range(1, MOST + 1):
        if 4.0 * math.exp(0.5 * n) * (0.5 * x / math.sqrt(n)) ** n <= quota:
            return n
    return 0


@inlined
def _thin_axis(record, d):
    thin = 0
    for k in range(1, d):
        if record[d + k] < record[d + thin]:
            thin = k
    return thin


@inlined
def _in_a_hemisphere(record, d):
    """Whether ⟨y, centre⟩ > 0 for every y in the box of a node."""
    centre = record[:d]
    least = dot(centre, centre)
    for k in range(d):
        least -= record[d + k] * abs(dot(record[2 * d + k * d : 3 * d + k * d], centre))
    return least > 0.0


@kernel
def select(n, records, depth, d, scale, quota, slot, shape, first, stack):
    """Choose the nodes to pack, the largest that are small enough; sets slot, grid sizes and `first`. Returns how many.

    `scale` is |u| and `quota` the relative error aimed at. Both only affect the cost, not the certificate.
    """
    count = 0
    stack[0], size = 1, 1
    root = math.sqrt(scale)
    sizes = d * d + d - 1
    while size:
        size -= 1
        node = stack[size]
        level = depth_of(node)
        tokens = first_point(node + 1, level, n) - first_point(node, level, n)
        thin, wide, grid, place = _thin_axis(records[node], d), 0.0, 1, 0
        for k in range(d):
            if k != thin:
                wide = max(wide, records[node, d + k])
                points = _points_needed(records[node, d + k] * root, quota)
                shape[count, sizes + place] = points
                grid *= points
                place += 1
        small = wide * root <= WIDTH and grid > 0 and WORTH * grid <= tokens
        if small and _in_a_hemisphere(records[node], d):
            slot[node] = count
            first[count + 1] = first[count] + grid
            count += 1
        elif level < depth and tokens > 2.0 * WORTH:
            stack[size], stack[size + 1] = 2 * node + 1, 2 * node
            size += 2
    return count


@kernel
def mark_above(slot, depth):
    """slot ← ABOVE for every node with a pack under it."""
    for node in range((1 << depth) - 1, 0, -1):
        if slot[node] == EMPTY and (slot[2 * node] != EMPTY or slot[2 * node + 1] != EMPTY):
            slot[node] = ABOVE


@inlined
def _along(points, j, shape, d, k):
    """⟨y_j − c, e_k⟩."""
    return score(0.0, shape[d + k * d : 2 * d + k * d], points[j], shape)


@inlined
def _frame(points, lo, hi, record, shape, d):
    """c ← the centre of the box put on the sphere, e_k ← its wide axes made tangent there, h_k ← largest |t_k|."""
    length = math.sqrt(dot(record[:d], record[:d]))
    for m in range(d):
        shape[m] = record[m] / length
    thin, place = _thin_axis(record, d), 0
    for k in range(d):
        if k != thin:
            at = d + place * d
            for m in range(d):
                shape[at + m] = record[2 * d + k * d + m]
            _make_orthogonal(shape, at, d)
            place += 1
    for k in range(d - 1):
        high = 0.0
        for j in range(lo, hi):
            high = max(high, abs(_along(points, j, shape, d, k)))
        shape[d * d + k] = high * (1.0 + 1e-12) + 1e-100


@inlined
def _make_orthogonal(shape, at, d):
    """The vector at `at` ← its part orthogonal to c and to the axes before it, of length 1 (twice is enough)."""
    new = shape[at : at + d]
    for _ in range(2):
        for before in range(0, at, d):
            s = dot(shape[before : before + d], new)
            for m in range(d):
                new[m] -= s * shape[before + m]
        length = math.sqrt(dot(new, new))
        for m in range(d):
            new[m] /= length


@inlined
def _chebyshev(x, count, out):
    """out[m] ← T_m(x), m < count, for a block."""
    for t in range(BLOCK):
        out[0, t] = 1.0
        out[1, t] = x[t]
    for m in range(2, count):
        for t in range(BLOCK):
            out[m, t] = 2.0 * x[t] * out[m - 1, t] - out[m - 2, t]


@loose
def _four_dots(x, w0, w1, w2, w3, out):
    s0 = s1 = s2 = s3 = 0.0
    for t in range(BLOCK):
        a = x[t]
        s0 += a * w0[t]
        s1 += a * w1[t]
        s2 += a * w2[t]
        s3 += a * w3[t]
    out[0] += s0
    out[1] += s1
    out[2] += s2
    out[3] += s3


@loose
def _add_tokens(x, weights, n0, n1, towers, row, moments):
    """moments[j, i] += Σ w T_i(x_0) T_j(x_1) over a block; in two dimensions n1 = 1 and there is no x_1."""
    _chebyshev(x[0], n0, towers[0])
    if n1 > 1:
        _chebyshev(x[1], n1, towers[1])
    for j in range(n1):
        for t in range(BLOCK):
            row[t] = weights[t] * towers[1, j, t]
        for i in range(0, n0, 4):
            _four_dots(row, towers[0, i], towers[0, i + 1], towers[0, i + 2], towers[0, i + 3], moments[j, i:])


@inlined
def _grid_weight(moments, n0, n1, i, j):
    """ω at the Chebyshev points (i, j), from the moments: Σ_ab (2 − δ_a)(2 − δ_b)/(n0 n1) T_a(t_i) T_b(t_j) m_ba."""
    x, y = math.cos(math.pi * (i + 0.5) / n0), math.cos(math.pi * (j + 0.5) / n1)
    total, b0, b1 = 0.0, 1.0, y
    for b in range(n1):
        s, a0, a1 = 0.5 * moments[b, 0], 1.0, x
        for a in range(1, n0):
            s += a1 * moments[b, a]
            a0, a1 = a1, 2.0 * x * a1 - a0
        total += (0.5 if b == 0 else 1.0) * b0 * s
        b0, b1 = b1, 2.0 * y * b1 - b0
    return 4.0 * total / (n0 * n1)


@inlined
def _write_grid(shape, d, n0, n1, top, moments, columns, logs, signs, at):
    """Positions, log |ω| and signs of a grid, from `at` on."""
    for j in range(n1):
        y = shape[d * d + 1] * math.cos(math.pi * (j + 0.5) / n1) if d > 2 else 0.0
        for i in range(n0):
            x = shape[d * d] * math.cos(math.pi * (i + 0.5) / n0)
            up = math.sqrt(1.0 - x * x - y * y)
            g = at + j * n0 + i
            for m in range(d):
                columns[m, g] = up * shape[m] + x * shape[d + m] + (y * shape[2 * d + m] if d > 2 else 0.0)
            w = _grid_weight(moments, n0, n1, i, j)
            signs[g] = 1.0 if w >= 0.0 else -1.0
            logs[g] = top + math.log(max(abs(w), 1e-300))


@kernel
def fill(points, log_weights, records, nodes, levels, packs, base, columns, logs, signs, scratch, moments):
    """Pack the given nodes: their frames into `packs.shape`, their grids into columns, logs and signs from `base` on.

    scratch: (3, MOST + 4, BLOCK); moments: (MOST, MOST + 4).
    """
    n, d = points.shape
    towers, x, weights, row = scratch[:2], scratch[2, :2], scratch[2, 2], scratch[2, 3]
    towers[1, 0, :] = 1.0
    for which in range(nodes.size):
        node = nodes[which]
        pack = packs.slot[node]
        shape = packs.shape[pack]
        lo, hi = first_point(node, levels[which], n), first_point(node + 1, levels[which], n)
        _frame(points, lo, hi, records[node], shape, d)
        n0, n1 = int(shape[d * d + d - 1]), int(shape[d * d + d]) if d > 2 else 1
        top = records[node, d * d + 2 * d + 1]
        moments[:n1, :] = 0.0
        for start in range(lo, hi, BLOCK):
            for t in range(BLOCK):
                j = min(start + t, hi - 1)
                for k in range(d - 1):
                    x[k, t] = _along(points, j, shape, d, k) / shape[d * d + k]
                weights[t] = fast_exp(log_weights[j] - top) if start + t < hi else 0.0
            _add_tokens(x, weights, n0, n1, towers, row, moments)
        _write_grid(shape, d, n0, n1, top, moments, columns, logs, signs, base + packs.first[pack])


def pack(ordered: Ordered, scale: float, tol: float) -> Tokens:
    """The tokens as the kernels take them, with packs for queries of length `scale`.

    Tokens are packed on the unit circle and sphere only: in higher dimension a grid has as many points as a node has
    tokens.
    """
    n, d = ordered.points.shape
    slot, most = np.full(len(ordered.records), EMPTY), n // 4 + 2
    shape, first = np.zeros((most, d * d + 2 * d - 2)), np.zeros(most + 1, dtype=np.int64)
    count = 0
    if d in (2, 3) and scale > 0.0 and ordered.round:
        stack = np.zeros(4 * ordered.depth + 64, dtype=np.int64)
        count = select(n, ordered.records, ordered.depth, d, scale, QUOTA * tol, slot, shape, first, stack)
        mark_above(slot, ordered.depth)
    packs = Packs(scale, slot, shape[:count].copy(), first[: count + 1].copy())
    size = n + int(packs.first[-1])
    columns, logs, signs = np.empty((d, size)), np.empty(size), np.ones(size)
    columns[:, :n], logs[:n] = ordered.points.T, ordered.log_weights
    nodes = np.flatnonzero(packs.slot >= 0)
    if len(nodes):
        levels = np.frexp(nodes)[1].astype(np.int64) - 1

        def work(part: np.ndarray) -> None:
            buffers = np.zeros((3, MOST + 4, BLOCK)), np.zeros((MOST, MOST + 4))
            tree = (ordered.points, ordered.log_weights, ordered.records)
            fill(*tree, nodes[part], levels[part], packs, n, columns, logs, signs, *buffers)

        run_all(work, [(part,) for part in np.array_split(np.arange(len(nodes)), min(16, len(nodes)))])
    return Tokens(ordered.points, ordered.log_weights, ordered.records, ordered.depth, packs, columns, logs, signs)


@inlined
def _log_largest(alpha, gamma, a, b):
    """log M: the maximum over |x| ≤ 1 of |α| A x + γ (A² x² − B² (1 − x²))."""
    alpha = abs(alpha) * a
    top = alpha + gamma * a * a
    bend = -gamma * (a * a + b * b)
    if 2.0 * bend > alpha:
        top = alpha * alpha / (4.0 * bend) - gamma * b * b
    return top


@inlined
def _ellipses(shape, d, scale, ellipses):
    """The numbers of each coordinate that do not depend on the query.

    These are A, B, χ̄, log of 4 Λ ρ^{1−n}/(ρ − 1), and the largest |y − c|. Returns False if R² is too close to 1.
    """
    lebesgue = 1.0
    for k in range(d - 1):
        h, n = shape[d * d + k], shape[d * d + d - 1 + k]
        rho = min(max(2.0 * math.sqrt(n / scale), 3.0 * h), 1.4) / h
        a = 0.5 * (rho + 1.0 / rho)
        square = h * h * (a * a - 1.0)
        for m in range(d - 1):
            square += shape[d * d + m] ** 2
        if not square < 0.999:
            return False
        chi = 1.0 - 0.5 * square - math.sqrt(1.0 - square)
        ellipses[k, 0], ellipses[k, 1], ellipses[k, 2] = a, 0.5 * (rho - 1.0 / rho), chi
        ellipses[k, 3] = math.log(4.0 * lebesgue / (rho - 1.0)) + (1 - n) * math.log(rho)
        ellipses[k, 4] = math.sqrt(square) * (d - 1) + 0.5 * square + chi
        lebesgue *= 1.0 + 0.6366197723675814 * math.log(n)
    return True


@inner
def pack_error(shape, scale, u, half, axes, v, ellipses):
    """max over u + δ, δ in the box, of e^{⟨δ, v⟩} (E_f, E_g) with v = c − c'. inf if that overflows."""
    d = u.size
    if not _ellipses(shape, d, scale, ellipses):
        return math.inf, math.inf
    far = math.sqrt(dot(v, v))
    e_f, e_g = 0.0, 0.0
    for corner in range(1 << d):
        f, g, peaks = 0.0, 0.0, 0.0
        up = _component(shape, 0, u, half, axes, corner)
        for m in range(d):
            side = half[m] if (corner >> m) & 1 else -half[m]
            for i in range(d):
                peaks += side * axes[m, i] * v[i]
        for k in range(d - 1):
            h = shape[d * d + k]
            alpha, gamma = h * _component(shape, 1 + k, u, half, axes, corner), -0.5 * up * h * h
            peak = _log_largest(alpha, gamma, 1.0, 0.0)
            peaks += peak
            ellipses[k, 5] = _log_largest(alpha, gamma, ellipses[k, 0], ellipses[k, 1]) - peak
        for k in range(d - 1):
            rest = peaks + ellipses[k, 5] + abs(up) * ellipses[k, 2] + ellipses[k, 3]
            if not rest < 600.0:
                return math.inf, math.inf
            error = math.exp(rest)
            f += error
            g += error * (far + ellipses[k, 4])
        e_f, e_g = max(e_f, f), max(e_g, g)
    return e_f, e_g


@inlined
def _component(shape, row, u, half, axes, corner):
    """The component of u + δ along c (row 0) or e_k (row 1 + k), δ a corner of the box."""
    d = u.size
    along = shape[row * d : row * d + d]
    s = dot(u, along)
    for m in range(d):
        side = half[m] if (corner >> m) & 1 else -half[m]
        for i in range(d):
            s += side * axes[m, i] * along[i]
    return s
