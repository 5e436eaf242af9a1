"""Attention of a cloud of tokens: kernels, and engines that trade memory, time and exactness."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.arrays import Array, matrix, real
from metastable.attention.dense import argmax_mean, log_partition
from metastable.attention.engines import ENGINES, choose
from metastable.attention.kernels import KERNELS, Attention
from metastable.attention.prepared import BoundedMean, Prepared, Sums
from metastable.cloud import Cloud
from metastable.errors import BadInput

__all__ = [
    "ENGINES",
    "KERNELS",
    "Attention",
    "BoundedMean",
    "Prepared",
    "Sums",
    "argmax_mean",
    "attend",
    "attend_with_bound",
    "choose",
    "log_partition",
    "softmax_mean",
]

TREE_TOLERANCE = 1e-6
LEAST_TOLERANCE = 1e-12


def attend(cloud: Cloud, queries: Array, engine: str = "auto", tol: float = TREE_TOLERANCE) -> Tensor:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for each row u of `queries`, (n, d): (n, d).

    For a field, u = β Bᵀx. "dense", "flash" and "direct" give the same numbers up to rounding, in a time ∝ N·n and in
    memory O((N + n)·d) plus one block. "direct" is the quickest of them on the CPU up to d = 16. "tree" is for low
    dimension, and for clusters in any dimension: certified |m − exact| ≤ `tol` for every query, on the CPU. Up to d = 3
    it takes about O(N + n). Above, a query costs as much as the tokens in the clusters that it sees, or less if the
    clusters are narrow. "direct" and "tree" are compiled at their first use, for a few and for ten to twenty seconds.

    "auto" takes the quickest engine that is ready (see `choose`); "direct or tree" is the one of the two that is
    expected to be quicker for these tokens. In four and more dimensions "auto" tries on a sample of a large cloud
    whether clusters make the tree the quickest. What is not compiled yet is compiled in the
    background and used by later calls; "auto" waits for it only where the other engines would take longer. Name an
    engine for results that are the same bit for bit in every call, and "dense", "flash" or "direct" for results that
    are exact to rounding.

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

    The bound is that of exact arithmetic; rounding adds about 1e-16·|u|, and a `tol` below 1e-12 is refused.
    """
    if not real(tol, "tol", "it is a tolerance") >= LEAST_TOLERANCE:
        raise BadInput(f"tol is {tol!r}; float64 can be certified to {LEAST_TOLERANCE:g} and no better")
    cloud = cloud.to(torch.float64)
    return Prepared(cloud.log_weights, "tree", tol).certified(cloud.points, _queries(cloud, queries))


def softmax_mean(cloud: Cloud, u: Tensor, engine: str, tol: float = TREE_TOLERANCE, paired: bool = False) -> Tensor:
    """`attend` for queries that are known to fit the cloud."""
    name = choose(engine, cloud.log_weights, cloud.dim, len(u), tol, at=(cloud.points, u))
    return Prepared(cloud.log_weights, name, tol)(cloud.points, u, paired)


def _queries(cloud: Cloud, queries: Array) -> Tensor:
    u = matrix(queries, "queries").to(dtype=cloud.dtype, device=cloud.points.device)
    if u.shape[1] != cloud.dim:
        raise BadInput(f"queries have {u.shape[1]} coordinates and the cloud {cloud.dim}; they must agree")
    return u
