"""Plateaus on the circle: heads that have one, and its measurement by the mean field and by equally spaced tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from metastable.claims.prescribed import circle_head
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.flow.meanfield import circle
from metastable.flow.meanfield.flow import Sizes, follow
from metastable.head import Head
from metastable.progress import Progress
from metastable.run.mean_field import STEP
from metastable.run.simulation import simulate
from metastable.theory import phases
from metastable.transport import two_atoms

LONGEST = 60.0
"""Random heads leave by this time: on one whose plateau lasted longer two levels of cells parted company at t ≈ 50, and
neither could be believed."""

FOLLOWED = (0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
STEPPED = (0.5, (1.5, 0.6), -0.3, (1.0, 0.7))
"""The head followed over β, and one with a staircase: (a, b, a2, v)."""


@dataclass(frozen=True)
class Numbers:
    """What a prediction may use.

    Attributes
    ----------
    D : |Bᵀe| − ⟨Bᵀe, e⟩, by how much the best direction scores above the cluster itself
    kappa : κ, the rate at which tokens escape from the repelling point
    rate : c, the rate at which they come to ±e
    law_rate : the rate at which W₂ to the limit law falls at zero temperature
    way : distance from e to where V alone takes it
    """

    D: float
    kappa: float
    rate: float
    law_rate: float
    way: float

    def settled(self, beta: float) -> float:
        """By how many times the law could fall to the plateau's height, of order 1/β, before βD/κ."""
        return beta * self.D / self.kappa * self.law_rate / math.log(beta)


def numbers(head: Head) -> Numbers:
    theory = head.theory()
    e = theory.basis[:, :1].T
    u = head.directions(e)
    own = float(torch.linalg.vector_norm(u) - (u * e).sum())
    way = float((theory.terminal.limit(e) - e).norm()) if not theory.terminal.rotates else 1.0
    return Numbers(own, theory.escape_rate, theory.rate, theory.law_rate(2), way)


def random_heads(count: int, deepest: float, seed: int = 11) -> list[Head]:
    """Random spectra and angles with D ≥ 0.03, κ ≥ 0.6 and a forecast that ends by t = LONGEST at βD = `deepest`."""
    rng = np.random.default_rng(seed)
    found: list[Head] = []
    while len(found) < count:
        a, a2 = rng.uniform(-math.pi / 2, math.pi / 2, 2)
        b, v = rng.uniform(0.4, 1.6, 2), rng.uniform(0.3, 1.3, 2)
        head = circle_head(float(a), (b[0], b[1]), float(a2), (v[0], v[1]))
        try:
            q = numbers(head)
            strong = q.D >= 0.03 and 0.6 <= q.kappa < math.inf and q.way > 0.1
            if strong and head.theory().plateau(deepest / q.D).departure <= LONGEST:
                found.append(head)
        except BadInput:
            continue
    return found


@dataclass(frozen=True)
class Seen:
    """A curve of W₂ to the limit law and what was read off it; inf for what did not happen up to the last time.

    departure : first time above 1.5 times the least distance
    left : first time after the least at which the distance is more than half of `Numbers.way`
    """

    times: np.ndarray
    curve: np.ndarray
    departure: float
    left: float
    least: float

    @staticmethod
    def of(times: np.ndarray, curve: np.ndarray, way: float) -> Seen:
        found = phases.detect(times, curve)
        gone = np.flatnonzero((times > found.least_time) & (curve > 0.5 * way))
        departure = math.inf if found.terminal is None else found.terminal
        left = _crossing(times, curve, int(gone[0]), 0.5 * way) if len(gone) else math.inf
        return Seen(times, curve, departure, left, found.least)


def _crossing(times: np.ndarray, curve: np.ndarray, k: int, level: float) -> float:
    share = (level - curve[k - 1]) / (curve[k] - curve[k - 1])
    return float(times[k - 1] + np.clip(share, 0, 1) * (times[k] - times[k - 1]))


def mean_field_curve(head: Head, beta: float, until: float, cell: float, frames: int) -> Seen:
    """The uniform law under the head by cells up to `cell`·β^{−1/2} long, one level of `mean_field`."""
    longest = cell * beta**-0.5
    times = np.linspace(0.0, until, frames)
    cells = circle.start(head, lambda x: np.zeros(len(x)), longest)
    sizes = Sizes(longest, 0.5 * longest, STEP * longest)
    found = follow(head, cells, beta, times.tolist(), sizes, Progress(until, False))
    e = head.theory().basis[:, 0].numpy()
    atoms = np.stack([e, -e])
    curve = [two_atoms(x, np.exp(w), atoms, [0.5, 0.5]).value for x, w in found.frames]
    return Seen.of(times, np.array(curve), numbers(head).way)


def equal_tokens(head: Head, n: int, beta: float, until: float, shift: float, frames: int) -> Seen:
    """n equally spaced tokens; the repelling point lies `shift` of a spacing before one of them."""
    normal = head.theory().co_basis[:, 0].numpy()
    theta = math.atan2(normal[1], normal[0]) + math.pi / 2 + (np.arange(n) + shift) * (2 * math.pi / n)
    cloud = Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    merge = 0.02 * beta**-0.5
    run = simulate(head, cloud, beta, until, tol=1e-5, t_eval=frames, merge=merge, progress=False)
    return Seen.of(run.times.numpy(), run.distance().values, numbers(head).way)


Curves = list[tuple[float, Seen]]
"""β and what was seen at it"""
Drawn = list[tuple[Head, Curves]]
"""heads, each at several β"""
Spaced = list[tuple[int, float, float, float]]
"""N, shift, departure, half-way time"""
