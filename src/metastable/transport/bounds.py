"""Bounds on W_p for clouds of any size: valid couplings above, valid inequalities and projections onto lines below."""

from __future__ import annotations

import math

import numpy as np

from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.transport.measure import (
    Distance,
    Floats,
    Indices,
    Measure,
    count,
    order_and_cost,
    pair_costs,
    token_costs,
    two_measures,
)
from metastable.transport.simplex import solve

SAME_EDGE = 4 * 2.0**-52
"""Cumulative masses that differ by less than this are equal up to rounding."""
LEVELS = 10
"""How often a cloud is halved: at most 2¹⁰ blocks, which the simplex solves in a fraction of a second."""


def coupling(a: Cloud, b: Cloud, p: float = 2, cost: str = "chordal") -> Distance:
    """The cost of moving each token of `a` to the token of `b` with the same index: an upper bound, in O(N).

    (Σ w_i c(x_i, y_i)^p)^{1/p} ≥ W_p. The lower bound is the distance of the means, |Σ w_i (x_i − y_i)|.
    Both clouds need the same number of tokens and the same weights.

    Examples
    --------
    >>> d = coupling(Cloud([[1.0, 0.0], [0.0, 1.0]]), Cloud([[0.0, 1.0], [1.0, 0.0]]))
    >>> round(d.upper, 6), d.lower
    (1.414214, 0.0)
    """
    p, cost = order_and_cost(p, cost)
    mu, nu = two_measures(a, b)
    if len(a) != len(b):
        raise BadInput(f"the clouds have {len(a)} and {len(b)} tokens; a coupling token by token needs as many in both")
    if not same_weights(mu, nu):
        worst = int(np.abs(mu.weights - nu.weights).argmax())
        pair = f"{mu.weights[worst]:g} and {nu.weights[worst]:g}"
        raise BadInput(f"token {worst} has the weights {pair}; a coupling token by token needs the same weights")
    return token_coupling(mu, nu, p, cost, geodesic(float(np.linalg.norm(mu.mean() - nu.mean())), cost))


def token_coupling(mu: Measure, nu: Measure, p: float, cost: str, lower: float) -> Distance:
    """`coupling` without the checks, with a lower bound found elsewhere."""
    upper = float(mu.weights @ token_costs(mu.points, nu.points, p, cost)) ** (1.0 / p)
    return Distance(upper, min(lower, upper), upper, "coupling (upper bound)", p, cost)


def same_weights(mu: Measure, nu: Measure) -> bool:
    tolerance = max(mu.rounding, nu.rounding)
    return len(mu.weights) == len(nu.weights) and np.allclose(mu.weights, nu.weights, rtol=tolerance, atol=tolerance**2)


def geodesic(chordal: float, cost: str) -> float:
    """The lower bound on the geodesic W_p that a chordal one implies: W ≥ 2·asin(chordal/2).

    For s = |x − y|^p the angle's p-th power is a convex increasing function of s, so Jensen's inequality applies.
    """
    return chordal if cost == "chordal" else 2.0 * math.asin(min(chordal / 2.0, 1.0))


def bounds(mu: Measure, nu: Measure, p: float, cost: str, directions: int, seed: int) -> Distance:
    """Upper: the best of two couplings. Lower: the best of `lower` and of the blocks' triangle inequality."""
    uppers, lowers = [], [lower(mu, nu, p, directions, seed)]
    if same_weights(mu, nu):
        uppers.append(float(mu.weights @ token_costs(mu.points, nu.points, p, cost)))
    i, j, mass, block_lower = _block_plan(mu, nu, p)
    uppers.append(float(mass @ token_costs(mu.points[i], nu.points[j], p, cost)))
    lowers.append(block_lower)
    upper = min(uppers) ** (1.0 / p)
    return Distance(upper, min(geodesic(max(lowers), cost), upper), upper, "bounds (value: upper)", p, cost)


