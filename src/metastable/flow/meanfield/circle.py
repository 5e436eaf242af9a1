"""The circle cut into intervals that move with the flow (d = 2).

Interval i lies between the angles θ_i and θ_{i+1} (the last one ends at θ_0 + 2π) and has the mass e^{m_i}. Its density
is log-linear, ρ(θ) ∝ e^{sθ}, where s is the van Leer mean of the two differences a, b of the mean log-densities:
2ab/(a + b) if they have the same sign, else 0. The density is positive everywhere in the tail, and second order where
it is smooth. In the softmax two Gauss points represent an interval.

*Softmax mean.* For a query u the score of y_j is ⟨u, y_j⟩ + log w_j. Consecutive points form blocks. With c the middle
point of a block, τ ⊥ c and r the largest |y − c| in it, no score in the block exceeds

    ⟨u, c⟩ + |⟨u, τ⟩| r + max(0, −⟨u, c⟩) r²/2 + max log w,

so blocks that stay DROP below the largest score are skipped: together they weigh less than n·e^{−DROP}.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
from scipy.special import logsumexp

from metastable.attention.tree.vectors import fast_exp, kernel, loose
from metastable.flow.meanfield.laws import LogDensity

BLOCK = 32
DROP = 45.0
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

    y (q, 2) should be in order along the circle; otherwise the blocks save no work.
    """
    blocks = -(-len(y) // BLOCK)
    yx, yy = np.ascontiguousarray(y.T)
    frame, bounds, out, tops = np.empty((6, blocks)), np.empty(blocks), np.empty((len(u), 2)), np.empty(len(u))
    _frames(yx, yy, log_weights, frame)
    _means(np.ascontiguousarray(u), yx, yy, log_weights, frame, bounds, np.empty(3), out, tops)
    return out, tops


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
