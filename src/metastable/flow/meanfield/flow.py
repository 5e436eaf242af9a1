"""Moving the cells with their own flow: Dormand–Prince 5(4) on the vertices, splitting and merging after each step.

A point mass with logarithm ℓ affects the query u = βBᵀx only if |u| + ℓ reaches the largest score of x. Cells whose
logarithm lies by a margin below (largest score − |u|) for all vertices affect no query: they are merged and not split.
Otherwise the line between two antipodal clusters, where points separate at a rate of order β, would limit the time
step even when it carries no mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from metastable.attention import attend
from metastable.cloud import Cloud
from metastable.flow.meanfield.circle import softmax_means
from metastable.flow.solve import Motion
from metastable.flow.steppers import first_step
from metastable.head import Head
from metastable.progress import Progress

MARGIN = 60.0
"""Cells are invisible if their mass is below e^{−60} of the least mass that a query could see."""
SMALLEST = 1e-3
"""Steps are not made smaller than this to prevent cells from folding."""


@runtime_checkable
class Cells(Protocol):
    """Cells that tile the sphere. Their vertices move with the flow, and each cell keeps its mass.

    The flow maps the sphere onto itself, so a cell that moves with it neither gains nor loses mass: moving the vertices
    solves the continuity equation. Masses are logarithms, because the mass that decides when a plateau ends is smaller
    than any positive float64.
    """

    points: np.ndarray
    """(n, d) vertices of norm 1; the solver assigns to it."""
    log_masses: np.ndarray
    """(m,) one per cell; their logsumexp is 0 up to rounding."""

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Points (q, d) and log-weights (q,): the measure in the softmax."""
        ...

    def refine(self, longest: float, faintest: float = -np.inf) -> bool:
        """Split cells longer than `longest`; whether anything changed. Masses up to e^faintest need not be split."""
        ...

    def coarsen(self, shortest: float, faintest: float = -np.inf) -> bool:
        """Merge short neighbours; whether anything changed. Masses up to e^faintest may be merged at any size."""
        ...

    @property
    def folded(self) -> int:
        """How many cells are turned over. A step that turns cells over was too long."""
        ...

    def copy(self) -> Cells: ...


class CellSizes(NamedTuple):
    """When cells are split and merged, and the largest error of one time step (RMS over vertices)."""

    longest: float
    shortest: float
    step_tol: float


class Followed(NamedTuple):
    """Quadratures at the requested times, as (points, log-weights), and the work done."""

    frames: list[tuple[np.ndarray, np.ndarray]]
    steps: int
    rejected: int
    evaluations: int
    most_cells: int


class Field:
    """x ↦ P_x V m_β[μ](x) at the vertices of the cells, μ being their own quadrature at these vertices."""

    def __init__(self, head: Head, beta: float, cells: Cells, tol: float = 1e-6) -> None:
        self.head, self.beta, self.cells, self.tol = head, beta, cells, tol
        self.evaluations = 0
        self.faintest = -np.inf

    def __call__(self, x: Tensor) -> Tensor:
        self.evaluations += 1
        self.cells.points = x.numpy()
        u = self.beta * self.head.directions(x)
        w = self.head.values(self._means(u))
        return w - (w * x).sum(dim=1, keepdim=True) * x

    def restart(self) -> tuple[Tensor, Tensor]:
        """The vertices and their velocities."""
        x = torch.from_numpy(self.cells.points)
        return x, self(x)

    def _means(self, u: Tensor) -> Tensor:
        points, log_weights = self.cells.quadrature()
        if self.head.dim > 2:
            return attend(Cloud(points, log_weights=log_weights), u, tol=self.tol)
        means, tops = softmax_means(u.numpy(), points, log_weights)
        self.faintest = float((tops - torch.linalg.vector_norm(u, dim=1).numpy()).min()) - MARGIN
        return torch.from_numpy(means)


def follow(
    head: Head, cells: Cells, beta: float, times: Sequence[float], sizes: CellSizes, progress: Progress
) -> Followed:
    """The cells' quadrature at each of `times` (increasing, from 0)."""
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
    return Followed(frames, motion.steps, motion.rejected, field.evaluations, most)
