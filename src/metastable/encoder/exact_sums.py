"""Sums over texts that can be merged in any order with the identical result.

A statistic v of a text is kept with the text's length, as x = log₂ n: every one of them depends on n. Both are rounded
to multiples of 2⁻³⁰, and Σ1, Σv, Σv², Σx, Σx², Σxv are exact integers (in units of 2⁻³⁰ and 2⁻⁶⁰), for each bin
2^b ≤ n < 2^{b+1}. Integers add without rounding, so the order of texts, batches and machines leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from metastable.errors import BadInput

Floats = NDArray[np.float64]
Exact = NDArray[np.object_]

BITS = 30
UNIT = 2.0**BITS
_HALF = 15
_COUNT, _V, _VV, _X, _XX, _XV = range(6)


class ExactSums:
    """Sums of a statistic of shape `shape` over texts. NaN and infinite values are not counted, entry by entry.

    Examples
    --------
    >>> tally = ExactSums(())
    >>> tally.add([1.0, 2.0, 3.0], lengths=[4, 8, 16])
    >>> float(tally.mean()), float(tally.slope()[0])
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
            raise BadInput(f"a text has {n.min()} tokens; a tally needs at least 1")
        bins = np.frexp(n.astype(np.float64))[1] - 1
        for b in np.unique(bins):
            here = bins == b
            self._put(int(b), _sums(v[here], np.log2(n[here])))

    def _put(self, b: int, sums: Exact) -> None:
        self._bins[b] = self._bins[b] + sums if b in self._bins else sums

    def merge(self, other: ExactSums) -> ExactSums:
        """The tally of the texts of both. Exact, so it does not matter who merges what and when."""
        if self.shape != other.shape:
            raise BadInput(f"tallies of shapes {self.shape} and {other.shape} cannot be merged; they must agree")
        both = ExactSums(self.shape)
        for tally in (self, other):
            for b, sums in tally._bins.items():
                both._put(b, sums)
        return both

    def _total(self) -> Exact:
        return sum(self._bins.values(), start=_zeros((6, *self.shape)))

    def count(self) -> NDArray[np.int64]:
        """How many texts were counted, entry by entry."""
        return np.asarray(self._total()[_COUNT]).astype(np.int64)

    def mean(self) -> Floats:
        """The mean over texts; NaN where none was counted."""
        total = self._total()
        return _ratio(total[_V], total[_COUNT]) / UNIT

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
        """Change of the statistic for each doubling of n, by least squares, and its standard error.

        NaN where all texts have one length; the error also below three texts.
        """
        N, V, VV, X, XX, XV = self._total()
        sxx, sxv, svv = N * XX - X * X, N * XV - X * V, N * VV - V * V
        # With s_xx = N Σ(x − x̄)² and so on: residual variance (s_vv s_xx − s_xv²)/(s_xx N (N − 2)), times N/s_xx.
        variance = _ratio(svv * sxx - sxv * sxv, sxx * sxx * (N - 2))
        return _ratio(sxv, sxx), np.sqrt(variance)

    def at(self, n: float) -> tuple[Floats, Floats]:
        """The mean at n tokens, predicted by the regression on log₂ n, and the standard error of that mean.

        Where all texts have one length it is their mean, at that length only; elsewhere NaN.
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
        """The tally of each bin of lengths, by its least length 1, 2, 4, 8, …: texts with 2^b ≤ n < 2^{b+1}."""
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
            raise BadInput(f"the tally was saved in units of 2^-{saved.get('bits')}, expected 2^-{BITS}; measure again")
        tally = cls(tuple(saved["shape"]))
        for b, sums in saved["bins"].items():
            tally._put(int(b), _filled((6, *tally.shape), sums))
        return tally

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSums) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def _sums(v: Floats, x: Floats) -> Exact:
    """The six sums over the first axis."""
    counted = np.isfinite(v)
    ones = counted.astype(np.int64)
    rounded = _units(np.where(counted, v, 0.0))
    logs = _units(x).reshape(-1, *[1] * (v.ndim - 1)) * ones
    parts = (ones.sum(axis=0), rounded.sum(axis=0), _products(rounded, rounded), logs.sum(axis=0))
    return _stacked([*parts, _products(logs, logs), _products(logs, rounded)])


def _units(v: Floats) -> NDArray[Any]:
    """v in units of 2⁻³⁰, rounded: 64-bit integers where they fit a sum of many, else Python's."""
    scaled = np.rint(v * UNIT)
    if scaled.size == 0 or float(np.abs(scaled).max()) * len(scaled) < 2.0**62:
        return scaled.astype(np.int64)
    return _filled(scaled.shape, (int(s) for s in scaled.ravel()))


def _products(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Σ a·b over the first axis, exactly. Split in halves of 15 bits, the products fit into 64 bits for |v| < 2¹³."""
    for factor in (a, b):
        if factor.dtype == object or (factor.size and int(np.abs(factor).max()) ** 2 * len(factor) >= 2 ** (62 + 30)):
            wide = a.astype(object) * b.astype(object)
            return np.asarray(wide.sum(axis=0), dtype=object)
    low = (1 << _HALF) - 1
    a1, a0, b1, b0 = a >> _HALF, a & low, b >> _HALF, b & low
    high, middle, least = (
        np.asarray(part.sum(axis=0)).astype(object) for part in (a1 * b1, a1 * b0 + a0 * b1, a0 * b0)
    )
    return np.asarray((high << 2 * _HALF) + (middle << _HALF) + least, dtype=object)


def _ratio(top: NDArray[Any], bottom: NDArray[Any]) -> Floats:
    """top/bottom of exact integers, correctly rounded; NaN where bottom is not positive."""

    def divide(a: int, b: int) -> float:
        return a / b if b > 0 else float("nan")

    return np.asarray(np.frompyfunc(divide, 2, 1)(top, bottom), dtype=np.float64)


def _zeros(shape: tuple[int, ...]) -> Exact:
    return np.zeros(shape, dtype=object)


def _filled(shape: tuple[int, ...], values: Iterable[int]) -> Exact:
    array = _zeros(shape)
    array.ravel()[:] = list(values)
    return array


def _stacked(parts: list[NDArray[Any]]) -> Exact:
    array = _zeros((len(parts), *np.shape(parts[0])))
    for i, part in enumerate(parts):
        array[i] = np.asarray(part).astype(object)
    return array
