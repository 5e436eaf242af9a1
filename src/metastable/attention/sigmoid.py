"""Sigmoid attention: every token has a weight between 0 and 1 of its own, and nothing is normalised.

m(u) = Σ_j w_j σ(⟨u, y_j⟩) y_j,     σ(s) = 1 / (1 + e^{−s})
"""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.arrays import exp_, matmul, serial
from metastable.attention.dense import LOWEST, scores_by_block


def sigmoid_sum(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Tensor:
    """m(u) for each row u of (n, d): (n, d), by blocks of queries; with `causal`, query i sees tokens j ≤ i only."""
    sums = torch.empty_like(queries)
    weighted = serial(log_weights, torch.exp).unsqueeze(1) * points
    for part, scores in scores_by_block(points, queries, causal):
        # A masked score is −inf, and σ(−inf) = 0.
        exp_(scores.neg_().clamp_(min=LOWEST[points.dtype])).add_(1.0).reciprocal_()
        sums[part] = matmul(scores, weighted[: scores.shape[1]])
    return sums
