"""Softmax means and partition functions of tokens that move, by one engine that is prepared once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import real
from metastable.attention.engines import CLUSTERED, EITHER, ENGINES, SUMS, crowded, needed
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.attention.cells import Cells
    from metastable.attention.tree import Tree


class BoundedMean(NamedTuple):
    """mean (n, d), bound (n,) ≥ |mean − exact|, and counts of the work done."""

    mean: Tensor
    bound: Tensor
    work: dict[str, int]


class Sums(NamedTuple):
    """mean (n, d), log_z (n,), bound (n,) ≥ |mean − exact| and log_z_bound (n,) ≥ |log_z − exact|, up to rounding.

    The bounds of an exact engine are 0.
    """

    mean: Tensor
    log_z: Tensor
    bound: Tensor
    log_z_bound: Tensor

    @classmethod
    def unknown(cls, queries: Tensor) -> Sums:
        """NaN with infinite bounds."""
        nan, infinite = torch.full_like(queries[:, 0], torch.nan), torch.full_like(queries[:, 0], torch.inf)
        return cls(torch.full_like(queries, torch.nan), nan, infinite, infinite.clone())


class Prepared:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for log-weights (N,), by one engine.

    The points may move from call to call. The tree is built at the first call and refitted to the points of the next
    ones. A refitted tree gives other last digits than a new one, within `tol`. With `EITHER` the first call decides
    between tree and direct. After `forget`, results do not depend on earlier calls.
    """

    causal = False

    def __init__(self, log_weights: Tensor, engine: str, tol: float) -> None:
        if "tree" in needed(engine):
            check_tolerance(tol)
        self.log_weights, self.engine, self.tol = log_weights, engine, tol
        self._tree: Tree | Cells | None = None
        self._taken: str | None = None

    def __call__(self, points: Tensor, queries: Tensor, paired: bool = False) -> Tensor:
        """The means at the rows u of `queries` (n, d) for tokens at `points` (N, d): (n, d).

        `paired` says that query i belongs to token i, which spares the tree a second sorting.
        """
        if self._taken is None:
            self._taken = self.engine
            if self.engine == EITHER:
                self._taken = "tree" if crowded(points, queries) else "direct"
        if self._taken != "tree":
            return ENGINES[self._taken](points, self.log_weights, queries)
        return self.certified(points, queries, paired).mean

    def certified(self, points: Tensor, queries: Tensor, paired: bool = False) -> BoundedMean:
        """The tree's answer with its bounds and counts. If a query is not finite, all means are NaN."""
        if not bool(torch.isfinite(queries).all()):
            return BoundedMean(torch.full_like(queries, torch.nan), torch.full_like(queries[:, 0], torch.inf), {})
        found = self._grown(points, queries, float(self.tol)).attend(as_numpy(queries), float(self.tol), paired)
        return BoundedMean(found.mean.to(queries), found.bound.to(queries), found.work)

    def sums(self, points: Tensor, queries: Tensor, paired: bool = False) -> Sums:
        """The means and log Z(u) = log Σ_j w_j e^{⟨u,y_j⟩} with bounds, by the tree each within `tol`.

        If a query is not finite, all means and log Z of the tree are NaN.
        """
        if self.engine != "tree":
            return exact_sums(self.engine, points, self.log_weights, queries)
        return self.sums_within(points, queries, float(self.tol), paired)

    def sums_within(self, points: Tensor, queries: Tensor, tol: float, paired: bool = False) -> Sums:
        """`sums` by the tree with another tolerance."""
        if not bool(torch.isfinite(queries).all()):
            return Sums.unknown(queries)
        found = self._grown(points, queries, tol).sums(as_numpy(queries), tol, paired)
        return Sums(*(values.to(queries) for values in found))

    def _grown(self, points: Tensor, queries: Tensor, tol: float) -> Tree | Cells:
        """The tree at `points`."""
        if self._tree is None:
            self._tree = grow(as_numpy(points), as_numpy(self.log_weights), as_numpy(queries), tol)
        else:
            self._tree.refit(as_numpy(points))
        return self._tree

    def forget(self) -> None:
        """Drop the tree; the next call builds a new one, if it needs one."""
        self._tree = self._taken = None


def exact_sums(engine: str, points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Sums:
    """The sums by an engine that is exact up to rounding."""
    mean, log_z = SUMS[engine](points, log_weights, queries, causal)
    return Sums(mean, log_z, torch.zeros_like(log_z), torch.zeros_like(log_z))


def check_tolerance(tol: float) -> None:
    """BadInput if the tree cannot take this tolerance."""
    if not 0 < real(tol, "tol", "the tree needs a tolerance between 0 and 1") < 1:
        raise BadInput(f"tol is {tol!r}; the tree needs a tolerance between 0 and 1")


EXPANDED_UP_TO = 4
"""The largest dimension for which `Tree`, with its expansions of high order, is ever quicker than `Cells`. There it is
where the queries see more than `engines.CLUSTERED` of all tokens."""


def grow(points: np.ndarray, log_weights: np.ndarray, queries: np.ndarray, tol: float) -> Tree | Cells:
    """What answers these queries for the engine "tree". It is compiled if need be, and a line on stderr says so."""
    from metastable.attention import cells, tree
    from metastable.attention.compilation import CELLS_FROM, wait_for

    d = points.shape[1]
    if d >= CELLS_FROM:
        _ready("cells", cells, "ten", wait_for)
        if d > EXPANDED_UP_TO or cells.visible_share(points, log_weights, queries, tol) <= CLUSTERED:
            return cells.Cells(points, log_weights)
    _ready("tree", tree, "twenty", wait_for)
    return tree.Tree(points, log_weights)


def _ready(task: str, engine: ModuleType, seconds: str, wait_for: Callable[[str], None]) -> None:
    """Compile an engine if it is not compiled."""
    if not engine.compiled():
        print(f"metastable: compiling the tree engine, once, for about {seconds} seconds", file=sys.stderr)
        wait_for(task)
        if not engine.compiled():
            engine.compile_kernels()


def as_numpy(a: Tensor) -> np.ndarray:
    """float64 on the CPU, as the tree takes it."""
    return a.detach().to("cpu", torch.float64).numpy()
