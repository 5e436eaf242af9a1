"""The walk of a tile of queries through the cells of a cloud, and the sums over the tokens of one leaf.

`answers_of` makes one kernel for each precision of the sums over leaves. What decides about nodes is always float64.
"""

import functools
import math

import numpy as np
from numba import njit

from metastable.attention.direct.kernels import LOG2E, exp2_double, exp2_single, larger
from metastable.attention.tree.vectors import inlined, inner, kernel, loose

# Queries that walk together.
TILE = 64
# Coordinates that one pass over a leaf takes.
WIDTH = 8
# Entries of the stack: a bound of the depth of the tree, which halves nodes from level STEEP on.
DEPTH = 96
# So many nodes, in the order of their levels, are compared before the walk.
UPPER = 128
# Nothing found yet, as the logarithm of a sum.
NOTHING = -1e300
# Exponents e^T with a larger T are not computed: no such node is expanded.
WIDEST = 30.0


@loose
def _scores(columns, centre, out):
    """out[q] ← ⟨u_q, centre⟩ for the queries of a tile."""
    for q in range(out.size):
        out[q] = 0.0
    for k in range(centre.size):
        c = centre[k]
        for q in range(out.size):
            out[q] += c * columns[k, q]


@loose
def _raise(scores, log_mass, floor):
    """floor[q] ← at least the Jensen bound of log Z by one node."""
    for q in range(floor.size):
        floor[q] = max(floor[q], scores[q] + log_mass)


@loose
def _reaches(scores, squares, size, spreads, highest):
    """spreads[q] ← the bound of |⟨u_q, z⟩| over a node, highest[q] ← the bound of ⟨u_q, y⟩: (1) and (2) of `grouping`.

    The square root is raised by its rounding.
    """
    norm, along, across, radius, outer = size[0], size[1], size[2], size[3], size[7]
    for q in range(scores.size):
        length = math.sqrt(squares[q])
        s = abs(scores[q]) / norm if norm > 0.0 else 0.0
        rest = math.sqrt(max(squares[q] - s * s, 0.0) + 1e-14 * squares[q])
        spread = s * along + rest * across if norm > 0.0 else length * radius
        gap = outer * outer + norm * norm - 2.0 * outer * scores[q] / length if length > 0.0 else 0.0
        gap = max(math.sqrt(max(gap, 0.0)) - radius, 0.0)
        ball = length * outer - 0.5 * length / outer * gap * gap if outer > 0.0 else 0.0
        spreads[q], highest[q] = spread, min(scores[q] + spread, ball)


@inner
def _add(running, top, f, point):
    """Add 2^top (f, f·point) to the sums of a query; its logarithm is taken out of them if it is the largest."""
    if top > running[0]:
        factor = exp2_double(running[0] - top)
        for k in range(1, running.size):
            running[k] *= factor
        running[0] = top
    else:
        f *= exp2_double(top - running[0])
    running[1] += f
    for k in range(point.size):
        running[2 + k] += f * point[k]


@inlined
def _expand(running, base, centre, shifted, variance):
    """Add a node by its moments: f = e^base (1 + ⟨u, Cu⟩/2), g = f b + e^base Cu, from `shifted` = Cu."""
    f = 1.0 + 0.5 * variance
    for k in range(centre.size):
        shifted[k] = centre[k] + shifted[k] / f
    _add(running, base * LOG2E, f, shifted)


@loose
def _times(second, u, shifted):
    """shifted ← Cu; returns ⟨u, Cu⟩."""
    total = 0.0
    for k in range(u.size):
        s = 0.0
        for m in range(u.size):
            s += second[k, m] * u[m]
        shifted[k] = s
        total += s * u[k]
    return total


# As in `direct`: sums may be reordered, and all numbers are finite.
_LOOSE = {"reassoc", "contract", "arcp", "nsz", "nnan", "ninf"}
_common = functools.partial(njit, cache=True, nogil=True, error_model="numpy", _nrt=False)
_inner = functools.partial(_common, no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath=_LOOSE)


