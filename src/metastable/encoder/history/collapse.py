"""Whether the tokens of an encoder begin to collapse during its training.

Tokens that collapse point in one direction: their mean cosine goes to 1 and their effective rank to 1. What remains of
their variety is 1 − cosine and rank − 1. A collapse begins at a depth where one of the two is less than half of what it
was in the first record. A fixed rise of the cosine would not do: 0.1 is little at 0.2 and nearly everything at 0.85.
The texts are few, so the 95 % intervals of the two records must not overlap either. Where tokens were one direction
already in the first record, nothing is left to collapse: such a depth has no warning.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

LEFT = 0.5
"""A collapse begins where less than this share of the variety of the first record is left."""

COLLAPSED = {"hidden_cosine": 0.1, "effective_rank": 1.0}
"""Tokens with less variety are one direction already: a mean cosine above 0.9, an effective rank below 2."""


class Collapse(NamedTuple):
    """A depth at which tokens collapse: the statistic, its first and its present value, and the share that is left."""

    depth: int
    statistic: str
    before: float
    after: float
    left: float


def collapses(first: pd.DataFrame, now: pd.DataFrame) -> list[Collapse]:
    """The depths at which tokens collapse, least variety left first. first, now : rows of two records, one a depth"""
    found = []
    for (_, a), (_, b) in zip(first.iterrows(), now.iterrows(), strict=True):
        apart = {
            "hidden_cosine": b["hidden_cosine_low"] > a["hidden_cosine_high"],
            "effective_rank": b["effective_rank_high"] < a["effective_rank_low"],
        }
        for name, clear in apart.items():
            before, after = abs(a[name] - 1), abs(b[name] - 1)
            if clear and after < LEFT * before and before >= COLLAPSED[name]:
                found.append(Collapse(int(b["depth"]), name, float(a[name]), float(b[name]), float(after / before)))
    return sorted(found, key=lambda collapse: collapse.left)


def sentence(found: list[Collapse]) -> str | None:
    """The collapse in one sentence, with the depth that is worst; None if there is none."""
    if not found:
        return None
    worst, depths = found[0], sorted({collapse.depth for collapse in found})
    where = f"depth {depths[0]}" if len(depths) == 1 else f"depths {', '.join(map(str, depths))}"
    what = worst.statistic.replace("hidden_cosine", "mean cosine of hidden states").replace("_", " ")
    change = f"from {worst.before:.3g} to {worst.after:.3g}"
    verb = "rose" if worst.statistic == "hidden_cosine" else "fell"
    return f"Tokens begin to collapse at {where}: the {what} at depth {worst.depth} {verb} {change}"
