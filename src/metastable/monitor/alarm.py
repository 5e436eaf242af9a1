"""An alarm on a stream of p-values that were all computed against one fixed calibration set of m texts.

**The problem.** Given the calibration set, the conformal p-values of clean texts are independent but not uniform: rank
j has probability Δ_j, the gap between neighbouring clean tail probabilities, and not 1/(m + 1). Bets that are fair for
uniform p-values can have a positive expected gain for a given calibration set, so over a long clean stream their
capital grows. The law of the gaps is known, whatever the law of the scores: for continuous scores (Δ_1 … Δ_{m+1}) is
uniform on the simplex. With ties, ranks are larger, and everything below still holds.

**The bets.** A bettor κ in (0, 1) has the payoff κ p^{κ−1} on p-values, averaged over each of the m + 1 ranks:

    f_j = (m + 1) ((j/(m + 1))^κ − ((j − 1)/(m + 1))^κ),      Σ_j f_j/(m + 1) = 1,  f decreasing

(beyond rank 200, averaged over ranks within 1 %: `steps`). Its expected payoff on clean text, given the calibration
set, is Σ f_j Δ_j. With a price q_κ such that P(Σ f_j Δ_j > q_κ) ≤ δ/K for each of the K bettors (`price`),
e_j = f_j/q_κ satisfies E[e | calibration] ≤ 1 for all bettors at once with probability 1 − δ over calibration sets.
This needs one number per bettor. It does not need all p-values to be super-uniform at once, so it loses less power
than the same bets on calibration-conditional p-values.

**Texts of documents.** Texts of one document are alike, so m of them say less than m independent ones, and the gaps
vary more. If they are worth m' independent texts (see `worth`), the price is computed with gaps uniform on fewer
dimensions: with Δ from the Dirichlet law of parameters (m' + 1)/(m + 1) in place of 1, which has the same mean and the
larger variance.

**The guarantee** holds for clean texts that are independent draws from the law of the calibration texts. It does not
hold for long runs of texts on one topic, or for the sentences of one document in their order.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq

from metastable.arrays import positive, whole
from metastable.errors import BadInput
from metastable.monitor.conformal import numbers, share

# κ of each bettor: small for a few texts far outside, near 1 for a slight shift of many texts.
BETTORS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
# Texts: the time scale on which capital that is not at work from the start begins to bet; see `Alarm`.
PATIENCE = 100
# Texts processed at once: bounds memory.
BATCH = 4096
# The share of the calibration texts, those with the highest scores, whose spread over documents is looked at.
TENTH = 0.1


def steps(texts: int) -> np.ndarray:
    """0 = a_0 < a_1 < … = m + 1: ranks a_{b−1} < j ≤ a_b share one payoff. Up to 200 a step is one rank, then 1 %."""
    edges = [0]
    while edges[-1] <= texts:
        edges.append(min(edges[-1] + max(1, edges[-1] // 100), texts + 1))
    return np.array(edges)


def payoffs(edges: np.ndarray, kappa: float) -> np.ndarray:
    """f_b on each step of ranks: decreasing, of mean 1 over all ranks."""
    a = edges.astype(np.float64)
    with np.errstate(divide="ignore"):
        # a_b^κ − a_{b−1}^κ without cancellation.
        rises = -np.expm1(kappa * np.log(a[:-1] / a[1:])) * a[1:] ** kappa
    return rises * a[-1] ** (1 - kappa) / np.diff(a)


def price(values: np.ndarray, sizes: np.ndarray, delta: float) -> float:
    """The q with P(Σ v_b Δ_b > q) = δ, Δ_b the probability of a step of n_b ranks, for clean continuous scores.

    Δ_b = γ_b/Σγ with independent gamma variables of shapes n_b (whole or not), so the event is X = Σ (v_b − q) γ_b > 0.
    The moment generating function of X is M(λ) = Π (1 − λ(v_b − q))^{−n_b}, and for any λ > 0 in its range

        P(X > 0) = (1/π) ∫_0^∞ Re M(λ + iy)/(λ + iy) dy  ≤  M(λ).

    The right side, at its best λ, is Chernoff's bound. With θ = λ/(1 + λq), that λ satisfies

        q = Σ n_b v_b w_b/Σ n_b w_b,   w_b = 1/(1 − θ v_b),

    which leaves one equation in θ. Along the line through that λ the integrand neither oscillates nor cancels. If it
    decays too slowly for a sum (a handful of texts, a very large δ), a larger q is returned, which is safe.
    """
    top, target = float(values.max()), math.log(delta)

    def excess(x: float, exact: bool) -> float:
        return _log_tail(x, values, sizes, exact)[1] - target

    # x = 30 is the end of the range: the bound there is far below any useful δ, unless there are very few ranks.
    if top - float(values.min()) <= 1e-12 * top or excess(30.0, exact=False) > 0:
        return top
    high = x = brentq(excess, 0.0, 30.0, args=(False,), xtol=1e-9)
    while excess(x, exact=True) <= 0:
        high, x = x, 0.8 * x
    best = brentq(excess, x, high, args=(True,), xtol=1e-9) if excess(x, exact=True) > 0 else high
    return _log_tail(best, values, sizes, exact=False)[0]


def _log_tail(x: float, values: np.ndarray, sizes: np.ndarray, exact: bool) -> tuple[float, float]:
    """For θ = (1 − e^{−x})/max v: q, and log P(X > 0), exact or by Chernoff's bound; NaN if the sum diverges."""
    theta = -math.expm1(-x) / float(values.max())
    w = sizes / (1 - theta * values)
    q = float(values @ w / w.sum())
    rest = 1 - theta * q
    bound = float(sizes.sum()) * math.log(rest) - float(sizes @ np.log1p(-theta * values))
    if not exact:
        return q, bound
    # 1 − (λ + iy) a = (1 − λa)(1 − iyr) with a = v − q, 1 − λa = (1 − θv)/rest.
    r = (values - q) * rest / (1 - theta * values)
    width, pole = 1 / math.sqrt(float(sizes @ r**2)), theta / rest
    h, total = 0.1 * min(width, pole), 0.5 / pole
    for first in range(1, 4096, 64):
        y = h * np.arange(first, first + 64)
        ry = np.outer(y, r)
        size = np.exp(-0.5 * np.log1p(ry**2) @ sizes)
        total += float((size * np.exp(1j * (np.arctan(ry) @ sizes)) / (pole + 1j * y)).real.sum())
        if size[-1] < 1e-12:
            return q, bound + math.log(h * total / math.pi)
    return q, math.nan


