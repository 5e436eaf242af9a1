"""BERT: post-norm, absolute positions, everything folds. ERNIE's layers are the same."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, output_by_heads
from metastable.encoder.families.masking import step_of


def bert(model: Any) -> Anatomy:
    """`BertModel`: layer l reads what layer l − 1's last normalisation wrote, the first one that of the embeddings."""
    return stack(model, model.embeddings.LayerNorm, model.embeddings.position_embeddings.num_embeddings)


def stack(model: Any, first: Any, limit: int, notes: tuple[str, ...] = ()) -> Anatomy:
    """The anatomy of a stack of BERT's layers after the normalisation `first`, or after none."""
    layers = []
    before, heads = first, model.config.num_attention_heads
    for index, block in enumerate(model.encoder.layer):
        inner, dense = block.attention.self, block.attention.output.dense
        layers.append(
            AttentionLayer(
                index=index,
                site=inner if before is None else before,
                norm=None if before is None else Norm.of(before),
                query=Projection.of(inner.query, heads),
                key=Projection.of(inner.key, heads),
                value=Projection.of(inner.value, heads),
                output=output_by_heads(dense.weight, heads),
                output_bias=dense.bias.detach(),
                scale=inner.scaling,
            )
        )
        before = block.output.LayerNorm
    steps = tuple(step_of(block) for block in model.encoder.layer)
    return Anatomy(model.config.model_type, tuple(layers), before, steps, notes=notes, limit=limit)
