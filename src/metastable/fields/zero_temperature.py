"""The zero-temperature field 𝒱_∞(x) = P_x V Bᵀx/|Bᵀx| of a law with full support: tokens do not see each other."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.fields.tangent import tangent
from metastable.head import Head


def zero_temperature(head: Head, x: Tensor) -> Tensor:
    """P_x V û with û = Bᵀx/|Bᵀx|, (n, d); 0 where Bᵀx = 0, where the field is undefined."""
    u = head.directions(x)
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    return tangent(x, head.values(torch.where(norm > 0, u / norm, torch.zeros_like(u))))
