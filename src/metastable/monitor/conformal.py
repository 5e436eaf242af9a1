"""Conformal p-values: the rank of a text's score among the scores of clean calibration texts.

With calibration scores c_1 … c_m and a new score s, higher meaning more anomalous, the rank is
j = 1 + #{i : c_i ≥ s}, from 1 (above all) to m + 1.

**Marginal**: p = j/(m + 1). If s is exchangeable with the calibration scores, P(p ≤ t) ≤ t on average over calibration
sets. For one given calibration set the share of clean texts with p ≤ t can be above t, and it stays there.

**Calibration-conditional** (Bates, Candès, Lei, Romano, Sesia, "Testing for outliers with conformal p-values", Annals
of Statistics 51, 2023): p = b_j with a ladder b_1 ≤ … ≤ b_{m+1} = 1 for which, with probability 1 − δ over calibration
sets, P(p ≤ t | calibration) ≤ t for all t at once. See `ladder`.

Several scores of one text (layers, detectors) become one score by `Surprise`, fitted on texts that are *not* the
calibration texts, and then `worst` or a weighted sum. A `Calibration` of the result makes the p-value valid, whatever
the dependence between the scores.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from metastable.arrays import real, whole
from metastable.errors import BadInput

# The share of δ that the generalised Simes inequality gets in `ladder`; the DKW inequality gets the rest.
SIMES = 0.9
# `Surprise` continues beyond the largest fitted score with the exponential tail of this upper share of the scores.
TAIL = 0.1
# The least distance of two knots of a `Surprise`, as a share of the interquartile range of the scores. Two scores may
# be arbitrarily close by chance, and a line through both would amplify rounding without a bound.
APART = 0.05


class Calibration:
    """The scores of m clean texts, (m,), and the ranks and p-values of new scores of any shape among them.

    >>> Calibration(range(99)).p_values([98.5, 90.5, -1.0]).tolist()
    [0.01, 0.09, 1.0]
    """

    def __init__(self, scores: Any) -> None:
        found = numbers(scores, "the calibration scores")
        if found.ndim != 1 or not len(found):
            raise BadInput(f"the calibration scores have shape {found.shape}; give one score per text")
        self.scores = np.sort(found)

    @property
    def texts(self) -> int:
        """m."""
        return len(self.scores)

    def ranks(self, scores: Any) -> np.ndarray:
        """j = 1 + #{i : c_i ≥ s}: 1 for a score above all calibration scores, m + 1 for one below all."""
        return 1 + self.texts - np.searchsorted(self.scores, numbers(scores, "the scores", finite=False))

    def p_values(self, scores: Any) -> np.ndarray:
        """Marginal p-values j/(m + 1)."""
        return np.asarray(self.ranks(scores) / (self.texts + 1))


def ladder(texts: int, delta: float) -> np.ndarray:
    """b_1 ≤ … ≤ b_{m+1} = 1, shape (m + 1,), that turns ranks into calibration-conditional p-values.

    b_j is the smaller of two bounds, one with δ₁ = 0.9 δ and one with δ₂ = 0.1 δ:

        1 − (δ₁ · Π_{l<k} (m − j + 1 − l)/(m − l))^{1/k},  k = ⌊m/2⌋   (1 where a factor is ≤ 0)
        (j − 1)/m + (log(1/δ₂)/(2m))^{1/2}

    Why: let U_i = P(S ≥ c_i) be the clean tail probability of c_i, and u that of the new score. For continuous scores
    the U_i are independent and uniform, and rank j says that j − 1 of them are ≤ u, so u ≤ U_(j). Where U_(j) ≤ b_j
    for all j, u ≤ b_j = p, hence P(p ≤ t | calibration) ≤ P(u ≤ t) ≤ t for all t. It remains that
    P(U_(j) ≤ b_j for all j) ≥ 1 − δ. The first bound is Sarkar's generalised Simes inequality for the m − j + 1-st
    smallest of 1 − U_i, the second the one-sided Dvoretzky–Kiefer–Wolfowitz inequality with Massart's constant
    (δ₂ ≤ ½); the union bound joins them. With ties, uniform U_i are drawn between P(S > c_i) and P(S ≥ c_i): those of
    the j − 1 calibration scores ≥ s are ≤ u, the others ≥ u, and the same follows.

    Simes is the sharper one for small p: b_1 ≈ 2 log(1/δ₁)/m, while DKW never gets below (log(1/δ₂)/(2m))^{1/2}; DKW
    is the sharper one from the middle on, where Simes gives 1.
    """
    m = whole(texts, "the number of calibration texts", 1, "there must be at least one")
    d = share(delta, "delta")
    j = np.arange(1, m + 1)
    dkw = (j - 1) / m + math.sqrt(-math.log((1 - SIMES) * d) / (2 * m))
    steps = np.minimum(dkw, 1.0)
    k = m // 2
    if k:
        left = np.maximum(m - j + 1 - k, 0)
        log_product = gammaln(m - j + 2) - gammaln(left + 1) - gammaln(m + 1) + gammaln(m - k + 1)
        simes = -np.expm1((math.log(SIMES * d) + log_product) / k)
        steps = np.where(m - j + 1 >= k, np.minimum(simes, steps), steps)
    return np.append(np.maximum.accumulate(steps), 1.0)


