"""Exits per text: literal exits and harms, and the promise of learn-then-test in a simulation."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from metastable.encoder.exit import per_text
from metastable.encoder.exit.labelled import paired
from metastable.encoder.exit.per_text import DELTA, THRESHOLDS, accepted, exits, harm, needed
from metastable.encoder.exit.study import select


def test_exits_and_harms_one_by_one():
    draw = np.random.default_rng(0)
    outputs, truth = 2 * draw.normal(size=(4, 50, 3)), draw.integers(0, 3, 50).astype(float)
    left, harmed = exits(outputs, 0.8), harm(outputs, truth, 0.8)
    for text in range(50):
        layer = 4
        for k in range(4):
            p = np.exp(outputs[k, text]) / np.exp(outputs[k, text]).sum()
            if p.max() >= 0.8:
                layer = k + 1
                break
        assert left[text] == layer
        early, full = outputs[layer - 1, text].argmax(), outputs[3, text].argmax()
        assert harmed[text] == (full == truth[text] and early != truth[text])


def test_the_number_of_texts_that_a_promise_needs():
    many = needed(0.02)
    assert binom.cdf(0, many, 0.02) <= DELTA < binom.cdf(0, many - 1, 0.02)
    assert math.isinf(needed(0.0))


@pytest.mark.parametrize("loss", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("many", [20, 148, 149, 200, 500])
def test_a_threshold_that_harms_more_is_accepted_with_a_probability_of_at_most_delta(many, loss):
    """The probability of each number of harmed texts, written out, at the smallest mean harm that is too large."""
    chances = [math.comb(many, k) * loss**k * (1 - loss) ** (many - k) for k in range(many + 1)]
    taken = [accepted([(np.arange(many) < k).astype(float)], loss) for k in range(many + 1)]
    wrong = sum(chance for chance, count in zip(chances, taken, strict=True) if count)
    assert wrong <= DELTA
    # The test has no slack: one harmed text more would be too many.
    assert wrong + chances[sum(taken)] > DELTA


def test_testing_ends_at_the_first_threshold_that_fails():
    good, bad = np.zeros(400), (np.arange(400) < 40).astype(float)
    assert accepted([good, good, bad, good], 0.02) == 2
    assert accepted([bad, good], 0.02) == 0


def test_the_promise_holds():
    """Harms grow along the sequence and pass `loss` in the middle. In few calibrations is a harmful one accepted."""
    loss, rates = 0.05, np.array([0.0, 0.01, 0.03, 0.049, 0.051, 0.08, 0.2])
    broken, useful = 0, 0
    for repetition in range(400):
        draw = np.random.default_rng(repetition).random(500)
        count = accepted([(draw < rate).astype(float) for rate in rates], loss)
        broken += count > 0 and rates[count - 1] > loss
        useful += count >= 2
    # 400 repetitions: a share of 0.05 has a standard deviation of 0.011.
    assert broken / 400 <= DELTA + 0.033
    assert useful / 400 > 0.9


def cloud(seed, many, easy):
    """Features at four depths: a share of the texts is plain at depth 1 already, the others only at depth 3."""
    draw = np.random.default_rng(seed)
    marks = np.arange(many) % 2
    plain = draw.random(many) < easy
    features = 0.3 * draw.normal(size=(many, 4, 4))
    for depth, seen in ((1, plain), (2, plain), (3, np.ones(many, dtype=bool))):
        features[:, depth, 0] += np.where(seen, 4.0 * (2 * marks - 1), 0.0)
    return features, paired([f"text {i}" for i in range(many)], marks.tolist(), None)


def test_exits_are_offered_where_they_save_layers():
    """Most texts can leave at layer 1, but layer 1 is not enough for all of them."""
    found = select(*cloud(0, 900, 0.7), 0.02)
    rule = found["per_text"]
    assert found["layer"] == 3
    assert rule.offered
    assert rule.saved == pytest.approx(1.4, abs=0.1)
    assert rule.gain[1] > 0
    assert rule.accuracy > 0.97
    assert rule.threshold in THRESHOLDS
    assert len(rule.probes) == 3
    fresh, given = cloud(1, 2000, 0.7)
    outputs = np.stack([probe.outputs(fresh[:, 1 + i]) for i, probe in enumerate(rule.probes)])
    assert harm(outputs, given.target().values, rule.threshold).mean() <= 0.02


def test_a_document_is_one_text_for_calibration(monkeypatch):
    """Texts of a document are copies of each other, so that 300 documents are 300 facts and not 900."""
    features, given = cloud(0, 300, 0.7)
    owners, marks = np.repeat(np.arange(300), 3), np.repeat(np.array(given.labels), 3)
    copies = paired([f"text {i}" for i in range(900)], marks.tolist(), owners.tolist())
    sizes = []

    def counted(harms, loss):
        sizes.extend(len(harmed) for harmed in harms)
        return accepted(harms, loss)

    monkeypatch.setattr(per_text, "accepted", counted)
    assert select(features[owners], copies, 0.05)["per_text"].saved > 0
    assert set(sizes) == {60}
    # 60 documents for calibration are too few for this promise, though they have 180 texts.
    assert 60 < needed(0.02) < 180
    assert select(features[owners], copies, 0.02)["per_text"] is None


def test_an_exit_before_the_first_possible_one_is_not_taken():
    """All texts are plain at depth 1, but the first exit is layer 2."""
    features, given = cloud(0, 900, 1.0)
    found = select(features, given, 0.02, first=2)
    assert found["layer"] == 2
    assert set(found["fold_layers"]) == {2}
    assert found["per_text"].saved == pytest.approx(1.0, abs=0.05)
    mixed = select(*cloud(0, 900, 0.7), 0.02, first=2)
    assert mixed["layer"] == 3
    assert mixed["per_text"].saved == pytest.approx(0.7, abs=0.05)
    assert len(mixed["per_text"].probes) == 2


def test_exits_are_not_offered_where_a_fixed_layer_is_as_good():
    found = select(*cloud(0, 900, 1.0), 0.02)
    assert found["layer"] == 1
    assert not found["per_text"].offered
    assert found["per_text"].probes == ()


def test_few_texts_and_numbers_have_no_exits():
    features, given = cloud(0, 300, 0.7)
    assert given.target().classes == (0, 1)
    assert per_text.needed(0.02) > 60
    assert select(features, given, 0.02)["per_text"] is None
    ratings = paired(given.texts, features[:, 3, 0].tolist(), None)
    assert select(features, ratings, 0.02)["per_text"] is None
