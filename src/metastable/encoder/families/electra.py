"""ELECTRA: the layers of BERT; small ones map their embeddings to the hidden size after the normalisation."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.bert import stack

MAPPED = (
    "The embeddings are mapped linearly to the hidden size after their normalisation: tokens of the first layer have "
    "no common length, and no gain or offset is folded there."
)


def electra(model: Any) -> Anatomy:
    """`ElectraModel`: with `embeddings_project` nothing normalises the tokens of the first layer."""
    limit = model.embeddings.position_embeddings.num_embeddings
    if hasattr(model, "embeddings_project"):
        return stack(model, None, limit, notes=(MAPPED,))
    return stack(model, model.embeddings.LayerNorm, limit)
