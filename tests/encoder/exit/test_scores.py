"""Scores against literal formulas, and the coverage of the paired bootstrap."""

import numpy as np
import pytest
from scipy import stats

from metastable.encoder.exit.scores import LEVEL, SCORES, WIDER, Bootstrap, accuracy, macro_f1, r2, spearman, value

RANDOM = np.random.default_rng(1)


def repeated(truth, predicted, counts):
    """The texts of a resample, written out."""
    return np.repeat(truth, counts), np.repeat(predicted, counts)


def literal_f1(truth, predicted):
    found = []
    for c in set(truth) | set(predicted):
        right = sum(t == c and p == c for t, p in zip(truth, predicted, strict=True))
        found.append(2 * right / (sum(truth == c) + sum(predicted == c)))
    return np.mean(found)


LITERAL = {
    accuracy: lambda t, p: np.mean(t == p),
    macro_f1: literal_f1,
    spearman: lambda t, p: stats.spearmanr(t, p).statistic,
    r2: lambda t, p: 1 - ((t - p) ** 2).sum() / ((t - t.mean()) ** 2).sum(),
}


@pytest.mark.parametrize("score", LITERAL)
def test_weights_count_texts(score):
    classes = score in SCORES["classes"].values()
    truth = RANDOM.integers(0, 4, 30).astype(float) if classes else RANDOM.normal(size=30).round(1)
    guess = np.where(RANDOM.random(30) < 0.6, truth, RANDOM.permutation(truth))
    counts = RANDOM.multinomial(30, np.full(30, 1 / 30), size=5)
    wanted = [LITERAL[score](*repeated(truth, guess, row)) for row in counts]
    np.testing.assert_allclose(score(truth, guess, counts.astype(float)), wanted)
    assert value(score, truth, guess) == pytest.approx(LITERAL[score](truth, guess))


def test_equal_predictions_have_no_correlation():
    assert value(spearman, np.arange(5.0), np.zeros(5)) == 0


@pytest.mark.slow
def test_intervals_of_a_difference_cover_it():
    """Two predictors with accuracies 0.8 and 0.75 that are right on partly the same texts."""
    cover, inside = 0, 0
    for repetition in range(300):
        draw = np.random.default_rng(repetition)
        hard = draw.random(120)
        first, second = hard < 0.8, (hard < 0.7) | (draw.random(120) < 1 / 6)
        bootstrap = Bootstrap(np.arange(120), repetition)
        point, low, high = bootstrap.mean(first * 1.0 - second, (-1.0, 1.0))
        cover += low <= 0.05 <= high
        inside += low <= 0.25 <= high
    # 300 repetitions: the standard deviation of a share of 0.95 is 0.013.
    assert abs(cover / 300 - LEVEL) <= 0.035
    assert inside / 300 < 0.1
    # Intervals of cross validation are wider, because probes vary too.
    truth = np.ones(120)
    (_, change), _ = bootstrap.compare(accuracy, truth, [first * 1.0, second * 1.0], 1)
    np.testing.assert_allclose(change, [point, point + WIDER * (low - point), point + WIDER * (high - point)])


@pytest.mark.parametrize("score", [accuracy, macro_f1, spearman, r2])
def test_the_interval_of_a_difference_is_that_of_the_paired_bootstrap_times_one_and_a_half(score):
    """The factor is a promise of the report, so that it is a number here."""
    draw = np.random.default_rng(4)
    truth = draw.integers(0, 3, 200).astype(float)
    first, second = (np.where(draw.random(200) < share, truth, draw.permutation(truth)) for share in (0.9, 0.5))
    (own, change), _ = Bootstrap(np.arange(200), 0).compare(score, truth, [first, second], 1)
    weights = draw.multinomial(200, np.full(200, 1 / 200), size=4000).astype(float)
    values = score(truth, first, weights)
    low, high = np.quantile(values - score(truth, second, weights), [0.025, 0.975])
    # An end of the interval of 1000 resamples has a standard deviation of about 3 % of the width.
    assert (change[2] - change[1]) / (high - low) == pytest.approx(1.5, abs=0.2)
    assert (own[2] - own[1]) / np.subtract(*np.quantile(values, [0.975, 0.025])) == pytest.approx(1.0, abs=0.15)


def test_intervals_are_over_documents():
    """Texts of a document are copies of each other, so that the interval is that of 30 documents and not of 300."""
    truth, guess = RANDOM.integers(0, 2, 30).astype(float), RANDOM.integers(0, 2, 30).astype(float)
    groups = np.repeat(np.arange(30), 10)
    one = Bootstrap(np.arange(30), 0).mean(truth == guess, (0.0, 1.0))
    copies = Bootstrap(groups, 0).compare(macro_f1, np.repeat(truth, 10), [np.repeat(guess, 10)], 0)[0][0]
    single = Bootstrap(np.arange(30), 0).compare(macro_f1, truth, [guess], 0)[0][0]
    np.testing.assert_allclose(copies, single)
    wide = Bootstrap(groups, 0).mean(np.repeat(truth == guess, 10), (0.0, 1.0))
    alone = Bootstrap(np.arange(300), 0).mean(np.repeat(truth == guess, 10), (0.0, 1.0))
    assert wide[2] - wide[1] > 2 * (alone[2] - alone[1])
    assert one[0] == pytest.approx(wide[0])


def test_no_observed_difference_is_no_proof_of_none():
    truth = np.zeros(50)
    (own, change), _ = Bootstrap(np.arange(50), 0).compare(accuracy, truth, [truth.copy(), truth], 1)
    assert own[0] == 1
    assert own[1] < 0.97
    assert change[1] < 0 < change[2]
