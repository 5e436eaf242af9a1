"""One small file a family of encoders: where its attention layers keep their weights and where its tokens pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.bert import bert
from metastable.errors import BadInput

FAMILIES: dict[str, Callable[[Any], Anatomy]] = {"bert": bert}
"""By `config.model_type`: the anatomy of a base model (no task head)."""


def anatomy(model: Any) -> Anatomy:
    """The anatomy of a base model of one of the known families."""
    family = model.config.model_type
    if family not in FAMILIES:
        raise BadInput(f"model type {family!r} is not known; known are {', '.join(sorted(FAMILIES))}")
    return FAMILIES[family](model)
