"""Alarms on a stream of p-values that were all computed against one fixed calibration set of m texts.

**The trouble.** Given the calibration set, the conformal p-values of clean texts are independent but not uniform: rank
j comes with probability Δ_j, the gap between neighbouring clean tail probabilities, and not with 1/(m + 1). Bets that
are fair for uniform p-values can have a positive expected gain against a given calibration set, and over a long clean
stream they become rich. What is known, whatever the law of the scores, is the law of the gaps: for continuous scores
(Δ_1 … Δ_{m+1}) is uniform on the simplex. With ties, ranks are larger, and everything below still holds.

**The bets.** A bettor κ in (0, 1) has the payoff κ p^{κ−1} on p-values, averaged over each of the m + 1 ranks:

    f_j = (m + 1) ((j/(m + 1))^κ − ((j − 1)/(m + 1))^κ),      Σ_j f_j/(m + 1) = 1,  f decreasing

(beyond rank 200, averaged over ranks within 1 %: `steps`). Its expected payoff on clean text, given the calibration
set, is Σ f_j Δ_j. With a price q_κ such that P(Σ f_j Δ_j > q_κ) ≤ δ/K for each of the K bettors (`price`),
e_j = f_j/q_κ satisfies E[e | calibration] ≤ 1 for all bettors at once with probability 1 − δ over calibration sets.
This asks for one number a bettor, and not for all p-values to be super-uniform at once, and so loses less than the
same bets on calibration-conditional p-values.

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
"""Texts: the time scale on which capital that is not at work from the start begins to bet; see `Alarm`."""

DAMAGED = "the saved alarm is damaged; start a new one"

BATCH = 4096
"""Texts taken at once: bounds memory, and the work done twice after an alarm that is reset."""


def steps(texts: int) -> np.ndarray:
    """0 = a_0 < a_1 < … = m + 1: ranks a_{b−1} < j ≤ a_b pay alike. One rank a step up to 200, then within 1 %."""
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
    it decays too slowly to be summed up (a handful of texts, a very large δ), the q returned is larger, hence safe.
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
    best = brentq(excess, x, high, args=(True,), xtol=1e-9) if excess(x, exact=True) > 0 else high
    return _log_tail(best, values, sizes, exact=False)[0]


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
    """The capital of each bettor, in logarithms, and the reading of p-values. `texts` may be inf: see `Alarm`.

    With L_t = Σ_{i≤t} log e(p_i) and w_s the capital that starts with text s, log capital is L_t + D_t with
    D_t = log(e^{D_{t−1}} + w_t e^{−L_{t−1}}). Both sums run in the order of the texts, so that how a stream is cut into
    batches changes no bit of the result.
    """

    schema: str

    def __init__(self, texts: float, delta: float) -> None:
        rule = "it must be the number of calibration texts, or inf for p-values that are valid given these"
        self.texts: float = math.inf if texts == math.inf else whole(texts, "texts", 1, rule)
        self.delta = delta
        self.count = 0
        self.raised_at: int | None = None
        self._sum = np.zeros(len(BETTORS))
        self._scaled = np.full(len(BETTORS), -math.inf)

    def update(self, p: Any) -> bool:
        """Take one p-value, or several in their order; is the alarm raised? A p-value out of (0, 1] changes nothing."""
        found = np.atleast_1d(numbers(p, "the p-values"))
        if found.ndim != 1:
            raise BadInput(f"the p-values have shape {found.shape}; give one p-value a text, in one row")
        if ((found <= 0) | (found > 1)).any():
            worst = found[(found <= 0) | (found > 1)][0]
            raise BadInput(f"a p-value is {worst}; p-values are above 0 and at most 1")
        for first in range(0, len(found), BATCH):
            self._take(self._log_e(found[first : first + BATCH]))
        return self.raised_at is not None

    def _take(self, log_e: np.ndarray) -> None:
        raise NotImplementedError

    def _log_e(self, p: np.ndarray) -> np.ndarray:
        """log e of each p-value and bettor, (n, K)."""
        if self.texts == math.inf:
            kappa = np.array(BETTORS)
            return np.log(kappa) + (kappa - 1) * np.log(p)[:, None]
        # p = j/(m + 1) up to rounding; a randomised p-value belongs to the rank that it was drawn for.
        ranks = np.ceil(p * (self.texts + 1) - 1e-6).astype(np.int64)
        return _log_payoffs(int(self.texts), self.delta)[np.maximum(ranks, 1) - 1]

    def _grown(self, log_e: np.ndarray, log_started: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L_t and D_t over n texts, each (n, K), when capital e^log_started (n,) starts with each."""
        sums = np.add.accumulate(np.vstack([self._sum, log_e]))
        scaled = np.logaddexp.accumulate(np.vstack([self._scaled, log_started[:, None] - sums[:-1]]))
        return sums[1:], scaled[1:]

    def _kept(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "texts": None if self.texts == math.inf else self.texts,
            "delta": self.delta,
            "bettors": list(BETTORS),
            "count": self.count,
            "raised_at": self.raised_at,
            "sum": self._sum.tolist(),
            "scaled": [None if d == -math.inf else d for d in self._scaled.tolist()],
        }

    @classmethod
    def _saved_texts(cls, state: Mapping[str, Any]) -> float:
        if state["schema"] != cls.schema:
            raise BadInput(f"the saved alarm has the schema {state['schema']!r}, not {cls.schema!r}; start a new one")
        return math.inf if state["texts"] is None else state["texts"]

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["bettors"] != list(BETTORS):
            raise BadInput(f"the saved alarm has the bettors {state['bettors']}, not {list(BETTORS)}; start a new one")
        self.count = whole(state["count"], "count", 0, DAMAGED)
        at = state["raised_at"]
        self.raised_at = None if at is None else whole(at, "raised_at", 1, DAMAGED)
        self._sum = numbers(state["sum"], "the saved sums")
        self._scaled = numbers([-math.inf if d is None else d for d in state["scaled"]], "the saved capital", False)
        if not self._sum.shape == self._scaled.shape == (len(BETTORS),):
            raise BadInput(
                f"the saved alarm holds {len(state['sum'])} sums for {len(BETTORS)} bettors; start a new one"
            )