def needed(alpha: float, delta: float) -> int:
    """The least number m of calibration texts for which a calibration-conditional p-value ≤ α exists.

    That is b_1 ≤ α (see `ladder`), for which either bound is enough: ⌊m/2⌋ ≥ log(δ₁)/log(1 − α), or
    m ≥ log(1/δ₂)/(2α²). So m is about 2 log(1/δ)/α.

    >>> needed(0.01, delta=0.1)
    480
    """
    a, d = share(alpha, "alpha"), share(delta, "delta")
    simes = 2 * math.ceil(math.log(SIMES * d) / math.log1p(-a))
    # For small α Simes needs fewer texts, and α² may be too small for a float.
    dkw = math.ceil(-math.log((1 - SIMES) * d) / (2 * a**2)) if a > 1e-6 else simes
    return min(simes, dkw)


class Surprise:
    """−log of an estimated tail probability, per score: puts unlike scores on one scale before they are combined.

    Fitted on the scores (n, k) of n clean texts. In each column, the i-th smallest score gets
    −log((n + 1 − i)/(n + 1)), with linear interpolation between scores that are far enough apart (`APART`). Above the
    largest score the line continues with slope 1/(mean excess of the upper tenth), an exponential tail, so that texts
    far outside stay ordered. It is a fixed increasing function: a wrong tail costs power, never validity, provided that
    the fitted texts are not the calibration texts.
    """

    def __init__(self, scores: Any) -> None:
        found = numbers(scores, "the fitted scores")
        if found.ndim != 2 or 0 in found.shape:
            raise BadInput(f"the fitted scores have shape {found.shape}; give (texts, scores per text)")
        self.scores = np.sort(found, axis=0)
        self._curves = [_Curve.of(own) for own in self.scores.T]

    def __call__(self, scores: Any) -> np.ndarray:
        """(…, k) scores to (…, k) surprises: 0 or more, increasing in the score."""
        new, k = numbers(scores, "the scores", finite=False), self.scores.shape[1]
        if new.ndim == 0 or new.shape[-1] != k:
            raise BadInput(f"the scores have shape {new.shape}; the last axis must hold the {k} scores of a text")
        return np.stack([curve(new[..., i]) for i, curve in enumerate(self._curves)], axis=-1)


class _Curve(NamedTuple):
    """The surprise as a function of one score: linear between the knots, and beyond the last one with this slope."""

    values: np.ndarray
    heights: np.ndarray
    slope: float

    @classmethod
    def of(cls, own: np.ndarray) -> _Curve:
        """own : (n,), the fitted scores in order"""
        # Among equal scores the last one counts (rank by #{> s}), so that the result is a function of the score.
        values, last = np.unique(own[::-1], return_index=True)
        heights = np.log(len(own) + 1) - np.log(1 + last)
        start = own[int((1 - TAIL) * (len(own) - 1))]
        excess = float(np.mean(own[own >= start] - start))
        # If all upper scores are equal, there is no tail to estimate, and any slope keeps the order.
        slope = 1 / excess if excess > 0 else 1.0
        least = APART * float(np.subtract(*np.quantile(own, [0.75, 0.25])))
        knots = [len(values) - 1]
        for place in range(len(values) - 2, -1, -1):
            if values[knots[-1]] - values[place] >= least:
                knots.append(place)
        return cls(values[knots[::-1]], heights[knots[::-1]], slope)

    def __call__(self, new: np.ndarray) -> np.ndarray:
        beyond = np.maximum(new - self.values[-1], 0.0)
        return np.asarray(np.interp(new, self.values, self.heights) + self.slope * beyond)


def worst(surprises: Any) -> np.ndarray:
    """(…, k) to (…,): the largest surprise, which is the least p-value.

    A `Calibration` of `worst(surprises of the calibration texts)` gives, from `surprises` (…, k) of new texts, a
    p-value for each layer that is corrected for all k of them (Westfall and Young's max-T, with calibration texts in
    place of permutations), and their minimum is the p-value of `worst(surprises)`: exact for exchangeable texts,
    whatever the dependence between layers. Bonferroni's k·min p loses most where layers agree; Šidák's
    1 − (1 − min p)^k and the harmonic mean need independence or large samples.
    """
    return np.asarray(numbers(surprises, "the surprises", finite=False).max(axis=-1))


def numbers(values: Any, name: str, finite: bool = True) -> np.ndarray:
    """A float64 array without NaN, and without infinities where `finite`."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} are not an array of numbers: {str(error).splitlines()[0]}") from error
    bad = ~np.isfinite(found) if finite else np.isnan(found)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise BadInput(f"{name} hold {found[place]} at {list(place)}; leave out the texts that have no score")
    return found


def share(value: Any, name: str) -> float:
    """A number strictly between 0 and 1."""
    rule = "it must be above 0 and below 1"
    found = real(value, name, rule)
    if not 0 < found < 1:
        raise BadInput(f"{name} is {value!r}; {rule}")
    return found