def lower(mu: Measure, nu: Measure, p: float, directions: int, seed: int) -> float:
    """A chordal lower bound: the largest W_p of a projection onto a line, and for p ≥ 2 the Gaussian bound.

    The direction of the difference of the means is always among the lines.
    """
    thetas = random_directions(directions, mu.points.shape[1], seed)
    shift = mu.mean() - nu.mean()
    if shift.any():
        thetas[0] = shift / np.linalg.norm(shift)
    best = float(slice_totals(mu, nu, thetas, p).max()) ** (1.0 / p)
    return max(best, _gaussian_bound(mu, nu)) if p >= 2 else best


def _gaussian_bound(mu: Measure, nu: Measure) -> float:
    """W₂² ≥ |mean difference|² + tr S + tr S' − 2 tr (S^½ S' S^½)^½ for the covariances S, S' (Gelbrich).

    With S = RᵀR from a QR decomposition the last trace is the sum of the singular values of R R'ᵀ; forming S and
    its square root instead would cost half of the digits. What is left of rounding is taken off.
    """
    shift, R, S = mu.mean() - nu.mean(), _factor(mu), _factor(nu)
    spread = float((R**2).sum() + (S**2).sum())
    shape = spread - 2.0 * float(np.linalg.svd(R @ S.T, compute_uv=False).sum())
    return math.sqrt(float(shift @ shift) + max(shape - 1e-14 * mu.points.shape[1] * spread, 0.0))


def _factor(m: Measure) -> Floats:
    """R with RᵀR the covariance of m."""
    return np.asarray(np.linalg.qr(np.sqrt(m.weights)[:, None] * (m.points - m.mean()), mode="r"))


def _block_plan(mu: Measure, nu: Measure, p: float) -> tuple[Indices, Indices, Floats, float]:
    """A coupling (i, j, mass) from the exact plan between blocks of tokens, and a lower bound.

    With μ', ν' the blocks' masses at their centres, W(μ, ν) ≥ W(μ', ν') − W(μ, μ') − W(ν, ν').
    """
    order_a, masses_a, centres_a, spread_a = _blocks(mu, p)
    order_b, masses_b, centres_b, spread_b = _blocks(nu, p)
    solution = solve(masses_a, masses_b, pair_costs(centres_a, centres_b, p, "chordal"))
    if solution is None:
        i, j, mass = merge(mu.weights[order_a], nu.weights[order_b])
        return order_a[i], order_b[j], mass, 0.0
    block_a, block_b = solution.plan.nonzero()
    share = solution.plan[block_a, block_b]
    # Cut both clouds into the pieces of the plan's entries, then align the pieces entry by entry.
    i, _, mass_a = merge(mu.weights[order_a], share)
    by_target = np.lexsort((block_a, block_b))
    j, entry, mass_b = merge(nu.weights[order_b], share[by_target])
    lined_up = np.argsort(by_target[entry], kind="stable")
    left, right, mass = merge(mass_a, mass_b[lined_up])
    least = solution.lower ** (1.0 / p) - spread_a - spread_b
    return order_a[i[left]], order_b[j[lined_up][right]], mass, least


def _blocks(m: Measure, p: float) -> tuple[Indices, Floats, Floats, float]:
    """Tokens in the order of their blocks, the blocks' masses and centres, and W_p from the cloud to the centres."""
    parts = [np.arange(len(m.points))]
    for _ in range(LEVELS):
        parts = [half for part in parts for half in _halves(m, part)]
    order = np.concatenate(parts)
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    weighted = m.weights[order, None] * m.points[order]
    masses = np.add.reduceat(m.weights[order], starts)
    centres = np.add.reduceat(weighted, starts) / masses[:, None]
    home = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    spread = float(m.weights[order] @ token_costs(m.points[order], centres[home], p, "chordal"))
    return order, masses, centres, spread ** (1.0 / p)