def _leaf_sums_of(single):
    """The sums over the tokens of a leaf in float32 (`single`) or in float64."""
    real = np.float32 if single else np.float64
    zero, lowest = real(0), real(np.finfo(real).min / 2)

    def leaf_sums(block, size, asked, scores, least, out):
        """Sums over the tokens of a leaf: out ← (Σ 2^{s − top}, Σ 2^{s − top} z_1, …). Returns top, the largest s.

        Nothing is summed if top is at most `least`.
        """
        groups = (block.shape[0] - 1) // WIDTH
        offsets = block[groups * WIDTH]
        for i in range(size):
            scores[i] = offsets[i]
        top = lowest
        for g in range(groups):
            u, y = asked[g * WIDTH :], block[g * WIDTH :]
            u0, u1, u2, u3, u4, u5, u6, u7 = u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7]
            top = lowest
            for i in range(size):
                s = scores[i] + u0 * y[0, i] + u1 * y[1, i] + u2 * y[2, i] + u3 * y[3, i]
                s += u4 * y[4, i] + u5 * y[5, i] + u6 * y[6, i] + u7 * y[7, i]
                scores[i] = s
                top = larger(s, top)
        if top <= least:
            return top
        z = zero
        for i in range(size):
            p = exp2_single(scores[i] - top) if single else exp2_double(scores[i] - top)
            z += p
            scores[i] = p
        out[0] = z
        for g in range(groups):
            y = block[g * WIDTH :]
            m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = zero
            for i in range(size):
                p = scores[i]
                m0 += p * y[0, i]
                m1 += p * y[1, i]
                m2 += p * y[2, i]
                m3 += p * y[3, i]
                m4 += p * y[4, i]
                m5 += p * y[5, i]
                m6 += p * y[6, i]
                m7 += p * y[7, i]
            out[1 + g * WIDTH] = m0
            out[2 + g * WIDTH] = m1
            out[3 + g * WIDTH] = m2
            out[4 + g * WIDTH] = m3
            out[5 + g * WIDTH] = m4
            out[6 + g * WIDTH] = m5
            out[7 + g * WIDTH] = m6
            out[8 + g * WIDTH] = m7
        return top

    # Every kernel has its own file in numba's cache.
    leaf_sums.__qualname__ = f"leaf_sums_{real.__name__}"
    return _inner()(leaf_sums)


_leaf_single, _leaf_double = _leaf_sums_of(True), _leaf_sums_of(False)


