"""Straight lines through measured points, with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from metastable.errors import BadInput


class Line(NamedTuple):
    """y ≈ slope·x + offset, with the confidence interval of the slope and the root mean square of what is left."""

    slope: float
    low: float
    high: float
    offset: float
    rms: float

    @property
    def interval(self) -> tuple[float, float, float]:
        return self.slope, self.low, self.high

    def __call__(self, x: ArrayLike) -> np.ndarray:
        return self.slope * np.asarray(x, dtype=float) + self.offset


def line(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Line:
    """Least squares; the interval is Student's t of the slope, so a bend in the points widens it.

    >>> found = line([0, 1, 2, 3], [1, 3, 5, 7])
    >>> round(found.slope, 6), round(found.offset, 6)
    (2.0, 1.0)
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 3 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise BadInput(f"a line with its interval needs three or more finite points, not {a.shape} and {b.shape}")
    fit = stats.linregress(a, b)
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(a) - 2) * fit.stderr)
    left = b - (fit.slope * a + fit.intercept)
    slope = float(fit.slope)
    return Line(slope, slope - reach, slope + reach, float(fit.intercept), float(np.sqrt(np.mean(left**2))))