def _halves(m: Measure, part: Indices) -> list[Indices]:
    """The tokens below and above the mean along the widest axis; a block without width stays whole."""
    if len(part) == 1:
        return [part]
    x, w = m.points[part], m.weights[part]
    mean = w @ x / w.sum()
    axis = int((w @ (x - mean) ** 2).argmax())
    left = x[:, axis] <= mean[axis]
    return [part] if left.all() or not left.any() else [part[left], part[~left]]


def sliced(a: Cloud, b: Cloud, p: float = 2, directions: int = 256, seed: int = 0) -> Distance:
    """The sliced distance SW_p = (mean over θ of W_p^p(⟨θ, ·⟩#a, ⟨θ, ·⟩#b))^{1/p}, chordal, weights honoured.

    `directions` independent directions θ, uniform on the sphere, are drawn from `seed`. Since |⟨θ, x − y⟩| ≤ |x − y|,
    SW_p ≤ W_p: the value is a lower bound, and the upper bound is infinite. The time is
    O(directions · (N log N + M log M)).

    Examples
    --------
    The mean of ⟨θ, x − y⟩² over the circle is |x − y|²/2:

    >>> d = sliced(Cloud([[1.0, 0.0]]), Cloud([[-1.0, 0.0]]), directions=20_000)
    >>> abs(d.value - 2**0.5) < 0.01
    True
    """
    p, _ = order_and_cost(p)
    mu, nu = two_measures(a, b)
    thetas = random_directions(count(directions, "directions"), a.dim, count(seed, "seed", least=0))
    value = float(slice_totals(mu, nu, thetas, p).mean()) ** (1.0 / p)
    return Distance(value, value, math.inf, f"sliced over {directions} directions (lower bound)", p)


def random_directions(count: int, d: int, seed: int) -> Floats:
    """`count` independent uniform directions of dimension d, (count, d)."""
    thetas = np.random.default_rng(seed).normal(size=(count, d))
    return np.asarray(thetas / np.linalg.norm(thetas, axis=1, keepdims=True))


def slice_totals(mu: Measure, nu: Measure, thetas: Floats, p: float) -> Floats:
    """W_p^p of the two laws projected onto each direction: (k,) for thetas (k, d)."""
    lines = ((mu.points @ theta, nu.points @ theta) for theta in thetas)
    if len(mu.points) == len(nu.points) and mu.equal and nu.equal:
        return np.array([np.mean(np.abs(np.sort(x) - np.sort(y)) ** p) for x, y in lines])
    return np.array([_weighted_total(x, mu.weights, y, nu.weights, p) for x, y in lines])


def _weighted_total(x: Floats, a: Floats, y: Floats, b: Floats, p: float) -> float:
    """∫₀¹ |F⁻¹(s) − G⁻¹(s)|^p ds. Both quantile functions are constant between merged edges."""
    i, j = np.argsort(x), np.argsort(y)
    left, right, mass = merge(a[i], b[j])
    return float(mass @ np.abs(x[i][left] - y[j][right]) ** p)


def merge(a: Floats, b: Floats) -> tuple[Indices, Indices, Floats]:
    """The monotone coupling of two rows of weights: index into a, index into b, mass, for each piece.

    Each row is laid out on [0, 1] in its order; the pieces are the intervals between the edges of both.
    """
    ends = np.concatenate([_ends(a), _ends(b)])
    order = np.argsort(ends, kind="stable")  # merges two sorted runs
    ends = ends[order]
    of_a = order < len(a)
    before: Indices = np.cumsum(of_a) - of_a
    kept = np.flatnonzero(np.diff(ends, prepend=0.0) > SAME_EDGE)
    ends[kept[-1]] = 1.0
    return before[kept], kept - before[kept], np.diff(ends[kept], prepend=0.0)


def _ends(weights: Floats) -> Floats:
    # Extended precision keeps the edges of 10⁶ tokens within SAME_EDGE of the exact ones.
    ends = np.cumsum(weights, dtype=np.longdouble)
    return np.asarray(ends / ends[-1], dtype=np.float64)
