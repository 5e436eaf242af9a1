"""Causes add up to the whole change; intervals over documents against literal formulas."""

import math

import numpy as np
import pytest

from metastable.encoder.length.causes import agreement, attention_parts, embedding_parts, leave_one_out
from metastable.encoder.length.intervals import jackknife, mean_interval
from metastable.encoder.length.rung import PlaceInDocument


@pytest.fixture
def pieces(meter, documents):
    """Documents of 128 tokens, whole and in four pieces of 32."""

    def made(case):
        own, some = meter(case), documents.first(5)
        parts = [some.piece(number, 32) for number in range(4)]
        early = [own.measure(part, [128]) for part in parts]
        placed = [own.measure(part, [128], PlaceInDocument(30 * number, 1)) for number, part in enumerate(parts)]
        return early, None if own.positions is None else placed, own.measure(some.prefixes(128))

    return made


@pytest.mark.parametrize("case", ["bert", "modernbert"])
def test_parts_add_up(case, pieces):
    early, own, whole = pieces(case)
    parts = attention_parts(early, own, whole)
    alone = np.mean([piece.heads["entropy"] for piece in early], axis=0)
    np.testing.assert_allclose(sum(parts.values()), whole.heads["entropy"] - alone, atol=1e-9)
    np.testing.assert_allclose(parts["more tokens"], math.log(126 / 30), atol=1e-6)
    cosines = embedding_parts(early, own, whole)
    change = leave_one_out(whole.pooled)[0] - leave_one_out(early[0].pooled)[0]
    assert sum(part[0] for part in cosines.values()) == pytest.approx(change, abs=1e-9)
    assert ("positions" in parts) == ("positions" in cosines) == (case == "bert")


def test_agreement_of_a_document_with_its_pieces(pieces):
    early, _, whole = pieces("bert")
    units = [[v / np.linalg.norm(v) for v in piece.pooled] for piece in early]
    for i, own in enumerate(whole.pooled):
        mean = np.mean([piece[i] for piece in units], axis=0)
        expected = mean @ own / np.linalg.norm(mean) / np.linalg.norm(own)
        assert agreement(early, whole)[i] == pytest.approx(expected)


def test_leave_one_out_against_a_loop():
    vectors = np.random.default_rng(0).normal(size=(6, 4))

    def mean_cosine(chosen):
        units = [vectors[i] / np.linalg.norm(vectors[i]) for i in chosen]
        return np.mean([a @ b for i, a in enumerate(units) for j, b in enumerate(units) if i != j])

    value, left_out = leave_one_out(vectors)
    assert value == pytest.approx(mean_cosine(range(6)))
    for i in range(6):
        assert left_out[i] == pytest.approx(mean_cosine([j for j in range(6) if j != i]))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=9)
    left_out = np.array([np.delete(values, i).mean() for i in range(9)])
    value, low, high = jackknife(values.mean(), left_out)
    assert high - value == pytest.approx(1.96 * values.std(ddof=1) / 3)
    assert value - low == pytest.approx(high - value)


def test_intervals_of_means_cover_the_truth():
    draw = np.random.default_rng(0)
    _, low, high = mean_interval(draw.normal(size=(8, 4000)))
    assert ((low <= 0) & (high >= 0)).mean() == pytest.approx(0.95, abs=0.015)
