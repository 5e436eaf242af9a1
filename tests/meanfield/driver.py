"""A small driver for the moving triangulation: Dormand–Prince steps with the mesh adapted after each.

It stands in for the mean-field solver of the package, so that the triangulation can be tried on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

import metastable as ms
from metastable.attention.tree import Tree
from metastable.flow.meanfield.sphere.triangles import Triangles
from metastable.flow.steppers import dopri5, first_step, next_step
from metastable.transport import two_atoms

SMALLEST = 1e-3
"""Steps are not made smaller than this to keep triangles from folding."""
FINEST = 0.3
"""Edges shorter than this share of the longest are taken out."""


class Driver:
    """β, a head and a triangulation with edges of at most h β^{-1/2}; `steps` moves it."""

    def __init__(self, head: ms.Head, beta: float, cells: Triangles, h: float, tol: float = 1e-4) -> None:
        self.head, self.beta, self.cells, self.h, self.tol = head, beta, cells, h, tol
        self.B, self.V = head.B.numpy(), head.V.numpy()
        self.t = 0.0

    def velocity(self, x: torch.Tensor, t: float) -> torch.Tensor:
        """P_x V m_β[μ](x), μ carried by the cells with their vertices at x. It does not depend on the time t."""
        points = x.numpy()
        self.cells.points = points
        mean = Tree(*self.cells.quadrature()).attend(self.beta * points @ self.B, 0.1 * self.tol).mean.numpy()
        v = mean @ self.V.T
        return torch.from_numpy(v - (v * points).sum(axis=1, keepdims=True) * points)

    def steps(self, until: float, largest: float = 0.25) -> Iterator[float]:
        """Step to `until`, adapting the cells after every step; yields the time of each."""
        step = 0.0
        while self.t < until - 1e-12:
            x = torch.from_numpy(self.cells.points)
            folded = self.cells.folded
            k1 = self.velocity(x, self.t)
            step = min(step or first_step(k1, self.tol), largest, until - self.t)
            while step > SMALLEST and self._folded(x + step * k1) > folded:
                step /= 2
            while True:
                new, _, error = dopri5(self.velocity, self.t, x, k1, step)
                taken, step = step, next_step(step, error, self.tol)
                if error <= self.tol and (taken <= SMALLEST or self._folded(new) <= folded):
                    break
                step = min(step, taken / 2)
            self.t += taken
            self.cells.points = new.numpy()
            self.adapt()
            yield self.t

    def _folded(self, x: torch.Tensor) -> int:
        self.cells.points = x.numpy()
        return self.cells.folded

    def adapt(self) -> None:
        longest = self.h / math.sqrt(self.beta)
        self.cells.refine(longest)
        self.cells.coarsen(FINEST * longest)


def circle_of(head: ms.Head) -> np.ndarray:
    """a with {Πx = 0} = {⟨a, x⟩ = 0}, for dim E = 1, and ⟨a, e⟩ > 0."""
    theory = head.theory()
    e = theory.basis[:, 0].double().numpy()
    return theory.projector.double().numpy().T @ e


def to_atoms(cells: Triangles, head: ms.Head, masses: np.ndarray) -> float:
    """W₂ to the two atoms ±e with the given masses."""
    e = head.theory().basis[:, 0].double().numpy()
    points, logs = cells.quadrature()
    return two_atoms(points, np.exp(logs), np.stack([e, -e]), masses).value


def side_masses(cells: Triangles) -> np.ndarray:
    return np.array([np.exp(np.logaddexp.reduce(cells.log_masses[cells.labels == s])) for s in (1, -1)])
