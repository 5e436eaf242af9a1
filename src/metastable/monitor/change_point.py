"""Where a stream of p-values changed: an estimate with an interval.

**The model.** Of n texts, those after place s and up to place e are shifted, 0 ≤ s < e ≤ n; all others are clean.
P-values of clean texts are uniform. Those of shifted texts have a density h from the list `LAWS`: with κ in (0, 1) and
a share ε of affected texts,

    h(p) = 1 − ε + ε κ p^{κ−1},

averaged over each of the m + 1 ranks, as in `alarm`. With C_t = Σ_{i ≤ t} log h(p_i), the likelihood of (s, e), divided
by that of a clean stream, is exp(C_e − C_s). A change may last to the end (prior probability ½) or end at any place
(the other half, evenly). Every s and every h is equally likely beforehand, so

    P(s | p) ∝ Σ_h Σ_{e > s} w_e exp(C_e − C_s),      w_n = ½ + ½/n,  w_e = ½/n otherwise.

**The interval** is the range of the smallest set of places that holds 95 % of this probability. If both laws are known
and the stream is long on both sides, moving the change by k texts moves the likelihood by k places. For such a family,
sets of probability 1 − a under the even prior contain the true place with probability 1 − a, wherever it is. That h is
one of a list of laws costs little (`tests/monitor/test_change_point.py` measures the coverage).

**No change** is reported unless the evidence reaches 1/(α − δ), δ = α/2. The evidence is the mean of the likelihood
ratios above, over s and over those h whose κ is one of the alarm's, with the alarm's priced payoffs in place of
κ p^{κ−1}. It is an e-value for all but a share δ of calibration sets (see `alarm`), so by Markov's inequality a clean
stream reports a change with probability at most α.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from metastable.monitor.alarm import BETTORS, log_payoffs, p_values, payoffs, ranks, steps
from metastable.monitor.conformal import share

# (ε, κ) of each law of shifted p-values: all texts are shifted, or a share of them is far outside.
LAWS = (*((1.0, kappa) for kappa in BETTORS), *((part, k) for part in (0.5, 0.2, 0.1, 0.05) for k in (0.02, 0.1, 0.3)))
# The probability that the interval contains the place of a change.
LEVEL = 0.95


@dataclass(frozen=True)
class PlaceEstimate:
    """The number of a text, from 1, and the smallest and the largest number that are plausible."""

    text: int
    low: int
    high: int


@dataclass(frozen=True)
class ChangePoint:
    """begin : the first shifted text. end : the last one; None if the change may last to the end of the stream."""

    begin: PlaceEstimate
    end: PlaceEstimate | None


def change_point(
    p: Any, texts: int, alpha: float = 0.01, level: float = LEVEL, independent: float | None = None
) -> ChangePoint | None:
    """The change of a stream of marginal p-values, (n,); None if there is no evidence for one.

    texts : m, the number of calibration texts behind the p-values
    alpha : the probability that a change is reported for a clean stream is at most alpha
    level : the probability that an interval contains its place, if there is one change
    independent : of `Alarm`

    >>> change_point([0.31, 0.9, 0.52, 0.7, 0.24] * 4 + [0.002, 0.004, 0.001, 0.003] * 3, texts=999).begin.text
    21
    """
    found, alpha = p_values(p), share(alpha, "alpha")
    if not len(found):
        return None
    rows = ranks(found, texts) - 1
    priced = np.exp(log_payoffs(texts, alpha / 2, independent))
    known = [(part, BETTORS.index(kappa)) for part, kappa in LAWS if kappa in BETTORS]
    evidence = [logsumexp(_places(_log_law(part, priced[:, column])[rows])[0]) for part, column in known]
    if logsumexp(evidence) - math.log(len(known)) < -math.log(alpha / 2):
        return None
    edges = steps(texts)
    begin = end = np.full(len(found), -np.inf)
    for part, kappa in LAWS:
        own = _places(_log_law(part, np.repeat(payoffs(edges, kappa), np.diff(edges)))[rows])
        begin, end = np.logaddexp(begin, own[0]), np.logaddexp(end, own[1])
    last = _interval(end, level)
    return ChangePoint(_interval(begin, level), None if last.high == len(found) else last)


def _log_law(part: float, payoff: np.ndarray) -> np.ndarray:
    """log h of each rank, (m + 1,)."""
    return np.log1p(part * (payoff - 1))


def _places(log_h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the sums over e > s, for s = 0 … n − 1, and over s < e, for e = 1 … n, with both priors."""
    n = len(log_h)
    c = np.concatenate([[0.0], np.cumsum(log_h)])
    ending = c[1:] + math.log(0.5 / n)
    ending[-1] = c[-1] + math.log(0.5 + 0.5 / n)
    begin = np.logaddexp.accumulate(ending[::-1])[::-1] - c[:-1] - math.log(n)
    return begin, np.logaddexp.accumulate(-c[:-1]) + ending - math.log(n)


def _interval(log_weights: np.ndarray, level: float) -> PlaceEstimate:
    """The most probable of the texts 1 … n, and the range of the smallest set of texts with this probability."""
    weights = np.exp(log_weights - log_weights.max())
    order = np.argsort(-weights, kind="stable")
    count = int(np.searchsorted(np.cumsum(weights[order]), level * weights.sum())) + 1
    within = order[:count] + 1
    return PlaceEstimate(int(order[0]) + 1, int(within.min()), int(within.max()))
