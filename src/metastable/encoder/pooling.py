"""One embedding from the token embeddings of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metastable import files
from metastable.encoder.load import Encoder
from metastable.encoder.texts import Batch
from metastable.errors import BadInput, choice

POOLINGS = ("mean", "cls")
MODES = {"mean_tokens": "mean", "cls_token": "cls", "mean": "mean", "cls": "cls"}
"""Names of sentence-transformers for them."""


def pooling_of(encoder: Encoder, asked: str | None) -> str:
    """How token embeddings become one: as asked, as the model's sentence-transformers files say, or their mean."""
    if asked is not None:
        return choice(asked, "pooling", POOLINGS)
    settings = encoder.folder / "1_Pooling" / "config.json" if encoder.folder is not None else None
    if settings is None or not settings.is_file():
        return "mean"
    found = files.read_json(settings, "the file", "give the pooling (--pooling mean or cls)")
    if isinstance(found.get("pooling_mode"), str):
        found = {f"pooling_mode_{found['pooling_mode']}": True}
    modes = {name for name, on in found.items() if name.startswith("pooling_mode_") and on is True}
    known = {f"pooling_mode_{name}": pooling for name, pooling in MODES.items()}
    if len(modes) == 1 and modes <= set(known):
        return known[modes.pop()]
    if modes:
        named = ", ".join(sorted(name.removeprefix("pooling_mode_") for name in modes))
        raise BadInput(f"the model pools by {named}, which is not known here; give the pooling (--pooling mean or cls)")
    return "mean"


def pooled(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """The embeddings of texts, (texts, d): "mean" over the tokens that are no padding, or "cls", the first token.

    hidden : (texts, n, d); mask : (texts, n) of bool, True for tokens
    """
    if pooling == "cls":
        return hidden[:, 0]
    # Some models write NaN into padding.
    kept = torch.where(mask.unsqueeze(-1), hidden, 0.0)
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True)


def embed(encoder: Encoder, batches: Sequence[Batch], pooling: str) -> NDArray[np.float64]:
    """The embedding of each text, in the order of the batches, (texts, d)."""
    parts = [pooled(encoder.run(batch.inputs).last_hidden_state, batch.mask, pooling) for batch in batches]
    return np.asarray(torch.cat(parts).double().cpu().numpy())
