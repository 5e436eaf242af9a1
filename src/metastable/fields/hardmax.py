"""The hardmax field: β = ∞ for a finite set of tokens.

Not to be confused with `zero_temperature`, which is the limit for a law of full support: there the best token
is Bᵀx/|Bᵀx| itself, here it is the best of the tokens that exist.
"""

from __future__ import annotations

from torch import Tensor

from metastable.attention import argmax_mean
from metastable.cloud import Cloud
from metastable.fields.tangent import tangent
from metastable.head import Head


def hardmax(head: Head, cloud: Cloud, x: Tensor) -> Tensor:
    """P_x V m with m the weighted mean of the tokens that attain max_j ⟨Bᵀx, x_j⟩: (n, d)."""
    return tangent(x, head.values(argmax_mean(cloud.points, cloud.log_weights, head.directions(x))))
