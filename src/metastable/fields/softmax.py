"""The softmax field 𝒱_β[μ](x) = P_x V m_β[μ](x), for 0 ≤ β < ∞."""

from __future__ import annotations

from torch import Tensor

from metastable.attention import softmax_mean
from metastable.cloud import Cloud
from metastable.fields.tangent import tangent
from metastable.head import Head


def softmax(head: Head, cloud: Cloud, x: Tensor, beta: float, engine: str = "auto", tol: float = 1e-6) -> Tensor:
    """m_β[μ](x) = ∫ y e^{β⟨Bᵀx, y⟩}dμ(y) / ∫ e^{β⟨Bᵀx, y⟩}dμ(y), then V, then the tangent part: (n, d)."""
    return tangent(
        x, head.values(softmax_mean(cloud, beta * head.directions(x), engine, tol, paired=x is cloud.points))
    )
