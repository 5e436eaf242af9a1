"""Alarms on streams: how late after a change, and how often without one, beside tests on windows.

A stream is clean texts of the test part in random order, then shifted ones, drawn with replacement. Calibration and
test parts are different documents, dealt anew for each stream.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from alarms import ChangeAlarm, WindowedKS, WindowedMMD
from bench import COMBINATIONS, STREAMED, Clean, scorer

from metastable.monitor.alarm import Alarm
from metastable.monitor.detectors.base import Detector
from metastable.monitor.episodes import Episodes, Place
from metastable.monitor.scoring import ColumnTable, Scorer
from metastable.monitor.slices import Slices

ALPHA, WINDOW = 0.01, 50
CLEAN, LONGEST = 200, 2000
"""Clean streams of at most so many texts."""

RESET, SHARES = 100, (0.6, 0.25, 0.1, 0.05)
"""Texts after an alarm until the evidence starts again, and the shares of the slices of a clean stream."""

BEFORE, AFTER, STREAMS = 500, 500, 20
"""Texts before and after a change, and streams with one."""

MMD_STREAMS = 3
"""Streams that MMD is tried on: a window costs thousands of permutations."""

METHODS = ("alarm", "change alarm", "KS", "MMD")


class Deal:
    """One new deal of the clean documents: a scorer of each setting, and other clean texts in random order."""

    def __init__(self, clean: Clean, detectors: Mapping[str, Detector], seed: int) -> None:
        parts, spoilt = clean.deal(1000 + seed)
        self.seed, self.calibrate = seed, parts["calibrate"]
        own = detectors, parts["adjust"], spoilt, parts["calibrate"], clean.calibrated(1000 + seed)
        self.scorers = {name: scorer(COMBINATIONS[name], *own) for name in STREAMED}
        self.clean = parts["test"][np.random.default_rng(seed).permutation(len(parts["test"]))]

    def watch(self, setting: str, horizon: int, mmd: bool) -> Watch:
        return Watch(self.scorers[setting], self.calibrate, horizon, self.seed if mmd else None)


class Watch:
    """All methods on one stream of at most `horizon` texts; MMD only with a seed for its permutations."""

    def __init__(self, scorer: Scorer, calibrate: ColumnTable, horizon: int, seed: int | None) -> None:
        self.scorer, self.count = scorer, 0
        self.raised: dict[str, int | None] = dict.fromkeys(METHODS[: 3 if seed is None else 4])
        self._alarm = Alarm(scorer.texts, ALPHA, independent=scorer.independent)
        self._change = ChangeAlarm(scorer.texts)
        self._ks = WindowedKS(scorer.calibration.scores, WINDOW, horizon, ALPHA)
        self._mmd = None if seed is None else WindowedMMD(self._features(calibrate), WINDOW, horizon, ALPHA, seed)

    def take(self, texts: ColumnTable) -> None:
        """The next texts of the stream; MMD, which is slow, takes no more once it has raised its alarm."""
        scores = self.scorer.scale(texts).total
        p = self.scorer.calibration.p_values(scores)
        self._alarm.update(p)
        self._ks.update(scores)
        self.raised |= {"alarm": self._alarm.raised_at, "KS": self._ks.raised_at}
        for place, value in enumerate(p):
            # It resets itself, and only the first of its alarms is asked for.
            if self._change.update(value) and self.raised["change alarm"] is None:
                self.raised["change alarm"] = self.count + place + 1
        self.count += len(texts)
        if self._mmd is not None:
            features = self._features(texts)
            for first in range(0, len(features), WINDOW):
                if self._mmd.raised_at is None:
                    self._mmd.update(features[first : first + WINDOW])
            self.raised["MMD"] = self._mmd.raised_at

    def _features(self, table: ColumnTable) -> np.ndarray:
        """The adjusted columns of the setting's detectors, (texts, columns)."""
        members = self.scorer.scale.members
        return np.concatenate([m.first(table.columns[m.name][:, m.places], table.lengths) for m in members], axis=1)


