"""A compressed encoder with everything that plain transformers cannot hold: fewer heads, merged tokens, int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metastable import files
from metastable.encoder.compress.build import fast_form
from metastable.encoder.compress.merging import merge_tokens
from metastable.encoder.compress.saving import SETTINGS
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.load import load
from metastable.errors import BadInput


def load_compressed(folder: str | Path) -> Any:
    """The model in a folder of `Compression.save_model`, as fast as it was measured: a model of transformers.

    `AutoModel.from_pretrained` opens the same folder. It gives the same embeddings if nothing was merged or quantised,
    but it runs removed heads as zeros.
    """
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise BadInput(f"{folder} has no {SETTINGS}; give a folder that `metastable compress` wrote")
    settings = files.read_json(path, "the settings", "run compress again")
    encoder = load(str(folder))
    try:
        heads = {int(place): tuple(gone) for place, gone in settings["heads"].items()}
        found = fast_form(encoder, Removal(heads=heads), bool(settings["int8"]))
        if settings["merge"] is not None:
            merge_tokens(found.model, int(settings["merge"]["after"]), share=settings["merge"]["share"]).__enter__()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}: {error}); run compress again") from error
    return found.model
