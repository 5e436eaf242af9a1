"""RoBERTa and its kin: the layers of BERT; positions are counted from after the padding index."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.bert import stack


def roberta(model: Any) -> Anatomy:
    """`RobertaModel`: the first padding_idx + 1 rows of the position table are never used by a token."""
    table = model.embeddings.position_embeddings
    return stack(model, model.embeddings.LayerNorm, table.num_embeddings - table.padding_idx - 1)
