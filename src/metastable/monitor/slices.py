"""Alarms for slices of a stream (languages, sources, customers), with one promise for all of them together.

**The rule.** Each slice has an alarm of its own that takes its p-values only, and one more alarm takes all p-values.
With a = α − δ (see `alarm`), they are raised when their evidence reaches

    2/a                  for the alarm over all texts,
    2 k (k + 1)/a        for the k-th slice, in the order in which slices appear.

**The promise.** A stream of clean texts raises any of these alarms with probability at most α. Why: there is one
calibration set, so the event G (E[e | calibration] ≤ 1 for all bettors), which fails with probability at most δ, is the
same for all alarms. Let a clean text have, given its slice and all texts before it, the law of the calibration texts.
On G, the evidence of each slice is then a supermartingale in the time of the whole stream: it starts from 1, and stands
still at texts of other slices. By Ville's inequality the k-th slice ever raises an alarm with probability at most
a/(2 k (k + 1)), whatever value the k-th slice turns out to have. The sum is a/2 + (a/2) Σ_k 1/(k (k + 1)) = a, and
a + δ = α.

If some slices are shifted, the same sum without them bounds the probability that a clean slice raises an alarm.

**The assumption** is stronger than that of one alarm: clean texts *of each slice* are like the calibration texts. If
the calibration texts are English and German, neither of these slices is like them as a whole, and both may raise an
alarm though nothing has changed. Then use one baseline per language.

At most 1000 values have a slice of their own; further values share one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metastable.monitor.alarm import Alarm
from metastable.monitor.episodes import Episodes, Evidence, Place

# Values with a slice of their own.
MOST = 1000

Value = str | int | None


class Slice:
    """One slice: its value, its alarms and its counts.

    number : k, from 1, in the order in which slices appear
    others : whether this is the slice that further values share; its value is then None
    """

    def __init__(self, number: int, value: Value, others: bool, episodes: Episodes) -> None:
        self.number, self.value, self.others, self.episodes = number, value, others, episodes
        self.scored = self.strange = 0

    def to_dict(self) -> dict[str, Any]:
        alarm = self.episodes.alarm
        return {
            "slice": self.value,
            "others": self.others,
            "scored": self.scored,
            "strange": self.strange,
            "episode": alarm.episode,
            "log_e": alarm.log_e,
            "threshold_log_e": alarm.threshold,
            **self.episodes.to_dict(),
        }


class Slices:
    """The slices of a stream. Parameters are those of the alarm without slices; `overall` is the one over all texts."""

    def __init__(
        self, texts: int, alpha: float, reset_after: int | None = None, independent: float | None = None
    ) -> None:
        whole = Alarm(texts, alpha)
        self._independent = independent
        self._texts, self._delta, self._strange_at, self._reset_after = texts, whole.delta, alpha, reset_after
        self._half = (whole.alpha - whole.delta) / 2
        self.overall = self._episodes(1.0)
        self._own: dict[Value, Slice] = {}
        self._others: Slice | None = None

    def __iter__(self) -> Any:
        """All slices, in the order in which they appeared."""
        return iter([*self._own.values(), *([] if self._others is None else [self._others])])

    def _episodes(self, weight: float) -> Episodes:
        """Alarms that a clean stream raises with probability at most weight · (α − δ)/2, given the calibration set."""
        alpha = self._delta + weight * self._half
        return Episodes(self._texts, alpha, self._delta, self._reset_after, self._strange_at, self._independent)

    def of(self, value: Value) -> Slice:
        """The slice of a value. A value that is new gets the next number."""
        known = self._own.get(value)
        if known is not None:
            return known
        if len(self._own) < MOST:
            found = self._own[value] = self._new(len(self._own) + 1, value, False)
            return found
        if self._others is None:
            self._others = self._new(MOST + 1, None, True)
        return self._others

    def _new(self, number: int, value: Value, others: bool) -> Slice:
        return Slice(number, value, others, self._episodes(1 / (number * (number + 1))))

    def take(self, p: np.ndarray, strange: np.ndarray, places: Sequence[Place], values: Sequence[Value]) -> Evidence:
        """Give p-values to the alarms of their slices, in their order. values : one for each p-value."""
        found = Evidence(np.empty(len(p)), np.empty(len(p), dtype=np.int64))
        rows: dict[int, tuple[Slice, list[int]]] = {}
        for row, value in enumerate(values):
            own = self.of(value)
            rows.setdefault(own.number, (own, []))[1].append(row)
        for own, at in rows.values():
            evidence = own.episodes.take(p[at], strange[at], [places[row] for row in at])
            own.scored += len(at)
            own.strange += int(strange[at].sum())
            found.log_e[at], found.episode[at] = evidence.log_e, evidence.episode
            found.rows += [at[row] for row in evidence.rows]
        found.rows.sort()
        return found
