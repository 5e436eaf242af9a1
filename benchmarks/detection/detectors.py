"""From features to scores: length adjustment, one number a group, combinations; and how scores are judged.

A score is higher where a text is stranger, everywhere from here on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from features import shrunk, whitening

TWO_SIDED = (
    *("token count", "concentration", "adjacent cosine"),
    *("attention entropy", "entropy of heads", "logit gap of heads"),
)
"""Groups in which too little is as strange as too much; in the others only too much is."""


@dataclass(frozen=True)
class Adjustment:
    """z = (s − a − b·ℓ − c·ℓ²)/e^{g + h·ℓ} for each column s, with ℓ = log n kept within the range it was fitted on."""

    location: np.ndarray
    scale: np.ndarray
    least: float
    most: float

    @classmethod
    def of(cls, columns: np.ndarray, lengths: np.ndarray) -> Adjustment:
        """Least squares for the location, then for log|residual|; e^{…} is put to a root mean square of 1."""
        log_n = np.log(lengths)
        # The outermost lengths are too rare to say what is normal there.
        least, most = (float(q) for q in np.quantile(log_n, [0.005, 0.995]))
        terms = _terms(log_n, least, most)
        location = np.linalg.lstsq(terms, columns, rcond=None)[0]
        residual = columns - terms @ location
        floor = 1e-3 * residual.std(axis=0) + 1e-12
        scale = np.linalg.lstsq(terms[:, :2], np.log(np.abs(residual) + floor), rcond=None)[0]
        z = residual / np.exp(terms[:, :2] @ scale)
        scale[0] += np.log(np.sqrt(np.mean(z**2, axis=0)))
        return cls(location, scale, least, most)

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        terms = _terms(np.log(lengths), self.least, self.most)
        return (columns - terms @ self.location) / np.exp(terms[:, :2] @ self.scale)


def _terms(log_n: np.ndarray, least: float, most: float) -> np.ndarray:
    log_n = np.clip(log_n, least, most)
    return np.stack([np.ones_like(log_n), log_n, log_n**2], axis=1)


@dataclass(frozen=True)
class Vector:
    """|W(z − μ)|²/k of a vector of adjusted columns, its covariance shrunk: strange in any direction."""

    white: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Vector:
        centred = torch.from_numpy(z - z.mean(axis=0))
        return cls(whitening(shrunk(centred)).numpy(), z.mean(axis=0))

    def __call__(self, z: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.square((z - self.mean) @ self.white.T).mean(axis=1)
        return found


class Detector:
    """One group of features as a score: adjusted for length, made one number, and that adjusted again.

    One-sided groups: the mean of their adjusted columns. Two-sided ones: log of `Vector`.
    """

    def __init__(self, name: str, columns: np.ndarray, lengths: np.ndarray, raw: bool = False) -> None:
        self.name, self.raw = name, raw
        self.first = Adjustment.of(columns, np.ones_like(lengths) * 10 if raw else lengths)
        z = self.first(columns, lengths)
        self.vector = Vector.of(z) if name in TWO_SIDED else None
        self.second = Adjustment.of(self._one(z)[:, None], np.ones_like(lengths) * 10 if raw else lengths)

    def _one(self, z: np.ndarray) -> np.ndarray:
        found: np.ndarray = z.mean(axis=1) if self.vector is None else np.log(self.vector(z) + 1e-9)
        return found

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """(texts,)"""
        return self.second(self._one(self.first(columns, lengths))[:, None], lengths)[:, 0]

    def of_batches(self, columns: np.ndarray, lengths: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Of batches, (draws,): the adjusted columns are averaged over a batch first, then made one number.

        drawn : (draws, size), the texts of each batch.
        """
        return self._one(self.first(columns, lengths)[drawn].mean(axis=1))


def p_values(scores: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """Conformal: (1 + the number of clean scores at least as high)/(1 + all)."""
    ordered = np.sort(clean)
    above = len(ordered) - np.searchsorted(ordered, scores, side="left")
    return (1 + above) / (1 + len(ordered))


def fisher(scores: dict[str, np.ndarray], clean: dict[str, np.ndarray]) -> np.ndarray:
    """−2 Σ log p over detectors, p from a split of clean texts; above its highest score p goes on as e^{−2.5 z}.

    Ranks alone tie all texts beyond the clean ones, and a sum of ties cannot tell very strange from strange.
    """
    total = np.zeros(len(next(iter(scores.values()))))
    for name, own in scores.items():
        ordered = np.sort(clean[name])
        # The slope of log p for a Gaussian score at its 99 % point.
        beyond = np.maximum(own - ordered[-1], 0)
        total += -2 * np.log(p_values(own, ordered)) + 2 * 2.5 * beyond
    return total


def soft_maximum(scores: dict[str, np.ndarray], clean: dict[str, np.ndarray], sharpness: float = 1.5) -> np.ndarray:
    """log Σ e^{1.5 z}, z each detector's score in standard deviations of the clean ones: near the largest z."""
    z = [(own - clean[name].mean()) / clean[name].std() for name, own in scores.items()]
    found: np.ndarray = np.logaddexp.reduce(sharpness * np.stack(z), axis=0)
    return found


def weights(clean: np.ndarray, shifted: np.ndarray, bins: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Weights of clean texts that give them the shifted texts' lengths, and which shifted texts have a counterpart.

    Lengths fall into bins between quantiles of both together; a shifted text whose bin has fewer than five clean ones
    is left out.
    """
    edges = np.unique(np.quantile(np.concatenate([clean, shifted]), np.linspace(0, 1, bins + 1)[1:-1]))
    of_clean, of_shifted = np.digitize(clean, edges), np.digitize(shifted, edges)
    size = len(edges) + 1
    have, want = np.bincount(of_clean, minlength=size), np.bincount(of_shifted, minlength=size)
    usable = have >= 5
    ratio = np.where(usable, want / np.maximum(have, 1), 0.0)
    return ratio[of_clean], usable[of_shifted]


def auroc(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray | None = None) -> float:
    """P(shifted > clean) + P(equal)/2, clean texts counted by weight."""
    weight = np.ones(len(clean)) if weight is None else weight
    order = np.argsort(clean, kind="stable")
    ordered, cumulated = clean[order], np.concatenate([[0], np.cumsum(weight[order])])
    low, high = np.searchsorted(ordered, shifted, side="left"), np.searchsorted(ordered, shifted, side="right")
    return float(np.mean(cumulated[low] + cumulated[high]) / (2 * cumulated[-1]))


def fpr_at(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray, share: float = 0.95) -> float:
    """The share of clean texts above the threshold that catches `share` of the shifted ones."""
    threshold = np.quantile(shifted, 1 - share)
    return float(weight[clean >= threshold].sum() / weight.sum())


def aupr(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray) -> float:
    """Average precision for finding shifted texts among as many clean ones (weights are put to that sum)."""
    weight = weight * len(shifted) / weight.sum()
    order = np.argsort(-np.concatenate([clean, shifted]), kind="stable")
    is_shifted = np.concatenate([np.zeros(len(clean)), np.ones(len(shifted))])[order]
    mass = np.concatenate([weight, np.ones(len(shifted))])[order]
    found = np.cumsum(is_shifted)
    precision = found / np.maximum(np.cumsum(mass), 1e-12)
    return float((precision * is_shifted).sum() / len(shifted))
