"""Tokens in cells: a binary tree whose splits follow the clusters of the cloud, in any dimension.

A node holds the tokens first … last − 1 of the sorted order. It is split by two means: a sample of it gives two centres
(the axis is the one of largest variance, found by power iteration), and every token goes to the nearer one. A leaf
has at most LEAF tokens, fewer in high dimension, and is split further where that separates clusters. No part of a split
has fewer than LEAST tokens. From level STEEP on, nodes are halved, so that the depth is bounded.

About the weighted mean b of its tokens y = b + z, with n = b/|b|, a node has

    along ≥ |⟨n, z⟩|,   across ≥ |z − ⟨n, z⟩ n|,   so that   |⟨u, z⟩| ≤ |⟨u, n⟩| along + |u − ⟨u, n⟩ n| across,      (1)

and, with ρ = max |y| and r = max |z|, since 2⟨u, y⟩ = |u| (ρ + |y|²/ρ − |ρ u/|u| − y|²/ρ),

    ⟨u, y⟩ ≤ |u| (ρ − max(|ρ u/|u| − b| − r, 0)² / (2ρ)).                                                          (2)

On a sphere `along` is of the order of the square of `across`, and (1) is small for queries near the normal.
"""

import math

from metastable.attention.direct.kernels import LOG2E
from metastable.attention.tree.vectors import inlined, kernel, loose

LEAF = 512
# No node has fewer tokens, unless the cloud has.
LEAST = 16
# At most so many cells are made at once, from a sample of so many tokens a cell.
GROUPS, SAMPLED = 128, 16
# A node of at most `leaf` tokens is split if this share of its variance is between the two means.
CLEAR = 0.5
# From this level on nodes are halved.
STEEP = 24
# So many tokens of a node are sampled for its split.
SAMPLE = 384
# The score of a place without a token.
LOWEST = -1e30
# Iterations for the axis and for the two means.
POWER, MEANS = 4, 3


@loose
def _project(points, lo, hi, axis, out):
    """out ← ⟨axis, y⟩ for the tokens lo … hi − 1."""
    for i in range(lo, hi):
        s = 0.0
        for k in range(axis.size):
            s += axis[k] * points[i, k]
        out[i] = s


@inlined
def _swap(points, index, out, i, j):
    for k in range(points.shape[1]):
        points[i, k], points[j, k] = points[j, k], points[i, k]
    index[i], index[j] = index[j], index[i]
    out[i], out[j] = out[j], out[i]


@inlined
def _select(points, index, out, lo, hi, mid):
    """Reorder rows [lo, hi) so that `out` before `mid` is at most `out` after it (Hoare's selection)."""
    hi -= 1
    while lo < hi:
        a, b, c = out[lo], out[(lo + hi) >> 1], out[hi]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = lo, hi
        while i <= j:
            while out[i] < pivot:
                i += 1
            while out[j] > pivot:
                j -= 1
            if i <= j:
                _swap(points, index, out, i, j)
                i += 1
                j -= 1
        if mid <= j:
            hi = j
        elif mid >= i:
            lo = i
        else:
            return


@inlined
def _axis(points, lo, hi, step, mean, axis, other):
    """axis ← roughly the axis of largest variance of every `step`-th token; returns the variance in all directions."""
    d = points.shape[1]
    count = 0
    mean[:] = 0.0
    for i in range(lo, hi, step):
        count += 1
        for k in range(d):
            mean[k] += points[i, k]
    for k in range(d):
        mean[k] /= count
    # Power iteration starts with the token that is farthest from the mean.
    far, variance = -1.0, 0.0
    for i in range(lo, hi, step):
        square = 0.0
        for k in range(d):
            square += (points[i, k] - mean[k]) ** 2
        variance += square / count
        if square > far:
            far = square
            for k in range(d):
                axis[k] = points[i, k] - mean[k]
    for _ in range(POWER):
        other[:] = 0.0
        for i in range(lo, hi, step):
            s = 0.0
            for k in range(d):
                s += axis[k] * (points[i, k] - mean[k])
            for k in range(d):
                other[k] += s * (points[i, k] - mean[k])
        norm = 0.0
        for k in range(d):
            norm += other[k] ** 2
        if not norm > 0.0:
            return 0.0
        norm = math.sqrt(norm)
        for k in range(d):
            axis[k] = other[k] / norm
    return variance


