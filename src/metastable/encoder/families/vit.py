"""ViT: pre-norm, patches of an image as tokens, absolute positions, everything folds."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Projection
from metastable.encoder.families.stack import step_of


def vit(model: Any) -> Anatomy:
    """`ViTModel`: each layer normalises the stream h and adds its update to h. A last normalisation follows."""
    layers, heads = [], model.config.num_attention_heads
    for index, block in enumerate(model.layers):
        inner, before = block.attention, block.layernorm_before
        projections = [Projection.of(linear, heads) for linear in (inner.q_proj, inner.k_proj, inner.v_proj)]
        layers.append(AttentionLayer.of(index, before, inner, projections, inner.o_proj, inner.scaling, pre_norm=True))
    return Anatomy(
        "vit",
        tuple(layers),
        model.layernorm,
        tuple(map(step_of, model.layers)),
        pre_norm=True,
        limit=model.embeddings.position_embeddings.shape[1],
    )
