"""The circle cut into intervals that move with the flow (d = 2).

Interval i lies between the angles θ_i and θ_{i+1} (the last one ends at θ_0 + 2π) and carries the mass e^{m_i}. Inside
it the density is taken log-linear, ρ(θ) ∝ e^{sθ}, with s the van Leer mean of the two differences of the mean
log-densities: two differences of one sign give 2ab/(a + b), an extremum gives 0. Positive at any depth of the tail,
and second order where the density is smooth. Two Gauss points an interval stand for it in the softmax.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from metastable.flow.meanfield import kernel
from metastable.flow.meanfield.laws import LogDensity
from metastable.head import Head

NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
ALIKE = 0.5
"""Neighbours whose log-densities differ by at most this are merged."""
SPREAD = 0.004
"""Neighbours of any density are merged when together they are shorter than this share of `shortest`."""
DEEPEST = 48
"""An interval of the starting law is halved at most this often."""


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
        """Turn every angle by the smaller way to its new point, so that the order of the angles is kept."""
        c, s = np.cos(self.angles), np.sin(self.angles)
        self.angles = self.angles + np.arctan2(c * x[:, 1] - s * x[:, 0], c * x[:, 0] + s * x[:, 1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.angles, append=self.angles[0] + 2 * np.pi)

    @property
    def folded(self) -> int:
        return int((self.lengths < 0).sum())

    def slopes(self) -> np.ndarray:
        """s of each interval, (n,)."""
        out = np.empty(len(self.angles))
        kernel.slopes(self.angles, self.log_masses, out)
        return out

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.angles)
        points, log_weights = np.empty((2 * n, 2)), np.empty(2 * n)
        kernel.two_points(self.angles, self.log_masses, self.slopes(), points, log_weights)
        return points, log_weights

    def refine(self, longest: float, faintest: float = -np.inf) -> bool:
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
        """Merge two neighbours that together are no longer than `shortest` and of like density, or that are both faint.

        Joining a dense interval with a thin one spreads its mass; that is done only over SPREAD·shortest.
        """
        changed = False
        while len(gone := self._removable(shortest, faintest)):
            self.log_masses[gone - 1] = np.logaddexp(self.log_masses[gone - 1], self.log_masses[gone])
            self.log_masses, self.angles = np.delete(self.log_masses, gone), np.delete(self.angles, gone)
            changed = True
        return changed

    def _removable(self, shortest: float, faintest: float) -> np.ndarray:
        """Vertices that may go at once: no two of them in a row, and not the first, where the angles begin."""
        lengths, faint = self.lengths, self.log_masses <= faintest
        both = lengths[1:] + lengths[:-1]
        near = np.flatnonzero((both <= shortest) | (faint[1:] & faint[:-1]))
        density = self.log_masses - np.log(np.maximum(lengths, kernel.THINNEST))
        with np.errstate(invalid="ignore"):
            alike = np.abs(density[near + 1] - density[near]) <= ALIKE
        index = near[alike | (both[near] <= SPREAD * shortest) | (faint[near + 1] & faint[near])] + 1
        first = np.flatnonzero(np.diff(index, prepend=-1) > 1)
        rank = np.arange(len(index)) - np.repeat(first, np.diff(first, append=len(index)))
        return index[rank % 2 == 0]

    def copy(self) -> Intervals:
        other = object.__new__(Intervals)
        other.angles, other.log_masses = self.angles.copy(), self.log_masses.copy()
        return other


def start(head: Head, log_density: LogDensity, longest: float) -> Intervals:
    """The starting intervals of a law, with vertices on {Πx = 0}, so that ν has exactly its masses."""
    th = head.theory()
    if th.no_limit or th.dim > 1:
        return tile(log_density, np.zeros(1), longest)
    normal = th.co_basis[:, 0].tolist()
    return tile(log_density, np.arctan2(normal[1], normal[0]) + np.pi * np.array([0.5, 1.5]), longest)


def tile(log_density: LogDensity, cuts: np.ndarray, longest: float) -> Intervals:
    """The starting intervals: vertices at all `cuts` (angles), none longer than `longest`, masses by Gauss–Legendre.

    An interval is halved until eight Gauss points on it and on its halves give the same mass, to 1e-10 of its own
    or 1e-14 of the whole.
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
