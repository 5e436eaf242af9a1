"""Whether the representations of an encoder begin to collapse during its training.

Texts that collapse point in one direction: the mean cosine of two texts goes to 1. What remains of their variety is
1 − cosine. A collapse begins at a depth where less than half of the variety of the first record is left. A fixed rise
of the cosine would not do: 0.1 is little at 0.2 and nearly everything at 0.85. The texts are few, so the 95 % intervals
of the two records must not overlap either. Where texts were one direction already in the first record, nothing is left
to collapse: such a depth has no warning.

The tokens of one text may come together without harm. Training a classifier of MiniLM on 20 Newsgroups halved their
effective rank in the last layer within 40 steps, while its loss fell as it should: a text needs one vector there. So
tokens that come together are told (`together`), and only texts that come together are warned of (`collapses`).

Texts may come together for a while too. A classifier on Reuters R8, where one topic has half of the texts, had a mean
cosine of 0.82 in the last layer after 20 steps, of 0.38 after 60 and of 0.19 after 100; it began with 0.21. Records
every 20 steps warn of this healthy training. A warning that is gone in later records was such a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

LEFT = 0.5
"""A collapse begins where less than this share of the variety of the first record is left."""
COLLAPSED = {"text_cosine": 0.1, "hidden_cosine": 0.1, "effective_rank": 1.0}
"""With less variety all is one direction already: a mean cosine above 0.9, an effective rank below 2."""
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


def sentence(found: list[Loss], subject: str) -> str | None:
    """What was lost in one sentence without a full stop, with the depth that is worst; None if nothing was lost."""
    if not found:
        return None
    worst, depths = found[0], sorted({loss.depth for loss in found})
    where = f"depth {depths[0]}" if len(depths) == 1 else f"depths {', '.join(map(str, depths))}"
    verb = "fell" if worst.statistic == "effective_rank" else "rose"
    change = f"{verb} from {worst.before:.3g} to {worst.after:.3g}"
    return f"{subject} at {where}: the {WORDS[worst.statistic]} at depth {worst.depth} {change}"
