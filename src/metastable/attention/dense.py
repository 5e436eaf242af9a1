"""The softmax mean by blocks of queries: plain matrix products, memory bounded by one block.

Scores are shifted by their row maximum, so no β overflows. They are cut off where their exponential would be
denormal (e^{−80} in float32, e^{−700} in float64, far below the rounding of the largest term): denormal
arithmetic is many times slower and adds nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK_BYTES = 32 * 2**20
LOWEST = {torch.float32: -80.0, torch.float64: -700.0}


def blocks(queries: int, keys: int, itemsize: int) -> range:
    """Starting rows of blocks whose scores fit in BLOCK_BYTES."""
    return range(0, queries, max(1, BLOCK_BYTES // (keys * itemsize)))


def dense(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d)."""
    means = torch.empty_like(queries)
    rows = blocks(len(queries), len(points), points.element_size())
    transposed = points.T.contiguous()
    # A common constant in the log-weights cancels; leaving them out when equal saves a pass over the block.
    offsets = log_weights - log_weights.max()
    weighted = bool((offsets != 0).any())
    for start in rows:
        scores = queries[start : start + rows.step] @ transposed
        if weighted:
            scores += offsets
        scores -= scores.amax(dim=1, keepdim=True)
        scores.clamp_(min=LOWEST[points.dtype]).exp_()
        means[start : start + rows.step] = (scores @ points) / scores.sum(dim=1, keepdim=True)
    return means


def log_partition(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """log Z(u) = log Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n,)."""
    values = torch.empty(len(queries), dtype=points.dtype, device=points.device)
    rows = blocks(len(queries), len(points), points.element_size())
    for start in rows:
        scores = queries[start : start + rows.step] @ points.T + log_weights
        values[start : start + rows.step] = torch.logsumexp(scores, dim=1)
    return values


def argmax_mean(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """The β → ∞ limit of the softmax mean: the weighted mean of the tokens that attain max_j ⟨u, y_j⟩.

    Scores within a few roundings of the maximum, 8·ε·|u|, count as ties. Tokens of weight 0 are not seen.
    """
    means = torch.empty_like(queries)
    rows = blocks(len(queries), len(points), points.element_size())
    weights = (log_weights - log_weights.max()).exp()
    slack = 8 * torch.finfo(points.dtype).eps * torch.linalg.vector_norm(queries, dim=1, keepdim=True)
    for start in rows:
        part = slice(start, start + rows.step)
        scores = queries[part] @ points.T
        scores.masked_fill_(log_weights == -math.inf, -math.inf)
        tied = (scores >= scores.amax(dim=1, keepdim=True) - slack[part]) * weights
        means[part] = (tied @ points) / tied.sum(dim=1, keepdim=True)
    return means
