"""Moving the cells with their own flow: Dormand–Prince 5(4) on the vertices, splitting and merging after each step.

The flow maps the sphere onto itself, so a cell that moves with it neither gains nor loses mass: moving the vertices
solves the continuity equation. Masses are logarithms, because the mass that decides when a plateau ends is smaller than
any positive float64.

A point mass with logarithm ℓ affects the query u = βBᵀx only if |u| + ℓ reaches the largest score of x. Cells whose
logarithm lies by a margin below (largest score − |u|) for all vertices affect no query: they are merged and not split.
Otherwise the line between two antipodal clusters, where points separate at a rate of order β, would limit the time
step even when it carries no mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metastable.attention import attend
from metastable.cloud import Cloud
from metastable.flow.fields import tangent
from metastable.flow.meanfield import circle
from metastable.flow.meanfield.laws import LogDensity
from metastable.flow.meanfield.sphere.triangles import Triangles
from metastable.flow.solve import Motion
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


class Field:
    """x ↦ P_x V m_β[μ](x) at the vertices of the cells, μ being their own quadrature at these vertices."""

    def __init__(self, head: Head, beta: float, cells: Cells, tol: float = 1e-6) -> None:
        self.head, self.beta, self.cells, self.tol = head, beta, cells, tol
        self.evaluations = 0
        self.faintest = -np.inf

    def __call__(self, x: Tensor, t: float = 0.0) -> Tensor:
        self.evaluations += 1
        self.cells.points = x.numpy()
        u = self.beta * self.head.directions(x)
        return tangent(x, self.head.values(self._means(u)))

    def restart(self) -> tuple[Tensor, Tensor]:
        """The vertices and their velocities."""
        x = torch.from_numpy(self.cells.points)
        return x, self(x)

    def _means(self, u: Tensor) -> Tensor:
        points, log_weights = self.cells.quadrature()
        if self.head.dim > 2:
            return attend(Cloud(points, log_weights=log_weights), u, tol=self.tol)
        means, tops = circle.softmax_means(u.numpy(), points, log_weights)
        self.faintest = float((tops - torch.linalg.vector_norm(u, dim=1).numpy()).min()) - MARGIN
        return torch.from_numpy(means)


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
    field = Field(head, beta, cells.copy(), 0.1 * sizes.step_tol)
    x, k = field.restart()
    motion = Motion(0.0, x, k, first_step(k, sizes.step_tol))
    for target in times[1:]:
        while motion.t < target:
            before = field.cells.copy()
            trial = motion.attempt(field, target, times[-1], sizes.step_tol)
            folds = trial.h > SMALLEST and field.cells.folded > before.folded
            if not motion.judge(trial, sizes.step_tol, too_long=folds):
                field.cells = before
                continue
            # Cells are merged first: a merged cell is shorter than a cell that is split.
            merged = field.cells.coarsen(sizes.shortest, field.faintest)
            if field.cells.refine(sizes.longest, field.faintest) or merged:
                motion.x, motion.k = field.restart()
            most = max(most, len(field.cells.log_masses))
            progress.at(motion.t)
        frames.append(field.cells.quadrature())
    work = {"steps": motion.steps, "rejected": motion.rejected, "evaluations": field.evaluations, "most_cells": most}
    return frames, work
