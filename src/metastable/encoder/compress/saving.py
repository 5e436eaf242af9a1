"""A changed encoder as a folder that transformers and sentence-transformers open without this package."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metastable import files
from metastable.encoder.load import Encoder
from metastable.errors import BadInput

SETTINGS = "metastable.json"
"""What was removed, and what only `load_compressed` can do: smaller shapes, merged tokens, int8."""
SENTENCE_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")


def save_model(
    encoder: Encoder, folder: Path, source: Encoder, card: Sequence[str], settings: Mapping[str, Any] | None = None
) -> None:
    """Write the encoder, the tokenizer and the sentence-transformers files of its source, completely or not at all.

    card : the lines of README.md
    settings : for `SETTINGS`, if there are any
    """
    with files.replacing(folder) as temporary:
        _weights(encoder, temporary)
        if source.tokenizer is not None:
            _tokenizer(source.tokenizer).save_pretrained(temporary)
        if source.folder is not None:
            _copy_sentence_files(source.folder, temporary)
        size = sum(path.stat().st_size for path in temporary.glob("*.safetensors"))
        files.write_text(
            temporary / "README.md", "\n".join([*card, f"The weights take {size / 1e6:.1f} MB on disk."]) + "\n"
        )
        if settings is not None:
            files.write_json(temporary / SETTINGS, settings)


def _weights(encoder: Encoder, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        encoder.model.save_pretrained(folder)
    except SafetensorError as error:
        # The library reports a full disk as an error of its own.
        raise OSError(f"the weights cannot be written ({error})") from error
    for path in folder.iterdir():
        # The library writes weights that only their owner may read.
        path.chmod(0o666 & ~_umask())


def _umask() -> int:
    """The mask of new files. It can only be read by setting it, which would touch other threads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.touch()
        return 0o666 & ~path.stat().st_mode


def _tokenizer(tokenizer: Any) -> Any:
    """A copy that does not cut texts: cutting is a state of a tokenizer, which was set while texts were read."""
    found = copy.deepcopy(tokenizer)
    backend = getattr(found, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return found


def modules_after(source: Path) -> list[str]:
    """The folders of the modules of sentence-transformers that follow the encoder, such as pooling."""
    path = source / "modules.json"
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text("utf-8"))
        found = [(str(row["type"]), str(row["path"])) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} is no list of modules of sentence-transformers; mend it or remove it") from error
    inner = [name for kind, name in found if not kind.endswith(".Transformer")]
    for name in inner:
        # A path that leads out of the folder is not followed.
        if name and not (source / name).resolve().is_relative_to(source.resolve()):
            raise BadInput(f"{path} names {name!r}, which is outside of {source}; mend it or remove it")
    return [name for name in inner if name not in ("", ".") and (source / name).is_dir()]


def _copy_sentence_files(source: Path, target: Path) -> None:
    """The settings of sentence-transformers and the modules that follow the encoder."""
    for name in SENTENCE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / "modules.json").is_file():
        # The smaller encoder lies in the folder itself, whatever the folder of the full one is called.
        rows = json.loads((source / "modules.json").read_text("utf-8"))
        rows = [row | {"path": ""} if str(row["type"]).endswith(".Transformer") else row for row in rows]
        files.write_text(target / "modules.json", json.dumps(rows, indent=2) + "\n")
    for name in modules_after(source):
        shutil.copytree(source / name, target / name, dirs_exist_ok=True)
