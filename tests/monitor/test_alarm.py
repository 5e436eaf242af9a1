"""Alarms: prices against exact laws, capital against a literal double sum, promises against many streams."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from metastable.errors import BadInput
from metastable.monitor.alarm import BETTORS, Alarm, log_payoffs, payoffs, price, steps, worth
from metastable.monitor.conformal import Calibration

K = len(BETTORS)


def ranks_paid(texts, kappa):
    edges = steps(texts)
    return np.repeat(payoffs(edges, kappa), np.diff(edges))


def e_values(texts, kappa, delta):
    """e_j for j = 1 … m + 1."""
    edges = steps(texts)
    return ranks_paid(texts, kappa) / price(payoffs(edges, kappa), np.diff(edges), delta / K)


@pytest.mark.parametrize("kappa", BETTORS)
@pytest.mark.parametrize("m", [1, 7, 200, 1000, 50_000])
def test_payoffs_fall_and_are_fair_to_uniform_ranks(m, kappa):
    f = ranks_paid(m, kappa)
    assert f.shape == (m + 1,)
    assert f.mean() == pytest.approx(1, rel=1e-11)
    assert (np.diff(f) <= 1e-12).all()
    for j in range(1, min(m, 200) + 1):
        assert f[j - 1] == pytest.approx((m + 1) ** (1 - kappa) * (j**kappa - (j - 1) ** kappa), rel=1e-9)


@given(st.integers(1, 10**6))
@settings(max_examples=30)
def test_steps_cover_every_rank_and_stay_fine(m):
    edges = steps(m)
    assert edges[0] == 0
    assert edges[-1] == m + 1
    assert (np.diff(edges) >= 1).all()
    assert (np.diff(edges) <= np.maximum(1, 0.01 * edges[:-1])).all()


@pytest.mark.parametrize("sizes", [(1, 999), (50, 951), (30, 12), (500, 500)])
@pytest.mark.parametrize("delta", [1e-4, 0.001, 0.05])
def test_the_price_of_a_bet_on_two_steps_is_a_beta_quantile(sizes, delta):
    """Σ v Δ = v₂ + (v₁ − v₂) Beta(n₁, n₂)."""
    exact = 0.3 + 4.7 * beta.isf(delta, *sizes)
    assert price(np.array([5.0, 0.3]), np.array(sizes), delta) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (2, 2)])
def test_for_a_handful_of_ranks_the_price_errs_on_the_safe_side(sizes):
    found = price(np.array([5.0, 0.3]), np.array(sizes), 0.01)
    assert 0.3 + 4.7 * beta.isf(0.01, *sizes) <= found <= 5


def test_a_bet_that_cannot_win_costs_what_it_pays():
    assert price(np.array([2.0, 2.0]), np.array([3, 4]), 0.01) == 2


@pytest.mark.parametrize("m", [50, 400])
def test_prices_are_passed_by_the_promised_share_of_calibration_sets(m):
    gaps = np.random.default_rng(0).exponential(size=(20_000, m + 1))
    gaps /= gaps.sum(axis=1, keepdims=True)
    for kappa in BETTORS:
        passed = int((gaps @ e_values(m, kappa, delta=0.06) > 1).sum())
        low, high = binom.ppf([0.0005, 0.9995], 20_000, 0.06 / K)
        assert low <= passed <= high, kappa


def capital_by_double_sum(p, m, delta):
    """E_t for each t, from the formula: every start, every bettor."""
    tables = [e_values(m, kappa, delta) for kappa in BETTORS]
    rest = [0.5 / (1 + math.log(1 + t / 100)) for t in range(len(p) + 1)]
    weights = [rest[t - 1] - rest[t] + (0.5 if t == 1 else 0.0) for t in range(1, len(p) + 1)]
    found = []
    for t in range(1, len(p) + 1):
        total = rest[t]
        for e in tables:
            for s in range(1, t + 1):
                total += weights[s - 1] / K * math.prod(e[round(q * (m + 1)) - 1] for q in p[s - 1 : t])
        found.append(total)
    return found


@pytest.mark.parametrize("m", [30, 300])
def test_the_alarm_is_its_formula(m):
    rng = np.random.default_rng(m)
    p = np.concatenate([rng.integers(1, m + 2, 25), rng.integers(1, m // 10, 15)]) / (m + 1)
    expected = capital_by_double_sum(p.tolist(), m, 0.02)
    alarm = Alarm(m, alpha=0.05, delta=0.02)
    found = []
    for one in p:
        alarm.update(one)
        found.append(alarm.log_e)
    assert found == pytest.approx(np.log(expected).tolist(), abs=1e-9)
    assert alarm.peak == max(found)
    over = [t for t, e in enumerate(expected, start=1) if e >= 1 / 0.03]
    assert alarm.raised_at == (over[0] if over else None)
    assert over or m == 30


def test_one_text_is_a_fair_game_or_worse():
    m = 100
    ends = []
    for j in range(1, m + 2):
        alarm = Alarm(m, alpha=0.1)
        alarm.update(j / (m + 1))
        ends.append(math.exp(alarm.log_e))
    assert 0.5 < np.mean(ends) < 1


def streams(count, m, length, shift=0.0, clean=0, seed=0):
    """Marginal p-values of normal scores, a new calibration set for each stream; a shift after `clean` texts."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        scores = rng.normal(size=length)
        scores[clean:] += shift
        yield Calibration(rng.normal(size=m)).p_values(scores)


