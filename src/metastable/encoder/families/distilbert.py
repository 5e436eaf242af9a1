"""DistilBERT: the layers of BERT under other names."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, output_by_heads
from metastable.encoder.families.masking import step_of


def distilbert(model: Any) -> Anatomy:
    """`DistilBertModel`."""
    layers = []
    before, heads = model.embeddings.LayerNorm, model.config.n_heads
    for index, block in enumerate(model.transformer.layer):
        inner = block.attention
        layers.append(
            AttentionLayer(
                index=index,
                site=before,
                norm=Norm.of(before),
                query=Projection.of(inner.q_lin, heads),
                key=Projection.of(inner.k_lin, heads),
                value=Projection.of(inner.v_lin, heads),
                output=output_by_heads(inner.out_lin.weight, heads),
                output_bias=inner.out_lin.bias.detach(),
                scale=inner.scaling,
            )
        )
        before = block.output_layer_norm
    steps = tuple(step_of(block) for block in model.transformer.layer)
    limit = model.embeddings.position_embeddings.num_embeddings
    return Anatomy("distilbert", tuple(layers), before, steps, limit=limit)
