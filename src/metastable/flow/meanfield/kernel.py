"""The softmax mean over points in order along the circle, and the quadrature of log-linear intervals, in numba.

For a query u the score of y_j is ⟨u, y_j⟩ + log w_j. Consecutive points form blocks; with c the middle point of a
block, τ ⊥ c and r the largest |y − c| in it, no score in the block exceeds

    ⟨u, c⟩ + |⟨u, τ⟩| r + max(0, −⟨u, c⟩) r²/2 + max log w,

so blocks that stay DROP below the largest score are passed over: together they weigh less than n·e^{−DROP}.
"""

import math

import numpy as np

from metastable.attention.tree.vectors import fast_exp, kernel, loose

BLOCK = 32
DROP = 45.0
GAUSS = 0.5 / math.sqrt(3.0)
"""Offset of the two Gauss–Legendre points from the middle, in lengths."""
THINNEST = 1e-15
"""Lengths count as at least this much in a density: a cluster can be narrower than the rounding of its angle."""


@kernel
def _frames(yx, yy, log_weights, frame):
    n = len(yx)
    for b in range(frame.shape[1]):
        start, end = b * BLOCK, min(n, (b + 1) * BLOCK)
        cx, cy = yx[(start + end) // 2], yy[(start + end) // 2]
        r, heaviest = 0.0, start
        for j in range(start, end):
            r = max(r, (yx[j] - cx) ** 2 + (yy[j] - cy) ** 2)
            if log_weights[j] > log_weights[heaviest]:
                heaviest = j
        frame[0, b], frame[1, b], frame[2, b], frame[3, b] = cx, cy, math.sqrt(r), log_weights[heaviest]
        frame[4, b], frame[5, b] = yx[heaviest], yy[heaviest]


@loose
def _bounds(ux, uy, frame, bounds):
    """The bound of every block; the largest score of their heaviest points comes back."""
    best = -1e300
    for b in range(len(bounds)):
        along = ux * frame[0, b] + uy * frame[1, b]
        across = abs(uy * frame[0, b] - ux * frame[1, b])
        r = frame[2, b]
        bounds[b] = along + across * r + max(0.0, -along) * 0.5 * r * r + frame[3, b]
        best = max(best, ux * frame[4, b] + uy * frame[5, b] + frame[3, b])
    return best


@loose
def _largest(ux, uy, yx, yy, log_weights, start, end):
    best = -1e300
    for j in range(start, end):
        best = max(best, ux * yx[j] + uy * yy[j] + log_weights[j])
    return best


@loose
def _add(ux, uy, yx, yy, log_weights, start, end, best, total):
    mass, mx, my = 0.0, 0.0, 0.0
    for j in range(start, end):
        p = fast_exp(ux * yx[j] + uy * yy[j] + log_weights[j] - best)
        mass += p
        mx += p * yx[j]
        my += p * yy[j]
    total[0] += mass
    total[1] += mx
    total[2] += my


@kernel
def _means(u, yx, yy, log_weights, frame, bounds, total, out, tops):
    n, blocks = len(yx), len(bounds)
    for i in range(len(u)):
        ux, uy = u[i, 0], u[i, 1]
        best = _bounds(ux, uy, frame, bounds)
        for b in range(blocks):
            if bounds[b] > best:
                best = max(best, _largest(ux, uy, yx, yy, log_weights, b * BLOCK, min(n, (b + 1) * BLOCK)))
        total[:] = 0.0
        for b in range(blocks):
            if bounds[b] > best - DROP:
                _add(ux, uy, yx, yy, log_weights, b * BLOCK, min(n, (b + 1) * BLOCK), best, total)
        tops[i] = best
        out[i, 0], out[i, 1] = total[1] / total[0], total[2] / total[0]


def softmax_means(u: np.ndarray, y: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ_j y_j e^{⟨u, y_j⟩} w_j / Σ_j e^{⟨u, y_j⟩} w_j and the largest score, for each row of u (n, 2).

    y (q, 2) must be in order along the circle, or the blocks are of no use.
    """
    blocks = -(-len(y) // BLOCK)
    yx, yy = np.ascontiguousarray(y.T)
    frame, bounds, out, tops = np.empty((6, blocks)), np.empty(blocks), np.empty((len(u), 2)), np.empty(len(u))
    _frames(yx, yy, log_weights, frame)
    _means(np.ascontiguousarray(u), yx, yy, log_weights, frame, bounds, np.empty(3), out, tops)
    return out, tops


@kernel
def slopes(angles, log_masses, out):
    """s of each interval: the van Leer mean of the differences of log-density to its two neighbours."""
    n = len(angles)
    turn = 2 * math.pi
    length = max(angles[0] + turn - angles[n - 1], THINNEST)
    density = log_masses[n - 1] - math.log(length)
    before = 0.0
    for k in range(n + 1):
        i = k % n
        following = max((angles[i + 1] if i + 1 < n else angles[0] + turn) - angles[i], THINNEST)
        ahead = log_masses[i] - math.log(following)
        after = (ahead - density) / (0.5 * (length + following))
        if k > 0:
            mean = 2 * after * before / (after + before) if after * before > 0 else 0.0
            out[k - 1] = mean if math.isfinite(mean) else 0.0
        before, length, density = after, following, ahead


@kernel
def two_points(angles, log_masses, slope, points, log_weights):
    """The two Gauss points of each interval with the shares of its mass there."""
    n = len(angles)
    for i in range(n):
        length = max((angles[i + 1] if i + 1 < n else angles[0] + 2 * math.pi) - angles[i], 0.0)
        offset, middle = GAUSS * length, angles[i] + 0.5 * length
        tilt = slope[i] * offset
        more = -math.log1p(math.exp(-2 * abs(tilt)))
        less = more - 2 * abs(tilt)
        log_weights[2 * i] = log_masses[i] + (less if tilt > 0 else more)
        log_weights[2 * i + 1] = log_masses[i] + (more if tilt > 0 else less)
        points[2 * i, 0], points[2 * i, 1] = math.cos(middle - offset), math.sin(middle - offset)
        points[2 * i + 1, 0], points[2 * i + 1, 1] = math.cos(middle + offset), math.sin(middle + offset)
