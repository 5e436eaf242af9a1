"""BERT and the families with the same layers: ERNIE, RoBERTa and its descendants, ELECTRA, DistilBERT.

They are post-norm with absolute positions, and everything folds.
"""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.stack import Parts, post_norm, step_of

MAPPED = (
    "The embeddings are mapped linearly to the hidden size after their normalisation. Tokens of the first layer "
    "therefore have no common length, and no gain or offset is folded there."
)


def bert(model: Any) -> Anatomy:
    """`BertModel`."""
    return _anatomy(model, model.embeddings.LayerNorm, model.embeddings.position_embeddings.num_embeddings)


def roberta(model: Any) -> Anatomy:
    """`RobertaModel`: no token uses the first padding_idx + 1 rows of the position table."""
    table = model.embeddings.position_embeddings
    return _anatomy(model, model.embeddings.LayerNorm, table.num_embeddings - table.padding_idx - 1)


def electra(model: Any) -> Anatomy:
    """`ElectraModel`: with `embeddings_project` nothing normalises the tokens of the first layer."""
    limit = model.embeddings.position_embeddings.num_embeddings
    if hasattr(model, "embeddings_project"):
        return _anatomy(model, None, limit, notes=(MAPPED,))
    return _anatomy(model, model.embeddings.LayerNorm, limit)


def distilbert(model: Any) -> Anatomy:
    """`DistilBertModel`."""

    def parts(block: Any) -> Parts:
        inner = block.attention
        linears = (inner.q_lin, inner.k_lin, inner.v_lin)
        return Parts(inner, linears, inner.out_lin, inner.scaling, block.output_layer_norm)

    blocks = model.transformer.layer
    layers, last = post_norm(blocks, model.embeddings.LayerNorm, model.config.n_heads, parts)
    limit = model.embeddings.position_embeddings.num_embeddings
    return Anatomy("distilbert", layers, last, tuple(map(step_of, blocks)), limit=limit)


def _anatomy(model: Any, first: Any, limit: int, notes: tuple[str, ...] = ()) -> Anatomy:
    def parts(block: Any) -> Parts:
        inner = block.attention.self
        linears = (inner.query, inner.key, inner.value)
        return Parts(inner, linears, block.attention.output.dense, inner.scaling, block.output.LayerNorm)

    blocks = model.encoder.layer
    layers, last = post_norm(blocks, first, model.config.num_attention_heads, parts)
    return Anatomy(model.config.model_type, layers, last, tuple(map(step_of, blocks)), notes=notes, limit=limit)
