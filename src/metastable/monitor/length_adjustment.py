"""Removes the influence of the number of tokens n from a statistic.

All statistics depend on n, and texts of another length alone are no reason for an alarm. Location and scale are
regressed on ℓ = log n, over clean texts that the detectors were not fitted on: `Adjustment` for each column, and
`TailAdjustment` for the upper tail of the final score, on which small p-values depend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, minimize

from metastable.errors import BadInput

# The share of texts at either end whose lengths are too rare for a regression.
OUTERMOST = 0.005
# A column whose residual is smaller than this share of the column is a function of length, up to rounding.
EXACT = 1e-9
# The upper share of scores that `TailAdjustment` describes.
UPPER = 0.1
# Most texts that a quantile is regressed on; more cost time and gain nothing.
REGRESSED = 3000


@dataclass(frozen=True)
class Adjustment:
    """z = (s − a − b·ℓ − c·ℓ²)/e^{g + h·ℓ} for each column s, ℓ = log n clipped to the fitted range.

    location : (3, k), rows a, b, c
    scale : (2, k), rows g, h
    within : (2,), smallest and largest ℓ
    """

    location: np.ndarray
    scale: np.ndarray
    within: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray, lengths: np.ndarray) -> Adjustment:
        """Least squares for the location, then for log|residual|; g makes the mean square of z equal to 1.

        columns : (texts, k)
        lengths : (texts,), the number n ≥ 1 of tokens of each text
        """
        log_n = np.log(lengths)
        within = np.quantile(log_n, [OUTERMOST, 1 - OUTERMOST])
        terms = _terms(log_n, within)
        location = np.linalg.lstsq(terms, columns, rcond=None)[0]
        residual = columns - terms @ location
        spread = residual.std(axis=0)
        # A residual that happens to be 0 must not pull the regression of its logarithm to −∞.
        scale = np.linalg.lstsq(terms[:, :2], np.log(np.abs(residual) + 1e-3 * spread + 1e-300), rcond=None)[0]
        empty = spread <= EXACT * np.abs(columns).max(axis=0)
        # Only rounding is left of such a column. Its own spread is the unit, so that z does not amplify the rounding.
        own = columns.std(axis=0)
        scale[:, empty] = 0.0
        scale[0, empty] = np.log(np.where(own > 0, own, 1.0))[empty]
        square = np.mean((residual / np.exp(terms[:, :2] @ scale)) ** 2, axis=0)
        scale[0, ~empty] += 0.5 * np.log(square[~empty])
        return cls(location, scale, within)

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """z (texts, k) from columns (texts, k) of texts of these lengths."""
        terms = _terms(np.log(lengths), self.within)
        return np.asarray((columns - terms @ self.location) / np.exp(terms[:, :2] @ self.scale))

    @classmethod
    def joined(cls, parts: Sequence[Adjustment]) -> Adjustment:
        """One adjustment for the columns of all parts, side by side. All were fitted on texts of the same lengths."""
        names = ("location", "scale")
        location, scale = (np.concatenate([getattr(own, name) for own in parts], axis=1) for name in names)
        return cls(location, scale, parts[0].within)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], columns: int) -> Adjustment:
        """Restore the three saved arrays, for this number of columns."""
        shapes = {"location": (3, columns), "scale": (2, columns), "within": (2,)}
        return cls(**{name: shaped(arrays, name, shape) for name, shape in shapes.items()})


@dataclass(frozen=True)
class TailAdjustment:
    """(s − q(ℓ))/e(ℓ): the excess of a score over its upper tenth among texts of its length, in mean excesses.

    q(ℓ) = a + b·ℓ + c·ℓ² is the 0.9 quantile of s given ℓ, by quantile regression (Koenker and Bassett 1978): the
    minimum of Σ ρ(s − q(ℓ)), ρ(r) = r(0.9 − 1_{r<0}). The excesses above q are modelled as exponential with mean
    e(ℓ) = e^{g + h·ℓ}, by maximum likelihood with a penalty of ½h² for each tenth of them. For every length the result
    is increasing in s, and its upper tail is about the same: P(result > x) ≈ 0.1·e^{−x} for x > 0.

    location : (3,), a, b, c
    scale : (2,), g, h
    within : (2,), smallest and largest ℓ
    """

    location: np.ndarray
    scale: np.ndarray
    within: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, lengths: np.ndarray) -> TailAdjustment:
        """scores : (texts,). lengths : (texts,), the number n ≥ 1 of tokens of each text"""
        some = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), REGRESSED)).astype(int))
        s, log_n = scores[some], np.log(lengths[some])
        within = np.quantile(log_n, [OUTERMOST, 1 - OUTERMOST])
        terms = _terms(log_n, within)
        location = _quantile_regression(terms, s, 1 - UPPER)
        excess = s - terms @ location
        above = excess > 1e-9 * (np.abs(s).max() + 1e-300)
        mean = float(excess[above].mean()) if above.any() else 1.0
        centre = float(terms[above, 1].mean()) if above.any() else 0.0
        # Centred at the mean ℓ of the excesses, g and h are nearly independent.
        x, ell = excess[above] / mean, terms[above, 1] - centre

        def loss(free: np.ndarray) -> float:
            log_e = free[0] + free[1] * ell
            return float(np.sum(log_e + x * np.exp(-log_e)) + 0.5 * max(len(x), 1) / 10 * free[1] ** 2)

        g, h = minimize(loss, np.zeros(2), method="BFGS").x
        return cls(location, np.array([g + np.log(mean) - h * centre, h]), within)

    def __call__(self, scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """(texts,) from scores (texts,) of texts of these lengths."""
        terms = _terms(np.log(lengths), self.within)
        return np.asarray((scores - terms @ self.location) / np.exp(terms[:, :2] @ self.scale))

    @property
    def usual(self) -> tuple[int, int]:
        """The fewest and the most tokens of 99 % of the fitted texts."""
        low, high = np.exp(self.within)
        return math.floor(low + 1e-9), math.ceil(high - 1e-9)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TailAdjustment:
        shapes = {"location": (3,), "scale": (2,), "within": (2,)}
        return cls(**{name: shaped(arrays, name, shape) for name, shape in shapes.items()})


def _quantile_regression(terms: np.ndarray, values: np.ndarray, share: float) -> np.ndarray:
    """The coefficients β of the linear quantile that minimise Σ ρ(values − terms β).

    They are the multipliers of the dual problem: maximise ⟨a, values⟩ subject to termsᵀa = (1 − share) termsᵀ1 and
    0 ≤ a ≤ 1 (Koenker, "Quantile regression", 2005, section 6.2).
    """
    right = (1 - share) * terms.sum(axis=0)
    found = linprog(-values, A_eq=terms.T, b_eq=right, bounds=(0, 1), method="highs")
    return -np.asarray(found.eqlin.marginals)


def shaped(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A saved array; BadInput unless it is finite and has this shape, with −1 for any length."""
    if name not in arrays:
        raise BadInput(f"the baseline holds no {name!r} where it should; calibrate again")
    found = arrays[name]
    if found.ndim != len(shape) or any(want not in (-1, have) for want, have in zip(shape, found.shape, strict=True)):
        raise BadInput(f"{name!r} in the baseline has shape {found.shape}, not {shape}; calibrate again")
    if not np.isfinite(found).all():
        raise BadInput(f"{name!r} in the baseline holds a number that is not finite; calibrate again")
    return found


def _terms(log_n: np.ndarray, within: np.ndarray) -> np.ndarray:
    """1, ℓ, ℓ² of each text, (texts, 3)."""
    kept = np.clip(log_n, *within)
    return np.stack([np.ones_like(kept), kept, kept**2], axis=1)
