"""Advice: each value and sentence follows from the table, for any numbers in it."""

import dataclasses
import math

import pandas as pd
import pytest

import metastable as ms
from metastable.encoder.length.result import TABLES
from tests.encoder.length.conftest import encoder


@pytest.fixture(scope="module")
def result(tokenizer, long_texts):
    return ms.length(encoder("bert"), long_texts, tokenizer=tokenizer)


def row(n, way="whole", chunk=math.nan, mrr=0.8, gain=None, half=0.02, against=None):
    ends = (math.nan,) * 3 if gain is None else (gain, gain - half, gain + half)
    known = {"n": n, "way": way, "chunk": chunk, "queries": 50, "mrr": mrr, "mrr_low": mrr - 0.1, "mrr_high": mrr + 0.1}
    known |= {"recall_1": 0.5, "recall_5": 0.6, "recall_10": 0.7, "against": math.nan if against is None else against}
    return known | dict(zip(("mrr_gain", "mrr_gain_low", "mrr_gain_high"), ends, strict=True))


def advised(result, rows, **changes):
    table = pd.DataFrame(rows, columns=list(TABLES["retrieval"]))
    changed = dataclasses.replace(result, retrieval=table, **changes)
    return {piece.topic: piece for piece in changed.advice()}


CHUNKS = [row(512, "mean of chunks", 128, 0.6, -0.1), row(512, "maximum over chunks", 128, 0.9, 0.2)]


def whole(*gains, half=0.02):
    lengths = [64 * 2**i for i in range(len(gains))]
    pairs = zip(lengths, gains, strict=True)
    return [
        row(n, mrr=0.8 + (gain or 0), gain=gain, half=half, against=None if gain is None else 64) for n, gain in pairs
    ]


@pytest.mark.parametrize(
    ("gains", "half", "value", "shown"),
    [
        ((None, 0.1, -0.01, -0.3), 0.02, "256 tokens", -0.3),
        ((None, -0.2, 0.1, -0.3), 0.02, "64 tokens", -0.2),
        ((None, 0.1, 0.0, -0.01), 0.02, "at least 512 tokens", -0.01),
        # A small loss is tolerated even if it is certain; one that may be large is not, even if it is uncertain.
        ((None, -0.03, -0.03, -0.03), 0.01, "at least 512 tokens", -0.03),
        ((None, 0.0, -0.03, -0.3), 0.04, "128 tokens or more", -0.03),
    ],
)
def test_the_safe_length_ends_where_a_loss_is_possible(result, gains, half, value, shown):
    found = advised(result, [*whole(*gains, half=half), *CHUNKS], top=512)["safe length"]
    assert found.value == value
    assert "50 queries" in found.sentence
    assert ("undecided" in found.sentence) == value.endswith("or more")
    assert f"{0.8 + shown:.3f}" in found.sentence
    assert f"{shown:+.3f}".replace("-", "−") in found.sentence


def test_chance_decides_nothing(result):
    rows = [dict(each, mrr=0.09, mrr_low=0.05) for each in whole(None, 0.0, 0.0, 0.0)]
    found = advised(result, [*rows, *CHUNKS], top=512)
    assert found["safe length"].value == "not decided"
    assert "chance" in found["safe length"].sentence
    assert "chunks" not in found


def test_few_documents_decide_nothing(result):
    rows = [dict(each, queries=29) for each in (*whole(None, 0.0, 0.0, -0.3), *CHUNKS)]
    found = advised(result, [*rows, dict(row(512, "scores × 1.1", gain=0.1), queries=29)], top=512)
    assert found["safe length"].value == "not decided"
    assert "29 documents" in found["safe length"].sentence
    assert not {"chunks", "temperature"} & set(found)


def test_chunks_are_advised_only_beyond_the_error(result):
    rows = [*whole(None, 0.0, 0.0, -0.3), *CHUNKS]
    found = advised(result, rows, top=512)["chunks"]
    assert found.value == "of 128 tokens, by the closest chunk"
    assert "0.900 instead of 0.700" in found.sentence
    unsure = [*rows[:4], row(512, "mean of chunks", 128, 0.51, 0.01), row(512, "maximum over chunks", 64, 0.5, 0.0)]
    found = advised(result, unsure, top=512)["chunks"]
    assert found.value == "no gain shown"
    assert "not shown to be better" in found.sentence
    assert "chunks of 128" in found.sentence


def test_a_temperature_is_advised_only_beyond_the_error(result):
    rows = [*whole(None, 0.0, 0.0, 0.0), *CHUNKS]
    assert "temperature" not in advised(result, rows, top=512)
    factors = [row(512, "scores × 1.1", mrr=0.81, gain=0.01), row(512, "scores × 1.25", mrr=0.85, gain=0.05)]
    assert advised(result, [*rows, *factors], top=512)["temperature"].value == "scores × 1.25"
    assert advised(result, [*rows, factors[0]], top=512)["temperature"].value == "leave it as it is"


def test_counts_of_heads_are_those_of_the_table(result):
    heads = result.focus.assign(focus_at_start=True, loses_focus_at=math.nan)
    heads.loc[:2, "loses_focus_at"] = 64.0
    found = {piece.topic: piece for piece in dataclasses.replace(result, focus=heads).advice()}["heads"]
    assert found.value == f"3 of {len(heads)} lose focus"
    assert "layer 0 head 0 at 64" in found.sentence


def test_a_forecast_without_skill_says_so(result):
    skill = result.skill.assign(skill_low=-0.1)
    found = {piece.topic: piece for piece in dataclasses.replace(result, skill=skill).advice()}["forecasts"]
    assert found.value.startswith("no better than")
    assert "not better" in found.sentence
    skill = result.skill.assign(skill_low=0.1)
    found = {piece.topic: piece for piece in dataclasses.replace(result, skill=skill).advice()}["forecasts"]
    assert found.value.startswith("better than")
