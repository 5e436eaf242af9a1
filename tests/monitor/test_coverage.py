"""The check of a baseline on its own calibration texts: counts one by one, exact intervals, and what is called off."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest

from metastable.monitor.baseline_report import render
from metastable.monitor.conformal import Calibration
from metastable.monitor.coverage import CLASSES, coverage, off, share_of, smallest_possible
from metastable.monitor.scoring import ColumnTable


class Ranked:
    """A scorer whose score is a column. `p_value` is twice the marginal one, to tell the two apart."""

    def __init__(self, table):
        self.calibration = Calibration(table.columns["score"][:, 0])
        self.least = 2 / (len(table) + 1)

    def assess(self, table):
        p = self.calibration.p_values(table.columns["score"][:, 0])
        return SimpleNamespace(p_marginal=p, p_value=np.minimum(2 * p, 1))


def made(seed, n=1200, more=0.0):
    """Scores of clean texts; those of more than 40 tokens are larger by `more`."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 50, n)
    scores = rng.normal(size=n) + more * (lengths > 40)
    return ColumnTable({"score": scores[:, None]}, lengths), rng.integers(0, 2, n)


def test_counts_are_those_of_texts_ranked_among_the_other_half():
    table, halves = made(0)
    rows = coverage(Ranked, table, halves)
    scores, lengths = table.columns["score"][:, 0], table.lengths
    p = np.array(
        [
            (1 + sum(scores[halves != half] >= score)) / (1 + sum(halves != half))
            for score, half in zip(scores, halves, strict=True)
        ]
    )
    assert len(rows) == 1 + CLASSES
    assert rows[0]["texts"] == sum(row["texts"] for row in rows[1:]) == len(table)
    for row in rows:
        within = (lengths >= row["least"]) & (lengths <= row["most"])
        assert row["texts"] == within.sum()
        for t in (0.01, 0.05):
            assert row["p_marginal"][f"{t:g}"]["count"] == (p[within] <= t).sum()
            assert row["p_value"][f"{t:g}"]["count"] == (2 * p[within] <= t).sum()
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


@pytest.mark.parametrize(
    ("n", "able", "smallest"), [(600, [True, True], "0.01"), (300, [False, True], "0.05"), (60, [False] * 2, None)]
)
def test_thresholds_that_no_p_value_of_a_half_can_reach_are_told(n, able, smallest):
    """The least p-value of a half is 2/(n/2 + 1) here. A share of 0 would say nothing there."""
    table, halves = made(0, n=n)
    rows = coverage(Ranked, table, halves)
    for row in rows:
        assert [entry["possible"] for entry in row["p_value"].values()] == able
    assert smallest_possible(rows) == smallest


@pytest.mark.parametrize(("count", "n"), [(0, 30), (3, 200), (30, 30), (7, 11)])
def test_intervals_are_exact(count, n):
    found, exact = share_of(count, n), binomtest(count, n).proportion_ci(0.95, "exact")
    assert found["share"] == count / n
    assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_class_of_lengths_that_is_strange_too_often_is_off():
    table, halves = made(1, more=1.0)
    rows = coverage(Ranked, table, halves)
    assert [row["p_marginal"]["0.05"]["off"] for row in rows] == [False, False, False, False, True]


def test_a_good_baseline_is_seldom_called_off():
    """Any row of at most 5 % of tables; 150 tables."""
    found = [coverage(Ranked, *made(seed, n=600)) for seed in range(150)]
    called = sum(any(entry["off"] for row in rows for entry in row["p_marginal"].values()) for rows in found)
    assert called <= 15


def test_off_is_the_tail_of_ranks_of_exchangeable_texts():
    """By simulation: how often so many of 50 texts are beyond the 5th largest of 100."""
    rng = np.random.default_rng(0)
    counts = np.array([(rng.random(50) < np.sort(rng.random(100))[4]).sum() for _ in range(20_000)])
    for count in (4, 6, 8):
        tail = (counts >= count).mean()
        # p ≤ 0.05 is rank 5 of 101.
        assert not off(count, 50, 100, 0.05, 0.85 * tail)
        assert off(count, 50, 100, 0.05, 1.15 * tail)


def test_one_half_alone_is_no_check():
    table, halves = made(2)
    assert coverage(Ranked, table, np.zeros_like(halves)) == []


def test_the_page_shows_no_share_that_had_to_be_0(small_baseline):
    page, rows = render(small_baseline), small_baseline.facts["coverage"]["light"]
    assert [entry["possible"] for entry in rows[0]["p_value"].values()] == [False, True]
    share = 100 * rows[0]["p_value"]["0.05"]["share"]
    assert "have p ≤ 0.05" in page
    assert f"{share:.1f}" in page
    assert re.search(r"<td[^>]*>–</td>", page)
    assert "each half has too few texts" in page
    assert "on average its words are like those of spoilt texts" in page
