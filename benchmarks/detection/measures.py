"""How scores are judged, and at which lengths. A score is higher where a text is stranger."""

from __future__ import annotations

from functools import lru_cache

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
    order = np.argsort(clean, kind="stable")
    cumulated = np.concatenate([[0.0], np.cumsum(weight[order])])
    low, high = (np.searchsorted(clean[order], shifted, side=side) for side in ("left", "right"))
    return float(np.mean(cumulated[low] + cumulated[high]) / (2 * cumulated[-1]))


def interval(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % of `auroc` over bootstrap samples of both sets."""
    of_clean, of_shifted = _draws(len(clean), len(shifted), seed)
    of_clean = of_clean * weight
    kept = of_clean.sum(axis=1) > 0
    won = (clean[:, None] < shifted).astype(np.float64) + 0.5 * (clean[:, None] == shifted)
    sums = ((of_clean[kept] @ won) * of_shifted[kept]).sum(axis=1)
    low, high = np.quantile(sums / (len(shifted) * of_clean[kept].sum(axis=1)), [0.025, 0.975])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _draws(clean: int, shifted: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each text is in each bootstrap sample, (RESAMPLES, texts), of both sets: alike for all methods."""
    chance = np.random.default_rng(seed)
    of_clean = chance.multinomial(clean, np.full(clean, 1 / clean), size=RESAMPLES)
    return of_clean, chance.multinomial(shifted, np.full(shifted, 1 / shifted), size=RESAMPLES)


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
