"""The softmax mean by blocks of queries: plain matrix products, memory bounded by one block.

Scores are shifted by their row maximum, so no β overflows. They are cut off where their exponential would be
denormal (e^{−80} in float32, e^{−700} in float64, far below the rounding of the largest term): denormal
arithmetic is many times slower and adds nothing.

With `causal`, query i belongs to token i and sees the tokens j ≤ i only. A masked weight is exactly 0, so the result
does not depend on later tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from metastable.arrays import SERIAL_ELEMENTS, SERIAL_MULTIPLICATIONS, exp_, matmul, serial

BLOCK_BYTES = 32 * 2**20
"""Size of a block of scores of a large problem."""
SMALL = 2**23
"""A problem with up to this many multiplications (queries × tokens × d) takes milliseconds. On the CPU it is computed
in the calling thread, because starting other threads takes longer, and far longer on a busy machine."""
LOWEST = {torch.float32: -80.0, torch.float64: -700.0}


def is_small(points: Tensor, queries: Tensor) -> bool:
    """Whether the problem is computed in the calling thread."""
    return points.device.type == "cpu" and len(queries) * points.numel() <= SMALL


def scores_by_block(points: Tensor, queries: Tensor, causal: bool = False) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries, as slices, with their scores ⟨u, y_j⟩, (rows, N).

    With `causal` the scores of a block end with the last token that one of its queries sees. Masked scores are −inf.
    """
    elements = BLOCK_BYTES // points.element_size()
    if is_small(points, queries):
        elements = min(SERIAL_ELEMENTS, SERIAL_MULTIPLICATIONS // points.shape[1])
    rows = max(1, elements // len(points))
    transposed = points.T.contiguous()
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        if not causal:
            yield part, matmul(queries[part], transposed)
            continue
        scores = matmul(queries[part], transposed[:, : part.stop])
        scores[:, start:].masked_fill_(_later(scores, start), -math.inf)
        yield part, scores


def _later(scores: Tensor, start: int) -> Tensor:
    """Which of the tokens from `start` on come later than the query, for a causal block of scores that begins there."""
    size = scores.shape[1] - start
    return torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1)


def exponentials_by_block(
    points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of queries, as slices, with e_j = w_j e^{⟨u,y_j⟩ − top} / max w, (rows, N), and top (rows, 1)."""
    # A common constant in the log-weights cancels; leaving them out when equal saves a pass over the block.
    offsets = log_weights - log_weights.max()
    weighted = bool((offsets != 0).any())
    for part, scores in scores_by_block(points, queries, causal):
        if weighted:
            scores += offsets[: scores.shape[1]]
        top = scores.amax(dim=1, keepdim=True)
        scores -= top
        exp_(scores.clamp_(min=LOWEST[points.dtype]))
        if causal:
            # The clamp has raised masked exponents.
            scores[:, part.start :].tril_()
        yield part, scores, top


def dense(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d)."""
    means = torch.empty_like(queries)
    for part, weights, _ in exponentials_by_block(points, log_weights, queries, causal):
        means[part] = matmul(weights, points[: weights.shape[1]]) / weights.sum(dim=1, keepdim=True)
    return means


def dense_sums(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """m(u) as in `dense`, (n, d), and log Z(u) = log Σ w_j e^{⟨u,y_j⟩}, (n,), in one pass."""
    means, values = torch.empty_like(queries), torch.empty_like(queries[:, 0])
    heaviest = log_weights.max()
    for part, weights, top in exponentials_by_block(points, log_weights, queries, causal):
        total = weights.sum(dim=1)
        means[part] = matmul(weights, points[: weights.shape[1]]) / total.unsqueeze(1)
        values[part] = serial(total, torch.log) + top.squeeze(1) + heaviest
    return means, values


def log_partition(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """log Z(u) = log Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n,)."""
    values = torch.empty(len(queries), dtype=points.dtype, device=points.device)
    for part, scores in scores_by_block(points, queries):
        scores += log_weights
        top = scores.amax(dim=1, keepdim=True)
        scores -= top
        values[part] = exp_(scores.clamp_(min=LOWEST[points.dtype])).sum(dim=1).log() + top.squeeze(1)
    return values


def argmax_mean(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Tensor:
    """The β → ∞ limit of the softmax mean: the weighted mean of the tokens that attain max_j ⟨u, y_j⟩.

    Scores within a few roundings of the maximum, 8·ε·|u|, count as ties. Tokens of weight 0 are not seen.
    """
    means = torch.empty_like(queries)
    weights = (log_weights - log_weights.max()).exp()
    slack = 8 * torch.finfo(points.dtype).eps * torch.linalg.vector_norm(queries, dim=1, keepdim=True)
    for part, scores in scores_by_block(points, queries, causal):
        seen = scores.shape[1]
        scores.masked_fill_(log_weights[:seen] == -math.inf, -math.inf)
        tied = (scores >= scores.amax(dim=1, keepdim=True) - slack[part]) * weights[:seen]
        means[part] = matmul(tied, points[:seen]) / tied.sum(dim=1, keepdim=True)
    return means
