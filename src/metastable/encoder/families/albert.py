"""ALBERT: few layers (mostly one) called many times; the embeddings are mapped to the hidden size after their norm."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.bert import MAPPED
from metastable.encoder.families.stack import Parts, stack


def albert(model: Any) -> Anatomy:
    """`AlbertModel`: layer l is one more call of a shared module, and so is the normalisation before it."""

    def parts(block: Any) -> Parts:
        inner = block.attention
        linears = (inner.query, inner.key, inner.value)
        neurons = (block.ffn, block.ffn_output)
        last, middle = block.full_layer_layer_norm, inner.LayerNorm
        return Parts(inner, linears, inner.dense, neurons, inner.scaling, last, middle=middle)

    depth, groups = model.config.num_hidden_layers, model.encoder.albert_layer_groups
    blocks = [block for i in range(depth) for block in groups[int(i / (depth / len(groups)))].albert_layers]
    return stack(model, blocks, None, parts, tied=len(set(blocks)) == 1, notes=(MAPPED,))
