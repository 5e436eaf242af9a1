"""BERT: post-norm, absolute positions, everything folds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, Step, output_by_heads


def bert(model: Any) -> Anatomy:
    """`BertModel`: layer l reads what layer l − 1's last normalisation wrote, the first one that of the embeddings."""
    layers = []
    before = model.embeddings.LayerNorm
    for index, block in enumerate(model.encoder.layer):
        inner, heads = block.attention.self, model.config.num_attention_heads
        dense = block.attention.output.dense
        layers.append(
            AttentionLayer(
                index=index,
                site=before,
                norm=Norm.of(before),
                query=Projection.of(inner.query, heads),
                key=Projection.of(inner.key, heads),
                value=Projection.of(inner.value, heads),
                output=output_by_heads(dense.weight, heads),
                output_bias=dense.bias.detach(),
                scale=inner.scaling,
            )
        )
        before = block.output.LayerNorm
    return Anatomy("bert", tuple(layers), before, tuple(_step(block) for block in model.encoder.layer))


def _step(block: Any) -> Step:
    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        return block(hidden, additive(mask, hidden))

    return step


def additive(mask: Tensor, hidden: Tensor) -> Tensor:
    """(texts, n) of bool → (texts, 1, 1, n) with 0 for tokens and the most negative number for padding."""
    return hidden.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))[:, None, None, :]
