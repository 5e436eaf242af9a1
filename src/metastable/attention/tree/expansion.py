"""The local expansion: Z near u0 as a polynomial in the displacement, and its evaluation with gradient.

With displacements ξ ∈ [−1, 1]^d in the scaled axes of the box and v_jk = half_k ⟨axis_k, y_j − c⟩,

    f(ξ) = Σ_j a_j e^{⟨ξ, v_j⟩} ≈ Σ_{α ∈ A} ξ^α (Σ_j a_j v_j^α / α!),     A = {|α| ≤ p, α_thin ≤ r}.

Axis 0 is the thin one (the normal of the sphere, where r = 1 or 2 is enough), axis d − 1 is the widest. A multi-index
is a *row* (its first d − 1 entries) and a *column* (its last): a row of products a v^row is formed once for a block
of tokens, from its parent by one multiplication, and multiplied by the powers of the last coordinate in dot products.

*Truncation error.* For a token with v = scaled coordinates, T = Σ_k |v_k| and V = |v_0|, at every ξ in the box

    | e^{⟨ξ, v⟩} − Σ_{α ∈ A} ξ^α v^α / α! |  ≤  Σ_{k > p} T^k / k!  +  e^T V^{r+1} / (r + 1)!

The first sum bounds the terms with |α| > p. The second bounds the terms with α_0 > r: they are at most
Σ_{k > r} V^k / k! · e^{T − V} ≤ V^{r+1} / (r + 1)! · e^V · e^{T − V}. The gradient along axis i is the same sum
with one order less in that axis and v_i in front, hence (p − 1, r) for i ≠ 0 and (p − 1, r − 1) for i = 0.
"""

import math

import numpy as np

from .vectors import ZERO, fast_exp, inlined, inner, loose

# Tokens or queries that are handled at a time.
BLOCK = 128
# Largest exponent of the thin axis.
MAX_THIN = 8
# Terms T^k / k! that are summed one by one. The rest, k > TERMS, is at most e^T T^{TERMS + 1} / (TERMS + 1)!.
TERMS = 28
# Largest total degree by dimension: beyond it more, smaller boxes are cheaper than longer expansions.
MAX_DEGREE = {1: 24, 2: 22, 3: 20, 4: 12, 5: 8, 6: 6, 7: 5, 8: 4}


