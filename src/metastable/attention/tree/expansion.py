"""The local expansion: Z near u0 as a polynomial in the displacement, and its evaluation with gradient.

With displacements ξ ∈ [−1, 1]^d in the scaled axes of the box and v_jk = half_k ⟨axis_k, y_j − c⟩,

    f(ξ) = Σ_j a_j e^{⟨ξ, v_j⟩} ≈ Σ_{α ∈ A} ξ^α (Σ_j a_j v_j^α / α!),     A = {|α| ≤ p, α_thin ≤ r}.

Axis 0 is the thin one (the normal of the sphere, where r = 1 or 2 is enough), axis d − 1 is the widest. A multi-index
is a *row* (its first d − 1 entries) and a *column* (its last): a row of products a v^row is formed once for a block
of tokens, from its parent by one multiplication, and meets the powers of the last coordinate in dot products.
"""

import numpy as np

from .vectors import ZERO, inner, loose

BLOCK = 128
MAX_THIN = 8
# Largest total degree by dimension: beyond it more, smaller boxes are cheaper than longer expansions.
MAX_DEGREE = {1: 24, 2: 22, 3: 20, 4: 12, 5: 8, 6: 6, 7: 5, 8: 4}


def max_degree(d: int) -> int:
    """Largest total degree used in dimension d."""
    return MAX_DEGREE.get(d, 2 if d <= 16 else 1)


def row_table(d: int) -> np.ndarray:
    """Rows of the expansion, int64 (rows, 4 + 2 (d − 1)), sorted by degree so that a smaller degree is a prefix.

    Columns: degree, thin exponent, parent row, axis that leads from the parent, then for each row axis its exponent,
    then for each row axis the row with that exponent lowered by one (−1 if it is zero already).
    """
    degree, axes = max_degree(d), d - 1
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
                table[i, 2:4] = (
                    lowered,
                    axis,
                )  # the last axis wins, so that a parent never has more thin exponent
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


# The helpers below take slices and count from zero: numba lets an index be negative, and unless the compiler can see
# that it is not, the test for it keeps the loop from being vectorised.


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
def _add_rows(table, p, row, other, products, powers, stride, coefficients):
    """Two rows against all their columns. `other` has no lower degree than `row`, so no more columns."""
    x, z = products[row], products[other]
    for j in range(0, p - table[row, 0] + 1, 4):
        out, out_other = coefficients[row * stride + j :], coefficients[other * stride + j :]
        _eight_dots(x, z, powers[j], powers[j + 1], powers[j + 2], powers[j + 3], out, out_other)


@inner
def add_block(table, p, r, v, products, powers, stride, coefficients):
    """Add one block of tokens to the coefficients.

    v: (d, BLOCK) scaled coordinates; products[0] holds the weights a (zero where the block is
    padded). Two rows and four columns at a time: the few columns beyond p − degree that this computes are ignored by
    the reader, and a last row without partner is paired with one of zeros that is kept behind the others.
    """
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
            _add_rows(table, p, waiting, row, products, powers, stride, coefficients)
            waiting = ZERO - 1
    if waiting >= 0:
        _add_rows(table, p, waiting, spare, products, powers, stride, coefficients)


@inner
def divide_by_factorials(table, p, r, stride, coefficients):
    """Σ a v^α → Σ a v^α / α!."""
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
            coefficients[row * stride + j] *= scale


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


@inner
def evaluate_block(n, table, p, r, stride, coefficients, xi, products, h, dh, value, gradient):
    """Value and gradient in ξ of the polynomial at n ≤ BLOCK queries; xi, gradient: axis by axis."""
    d = xi.shape[0]
    h, dh, value = h[:n], dh[:n], value[:n]
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
        _row_values(coefficients[row * stride : row * stride + p - degree + 1], last, h, dh)
        _add_product(1.0, x, h, value)
        _add_product(1.0, x, dh, slope)
        for axis in range(d - 1):
            e = table[row, 4 + axis]
            if e:
                lowered = products[table[row, 3 + d + axis], :n]
                _add_product(float(e), lowered, h, gradient[axis, :n])
