"""The circle cut into intervals that move with the flow (d = 2).

Interval i lies between the angles θ_i and θ_{i+1} (the last one ends at θ_0 + 2π) and has the mass e^{m_i}. Its density
is log-linear, ρ(θ) ∝ e^{sθ}, where s is the van Leer mean of the two differences a, b of the mean log-densities:
2ab/(a + b) if they have the same sign, else 0. The density is positive everywhere in the tail, and second order where
it is smooth. In the softmax two Gauss points represent an interval.

*Softmax mean.* For a query u the score of y_j is ⟨u, y_j⟩ + log w_j. Consecutive points form blocks. With c the middle
point of a block, τ ⊥ c and r the largest |y − c| in it, no score in the block exceeds

    ⟨u, c⟩ + |⟨u, τ⟩| r + max(0, −⟨u, c⟩) r²/2 + max log w.

Consecutive queries u_i form groups. For the middle query u of a group, y* is the point with the largest score. With
s the largest distance of a u_i from the segment between the first and the last one, u_a and u_b, and R the largest
|u_i − u|, the lead of a point y of the block over y* grows from u to u_i by

    ⟨u_i − u, y − y*⟩ ≤ max(⟨u_a − u, c − y*⟩, ⟨u_b − u, c − y*⟩) + s |c − y*| + R r.

So blocks whose scores stay DROP below that of y* for the whole group are skipped: together they weigh less than
n·e^{−DROP} of any sum. The exponentials are taken relative to y*. A group in which another point could lead by more
than FARTHEST is divided into single queries.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
from scipy.special import logsumexp

from metastable.attention.tree.vectors import fast_exp, inner, kernel, loose
from metastable.flow.meanfield.laws import LogDensity

BLOCK = 16
GROUP = 16
DROP = 32.0
FARTHEST = 300.0
GAUSS = 0.5 / math.sqrt(3.0)
"""Offset of the two Gauss–Legendre points from the middle, in lengths."""
THINNEST = 1e-15
"""Least length in a density: a cluster can be narrower than the rounding of its angle."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
ALIKE = 0.5
"""Neighbours whose log-densities differ by at most this have similar densities."""
SPREAD = 0.004
"""Neighbours of any density are merged if their total length is at most this share of `shortest`."""
DEEPEST = 48
"""Largest number of halvings of an interval of the starting law."""


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
    """Write the bound of every block; returns the largest score of their heaviest points."""
    best = -1e300
    for b in range(len(bounds)):
        along = ux * frame[0, b] + uy * frame[1, b]
        across = abs(uy * frame[0, b] - ux * frame[1, b])
        r = frame[2, b]
        bounds[b] = along + across * r + max(0.0, -along) * 0.5 * r * r + frame[3, b]
        best = max(best, ux * frame[4, b] + uy * frame[5, b] + frame[3, b])
    return best


@inner
def _leader(ux, uy, yx, yy, log_weights, bounds, best):
    """The point with the largest score, from the bounds of the blocks and a score that is reached."""
    n, leader = len(yx), -1
    for b in range(len(bounds)):
        if bounds[b] >= best:
            for j in range(b * BLOCK, min(n, (b + 1) * BLOCK)):
                score = ux * yx[j] + uy * yy[j] + log_weights[j]
                if score >= best or leader < 0:
                    best, leader = score, j
    return leader


@loose
def _leads(frame, px, py, ax, ay, bx, by, sag, reach, best, bounds):
    """Turn the bounds of the middle query into leads over the point p for a whole group; returns the largest."""
    most = -1e300
    for b in range(len(bounds)):
        zx, zy = frame[0, b] - px, frame[1, b] - py
        turned = max(ax * zx + ay * zy, bx * zx + by * zy)
        bounds[b] += turned + sag * math.sqrt(zx * zx + zy * zy) + reach * frame[2, b] - best
        most = max(most, bounds[b])
    return most


@loose
def _add(ux, uy, yx, yy, log_weights, start, end, px, py, best, total):
    """Add e^{score − best} times 1, y − p and the products of the coordinates of y − p."""
    mass, mx, my, xx, xy, yy_ = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(start, end):
        p = fast_exp(ux * yx[j] + uy * yy[j] + log_weights[j] - best)
        dx, dy = yx[j] - px, yy[j] - py
        mass += p
        mx += p * dx
        my += p * dy
        xx += p * dx * dx
        xy += p * dx * dy
        yy_ += p * dy * dy
    total[0] += mass
    total[1] += mx
    total[2] += my
    total[3] += xx
    total[4] += xy
    total[5] += yy_


@inner
def _spread(u, first, last, middle):
    """The distance of the queries from the segment between the first and the last, and from the middle one."""
    dx, dy = u[last - 1, 0] - u[first, 0], u[last - 1, 1] - u[first, 1]
    square = dx * dx + dy * dy
    sag, reach = 0.0, 0.0
    for i in range(first, last):
        x, y = u[i, 0] - u[first, 0], u[i, 1] - u[first, 1]
        share = min(max((x * dx + y * dy) / square, 0.0), 1.0) if square > 0.0 else 0.0
        sag = max(sag, (x - share * dx) ** 2 + (y - share * dy) ** 2)
        reach = max(reach, (u[i, 0] - u[middle, 0]) ** 2 + (u[i, 1] - u[middle, 1]) ** 2)
    return math.sqrt(sag), math.sqrt(reach)


