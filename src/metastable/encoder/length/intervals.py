"""Intervals over documents: documents are independent of each other, heads of one encoder are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import t as student

from metastable.encoder.length.rung import Floats

LEVEL = 0.95
"""The coverage of an interval."""


def mean_interval(values: Floats, level: float = LEVEL) -> tuple[Any, Any, Any]:
    """The mean over the first axis with the ends of its interval (Student's)."""
    mean, count = values.mean(axis=0), len(values)
    reach = student.ppf(0.5 + level / 2, count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return mean, mean - reach, mean + reach


def jackknife(value: float, left_out: Floats) -> tuple[float, float, float]:
    """A statistic with the ends of its interval, from its values without each document (Efron and Stein, 1981)."""
    m = len(left_out)
    reach = 1.96 * float(np.sqrt((m - 1) / m * ((left_out - left_out.mean()) ** 2).sum()))
    return float(value), float(value) - reach, float(value) + reach


def named(name: str, ends: tuple[Any, Any, Any]) -> dict[str, Any]:
    """An interval as columns of a table: name, name_low and name_high."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
