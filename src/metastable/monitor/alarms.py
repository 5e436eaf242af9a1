"""Alarms on a stream of p-values that were all computed against one fixed calibration set of m texts.

**The trouble.** Given the calibration set, the conformal p-values of clean texts are independent but not uniform: rank j
comes with probability Δ_j, the gap between neighbouring clean tail probabilities, and not with 1/(m + 1). Bets that are
fair for uniform p-values can have a positive expected gain against a given calibration set, and over a long clean
stream they become rich. What is known, whatever the law of the scores, is the law of the gaps: for continuous scores
(Δ_1 … Δ_{m+1}) is uniform on the simplex. With ties, ranks are larger, and everything below still holds.

**The bets.** A bettor κ in (0, 1) has the payoff κ p^{κ−1} on p-values, averaged over the m + 1 steps of the rank:

    f_j = (m + 1) ((j/(m + 1))^κ − ((j − 1)/(m + 1))^κ),      Σ_j f_j/(m + 1) = 1,  f decreasing.

Its expected payoff on clean text, given the calibration set, is Σ f_j Δ_j. With a price q_κ such that
P(Σ f_j Δ_j > q_κ) ≤ δ/K for each of the K bettors (`price`), e_j = f_j/q_κ satisfies E[e | calibration] ≤ 1 for all
bettors at once with probability 1 − δ over calibration sets. This asks for one number a bettor, and not for all p-values
to be super-uniform at once, and so loses far less than betting on calibration-conditional p-values.

**What is promised** holds for clean texts that are independent draws from the law of the calibration texts. Texts in
long runs of one topic, or sentences of one document in their order, are not: then it does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq

from metastable.arrays import real, whole
from metastable.errors import BadInput
from metastable.monitor.conformal import numbers, share

BETTORS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
"""κ of each bettor: small for few texts far outside, near 1 for a slight shift of many."""

PATIENCE = 100
"""Texts. Over this time half of the capital that is not at work from the start is laid out; see `Alarm`."""


def steps(texts: int) -> np.ndarray:
    """0 = a_0 < a_1 < … = m + 1: ranks a_{b−1} < j ≤ a_b are one to the bettors, single ones up to 200, then within 1 %."""
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
    """The q with P(Σ v_b Δ_b > q) = δ, where Δ_b is the share of a step of n_b ranks, for clean continuous scores.

    Δ_b = γ_b/Σγ with independent gamma variables of shapes n_b, so the event is X = Σ (v_b − q) γ_b > 0. The moment
    generating function of X is M(λ) = Π (1 − λ(v_b − q))^{−n_b}, and for any λ > 0 in its range

        P(X > 0) = (1/π) ∫_0^∞ Re M(λ + iy)/(λ + iy) dy  ≤  M(λ).

    The right side, at its best λ, is Chernoff's bound. With θ = λ/(1 + λq), that λ satisfies

        q = Σ n_b v_b w_b/Σ n_b w_b,   w_b = 1/(1 − θ v_b),

    which leaves one equation in θ. Along the line through that λ the integrand neither oscillates nor cancels. Where
    it decays too slowly to be summed up (a handful of texts), the q of Chernoff's bound is returned: larger, hence safe.
    """
    top, target = float(values.max()), math.log(delta)

    def excess(x: float, exact: bool) -> float:
        return _log_tail(x, values, sizes, exact)[1] - target

    # The end of the range, at e^{−30}: the bound is far below any δ of use there, unless there are next to no ranks.
    if top - float(values.min()) <= 1e-12 * top or excess(30.0, exact=False) > 0:
        return top
    high = x = brentq(excess, 0.0, 30.0, args=(False,), xtol=1e-9)
    while excess(x, exact=True) <= 0:
        high, x = x, 0.8 * x
    if excess(x, exact=True) > 0:
        x = brentq(excess, x, high, args=(True,), xtol=1e-9)
    else:
        x = high
    return _log_tail(x, values, sizes, exact=False)[0]


def _log_tail(x: float, values: np.ndarray, sizes: np.ndarray, exact: bool) -> tuple[float, float]:
    """For θ = (1 − e^{−x})/max v: q, and log P(X > 0), exact or by Chernoff's bound; NaN where it cannot be had."""
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


@lru_cache(maxsize=8)
def _log_payoffs(texts: int, delta: float) -> np.ndarray:
    """log e_j of every bettor, shape (m + 1, K)."""
    edges = steps(texts)
    sizes = np.diff(edges)
    columns = []
    for kappa in BETTORS:
        f = payoffs(edges, kappa)
        columns.append(np.repeat(np.log(f) - math.log(price(f, sizes, delta / len(BETTORS))), sizes))
    table = np.stack(columns, axis=1)
    table.setflags(write=False)
    return table