def raised(count, m, alarm_of, length=2000):
    return sum(alarm_of().update(p) for p in streams(count, m, length))


@pytest.mark.parametrize(("m", "alpha"), [(500, 0.1), (1000, 0.1), (200, 0.01)])
def test_clean_streams_raise_at_most_the_promised_share_of_alarms(m, alpha):
    assert raised(500, m, lambda: Alarm(m, alpha=alpha)) <= binom.ppf(0.999, 500, alpha)


@pytest.mark.parametrize("m", [100, 200])
def test_bets_as_if_p_values_were_uniform_raise_too_many(m):
    """The reason for the price: the same bets on the same p-values, taken as uniform given the calibration set.

    The shorter the stream and the larger m, the less it shows.
    """
    count = 0
    for p in streams(500, m, 2000):
        gains = np.log(BETTORS) + (np.array(BETTORS) - 1) * np.log(p)[:, None]
        total = np.logaddexp.reduce(np.cumsum(gains, axis=0), axis=1) - math.log(K)
        count += bool((total >= math.log(100)).any())
    assert count > 2 * binom.ppf(0.999, 500, 0.01)


def test_ties_raise_no_more_alarms():
    rng = np.random.default_rng(4)
    count = 0
    for _ in range(300):
        calibration = Calibration(rng.poisson(2.0, size=200))
        count += Alarm(200, alpha=0.2).update(calibration.p_values(rng.poisson(2.0, size=1000)))
    assert count <= binom.ppf(0.999, 300, 0.2)


def delays(make, shift, m=1000, count=30, clean=2000, after=1500):
    found = []
    for p in streams(count, m, clean + after, shift, clean, seed=2):
        alarm = make()
        alarm.update(p)
        found.append(math.inf if alarm.raised_at is None else alarm.raised_at - clean)
    return np.array(found)


def test_a_late_change_is_found_sooner_the_larger_it_is():
    """Standard deviations, and the most texts for the median stream after 2000 clean ones, at α = 0.01."""
    medians = []
    for shift, most in [(0.5, 400), (1.0, 90), (2.0, 22), (3.0, 10)]:
        found = delays(lambda: Alarm(1000, alpha=0.01), shift)
        assert (found > 0).all()
        medians.append(float(np.median(found)))
        assert medians[-1] <= most
    assert medians == sorted(medians, reverse=True)


def test_without_capital_kept_back_the_same_change_is_found_late():
    """All capital at work from the start: the reason for the weights of later starts."""
    tables = np.log([e_values(1000, kappa, 0.005) for kappa in BETTORS])
    found = []
    for p in streams(30, 1000, 3500, 1.0, 2000, seed=2):
        paths = np.cumsum(tables[:, np.rint(p * 1001).astype(int) - 1], axis=1)
        over = np.flatnonzero(np.logaddexp.reduce(paths, axis=0) - math.log(K) >= math.log(200))
        found.append(over[0] + 1 - 2000 if len(over) else math.inf)
    assert np.median(found) > 1.5 * np.median(delays(lambda: Alarm(1000, alpha=0.01), 1.0))


def state(alarm):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(alarm).items()}


def test_a_stream_cut_anywhere_is_bit_identical():
    rng = np.random.default_rng(3)
    p = rng.integers(1, 202, size=9000) / 201
    p[5000:5040] /= 8
    whole = Alarm(200)
    evidence = whole.evidence(p)
    assert whole.raised_log_e == evidence[whole.raised_at - 1] >= whole.threshold
    for cuts in ([1], [5003, 5004], sorted(rng.integers(0, 9000, 30)), [4096]):
        alarm = Alarm(200)
        parts = [alarm.evidence(part) for part in np.split(p, cuts)]
        assert np.concatenate(parts).tolist() == evidence.tolist()
        assert state(alarm) == state(whole)
    one_by_one = Alarm(200)
    assert [float(one_by_one.evidence(float(one))[0]) for one in p[:600]] == evidence[:600].tolist()


@pytest.mark.parametrize(("p", "rises"), [(1 / 501, True), (1.0, False)])
def test_a_million_texts_neither_overflow_nor_vanish(p, rises):
    alarm = Alarm(500)
    assert alarm.update(np.full(1_000_000, p)) is rises
    assert alarm.count == 1_000_000
    e = [e_values(500, kappa, 0.005)[0 if rises else -1] for kappa in BETTORS]
    if rises:
        assert alarm.log_e == pytest.approx(1e6 * math.log(max(e)), rel=1e-4)
    else:
        # What is left after a million lost bets is the capital that has not begun to bet, and a little more.
        assert math.log(0.5 / (1 + math.log(10_001))) < alarm.log_e < math.log(0.5 / (1 + math.log(10_001))) + 0.1


