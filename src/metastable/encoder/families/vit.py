"""ViT: pre-norm, patches of an image as tokens, absolute positions, everything folds."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, output_by_heads
from metastable.encoder.families.masking import step_of


def vit(model: Any) -> Anatomy:
    """`ViTModel`: each layer normalises the stream h and adds its update to h; a last normalisation closes."""
    layers = []
    for index, block in enumerate(model.layers):
        inner, heads = block.attention, model.config.num_attention_heads
        layers.append(
            AttentionLayer(
                index=index,
                site=block.layernorm_before,
                norm=Norm.of(block.layernorm_before),
                query=Projection.of(inner.q_proj, heads),
                key=Projection.of(inner.k_proj, heads),
                value=Projection.of(inner.v_proj, heads),
                output=output_by_heads(inner.o_proj.weight, heads),
                output_bias=inner.o_proj.bias.detach(),
                scale=inner.scaling,
                pre_norm=True,
            )
        )
    return Anatomy(
        "vit",
        tuple(layers),
        model.layernorm,
        tuple(step_of(block) for block in model.layers),
        pre_norm=True,
        limit=model.embeddings.position_embeddings.shape[1],
    )
