"""A balanced binary tree over points: the order of the points, and for every node a box in its own principal axes.

Node 1 is the root, node i has children 2i and 2i + 1, and node i at level l holds the points

    [ (i − 2^l) N >> l , (i + 1 − 2^l) N >> l )

of the sorted order, so that the topology is a function of N alone and moving the points only means new boxes.

A node's record is one row of float64:

    centre (d) | half-widths (d) | axes (d × d, one axis a row) | radius | log Σ w | max log w | weighted mean (d)

and its points satisfy  y = centre + Σ_k s_k axis_k,  |s_k| ≤ half_k,  and  |y − centre| ≤ radius.
On a sphere a patch of size r has a half-width of order r² along its normal: this is what makes the bound
sup ⟨u, y⟩ = ⟨u, centre⟩ + Σ_k |⟨u, axis_k⟩| half_k  tight for the nodes that matter, where u is nearly normal.
"""

import math

from .vectors import inlined, inner, kernel

# Nodes with at most this many points measure their box on the points; above, on the boxes of their two children.
MEASURED = 512


@inner
def first_point(node, level, n):
    """Where the points of `node` (at `level`) begin in the sorted order."""
    return ((node - (1 << level)) * n) >> level


@inlined
def _swap(points, index, i, j):
    for k in range(points.shape[1]):
        points[i, k], points[j, k] = points[j, k], points[i, k]
    index[i], index[j] = index[j], index[i]


@inlined
def _select(points, index, lo, hi, mid, axis):
    """Reorder rows [lo, hi) so that those before `mid` are ≤ those after it along `axis` (Hoare's selection)."""
    hi -= 1
    while lo < hi:
        a, b, c = points[lo, axis], points[(lo + hi) >> 1, axis], points[hi, axis]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = lo, hi
        while i <= j:
            while points[i, axis] < pivot:
                i += 1
            while points[j, axis] > pivot:
                j -= 1
            if i <= j:
                _swap(points, index, i, j)
                i += 1
                j -= 1
        if mid <= j:
            hi = j
        elif mid >= i:
            lo = i
        else:
            return


@inlined
def _widest_axis(points, lo, hi):
    best, axis = -1.0, 0
    for k in range(points.shape[1]):
        low = high = points[lo, k]
        for i in range(lo + 1, hi):
            low = min(low, points[i, k])
            high = max(high, points[i, k])
        if high - low > best:
            best, axis = high - low, k
    return axis


@kernel
def sort_below(points, index, top, top_level, from_level, depth):
    """Split the nodes under `top` level by level from `from_level` to `depth`, halving along the widest coordinate."""
    n = points.shape[0]
    for level in range(from_level, depth):
        first = top << (level - top_level)
        for node in range(first, first + (1 << (level - top_level))):
            lo, hi = first_point(node, level, n), first_point(node + 1, level, n)
            if hi - lo > 1:
                mid = first_point(2 * node + 1, level + 1, n)
                _select(points, index, lo, hi, mid, _widest_axis(points, lo, hi))


@inlined
def _rotate(a, v, p, q):
    """One Jacobi rotation that annihilates a[p, q]; the rows of v collect the axes."""
    d = a.shape[0]
    theta = (a[q, q] - a[p, p]) / (2.0 * a[p, q])
    t = 1.0 / (abs(theta) + math.sqrt(theta * theta + 1.0))
    if theta < 0.0:
        t = -t
    c = 1.0 / math.sqrt(t * t + 1.0)
    s = t * c
    for k in range(d):
        x, y = a[k, p], a[k, q]
        a[k, p], a[k, q] = c * x - s * y, s * x + c * y
    for k in range(d):
        x, y = a[p, k], a[q, k]
        a[p, k], a[q, k] = c * x - s * y, s * x + c * y
        x, y = v[p, k], v[q, k]
        v[p, k], v[q, k] = c * x - s * y, s * x + c * y


@inlined
def principal_axes(a, v):
    """Rows of v ← orthonormal eigenvectors of the symmetric matrix a, which is destroyed.

    The sweeps stop at six: any orthonormal axes give valid boxes, exact ones only give the smallest.
    """
    d = a.shape[0]
    for i in range(d):
        for j in range(d):
            v[i, j] = 1.0 if i == j else 0.0
    for _ in range(6):
        off, diagonal = 0.0, 0.0
        for i in range(d):
            diagonal += abs(a[i, i])
            for j in range(i + 1, d):
                off += abs(a[i, j])
        if off <= 1e-9 * diagonal:
            return
        for p in range(d):
            for q in range(p + 1, d):
                if abs(a[p, q]) > 1e-300:
                    _rotate(a, v, p, q)


@inlined
def _moments(points, lo, hi, mean, cov):
    """Mean and scatter matrix of the points of one node, in two passes (no cancellation for tight clusters)."""
    d = points.shape[1]
    mean[:] = 0.0
    cov[:] = 0.0
    for i in range(lo, hi):
        for k in range(d):
            mean[k] += points[i, k]
    for k in range(d):
        mean[k] /= hi - lo
    for i in range(lo, hi):
        for k in range(d):
            x = points[i, k] - mean[k]
            for m in range(k, d):
                cov[k, m] += x * (points[i, m] - mean[m])
    for k in range(d):
        for m in range(k):
            cov[k, m] = cov[m, k]


