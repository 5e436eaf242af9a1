"""Whether the representations of an encoder begin to collapse during its training.

Texts that collapse point in one direction: the mean cosine of two texts goes to 1. What remains of their variety is
1 − cosine. A collapse begins at a depth where less than half of the variety of the first record is left. A fixed rise
of the cosine would not do: 0.1 is little at 0.2 and nearly everything at 0.85. The texts are few, so the 95 % intervals
of the two records must not overlap either. Where texts were one direction already in the first record, nothing is left
to collapse: such a depth has no warning.

The tokens of one text may come together without harm: a classifier reads one vector of a text, so that its last layers
need no others. So tokens that come together are told (`together`), and only texts that come together are warned of
(`collapses`).

Texts may come together for a while too, above all at the start of a training. The warning can be a false alarm in a
healthy training: check whether it lasts. A warning that is gone in later records was such a phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

LEFT = 0.5
"""A collapse begins where less than this share of the variety of the first record is left."""
COLLAPSED = {"text_cosine": 0.1, "hidden_cosine": 0.1, "effective_rank": 1.0}
"""With less variety all is one direction already: a mean cosine above 0.9, an effective rank below 2."""
ONE = 0.95
"""Texts with a larger mean cosine have collapsed; below it they begin to."""
WORDS = {
    "text_cosine": "mean cosine of two texts",
    "hidden_cosine": "mean cosine of hidden states",
    "effective_rank": "effective rank",
}


class Loss(NamedTuple):
    """Variety that was lost at a depth: the statistic, its first and its present value, and the share that is left."""

    depth: int
    statistic: str
    before: float
    after: float
    left: float


def collapses(first: pd.DataFrame, now: pd.DataFrame) -> list[Loss]:
    """The depths at which texts collapse, the worst first. first, now : rows of two records, one a depth"""
    return _losses(first, now, ("text_cosine",))


def together(first: pd.DataFrame, now: pd.DataFrame) -> list[Loss]:
    """The depths at which the tokens of a text came together, the worst first."""
    return _losses(first, now, ("hidden_cosine", "effective_rank"))


def _losses(first: pd.DataFrame, now: pd.DataFrame, names: Sequence[str]) -> list[Loss]:
    found = []
    for (_, a), (_, b) in zip(first.iterrows(), now.iterrows(), strict=True):
        for name in names:
            rose, fell = b[f"{name}_low"] > a[f"{name}_high"], b[f"{name}_high"] < a[f"{name}_low"]
            before, after = abs(a[name] - 1), abs(b[name] - 1)
            clear = fell if name == "effective_rank" else rose
            if clear and after < LEFT * before and before >= COLLAPSED[name]:
                found.append(Loss(int(b["depth"]), name, float(a[name]), float(b[name]), float(after / before)))
    return sorted(found, key=lambda loss: loss.left)


def unseen(first: pd.DataFrame, now: pd.DataFrame) -> dict[str, list[int]]:
    """The depths at which `collapses` could not find a collapse, by the reason."""
    found: dict[str, list[int]] = {}
    for (_, row), (_, later) in zip(first.iterrows(), now.iterrows(), strict=True):
        if not all(math.isfinite(number) for number in (row["text_cosine_high"], later["text_cosine_low"])):
            why = "the mean cosine of two texts is not a number"
        elif 1 - row["text_cosine"] < COLLAPSED["text_cosine"]:
            why = f"the mean cosine of two texts is above {1 - COLLAPSED['text_cosine']:g} in the first record"
        elif row["text_cosine_high"] >= 1:
            why = "the texts are too few: the 95 % interval of their mean cosine reaches 1 in the first record"
        else:
            continue
        found.setdefault(why, []).append(int(row["depth"]))
    return found


def warning(first: pd.DataFrame, now: pd.DataFrame) -> str | None:
    """The collapse of texts in one sentence without a full stop; None if there is none."""
    found = collapses(first, now)
    return sentence(found, "Texts have collapsed" if found and found[0].after > ONE else "Texts begin to collapse")


def sentence(found: list[Loss], subject: str) -> str | None:
    """What was lost in one sentence without a full stop, with the depth that is worst; None if nothing was lost."""
    if not found:
        return None
    worst, depths = found[0], sorted({loss.depth for loss in found})
    where = f"depth {depths[0]}" if len(depths) == 1 else f"depths {', '.join(map(str, depths))}"
    verb = "fell" if worst.statistic == "effective_rank" else "rose"
    change = f"{verb} from {worst.before:.3g} to {worst.after:.3g}"
    return f"{subject} at {where}: the {WORDS[worst.statistic]} at depth {worst.depth} {change}"
