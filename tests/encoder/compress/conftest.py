"""Texts of the small tokenizer, small encoders that read them, and a study of all options of one of them."""

from __future__ import annotations

import random

import pytest

import metastable as ms
from metastable.encoder.load import load
from metastable.encoder.texts import batches
from tests.conftest import WORDS
from tests.encoder.models import tiny


@pytest.fixture(scope="session")
def many_texts():
    draw = random.Random(2)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 20))) for _ in range(80)]


@pytest.fixture
def small(tokenizer):
    """A function: a private small encoder of a family."""

    def made(case="bert", **changes):
        return load(tiny(case, **changes), tokenizer=tokenizer).private()

    return made


@pytest.fixture
def dealt(tokenizer, many_texts):
    """Batches of the first texts and of the others."""
    parts = many_texts[:60], many_texts[60:]
    return [list(batches(tokenizer, part, 32, 16)) for part in parts]


@pytest.fixture(scope="session")
def folder(tokenizer, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="session")
def texts(many_texts, tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(many_texts), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def whole(folder, texts):
    """All options of a small encoder."""
    return ms.compress(folder, texts, length=24)
