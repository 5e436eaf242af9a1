"""Where a stream changed: against sums over all places one by one, and by how often its interval is right."""

import math

import numpy as np
import pytest

from metastable.errors import BadInput
from metastable.monitor.alarm import payoffs, steps
from metastable.monitor.change_point import LAWS, PlaceEstimate, change_point

TEXTS = 1000


def p_of(u, calibration):
    """Marginal p-values of clean tail probabilities u, ranked among those of calibration texts."""
    return (1 + np.searchsorted(np.sort(calibration), u, side="right")) / (len(calibration) + 1)


def stream(seed, n, begin, law, end=None):
    """P-values among calibration texts of their own; texts from `begin` (counted from 0) up to `end` are shifted."""
    rng = np.random.default_rng(seed)
    calibration, u = rng.random(TEXTS), rng.random(n)
    u[begin:end] = law(rng, len(u[begin:end]))
    return p_of(u, calibration)


def beta(kappa):
    return lambda rng, n: rng.random(n) ** (1 / kappa)


def mixed(part, kappa):
    return lambda rng, n: np.where(rng.random(n) < part, rng.random(n) ** (1 / kappa), rng.random(n))


def slow(p, level):
    """Begin and end from the probability of every pair of places, each with its own product."""
    n, edges = len(p), steps(TEXTS)
    ranks = np.round(np.array(p) * (TEXTS + 1)).astype(int) - 1
    begins, ends = np.zeros(n), np.zeros(n)
    for part, kappa in LAWS:
        density = 1 - part + part * np.repeat(payoffs(edges, kappa), np.diff(edges))[ranks]
        for s in range(n):
            for e in range(s + 1, n + 1):
                weight = (0.5 / n + (0.5 if e == n else 0.0)) * math.prod(density[s:e])
                begins[s] += weight
                ends[e - 1] += weight

    def place(weights):
        order = sorted(range(n), key=lambda i: -weights[i])
        held, within = 0.0, []
        for i in order:
            within.append(i + 1)
            held += weights[i]
            if held >= level * weights.sum():
                break
        return PlaceEstimate(order[0] + 1, min(within), max(within))

    return place(begins), place(ends)


@pytest.mark.parametrize(("n", "begin", "end"), [(24, 15, None), (20, 0, None), (30, 8, 18), (14, 13, None)])
def test_as_over_all_pairs_of_places(n, begin, end):
    p = stream(3, n, begin, beta(0.06), end)
    if begin == 13:
        # One text is no evidence.
        assert change_point(p, TEXTS) is None
        return
    found = change_point(p, TEXTS, level=0.9)
    first, last = slow(p, 0.9)
    assert found.begin == first
    assert found.end == (None if last.high == n else last)
    assert (found.end is None) == (end is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "begin", "law"),
    [(300, 150, beta(0.3)), (300, 20, beta(0.5)), (300, 270, beta(0.2)), (600, 300, mixed(0.3, 0.05))],
    ids=["strong", "early", "late", "some texts"],
)
def test_the_interval_holds_the_place_as_often_as_it_says(n, begin, law):
    found = [change_point(stream(seed, n, begin, law), TEXTS) for seed in range(200)]
    found = [one.begin for one in found if one is not None]
    assert len(found) > 180
    covered = np.mean([one.low <= begin + 1 <= one.high for one in found])
    assert covered > 0.95 - 3 * math.sqrt(0.95 * 0.05 / len(found))
    # And it is no interval of everything.
    assert np.median([one.high - one.low for one in found]) < n / 5


def test_a_clean_stream_reports_none():
    """At most 1 % of streams, whatever their calibration set; 300 streams."""
    reported = [change_point(stream(seed, 400, 400, beta(1.0)), TEXTS) for seed in range(300)]
    assert sum(one is not None for one in reported) <= 8


def test_a_change_that_ended():
    found = [change_point(stream(seed, 400, 100, beta(0.3), 200), TEXTS) for seed in range(60)]
    assert all(one is not None and one.end is not None for one in found)
    assert np.mean([one.end.low <= 200 <= one.end.high for one in found]) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 60)


def test_the_smallest_streams_and_bad_values():
    assert change_point([], TEXTS) is None
    assert change_point([0.5], TEXTS) is None
    with pytest.raises(BadInput, match="p-value"):
        change_point([0.5, 0.0], TEXTS)
