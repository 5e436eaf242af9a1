"""The benchmark's alarms: the e-detector against its recursion, tests on windows against enumeration and sums."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from metastable.errors import BadInput
from metastable.monitor.alarm import BETTORS, Alarm
from tests.benchmarks.modules import module
from tests.monitor.test_alarm import K, delays, e_values, streams

# Code of the benchmark programs only; what the product uses of it is tested with the monitor.
pytestmark = pytest.mark.slow

alarms = module("alarms")
ChangeAlarm, WindowedKS, WindowedMMD, _mmd = alarms.ChangeAlarm, alarms.WindowedKS, alarms.WindowedMMD, alarms._mmd


def rise(first, second):
    """sup_s (F_second(s) − F_first(s)), literally."""
    return max(np.mean(second <= s) - np.mean(first <= s) for s in np.concatenate([first, second]))


@pytest.mark.parametrize("seed", range(4))
def test_the_ks_p_value_is_that_of_all_arrangements(seed):
    rng = np.random.default_rng(seed)
    pooled = rng.normal(size=10)
    pooled[:4] += seed / 3
    test = WindowedKS(pooled[4:], window=4, horizon=4)
    test.update(pooled[:4])
    found = rise(pooled[:4], pooled[4:])
    every = [
        rise(pooled[list(chosen)], np.delete(pooled, chosen)) >= found - 1e-12
        for chosen in itertools.combinations(range(10), 4)
    ]
    assert test.p_values == [pytest.approx(np.mean(every), abs=1e-9)]


def mmd_by_pairs(x, y, sigma):
    def k(a, b):
        return math.exp(-float(((a - b) ** 2).sum()) / (2 * sigma**2))

    def within(z):
        return np.mean([k(z[i], z[j]) for i in range(len(z)) for j in range(len(z)) if i != j])

    return within(x) + within(y) - 2 * np.mean([k(a, b) for a in x for b in y])


def test_the_discrepancy_is_its_sum_over_pairs():
    rng = np.random.default_rng(0)
    both = rng.normal(size=(9, 3))
    kernel = np.exp(-((both[:, None] - both[None]) ** 2).sum(axis=2) / (2 * 1.3**2))
    np.fill_diagonal(kernel, 0.0)
    members = np.array([[1, 1, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0, 0, 1]], dtype=bool)
    expected = [mmd_by_pairs(both[row], both[~row], 1.3) for row in members]
    assert _mmd(kernel, members) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_the_mmd_p_value_is_near_that_of_all_arrangements(shift):
    rng = np.random.default_rng(3)
    both = rng.normal(size=(10, 2))
    both[:4] += shift
    sigma = np.median([np.linalg.norm(a - b) for a, b in itertools.combinations(both, 2)])
    found = mmd_by_pairs(both[:4], both[4:], sigma)
    every = [
        mmd_by_pairs(both[list(c)], np.delete(both, c, axis=0), sigma) >= found - 1e-12
        for c in itertools.combinations(range(10), 4)
    ]
    test = WindowedMMD(both[4:], window=4, horizon=4, alpha=0.001)
    test.update(both[:4])
    assert test.permutations == 2000
    assert test.p_values[0] == pytest.approx(np.mean(every), abs=0.04)  # four standard errors of 2000 permutations


def test_clean_streams_raise_at_most_the_promised_share_of_ks_alarms():
    """Negative control: the same windows, each tested at α instead of its share of α."""
    rng, raised, unshared = np.random.default_rng(1), 0, 0
    for _ in range(120):
        test = WindowedKS(rng.normal(size=200), window=50, horizon=500, alpha=0.1)
        raised += test.update(rng.normal(size=500))
        unshared += min(test.p_values) <= 0.1
    assert raised <= binom.ppf(0.999, 120, 0.1)
    assert unshared > 2 * binom.ppf(0.999, 120, 0.1)


def test_clean_streams_raise_at_most_the_promised_share_of_mmd_alarms():
    rng, count = np.random.default_rng(2), 0
    for seed in range(150):
        test = WindowedMMD(rng.normal(size=(40, 3)), window=10, horizon=40, alpha=0.2, seed=seed)
        count += test.update(rng.normal(size=(40, 3)))
    assert count <= binom.ppf(0.999, 150, 0.2)


def test_a_shift_raises_both_at_the_end_of_a_window_and_for_good():
    rng = np.random.default_rng(4)
    scores, features = rng.normal(size=1000), rng.normal(size=(600, 8))
    ks, mmd = WindowedKS(scores, 50, 1000), WindowedMMD(features, 50, 1000)
    assert not ks.update(rng.normal(size=200))
    assert not mmd.update(rng.normal(size=(100, 8)))
    assert not ks.update(rng.normal(size=49) + 1.5)
    assert ks.update(9.0)
    assert mmd.update(rng.normal(size=(50, 8)) * 2)
    assert (ks.raised_at, mmd.raised_at) == (250, 150)
    assert ks.update(rng.normal(size=100))
    assert ks.raised_at == 250


def test_lower_scores_are_no_anomaly():
    rng = np.random.default_rng(5)
    test = WindowedKS(rng.normal(size=500), window=50, horizon=500, alpha=0.05)
    assert not test.update(rng.normal(size=500) - 2)
    assert min(test.p_values) > 0.5


def test_the_same_seed_gives_the_same_p_values_however_the_stream_is_cut():
    rng = np.random.default_rng(6)
    features, stream = rng.normal(size=(60, 4)), rng.normal(size=(60, 4))
    one, other = (WindowedMMD(features, 20, 100, alpha=0.1, seed=9) for _ in range(2))
    one.update(stream)
    for row in stream:
        other.update(row)
    assert one.p_values == other.p_values
    assert len(one.p_values) == 3


def test_equal_features_are_no_anomaly():
    test = WindowedMMD(np.ones((20, 2)), window=5, horizon=10, alpha=0.1)
    assert not test.update(np.ones((10, 2)))
    assert test.p_values == [1.0, 1.0]


def test_levels_add_up_to_alpha():
    test = WindowedKS([0.0, 1.0], window=30, horizon=100, alpha=0.06)
    assert test.level == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: WindowedKS([1.0, 2.0], 1, 10), "window is 1"),
        (lambda: WindowedKS([1.0, 2.0], 20, 10), "horizon is 10"),
        (lambda: WindowedKS([1.0, 2.0], 2, 10, alpha=1), "alpha is 1"),
        (lambda: WindowedKS([[1.0, 2.0]], 2, 10), "one score a text"),
        (lambda: WindowedKS([1.0, 2.0], 2, 10).update([math.nan]), "hold nan"),
        (lambda: WindowedKS([1.0, 2.0], 2, 10).update([[1.0]]), "one score a text"),
        (lambda: WindowedKS([1.0, 2.0], 2, 10).update(np.zeros(11)), "text 11 is beyond the horizon of 10"),
        (lambda: WindowedMMD([1.0, 2.0], 2, 10), "numbers a text"),
        (lambda: WindowedMMD(np.zeros((5, 3)), 2, 10).update([[1.0, 2.0]]), "give 3 numbers a text"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words):
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_change_alarm_is_its_recursion():
    m, rng = 300, np.random.default_rng(6)
    p = np.concatenate([rng.integers(1, m + 2, 40), rng.integers(1, 12, 40)]) / (m + 1)
    tables, R, at = [e_values(m, kappa, 0.05) for kappa in BETTORS], [0.0] * K, []
    alarm = ChangeAlarm(m, run_length=500)
    for t, one in enumerate(p, start=1):
        R = [e[round(one * (m + 1)) - 1] * (r + 1) for e, r in zip(tables, R, strict=True)]
        raised = alarm.update(one)
        assert raised == (sum(R) / K >= 500)
        if raised:
            at.append(t)
            R = [0.0] * K
            assert alarm.log_e == -math.inf
        else:
            assert alarm.log_e == pytest.approx(math.log(sum(R) / K), abs=1e-9)
    assert len(at) == alarm.alarms >= 3
    assert alarm.raised_at == at[-1]


def test_the_change_alarm_keeps_its_run_length_and_is_quicker_late():
    lengths = []
    for p in streams(400, 500, 3000, seed=7):
        alarm = ChangeAlarm(500, run_length=100)
        first = next((t for t in range(0, 3000, 50) if alarm.update(p[t : t + 50])), None)
        # A stream without an alarm counts with its length, which is too short: the mean errs on the strict side.
        lengths.append(3000 if first is None else first + 1)
    assert np.mean(lengths) >= 100
    made = []
    for p in streams(30, 1000, 3500, 1.0, 2000, seed=2):
        alarm = ChangeAlarm(1000, run_length=10_000)
        alarm.update(p[:2000])
        first = next(t for t in range(1, 1500) if alarm.update(p[1999 + t]))
        made.append(first)
    assert np.median(made) < np.median(delays(lambda: Alarm(1000, alpha=0.01), 1.0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ChangeAlarm(50, run_length=0.5), "run_length is 0.5"),
        (lambda: ChangeAlarm(50, run_length=math.inf), "use Alarm"),
        (lambda: ChangeAlarm(50, delta=2), "delta is 2"),
        (lambda: ChangeAlarm(50).update(1.5), "p-value"),
    ],
)
def test_bad_input_of_the_change_alarm(call, words):
    with pytest.raises(BadInput, match=words):
        call()
