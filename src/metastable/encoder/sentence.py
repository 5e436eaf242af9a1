"""Models of sentence-transformers: an encoder, and what that package adds to it. The package itself is not imported.

Such a model is a list of modules. The first is the encoder with its tokenizer. It cuts texts at `max_seq_length`, which
is often below the limit of the encoder, and may write them in lower case. A pooling module makes one embedding of the
token embeddings. Later modules (a linear map, a normalisation) are not read here.

On disk, `modules.json` lists the modules with their folders. The encoder is in the folder itself, or, as old versions
wrote it, in `0_Transformer`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from metastable.errors import BadInput
from metastable.files import read_json


@dataclass(frozen=True)
class SentenceSettings:
    """What a model of sentence-transformers adds to its encoder; nothing for other models.

    limit : the number of tokens at which texts are cut, special tokens included; None if the encoder decides
    pooling : the configuration of the pooling module; {} if there is none
    """

    limit: int | None = None
    pooling: Mapping[str, Any] = field(default_factory=dict)


PLAIN = SentenceSettings()
"""Of a model that is not one of sentence-transformers."""


def is_sentence_transformer(model: Any) -> bool:
    """Whether an object is a `SentenceTransformer`. There is none in a process that has not imported the package."""
    kind = getattr(sys.modules.get("sentence_transformers"), "SentenceTransformer", None)
    return kind is not None and isinstance(model, kind)


def inner_model(model: Any) -> Any:
    """The model of transformers inside a `SentenceTransformer`."""
    found = getattr(model[0], "auto_model", None) if len(model) else None
    if not isinstance(found, nn.Module):
        first = type(model[0]).__name__ if len(model) else "nothing"
        raise BadInput(f"the SentenceTransformer begins with {first}, not with a model of transformers in torch")
    return found


def entry_of(model: Any) -> nn.Module | None:
    """The module whose calls are the passes of a `SentenceTransformer`, for hooks; None for other models.

    It calls `forward` of the model of transformers, where torch runs no hooks.
    """
    return model[0] if is_sentence_transformer(model) else None


def settings_in_memory(model: Any) -> SentenceSettings:
    """The settings of a `SentenceTransformer`."""
    pooling: Mapping[str, Any] = {}
    for module in model:
        config = getattr(module, "get_config_dict", None)
        if type(module).__name__ == "Pooling" and callable(config):
            pooling = dict(config())
    return SentenceSettings(_limit(model.max_seq_length), pooling)


def encoder_folder(name: str, folder: Path) -> Path:
    """The folder of the encoder: that of the first module in modules.json, or the folder itself."""
    path = folder / "modules.json"
    if not path.is_file() or (folder / "config.json").is_file():
        return folder
    try:
        first = json.loads(path.read_text(encoding="utf-8"))[0]
        kind, inside = str(first["type"]), str(first["path"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadInput(f"{path} is no list of modules of sentence-transformers; mend it or remove it") from error
    if not kind.endswith("Transformer"):
        raise BadInput(f"{name!r} begins with the module {kind}, and not with a model of transformers; give another")
    if not (folder / inside).resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{path} names {inside!r}, which is outside of {folder}; mend it or remove it")
    return folder / inside


def settings_on_disk(folder: Path, inside: Path, tokenizer: Any) -> SentenceSettings:
    """The settings in the files of a model: its folder, and that of its encoder."""
    pooling = _read(folder / "1_Pooling" / "config.json")
    if not (folder / "modules.json").is_file():
        return SentenceSettings(None, pooling)
    limit = _limit(_read(inside / "sentence_bert_config.json").get("max_seq_length"))
    return SentenceSettings(limit or _limit(getattr(tokenizer, "model_max_length", None)), pooling)


def in_lower_case(inside: Path, tokenizer: Any) -> None:
    """Let a tokenizer write texts in lower case first, if the files of the model ask for that."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not _read(inside / "sentence_bert_config.json").get("do_lower_case"):
        return
    from tokenizers import normalizers

    steps = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


def _limit(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, "the file", "mend it or remove it") if path.is_file() else {}
