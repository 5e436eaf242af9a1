"""MPNet: post-norm; every layer adds the same bias of the relative position, one number a head, to its scores."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.stack import Parts, additive, stack

NOTE = (
    "Each head adds a learned bias of the distance between two tokens to its scores, the same in every layer. "
    "The bias is part of the measured scores and not of B."
)


def mpnet(model: Any) -> Anatomy:
    """`MPNetModel`: s_ij = ⟨q_i, k_j⟩/√width + bias[head, bucket(j − i)]."""
    encoder = model.encoder

    def parts(block: Any) -> Parts:
        inner = block.attention.attn
        scale = 1 / math.sqrt(inner.attention_head_size)

        def scores(q: Tensor, k: Tensor) -> Tensor:
            # One text is enough: the bias depends on the positions alone.
            bias = encoder.compute_position_bias(q[:1, 0]).detach()
            return scale * q @ k.transpose(-1, -2) + bias.to(q)

        def step(hidden: Tensor, mask: Tensor) -> Tensor:
            return block(hidden, additive(mask, hidden), encoder.compute_position_bias(hidden))[0]

        linears, neurons = (inner.q, inner.k, inner.v), (block.intermediate.dense, block.output.dense)
        last, unfolded = block.output.LayerNorm, ("relative position bias",)
        return Parts(inner, linears, inner.o, neurons, scale, last, None, unfolded, scores, step)

    return stack(model, encoder.layer, model.embeddings.LayerNorm, parts, notes=(NOTE,))