def row_table(d: int) -> np.ndarray:
    """Rows of the expansion, int64 (rows, 4 + 2 (d − 1)), sorted by degree so that a smaller degree is a prefix.

    Columns: degree, thin exponent, parent row, axis that leads from the parent, then for each row axis its exponent,
    then for each row axis the row with that exponent lowered by one (−1 if it is zero already).
    """
    degree, axes = MAX_DEGREE.get(d, 2 if d <= 16 else 1), d - 1
    rows: list[tuple[int, ...]] = [()]
    for axis in range(axes):
        top = min(degree, MAX_THIN) if axis == 0 else degree
        rows = [(*row, e) for row in rows for e in range(top + 1) if sum(row) + e <= degree]
    rows.sort(key=lambda row: (sum(row), row))
    place = {row: i for i, row in enumerate(rows)}
    table = np.full((len(rows), 4 + 2 * axes), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        table[i, :2] = sum(row), row[0] if row else 0
        for axis, e in enumerate(row):
            table[i, 4 + axis] = e
            if e:
                lowered = place[(*row[:axis], e - 1, *row[axis + 1 :])]
                table[i, 4 + axes + axis] = lowered
                # The last axis wins, so that a parent never has a larger thin exponent.
                table[i, 2:4] = lowered, axis
    return table


@inner
def count_terms(table, p, r):
    """Number of multi-indices in A."""
    total = 0
    for row in range(table.shape[0]):
        if table[row, 0] > p:
            break
        if table[row, 1] <= r:
            total += p - table[row, 0] + 1
    return total


# The helpers below take slices and count from zero. Numba allows negative indices, and its test for them prevents
# vectorisation unless the compiler can see that an index is not negative.


@loose
def _eight_dots(x, z, w0, w1, w2, w3, out, other):
    """out[m] += Σ_t x[t] w_m[t] and other[m] += Σ_t z[t] w_m[t], m = 0 … 3: six loads for eight sums."""
    s0 = s1 = s2 = s3 = r0 = r1 = r2 = r3 = 0.0
    for t in range(BLOCK):
        a, b = x[t], z[t]
        y0, y1, y2, y3 = w0[t], w1[t], w2[t], w3[t]
        s0 += a * y0
        s1 += a * y1
        s2 += a * y2
        s3 += a * y3
        r0 += b * y0
        r1 += b * y1
        r2 += b * y2
        r3 += b * y3
    out[0] += s0
    out[1] += s1
    out[2] += s2
    out[3] += s3
    other[0] += r0
    other[1] += r1
    other[2] += r2
    other[3] += r3


@loose
def _times(x, y, out):
    for t in range(out.size):
        out[t] = x[t] * y[t]


@inner
def _add_rows(table, p, row, other, products, powers, coefficients):
    """Add two rows with all their columns. `other` has no lower degree than `row`, so no more columns."""
    x, z, stride = products[row], products[other], powers.shape[0]
    for j in range(0, p - table[row, 0] + 1, 4):
        out, out_other = coefficients[row * stride + j :], coefficients[other * stride + j :]
        _eight_dots(x, z, powers[j], powers[j + 1], powers[j + 2], powers[j + 3], out, out_other)


@inlined
def add_block(work, p, r):
    """Add one block of tokens to the coefficients.

    work.v: (d, BLOCK) scaled coordinates; work.products[0]: the weights a, zero where the block is padded. The sums are
    formed for two rows and four columns at a time. The few columns beyond p − degree are ignored when the expansion is
    evaluated, and a last row without partner is paired with a row of zeros behind the others.
    """
    table, v, products, powers, coefficients = work.table, work.v, work.products, work.powers, work.coefficients
    d = v.shape[0]
    for t in range(BLOCK):
        powers[0, t] = 1.0
    for j in range(1, p + 1):
        _times(powers[j - 1], v[d - 1], powers[j])
    waiting, spare = ZERO - 1, table.shape[0]
    for row in range(table.shape[0]):
        if table[row, 0] > p:
            break
        if table[row, 1] > r:
            continue
        if row:
            x = products[row]
            _times(products[table[row, 2]], v[table[row, 3]], x)
        if waiting < 0:
            waiting = row
        else:
            _add_rows(table, p, waiting, row, products, powers, coefficients)
            waiting = ZERO - 1
    if waiting >= 0:
        _add_rows(table, p, waiting, spare, products, powers, coefficients)


@inlined
def divide_by_factorials(work, p, r):
    """Σ a v^α → Σ a v^α / α!."""
    table, stride = work.table, work.powers.shape[0]
    axes = (table.shape[1] - 4) // 2
    for row in range(table.shape[0]):
        if table[row, 0] > p:
            break
        if table[row, 1] > r:
            continue
        scale = 1.0
        for axis in range(axes):
            for e in range(2, table[row, 4 + axis] + 1):
                scale /= e
        for j in range(p - table[row, 0] + 1):
            scale /= max(j, 1)
            work.coefficients[row * stride + j] *= scale


@loose
def _row_values(coefficients, x, h, dh):
    """h, dh ← the row's polynomial in the last coordinate and its derivative (Horner), for a block of queries."""
    degree = coefficients.size - 1
    for t in range(x.size):
        h[t] = coefficients[degree]
        dh[t] = 0.0
    for j in range(degree - 1, -1, -1):
        a = coefficients[j]
        for t in range(x.size):
            dh[t] = dh[t] * x[t] + h[t]
            h[t] = h[t] * x[t] + a


@loose
def _add_product(scale, x, y, out):
    for t in range(out.size):
        out[t] += scale * x[t] * y[t]


@inlined
def evaluate_block(work, n, p, r):
    """Value (work.rows[2]) and gradient in ξ (work.gradient) of the polynomial at n ≤ BLOCK queries ξ (work.v)."""
    table, xi, products, gradient, stride = work.table, work.v, work.products, work.gradient, work.powers.shape[0]
    d = xi.shape[0]
    h, dh, value = work.rows[0, :n], work.rows[1, :n], work.rows[2, :n]
    last, slope = xi[d - 1, :n], gradient[d - 1, :n]
    value[:] = 0.0
    gradient[:, :n] = 0.0
    products[0, :n] = 1.0
    for row in range(table.shape[0]):
        degree = table[row, 0]
        if degree > p:
            break
        if table[row, 1] > r:
            continue
        x = products[row, :n]
        if row:
            _times(products[table[row, 2], :n], xi[table[row, 3], :n], x)
        _row_values(work.coefficients[row * stride : row * stride + p - degree + 1], last, h, dh)
        _add_product(1.0, x, h, value)
        _add_product(1.0, x, dh, slope)
        for axis in range(d - 1):
            e = table[row, 4 + axis]
            if e:
                lowered = products[table[row, 3 + d + axis], :n]
                _add_product(float(e), lowered, h, gradient[axis, :n])


@loose
def _step(power, far, spread, scale):
    """One term of the series: its sums with weights 1 and |z|, then on to the next."""
    s0 = s1 = 0.0
    for t in range(power.size):
        s0 += power[t]
        s1 += power[t] * far[t]
        power[t] *= spread[t] * scale
    return s0, s1


@loose
def _step_thin(power, far, thin, scale):
    """One term of the thin series: Σ power |z_0| before the step, Σ power {1, |z|} after it."""
    s0 = s1 = s2 = 0.0
    for t in range(power.size):
        x = abs(thin[t])
        s2 += power[t] * x
        power[t] *= x * scale
        s0 += power[t]
        s1 += power[t] * far[t]
    return s0, s1, s2


@loose
def _start(score, z, at, a, far):
    """a ← e^s, far ← |z|."""
    far[:] = 0.0
    for k in range(z.shape[0]):
        x = z[k, at : at + far.size]
        for t in range(far.size):
            far[t] += x[t] * x[t]
    for t in range(far.size):
        far[t] = math.sqrt(far[t])
        a[t] = fast_exp(score[t])


@inlined
def sample_sums(work, n):
    """work.sums ← the sums of which every truncation bound is made, from a sample of blocks of the n tokens:

    sums[0, k] = Σ a T^k/k!, sums[1, k] = Σ a |z| T^k/k!, in the last column the remainder Σ e^T a T^K/K! {1, |z|};
    sums[2, r], sums[3, r] = Σ e^T a V^{r+1}/(r+1)! {1, |z|} and sums[4, r] = Σ e^T a |z_0| V^r/r!.
    """
    z, score, spread, crest, half, sums = work.z, work.score, work.spread, work.crest, work.half, work.sums
    sums[:] = 0.0
    every = 1 + n // (6 * BLOCK)
    for at in range(0, n, BLOCK * every):
        end = min(at + BLOCK, n)
        a, b = work.rows[0, : end - at], work.rows[1, : end - at]
        _start(score[at:end], z, at, a, b)
        for k in range(TERMS + 1):
            s0, s1 = _step(a, b, spread[at:end], 1.0 / (k + 1))
            sums[0, k] += s0
            sums[1, k] += s1
        for t in range(end - at):
            x = a[t] * fast_exp(spread[at + t])
            sums[0, TERMS + 1] += x
            sums[1, TERMS + 1] += x * b[t]
            a[t] = crest[at + t]
        for r in range(MAX_THIN + 1):
            s0, s1, s2 = _step_thin(a, b, z[0, at:end], half[0] / (r + 1) if half.size > 1 else 0.0)
            sums[2, r] += s0
            sums[3, r] += s1
            sums[4, r] += s2
    sums *= every


@loose
def _certify_block(p, r, a, far, spread, crest, thin, h0, power, thin_power):
    """The error bounds of one block, (for f, for g)."""
    for t in range(far.size):
        power[t] = 1.0
        thin_power[t] = crest[t]
    for k in range(1, p + 1):
        scale = 1.0 / k
        for t in range(far.size):
            power[t] *= spread[t] * scale
    for k in range(1, r + 1):
        scale = h0 / k
        for t in range(far.size):
            thin_power[t] *= abs(thin[t]) * scale
    e_f = e_g = 0.0
    for t in range(far.size):
        # Σ_{k ≥ p} T^k/k! ≤ T^p/p! · min(e^T, 1 / (1 − T/(p + 1))), the second only if T < p + 1.
        left = 1.0 - spread[t] / (p + 1)
        tail = power[t] * (min(crest[t], a[t] / left) if left > 1e-3 else crest[t])
        side = thin_power[t] * abs(thin[t])
        e_f += tail * spread[t] / (p + 1) + side * h0 / (r + 1)
        e_g += tail * far[t] + side + side * far[t] * h0 / (r + 1)
    return e_f, e_g


@inlined
def certify(work, n, p, r):
    """Bounds on the truncation errors of f and of its gradient anywhere in the box, over all n tokens."""
    half = work.half
    h0 = half[0] if half.size > 1 else 0.0
    e_f, e_g = 0.0, 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        a, far = work.rows[0, : end - at], work.rows[1, : end - at]
        power, thin_power = work.rows[2, : end - at], work.rows[3, : end - at]
        thin, spread, crest = work.z[0, at:end], work.spread[at:end], work.crest[at:end]
        _start(work.score[at:end], work.z, at, a, far)
        x, y = _certify_block(p, r, a, far, spread, crest, thin, h0, power, thin_power)
        e_f += x
        e_g += y
    return e_f, e_g


@inlined
def choose_order(table, sums, slack, budget):
    """The cheapest (p, r) whose error E_g + slack · E_f, by the sample, is within the budget.

    Returns (number of terms, p, r), zeros if there is none.
    """
    p_max = table[table.shape[0] - 1, 0]
    best = (ZERO, ZERO, ZERO)
    tail_f, tail_g = sums[0, TERMS + 1], sums[1, TERMS + 1]
    for k in range(TERMS, p_max, -1):
        tail_f += sums[0, k]
        tail_g += sums[1, k]
    for p in range(p_max, 0, -1):
        tail_g += sums[1, p]
        if tail_g + slack * tail_f > budget:
            break
        for r in range(1, min(MAX_THIN, p) + 1):
            e_f = tail_f + sums[2, r]
            e_g = tail_g + sums[3, r] + sums[4, r]
            if e_g + slack * e_f <= budget:
                terms = count_terms(table, p, r)
                if best[0] == 0 or terms < best[0]:
                    best = (terms, p, r)
                break
        tail_f += sums[0, p]
    return best
