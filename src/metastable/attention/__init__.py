"""The softmax mean of a cloud, by engines that trade memory, time and exactness."""

from __future__ import annotations

from torch import Tensor

from metastable.arrays import Array, matrix
from metastable.attention.dense import argmax_mean, dense, log_partition
from metastable.attention.flash import flash
from metastable.cloud import Cloud
from metastable.errors import BadInput

__all__ = ["ENGINES", "argmax_mean", "attend", "choose", "log_partition", "softmax_mean"]

ENGINES = {"dense": dense, "flash": flash}

FEW_PAIRS = 300_000
"""Below this many (query, token) pairs the set-up of `flash` costs more than it saves; see benchmarks/."""


def choose(engine: str, cloud: Cloud, queries: int) -> str:
    """The engine that `engine` stands for: itself, or for "auto" the quicker one for this many pairs."""
    if not isinstance(engine, str) or (engine != "auto" and engine not in ENGINES):
        raise BadInput(f"engine is {engine!r}; choose one of auto, {', '.join(ENGINES)}")
    if engine != "auto":
        return engine
    return "flash" if queries * len(cloud) > FEW_PAIRS else "dense"


def attend(cloud: Cloud, queries: Array, engine: str = "auto") -> Tensor:
    """m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Σ_j w_j e^{⟨u,y_j⟩} for each row u of `queries`, (n, d): (n, d).

    For a field, u = β Bᵀx. Every engine gives the same numbers up to rounding; memory is O((N + n)·d) plus one
    block.

    Examples
    --------
    >>> from metastable.cloud import Cloud
    >>> cloud = Cloud([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(attend(cloud, [[0.5, 0.0]])[0, 0].item(), 6)  # tanh(½)
    0.462117
    """
    u = matrix(queries, "queries").to(dtype=cloud.dtype, device=cloud.points.device)
    if u.shape[1] != cloud.dim:
        raise BadInput(f"queries have {u.shape[1]} coordinates and the cloud {cloud.dim}; they must agree")
    return softmax_mean(cloud, u, engine)


def softmax_mean(cloud: Cloud, u: Tensor, engine: str) -> Tensor:
    """`attend` for queries that are known to fit the cloud."""
    return ENGINES[choose(engine, cloud, len(u))](cloud.points, cloud.log_weights, u)
