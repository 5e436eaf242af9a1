"""Taking the number of tokens out of a statistic: all of them depend on it, and other lengths alone are no alarm.

Location and scale are regressed on ℓ = log n, over clean texts that were not used to fit the number itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from metastable.errors import BadInput

OUTERMOST = 0.005
"""Share of texts at either end whose lengths are too rare to say what is normal there."""

EXACT = 1e-9
"""A column whose residual is less than this part of the column is a function of the length, but for rounding."""


@dataclass(frozen=True)
class Adjustment:
    """z = (s − a − b·ℓ − c·ℓ²)/e^{g + h·ℓ} for each column s, ℓ = log n kept within the range that it was fitted on.

    location : (3, k), rows a, b, c
    scale : (2, k), rows g, h
    within : (2,), least and greatest ℓ
    """

    location: np.ndarray
    scale: np.ndarray
    within: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray, lengths: np.ndarray) -> Adjustment:
        """Least squares for the location, then for log|residual|; g is put so that the mean square of z is 1.

        columns : (texts, k)
        lengths : (texts,), the number n ≥ 1 of each text's tokens
        """
        log_n = np.log(lengths)
        within = np.quantile(log_n, [OUTERMOST, 1 - OUTERMOST])
        terms = _terms(log_n, within)
        location = np.linalg.lstsq(terms, columns, rcond=None)[0]
        residual = columns - terms @ location
        spread = residual.std(axis=0)
        # One residual that happens to be 0 must not draw the regression of its logarithm to −∞.
        scale = np.linalg.lstsq(terms[:, :2], np.log(np.abs(residual) + 1e-3 * spread + 1e-300), rcond=None)[0]
        empty = spread <= EXACT * np.abs(columns).max(axis=0)
        # Nothing is left of such a column; it keeps its own spread as the unit, so that z does not blow up rounding.
        own = columns.std(axis=0)
        scale[:, empty] = 0.0
        scale[0, empty] = np.log(np.where(own > 0, own, 1.0))[empty]
        square = np.mean((residual / np.exp(terms[:, :2] @ scale)) ** 2, axis=0)
        scale[0, ~empty] += 0.5 * np.log(square[~empty])
        return cls(location, scale, within)

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """(texts, k) columns of texts of these lengths to (texts, k) z."""
        terms = _terms(np.log(lengths), self.within)
        return np.asarray((columns - terms @ self.location) / np.exp(terms[:, :2] @ self.scale))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"location": self.location, "scale": self.scale, "within": self.within}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], columns: int) -> Adjustment:
        """What `to_arrays` gave, for so many columns."""
        shapes = {"location": (3, columns), "scale": (2, columns), "within": (2,)}
        return cls(**{name: shaped(arrays, name, shape) for name, shape in shapes.items()})


def shaped(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A saved array of this shape, −1 standing for any length, all of it finite."""
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