class Alarm(_Bets):
    """An alarm that a clean stream, however long, raises with probability at most α, calibration included.

        E_t = Σ_κ Σ_{s ≤ t} (w_s/K) Π_{i=s}^{t} e_κ(p_i) + C_t,      raised when E_t ≥ 1/(α − δ)

    Capital w_s starts to bet with text s, and C_t = 1 − Σ_{s≤t} w_s = ½/(1 + log(1 + t/100)) has not started by text
    t. So half of all capital bets from the first text on, and the other half starts so slowly that a change after
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
    >>> alarm.update([0.3, 0.9, 0.5, 0.7]), alarm.update([0.001, 0.004, 0.002, 0.001, 0.001]), alarm.raised_at
    (False, True, 9)
    """

    schema = "metastable.alarm/1"

    def __init__(self, texts: float, alpha: float = 0.01, delta: float | None = None) -> None:
        self.alpha = share(alpha, "alpha")
        part = self.alpha / 2 if delta is None else share(delta, "delta")
        if part >= self.alpha:
            raise BadInput(f"delta is {delta!r}; it is a part of alpha and must be below {self.alpha}")
        super().__init__(texts, part)
        self._scaled = np.full(len(BETTORS), math.log(0.5 / len(BETTORS)))
        self.log_e = self.peak = 0.0

    @property
    def threshold(self) -> float:
        """log 1/(α − δ), which `log_e` has to reach."""
        return -math.log(self.alpha - self.delta)

    def _take(self, log_e: np.ndarray) -> None:
        t = self.count + np.arange(len(log_e) + 1)
        spent = 1 + np.log1p(t / PATIENCE)
        # C_{t−1} − C_t without cancellation.
        started = 0.5 * np.log1p(1 / (PATIENCE + t[:-1])) / (spent[:-1] * spent[1:])
        sums, scaled = self._grown(log_e, np.log(started / len(BETTORS)))
        total = np.logaddexp(np.logaddexp.reduce(sums + scaled, axis=1), np.log(0.5 / spent[1:]))
        over = np.flatnonzero(total >= self.threshold)
        if self.raised_at is None and len(over):
            self.raised_at = self.count + 1 + int(over[0])
        self.count += len(log_e)
        self._sum, self._scaled = sums[-1], scaled[-1]
        self.log_e, self.peak = float(total[-1]), max(self.peak, float(total.max()))

    def to_dict(self) -> dict[str, Any]:
        """The whole state, for JSON. An alarm made of it by `from_dict` goes on as if it had never stopped."""
        return self._kept() | {"alpha": self.alpha, "log_e": self.log_e, "peak": self.peak}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Alarm:
        try:
            alarm = cls(cls._saved_texts(state), state["alpha"], state["delta"])
            alarm._restore(state)
            alarm.log_e, alarm.peak = (real(state[k], k, DAMAGED, -math.inf) for k in ("log_e", "peak"))
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

    `update` says whether any of the p-values just given raised an alarm.
    """

    schema = "metastable.change-alarm/1"

    def __init__(self, texts: float, run_length: float = 10_000, delta: float = 0.05) -> None:
        super().__init__(texts, share(delta, "delta"))
        self.run_length = real(run_length, "run_length", "it must be a finite number of texts above 1", 1.0)
        if self.run_length == math.inf:
            raise BadInput("run_length is inf; for no false alarm at all over a long stream use Alarm")
        self.alarms = 0

    @property
    def log_e(self) -> float:
        """log R_t: what has to reach log `run_length`. −inf before the first text and just after an alarm."""
        return float(np.logaddexp.reduce(self._sum + self._scaled)) - math.log(len(BETTORS))

    def update(self, p: Any) -> bool:
        before = self.alarms
        super().update(p)
        return self.alarms > before

    def _take(self, log_e: np.ndarray) -> None:
        while len(log_e):
            sums, scaled = self._grown(log_e, np.zeros(len(log_e)))
            total = np.logaddexp.reduce(sums + scaled, axis=1) - math.log(len(BETTORS))
            over = np.flatnonzero(total >= math.log(self.run_length))
            taken = int(over[0]) + 1 if len(over) else len(log_e)
            self.count += taken
            self._sum, self._scaled = sums[taken - 1], scaled[taken - 1]
            if len(over):
                self.alarms, self.raised_at = self.alarms + 1, self.count
                self._sum, self._scaled = np.zeros(len(BETTORS)), np.full(len(BETTORS), -math.inf)
            log_e = log_e[taken:]

    def to_dict(self) -> dict[str, Any]:
        """The whole state, for JSON; see `Alarm.to_dict`."""
        return self._kept() | {"run_length": self.run_length, "alarms": self.alarms}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ChangeAlarm:
        try:
            alarm = cls(cls._saved_texts(state), state["run_length"], state["delta"])
            alarm._restore(state)
            alarm.alarms = whole(state["alarms"], "alarms", 0, DAMAGED)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(error) from error
        return alarm


def _damaged(error: Exception) -> BadInput:
    if isinstance(error, BadInput):
        return error
    what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
    return BadInput(f"the saved alarm cannot be read ({what}); start a new one")
