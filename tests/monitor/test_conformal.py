"""Conformal p-values: literal counts, exact laws, and guarantees measured over many calibration sets."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, chisquare

from metastable.errors import BadInput
from metastable.monitor.conformal import Calibration, Surprise, ladder, needed, worst

few = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


def combine(surprises):
    """Fisher's −2 Σ log p, as a score."""
    return 2 * np.asarray(surprises).sum(axis=-1)


@given(few, few)
def test_p_values_are_counted_ties_and_all(own, new):
    for s, found in zip(new, Calibration(own).p_values(new), strict=True):
        assert found == (1 + sum(c >= s for c in own)) / (len(own) + 1)


def test_one_column_ranks_any_shape():
    calibration = Calibration([1.0, 2.0, 3.0])
    assert calibration.p_values([[0.0, 1.5], [2.0, math.inf]]).tolist() == [[1.0, 0.75], [0.75, 0.25]]
    assert calibration.p_values(2.5).shape == ()


def test_p_values_are_uniform_and_larger_with_ties():
    rng = np.random.default_rng(8)
    scores = rng.normal(size=(20_000, 20))
    tied = rng.integers(0, 4, size=(20_000, 20))
    p, larger = (np.array([float(Calibration(row[1:]).p_values(row[0])) for row in own]) for own in (scores, tied))
    counts = np.bincount(np.rint(20 * p).astype(int), minlength=21)[1:]
    assert chisquare(counts).pvalue > 0.001
    assert chisquare(np.bincount(np.rint(20 * larger).astype(int), minlength=21)[1:]).pvalue < 1e-6
    for t in np.arange(1, 21) / 20:
        assert np.mean(larger <= t + 1e-9) <= t + 0.012  # four standard errors


def conditional(calibration, scores, delta=0.1):
    return ladder(calibration.texts, delta)[calibration.ranks(scores) - 1]


def violated(m, sets, p_of, draw=None, tail=None):
    """The share of calibration sets with P(p ≤ t | set) > t for some t, for scores with P(S > s) = tail(s)."""
    rng = np.random.default_rng(3)
    draw, tail = draw or (lambda: rng.random(m)), tail or (lambda s: 1 - s)
    bad = 0
    for _ in range(sets):
        scores = draw()
        # Every score above c is at least as extreme as one just above c, and its p-value at most that one's.
        bad += bool((tail(scores) > p_of(Calibration(scores), np.nextafter(scores, np.inf)) + 1e-12).any())
    return bad


@pytest.mark.parametrize("m", [20, 200, 1000])
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_conditional_p_values_keep_their_promise_and_little_more(m, delta):
    bad = violated(m, 1000, lambda c, s: conditional(c, s, delta))
    assert bad <= binom.ppf(0.999, 1000, delta)
    # Simes is an equality for independent scores, so 0.9 δ of the sets must break the ladder.
    assert bad >= binom.ppf(0.001, 1000, 0.9 * delta)


def test_conditional_p_values_with_ties():
    rng = np.random.default_rng(4)
    bad = violated(
        50, 1000, lambda c, s: conditional(c, s), lambda: rng.integers(0, 5, 50) / 1.0, lambda s: 0.8 - s / 5
    )
    assert bad <= binom.ppf(0.999, 1000, 0.1)


def test_marginal_p_values_do_not_keep_that_promise():
    assert violated(200, 300, lambda c, s: c.p_values(s)) > 200


@pytest.mark.parametrize("m", [1, 2, 3, 10, 41])
def test_the_ladder_is_its_formula(m):
    delta, k = 0.1, m // 2
    for j, found in enumerate(ladder(m, delta)[:-1], start=1):
        bounds = [1.0, (j - 1) / m + math.sqrt(math.log(1 / (0.1 * delta)) / (2 * m))]
        if k and m - j + 1 >= k:
            product = math.prod(Fraction(m - j + 1 - i, m - i) for i in range(k))
            bounds.append(1 - (0.9 * delta * float(product)) ** (1 / k))
        assert found == pytest.approx(min(bounds), abs=1e-12)


@given(st.integers(1, 3000), st.floats(1e-6, 0.5))
@settings(max_examples=50)
def test_the_ladder_rises_to_1_above_the_marginal_p_values(m, delta):
    b = ladder(m, delta)
    assert b.shape == (m + 1,)
    assert b[-1] == 1
    assert (np.diff(b) >= 0).all()
    assert (b[:-1] > np.arange(1, m + 1) / (m + 1) - 1e-12).all()


def test_simes_is_sharper_for_small_p_than_dkw_alone():
    assert ladder(1000, 0.1)[0] == pytest.approx(1 - 0.09 ** (1 / 500), rel=1e-9)
    assert ladder(1000, 0.1)[0] < math.sqrt(math.log(10) / 2000) / 7


@pytest.mark.parametrize(("alpha", "delta"), [(0.01, 0.1), (0.05, 0.01), (0.2, 0.1), (0.6, 0.2), (0.9, 0.1)])
def test_needed_is_the_least_number(alpha, delta):
    m = needed(alpha, delta)
    assert ladder(m, delta)[0] <= alpha
    assert all(ladder(fewer, delta)[0] > alpha for fewer in range(max(1, m - 30), m))


def test_needed_for_the_smallest_alpha_is_a_number():
    assert needed(1e-170, 0.1) > needed(1e-9, 0.1) > 1e9


def layered(rng, n, k=6, common=0.97):
    """Scores of k layers that share most of their noise, on unlike scales."""
    shared = rng.normal(size=(n, 1))
    z = math.sqrt(common) * shared + math.sqrt(1 - common) * rng.normal(size=(n, k))
    return np.exp(z * np.linspace(0.2, 2, k))


