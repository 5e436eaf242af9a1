"""Other alarms, for comparison with that of `metastable.monitor.alarm`: an e-detector, and tests on windows.

**Tests on windows.** The stream is cut into windows of w texts that do not overlap. Each window is compared with the
calibration texts by a test whose p-value is valid for w texts exchangeable with these. With a promised length of the
stream (the horizon) there are ⌊horizon/w⌋ tests, each at level α/⌊horizon/w⌋: by the union bound, a clean stream of
that length raises an alarm with probability at most α, on average over calibration sets, although all windows share one
calibration set. Windows answer only when they are full, and only up to the horizon; `metastable.monitor.alarm` has
neither limit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.stats import ks_2samp

from metastable.arrays import real, whole
from metastable.errors import BadInput
from metastable.monitor.alarm import BETTORS, log_payoffs, p_values, ranks
from metastable.monitor.conformal import numbers, share


class ChangeAlarm:
    """An alarm for a change at an unknown time that is raised, reset and used again for ever.

        R_t = Σ_κ (1/K) R_t^κ,   R_t^κ = e_κ(p_t) (R_{t−1}^κ + 1),      raised when R_t ≥ the run length

    This is the Shiryaev–Roberts e-detector of Shin, Ramdas and Rinaldo ("E-detectors: a nonparametric framework for
    sequential change detection", New England Journal of Statistics in Data Science, 2023). It controls the **average
    run length** and not a probability: with probability 1 − δ over calibration sets, clean streams take on average at
    least `run_length` texts to the first alarm and from each alarm to the next (R_t − t is a supermartingale). A clean
    stream that never ends raises false alarms for ever, at about that rate. In return the delay after a change does not
    grow with the time of the change. `raised_at` is the last alarm, `alarms` their number.
    """

    def __init__(self, texts: int, run_length: float = 10_000, delta: float = 0.05) -> None:
        self.texts, self.delta = texts, share(delta, "delta")
        self.run_length = real(run_length, "run_length", "it must be a finite number of texts above 1", 1.0)
        if self.run_length == math.inf:
            raise BadInput("run_length is inf; for no false alarm at all over a long stream use Alarm")
        self.count = self.alarms = 0
        self.raised_at: int | None = None
        self._log_r = np.full(len(BETTORS), -math.inf)

    @property
    def log_e(self) -> float:
        """log R_t, which has to reach log `run_length`; −inf before the first text and just after an alarm."""
        return float(np.logaddexp.reduce(self._log_r)) - math.log(len(BETTORS))

    def update(self, p: Any) -> bool:
        """Take one p-value, or several in their order; returns whether any of them raised an alarm."""
        before = self.alarms
        for log_e in log_payoffs(self.texts, self.delta)[ranks(p_values(p), self.texts) - 1]:
            self.count += 1
            self._log_r = log_e + np.logaddexp(self._log_r, 0.0)
            if self.log_e >= math.log(self.run_length):
                self.alarms, self.raised_at = self.alarms + 1, self.count
                self._log_r = np.full(len(BETTORS), -math.inf)
        return self.alarms > before


REFERENCE = 500
"""Most calibration texts that `WindowedMMD` compares a window with; the cost of a window grows with their square."""


class _Windowed:
    """What both tests share: filling windows, the level of each, the alarm. Subclasses give a window its p-value."""

    def __init__(self, window: int, horizon: int, alpha: float) -> None:
        self.window = whole(window, "window", 2, "a window must hold at least 2 texts")
        self.horizon = whole(horizon, "horizon", self.window, f"the stream must be at least one window ({window}) long")
        self.alpha = share(alpha, "alpha")
        self.count = 0
        self.raised_at: int | None = None
        self.p_values: list[float] = []
        self._waiting: list[np.ndarray] = []

    @property
    def level(self) -> float:
        """α/⌊horizon/w⌋: an alarm is raised by a window with p at most this."""
        return self.alpha / (self.horizon // self.window)

    def update(self, values: Any) -> bool:
        """Take texts in their order; is the alarm raised? It stays raised, with `raised_at` the end of its window."""
        new = self._read(values)
        if self.count + len(new) > self.horizon:
            raise BadInput(
                f"text {self.count + len(new)} is beyond the horizon of {self.horizon} for which alpha was promised; "
                "give a longer horizon"
            )
        for row in new:
            self.count += 1
            self._waiting.append(row)
            if len(self._waiting) == self.window:
                self.p_values.append(self._test(np.stack(self._waiting)))
                self._waiting = []
                if self.raised_at is None and self.p_values[-1] <= self.level:
                    self.raised_at = self.count
        return self.raised_at is not None

    def _read(self, values: Any) -> np.ndarray:
        raise NotImplementedError

    def _test(self, window: np.ndarray) -> float:
        raise NotImplementedError


class WindowedKS(_Windowed):
    """The one-sided Kolmogorov–Smirnov test of a window's scores against the calibration scores.

        D = sup_s (F_cal(s) − F_window(s)),     large when the window's scores are higher

    The p-value is that of exchangeable scores without ties, exact up to 10 000 calibration texts (Hodges, "The
    significance probability of the Smirnov two-sample test", Arkiv för Matematik 3, 1958), asymptotic beyond; ties make
    it larger than necessary. `update` takes scores, (n,) or one number.
    """

    def __init__(self, scores: Any, window: int, horizon: int, alpha: float = 0.01) -> None:
        super().__init__(window, horizon, alpha)
        self._scores = numbers(scores, "the calibration scores")
        if self._scores.ndim != 1 or not len(self._scores):
            raise BadInput(f"the calibration scores have shape {self._scores.shape}; give one score a text")

    def _read(self, values: Any) -> np.ndarray:
        new = np.atleast_1d(numbers(values, "the scores", finite=False))
        if new.ndim != 1:
            raise BadInput(f"the scores have shape {new.shape}; give one score a text")
        return new

    def _test(self, window: np.ndarray) -> float:
        return float(ks_2samp(window, self._scores, alternative="less").pvalue)


class WindowedMMD(_Windowed):
    """The maximum mean discrepancy between a window's feature vectors and the calibration texts', by permutation.

        MMD² = mean k(x, x') + mean k(y, y') − 2 mean k(x, y),     k(x, y) = exp(−|x − y|²/(2σ²))

    over pairs of different texts within a sample (Gretton, Borgwardt, Rasch, Schölkopf, Smola, "A kernel two-sample
    test", JMLR 13, 2012), σ the median distance between all texts of both samples: from one sample alone, σ would not
    be the same for every permutation. With P permutations, of which g have an MMD² at least as large as the one found,
    p = (1 + g)/(1 + P): valid for exchangeable texts. P is the least for which p can reach half of a window's level.
    `update` takes features, (n, d) or (d,).
    """

    def __init__(self, features: Any, window: int, horizon: int, alpha: float = 0.01, seed: int = 0) -> None:
        super().__init__(window, horizon, alpha)
        found = numbers(features, "the calibration features")
        if found.ndim != 2 or len(found) < 2 or not found.shape[1]:
            raise BadInput(f"the calibration features have shape {found.shape}; give (texts, numbers a text)")
        self._rng = np.random.default_rng(seed)
        self._texts = found[self._rng.permutation(len(found))[:REFERENCE]]
        self.permutations = math.ceil(2 / self.level)

    def _read(self, values: Any) -> np.ndarray:
        new = np.atleast_2d(numbers(values, "the features"))
        if new.ndim != 2 or new.shape[1] != self._texts.shape[1]:
            raise BadInput(f"the features have shape {new.shape}; give {self._texts.shape[1]} numbers a text")
        return new

    def _test(self, window: np.ndarray) -> float:
        both = np.concatenate([window, self._texts])
        squares = squareform(pdist(both, "sqeuclidean"))
        # Where most texts are equal the median is 0, and any bandwidth tells equal from unequal ones.
        kernel = np.exp(-squares / (2 * float(np.median(squares[np.triu_indices(len(both), 1)])) or 1.0))
        np.fill_diagonal(kernel, 0.0)
        own = np.arange(len(both)) < len(window)
        found = float(_mmd(kernel, own[None])[0])
        at_least = 0
        for first in range(0, self.permutations, 256):
            rows = min(256, self.permutations - first)
            shuffled = self._rng.permuted(np.broadcast_to(own, (rows, len(own))), axis=1)
            # A permutation that only reorders the samples has the same MMD² up to rounding, and counts.
            at_least += int((_mmd(kernel, shuffled) >= found - 1e-12).sum())
        return (1 + at_least) / (1 + self.permutations)


def _mmd(kernel: np.ndarray, members: np.ndarray) -> np.ndarray:
    """MMD² for each row of members (P, n), true for the texts of the first sample; the kernel's diagonal is 0."""
    z = members.astype(np.float64)
    first = z[0].sum()
    second = z.shape[1] - first
    reached = z @ kernel
    inside = (reached * z).sum(axis=1)
    across = reached.sum(axis=1) - inside
    rest = kernel.sum() - inside - 2 * across
    return np.asarray(
        inside / (first * (first - 1)) + rest / (second * (second - 1)) - 2 * across / (first * second),
    )
