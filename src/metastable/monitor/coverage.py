"""How often clean texts that were not used get small p-values: a check of a baseline on its own calibration texts.

The calibration texts are cut in two halves by the hash of their document. Texts of each half are ranked among those of
the other half, as new texts would be. For a threshold t, the share of texts with p ≤ t should be about t (p_marginal),
or at most t (p_value, which allows for an unlucky calibration set), over all texts and for texts of each length.

**Intervals** of the shares are exact for independent texts (Clopper and Pearson, 95 %). They hold for the halves as
they are, and p-values of the whole baseline rank among twice as many texts.

**Off.** A row is off if its share is too large to be chance. With j = ⌊t (m + 1)⌋, the tail probability of the j-th
largest of m clean scores has the law Beta(j, m + 1 − j). So the number K of n clean texts beyond it has the law
BetaBinomial(n, j, m + 1 − j), and the row is off if P(K ≥ k) ≤ 0.05/(rows × thresholds). Both halves are counted as if
they were ranked among one half, which makes the law wider than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import betaincinv

from metastable.monitor.scoring import ColumnTable, Scorer

THRESHOLDS = (0.01, 0.05)
# Classes of length: between the quantiles of the lengths.
CLASSES = 4
# The probability that any row of a good baseline is called off.
LEVEL = 0.05


def coverage(
    calibrated: Callable[[ColumnTable], Scorer], table: ColumnTable, halves: np.ndarray
) -> list[dict[str, Any]]:
    """Rows for JSON: the first for all texts, then one for each class of length.

    calibrated : the scorer that a table of clean texts gives
    table : of the calibration texts
    halves : (texts,) of 0 and 1

    A row has `least` and `most` tokens, the number of `texts`, and for p_marginal and p_value, for each threshold:
    `count`, `share`, `low`, `high`, for p_marginal also `off`, and for p_value also `possible`: whether half of the
    texts are enough for p-values that small. If they are not, the share is 0 and says nothing.
    """
    found = {name: np.full(len(table), np.nan) for name in ("p_marginal", "p_value")}
    sizes, least_p = [], 0.0
    for half in (0, 1):
        here, there = halves == half, halves != half
        if not here.any() or not there.any():
            return []
        scorer = calibrated(table[there])
        least_p = max(least_p, scorer.least)
        judged = scorer.assess(table[here])
        sizes.append(int(there.sum()))
        for name, own in found.items():
            own[here] = getattr(judged, name)
    usable = np.isfinite(found["p_marginal"])
    lengths, values = table.lengths[usable], {name: own[usable] for name, own in found.items()}
    classes = _classes(lengths)
    tests = len(classes) * len(THRESHOLDS)
    rows = []
    for least, most in classes:
        within = (lengths >= least) & (lengths <= most)
        row: dict[str, Any] = {"least": least, "most": most, "texts": int(within.sum())}
        for name, own in values.items():
            counts = {f"{t:g}": share_of(int((own[within] <= t).sum()), row["texts"]) for t in THRESHOLDS}
            row[name] = counts
        for t in THRESHOLDS:
            row["p_value"][f"{t:g}"]["possible"] = least_p <= t
            entry = row["p_marginal"][f"{t:g}"]
            entry["off"] = off(entry["count"], row["texts"], min(sizes), t, LEVEL / tests)
        rows.append(row)
    return rows


def smallest_possible(rows: list[dict[str, Any]]) -> str | None:
    """The smallest threshold that p-values of the check can reach; None if there is none, or no check."""
    able = (t for t, entry in rows[0]["p_value"].items() if entry.get("possible", True)) if rows else iter(())
    return next(able, None)


def _classes(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Least and most tokens: of all texts, then of classes with about as many texts each."""
    least, most = int(lengths.min()), int(lengths.max())
    inner = {int(q) for q in np.quantile(lengths, np.arange(1, CLASSES) / CLASSES, method="lower")}
    ends = sorted({*inner, most})
    begins = [least, *(end + 1 for end in ends[:-1])]
    return [(least, most), *(zip(begins, ends, strict=True) if len(ends) > 1 else ())]


def share_of(count: int, n: int, level: float = 0.95) -> dict[str, Any]:
    """A share with the interval of Clopper and Pearson.

    >>> {name: round(value, 4) for name, value in share_of(2, 100).items()}
    {'count': 2, 'share': 0.02, 'low': 0.0024, 'high': 0.0704}
    """
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - tail))
    return {"count": count, "share": count / n, "low": low, "high": high}


def off(count: int, n: int, m: int, t: float, level: float) -> bool:
    """Whether `count` of n clean texts with p ≤ t, ranked among m, is too many to be chance."""
    from scipy.stats import betabinom

    j = math.floor(t * (m + 1) + 1e-9)
    if j == 0:
        return count > 0
    return bool(betabinom.sf(count - 1, n, j, m + 1 - j) <= level)