def worth(scores: np.ndarray, documents: np.ndarray) -> float:
    """How many independent texts the calibration texts are worth to the alarm: `worth_of_means` of x.

    x_i = 1 for texts among the highest tenth of the scores, and 0 for others.

    scores : (m,); documents : (m,) labels
    """
    return worth_of_means((scores >= np.quantile(scores, 1 - TENTH)).astype(np.float64)[:, None], documents)


def worth_of_means(x: np.ndarray, documents: np.ndarray) -> float:
    """How many independent texts have means of x that vary as much: m' = m/max(1, D), D the design effect.

    D is the variance of the mean of x over that of independent texts. With the sums over documents k and their texts,

        D = Σ_k (Σ_{i in k} (x_i − x̄))² / Σ_i (x_i − x̄)²,

    the mean of that over the columns of x, without columns that do not vary. It is 1 if every text is its own document.

    x : (m, k); documents : (m,) labels
    """
    rest = x - x.mean(axis=0)
    total = np.square(rest).sum(axis=0)
    own = np.unique(documents, return_inverse=True)[1]
    sums = np.zeros((own.max() + 1, x.shape[1]))
    np.add.at(sums, own, rest)
    vary = total > 1e-12 * np.maximum(1.0, np.square(x).sum(axis=0))
    effects = np.square(sums).sum(axis=0)[vary] / total[vary]
    return float(len(x) / max(1.0, effects.mean() if len(effects) else 1.0))


@lru_cache(maxsize=8)
def log_payoffs(texts: int, delta: float, independent: float | None = None) -> np.ndarray:
    """log e_j of every bettor, shape (m + 1, K). independent : m', see the module; m unless given"""
    edges = steps(texts)
    sizes = np.diff(edges)
    shapes = sizes if independent is None else sizes * ((independent + 1) / (texts + 1))
    columns = []
    for kappa in BETTORS:
        f = payoffs(edges, kappa)
        columns.append(np.repeat(np.log(f) - math.log(price(f, shapes, delta / len(BETTORS))), sizes))
    table = np.stack(columns, axis=1)
    table.setflags(write=False)
    return table


