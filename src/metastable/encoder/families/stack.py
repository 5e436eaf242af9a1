"""What the families share: stacks of post-norm layers, and whole layers as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import AttentionLayer, Projection, Step


class Parts(NamedTuple):
    """Where a block of a family keeps what an attention layer needs.

    linears : the linear maps of query, key and value; output : the linear map of the attention output
    last : the normalisation at the end of the block
    rest : further fields of `AttentionLayer`
    """

    attention: nn.Module
    linears: Sequence[nn.Linear]
    output: nn.Linear
    scale: float
    last: nn.LayerNorm
    rest: Mapping[str, Any] = MappingProxyType({})


def post_norm(
    blocks: Iterable[Any], first: nn.LayerNorm | None, heads: int, parts: Callable[[Any], Parts]
) -> tuple[tuple[AttentionLayer, ...], Any]:
    """The layers of a post-norm encoder, and its last normalisation.

    Each layer reads the output of the normalisation at the end of the block before. The first one reads the output of
    `first`, or of no normalisation if `first` is None.
    """
    layers, before = [], first
    for index, block in enumerate(blocks):
        part = parts(block)
        projections = [Projection.of(linear, heads) for linear in part.linears]
        layers.append(
            AttentionLayer.of(index, before, part.attention, projections, part.output, part.scale, **part.rest)
        )
        before = part.last
    return tuple(layers), before


def step_of(block: Any) -> Step:
    """A layer that needs only the hidden state and the mask of the padding."""

    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        return block(hidden, additive(mask, hidden))

    return step


def additive(mask: Tensor, hidden: Tensor) -> Tensor:
    """(texts, n) of bool → (texts, 1, 1, n) with 0 for tokens and the most negative number for padding."""
    return blocked(mask[:, None, None, :], hidden)


def blocked(allowed: Tensor, like: Tensor) -> Tensor:
    """0 where allowed and the most negative number elsewhere, in the type of `like`.

    It is not −inf: a row of padding that sees only padding would become NaN, which then spreads over the text. It is
    not the most negative float64 either: some families compute their softmax in float32, where it becomes −inf.
    """
    lowest = max(torch.finfo(like.dtype).min, torch.finfo(torch.float32).min)
    return like.new_zeros(allowed.shape).masked_fill(~allowed, lowest)
