"""What the solver asks of a moving partition of the sphere."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Cells(Protocol):
    """Cells that tile the sphere, whose vertices move with the flow and which keep their mass.

    The flow maps the sphere onto itself, so a cell that moves with it neither gains nor loses mass: the continuity
    equation is solved by moving the vertices. Masses are logarithms, because the mass that decides when a plateau
    ends is smaller than any positive float64.
    """

    points: np.ndarray
    """(n, d) vertices of norm 1; the solver assigns to it."""
    log_masses: np.ndarray
    """(m,) one a cell; their logsumexp is 0 to rounding, for ever."""

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Points (q, d) and log-weights (q,): the measure that the softmax sees."""
        ...

    def refine(self, longest: float, faintest: float = -np.inf) -> bool:
        """Split cells longer than this, without loss of mass; whether anything changed.

        Cells that are not heavier than e^faintest need not be split.
        """
        ...

    def coarsen(self, shortest: float, faintest: float = -np.inf) -> bool:
        """Merge neighbours that are tiny together, without loss of mass; whether anything changed.

        Cells that are not heavier than e^faintest may be merged at any size.
        """
        ...

    @property
    def folded(self) -> int:
        """How many cells are turned over: a step that makes more of them was too long."""
        ...

    def copy(self) -> Cells: ...