@functools.cache
def answers_of(single):
    """The kernel for sums over leaves in float32 (`single`) or in float64."""
    real = np.float32 if single else np.float64

    def answers(cells, queries, least_z, first, last, limits, work, means, bounds, log_z, counts):
        """Means, log Z and what bounds their errors for the queries first … last − 1.

        bounds[i] ← (1 if anything was left out, largest error of an expanded node, largest relative error of a weight
        by rounding, largest |z| of a leaf), see `certificate`.
        """
        nodes, centres, sizes, keys, rows, starts, leaf_of, tops, slots, seconds = cells
        d = queries.shape[1]
        lists, scores, sums, asked = work.lists, work.scores, work.sums, work.asked
        theta, kappa, kappa_z, far, rounding = limits
        log_theta = math.log(theta)
        for low in range(first, last, TILE):
            m = min(TILE, last - low)
            for q in range(TILE):
                i = low + min(q, m - 1)
                square = 0.0
                for k in range(d):
                    x = queries[i, k]
                    work.columns[k, q] = x
                    asked[q, k] = x * LOG2E
                    square += x * x
                work.squares[q] = square
                work.floor[q] = least_z[i]
                work.running[q, 0] = NOTHING
                work.running[q, 1:] = 0.0
                lists[0, q] = q
            for q in range(m):
                for k in range(4):
                    bounds[low + q, k] = 0.0
            # The upper nodes tell which clusters matter.
            for node in range(min(len(nodes), UPPER)):
                _scores(work.columns, centres[node], work.heads)
                _raise(work.heads, sizes[node, 4], work.floor)
            work.stack[0, 0], work.stack[0, 1], stacked = 0, m, 1
            while stacked:
                stacked -= 1
                node, kept = work.stack[stacked, 0], 0
                active, centre, size = work.stack[stacked, 1], centres[node], sizes[node]
                _scores(work.columns, centre, work.heads)
                _reaches(work.heads, work.squares, size, work.spreads, work.highest)
                slot = slots[node]
                for a in range(active):
                    q = lists[stacked, a]
                    spread = work.spreads[q]
                    if work.highest[q] <= work.floor[q] + log_theta:
                        bounds[low + q, 0] = 1.0
                        continue
                    base = work.heads[q] + size[4]
                    if node >= UPPER:
                        work.floor[q] = max(work.floor[q], base)
                    if slot >= 0 and spread <= WIDEST:
                        variance = _times(seconds[slot], queries[low + q], work.shifted)
                        remainder = variance * math.exp(spread)
                        error_z = remainder * spread / 6.0
                        error = 0.5 * remainder * size[3] + error_z * far
                        if error <= kappa and error_z <= kappa_z:
                            _expand(work.running[q], base, centre, work.shifted, variance)
                            bounds[low + q, 1] = max(bounds[low + q, 1], error)
                            counts[1] += 1
                            continue
                    lists[stacked, kept] = q
                    kept += 1
                if kept == 0:
                    continue
                left = nodes[node, 2]
                if left >= 0:
                    one = two = 0.0
                    for k in range(d):
                        total = 0.0
                        for a in range(kept):
                            total += work.columns[k, lists[stacked, a]]
                        one += total * centres[left, k]
                        two += total * centres[left + 1, k]
                    near = left if one >= two else left + 1
                    for a in range(kept):
                        lists[stacked + 1, a] = lists[stacked, a]
                    work.stack[stacked, 0], work.stack[stacked, 1] = 2 * left + 1 - near, kept
                    work.stack[stacked + 1, 0], work.stack[stacked + 1, 1] = near, kept
                    stacked += 2
                    continue
                leaf = leaf_of[node]
                padded = (nodes[node, 1] - nodes[node, 0] + 15) // 16 * 16
                counts[0] += kept * (nodes[node, 1] - nodes[node, 0])
                block = keys[starts[leaf] : starts[leaf] + rows * padded].reshape((rows, padded))
                for a in range(kept):
                    q = lists[stacked, a]
                    base = work.heads[q] * LOG2E + tops[leaf]
                    error = rounding * (math.sqrt(work.squares[q]) * size[3] + size[6])
                    # All tokens together have at most n e^top and are left out up to theta times their mass. The
                    # rounding of the scores, and of `least` itself, is on the safe side.
                    least = (work.floor[q] + log_theta + size[5] - error) * LOG2E - base
                    least = real(max(least - 2.0 * rounding * abs(least), -1e30))
                    if single:
                        top = _leaf_single(block, padded, asked[q], scores, least, sums)
                    else:
                        top = _leaf_double(block, padded, asked[q], scores, least, sums)
                    if top <= least:
                        bounds[low + q, 0] = 1.0
                        continue
                    f = np.float64(sums[0])
                    for k in range(d):
                        work.shifted[k] = centre[k] + np.float64(sums[1 + k]) / f
                    running = work.running[q]
                    _add(running, base + np.float64(top), f, work.shifted)
                    # The sums are only known up to rounding and the errors of expanded nodes; 0.6 covers both.
                    work.floor[q] = max(work.floor[q], (running[0] + math.log2(0.6 * running[1])) / LOG2E)
                    bounds[low + q, 2] = max(bounds[low + q, 2], error)
                    bounds[low + q, 3] = max(bounds[low + q, 3], size[3])
            for q in range(m):
                running = work.running[q]
                for k in range(d):
                    means[low + q, k] = running[2 + k] / running[1]
                log_z[low + q] = (running[0] + math.log2(running[1])) / LOG2E

    answers.__qualname__ = f"answers_{real.__name__}"
    return kernel(answers)