@inlined
def _measure_points(points, lo, hi, mean, axes, low, high):
    """Extent of the points along each axis, relative to `mean`."""
    d = points.shape[1]
    for k in range(d):
        low[k], high[k] = math.inf, -math.inf
    for i in range(lo, hi):
        for k in range(d):
            s = 0.0
            for m in range(d):
                s += axes[k, m] * (points[i, m] - mean[m])
            low[k] = min(low[k], s)
            high[k] = max(high[k], s)


@inlined
def _measure_children(records, node, mean, axes, low, high):
    """Extent of the two child boxes along each axis, relative to `mean`: contains the points, costs nothing in N."""
    d = axes.shape[0]
    for k in range(d):
        low[k], high[k] = math.inf, -math.inf
    for child in (2 * node, 2 * node + 1):
        for k in range(d):
            s, reach = 0.0, 0.0
            for m in range(d):
                s += axes[k, m] * (records[child, m] - mean[m])
                p = 0.0
                for i in range(d):
                    p += axes[k, i] * records[child, 2 * d + m * d + i]
                reach += abs(p) * records[child, d + m]
            low[k] = min(low[k], s - reach)
            high[k] = max(high[k], s + reach)


@inlined
def _write_box(records, node, mean, axes, low, high):
    """Centre, half-widths and axes of the record, from extents along the axes about `mean`."""
    d = axes.shape[0]
    for m in range(d):
        records[node, m] = mean[m]
    for k in range(d):
        middle = 0.5 * (low[k] + high[k])
        records[node, d + k] = 0.5 * (high[k] - low[k])
        for m in range(d):
            records[node, m] += middle * axes[k, m]
            records[node, 2 * d + k * d + m] = axes[k, m]


@inlined
def _radius(points, lo, hi, records, node):
    """Largest distance from the centre: over the points of a small node, half the diagonal of the box of a big one."""
    d = points.shape[1]
    best = 0.0
    if hi - lo > MEASURED:
        for k in range(d):
            best += records[node, d + k] ** 2
        return math.sqrt(best)
    for i in range(lo, hi):
        s = 0.0
        for k in range(d):
            s += (points[i, k] - records[node, k]) ** 2
        best = max(best, s)
    return math.sqrt(best)


@inlined
def _log_weights(points, log_weights, lo, hi, records, node):
    """Total and largest weight of a leaf, in logarithms, and its weighted mean."""
    d = points.shape[1]
    at = 2 * d + d * d
    top = -math.inf
    for i in range(lo, hi):
        top = max(top, log_weights[i])
    total = 0.0
    for k in range(d):
        records[node, at + 3 + k] = 0.0
    for i in range(lo, hi):
        w = math.exp(log_weights[i] - top)
        total += w
        for k in range(d):
            records[node, at + 3 + k] += w * points[i, k]
    for k in range(d):
        records[node, at + 3 + k] /= total
    records[node, at + 1] = top + math.log(total)
    records[node, at + 2] = top


@inlined
def _merge_log_weights(records, node, d):
    at = 2 * d + d * d
    x, y = records[2 * node, at + 1], records[2 * node + 1, at + 1]
    top = max(x, y)
    share = math.exp(x - top) / (math.exp(x - top) + math.exp(y - top))
    for k in range(at + 3, at + 3 + d):
        records[node, k] = share * records[2 * node, k] + (1.0 - share) * records[2 * node + 1, k]
    records[node, at + 1] = top + math.log(math.exp(x - top) + math.exp(y - top))
    records[node, at + 2] = max(records[2 * node, at + 2], records[2 * node + 1, at + 2])


@inlined
def _merge_moments(means, scatters, node, mid, lo, hi):
    """Mean and scatter of a node from those of its children (the parallel-axis rule)."""
    d = means.shape[1]
    n1, n2 = mid - lo, hi - mid
    total = n1 + n2
    for k in range(d):
        means[node, k] = (n1 * means[2 * node, k] + n2 * means[2 * node + 1, k]) / total
    for k in range(d):
        gap = means[2 * node + 1, k] - means[2 * node, k]
        for m in range(d):
            other = means[2 * node + 1, m] - means[2 * node, m]
            scatters[node, k, m] = (
                scatters[2 * node, k, m] + scatters[2 * node + 1, k, m] + gap * other * n1 * n2 / total
            )


@kernel
def fit_below(points, log_weights, records, means, scatters, top, top_level, from_level, depth, scratch):
    """Fill the records under node `top`, from `from_level` up to the level of `top`; leaves are at level `depth`.

    `means` and `scatters` carry the moments up the tree: a node merges those of its children;
    `scratch` is (2d + 2, d).
    """
    n, d = points.shape
    cov, axes, low, high = scratch[:d], scratch[d : 2 * d], scratch[2 * d], scratch[2 * d + 1]
    for level in range(from_level, top_level - 1, -1):
        first = top << (level - top_level)
        for node in range(first, first + (1 << (level - top_level))):
            lo, hi = first_point(node, level, n), first_point(node + 1, level, n)
            if level == depth:
                _moments(points, lo, hi, means[node], scatters[node])
                _log_weights(points, log_weights, lo, hi, records, node)
            else:
                _merge_moments(means, scatters, node, first_point(2 * node + 1, level + 1, n), lo, hi)
                _merge_log_weights(records, node, d)
            for k in range(d):
                for m in range(d):
                    cov[k, m] = scatters[node, k, m]
            principal_axes(cov, axes)
            if level == depth or hi - lo <= MEASURED:
                _measure_points(points, lo, hi, means[node], axes, low, high)
            else:
                _measure_children(records, node, means[node], axes, low, high)
            _write_box(records, node, means[node], axes, low, high)
            records[node, 2 * d + d * d] = _radius(points, lo, hi, records, node)
