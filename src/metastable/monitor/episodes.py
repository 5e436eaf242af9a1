"""An alarm that can be raised again: the evidence of a stream in episodes.

An episode begins with evidence 1 and ends N texts after its alarm; the next text begins the next episode. Without N
there is one episode, which does not end.

**The promise.** Let G be the event that E[e | calibration] ≤ 1 for all bettors (see `alarm`). Its probability over
calibration sets is at least 1 − δ. G does not depend on the stream, so δ is spent once, for all episodes together.
Given a calibration set in G:

- The beginning of an episode is a stopping time: it is decided by the texts before it. So, given these texts, the
  evidence of an episode of clean texts is a supermartingale that starts from 1, and it raises an alarm with probability
  at most α − δ, whatever happened before.
- A new episode needs an alarm. So a clean stream raises k alarms or more with probability at most (α − δ)^k.

Over calibration sets, a clean stream ever raises an alarm with probability at most δ + (α − δ) = α, as without
episodes. If a stream has k episodes of clean texts, for example between shifts, any of them raises an alarm with
probability at most δ + k (α − δ) (the union bound), and the expected number of these alarms is at most k (α − δ) on G.
Each single one of them raises it with probability at most α.
There is no promise for an episode with shifted texts in it, because evidence from before the shift ended still counts.

**Does the shift persist?** The N texts after an alarm have evidence of their own, which starts from 1 with the first of
them. If it reaches 1/(α − δ), the shift persists. If these texts are clean, this is said with probability at most α − δ
on G. Otherwise the N texts are too few to say, or the shift has ended: if their evidence is above 1 at the end, it is
not certain whether the shift persists; if it is at most 1, there is no sign of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metastable.arrays import whole
from metastable.monitor.alarm import Alarm

# Alarms that are kept besides the first one: the newest.
KEPT = 100
# P-values that are taken at once. An episode may end among them, and the rest is then taken again.
PIECE = 256


class Place(NamedTuple):
    """A text of the stream: its number among the scored texts, from 1, and its line, if it has one."""

    text: int
    line: int | None = None


def persistence(persists: bool, log_e: float) -> str:
    """Whether the shift persists: "yes", "not certain", or "no sign of it".

    persists : whether the evidence of the texts after the alarm reached the threshold
    log_e : the logarithm of this evidence after the last of these texts
    """
    return "yes" if persists else "not certain" if log_e > 0 else "no sign of it"


@dataclass
class Raised:
    """An alarm, and the texts after it up to the end of its episode.

    episode : number of the episode, from 1
    place : the text that raised the alarm
    log_e : the evidence then
    alpha : texts with a p-value of at most alpha are strange
    texts, strange : texts after the alarm, and strange ones among them
    after : the evidence of these texts alone; None if episodes do not end
    """

    episode: int
    place: Place
    log_e: float
    alpha: float
    after: Alarm | None
    texts: int = 0
    strange: int = 0

    @property
    def persists(self) -> bool:
        """Whether the texts after the alarm are not like the clean texts by their own evidence."""
        return self.after is not None and self.after.raised_at is not None

    def to_dict(self) -> dict[str, Any]:
        own = self.after
        after = None
        if own is not None:
            after = {
                "texts": self.texts,
                "strange": self.strange,
                "expected_at_most": self.alpha * self.texts,
                "log_e": own.log_e,
                "peak_log_e": own.peak,
                "threshold_log_e": own.threshold,
                "persists": self.persists,
            }
        found = {"episode": self.episode, "text": self.place.text, "line": self.place.line, "log_e": self.log_e}
        return found | {"after": after}


@dataclass
class Evidence:
    """What alarms make of p-values: evidence and episode after each, (n,), and the rows that raised an alarm."""

    log_e: np.ndarray
    episode: np.ndarray
    rows: list[int] = field(default_factory=list)


class Episodes:
    """The alarms of one stream.

    texts, alpha, delta, independent : of `Alarm`
    reset_after : N, the texts after an alarm that still belong to its episode; None: the first episode does not end
    strange_at : level at which a text is strange; alpha unless given

    Attributes
    ----------
    alarm : the alarm of the episode that is going on
    first : the first alarm that was raised, or None
    raised : the newest alarms, at most 100
    total : the number of alarms that were raised
    """

    def __init__(
        self,
        texts: int,
        alpha: float = 0.01,
        delta: float | None = None,
        reset_after: int | None = None,
        strange_at: float | None = None,
        independent: float | None = None,
    ) -> None:
        if reset_after is not None:
            reset_after = whole(reset_after, "reset_after", 1, "it must be a number of texts, at least 1")
        self._make = partial(Alarm, texts, alpha, delta, independent=independent)
        self.reset_after = reset_after
        self.strange_at = alpha if strange_at is None else strange_at
        self.alarm: Alarm = self._make()
        self.first: Raised | None = None
        self.raised: deque[Raised] = deque(maxlen=KEPT)
        self.total = 0

    @property
    def episode(self) -> int:
        """The number of the episode that is going on, from 1."""
        return self.alarm.episode

    @property
    def numbers(self) -> list[int]:
        """The texts, among the scored ones, that raised the first alarm and the newest."""
        kept = [one.place.text for one in self.raised]
        return kept if self.first is None or kept[0] == self.first.place.text else [self.first.place.text, *kept]

    def to_dict(self) -> dict[str, Any]:
        """The alarms for JSON: their number, the first one and the newest."""
        kept = list(self.raised)
        if self.first is not None and self.first is not kept[0]:
            kept = [self.first, *kept]
        return {"alarms_raised": self.total, "alarms": [one.to_dict() for one in kept]}

    def take(self, p: np.ndarray, strange: np.ndarray, places: Sequence[Place]) -> Evidence:
        """Take p-values in their order. How a stream is cut into calls changes no bit of the result.

        strange : (n,) of bool; places : one for each p-value
        """
        found = Evidence(np.empty(len(p)), np.empty(len(p), dtype=np.int64))
        start = 0
        while start < len(p):
            alarm, count = self.alarm, self.alarm.count
            piece = p[start : start + PIECE]
            # This may run past the end of the episode. The alarm is then not used again.
            log_e = alarm.evidence(piece)
            taken = len(piece)
            if alarm.raised_at is not None:
                # Texts of the piece up to the alarm; below 1 if it was raised before.
                at = alarm.raised_at - count
                if at > 0:
                    found.rows.append(start + at - 1)
                    self._raise(places[start + at - 1])
                if self.reset_after is not None:
                    taken = min(taken, at + self.reset_after)
                after = slice(start + max(at, 0), start + taken)
                self._follow(p[after], strange[after])
            found.log_e[start : start + taken] = log_e[:taken]
            found.episode[start : start + taken] = alarm.episode
            start += taken
            if alarm.raised_at is not None and self.raised[-1].texts == self.reset_after:
                self.alarm = self._make(alarm.episode + 1)
        return found

    def _raise(self, place: Place) -> None:
        assert self.alarm.raised_log_e is not None
        own = None if self.reset_after is None else self._make()
        found = Raised(self.episode, place, self.alarm.raised_log_e, self.strange_at, own)
        self.raised.append(found)
        self.total += 1
        if self.first is None:
            self.first = found

    def _follow(self, p: np.ndarray, strange: np.ndarray) -> None:
        newest = self.raised[-1]
        newest.texts += len(p)
        newest.strange += int(strange.sum())
        if newest.after is not None:
            newest.after.update(p)
