"""The strange texts of a stream in a few groups by cause, each with a plain sentence.

A text belongs to the first cause that fits: the script of its most unusual words, its length, the kind of spoilt text
that it is most like, and else the detector and the depth at which it begins. The groups describe the
strange texts; they do not prove the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metastable.monitor.detectors import DETECTORS
from metastable.monitor.exposure import EXPOSURE
from metastable.monitor.length_adjustment import OUTERMOST
from metastable.monitor.scripts import DIGITS, NONE, SYMBOLS
from metastable.monitor.watched import NO_LAYER, Watched

# Most groups. The smallest ones are put together.
MOST = 8
# A length is unusual beyond these quantiles of the ordinary texts, if those of the clean texts are not known.
UNUSUAL = (OUTERMOST, 1 - OUTERMOST)
# Stands for the number of texts in a sentence.
COUNT = "#"
# Ordinary texts that are needed for these quantiles.
ENOUGH = 100


@dataclass(frozen=True)
class Group:
    """name, sentence : in plain words. members : indices of scored texts, strangest first."""

    name: str
    sentence: str
    members: np.ndarray


class _Cause(NamedTuple):
    """The name of a group, its sentence if it has one text, and the one for several texts; `COUNT` is their number."""

    name: str
    one: str
    many: str

    def sentence(self, texts: int) -> str:
        return self.one if texts == 1 else self.many.replace(COUNT, str(texts), 1)


def groups(watched: Watched) -> list[Group]:
    """At most `MOST` groups, largest first."""
    columns, order = watched.columns, np.array(watched.strangest(watched.scored), dtype=int)
    usual = _usual_script(watched)
    low, high = _usual_lengths(watched)
    found: dict[_Cause, list[int]] = {}
    for index in order.tolist():
        written, n = watched.names[columns.script[index]], int(columns.n[index])
        if written not in (NONE, usual):
            key = _of_script(written)
        elif n < low or n > high:
            key = _of_length(n < low, low, high)
        elif watched.names[columns.detector[index]] == EXPOSURE:
            key = _of_likeness(watched.names[columns.like[index]])
        else:
            key = _of_detector(watched.names[columns.detector[index]], int(columns.layer[index]))
        found.setdefault(key, []).append(index)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    made = [Group(cause.name, cause.sentence(len(own)), np.array(own)) for cause, own in ranked]
    if len(made) <= MOST:
        return made
    rest = np.sort(np.concatenate([group.members for group in made[MOST - 1 :]]))
    told = f"These texts belong to {len(made) - MOST + 1} smaller groups."
    return [*made[: MOST - 1], Group("others", told, rest)]


def _usual_script(watched: Watched) -> str:
    """The script of most texts that are not strange; Latin if there are none."""
    codes, counts = np.unique(watched.columns.script[~watched.strange], return_counts=True)
    found = {watched.names[code]: int(n) for code, n in zip(codes, counts, strict=True) if watched.names[code] != NONE}
    return max(found, key=lambda name: found[name], default="Latin")


def _usual_lengths(watched: Watched) -> tuple[float, float]:
    if watched.facts.lengths is not None:
        return watched.facts.lengths
    ordinary = watched.columns.n[~watched.strange]
    if len(ordinary) < ENOUGH:
        return 0.0, np.inf
    low, high = np.quantile(ordinary, UNUSUAL)
    return float(low), float(high)


def _of_script(written: str) -> _Cause:
    what = {DIGITS: "numbers", SYMBOLS: "symbols or punctuation"}.get(written, f"in {written} script")
    words = f"The most unusual words of {{}} are {what}."
    name = written if written in (DIGITS, SYMBOLS) else f"{written} script"
    return _Cause(name, words.format("this text"), words.format("these texts"))


def _of_length(short: bool, low: float, high: float) -> _Cause:
    than = f"fewer than {low:.0f} tokens" if short else f"more than {high:.0f} tokens"
    words = f"{'shorter' if short else 'longer'} than almost all usual ones: {than}."
    name = "very short" if short else "very long"
    return _Cause(name, f"This text is {words}", f"These texts are {words}")


def _of_likeness(kind: str) -> _Cause:
    """The group of texts that the classifier of spoilt texts finds most anomalous. kind : "" if it is not known"""
    name = f"like {kind}" if kind else "like spoilt texts"
    words = "more like clean texts that were spoilt than like clean texts."
    if kind:
        words = f"most like clean texts with {kind}. It is a likeness, and the cause may be another."
    return _Cause(name, f"1 text looks {words}", f"{COUNT} texts look {words}")


def _of_detector(name: str, layer: int) -> _Cause:
    why = DETECTORS[name].words if name in DETECTORS else f"the detector {name} finds it unusual"
    where = f"from depth {layer} on" if layer != NO_LAYER else "over all depths together"
    capital = f"{where[0].upper()}{where[1:]}"
    named = f"{name}, {'no single depth' if layer == NO_LAYER else f'from depth {layer}'}"
    return _Cause(
        named, f"{capital}, this text is strange because {why}.", f"{capital}, each of them is strange because {why}."
    )
