"""MPNet: post-norm; every layer adds the same bias of the relative position, one number a head, to its scores."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from metastable.encoder.anatomy import Anatomy, Scores, Step
from metastable.encoder.families.stack import Parts, additive, post_norm

NOTE = (
    "Each head adds a learned bias of the distance between two tokens to its scores, the same in every layer. "
    "The bias is part of the measured scores and not of B."
)


def mpnet(model: Any) -> Anatomy:
    """`MPNetModel`: s_ij = ⟨q_i, k_j⟩/√width + bias[head, bucket(j − i)]."""

    def parts(block: Any) -> Parts:
        inner = block.attention.attn
        scale = 1 / math.sqrt(inner.attention_head_size)
        rest = {"unfolded": ("relative position bias",), "scores": _scores(model.encoder, scale)}
        return Parts(inner, (inner.q, inner.k, inner.v), inner.o, scale, block.output.LayerNorm, rest)

    blocks, table = model.encoder.layer, model.embeddings.position_embeddings
    layers, last = post_norm(blocks, model.embeddings.LayerNorm, model.config.num_attention_heads, parts)
    return Anatomy(
        "mpnet",
        layers,
        last,
        tuple(_step(model.encoder, block) for block in blocks),
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
