"""The choice of a layer by nested cross validation, from features alone.

Texts are dealt into five folds. For a set E of folds, probes are trained on all other folds and predict the texts of E.
Everything is made of these predictions:

- the penalty and the inner score of a depth *without E*: for every fold j outside E, the probes trained without E and j
  predict j. The penalty with the least loss on all of these texts is chosen, and the score is that of its predictions.
- the outer prediction of a text in fold k: the penalty without {k}, and the probe trained without {k}.
- the rule of fold k: the earliest layer whose inner score without {k} is at most `loss` below the best one, among the
  layers that can be an exit.

No label of fold k has a part in the predictions of fold k, so that their score is honest, also for the rule. The final
layer is that of the same rule with E empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metastable.encoder.exit.labelled import FOLDS, Floats, Ints, Target
from metastable.encoder.exit.probes import PENALTIES, held_out, losses, predicted
from metastable.encoder.exit.scores import SCORES, first_score, value

FIRST = 1
"""The earliest exit of most encoders, in layers. Depth 0 is measured too, but a model without layers is no encoder."""


def dealt(groups: Ints, target: Target, seed: int) -> Ints:
    """The fold of each text: groups stay together, and each class is spread evenly.

    Groups are dealt one by one, large ones first, to the fold that has the smallest share of their classes.
    """
    many, classes = int(groups.max()) + 1, max(1, len(target.classes))
    counts = np.zeros((many, classes))
    np.add.at(counts, (groups, target.numbers if target.classes else np.zeros_like(groups)), 1.0)
    shares = counts / counts.sum(axis=0)
    held, fold = np.zeros((FOLDS, classes)), np.empty(many, dtype=np.int64)
    shuffled = np.random.default_rng(seed).permutation(many)
    for group in shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]:
        # A fold that has as much of these classes as another one is the smaller one of the two.
        fold[group] = min(range(FOLDS), key=lambda k: (held[k] @ counts[group], held[k].sum()))
        held[fold[group]] += shares[group]
    return fold[groups]


class DepthFits:
    """The probes of one depth, trained without some folds, as far as they were asked for.

    x : (texts, d), the features
    fitted : called after each training
    """

    def __init__(self, x: Floats, target: Target, fold: Ints, fitted: Callable[[], None] = lambda: None) -> None:
        self._x, self._target, self._fold, self._fitted = x, target, fold, fitted
        self._known: dict[frozenset[int], Floats] = {}
        self.penalties = PENALTIES[target.task]

    def held_out(self, gone: frozenset[int], wanted: int) -> Floats:
        """Outputs for the texts of fold `wanted`, which is in `gone`, (penalties, texts, outputs)."""
        inside = np.isin(self._fold, list(gone))
        if gone not in self._known:
            rows, others = np.flatnonzero(~inside), np.flatnonzero(inside)
            self._known[gone] = held_out(self._x, self._target, rows, others, self.penalties)
            self._fitted()
        return self._known[gone][:, self._fold[inside] == wanted]

    def inner(self, gone: frozenset[int] = frozenset()) -> tuple[int, float]:
        """The number of the chosen penalty, and the score, without the folds in `gone`."""
        others = [k for k in range(FOLDS) if k not in gone]
        outputs = np.concatenate([self.held_out(gone | {k}, k) for k in others], axis=1)
        values = np.concatenate([self._target.values[self._fold == k] for k in others])
        task = self._target.task
        best = int(losses(outputs, values, task).sum(axis=1).argmin())
        return best, value(SCORES[task][first_score(task)], values, predicted(outputs[best], task))

    def outer(self, gone: frozenset[int], wanted: int) -> Floats:
        """Outputs for the texts of fold `wanted` with the penalty that is chosen without `gone`, (texts, outputs)."""
        return np.asarray(self.held_out(gone, wanted)[self.inner(gone)[0]])


@dataclass(frozen=True)
class Nested:
    """The nested cross validation of all depths.

    fold : (texts,)
    outputs : (depths, texts, outputs), outer predictions of each depth
    inner : (folds, depths), inner scores without each fold; final : (depths,), without none
    penalties : (folds + 1, depths), the chosen penalty without each fold, and without none
    first : the earliest layer that can be an exit
    """

    target: Target
    fold: Ints
    outputs: Floats
    inner: Floats
    final: Floats
    penalties: Floats
    first: int = FIRST

    def predictions(self, layers: int | Ints) -> Floats:
        """The outer prediction of each text at one depth, or at the depth of its fold (folds,)."""
        depth = np.broadcast_to(layers, FOLDS)[self.fold]
        return predicted(self.outputs[depth, np.arange(len(self.fold))], self.target.task)

    def rule(self, loss: float) -> Ints:
        """The layer that the rule chooses without each fold, (folds,)."""
        return np.array([earliest(scores, loss, self.first) for scores in self.inner])

    @property
    def best(self) -> Ints:
        """The layer with the best inner score without each fold, (folds,)."""
        return np.asarray(self.first + self.inner[:, self.first :].argmax(axis=1))


def earliest(scores: Floats, loss: float, first: int = FIRST) -> int:
    """The earliest layer, from `first` on, whose score, (depths,), is at most `loss` below the best one.

    >>> earliest(np.array([0.9, 0.7, 0.89, 0.9]), 0.02)
    2
    """
    # Rounding must not exclude a layer that loses exactly `loss`.
    return first + int((scores[first:] >= scores[first:].max() - loss - 1e-12).argmax())


Visit = Callable[[int, DepthFits], None]
"""Called with each depth and its probes, which are dropped afterwards."""


def nested(
    features: Floats,
    target: Target,
    fold: Ints,
    fitted: Callable[[], None] = lambda: None,
    visit: Visit = lambda depth, fits: None,
    first: int = FIRST,
) -> Nested:
    """The nested cross validation of features (texts, depths, d)."""
    depths = features.shape[1]
    outputs = np.empty((depths, len(fold), max(1, len(target.classes))))
    chosen, scores = np.empty((FOLDS + 1, depths), dtype=np.int64), np.empty((FOLDS + 1, depths))
    for depth in range(depths):
        fits = DepthFits(features[:, depth], target, fold, fitted)
        for k in range(FOLDS):
            gone = frozenset({k})
            chosen[k, depth], scores[k, depth] = fits.inner(gone)
            outputs[depth, fold == k] = fits.held_out(gone, k)[chosen[k, depth]]
        chosen[FOLDS, depth], scores[FOLDS, depth] = fits.inner()
        visit(depth, fits)
    penalties = np.array(PENALTIES[target.task])[chosen]
    return Nested(target, fold, outputs, scores[:FOLDS], scores[FOLDS], penalties, first)
