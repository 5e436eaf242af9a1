"""Where each family of encoders keeps the weights of its attention layers, and which modules its tokens pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.albert import albert
from metastable.encoder.families.bert import bert, distilbert
from metastable.encoder.families.deberta_v2 import deberta_v2
from metastable.encoder.families.modernbert import modernbert
from metastable.encoder.families.mpnet import mpnet
from metastable.encoder.families.vit import vit
from metastable.errors import BadInput

FAMILIES: dict[str, Callable[[Any], Anatomy]] = {
    "albert": albert,
    "bert": bert,
    "camembert": bert,
    "data2vec-text": bert,
    "deberta-v2": deberta_v2,
    "distilbert": distilbert,
    "electra": bert,
    "ernie": bert,
    "modernbert": modernbert,
    "mpnet": mpnet,
    "roberta": bert,
    "vit": vit,
    "xlm-roberta": bert,
}
"""By `config.model_type`: the anatomy of a base model (no task head)."""


def anatomy(model: Any) -> Anatomy:
    """The anatomy of a base model of one of the known families."""
    family = model.config.model_type
    if family not in FAMILIES:
        raise BadInput(f"model type {family!r} is not known; known are {', '.join(sorted(FAMILIES))}")
    if model.config.num_hidden_layers < 1:
        raise BadInput(f"the model has {model.config.num_hidden_layers} layers; there is no attention to look at")
    return FAMILIES[family](model)