class Alarm:
    """An alarm that a clean stream of any length raises with probability at most α, calibration included.

        E_t = Σ_κ Σ_{s ≤ t} (w_s/K) Π_{i=s}^{t} e_κ(p_i) + C_t,      raised when E_t ≥ 1/(α − δ)

    Capital w_s starts to bet with text s, and C_t = 1 − Σ_{s≤t} w_s = ½/(1 + log(1 + t/100)) has not started by text
    t. Half of all capital bets from the first text on. The other half starts so slowly that after thousands of clean
    texts there is still capital left for a late change. Given a calibration set with E[e | calibration] ≤ 1, E_t is a
    supermartingale that starts from 1. By Ville's inequality it ever reaches 1/(α − δ) with probability at most α − δ;
    other calibration sets have probability at most δ. The sum is α.

    texts : m, the number of calibration texts behind the p-values, which are marginal: `Calibration.p_values`
    alpha : the probability that a clean stream ever raises the alarm is at most alpha
    delta : the part of alpha for unlucky calibration sets; alpha/2 unless given
    episode : the number of the episode, for streams with several alarms; see `episodes`
    independent : m', how many independent texts the calibration texts are worth; m unless given, see `worth`

    Attributes
    ----------
    count : p-values taken so far
    log_e : log E_t
    peak : the maximum of log_e so far
    raised_at : the number (from 1) of the p-value that raised the alarm, or None; the alarm stays raised
    raised_log_e : log_e when the alarm was raised

    >>> alarm = Alarm(texts=1000, alpha=0.01)
    >>> alarm.update([0.3, 0.9, 0.5, 0.7]), alarm.update([0.001, 0.004, 0.002, 0.001, 0.001]), alarm.raised_at
    (False, True, 9)
    """

    def __init__(
        self,
        texts: int,
        alpha: float = 0.01,
        delta: float | None = None,
        episode: int = 1,
        independent: float | None = None,
    ) -> None:
        self.episode = episode
        self.alpha = share(alpha, "alpha")
        self.delta = self.alpha / 2 if delta is None else share(delta, "delta")
        if self.delta >= self.alpha:
            raise BadInput(f"delta is {delta!r}; it is a part of alpha and must be below {self.alpha}")
        self.texts = whole(texts, "texts", 1, "it must be the number of calibration texts")
        self.independent = None if independent is None else checked_worth(independent, self.texts)
        self.count = 0
        self.log_e = self.peak = 0.0
        self.raised_at: int | None = None
        self.raised_log_e: float | None = None
        # With L_t = Σ_{i≤t} log e(p_i), a bettor's log capital is L_t + D_t, D_t = log(e^{D_{t−1}} + w_t e^{−L_{t−1}}).
        self._sum = np.zeros(len(BETTORS))
        self._scaled = np.full(len(BETTORS), math.log(0.5 / len(BETTORS)))

    @property
    def threshold(self) -> float:
        """log 1/(α − δ): the alarm is raised when `log_e` reaches it."""
        return -math.log(self.alpha - self.delta)

    def update(self, p: Any) -> bool:
        """Take one p-value, or several in their order. Returns whether the alarm is raised by now."""
        self.evidence(p)
        return self.raised_at is not None

    def evidence(self, p: Any) -> np.ndarray:
        """Take p-values as `update` does; returns `log_e` after each of them, (n,).

        Sums run in the order of the texts, so no bit of the result depends on how a stream is cut into calls. A p-value
        outside (0, 1] is refused, and then none of the p-values counts.
        """
        found = p_values(p)
        parts = [self._take(found[first : first + BATCH]) for first in range(0, len(found), BATCH)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _take(self, p: np.ndarray) -> np.ndarray:
        t = self.count + np.arange(len(p) + 1)
        spent = 1 + np.log1p(t / PATIENCE)
        # C_{t−1} − C_t without cancellation.
        started = np.log(0.5 * np.log1p(1 / (PATIENCE + t[:-1])) / (spent[:-1] * spent[1:]) / len(BETTORS))
        log_e = log_payoffs(self.texts, self.delta, self.independent)[ranks(p, self.texts) - 1]
        sums = np.add.accumulate(np.vstack([self._sum, log_e]))
        scaled = np.logaddexp.accumulate(np.vstack([self._scaled, started[:, None] - sums[:-1]]))
        total = np.logaddexp(np.logaddexp.reduce((sums + scaled)[1:], axis=1), np.log(0.5 / spent[1:]))
        over = np.flatnonzero(total >= self.threshold)
        if self.raised_at is None and len(over):
            self.raised_at, self.raised_log_e = self.count + 1 + int(over[0]), float(total[over[0]])
        self.count += len(p)
        self._sum, self._scaled = sums[-1], scaled[-1]
        self.log_e, self.peak = float(total[-1]), max(self.peak, float(total.max()))
        return np.asarray(total)


def checked_worth(independent: Any, texts: int) -> float:
    found = positive(independent, "independent")
    if found > texts:
        raise BadInput(
            f"independent is {found:g}; {texts} calibration texts are worth at most {texts} independent ones"
        )
    return found


def p_values(values: Any) -> np.ndarray:
    """A row of p-values, (n,), from one number or several; BadInput for any that is outside (0, 1]."""
    found = np.atleast_1d(numbers(values, "the p-values"))
    if found.ndim != 1:
        raise BadInput(f"the p-values have shape {found.shape}; give one p-value per text, in one row")
    outside = (found <= 0) | (found > 1)
    if outside.any():
        raise BadInput(f"a p-value is {found[outside][0]}; p-values are above 0 and at most 1")
    return found


def ranks(p: np.ndarray, texts: int) -> np.ndarray:
    """j of p-values j/(m + 1), up to rounding."""
    return np.maximum(np.ceil(p * (texts + 1) - 1e-6).astype(np.int64), 1)
