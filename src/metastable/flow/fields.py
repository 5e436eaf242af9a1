"""Velocity fields of tokens on the unit sphere, for every inverse temperature from β = 0 to β = ∞.

    softmax            𝒱_β[μ](x) = P_x V m_β[μ](x),     m_β[μ](x) = ∫ y e^{β⟨Bᵀx, y⟩}dμ(y) / ∫ e^{β⟨Bᵀx, y⟩}dμ(y)
    hardmax            P_x V m, m the weighted mean of the tokens that attain max_j ⟨Bᵀx, x_j⟩
    zero_temperature   𝒱_∞(x) = P_x V Bᵀx/|Bᵀx|

`hardmax` is the limit β → ∞ for finitely many tokens. `zero_temperature` is the limit for a law of full support, where
the best token is Bᵀx/|Bᵀx| itself, so that tokens do not interact. The two fields differ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metastable.arrays import Array, inverse_temperature
from metastable.attention import Prepared, argmax_mean, choose, softmax_mean
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head


def tangent(x: Tensor, w: Tensor) -> Tensor:
    """P_x w = w − ⟨w, x⟩x for each row of w (n, d) at the unit rows x: the projection onto the tangent space."""
    return w - (w * x).sum(dim=1, keepdim=True) * x


def zero_temperature(head: Head, x: Tensor) -> Tensor:
    """The zero-temperature field of a law with full support: (n, d). It is 0 where Bᵀx = 0 (undefined there)."""
    u = head.directions(x)
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    return tangent(x, head.values(torch.where(norm > 0, u / norm, torch.zeros_like(u))))


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
    beta = inverse_temperature(beta)
    if head.dim != cloud.dim:
        raise BadInput(f"the head has d = {head.dim} and the cloud d = {cloud.dim}; they must agree")
    choose(engine, cloud.log_weights, cloud.dim, 1, tol)
    head = head.to(cloud.dtype, cloud.points.device)
    x = cloud.points if at is None else Cloud(at).points.to(dtype=cloud.dtype, device=cloud.points.device)
    if x.shape[1] != cloud.dim:
        raise BadInput(f"at has {x.shape[1]} coordinates and the cloud d = {cloud.dim}; they must agree")
    u = head.directions(x)
    if math.isinf(beta):
        mean = argmax_mean(cloud.points, cloud.log_weights, u)
    else:
        mean = softmax_mean(cloud, beta * u, engine, tol, paired=x is cloud.points)
    return tangent(x, head.values(mean))


class TokenField:
    """x ↦ 𝒱_β[μ](x) at the tokens x (N, d) of μ = Σ w_j δ_{x_j} itself; β = inf is hardmax.

    Everything that depends on the weights alone is prepared once. `head` must have the dtype and the device of the
    tokens.
    """

    def __init__(self, head: Head, log_weights: Tensor, beta: float, engine: str, tol: float) -> None:
        self.head, self.beta = head, beta
        self.mean = Prepared(log_weights, choose(engine, log_weights, head.dim, len(log_weights), tol), tol)

    def __call__(self, x: Tensor) -> Tensor:
        u = self.head.directions(x)
        hard = math.isinf(self.beta)
        mean = argmax_mean(x, self.mean.log_weights, u) if hard else self.mean(x, self.beta * u, paired=True)
        return tangent(x, self.head.values(mean))

    def forget(self) -> None:
        """Drop what was kept from earlier evaluations: see `Prepared`."""
        self.mean.forget()