def test_a_million_clean_texts_after_which_a_change_is_still_found():
    alarm = Alarm(500)
    alarm.update(np.random.default_rng(1).integers(1, 502, size=1_000_000) / 501)
    assert alarm.raised_at is None
    assert alarm.update(np.full(12, 1 / 501))


@given(st.lists(st.integers(1, 51), min_size=1, max_size=30), st.integers(0, 29), st.integers(0, 50))
def test_smaller_p_values_never_mean_less_evidence(ranks, place, less):
    place %= len(ranks)
    smaller = list(ranks)
    smaller[place] = max(1, ranks[place] - less)
    one, other = Alarm(50), Alarm(50)
    one.update(np.array(ranks) / 51)
    other.update(np.array(smaller) / 51)
    assert other.log_e >= one.log_e - 1e-9


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.01, math.nan, math.inf, "x", [[0.5]], [0.5, 0.0]])
def test_a_bad_p_value_is_refused_and_changes_nothing(bad):
    alarm = Alarm(50)
    alarm.update([0.5, 0.2])
    before = state(alarm)
    with pytest.raises(BadInput, match="p-value") as caught:
        alarm.update(bad)
    assert "\n" not in str(caught.value)
    assert state(alarm) == before
    assert not alarm.update([])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Alarm(0), "texts is 0"),
        (lambda: Alarm(50.5), "texts is 50.5"),
        (lambda: Alarm(math.inf), "texts is inf"),
        (lambda: Alarm(50, alpha=0), "alpha is 0"),
        (lambda: Alarm(50, alpha=0.01, delta=0.02), "below 0.01"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words):
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_texts_that_are_their_own_documents_are_worth_their_number():
    scores = np.random.default_rng(0).normal(size=500)
    assert worth(scores, np.arange(500)) == pytest.approx(500)
    # Scores that do not depend on the document: the estimate is never above m, and near it on average.
    draw = np.random.default_rng(3)
    found = [worth(draw.normal(size=500), np.repeat(np.arange(50), 10)) for _ in range(200)]
    assert max(found) <= 500
    assert np.mean(found) > 430


def test_texts_that_repeat_their_document_are_worth_the_documents():
    documents = np.repeat(np.arange(60), 10)
    assert worth(np.random.default_rng(1).normal(size=60)[documents], documents) == pytest.approx(60)


def test_the_worth_is_that_of_its_formula():
    draw = np.random.default_rng(2)
    documents = draw.integers(0, 40, 700)
    scores = draw.normal(size=40)[documents] + draw.normal(size=700)
    x = [float(score >= np.quantile(scores, 0.9)) for score in scores]
    q = sum(x) / 700
    squares = sum(sum(x[i] - q for i in range(700) if documents[i] == k) ** 2 for k in range(40))
    assert worth(scores, documents) == pytest.approx(700 / (squares / (700 * q * (1 - q))))


def test_the_price_of_fewer_independent_texts_is_that_of_wider_gaps():
    """Σ v Δ = v₂ + (v₁ − v₂) Beta(c n₁, c n₂), c = (m' + 1)/(m + 1)."""
    c = 0.3
    exact = 0.3 + 4.7 * beta.isf(0.001, 60 * c, 940 * c)
    assert price(np.array([5.0, 0.3]), c * np.array([60, 940]), 0.001) == pytest.approx(exact, rel=1e-7)
    assert np.array_equal(log_payoffs(300, 0.01, 300.0), log_payoffs(300, 0.01))
    assert (log_payoffs(300, 0.01, 60.0) < log_payoffs(300, 0.01)).all()


def test_clean_streams_of_documents_keep_the_promise():
    """Calibrated on 40 documents of 25 texts that are nearly alike. As independent texts they would not keep it."""
    alpha, streams = 0.05, 120

    def drawn(draw, documents):
        labels = np.repeat(np.arange(documents), 25)
        own, other = draw.normal(size=documents), draw.normal(size=len(labels))
        return labels, math.sqrt(0.9) * own[labels] + math.sqrt(0.1) * other

    aware = unaware = 0
    for seed in range(streams):
        draw = np.random.default_rng(seed)
        labels, scores = drawn(draw, 40)
        p = Calibration(scores).p_values(draw.permutation(drawn(draw, 60)[1]))
        aware += Alarm(1000, alpha, independent=worth(scores, labels)).update(p)
        unaware += Alarm(1000, alpha).update(p)
    assert aware <= binom.ppf(0.999, streams, alpha) < unaware


@pytest.mark.parametrize("independent", [0, -1.0, math.nan, 51.0, "many"])
def test_a_worth_that_cannot_be_is_refused(independent):
    with pytest.raises(BadInput, match="independent is"):
        Alarm(50, independent=independent)
