"""Moving the cells with their own flow: Dormand–Prince 5(4) on the vertices, splitting and merging after each step.

A point mass of logarithm ℓ, wherever it sits, is seen by the query u = βBᵀx only if |u| + ℓ reaches the largest score
of x. Cells fainter than the least of (largest score − |u|) over all vertices, by a margin, are seen by nobody: they
are merged and no longer split. Without this the line between two antipodal clusters, where points part at a rate of
order β, would dictate the time step for ever, long after it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metastable.attention import attend
from metastable.cloud import Cloud
from metastable.errors import SimulationStopped
from metastable.flow.meanfield.cells import Cells
from metastable.flow.meanfield.kernel import softmax_means
from metastable.flow.steppers import dopri5, first_step, next_step
from metastable.head import Head
from metastable.progress import Progress

MARGIN = 60.0
"""Cells that weigh e^{−60} of what could be seen are taken as invisible."""
SMALLEST = 1e-3
"""Steps are not made smaller than this to keep cells from folding over."""


@dataclass(frozen=True)
class Sizes:
    """When cells are split and merged, and the largest error of one time step (RMS over vertices)."""

    longest: float
    shortest: float
    step_tol: float


@dataclass
class Followed:
    """Clouds at the asked times, as (points, log-weights), and what they cost."""

    frames: list[tuple[np.ndarray, np.ndarray]]
    steps: int = 0
    rejected: int = 0
    evaluations: int = 0
    most_cells: int = 0


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

    def _means(self, u: Tensor) -> Tensor:
        points, log_weights = self.cells.quadrature()
        if self.head.dim > 2:
            return attend(Cloud(points, log_weights=log_weights), u, tol=self.tol)
        means, tops = softmax_means(u.numpy(), points, log_weights)
        self.faintest = float((tops - torch.linalg.vector_norm(u, dim=1).numpy()).min()) - MARGIN
        return torch.from_numpy(means)


def follow(head: Head, cells: Cells, beta: float, times: Sequence[float], sizes: Sizes, progress: Progress) -> Followed:
    """The cells' quadrature at each of `times` (increasing, from 0)."""
    found = Followed([cells.quadrature()], most_cells=len(cells.log_masses))
    field = Field(head, beta, cells.copy(), 0.1 * sizes.step_tol)
    x = torch.from_numpy(cells.points)
    k = field(x)
    t, h = 0.0, first_step(k, sizes.step_tol)
    for target in times[1:]:
        while t < target:
            step = target - t if h >= (target - t) * (1 - 1e-9) else h
            before = field.cells.copy()
            new, ahead, error = dopri5(field, x, k, step)
            proposed = next_step(step, error, sizes.step_tol)
            over = step > SMALLEST and field.cells.folded > before.folded
            if over or not error <= sizes.step_tol:
                if not proposed > 1e-12 * times[-1]:
                    raise SimulationStopped(f"at t = {t:.6g} no step is small enough (beta = {beta:g}); raise tol")
                field.cells, h = before, min(proposed, 0.5 * step) if over else proposed
                found.rejected += 1
                continue
            # A step cut short to hit a saved time says little about the step that the tolerance allows.
            h = max(h, proposed) if step < h else proposed
            t = target if step == target - t else t + step
            x, k = (new, ahead) if not _adapt(field, sizes) else _again(field)
            found.steps += 1
            found.most_cells = max(found.most_cells, len(field.cells.log_masses))
            progress.at(t)
        found.frames.append(field.cells.quadrature())
    found.evaluations = field.evaluations
    return found


def _adapt(field: Field, sizes: Sizes) -> bool:
    # Merging first: what it joins stays shorter than what is split.
    merged = field.cells.coarsen(sizes.shortest, field.faintest)
    return field.cells.refine(sizes.longest, field.faintest) or merged


def _again(field: Field) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(field.cells.points)
    return x, field(x)
