"""How good predictions are, and intervals from a bootstrap over texts or documents.

A resample draws groups of texts (documents, or single texts) with replacement. It is a weight for each text: how often
its group was drawn. All scores take these weights, so that one pass computes a score for all resamples. Two predictions
are compared on the same resamples (*paired* bootstrap). The interval of their difference is then made 1.5 times as
wide, because the probes themselves vary; see `WIDER`. The interval of a single score is not widened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metastable.encoder.exit.labelled import FOLDS, Floats, Ints

LEVEL = 0.95
"""The coverage of an interval."""
RESAMPLES = 1000
WIDER = (1 + FOLDS / (FOLDS - 1)) ** 0.5
"""The factor of intervals of differences, 1.5. Resamples vary the texts that are predicted and not those that a probe
is trained on. With both, the variance of a difference of k-fold cross validation is taken as 1 + k/(k − 1) times that
of the resamples (Nadeau and Bengio, 2003). On fresh texts, with 300 and 1000 labelled ones, errors were 1.0 to 1.4
times those of the resamples."""
CHUNK = 2**19
"""The largest number of weights in one array: 4 MB, which profits from the cache of a processor."""

Score = Callable[[Floats, Floats, Floats], Floats]
"""(truth (texts,), predicted (texts,), weights (resamples, texts)) → (resamples,)"""
Interval = tuple[float, float, float]
"""A value with the two ends of its interval."""


def accuracy(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    """The share of texts with the right class."""
    return np.asarray(weights @ (truth == predicted) / weights.sum(axis=1))


def macro_f1(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    """The mean over classes of F₁ = 2·right/(texts of the class + texts predicted as it), without absent classes."""
    classes = np.unique(np.concatenate([truth, predicted]))
    is_true, is_predicted = truth[:, None] == classes, predicted[:, None] == classes
    right = weights @ (is_true & is_predicted)
    both = weights @ (is_true.astype(np.float64) + is_predicted)
    return np.asarray((2 * right / np.maximum(both, 1e-300)).sum(axis=1) / (both > 0).sum(axis=1))


def spearman(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    """Spearman's rank correlation; 0 if all predictions are equal."""
    a, b = _centred(_ranks(truth, weights), weights), _centred(_ranks(predicted, weights), weights)
    spread = np.sqrt((weights * a**2).sum(axis=1) * (weights * b**2).sum(axis=1))
    return np.asarray((weights * a * b).sum(axis=1) / np.where(spread > 0, spread, 1.0))


def r2(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    """R² = 1 − Σ(y − ŷ)²/Σ(y − ȳ)²."""
    around = _centred(np.broadcast_to(truth, weights.shape), weights)
    total = (weights * around**2).sum(axis=1)
    return np.asarray(1 - weights @ (truth - predicted) ** 2 / np.where(total > 0, total, 1.0))


SCORES: dict[str, dict[str, Score]] = {
    "classes": {"accuracy": accuracy, "macro_f1": macro_f1},
    "numbers": {"spearman": spearman, "r2": r2},
}
"""The scores of a task. The first one chooses the layer."""


def first_score(task: str) -> str:
    """The name of the score that chooses the layer."""
    return next(iter(SCORES[task]))


def value(score: Score, truth: Floats, predicted: Floats) -> float:
    """The score on all texts."""
    return float(score(truth, predicted, np.ones((1, len(truth))))[0])


def _centred(values: Floats, weights: Floats) -> Floats:
    return np.asarray(values - ((weights * values).sum(axis=1) / weights.sum(axis=1))[:, None])


def _ranks(values: Floats, weights: Floats) -> Floats:
    """The mean rank of each value in each resample, (resamples, texts)."""
    known, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(known)))
    each = np.add.reduceat(weights[:, order], starts, axis=1)
    return np.asarray((each.cumsum(axis=1) - each / 2)[:, place])


class Bootstrap:
    """Resamples of groups of texts.

    Where all values are equal, resamples cannot vary, though other texts would. An interval of a mean therefore counts
    two more groups, one at each end of the range of a value (Bonett and Price, 2012). They matter for few texts only.
    """

    def __init__(self, groups: Ints, seed: int) -> None:
        self._groups = groups
        many = int(groups.max()) + 3
        draws = np.random.default_rng(seed).multinomial(many, np.full(many, 1 / many), size=RESAMPLES)
        self._counts = draws[:, :-2].astype(np.float64)
        self._extra = draws[:, -2:].astype(np.float64)

    def compare(
        self, score: Score, truth: Floats, predictions: Sequence[Floats], full: int, wider: float = WIDER
    ) -> list[tuple[Interval, Interval]]:
        """The score of each prediction, and its difference to that of the prediction with the number `full`.

        wider : the factor of intervals of differences; 1 if nothing was fitted to the texts
        """
        if score is accuracy:
            right = [(truth == own).astype(np.float64) for own in predictions]
            scores = [self.mean(own, (0.0, 1.0)) for own in right]
            changes = [widened(self.mean(own - right[full], (-1.0, 1.0)), wider) for own in right]
        else:
            points = np.array([value(score, truth, own) for own in predictions])
            values = self._values(lambda weights: np.stack([score(truth, own, weights) for own in predictions], axis=1))
            scores = [_ends(point, own) for point, own in zip(points, values.T, strict=True)]
            points, values = points - points[full], values - values[:, [full]]
            changes = [widened(_ends(point, own), wider) for point, own in zip(points, values.T, strict=True)]
        changes[full] = (0.0, 0.0, 0.0)
        return list(zip(scores, changes, strict=True))

    def mean(self, values: Floats, ends: tuple[float, float]) -> Interval:
        """The mean of a value of each text, which lies between `ends`, with its interval."""
        many = self._counts.shape[1]
        sums = np.bincount(self._groups, weights=values, minlength=many)
        sizes = np.bincount(self._groups, minlength=many)
        found = self._counts @ sums + self._extra @ np.array(ends)
        return _ends(float(np.mean(values)), found / (self._counts @ sizes + self._extra.sum(axis=1)))

    def _values(self, statistic: Callable[[Floats], Floats]) -> Floats:
        """The statistic of all resamples, (resamples, …)."""
        parts = max(1, len(self._counts) * len(self._groups) // CHUNK)
        weights = (part[:, self._groups] for part in np.array_split(self._counts, parts))
        return np.concatenate([statistic(some) for some in weights])


def widened(ends: Interval, wider: float = WIDER) -> Interval:
    """The interval of a difference, see `WIDER`."""
    point, low, high = ends
    return point, point + wider * (low - point), point + wider * (high - point)


def _ends(point: float, values: Floats) -> Interval:
    """The point with the quantiles of the values of the resamples."""
    low, high = np.quantile(values, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(point), float(low), float(high)
