"""The softmax mean of a cloud, by engines that trade memory, time and exactness."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import Array, matrix, real
from metastable.attention.dense import argmax_mean, dense, log_partition
from metastable.attention.flash import flash
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice

if TYPE_CHECKING:
    from metastable.attention.tree import Tree

__all__ = [
    "ENGINES",
    "BoundedMean",
    "Prepared",
    "argmax_mean",
    "attend",
    "attend_with_bound",
    "choose",
    "log_partition",
    "softmax_mean",
]

ENGINES = {"dense": dense, "flash": flash}
"""The engines that are exact up to rounding."""

FEW_PAIRS = 40_000
"""Below this many (query, token) pairs `flash` costs more than `dense`: see benchmarks/crossover.py."""

TREE_FROM = {2: (1_000, 1e-9), 3: (2_000, 1e-9), 4: (20_000, 1e-3)}
"""By dimension, the N·n/(N + n) from which `tree` costs less than `flash`, and down to which tolerance: see
benchmarks/crossover.py."""

TREE_TOLERANCE = 1e-6
LEAST_TOLERANCE = 1e-12


class BoundedMean(NamedTuple):
    """mean (n, d), bound (n,) ≥ |mean − exact|, and counts of the work done."""

    mean: Tensor
    bound: Tensor
    work: dict[str, int]


def choose(engine: str, log_weights: Tensor, d: int, queries: int, tol: float) -> str:
    """The engine that `engine` stands for: itself, or for "auto" the quickest one that keeps to `tol`.

    The tree costs about a(N + n) and flash b·N·n, so the tree is quicker from N·n/(N + n) = a/b on. This threshold was
    measured on the CPU (benchmarks/crossover.py) for the clouds, β and tolerances that are worst for the tree. In five
    dimensions the tree is quicker for clustered clouds only, so "auto" does not choose it there.
    """
    choice(engine, "engine", ("auto", *ENGINES, "tree"))
    if engine != "auto":
        return engine
    n = len(log_weights)
    size, finest = TREE_FROM.get(d, (math.inf, math.inf))
    if log_weights.device.type == "cpu" and finest <= real(tol, "tol", "it is a tolerance") < 1:
        single = 2 if log_weights.dtype == torch.float32 else 1
        if n * queries > single * size * (n + queries):
            return "tree"
    return "flash" if queries * n > FEW_PAIRS else "dense"


def attend(cloud: Cloud, queries: Array, engine: str = "auto", tol: float = TREE_TOLERANCE) -> Tensor:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for each row u of `queries`, (n, d): (n, d).

    For a field, u = β Bᵀx. "dense" and "flash" give the same numbers up to rounding, in a time ∝ N·n and in memory
    O((N + n)·d) plus one block. "tree" is for low dimension: certified |m − exact| ≤ `tol` for every query, in about
    O(N + n), float64 on the CPU. Its first use compiles for about twenty seconds. "auto" takes the quickest of the
    three (see `choose`). Use "dense" or "flash" for results that are exact to rounding.

    Examples
    --------
    >>> from metastable.cloud import Cloud
    >>> cloud = Cloud([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(attend(cloud, [[0.5, 0.0]])[0, 0].item(), 6)  # tanh(½)
    0.462117
    """
    return softmax_mean(cloud, _queries(cloud, queries), engine, tol)


def attend_with_bound(cloud: Cloud, queries: Array, tol: float = TREE_TOLERANCE) -> BoundedMean:
    """`attend` by the tree, in float64, with the bound that was reached for each query and the work it took.

    The bound is that of exact arithmetic; rounding adds about 1e-13, so a `tol` below 1e-12 is refused.
    """
    if not real(tol, "tol", "it is a tolerance") >= LEAST_TOLERANCE:
        raise BadInput(f"tol is {tol!r}; float64 can be certified to {LEAST_TOLERANCE:g} and no better")
    cloud = cloud.to(torch.float64)
    return Prepared(cloud.log_weights, "tree", tol).certified(cloud.points, _queries(cloud, queries))


def softmax_mean(cloud: Cloud, u: Tensor, engine: str, tol: float = TREE_TOLERANCE, paired: bool = False) -> Tensor:
    """`attend` for queries that are known to fit the cloud."""
    return Prepared(cloud.log_weights, choose(engine, cloud.log_weights, cloud.dim, len(u), tol), tol)(
        cloud.points, u, paired
    )


def _queries(cloud: Cloud, queries: Array) -> Tensor:
    u = matrix(queries, "queries").to(dtype=cloud.dtype, device=cloud.points.device)
    if u.shape[1] != cloud.dim:
        raise BadInput(f"queries have {u.shape[1]} coordinates and the cloud {cloud.dim}; they must agree")
    return u


class Prepared:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for log-weights (N,), by "dense", "flash" or "tree".

    The points may move from call to call. The tree is built at the first call and refitted to the points of the next
    ones. A refitted tree gives other last digits than a new one, within `tol`. After `forget`, results do not depend on
    earlier calls.
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
        return self.certified(points, queries, paired).mean

    def certified(self, points: Tensor, queries: Tensor, paired: bool = False) -> BoundedMean:
        """The tree's answer with its bounds and counts. If a query is not finite, all means are NaN."""
        if not bool(torch.isfinite(queries).all()):
            return BoundedMean(torch.full_like(queries, torch.nan), torch.full_like(queries[:, 0], torch.inf), {})
        at, asked = _numpy(points), _numpy(queries)
        if self._tree is None:
            from metastable.attention.tree import Tree, compile_kernels, compiled

            if not compiled():
                print("metastable: compiling the tree engine, once, for about twenty seconds", file=sys.stderr)
                compile_kernels()
            self._tree = Tree(at, _numpy(self.log_weights))
        else:
            self._tree.refit(at)
        found = self._tree.attend(asked, float(self.tol), paired)
        return BoundedMean(found.mean.to(queries), found.bound.to(queries), found.work)

    def forget(self) -> None:
        """Drop the tree; the next call builds a new one."""
        self._tree = None


def _numpy(a: Tensor) -> np.ndarray:
    return a.detach().to("cpu", torch.float64).numpy()
