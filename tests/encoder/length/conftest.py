"""Long texts of the small tokenizer, and small encoders that read them."""

from __future__ import annotations

import random

import pytest

import metastable as ms
from metastable.encoder.length.documents import read_documents
from metastable.encoder.length.rung import LengthMeter
from metastable.encoder.load import load
from metastable.encoder.texts import TextCounts
from tests.conftest import WORDS
from tests.encoder.models import tiny

LIMIT = 128
# In RoBERTa's line of models two positions of the table are not used.
TABLE = {"mpnet": LIMIT + 2, "roberta": LIMIT + 2}


def encoder(case):
    return tiny(case, max_position_embeddings=TABLE.get(case, LIMIT))


@pytest.fixture(scope="session")
def long_texts():
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(130, 150))) for _ in range(12)]


@pytest.fixture(scope="session")
def documents(tokenizer, long_texts):
    return read_documents(tokenizer, long_texts, LIMIT, TextCounts())[0]


@pytest.fixture
def meter(tokenizer):
    """A function: the meter of a small encoder of a family, or of a model."""

    def made(case, pooling="mean", batch_size=5):
        model = encoder(case) if isinstance(case, str) else case
        return LengthMeter(load(model, tokenizer=tokenizer), pooling, batch_size)

    return made


@pytest.fixture(scope="session")
def queries(long_texts):
    return [" ".join(text.split()[:6]) for text in long_texts]


@pytest.fixture(scope="session")
def found(tokenizer, long_texts, queries):
    """A result with queries and with every table."""
    return ms.length(encoder("bert"), long_texts, queries, tokenizer=tokenizer)
