"""What the families share: the layers of a stack of blocks, and whole layers as functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, AttentionLayer, LayerModules, Norm, Scores, Step, projections


class Parts(NamedTuple):
    """Where a block of a family keeps what an attention layer needs.

    linears : the linear maps of query, key and value, or one linear map for all three
    output : the linear map of the attention output
    neurons : the linear maps into and out of the perceptron; the map in is twice as high in a gated perceptron
    last : the normalisation at the end of a post-norm block, whose output the next block reads
    before : the block's own normalisation, whose output the attention reads (pre-norm); None in a post-norm block
    unfolded, scores : see `AttentionLayer`
    step : the whole layer; None for a block that needs only the hidden state and the mask of the padding
    middle : the normalisation whose output the perceptron reads; None if it is not a part of the block
    """

    attention: nn.Module
    linears: Sequence[nn.Linear]
    output: nn.Linear
    neurons: tuple[nn.Linear, nn.Linear]
    scale: float
    last: nn.LayerNorm | None = None
    before: nn.LayerNorm | None = None
    unfolded: tuple[str, ...] = ()
    scores: Scores | None = None
    step: Step | None = None
    middle: nn.LayerNorm | None = None


def stack(
    model: Any,
    blocks: Iterable[Any],
    first: nn.LayerNorm | None,
    parts: Callable[[Any], Parts],
    final: nn.LayerNorm | None = None,
    limit: int | None = None,
    **rest: Any,
) -> Anatomy:
    """The anatomy of a model whose blocks follow each other, in the order in which a forward pass calls them.

    first : the normalisation of the embeddings, which a first block without one of its own reads; None if there is none
    final : the normalisation after the last block of a pre-norm model; None if the model is post-norm
    limit : the longest sequence; None takes it from the table of positions
    rest : `tied` and `notes` of `Anatomy`
    """
    layers: list[AttentionLayer] = []
    held: list[LayerModules] = []
    steps: list[Step] = []
    written: Any = first
    calls = Counter([written])
    for index, block in enumerate(blocks):
        part = parts(block)
        norm = part.before or written
        weight, bias = part.output.weight.detach(), part.output.bias
        query, key, value = projections(part.linears, model.config.num_attention_heads)
        layer = AttentionLayer(
            index=index,
            site=part.attention if norm is None else norm,
            norm=None if norm is None else Norm.of(norm),
            query=query,
            key=key,
            value=value,
            output=weight.reshape(len(weight), len(query.weight), -1).transpose(0, 1),
            output_bias=weight.new_zeros(len(weight)) if bias is None else bias.detach(),
            scale=part.scale,
            # A shared block writes with the same normalisation again and again; the layer reads its latest call.
            call=0 if part.before else calls[written] - 1,
            pre_norm=part.before is not None,
            unfolded=part.unfolded,
            scores=part.scores,
        )
        layers.append(layer)
        inner, outer = part.neurons
        gated = inner.out_features == 2 * outer.in_features
        held.append(
            LayerModules(
                block, tuple(part.linears), part.output, inner, outer, gated, part.middle, _activation(model.config)
            )
        )
        steps.append(part.step or step_of(block))
        written = part.last
        calls[written] += 1
    return Anatomy(
        model=model,
        family=model.config.model_type,
        layers=tuple(layers),
        blocks=tuple(held),
        final=final or written,
        final_call=0 if final else calls[written] - 1,
        steps=tuple(steps),
        pre_norm=final is not None,
        limit=positions(model) if limit is None else limit,
        **rest,
    )


def _activation(config: Any) -> str:
    """The name of the activation of the perceptrons; empty if the configuration has none."""
    names = (getattr(config, name, None) for name in ("hidden_act", "activation", "hidden_activation"))
    return next((name for name in names if isinstance(name, str)), "")


def positions(model: Any) -> int:
    """The number of positions in the table. Where padding has a row, texts use only the rows after it."""
    table = model.embeddings.position_embeddings
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


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
