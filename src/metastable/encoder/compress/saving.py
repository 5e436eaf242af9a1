"""A changed encoder as a folder that transformers and sentence-transformers open without this package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metastable import files
from metastable.encoder.load import Encoder

SETTINGS = "metastable.json"
"""What was removed, and what only `load_compressed` can do: smaller shapes, merged tokens, int8."""
SENTENCE_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")


def save_model(
    encoder: Encoder, folder: Path, source: Encoder, card: Sequence[str], settings: Mapping[str, Any] | None = None
) -> None:
    """Write the encoder, the tokenizer and the sentence-transformers files of its source, completely or not at all.

    card : the lines of README.md
    settings : for `SETTINGS`, if there are any
    """
    with files.replacing(folder) as temporary:
        encoder.model.save_pretrained(temporary)
        if source.tokenizer is not None:
            source.tokenizer.save_pretrained(temporary)
        if source.folder is not None:
            _copy_sentence_files(source.folder, temporary)
        files.write_text(temporary / "README.md", "\n".join(card) + "\n")
        if settings is not None:
            files.write_json(temporary / SETTINGS, settings)


def _copy_sentence_files(source: Path, target: Path) -> None:
    """The settings of sentence-transformers and the modules that follow the encoder, such as pooling."""
    for name in SENTENCE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    modules = source / "modules.json"
    paths = [row.get("path", "") for row in json.loads(modules.read_text("utf-8"))] if modules.is_file() else []
    for path in filter(None, paths):
        inside = (source / path).resolve()
        # A path that leads out of the folder is not followed.
        if inside.is_dir() and inside.is_relative_to(source.resolve()):
            shutil.copytree(inside, target / path, dirs_exist_ok=True)
