"""Texts of the small tokenizer, and small encoders that read them."""

from __future__ import annotations

import random

import pytest

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
