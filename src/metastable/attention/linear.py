"""Linear attention: the softmax mean to first order in u.

    m(u) = ȳ + C u,     ȳ = Σ_j w_j y_j,     C = Σ_j w_j (y_j − ȳ)(y_j − ȳ)ᵀ

The softmax mean is ∇ log Z, and log Z(u) = ⟨u, ȳ⟩ + ½⟨u, Cu⟩ + O(|u|³), so the two differ by O(|u|²).
"""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.arrays import matmul

CHUNK = 256
"""Rows of a chunk of the causal form: it costs O(CHUNK·d + d²) a token."""


def linear_mean(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """m(u) for each row u of (n, d): (n, d), in a time O((N + n)·d²). A common factor of the weights cancels."""
    weights = torch.softmax(log_weights, dim=0).unsqueeze(1)
    mean = (weights * points).sum(dim=0)
    centred = points - mean
    covariance = matmul((weights * centred).T.contiguous(), centred)
    return mean + matmul(queries, covariance)


def causal_linear_mean(points: Tensor, queries: Tensor) -> Tensor:
    """m(u_i) with ȳ and C of the tokens j ≤ i, equal weights, for each row u_i of (N, d): (N, d).

    With z_j = y_j − y_1 and n = i,  C u = (1/n) Σ_j z_j ⟨z_j, u⟩ − z̄ ⟨z̄, u⟩.  The sums over earlier chunks of tokens
    are carried along as Σ z and Σ z zᵀ; those within a chunk are a masked product. Every query sees the first token, so
    taking it as the origin uses nothing later, and a tight cluster loses no digits.
    """
    means = torch.empty_like(queries)
    origin = points[:1]
    d = points.shape[1]
    total, second = points.new_zeros(1, d), points.new_zeros(d, d)
    for start in range(0, len(points), CHUNK):
        part = slice(start, start + CHUNK)
        z, u = points[part] - origin, queries[part]
        count = torch.arange(start + 1, start + len(z) + 1, dtype=z.dtype, device=z.device).unsqueeze(1)
        mean = (total + z.cumsum(dim=0)) / count
        moment = matmul(matmul(u, z.T.contiguous()).tril_(), z) + matmul(u, second)
        means[part] = origin + mean + moment / count - mean * (mean * u).sum(dim=1, keepdim=True)
        total, second = total + z.sum(dim=0), second + matmul(z.T.contiguous(), z)
    return means
