"""The warning of dependence: exact moments, its level on independent streams with and without shifts, its power."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binom, norm

from metastable.monitor.conformal import Calibration
from metastable.monitor.dependence import BLOCK, DROPPED, FIRST, LEVEL, Dependence, correlation


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, 6], [1, 1, 2, 3, 3, 3], [1, 1, 1, 1, 1, 2]])
def test_over_all_orders_of_a_block_the_statistic_has_mean_0_and_variance_1(values):
    z = np.array([correlation(np.array(order, dtype=float)) for order in permutations(values)])
    assert z.mean() == pytest.approx(0, abs=1e-12)
    assert (z**2).mean() == pytest.approx(1)


def test_alike_neighbours_are_positive_and_equal_values_say_nothing():
    assert correlation(np.linspace(0, 1, BLOCK)) > 4
    assert correlation(np.tile([0.1, 0.9], BLOCK // 2)) < -4
    assert correlation(np.full(BLOCK, 0.3)) is None


def scores(rng, phi, length):
    """An autoregression of order 1 with standard normal marginals."""
    noise = rng.normal(size=length)
    found = np.empty(length)
    found[0] = noise[0]
    for t in range(1, length):
        found[t] = phi * found[t - 1] + np.sqrt(1 - phi**2) * noise[t]
    return found


def streams(count, length, phi=0.0, shifts=(), drift=0.0, seed=0):
    """P-values. shifts : (begin, end) of parts that are shifted by 4 standard deviations, as shares of the length"""
    rng = np.random.default_rng(seed)
    calibration = Calibration(rng.normal(size=500))
    for _ in range(count):
        found = scores(rng, phi, length) + np.linspace(0, drift, length)
        for begin, end in shifts:
            found[int(begin * length) : int(end * length)] += 4
        yield calibration.p_values(found)


def warned(p):
    return Dependence().update(p)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"shifts": [(0.51, 1)]},
        {"shifts": [(0.31, 0.52), (0.83, 1)]},
        {"drift": 3.0},
    ],
    ids=["clean", "one change", "three changes", "drift"],
)
@pytest.mark.parametrize("length", [260, 1100])
def test_independent_streams_are_seldom_warned_of_whether_they_shift_or_not(length, kind):
    count = 300
    assert sum(map(warned, streams(count, length, **kind))) <= binom.ppf(0.999, count, LEVEL)


def test_without_dropped_blocks_shifts_would_be_warned_of():
    """The reason for dropping blocks."""
    count, hits = 300, 0
    for p in streams(count, FIRST * BLOCK, shifts=[(0.19, 0.44), (0.69, 1)]):
        z = sum(correlation(block) or 0.0 for block in p.reshape(-1, BLOCK))
        hits += z / np.sqrt(FIRST) > norm.isf(LEVEL / 2)
    assert hits > 3 * binom.ppf(0.999, count, LEVEL)


def runs(p):
    """z of the Wald–Wolfowitz runs test in each block: runs above and below the median."""
    above = p > np.median(p, axis=1, keepdims=True)
    n, up = p.shape[1], above.sum(axis=1)
    both = 2.0 * up * (n - up)
    count = 1 + (above[:, 1:] != above[:, :-1]).sum(axis=1)
    return (1 + both / n - count) / np.sqrt(both * (both - n) / (n**2 * (n - 1)))


@pytest.mark.parametrize(("phi", "length", "least"), [(0.3, 1100, 0.9), (0.2, 2100, 0.9)])
def test_alike_neighbours_are_warned_of_more_often_than_by_the_runs_test(phi, length, least):
    """The reason for the choice of the statistic; the runs test gets the same blocks, checks and dropped blocks."""
    count, found, by_runs = 60, 0, 0
    for p in streams(count, length, phi):
        found += warned(p)
        z = runs(p[: len(p) // BLOCK * BLOCK].reshape(-1, BLOCK))
        ends = [FIRST * 2**j for j in range(20) if FIRST * 2**j <= len(z)]
        levels = [LEVEL / (j * (j + 1)) for j in range(1, len(ends) + 1)]
        sums = [np.sort(z[:end])[:-DROPPED].sum() / np.sqrt(end - DROPPED) for end in ends]
        by_runs += any(one > norm.isf(level) for one, level in zip(sums, levels, strict=True))
    print(f"autocorrelation {phi}, {length} texts: warned of {found} of {count} streams, by runs {by_runs}")
    assert found >= least * count
    assert found > by_runs


def test_texts_of_one_document_in_their_order_are_warned_of():
    rng = np.random.default_rng(5)
    calibration = Calibration(rng.normal(size=500))
    count, found = 30, 0
    for _ in range(count):
        level = np.repeat(rng.normal(size=210), 10)
        found += warned(calibration.p_values(np.sqrt(0.3) * level + np.sqrt(0.7) * rng.normal(size=2100)))
    assert found >= 0.9 * count


def test_cuts_of_the_stream_do_not_matter_and_the_warning_stays():
    (p,) = streams(1, 3000, phi=0.4)
    whole = Dependence()
    assert whole.update(p)
    assert whole.warned_at % BLOCK == 0
    parts = Dependence()
    said = [parts.update(part) for part in np.split(p, [1, 40, 41, 700, 701, 2999])]
    assert parts.to_dict() == whole.to_dict()
    assert said == sorted(said)
    one_by_one = Dependence()
    for number, one in enumerate(p, start=1):
        if one_by_one.update(np.array([one])):
            assert number == whole.warned_at
            break


def test_equal_p_values_are_no_evidence():
    found = Dependence()
    assert not found.update(np.full(5000, 1 / 501))
    assert found.blocks == 0
    assert not found.to_dict()["warned"]
    assert found.to_dict()["neighbours"] == {"text": None, "z": None, "level": LEVEL}