@inner
def _group(u, first, last, yx, yy, log_weights, frame, bounds, runs, total, out, spread, logs):
    """The means for the queries from `first` to before `last`; False if they are too far apart."""
    n, blocks, middle = len(yx), len(bounds), (first + last) // 2
    ux, uy = u[middle, 0], u[middle, 1]
    best = _bounds(ux, uy, frame, bounds)
    leader = _leader(ux, uy, yx, yy, log_weights, bounds, best)
    px, py, weight = yx[leader], yy[leader], log_weights[leader]
    sag, reach = _spread(u, first, last, middle)
    ax, ay, bx, by = u[first, 0] - ux, u[first, 1] - uy, u[last - 1, 0] - ux, u[last - 1, 1] - uy
    best = ux * px + uy * py + weight
    if _leads(frame, px, py, ax, ay, bx, by, sag, reach, best, bounds) > FARTHEST and last - first > 1:
        return False
    count = 0
    for b in range(blocks):
        if bounds[b] > -DROP:
            if count > 0 and runs[1, count - 1] == b * BLOCK:
                count -= 1
            else:
                runs[0, count] = b * BLOCK
            runs[1, count] = min(n, (b + 1) * BLOCK)
            count += 1
    for i in range(first, last):
        ux, uy = u[i, 0], u[i, 1]
        best = ux * px + uy * py + weight
        total[:] = 0.0
        for k in range(count):
            _add(ux, uy, yx, yy, log_weights, runs[0, k], runs[1, k], px, py, best, total)
        logs[i] = best + math.log(total[0])
        mx, my = total[1] / total[0], total[2] / total[0]
        out[i, 0], out[i, 1] = px + mx, py + my
        spread[i, 0] = total[3] / total[0] - mx * mx
        spread[i, 1] = total[4] / total[0] - mx * my
        spread[i, 2] = total[5] / total[0] - my * my
    return True


@kernel
def _means(u, yx, yy, log_weights, frame, bounds, runs, total, out, spread, logs):
    for first in range(0, len(u), GROUP):
        last = min(len(u), first + GROUP)
        if not _group(u, first, last, yx, yy, log_weights, frame, bounds, runs, total, out, spread, logs):
            for i in range(first, last):
                _group(u, i, i + 1, yx, yy, log_weights, frame, bounds, runs, total, out, spread, logs)


