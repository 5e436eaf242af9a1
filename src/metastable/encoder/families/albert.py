"""ALBERT: few layers (mostly one) called many times; the embeddings are mapped to the hidden size after their norm."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Projection, output_by_heads
from metastable.encoder.families.electra import MAPPED
from metastable.encoder.families.masking import step_of


def albert(model: Any) -> Anatomy:
    """`AlbertModel`: layer l is one more call of a shared module, and so is the normalisation before it."""
    blocks = _calls(model)
    layers = []
    for index, block in enumerate(blocks):
        inner, heads = block.attention, model.config.num_attention_heads
        # What this layer reads was written by the block before it, in its latest call.
        before = blocks[index - 1].full_layer_layer_norm if index else None
        layers.append(
            AttentionLayer(
                index=index,
                site=inner if before is None else before,
                norm=None if before is None else Norm.of(before),
                query=Projection.of(inner.query, heads),
                key=Projection.of(inner.key, heads),
                value=Projection.of(inner.value, heads),
                output=output_by_heads(inner.dense.weight, heads),
                output_bias=inner.dense.bias.detach(),
                scale=inner.scaling,
                call=sum(block is blocks[index - 1] for block in blocks[: index - 1]) if index else 0,
            )
        )
    return Anatomy(
        "albert",
        tuple(layers),
        blocks[-1].full_layer_layer_norm,
        tuple(step_of(block) for block in blocks),
        tied=len(set(blocks)) == 1,
        notes=(MAPPED,),
        limit=model.embeddings.position_embeddings.num_embeddings,
    )


def _calls(model: Any) -> list[Any]:
    """The blocks in the order in which a forward pass calls them."""
    depth, groups = model.config.num_hidden_layers, model.encoder.albert_layer_groups
    return [block for i in range(depth) for block in groups[int(i / (depth / len(groups)))].albert_layers]
