"""Sums over texts that can be merged in any order with the identical result.

A statistic v of a text is kept with the length of the text, as x = log₂ n, because every statistic depends on n. Both
are rounded to multiples of 2⁻³⁰. Σ1, Σv, Σv², Σx, Σx², Σxv are exact integers (in units of 2⁻³⁰ and 2⁻⁶⁰), one set for
each bin 2^b ≤ n < 2^{b+1}. Integers add without rounding, so the order of texts, batches and machines does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from metastable.errors import BadInput

Floats = NDArray[np.float64]
Exact = NDArray[np.object_]

BITS = 30
UNIT = 2.0**BITS
LIMB = 20
"""Bits of the parts in which whole numbers are multiplied, see `_limbs`."""


class ExactSums:
    """Sums of a statistic of shape `shape` over texts. NaN and infinite entries are not counted.

    Examples
    --------
    >>> sums = ExactSums(())
    >>> sums.add([1.0, 2.0, 3.0], lengths=[4, 8, 16])
    >>> float(sums.mean()), float(sums.slope()[0])
    (2.0, 1.0)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._bins: dict[int, Exact] = {}

    def add(self, values: Any, lengths: Any) -> None:
        """Add texts: values (texts, *shape), lengths (texts,), the number n ≥ 1 of tokens of each."""
        v, n = np.asarray(values, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
        if v.shape != (len(n), *self.shape):
            raise BadInput(f"values have shape {v.shape}, expected {(len(n), *self.shape)}: a row for each text")
        if len(n) and n.min() < 1:
            raise BadInput(f"a text has {n.min()} tokens; it must have at least 1")
        bins = np.frexp(n.astype(np.float64))[1] - 1
        for b in np.unique(bins):
            here = bins == b
            self._put(int(b), _sums(v[here], np.log2(n[here])))

    def _put(self, b: int, sums: Exact) -> None:
        self._bins[b] = self._bins[b] + sums if b in self._bins else sums

    def merge(self, other: ExactSums) -> ExactSums:
        """The sums over the texts of both. They are exact, so the order of merging does not matter."""
        if self.shape != other.shape:
            raise BadInput(f"sums of shapes {self.shape} and {other.shape} cannot be merged; they must agree")
        both = ExactSums(self.shape)
        for one in (self, other):
            for b, sums in one._bins.items():
                both._put(b, sums)
        return both

    def _total(self) -> Exact:
        """Σ1, Σv, Σv², Σx, Σx² and Σxv over all bins, (6, *shape)."""
        return sum(self._bins.values(), start=np.zeros((6, *self.shape), dtype=object))

    def count(self) -> NDArray[np.int64]:
        """The number of texts that were counted, for each entry."""
        return np.asarray(self._total()[0]).astype(np.int64)

    def mean(self) -> Floats:
        """The mean over texts; NaN if no text was counted."""
        N, V, *_ = self._total()
        return _ratio(V, N) / UNIT

    def std(self) -> Floats:
        """The standard deviation over texts, √(Σ(v − mean)²/(N − 1)); NaN below two texts."""
        N, V, VV, *_ = self._total()
        return np.sqrt(_ratio(N * VV - V * V, N * (N - 1))) / UNIT

    def interval(self) -> tuple[Floats, Floats]:
        """mean ∓ t·std/√N, t of N − 1 degrees: the 95 % interval of the mean (Student's); NaN below two texts."""
        mean, count = self.mean(), self.count()
        reach = student.ppf(0.975, np.maximum(count - 1, 1)) * self.error()
        return mean - reach, mean + reach

    def error(self) -> Floats:
        """The standard error of the mean, std/√N; NaN below two texts."""
        return self.std() / np.sqrt(np.maximum(self.count(), 1))

    def slope(self) -> tuple[Floats, Floats]:
        """The change of the statistic for each doubling of n, by least squares, and its standard error.

        Both are NaN if all texts have one length. The error is also NaN below three texts.
        """
        N, V, VV, X, XX, XV = self._total()
        sxx, sxv, svv = N * XX - X * X, N * XV - X * V, N * VV - V * V
        # With s_xx = N Σ(x − x̄)² and so on: residual variance (s_vv s_xx − s_xv²)/(s_xx N (N − 2)), times N/s_xx.
        variance = _ratio(svv * sxx - sxv * sxv, sxx * sxx * (N - 2))
        return _ratio(sxv, sxx), np.sqrt(variance)

    def at(self, n: float) -> tuple[Floats, Floats]:
        """The mean at n tokens, predicted by the regression on log₂ n, and the standard error of that mean.

        If all texts have one length, it is their mean at that length and NaN at other lengths.
        """
        if not n >= 1:
            raise BadInput(f"n is {n!r}; a text has at least 1 token")
        N, _, _, X, XX, _ = self._total()
        sxx = N * XX - X * X
        away = np.log2(n) - _ratio(X, N) / UNIT
        one_length = np.asarray(sxx == 0) & (np.abs(away) < 2 / UNIT)
        slope, error = self.slope()
        # The residual variance over N, from the slope's error: error² = residual variance · N/s_xx.
        middle = np.where(one_length, self.std() ** 2, error**2 * _ratio(sxx, N) / UNIT**2)
        variance = middle / np.maximum(self.count(), 1) + np.where(one_length, 0.0, (error * away) ** 2)
        return self.mean() + np.where(one_length, 0.0, slope * away), np.sqrt(variance)

    def by_length(self) -> dict[int, ExactSums]:
        """The sums of each bin of lengths, by its least length 1, 2, 4, 8, …: texts with 2^b ≤ n < 2^{b+1}."""
        parts = {}
        for b in sorted(self._bins):
            parts[2**b] = ExactSums(self.shape)
            parts[2**b]._put(b, self._bins[b])
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Exact integers in plain lists, for JSON."""
        bins = {str(b): [int(i) for i in self._bins[b].ravel()] for b in sorted(self._bins)}
        return {"shape": list(self.shape), "bits": BITS, "bins": bins}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ExactSums:
        if saved.get("bits") != BITS:
            raise BadInput(f"the sums were saved in units of 2^-{saved.get('bits')}, expected 2^-{BITS}; measure again")
        found = cls(tuple(saved["shape"]))
        for b, sums in saved["bins"].items():
            found._put(int(b), np.array(sums, dtype=object).reshape(6, *found.shape))
        return found


class ExactCosine:
    """The mean cosine between two different rows of those added, in memory that does not grow with their number.

    The mean of ⟨e_i, e_j⟩ over pairs i ≠ j of m unit vectors is (|Σe|² − Σ|e|²)/(m(m − 1)). The e are rounded to
    multiples of 2⁻³⁰, so that both sums are exact integers. Rows with NaN or infinite entries are not counted.

    Examples
    --------
    >>> found = ExactCosine(2)
    >>> found.add([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(found.mean(), 6)
    0.333333
    """

    def __init__(self, width: int) -> None:
        self.count = self._squares = 0
        self._sum: Exact = np.zeros(width, dtype=object)

    def add(self, unit: Any) -> None:
        """unit : (rows, width), unit vectors"""
        rows = np.asarray(unit, dtype=np.float64)
        rows = rows[np.isfinite(rows).all(axis=1)]
        whole = np.rint(rows * UNIT).astype(np.int64)
        self.count += len(whole)
        self._sum = self._sum + whole.sum(axis=0).astype(object)
        # A square is at most 2⁶⁰ in all: that of one row fits into 64 bits, that of many does not.
        self._squares += sum(int(square) for square in (whole**2).sum(axis=1))

    def merge(self, other: ExactCosine) -> ExactCosine:
        """The rows of both; exact in any order."""
        if len(self._sum) != len(other._sum):
            raise BadInput(f"rows of {len(self._sum)} and {len(other._sum)} features cannot be merged; they must agree")
        both = ExactCosine(len(self._sum))
        both.count, both._squares = self.count + other.count, self._squares + other._squares
        both._sum = self._sum + other._sum
        return both

    def mean(self) -> float:
        """The mean cosine over pairs of different rows; NaN below two rows."""
        pairs = self.count * (self.count - 1)
        total = sum(int(part) ** 2 for part in self._sum) - self._squares
        return total / pairs / UNIT**2 if pairs else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Exact integers, for JSON."""
        return {"bits": BITS, "count": self.count, "squares": self._squares, "sum": [int(part) for part in self._sum]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ExactCosine:
        if saved.get("bits") != BITS:
            raise BadInput(f"the sums were saved in units of 2^-{saved.get('bits')}, expected 2^-{BITS}; measure again")
        found = cls(len(saved["sum"]))
        found.count, found._squares = int(saved["count"]), int(saved["squares"])
        found._sum = np.array([int(part) for part in saved["sum"]], dtype=object)
        return found


def _sums(v: Floats, x: Floats) -> Exact:
    """The six sums over the first axis."""
    with np.errstate(over="ignore"):
        units = np.rint(v * UNIT)
    counted = np.isfinite(units)
    ones = counted[None].astype(np.int64)
    values = _limbs(np.where(counted, units, 0.0))
    logs = _limbs(np.rint(x * UNIT)).reshape(-1, len(x), *[1] * (v.ndim - 1)) * ones
    pairs = ((ones, ones), (ones, values), (values, values), (ones, logs), (logs, logs), (logs, values))
    found = np.empty((6, *v.shape[1:]), dtype=object)
    for i, (a, b) in enumerate(pairs):
        products = np.einsum("it...,jt...->ij...", a, b).astype(object)
        found[i] = sum(products[j, k] << (LIMB * (j + k)) for j in range(len(a)) for k in range(len(b)))
    return found


def _limbs(whole: Floats) -> NDArray[np.int64]:
    """Whole numbers w = Σ_k 2^{20k} l_k as their limbs l_k, |l_k| < 2²⁰, all of the sign of w: (limbs, *shape of w).

    Products of limbs are below 2⁴⁰, so that the sum over 2²³ texts fits into 64 bits.
    """
    limbs: list[NDArray[np.int64]] = []
    rest = whole
    while not limbs or rest.any():
        above = np.trunc(rest / 2.0**LIMB)
        limbs.append((rest - above * 2.0**LIMB).astype(np.int64))
        rest = above
    return np.stack(limbs)


def _ratio(top: NDArray[Any], bottom: NDArray[Any]) -> Floats:
    """top/bottom of exact integers, correctly rounded; NaN where bottom is not positive."""

    def divide(a: int, b: int) -> float:
        return a / b if b > 0 else float("nan")

    return np.asarray(np.frompyfunc(divide, 2, 1)(top, bottom), dtype=np.float64)
