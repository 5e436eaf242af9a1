"""Velocity fields on the sphere, one file each, and `velocity`, which takes every β from 0 to ∞."""

from __future__ import annotations

import math

from torch import Tensor

from metastable.arrays import Array, real
from metastable.attention import choose
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.fields.hardmax import hardmax
from metastable.fields.softmax import softmax
from metastable.fields.zero_temperature import zero_temperature
from metastable.head import Head

__all__ = ["check_beta", "hardmax", "softmax", "velocity", "zero_temperature"]


def check_beta(beta: float) -> float:
    """β as a float in [0, ∞], or BadInput."""
    return real(beta, "beta", "the inverse temperature must be 0 or more (inf is hardmax)")


def velocity(
    head: Head, cloud: Cloud, beta: float, at: Array | None = None, engine: str = "auto", tol: float = 1e-6
) -> Tensor:
    """𝒱_β[μ] at the rows of `at` (n, d), scaled to the sphere, by default at the tokens; β = inf is hardmax.

    `engine` and `tol` are those of `attend`.

    Examples
    --------
    >>> import torch, metastable as ms
    >>> head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    >>> cloud = ms.Cloud([[1.0, 0.0], [0.0, 1.0]])
    >>> ms.velocity(head, cloud, beta=0.0)[0].tolist()
    [0.0, 0.5]
    """
    beta = check_beta(beta)
    if head.dim != cloud.dim:
        raise BadInput(f"the head has d = {head.dim} and the cloud d = {cloud.dim}; they must agree")
    choose(engine, cloud.log_weights, cloud.dim, 1, tol)
    head = head.to(cloud.dtype, cloud.points.device)
    x = cloud.points if at is None else Cloud(at).points.to(dtype=cloud.dtype, device=cloud.points.device)
    if x.shape[1] != cloud.dim:
        raise BadInput(f"at has {x.shape[1]} coordinates and the cloud d = {cloud.dim}; they must agree")
    return hardmax(head, cloud, x) if math.isinf(beta) else softmax(head, cloud, x, beta, engine, tol)
