"""A balanced binary tree over points, for tokens and for queries. Every node has a box in its own principal axes.

Node 1 is the root, node i has children 2i and 2i + 1, and node i at level l holds the points

    [ (i − 2^l) N >> l , (i + 1 − 2^l) N >> l )

of the sorted order. The topology is a function of N alone: when the points move, only the boxes change.

A node's record is one row of float64:

    centre (d) | half-widths (d) | axes (d × d, one axis a row) | radius | log Σ w | max log w | weighted mean (d)

and its points satisfy  y = centre + Σ_k s_k axis_k,  |s_k| ≤ half_k,  and  |y − centre| ≤ radius.
On a sphere a patch of size r has a half-width of order r² along its normal. This makes the bound
sup ⟨u, y⟩ = ⟨u, centre⟩ + Σ_k |⟨u, axis_k⟩| half_k  tight for the nodes that matter, where u is nearly normal.
"""

from __future__ import annotations

import math

import numpy as np

from metastable.attention.threads import run_all

from .vectors import dot, inlined, inner, kernel, score

# Nodes with at most this many points measure their box on the points; larger ones on the boxes of their children.
MEASURED = 512
# With fewer points than this, one thread is faster than several.
SERIAL = 20_000


@inner
def first_point(node, level, n):
    """Where the points of `node` (at `level`) begin in the sorted order."""
    return ((node - (1 << level)) * n) >> level


@inner
def depth_of(node):
    """The level of a node: the root, 1, is at level 0."""
    level = 0
    while node >> (level + 1):
        level += 1
    return level


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

    Six sweeps are enough: any orthonormal axes give valid boxes, and exact ones only give the smallest.
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
            s = score(0.0, axes[k], points[i], mean)
            low[k] = min(low[k], s)
            high[k] = max(high[k], s)


@inlined
def _measure_children(records, node, mean, axes, low, high):
    """Extent of the two child boxes along each axis, relative to `mean`. It contains all points."""
    d = axes.shape[0]
    for k in range(d):
        low[k], high[k] = math.inf, -math.inf
    for child in (2 * node, 2 * node + 1):
        for k in range(d):
            s, reach = score(0.0, axes[k], records[child], mean), 0.0
            for m in range(d):
                axis = records[child, 2 * d + m * d : 3 * d + m * d]
                reach += abs(dot(axes[k], axis)) * records[child, d + m]
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

    `means` and `scatters` hold the moments of the nodes; a node merges those of its children. `scratch` is (2d + 2, d).
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


class Ordered:
    """Points (n, d) in tree order with a record for every node (see the docstring of the module).

    `points` and `log_weights` are sorted copies, and `index` holds the original row of each. `depth` is the level of
    the leaves, which hold at most `leaf` points each. With `like`, the order of another tree over as many points is
    reused, and only the levels below its leaves are sorted.
    """

    def __init__(self, points: np.ndarray, log_weights: np.ndarray, leaf: int, like: Ordered | None = None) -> None:
        n, d = points.shape
        self.depth = 0
        while n > leaf << self.depth:
            self.depth += 1
        self._split = min(4, self.depth) if n > SERIAL else 0
        if like is None:
            self.points, self.index = np.array(points, dtype=np.float64, order="C"), np.arange(n)
            self._sort()
        else:
            self.points, self.index = np.ascontiguousarray(points[like.index]), like.index.copy()
            self._sort_subtrees(like.depth)
        self.log_weights = np.ascontiguousarray(log_weights[self.index], dtype=np.float64)
        nodes = 2 << self.depth
        self.records = np.zeros((nodes, d * d + 3 * d + 3))
        self._means, self._scatters = np.zeros((nodes, d)), np.zeros((nodes, d, d))
        self.fit()

    def _sort(self) -> None:
        """Sort from the root: first the upper levels, then all subtrees at once."""
        for level in range(self._split):
            nodes = range(1 << level, 2 << level)
            run_all(sort_below, [(self.points, self.index, i, level, level, level + 1) for i in nodes])
        self._sort_subtrees(self._split)

    def _sort_subtrees(self, from_level: int) -> None:
        tops = range(1 << self._split, 2 << self._split)
        run_all(sort_below, [(self.points, self.index, i, self._split, from_level, self.depth) for i in tops])

    def fit(self) -> None:
        """Boxes, weights and radii of every node, from the leaves up."""
        split = self._split
        common = (self.points, self.log_weights, self.records, self._means, self._scatters)
        d = self.points.shape[1]

        def fit(top: int, level: int, from_level: int) -> None:
            fit_below(*common, top, level, from_level, self.depth, np.empty((2 * d + 2, d)))

        run_all(fit, [(i, split, self.depth) for i in range(1 << split, 2 << split)])
        if split:
            fit(1, 0, split - 1)

    @property
    def round(self) -> bool:
        """Whether all points lie on the unit sphere, up to rounding."""
        return bool(np.abs(np.einsum("ij,ij->i", self.points, self.points) - 1.0).max() < 1e-14)

    def radius(self, level: int) -> float:
        """Mean radius of the nodes of a level."""
        return float(self.records[1 << level : 2 << level, -3 - self.points.shape[1]].mean())
