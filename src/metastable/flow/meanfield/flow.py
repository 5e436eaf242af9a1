"""Moving the cells with their own flow, and splitting and merging them after each step.

The vertices of triangles take Dormand–Prince 5(4) steps. Those of intervals take exponential steps: near a cluster that
sees both itself and the tail, vertices are drawn together at a rate of order β, which would limit explicit steps.

The flow maps the sphere onto itself, so a cell that moves with it neither gains nor loses mass: moving the vertices
solves the continuity equation. Masses are logarithms, because the mass that decides when a plateau ends is smaller than
any positive float64.

A point mass with logarithm ℓ affects the query u = βBᵀx only if |u| + ℓ reaches the logarithm L of the sum of all
e^{⟨u, y⟩} w. Cells whose logarithm lies by a margin below L − |u| for all vertices affect no query: they are merged and
not split.
Otherwise the line between two antipodal clusters, where points separate at a rate of order β, would limit the time
step even when it carries no mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metastable.attention import attend
from metastable.cloud import Cloud
from metastable.flow.fields import tangent
from metastable.flow.meanfield import circle, exponential
from metastable.flow.meanfield.laws import LogDensity
from metastable.flow.meanfield.sphere.triangles import Triangles
from metastable.flow.solve import Motion, Trial
from metastable.flow.steppers import first_step
from metastable.head import Head
from metastable.progress import Progress

MARGIN = 60.0
"""Cells are invisible if their mass is below e^{−60} of the least mass that a query could see."""
SMALLEST = 1e-3
"""Steps are not made smaller than this to prevent cells from folding."""


Cells = circle.Intervals | Triangles
"""Cells that tile the sphere: `points` (n, d) are their vertices, `log_masses` (m,) the logarithms of their masses."""


class CellSizes(NamedTuple):
    """When cells are split and merged, and the largest error of one time step (RMS over vertices)."""

    longest: float
    shortest: float
    step_tol: float


class MeshField:
    """x ↦ P_x V m_β[μ](x) at the vertices of the triangles, μ being their own quadrature at these vertices."""

    faintest = -np.inf

    def __init__(self, head: Head, beta: float, cells: Cells, tol: float) -> None:
        self.head, self.beta, self.cells, self.tol = head, beta, cells, tol
        self.evaluations = 0

    def __call__(self, x: Tensor, t: float = 0.0) -> Tensor:
        self.evaluations += 1
        self.cells.points = x.numpy()
        u = self.beta * self.head.directions(x)
        points, log_weights = self.cells.quadrature()
        return tangent(x, self.head.values(attend(Cloud(points, log_weights=log_weights), u, tol=self.tol)))

    def motion(self) -> Motion:
        """The vertices and their velocities at the start."""
        x = torch.from_numpy(self.cells.points)
        return Motion(0.0, x, self(x), 0.0)

    def restart(self, motion: Motion) -> None:
        """Continue with the cells as they are now."""
        motion.x = torch.from_numpy(self.cells.points)
        motion.k = self(motion.x)


class Turning:
    """θ ↦ ω = ⟨V m_β[μ](x), τ⟩ at the vertices x = (cos θ, sin θ) of intervals, τ = (−sin θ, cos θ), μ as in `Field`.

    rates : of the last call, min(∂ω/∂θ, 0) for one vertex while μ stays: ∂ω/∂θ = ⟨V C βBᵀτ, τ⟩ − ⟨V m, x⟩, with C the
        covariance of the softmax. Near a cluster they are of order −β.
    """

    def __init__(self, head: Head, beta: float, cells: circle.Intervals) -> None:
        self.cells, self.evaluations, self.faintest = cells, 0, -np.inf
        self._up, self._V = beta * head.B.numpy(), head.V.numpy()

    def __call__(self, angles: np.ndarray) -> np.ndarray:
        self.evaluations += 1
        self.cells.angles = angles
        c, s = np.cos(angles), np.sin(angles)
        (bxx, bxy), (byx, byy) = self._up
        (vxx, vxy), (vyx, vyy) = self._V
        ux, uy = c * bxx + s * byx, c * bxy + s * byy
        means, spread, logs = circle.softmax_means(np.stack([ux, uy], axis=1), *self.cells.quadrature())
        self.faintest = float((logs - np.hypot(ux, uy)).min()) - MARGIN
        # Vᵀτ, βBᵀτ and V m
        px, py = c * vyx - s * vxx, c * vyy - s * vxy
        qx, qy = c * byx - s * bxx, c * byy - s * bxy
        mx, my = (means @ self._V.T).T
        xx, xy, yy = spread.T
        self.rates = np.minimum(px * (xx * qx + xy * qy) + py * (xy * qx + yy * qy) - mx * c - my * s, 0.0)
        return my * c - mx * s

    def motion(self) -> TurningMotion:
        """The angles and their velocities at the start."""
        x, k = self._state()
        return TurningMotion(0.0, x, k, 0.0, rates=self.rates)

    def restart(self, motion: Motion) -> None:
        """Continue with the cells as they are now."""
        assert isinstance(motion, TurningMotion)
        motion.x, motion.k = self._state()
        motion.rates = self.rates

    def _state(self) -> tuple[Tensor, Tensor]:
        angles = self.cells.angles
        return torch.from_numpy(angles[:, None]), torch.from_numpy(self(angles)[:, None])


@dataclass
class TurningMotion(Motion):
    """The angles (n, 1) of the vertices on the circle, moved by exponential steps."""

    rates: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def attempt(self, f: Any, target: float, horizon: float, tol: float, counts: Tensor | None = None) -> Trial:
        h = self.next_length(target, horizon, tol)
        x, k, error = exponential.step(f, self.x[:, 0].numpy(), self.k[:, 0].numpy(), self.rates, h)
        new = target if h == target - self.t else self.t + h
        self._ahead = f.rates
        return Trial(new, torch.from_numpy(x[:, None]), torch.from_numpy(k[:, None]), h, error)

    def take(self, trial: Trial) -> None:
        super().take(trial)
        self.rates = self._ahead


def start(head: Head, log_density: LogDensity, longest: float) -> Cells:
    """The starting cells of a law, d = 2 or 3. They do not cross {Πx = 0}, so that ν has exactly its masses."""
    th = head.theory()
    normal = None if th.no_limit or th.dim > 1 else th.co_basis[:, 0].double().numpy()
    if head.dim == 3:
        return Triangles.of(log_density, longest, normal)
    cuts = np.zeros(1) if normal is None else np.arctan2(normal[1], normal[0]) + np.pi * np.array([0.5, 1.5])
    return circle.tile(log_density, cuts, longest)


def follow(
    head: Head, cells: Cells, beta: float, times: Sequence[float], sizes: CellSizes, progress: Progress
) -> tuple[list[tuple[np.ndarray, np.ndarray]], dict[str, int]]:
    """The cells' quadrature, (points, log-weights), at each of `times` (increasing, from 0), and the work done."""
    frames, most = [cells.quadrature()], len(cells.log_masses)
    moving: Any
    if isinstance(cells, circle.Intervals):
        moving = Turning(head, beta, cells.copy())
    else:
        moving = MeshField(head, beta, cells.copy(), 0.1 * sizes.step_tol)
    motion: Motion = moving.motion()
    motion.h = first_step(motion.k, sizes.step_tol)
    for target in times[1:]:
        while motion.t < target:
            before = moving.cells.copy()
            trial = motion.attempt(moving, target, times[-1], sizes.step_tol)
            folds = trial.h > SMALLEST and moving.cells.folded > before.folded
            if not motion.judge(trial, sizes.step_tol, too_long=folds):
                moving.cells = before
                continue
            # Cells are merged first: a merged cell is shorter than a cell that is split.
            merged = moving.cells.coarsen(sizes.shortest, moving.faintest)
            if moving.cells.refine(sizes.longest, moving.faintest) or merged:
                moving.restart(motion)
            most = max(most, len(moving.cells.log_masses))
            progress.at(motion.t)
        frames.append(moving.cells.quadrature())
    work = {"steps": motion.steps, "rejected": motion.rejected, "evaluations": moving.evaluations, "most_cells": most}
    return frames, work