def shares(join, sets=2500, level=0.05, fit=40, m=99):
    """How often each rule's p-value for a clean text is at most `level`: conformal, and its classical form."""
    rng = np.random.default_rng(11)
    hits = np.zeros(2)
    for _ in range(sets):
        scores = layered(rng, fit + m + 1)
        surprise = Surprise(scores[:fit])
        found = surprise(scores[fit:])
        p = Calibration(join(found[:-1])).p_values(join(found[-1]))
        k = scores.shape[1]
        own = np.array([Calibration(scores[fit:-1, i]).p_values(scores[-1, i]) for i in range(k)])
        classical = chi2.sf(-2 * np.log(own).sum(), 2 * k) if join is combine else k * own.min()
        hits += [p <= level + 1e-12, classical <= level]
    return hits, sets, level


def test_combined_detectors_are_exact_under_strong_dependence_and_raw_fisher_is_not():
    (exact, raw), sets, level = shares(combine)
    assert binom.ppf(0.001, sets, level) <= exact <= binom.ppf(0.999, sets, level)
    assert raw > 2 * level * sets


def test_the_worst_layer_is_exact_under_strong_dependence_and_bonferroni_wastes_it():
    (exact, bonferroni), sets, level = shares(worst)
    assert binom.ppf(0.001, sets, level) <= exact <= binom.ppf(0.999, sets, level)
    assert bonferroni < level * sets / 2


def test_fitting_on_the_calibration_texts_is_not_exact():
    """The reason for the split: a surprise that has seen the calibration texts and not the new one is unfair."""
    rng = np.random.default_rng(12)
    hits = 0
    for _ in range(2000):
        scores = rng.normal(size=(20, 12))
        found = Surprise(scores[:-1])(scores)
        hits += float(Calibration(worst(found[:-1])).p_values(worst(found[-1]))) <= 0.05 + 1e-12
    assert hits > binom.ppf(0.999, 2000, 0.05)


def test_the_least_corrected_p_value_over_layers_is_that_of_the_worst():
    rng = np.random.default_rng(1)
    scores = layered(rng, 500)
    surprise = Surprise(scores[:200])
    calibration = Calibration(worst(surprise(scores[200:400])))
    found = surprise(scores[400:] * np.array([1, 1, 4, 1, 1, 1]))
    by_layer = calibration.p_values(found)
    overall = calibration.p_values(worst(found))
    assert by_layer.shape == (100, 6)
    assert (by_layer.min(axis=1) == overall).all()
    assert (by_layer[:, 2] <= 0.05).sum() > 20


def test_surprise_is_minus_log_p_at_fitted_scores_that_are_apart():
    scores = np.random.default_rng(2).permutation(np.sinh(np.linspace(-3, 2, 50)))[:, None]
    expected = np.array([-math.log((1 + (scores > s).sum()) / 51) for s in scores])
    gaps = np.diff(np.sort(scores[:, 0]))
    assert gaps.min() < 0.05 * np.subtract(*np.quantile(scores, [0.75, 0.25]))
    found = Surprise(scores)(scores)[:, 0]
    upper = scores[:, 0] > 1.5
    assert found[upper] == pytest.approx(expected[upper])
    # Between knots it is off by less than the next rank.
    assert np.abs(found - expected).max() < 0.25


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=60, unique=True))
def test_surprise_amplifies_no_rounding(own):
    """Between two knots surprise rises by at most log(n + 1), over at least a share of the interquartile range."""
    scores = np.array(own)
    spread = float(np.subtract(*np.quantile(scores, [0.75, 0.25])))
    surprise = Surprise(scores[:, None])
    new = np.linspace(-6, scores.max(), 300)
    rises = np.diff(surprise(new[:, None])[:, 0]) / np.diff(new)
    assert (rises <= math.log(len(own) + 1) / (0.05 * spread) * (1 + 1e-6) + 1e-9).all()


def test_surprise_beyond_the_largest_score_follows_an_exponential_tail():
    scores = np.random.default_rng(2).exponential(3.0, size=(20_000, 1))
    found = Surprise(scores)([[60.0], [90.0]])[:, 0]
    # For an exponential law of mean 3 it is s/3.
    assert found == pytest.approx([20, 30], rel=0.1)


@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=20), st.lists(st.floats(-9, 9), min_size=2))
def test_surprise_never_falls_as_the_score_rises(own, new):
    surprise = Surprise(np.array(own)[:, None])
    found = surprise(np.sort(new)[:, None])[:, 0]
    assert (np.diff(found) >= 0).all()
    assert (found >= 0).all()
    far = surprise([[max(own) + 1], [max(own) + 2]])[:, 0]
    assert far[1] > far[0] > surprise([[max(own)]])[0, 0] - 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Calibration([]), r"shape \(0,\)"),
        (lambda: Calibration([1.0, math.nan]), r"hold nan at \[1\]"),
        (lambda: Calibration([1.0, math.inf]), r"hold inf at \[1\]"),
        (lambda: Calibration(["a"]), "not an array of numbers"),
        (lambda: Calibration([1.0]).p_values([math.nan]), r"hold nan at \[0\]"),
        (lambda: Surprise([1.0]), r"shape \(1,\)"),
        (lambda: Surprise([[1.0]])([[1.0, 2.0]]), "the 1 scores of a text"),
        (lambda: Calibration([[1.0, 2.0]]), r"shape \(1, 2\)"),
        (lambda: ladder(5, delta=0.0), "delta is 0.0"),
        (lambda: needed(1.5, 0.1), "alpha is 1.5"),
        (lambda: needed(0.1, delta="x"), "delta is 'x'"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words):
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
