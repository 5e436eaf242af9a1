"""The softmax mean of tokens that move: weights, engine and tolerance stay, the points change from call to call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import real
from metastable.attention.dense import dense
from metastable.attention.flash import flash
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.attention.tree import Tree, TreeResult

ENGINES = {"dense": dense, "flash": flash}
"""The engines that are exact up to rounding."""


class Prepared:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for log-weights (N,), by "dense", "flash" or "tree".

    The tree is built at the first call and refitted to the points of the next ones. A refitted tree gives other last
    digits than a new one, within `tol`; `forget` drops it, so that what follows depends on what follows alone.
    """

    def __init__(self, log_weights: Tensor, engine: str, tol: float) -> None:
        if engine == "tree" and not 0 < real(tol, "tol", "the tree needs a tolerance between 0 and 1") < 1:
            raise BadInput(f"tol is {tol!r}; the tree needs a tolerance between 0 and 1")
        self.log_weights, self.engine, self.tol = log_weights, engine, tol
        self._tree: Tree | None = None

    def __call__(self, points: Tensor, queries: Tensor, paired: bool = False) -> Tensor:
        """The means at the rows u of `queries` (n, d) for tokens at `points` (N, d): (n, d).

        `paired` says that query i belongs to token i, which spares the tree a second sorting.
        """
        if self.engine != "tree":
            return ENGINES[self.engine](points, self.log_weights, queries)
        found = self.certified(points, queries, paired)
        return torch.full_like(queries, torch.nan) if found is None else torch.from_numpy(found.mean).to(queries)

    def certified(self, points: Tensor, queries: Tensor, paired: bool = False) -> TreeResult | None:
        """The tree's answer with its bounds and counts; None when a number is not finite."""
        if not bool(torch.isfinite(queries).all()):
            return None
        at, asked = _numpy(points), _numpy(queries)
        if self._tree is None:
            from metastable.attention.tree import Tree, compiled, compiling

            if not compiled():
                print("metastable: compiling the tree engine, once, for about twenty seconds", file=sys.stderr)
                compiling(at.shape[1])
            self._tree = Tree(at, _numpy(self.log_weights))
        else:
            self._tree.refit(at)
        return self._tree.attend(asked, float(self.tol), paired)

    def forget(self) -> None:
        """Drop the tree; the next call builds a new one."""
        self._tree = None


def _numpy(a: Tensor) -> np.ndarray:
    return a.detach().to("cpu", torch.float64).numpy()