def alarms_with_restarts(p: np.ndarray, texts: int, independent: float | None = None) -> int:
    """How many alarms a stream raises that starts its evidence again after each."""
    found = Episodes(texts, ALPHA, reset_after=RESET, independent=independent)
    found.take(p, p <= ALPHA, [Place(number + 1) for number in range(len(p))])
    return found.total


def alarms_with_slices(p: np.ndarray, texts: int, seed: int, independent: float | None = None) -> int:
    """How many alarms a stream raises in all that is cut into slices at random, the one over all slices included."""
    found, strange = Slices(texts, ALPHA, RESET, independent), p <= ALPHA
    places = [Place(number + 1) for number in range(len(p))]
    values = np.random.default_rng(seed).choice(len(SHARES), size=len(p), p=SHARES).tolist()
    found.overall.take(p, strange, places)
    found.take(p, strange, places, values)
    return found.overall.total + sum(own.episodes.total for own in found)


def clean_streams(deals: list[Deal]) -> dict[str, Any]:
    """By setting and method: in how many clean streams an alarm was raised, and how many alarms there were in all."""
    texts = min(LONGEST, *(len(deal.clean) for deal in deals))
    found: dict[str, Any] = {"streams": len(deals), "texts": texts, "false alarms": {}}
    for setting in STREAMED:
        raised = []
        for place, deal in enumerate(deals):
            watch = deal.watch(setting, texts, place < MMD_STREAMS)
            watch.take(deal.clean[:texts])
            raised.append(watch.raised)
        found["false alarms"][setting] = {
            method: {
                "streams": sum(method in row for row in raised),
                "alarms": sum(row.get(method) is not None for row in raised),
            }
            for method in METHODS
        }
        for method, rows in _life(deals, setting, texts).items():
            found["false alarms"][setting][method] = {
                "streams": len(rows),
                "alarms": sum(row > 0 for row in rows),
                "in all": sum(rows),
            }
    return found


def _life(deals: list[Deal], setting: str, texts: int) -> dict[str, list[int]]:
    """Of each stream, the number of its alarms with restarts, and with restarts and slices."""
    rows: dict[str, list[int]] = {"restarts": [], "slices": []}
    for deal in deals:
        scorer = deal.scorers[setting]
        p = scorer.calibration.p_values(scorer.scale(deal.clean[:texts]).total)
        rows["restarts"].append(alarms_with_restarts(p, scorer.texts, scorer.independent))
        rows["slices"].append(alarms_with_slices(p, scorer.texts, deal.seed, scorer.independent))
    return rows


def changed_streams(deals: list[Deal], shifted: Mapping[str, ColumnTable]) -> dict[str, Any]:
    """By setting, shift and method: the median delay after the change, how many were missed and raised before it."""
    found: dict[str, Any] = {setting: {name: [] for name in shifted} for setting in STREAMED}
    start = min(BEFORE, *(len(deal.clean) // WINDOW * WINDOW for deal in deals))
    for setting, by_shift in found.items():
        for place, deal in enumerate(deals[:STREAMS]):
            before = deal.watch(setting, start + AFTER, place < MMD_STREAMS)
            before.take(deal.clean[:start])
            for name, table in shifted.items():
                # What comes before the change is the same for all shifts, and is watched once.
                watch = copy.deepcopy(before)
                watch.take(table[np.random.default_rng(deal.seed).integers(len(table), size=AFTER)])
                by_shift[name].append(watch.raised)
    return {
        setting: {name: {m: delays(raised, start, m) for m in METHODS} for name, raised in by_shift.items()}
        for setting, by_shift in found.items()
    }


def delays(raised: list[dict[str, int | None]], start: int, method: str) -> dict[str, int | None]:
    """Of streams that change after text `start`: when an alarm was raised, counted from 1.

    delay : the median number of shifted texts until the alarm, over streams that did not raise it before; None if half
        of them or more never did
    """
    own = [found[method] for found in raised if method in found]
    late = sorted(math.inf if at is None else at - start for at in own if at is None or at > start)
    middle = late[len(late) // 2] if late else math.inf
    return {
        "streams": len(own),
        "early": sum(at is not None and at <= start for at in own),
        "missed": sum(at is None for at in own),
        "delay": None if middle == math.inf else int(middle),
    }