class _Bets:
    """The capital of each bettor, in logarithms, and the reading of p-values. `texts` may be inf: see `Alarm`."""

    def __init__(self, texts: float, delta: float) -> None:
        rule = "it must be the number of calibration texts, or inf for p-values that are valid given these"
        self.texts: float = math.inf if texts == math.inf else whole(texts, "texts", 1, rule)
        self.delta = delta
        self.count = 0
        self.raised_at: int | None = None
        self._capital = np.full(len(BETTORS), -math.inf)

    def update(self, p: Any) -> bool:
        """Take one p-value, or several in their order; is the alarm raised? A p-value out of (0, 1] changes nothing."""
        found = np.atleast_1d(numbers(p, "the p-values"))
        if found.ndim != 1 or ((found <= 0) | (found > 1)).any():
            raise BadInput(f"the p-values are {_shown(found)}; give numbers above 0 and at most 1, in one row")
        for row in self._rows(found):
            self.count += 1
            self._take(row)
        return self.raised_at is not None

    def _take(self, log_e: np.ndarray) -> None:
        raise NotImplementedError

    def _rows(self, p: np.ndarray) -> np.ndarray:
        """log e of each p-value and bettor, (n, K)."""
        if self.texts == math.inf:
            kappa = np.array(BETTORS)
            return np.log(kappa) + (kappa - 1) * np.log(p)[:, None]
        # p = j/(m + 1) up to rounding; a randomised p-value belongs to the step that it lies on.
        ranks = np.ceil(p * (self.texts + 1) - 1e-6).astype(np.int64)
        return _log_payoffs(int(self.texts), self.delta)[np.clip(ranks, 1, int(self.texts) + 1) - 1]

    def _kept(self) -> dict[str, Any]:
        return {
            "texts": None if self.texts == math.inf else self.texts,
            "delta": self.delta,
            "bettors": list(BETTORS),
            "count": self.count,
            "raised_at": self.raised_at,
            "capital": [None if c == -math.inf else float(c) for c in self._capital],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["bettors"] != list(BETTORS) or len(state["capital"]) != len(BETTORS):
            raise BadInput(f"the saved alarm has the bettors {state['bettors']}, not {list(BETTORS)}; start a new one")
        self.count = whole(state["count"], "count", 0, "a saved alarm counts its texts")
        self.raised_at = state["raised_at"]
        self._capital = np.array([-math.inf if c is None else float(c) for c in state["capital"]])


class Alarm(_Bets):
    """An alarm that a clean stream, however long, raises with probability at most α, calibration included.

        E_t = Σ_κ Σ_{s ≤ t} (w_s/K) Π_{i=s}^{t} e_κ(p_i) + C_t,      raised when E_t ≥ 1/(α − δ)

    Capital w_s starts to bet with text s, and C_t = 1 − Σ_{s≤t} w_s has not started: C_0 = ½, so that half of all
    capital is at work from the first text on, and C_t = ½/(1 + log(1 + t/100)) falls so slowly that a change after
    thousands of clean texts still meets capital that has not been lost on these. Given a calibration set with
    E[e | calibration] ≤ 1, E_t is a supermartingale that starts from 1, and by Ville's inequality it ever reaches
    1/(α − δ) with probability at most α − δ; other calibration sets have probability at most δ. Both make α.

    texts : m, the number of calibration texts behind the p-values, which are marginal: `Calibration.p_values`,
        randomised or not. With `math.inf`, p-values that are super-uniform given the calibration set with probability
        1 − δ, as `Calibration.conditional` makes: valid too, and slower.
    alpha : the probability of ever raising a false alarm
    delta : the part of α for unlucky calibration sets, α/2 unless given

    `log_e` is log E_t, `peak` its maximum so far, `raised_at` the number (from 1) of the text that raised the alarm. It
    stays raised.

    >>> alarm = Alarm(texts=1000, alpha=0.01)
    >>> alarm.update([0.3, 0.9, 0.5, 0.7]), alarm.update([0.001, 0.002, 0.001, 0.001]), alarm.raised_at
    (False, True, 7)
    """

    def __init__(self, texts: float, alpha: float = 0.01, delta: float | None = None) -> None:
        self.alpha = share(alpha, "alpha")
        part = self.alpha / 2 if delta is None else share(delta, "delta")
        if part >= self.alpha:
            raise BadInput(f"delta is {delta!r}; it is a part of alpha and must be below {self.alpha}")
        super().__init__(texts, part)
        self._capital = np.full(len(BETTORS), math.log(0.5 / len(BETTORS)))
        self.log_e = self.peak = 0.0

    @property
    def threshold(self) -> float:
        """log 1/(α − δ), which `log_e` has to reach."""
        return -math.log(self.alpha - self.delta)

    def _take(self, log_e: np.ndarray) -> None:
        before, now = (math.log1p(t / PATIENCE) for t in (self.count - 1, self.count))
        started = math.log1p(1 / (PATIENCE + self.count - 1)) / ((1 + before) * (1 + now))
        self._capital = log_e + np.logaddexp(self._capital, math.log(0.5 * started / len(BETTORS)))
        at_rest = math.log(0.5 / (1 + now))
        self.log_e = float(np.logaddexp(np.logaddexp.reduce(self._capital), at_rest))
        self.peak = max(self.peak, self.log_e)
        if self.raised_at is None and self.log_e >= self.threshold:
            self.raised_at = self.count

    def to_dict(self) -> dict[str, Any]:
        """The whole state, for JSON. An alarm made of it by `from_dict` goes on as if it had never stopped."""
        own = {"schema": "metastable.alarm/1", "alpha": self.alpha, "log_e": self.log_e, "peak": self.peak}
        return own | self._kept()

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Alarm:
        try:
            alarm = cls(_texts(state), state["alpha"], state["delta"])
            alarm._restore(state)
            alarm.log_e, alarm.peak = float(state["log_e"]), float(state["peak"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(error) from error
        return alarm


class ChangeAlarm(_Bets):
    """An alarm for a change at an unknown time that is raised, reset and used again for ever.

        R_t = Σ_κ (1/K) R_t^κ,   R_t^κ = e_κ(p_t) (R_{t−1}^κ + 1),      raised when R_t ≥ the run length

    This is the Shiryaev–Roberts e-detector of Shin, Ramdas and Rinaldo ("E-detectors: a nonparametric framework for
    sequential change detection", New England Journal of Statistics in Data Science, 2023). It controls the **average
    run length** and not a probability: with probability 1 − δ over calibration sets, clean streams take on average at
    least `run_length` texts to the first alarm and from each alarm to the next (R_t − t is a supermartingale). A clean
    stream that never ends raises false alarms for ever, at about that rate. In return the delay after a change does not
    grow with the time of the change. `raised_at` is the last alarm, `alarms` their number.

    `update` says whether the *last* p-value taken, or any of the several, raised an alarm.
    """

    def __init__(self, texts: float, run_length: float = 10_000, delta: float = 0.05) -> None:
        super().__init__(texts, share(delta, "delta"))
        self.run_length = real(run_length, "run_length", "it must be a finite number of texts above 1", 1.0)
        if self.run_length == math.inf:
            raise BadInput("run_length is inf; for no false alarm at all over a long stream use Alarm")
        self.alarms = 0

    @property
    def log_e(self) -> float:
        """log R_t: what has to reach log `run_length`. −inf before the first text and just after an alarm."""
        return float(np.logaddexp.reduce(self._capital)) - math.log(len(BETTORS))

    def update(self, p: Any) -> bool:
        before = self.alarms
        super().update(p)
        return self.alarms > before

    def _take(self, log_e: np.ndarray) -> None:
        self._capital = log_e + np.logaddexp(self._capital, 0.0)
        if self.log_e >= math.log(self.run_length):
            self.alarms, self.raised_at = self.alarms + 1, self.count
            self._capital = np.full(len(BETTORS), -math.inf)

    def to_dict(self) -> dict[str, Any]:
        """The whole state, for JSON; see `Alarm.to_dict`."""
        own = {"schema": "metastable.change-alarm/1", "run_length": self.run_length, "alarms": self.alarms}
        return own | self._kept()

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ChangeAlarm:
        try:
            alarm = cls(_texts(state), state["run_length"], state["delta"])
            alarm._restore(state)
            alarm.alarms = whole(state["alarms"], "alarms", 0, "a saved alarm counts its alarms")
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(error) from error
        return alarm


def _texts(state: Mapping[str, Any]) -> float:
    return math.inf if state["texts"] is None else state["texts"]


def _damaged(error: Exception) -> BadInput:
    if isinstance(error, BadInput):
        return error
    what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
    return BadInput(f"the saved alarm cannot be read ({what}); start a new one")


def _shown(found: np.ndarray) -> str:
    bad = found[(found <= 0) | (found > 1)]
    return f"of shape {found.shape}" if found.ndim != 1 else f"{bad[0]!s} in one place"
