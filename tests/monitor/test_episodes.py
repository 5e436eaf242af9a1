"""Alarms that are raised again: promises over many clean streams, evidence against a literal reference, any cuts."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.conformal import Calibration
from metastable.monitor.episodes import KEPT, Episodes, Place


def taken(episodes, p, start=0):
    places = [Place(start + number, 2 * (start + number)) for number in range(1, len(p) + 1)]
    return episodes.take(np.asarray(p), np.asarray(p) <= 0.01, places)


def reference(p, texts, alpha, n):
    """One text at a time: (evidence, episode) after each, the texts that raised, and the evidence after each alarm."""
    alarm, episode, since, own = Alarm(texts, alpha), 1, None, None
    evidence, raised, after = [], [], []
    for number, one in enumerate(p, start=1):
        alarm.update(one)
        evidence.append((alarm.log_e, episode))
        if since is not None:
            own.update(one)
            since += 1
        elif alarm.raised_at is not None:
            raised.append(number)
            own, since = Alarm(texts, alpha), 0
            after.append(own)
        if since == n:
            alarm, episode, since = Alarm(texts, alpha), episode + 1, None
    return evidence, raised, after


def shifting(m, parts, seed=0):
    """P-values: clean and shifted parts in turn."""
    rng = np.random.default_rng(seed)
    laws = [rng.integers(1, m + 2, n) if i % 2 == 0 else rng.integers(1, 8, n) for i, n in enumerate(parts)]
    return np.concatenate(laws) / (m + 1)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_episodes_are_alarms_that_begin_anew(n):
    p = shifting(500, (60, 50, 700, 30, 100))
    episodes = Episodes(500, 0.01, reset_after=n)
    found = taken(episodes, p)
    evidence, raised, after = reference(p, 500, 0.01, n)
    assert list(zip(found.log_e.tolist(), found.episode.tolist(), strict=True)) == evidence
    assert [row + 1 for row in found.rows] == raised == [one.place.text for one in episodes.raised]
    assert [one.place.line for one in episodes.raised] == [2 * number for number in raised]
    assert [one.log_e for one in episodes.raised] == [evidence[number - 1][0] for number in raised]
    assert len(raised) > 1
    for one, own, start in zip(episodes.raised, after, raised, strict=True):
        following = p[start : start + n]
        assert (one.texts, one.strange) == (len(following), int((following <= 0.01).sum()))
        assert one.after.log_e == own.log_e
        assert one.persists == (own.raised_at is not None)


def state(episodes):
    alarms = [(one.episode, one.place, one.log_e, one.texts, one.strange, one.persists) for one in episodes.raised]
    own = episodes.alarm
    return alarms, own.episode, own.count, own.log_e, own.peak, own.raised_at, episodes.to_dict()


@given(st.lists(st.integers(0, 940), max_size=8), st.sampled_from([1, 20, 300]))
@settings(max_examples=40, deadline=None)
def test_a_stream_cut_anywhere_is_bit_identical(cuts, n):
    p = shifting(500, (60, 50, 700, 30, 100))
    whole = Episodes(500, 0.01, reset_after=n)
    expected = taken(whole, p)
    parts = Episodes(500, 0.01, reset_after=n)
    edges = [0, *sorted(cuts), len(p)]
    found = [taken(parts, p[a:b], a) for a, b in pairwise(edges)]
    assert np.concatenate([part.log_e for part in found]).tolist() == expected.log_e.tolist()
    assert np.concatenate([part.episode for part in found]).tolist() == expected.episode.tolist()
    assert [a + row for part, a in zip(found, edges, strict=False) for row in part.rows] == expected.rows
    assert state(parts) == state(whole)


def test_without_a_reset_there_is_the_one_alarm_as_before():
    p = shifting(500, (60, 50, 700, 30, 100))
    alone, episodes = Alarm(500, 0.01), Episodes(500, 0.01)
    assert taken(episodes, p).log_e.tolist() == alone.evidence(p).tolist()
    assert [one.place.text for one in episodes.raised] == [alone.raised_at]
    assert episodes.first.to_dict()["after"] is None
    assert (episodes.episode, episodes.total) == (1, 1)


def test_a_shift_that_comes_back_gives_a_second_alarm_and_one_that_stays_persists():
    episodes = Episodes(500, 0.01, reset_after=30)
    taken(episodes, shifting(500, (100, 12, 400, 12, 200), seed=1))
    first, second = episodes.raised
    assert 100 < first.place.text <= 112
    assert 512 < second.place.text <= 524
    assert (first.episode, second.episode, episodes.episode) == (1, 2, 3)
    stays = Episodes(500, 0.01, reset_after=30)
    taken(stays, shifting(500, (100, 400), seed=1))
    finished = [one for one in stays.raised if one.texts == 30]
    assert all(one.persists and one.strange > 10 for one in finished)
    assert len(finished) > 5


CALIBRATIONS, STREAMS, M, ALPHA = 20, 10, 300, 0.2


def clean_streams(length, seed=0):
    """P-values of clean streams, each of a calibration set that it shares with nine others."""
    rng = np.random.default_rng(seed)
    for _ in range(CALIBRATIONS):
        calibration = Calibration(rng.normal(size=M))
        for _ in range(STREAMS):
            yield calibration.p_values(rng.normal(size=length))


def test_200_clean_streams_keep_the_promise_of_the_first_alarm_and_of_later_ones():
    """At α = 0.2, so that alarms occur: P(≥ 1 alarm) ≤ α. A promise per calibration set is kept by all but δ of them.

    Ten streams of one calibration set are not independent, so the bound is for the number of calibration sets.
    """
    alarms = []
    for p in clean_streams(1500):
        episodes = Episodes(M, ALPHA, reset_after=20)
        taken(episodes, p)
        alarms.append(episodes.total)
    by_set = np.array(alarms).reshape(CALIBRATIONS, STREAMS)
    # Given a calibration set in G: each stream raises with probability ≤ α − δ = 0.1. Sets outside G: ≤ δ = 0.1.
    unlucky = (by_set >= 1).sum(axis=1) > binom.ppf(0.999, STREAMS, ALPHA / 2)
    assert unlucky.sum() <= binom.ppf(0.999, CALIBRATIONS, ALPHA / 2 + 0.001)
    assert (by_set >= 1).sum() <= binom.ppf(0.999, CALIBRATIONS * STREAMS, ALPHA)
    assert (by_set >= 2).sum() <= binom.ppf(0.999, CALIBRATIONS * STREAMS, ALPHA / 2 + (ALPHA / 2) ** 2)


def test_a_clean_episode_after_a_shift_keeps_its_promise_and_seldom_says_that_the_shift_persists():
    """200 streams whose first episode ends with certain alarm; what follows is clean. Control: what follows is not."""
    rng = np.random.default_rng(3)
    again, persisting = 0, 0
    for p in clean_streams(1000, seed=1):
        episodes = Episodes(M, ALPHA, reset_after=50)
        shifted = np.full(40, 1 / (M + 1))
        stop = taken(episodes, shifted).rows[0] + 1
        episodes = Episodes(M, ALPHA, reset_after=50)
        taken(episodes, np.concatenate([shifted[:stop], p]))
        again += episodes.total > 1
        persisting += episodes.first.persists
    assert again <= binom.ppf(0.999, 200, ALPHA)
    assert persisting <= binom.ppf(0.999, 200, ALPHA)
    control = Episodes(M, ALPHA, reset_after=50)
    taken(control, np.concatenate([shifted, rng.integers(1, 8, 60) / (M + 1)]))
    assert control.first.persists


def test_memory_is_bounded_however_many_alarms_there_are():
    episodes = Episodes(500, 0.01, reset_after=1)
    taken(episodes, np.full(5000, 1 / 501))
    assert episodes.total > 2 * KEPT
    assert len(episodes.raised) == KEPT
    found = episodes.to_dict()
    assert found["alarms_raised"] == episodes.total
    assert [one["episode"] for one in found["alarms"]] == [1, *range(episodes.total - KEPT + 1, episodes.total + 1)]
    assert all(math.isfinite(one["log_e"]) for one in found["alarms"])


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3"])
def test_a_bad_number_of_texts_is_refused(bad):
    with pytest.raises(BadInput, match="reset_after"):
        Episodes(500, 0.01, reset_after=bad)