def softmax_means(u: np.ndarray, y: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and covariance of y under the weights e^{⟨u, y_j⟩} w_j, and the logarithm of their sum, for each row of u.

    u (n, 2) and y (q, 2) should be in order along the circle; otherwise groups and blocks save no work. The mean is
    (n, 2), the covariance (n, 3): its entries 00, 01 and 11.
    """
    blocks = -(-len(y) // BLOCK)
    yx, yy = np.ascontiguousarray(y.T)
    frame, bounds, out, spread = np.empty((6, blocks)), np.empty(blocks), np.empty((len(u), 2)), np.empty((len(u), 3))
    runs, logs = np.empty((2, blocks), dtype=np.int64), np.empty(len(u))
    _frames(yx, yy, log_weights, frame)
    _means(np.ascontiguousarray(u), yx, yy, log_weights, frame, bounds, runs, np.empty(6), out, spread, logs)
    return out, spread, logs


@kernel
def _slopes(angles, log_masses, out):
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
def _two_points(angles, log_masses, slope, points, log_weights):
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


class Intervals:
    """Intervals of the circle with their masses.

    Parameters
    ----------
    angles : (n,)
        θ_0 < θ_1 < … < θ_0 + 2π.
    log_masses : (n,)
        Of the interval after each angle; scaled to total 1.

    Examples
    --------
    >>> cells = Intervals(np.linspace(0, 2 * np.pi, 12, endpoint=False), np.zeros(12))
    >>> cells.refine(0.3), len(cells.log_masses), bool(abs(logsumexp(cells.log_masses)) < 1e-12)
    (True, 24, True)
    """

    def __init__(self, angles: np.ndarray, log_masses: np.ndarray) -> None:
        self.angles = np.array(angles, dtype=float)
        self.log_masses = log_masses - logsumexp(log_masses)

    @property
    def points(self) -> np.ndarray:
        return np.stack([np.cos(self.angles), np.sin(self.angles)], axis=1)

    @points.setter
    def points(self, x: np.ndarray) -> None:
        """Turn every angle the shorter way to its new point, which keeps the order of the angles."""
        c, s = np.cos(self.angles), np.sin(self.angles)
        self.angles = self.angles + np.arctan2(c * x[:, 1] - s * x[:, 0], c * x[:, 0] + s * x[:, 1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.angles, append=self.angles[0] + 2 * np.pi)

    @property
    def folded(self) -> int:
        """How many intervals are turned over. A step that turns intervals over was too long."""
        return int((self.lengths < 0).sum())

    def slopes(self) -> np.ndarray:
        """s of each interval, (n,)."""
        out = np.empty(len(self.angles))
        _slopes(self.angles, self.log_masses, out)
        return out

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """The points (2n, 2) and log-weights (2n,) that represent the intervals in the softmax."""
        n = len(self.angles)
        points, log_weights = np.empty((2 * n, 2)), np.empty(2 * n)
        _two_points(self.angles, self.log_masses, self.slopes(), points, log_weights)
        return points, log_weights

    def refine(self, longest: float, faintest: float = -np.inf) -> bool:
        """Halve the intervals longer than `longest` with a mass above e^faintest; whether there was one."""
        changed = False
        while (long := (self.lengths > longest) & (self.log_masses > faintest)).any():
            self._halve(long)
            changed = True
        return changed

    def _halve(self, chosen: np.ndarray) -> None:
        where = np.flatnonzero(chosen)
        lengths, tilt = self.lengths[where], 0.5 * (self.slopes() * self.lengths)[where]
        mass = self.log_masses[where]
        self.log_masses[where] = mass - np.logaddexp(0.0, tilt)
        self.log_masses = np.insert(self.log_masses, where + 1, mass - np.logaddexp(0.0, -tilt))
        self.angles = np.insert(self.angles, where + 1, self.angles[where] + 0.5 * lengths)

    def coarsen(self, shortest: float, faintest: float = -np.inf) -> bool:
        """Merge neighbours of total length at most `shortest` and similar density, and neighbours that are both faint.

        Neighbours of different density are merged only below SPREAD·shortest, because the mass spreads over both.
        """
        changed = False
        while len(gone := self._removable(shortest, faintest)):
            self.log_masses[gone - 1] = np.logaddexp(self.log_masses[gone - 1], self.log_masses[gone])
            self.log_masses, self.angles = np.delete(self.log_masses, gone), np.delete(self.angles, gone)
            changed = True
        return changed

    def _removable(self, shortest: float, faintest: float) -> np.ndarray:
        """Vertices that can be removed together: no two in a row, and not the first."""
        lengths, faint = self.lengths, self.log_masses <= faintest
        both = lengths[1:] + lengths[:-1]
        near = np.flatnonzero((both <= shortest) | (faint[1:] & faint[:-1]))
        density = self.log_masses - np.log(np.maximum(lengths, THINNEST))
        with np.errstate(invalid="ignore"):
            alike = np.abs(density[near + 1] - density[near]) <= ALIKE
        index = near[alike | (both[near] <= SPREAD * shortest) | (faint[near + 1] & faint[near])] + 1
        first = np.flatnonzero(np.diff(index, prepend=-1) > 1)
        rank = np.arange(len(index)) - np.repeat(first, np.diff(first, append=len(index)))
        return index[rank % 2 == 0]

    def copy(self) -> Intervals:
        return deepcopy(self)


def tile(log_density: LogDensity, cuts: np.ndarray, longest: float) -> Intervals:
    """The starting intervals: vertices at all `cuts` (angles), none longer than `longest`, masses by Gauss–Legendre.

    An interval is halved until eight Gauss points on it and on its halves give the same mass, up to 1e-10 of its own
    mass or 1e-14 of the total.
    """
    cuts = np.sort(np.mod(cuts, 2 * np.pi))
    edges = [
        np.linspace(a, b, max(1, int(np.ceil((b - a) / longest))), endpoint=False)
        for a, b in zip(cuts, np.append(cuts[1:], cuts[0] + 2 * np.pi), strict=True)
        if b > a
    ]
    angles = np.concatenate(edges)
    for _ in range(DEEPEST):
        lengths = np.diff(angles, append=angles[0] + 2 * np.pi)
        whole = _log_integrals(log_density, angles, lengths)
        halves = np.logaddexp(
            _log_integrals(log_density, angles, 0.5 * lengths),
            _log_integrals(log_density, angles + 0.5 * lengths, 0.5 * lengths),
        )
        top = logsumexp(halves)
        with np.errstate(invalid="ignore"):
            rough = np.abs(whole - halves) > np.maximum(1e-10, 1e-14 * np.exp(np.minimum(top - halves, 700)))
        where = np.flatnonzero(rough & (lengths > 1e-12))
        if not len(where):
            break
        angles = np.insert(angles, where + 1, (angles + 0.5 * lengths)[where])
    return Intervals(angles, halves)


def _log_integrals(log_density: LogDensity, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    theta = starts[:, None] + lengths[:, None] * 0.5 * (1 + NODES)
    values = log_density(np.stack([np.cos(theta), np.sin(theta)], axis=-1).reshape(-1, 2)).reshape(theta.shape)
    return np.asarray(logsumexp(values + np.log(0.5 * WEIGHTS), axis=1) + np.log(lengths))
