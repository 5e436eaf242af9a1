"""ALBERT: few layers (mostly one) called many times; the embeddings are mapped to the hidden size after their norm."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Projection
from metastable.encoder.families.bert import MAPPED
from metastable.encoder.families.stack import step_of


def albert(model: Any) -> Anatomy:
    """`AlbertModel`: layer l is one more call of a shared module, and so is the normalisation before it."""
    depth, groups = model.config.num_hidden_layers, model.encoder.albert_layer_groups
    # In the order in which a forward pass calls them.
    blocks = [block for i in range(depth) for block in groups[int(i / (depth / len(groups)))].albert_layers]
    return Anatomy(
        "albert",
        tuple(_layer(blocks, index, model.config.num_attention_heads) for index in range(len(blocks))),
        blocks[-1].full_layer_layer_norm,
        tuple(map(step_of, blocks)),
        tied=len(set(blocks)) == 1,
        notes=(MAPPED,),
        limit=model.embeddings.position_embeddings.num_embeddings,
    )


def _layer(blocks: list[Any], index: int, heads: int) -> AttentionLayer:
    inner = blocks[index].attention
    projections = [Projection.of(linear, heads) for linear in (inner.query, inner.key, inner.value)]
    # The layer reads what the block before it wrote, in its latest call.
    writer = blocks[index - 1] if index else None
    before = None if writer is None else writer.full_layer_layer_norm
    call = sum(block is writer for block in blocks[: index - 1]) if index else 0
    return AttentionLayer.of(index, before, inner, projections, inner.dense, inner.scaling, call=call)