@inlined
def _two_means(points, lo, hi, step, mean, axis, one, two):
    """axis ← the difference of the two means; tokens with ⟨axis, y⟩ below a threshold are in the first part.

    Returns the threshold and the variance between the two means.
    """
    d = points.shape[1]
    limit = between = 0.0
    for k in range(d):
        limit += axis[k] * mean[k]
    for _ in range(MEANS):
        one[:] = 0.0
        two[:] = 0.0
        ones = twos = 0
        for i in range(lo, hi, step):
            s = 0.0
            for k in range(d):
                s += axis[k] * points[i, k]
            if s < limit:
                ones += 1
                for k in range(d):
                    one[k] += points[i, k]
            else:
                twos += 1
                for k in range(d):
                    two[k] += points[i, k]
        if ones == 0 or twos == 0:
            return limit, 0.0
        limit = between = 0.0
        for k in range(d):
            a, b = one[k] / ones, two[k] / twos
            axis[k] = b - a
            between += (b - a) ** 2
            limit += 0.5 * (b - a) * (a + b)
        between *= (ones / (ones + twos)) * (twos / (ones + twos))
    return limit, between


@kernel
def spread_out(sample, seeds, distances):
    """seeds ← rows of the sample, each as far as possible from those before it; returns how many are distinct."""
    n, d = sample.shape
    distances[:] = math.inf
    best = 0
    for count in range(len(seeds)):
        for k in range(d):
            seeds[count, k] = sample[best, k]
        far = -1.0
        for i in range(n):
            square = 0.0
            for k in range(d):
                square += (sample[i, k] - seeds[count, k]) ** 2
            distances[i] = min(distances[i], square)
            if distances[i] > far:
                best, far = i, distances[i]
        if far <= 0.0:
            return count + 1
    return len(seeds)


@loose
def _add_scaled(a, x, out):
    for t in range(out.size):
        out[t] += a * x[t]


@kernel
def nearest(points, lo, hi, columns, halves, scores, labels):
    """labels[i] ← the centre nearest to point i, lo ≤ i < hi, for centres as columns and half of their squares."""
    for i in range(lo, hi):
        for t in range(scores.size):
            scores[t] = -halves[t]
        for k in range(points.shape[1]):
            _add_scaled(points[i, k], columns[k], scores)
        best = 0
        for t in range(1, scores.size):
            if scores[t] > scores[best]:
                best = t
        labels[i] = best


