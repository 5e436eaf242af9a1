"""BERT and the families with the same layers: ERNIE, RoBERTa and its descendants, ELECTRA, DistilBERT.

They are post-norm with absolute positions, and everything folds.
"""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.stack import Parts, stack

MAPPED = (
    "The embeddings are mapped linearly to the hidden size after their normalisation. Tokens of the first layer "
    "therefore have no common length, and no gain or offset is folded there."
)


def bert(model: Any) -> Anatomy:
    """`BertModel`, `RobertaModel` and `ElectraModel`.

    In an ELECTRA with `embeddings_project` nothing normalises the tokens of the first layer.
    """

    def parts(block: Any) -> Parts:
        inner = block.attention.self
        linears = (inner.query, inner.key, inner.value)
        neurons = (block.intermediate.dense, block.output.dense)
        last, middle = block.output.LayerNorm, block.attention.output.LayerNorm
        return Parts(inner, linears, block.attention.output.dense, neurons, inner.scaling, last, middle=middle)

    if hasattr(model, "embeddings_project"):
        return stack(model, model.encoder.layer, None, parts, notes=(MAPPED,))
    return stack(model, model.encoder.layer, model.embeddings.LayerNorm, parts)


def distilbert(model: Any) -> Anatomy:
    """`DistilBertModel`."""

    def parts(block: Any) -> Parts:
        inner = block.attention
        linears = (inner.q_lin, inner.k_lin, inner.v_lin)
        neurons = (block.ffn.lin1, block.ffn.lin2)
        last, middle = block.output_layer_norm, block.sa_layer_norm
        return Parts(inner, linears, inner.out_lin, neurons, inner.scaling, last, middle=middle)

    return stack(model, model.transformer.layer, model.embeddings.LayerNorm, parts)
