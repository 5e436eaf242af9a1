"""Slices: one promise for all alarms together, evidence of each slice as if it were alone, and what slices gain."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from metastable.monitor import slices as module
from metastable.monitor.alarm import Alarm
from metastable.monitor.conformal import Calibration
from metastable.monitor.episodes import Place
from metastable.monitor.slices import Slices


def taken(found, p, values, size=64):
    """Give p-values to all alarms in batches, as the monitor does."""
    rows = []
    for first in range(0, len(p), size):
        part = p[first : first + size]
        places = [Place(number + 1) for number in range(first, first + len(part))]
        found.overall.take(part, part <= 0.01, places)
        own = found.take(part, part <= 0.01, places, values[first : first + size])
        rows += [first + row for row in own.rows]
    return rows


def test_each_slice_has_the_evidence_of_its_own_texts_and_its_share_of_alpha():
    rng = np.random.default_rng(0)
    p, values = rng.integers(1, 502, 900) / 501, rng.choice(["en", "de", None], 900).tolist()
    found = Slices(500, 0.01)
    taken(found, p, values)
    order = list(dict.fromkeys(values))
    assert [own.value for own in found] == order
    share = 0
    for k, own in enumerate(found, start=1):
        mine = p[[value == own.value for value in values]]
        alone = Alarm(500, 0.01)
        alone.update(mine)
        assert own.episodes.alarm.log_e == alone.log_e
        assert (own.scored, own.strange) == (len(mine), int((mine <= 0.01).sum()))
        assert own.episodes.alarm.threshold == pytest.approx(math.log(2 * k * (k + 1) / 0.005))
        share += math.exp(-own.episodes.alarm.threshold)
    assert found.overall.alarm.threshold == pytest.approx(math.log(2 / 0.005))
    assert share + math.exp(-found.overall.alarm.threshold) <= 0.005


def any_raised(found):
    return found.overall.total > 0 or any(own.episodes.total > 0 for own in found)


@pytest.mark.slow
def test_200_clean_streams_keep_the_promise_over_all_slices():
    """At α = 0.2 and with many calibration texts, so that alarms occur. Control: with all of α for each alarm, too many
    streams raise one.
    """
    rng = np.random.default_rng(1)
    m, count, unshared = 20_000, 0, 0
    for _ in range(200):
        p = Calibration(rng.normal(size=m)).p_values(rng.normal(size=1000))
        found = Slices(m, 0.2)
        taken(found, p, rng.integers(0, 30, 1000).tolist(), 1000)
        count += any_raised(found)
    for _ in range(30):
        p = Calibration(rng.normal(size=m)).p_values(rng.normal(size=6000))
        unshared += any(Alarm(m, 0.2).update(mine) for mine in np.split(p, 300))
    print(f"alarms in {count} of 200 clean streams; without sharing alpha in {unshared} of 30")
    assert count <= binom.ppf(0.999, 200, 0.2)
    assert unshared > binom.ppf(0.999, 30, 0.2)


def test_one_shifted_slice_among_ten_is_found_sooner_than_by_the_alarm_over_all_texts():
    rng = np.random.default_rng(2)
    by_slice, overall = [], []
    for _ in range(30):
        calibration = Calibration(rng.normal(size=1000))
        values = rng.integers(0, 10, 6000).tolist()
        scores = rng.normal(size=6000)
        scores[[number >= 1000 and value == 7 for number, value in enumerate(values)]] += 1.5
        p = calibration.p_values(scores)
        found = Slices(1000, 0.01)
        taken(found, p, values, 6000)
        assert {own.value for own in found if own.episodes.total} <= {7}
        first = found.of(7).episodes.first
        by_slice.append(math.inf if first is None else first.place.text - 1000)
        # The whole of α for the one alarm: what a stream without slices has.
        alone = Alarm(1000, 0.01)
        alone.update(p)
        overall.append(math.inf if alone.raised_at is None else alone.raised_at - 1000)
    print(f"median texts until the alarm: {np.median(by_slice)} by the slice, {np.median(overall)} over all texts")
    assert np.median(by_slice) < 0.7 * np.median(overall)


def test_further_values_share_one_slice(monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    found = Slices(500, 0.01)
    values = ["a", "b", "c", "d", "a", "e", None]
    taken(found, np.full(7, 0.5), values)
    rows = [own.to_dict() for own in found]
    assert [(row["slice"], row["others"], row["scored"]) for row in rows] == [
        ("a", False, 2),
        ("b", False, 1),
        ("c", False, 1),
        (None, True, 3),
    ]
    shares = [math.exp(-own.episodes.alarm.threshold) for own in [*found]]
    assert sum(shares) + math.exp(-found.overall.alarm.threshold) <= 0.005


def test_an_alarm_of_a_slice_is_told_at_its_text_of_the_stream():
    values = ["a", "b"] * 60
    p = np.where(np.array(values) == "b", 1 / 501, 0.6)
    p[:40] = 0.5
    found = Slices(500, 0.01, reset_after=3)
    rows = taken(found, p, values)
    own = found.of("b").episodes
    assert [one.place.text - 1 for one in own.raised] == rows
    assert rows[0] > 40
    assert all(values[row] == "b" for row in rows)
    assert own.first.texts == own.first.strange == 3
    assert found.of("a").episodes.total == 0
