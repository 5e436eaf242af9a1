"""Early exit for each text: stop at the first layer whose probe is sure, and a promise about what that costs.

A text leaves at the first layer whose largest probability is at least τ; a text that is never sure goes to the end. Its
*harm* is 1 if full depth predicts the right class and the exit does not. The loss of accuracy is at most the mean harm.

*Learn then test* (Angelopoulos et al., 2021): with k harmed texts among m texts for calibration, which no probe was
trained on, P(Bin(m, loss) ≤ k) is an exact p-value of "the mean harm is above `loss`". Thresholds are tested from the
largest to the smallest, and testing ends at the first one with a p-value above δ (fixed sequence). With probability
1 − δ no accepted threshold has a mean harm above `loss`.

Of the folds of the cross validation, k is for testing, k + 1 for calibration, and the others are for training, for
every k. Where documents are given, one text of each document is for calibration: texts of one document are dependent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax
from scipy.stats import binom

from metastable.encoder.exit.labelled import FOLDS, Floats, Ints, Target
from metastable.encoder.exit.probes import TIGHT, Probe, fit
from metastable.encoder.exit.scores import Bootstrap, Interval, accuracy, widened
from metastable.encoder.exit.selection import FIRST, DepthFits, Nested

DELTA = 0.05
"""The probability that the promise of a calibrated rule does not hold is at most this."""
THRESHOLDS = (0.999, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""The thresholds τ, in the order of the tests."""


@dataclass(frozen=True)
class PerText:
    """What exits per text save, next to the fixed layer, on texts that neither was made from.

    saved, fixed : layers per text that exits per text and the fixed layer save
    gain : saved − fixed, with its interval, which is widened like that of a difference of scores
    accuracy, fixed_accuracy : of both
    offered : whether the interval of the gain is above 0, and the rule for use accepts a threshold
    threshold, probes : the rule for use if it is offered: τ, and the probe of each layer that can be an exit
    """

    saved: float
    fixed: float
    gain: Interval
    accuracy: float
    fixed_accuracy: float
    offered: bool
    threshold: float | None = None
    probes: tuple[Probe, ...] = ()


def needed(loss: float) -> float:
    """The smallest number of texts for calibration that can accept a threshold: (1 − loss)^m ≤ δ."""
    return math.ceil(math.log(DELTA) / math.log1p(-loss)) if loss > 0 else math.inf


def accepted(harms: Sequence[Floats], loss: float, delta: float = DELTA) -> int:
    """How many thresholds, from the first one, are accepted. harms : for each threshold, 0 or 1 for each text"""
    for number, harm in enumerate(harms):
        if binom.cdf(int(np.sum(harm)), len(harm), loss) > delta:
            return number
    return len(harms)


def exits(outputs: Floats, threshold: float, first: int = FIRST) -> Ints:
    """The layer at which each text leaves, from the outputs of the layers `first`, …, L, (layers, texts, classes)."""
    sure = softmax(outputs, axis=-1).max(axis=-1) >= threshold
    sure[-1] = True
    return first + sure.argmax(axis=0)


def harm(outputs: Floats, truth: Floats, threshold: float) -> Floats:
    """The harm of each text, (texts,), from (layers, texts, classes)."""
    right = outputs.argmax(axis=-1) == truth
    early = right[exits(outputs, threshold, 0), np.arange(len(truth))]
    return (right[-1] & ~early).astype(np.float64)


class FoldTrial:
    """Exits per text in the folds of a nested cross validation: `visit` it with each depth, then take the `result`.

    first : the earliest layer that can be an exit
    """

    def __init__(self, target: Target, fold: Ints, groups: Ints, loss: float, seed: int, first: int = FIRST) -> None:
        self._target, self._fold, self._loss, self._seed, self._first = target, fold, loss, seed, first
        order = np.random.default_rng(seed).permutation(len(groups))
        # One text of each group is for calibration. Groups without documents are equal texts.
        self._single = np.zeros(len(groups), dtype=bool)
        self._single[order[np.unique(groups[order], return_index=True)[1]]] = True
        self._groups = groups
        self._test: list[list[Floats]] = [[] for _ in range(FOLDS)]
        self._calibration: list[list[Floats]] = [[] for _ in range(FOLDS)]

    @property
    def calibration_texts(self) -> int:
        """The smallest number of texts for calibration of a fold."""
        return int(np.bincount(self._fold[self._single], minlength=FOLDS).min())

    def visit(self, depth: int, fits: DepthFits) -> None:
        if depth < self._first:
            return
        for k in range(FOLDS):
            after = (k + 1) % FOLDS
            gone = frozenset({k, after})
            self._test[k].append(fits.outer(gone, k))
            self._calibration[k].append(fits.outer(gone, after)[self._single[self._fold == after]])

    def result(self, found: Nested, features: Floats) -> PerText:
        depths = features.shape[1] - 1
        fixed = found.rule(self._loss)[self._fold]
        left = np.full(len(self._fold), depths)
        right = np.zeros(len(self._fold))
        for k in range(FOLDS):
            inside = self._fold == k
            outputs = np.stack(self._test[k])
            threshold = self._threshold(np.stack(self._calibration[k]), (k + 1) % FOLDS)
            if threshold is not None:
                left[inside] = exits(outputs, threshold, self._first)
            here = outputs.argmax(axis=-1)[left[inside] - self._first, np.arange(int(inside.sum()))]
            right[inside] = here == self._target.values[inside]
        bootstrap = Bootstrap(self._groups, self._seed)
        gain = widened(bootstrap.mean((fixed - left).astype(np.float64), (-float(depths), float(depths))))
        truth = self._target.values
        plain = accuracy(truth, found.predictions(found.rule(self._loss)), np.ones((1, len(truth))))[0]
        numbers = (float((depths - left).mean()), float((depths - fixed).mean()), gain, float(right.mean()))
        threshold, probes = self._rule(found, features) if gain[1] > 0 else (None, ())
        offered = threshold is not None
        return PerText(*numbers, float(plain), offered, threshold, probes if offered else ())

    def _threshold(self, outputs: Floats, k: int) -> float | None:
        """The smallest accepted threshold, from outputs for the texts for calibration of fold k; None if none is."""
        truth = self._target.values[self._single & (self._fold == k)]
        count = accepted([harm(outputs, truth, threshold) for threshold in THRESHOLDS], self._loss)
        return THRESHOLDS[count - 1] if count else None

    def _rule(self, found: Nested, features: Floats) -> tuple[float | None, tuple[Probe, ...]]:
        """The rule for use: probes trained without the last fold, and the threshold that its texts accept."""
        last = FOLDS - 1
        rows = np.flatnonzero(self._fold != last)
        probes = tuple(
            fit(features[:, depth], self._target, rows, [found.penalties[last, depth]], TIGHT)[0]
            for depth in range(self._first, features.shape[1])
        )
        texts = np.flatnonzero(self._single & (self._fold == last))
        outputs = np.stack([probe.outputs(features[texts, self._first + i]) for i, probe in enumerate(probes)])
        return self._threshold(outputs, last), probes
