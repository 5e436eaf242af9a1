"""MPNet: post-norm; every layer adds the same bias of the relative position, one number a head, to its scores."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, Scores, Step, output_by_heads
from metastable.encoder.families.masking import additive

NOTE = (
    "A learned bias of the distance between two tokens, the same in every layer, is added to the scores of each head: "
    "it is part of the measured scores and not of B."
)


def mpnet(model: Any) -> Anatomy:
    """`MPNetModel`: s_ij = ⟨q_i, k_j⟩/√width + bias[head, bucket(j − i)]."""
    layers = []
    before, heads = model.embeddings.LayerNorm, model.config.num_attention_heads
    for index, block in enumerate(model.encoder.layer):
        inner = block.attention.attn
        scale = 1 / math.sqrt(inner.attention_head_size)
        layers.append(
            AttentionLayer(
                index=index,
                site=before,
                norm=Norm.of(before),
                query=Projection.of(inner.q, heads),
                key=Projection.of(inner.k, heads),
                value=Projection.of(inner.v, heads),
                output=output_by_heads(inner.o.weight, heads),
                output_bias=inner.o.bias.detach(),
                scale=scale,
                unfolded=("relative position bias",),
                scores=_scores(model.encoder, scale),
            )
        )
        before = block.output.LayerNorm
    table = model.embeddings.position_embeddings
    return Anatomy(
        "mpnet",
        tuple(layers),
        before,
        tuple(_step(model.encoder, block) for block in model.encoder.layer),
        notes=(NOTE,),
        limit=table.num_embeddings - table.padding_idx - 1,
    )


def _scores(encoder: Any, scale: float) -> Scores:
    def scores(q: Tensor, k: Tensor) -> Tensor:
        # One text is enough: the bias depends on the positions alone.
        bias = encoder.compute_position_bias(q[:1, 0]).detach()
        return scale * q @ k.transpose(-1, -2) + bias.to(q)

    return scores


def _step(encoder: Any, block: Any) -> Step:
    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        return block(hidden, additive(mask, hidden), encoder.compute_position_bias(hidden))[0]

    return step
