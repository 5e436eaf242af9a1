"""One embedding from the token embeddings of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metastable.encoder.load import Encoder
from metastable.encoder.texts import Batch
from metastable.errors import BadInput, choice

POOLINGS = ("mean", "cls", "max")
MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max", "mean": "mean", "cls": "cls", "max": "max"}
"""Names of sentence-transformers for them."""


def pooling_of(encoder: Encoder, asked: str | None) -> str:
    """How token embeddings become one: as asked, as the model of sentence-transformers does it, or their mean."""
    if asked is not None:
        return choice(asked, "pooling", POOLINGS)
    found = dict(encoder.sentence.pooling)
    if found.get("pooling_mode"):
        several = found["pooling_mode"]
        found = {f"pooling_mode_{name}": True for name in ([several] if isinstance(several, str) else several)}
    modes = {name for name, on in found.items() if name.startswith("pooling_mode_") and on is True}
    known = {f"pooling_mode_{name}": pooling for name, pooling in MODES.items()}
    if len(modes) == 1 and modes <= set(known):
        return known[modes.pop()]
    if modes:
        named = ", ".join(sorted(name.removeprefix("pooling_mode_") for name in modes))
        raise BadInput(
            f"the model pools by {named}, which is not known here; give the pooling (--pooling {', '.join(POOLINGS)})"
        )
    return "mean"


def pooled(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """The embeddings of texts, (texts, d): "mean" or "max" over tokens that are no padding, or "cls", the first one.

    hidden : (texts, n, d); mask : (texts, n) of bool, True for tokens
    """
    if pooling == "cls":
        return hidden[:, 0]
    # Some models write NaN into padding.
    if pooling == "max":
        return torch.where(mask.unsqueeze(-1), hidden, -torch.inf).amax(dim=1)
    kept = torch.where(mask.unsqueeze(-1), hidden, 0.0)
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True)


def embed(encoder: Encoder, batches: Sequence[Batch], pooling: str) -> NDArray[np.float64]:
    """The embedding of each text, in the order of the batches, (texts, d)."""
    parts = [pooled(encoder.run(batch.inputs).last_hidden_state, batch.mask, pooling) for batch in batches]
    return np.asarray(torch.cat(parts).double().cpu().numpy())