@kernel
def split(points, index, leaf, least, nodes, count, scratch, out):
    """Split the nodes (first, last, left child or −1, level) that are there and sort the points; returns their number.

    The right child of a node follows its left child. `scratch` is (5, d) and `out` has one number a point. No part has
    fewer than `least` points.
    """
    mean, axis, one, two, other = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    node = 0
    while node < count:
        lo, hi, level = nodes[node, 0], nodes[node, 1], nodes[node, 3]
        if nodes[node, 2] < 0 and hi - lo >= 2 * least:
            step = max(1, (hi - lo) // SAMPLE)
            variance = _axis(points, lo, hi, step, mean, axis, other)
            limit, between = _two_means(points, lo, hi, step, mean, axis, one, two)
            if hi - lo > leaf or between > CLEAR * variance:
                _project(points, lo, hi, axis, out)
                below = 0
                for i in range(lo, hi):
                    below += 1 if out[i] < limit else 0
                mid = lo + below if level < STEEP else (lo + hi) >> 1
                mid = min(max(mid, lo + least), hi - least)
                _select(points, index, out, lo, hi, mid)
                nodes[node, 2] = count
                for child in (count, count + 1):
                    nodes[child, 0], nodes[child, 1] = (lo, mid) if child == count else (mid, hi)
                    nodes[child, 2], nodes[child, 3] = -1, level + 1
                count += 2
        node += 1
    return count


@loose
def _extent(points, lo, hi, centre, normal):
    """The largest |⟨n, z⟩|, |z − ⟨n, z⟩ n|², |z|² and |y|² over y = centre + z."""
    along = across = square = outer = 0.0
    for i in range(lo, hi):
        s = t = r = 0.0
        for k in range(centre.size):
            z = points[i, k] - centre[k]
            s += normal[k] * z
            t += z * z
            r += points[i, k] ** 2
        along = max(along, abs(s))
        square = max(square, t)
        across = max(across, t - s * s)
        outer = max(outer, r)
    return along, across, square, outer


@kernel
def measure(points, log_weights, nodes, count, centres, sizes, normal):
    """Fill, for each node, its weighted mean b and (|b|, along, across, radius, log mass, log mean weight, span, ρ).

    span is the largest difference of two log-weights. A child's log mass and mean make those of its parent.
    """
    d = points.shape[1]
    for node in range(count - 1, -1, -1):
        lo, hi, left = nodes[node, 0], nodes[node, 1], nodes[node, 2]
        centre, size = centres[node], sizes[node]
        if left < 0:
            top, low = -math.inf, math.inf
            for i in range(lo, hi):
                top, low = max(top, log_weights[i]), min(low, log_weights[i])
            total = 0.0
            centre[:] = 0.0
            for i in range(lo, hi):
                w = math.exp(log_weights[i] - top)
                total += w
                for k in range(d):
                    centre[k] += w * points[i, k]
            for k in range(d):
                centre[k] /= total
            size[4], size[6] = top + math.log(total), top - low
        else:
            one, two = sizes[left], sizes[left + 1]
            top = max(one[4], two[4])
            a, b = math.exp(one[4] - top), math.exp(two[4] - top)
            size[4], size[6] = top + math.log(a + b), 0.0
            for k in range(d):
                centre[k] = (a * centres[left, k] + b * centres[left + 1, k]) / (a + b)
        size[5] = size[4] - math.log(hi - lo)
        # Σ w (y − b) = 0 to the last digit of b, as expansions need it: a sum of many terms loses some.
        normal[:] = 0.0
        for i in range(lo, hi):
            w = math.exp(log_weights[i] - size[4])
            for k in range(d):
                normal[k] += w * (points[i, k] - centre[k])
        for k in range(d):
            centre[k] += normal[k]
        norm = 0.0
        for k in range(d):
            norm += centre[k] ** 2
        norm = math.sqrt(norm)
        size[0] = norm
        for k in range(d):
            normal[k] = centre[k] / norm if norm > 0.0 else 0.0
        along, across, square, outer = _extent(points, lo, hi, centre, normal)
        # Differences of coordinates are exact to ε |y|, and t − s² to ε t. Both are covered here.
        slack = 1e-15 * (norm + math.sqrt(square))
        size[1], size[2] = along + slack, math.sqrt(max(across, 0.0) + 1e-14 * square) + slack
        size[3], size[7] = math.sqrt(square) + slack, math.sqrt(outer) * (1.0 + 1e-15)


@kernel
def covariance(points, log_weights, lo, hi, centre, z, out):
    """out ← Σ w z zᵀ / Σ w over the tokens lo … hi − 1, z = y − centre."""
    d = points.shape[1]
    out[:] = 0.0
    top = -math.inf
    for i in range(lo, hi):
        top = max(top, log_weights[i])
    total = 0.0
    for i in range(lo, hi):
        w = math.exp(log_weights[i] - top)
        total += w
        for k in range(d):
            z[k] = points[i, k] - centre[k]
        for k in range(d):
            x = w * z[k]
            for m in range(d):
                out[k, m] += x * z[m]
    for k in range(d):
        for m in range(d):
            out[k, m] /= total


@kernel
def arrange(points, log_weights, nodes, leaves, centres, rows, starts, keys, tops):
    """Write the tokens of each leaf, relative to its centre, coordinate by coordinate, to `keys`, in its precision.

    The last of the `rows` coordinates is log2(w / max w), and `tops` gets log2 of the largest weight of the leaf.
    Places without a token, up to a multiple of 16, have the lowest score. A leaf begins at its `starts` in `keys`.
    """
    d = points.shape[1]
    for leaf in range(leaves.size):
        node = leaves[leaf]
        lo, hi = nodes[node, 0], nodes[node, 1]
        size = (hi - lo + 15) // 16 * 16
        block = keys[starts[leaf] : starts[leaf] + rows * size].reshape((rows, size))
        top = -math.inf
        for i in range(lo, hi):
            top = max(top, log_weights[i])
        tops[leaf] = top * LOG2E
        for i in range(lo, hi):
            for k in range(d):
                block[k, i - lo] = points[i, k] - centres[node, k]
            block[rows - 1, i - lo] = max((log_weights[i] - top) * LOG2E, LOWEST)
        for i in range(hi - lo, size):
            block[rows - 1, i] = LOWEST
