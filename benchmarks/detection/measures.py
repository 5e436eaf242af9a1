"""How scores are judged, and at which lengths. A score is higher where a text is stranger."""

from __future__ import annotations

import numpy as np

RESAMPLES = 200
"""Bootstrap samples of an interval."""


def weights(clean: np.ndarray, shifted: np.ndarray, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Weights of clean texts that give them the shifted texts' lengths, and which shifted texts have a counterpart.

    Lengths fall into bins between quantiles of the shifted ones. Clean texts shorter or longer than all of these count
    nothing; a shifted text whose bin has fewer than five clean ones is left out.
    """
    edges = np.unique(np.quantile(shifted, np.linspace(0, 1, bins + 1)))
    of_clean, of_shifted = (np.digitize(lengths, edges[1:-1]) for lengths in (clean, shifted))
    within = (clean >= edges[0]) & (clean <= edges[-1])
    size = max(len(edges) - 1, 1)
    have = np.bincount(of_clean[within], minlength=size)
    usable = have >= 5
    ratio = np.where(usable, np.bincount(of_shifted, minlength=size) / np.maximum(have, 1), 0.0)
    return np.where(within, ratio[of_clean], 0.0), usable[of_shifted]


def auroc(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray | None = None) -> float:
    """P(shifted > clean) + P(equal)/2, clean texts counted by weight."""
    weight = np.ones(len(clean)) if weight is None else weight
    return float(_aurocs(clean, shifted, weight[None], np.full((1, len(shifted)), 1 / len(shifted)))[0])


def interval(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % of `auroc` over bootstrap samples of both sets."""
    chance = np.random.default_rng(seed)
    m, n = len(clean), len(shifted)
    of_clean = weight * chance.multinomial(m, np.full(m, 1 / m), size=RESAMPLES)
    of_shifted = chance.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
    kept = of_clean.sum(axis=1) > 0
    low, high = np.quantile(_aurocs(clean, shifted, of_clean[kept], of_shifted[kept]), [0.025, 0.975])
    return float(low), float(high)


def _aurocs(clean: np.ndarray, shifted: np.ndarray, of_clean: np.ndarray, of_shifted: np.ndarray) -> np.ndarray:
    """For each row of weights (rows, clean) and (rows, shifted), the latter of sum 1: (rows,)."""
    order = np.argsort(clean, kind="stable")
    cumulated = np.cumsum(np.pad(of_clean[:, order], ((0, 0), (1, 0))), axis=1)
    low, high = (np.searchsorted(clean[order], shifted, side=side) for side in ("left", "right"))
    below = (cumulated[:, low] + cumulated[:, high]) / 2
    return np.asarray((below * of_shifted).sum(axis=1) / cumulated[:, -1])


def fpr_at(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray, share: float = 0.95) -> float:
    """The share of clean texts at or above the highest threshold that catches at least `share` of the shifted ones."""
    caught = int(np.ceil(share * len(shifted) - 1e-9))
    threshold = np.sort(shifted)[len(shifted) - caught]
    return float(weight[clean >= threshold].sum() / weight.sum())


def aupr(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray) -> float:
    """Average precision for finding shifted texts among as many clean ones (weights are put to that sum).

    The mean over shifted texts of the precision among all texts that score at least as high as it does.
    """
    weight = weight * len(shifted) / weight.sum()
    order = np.argsort(clean, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weight[order])])
    false = below[-1] - below[np.searchsorted(clean[order], shifted, side="left")]
    true = len(shifted) - np.searchsorted(np.sort(shifted), shifted, side="left")
    return float(np.mean(true / (true + false)))
