"""How close the embeddings of a smaller encoder are to those of the full one, on the same texts.

With f_i and g_i the embeddings of text i by the full and by the smaller encoder:

- *cosine*: mean over texts of cos(f_i, g_i), and *cosine_p10*, its 10th percentile;
- *nn_overlap*: mean share of the 10 nearest texts (largest cosine) of a text by f that are among the 10 nearest by g,
  searched in a pool of other texts. The pool is the same for every part of the texts, because the share depends on its
  size: the larger the pool, the more texts compete;
- *spearman*: rank correlation of cos(f_i, f_j) and cos(g_i, g_j) over the pairs i < j.

Intervals of 95 % are over texts, for the given pool: Student's for means, order statistics for the percentile, a
bootstrap of texts for the rank correlation, in which pairs of a text with itself do not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from metastable.encoder.exit import scores
from metastable.encoder.length.intervals import mean_interval, named

Floats = NDArray[np.float64]

NEIGHBOURS = 10
PERCENTILE = 0.1
LEAST_PERCENTILE = 36
"""Texts that the lower end of the interval of the percentile needs: 0.9³⁶ is the first power of 0.9 below 0.025."""
RESAMPLES = 200
METRICS = ("cosine", "cosine_p10", "nn_overlap", "spearman")


def unit(embeddings: Floats) -> Floats:
    return np.asarray(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))


def fidelity(full: Floats, smaller: Floats, pool: tuple[Floats, Floats]) -> dict[str, Any]:
    """The metrics with the ends of their intervals.

    full, smaller : (texts, d), finite and not zero
    pool : the embeddings of the texts that neighbours are searched among, by the full and by the smaller encoder
    """
    f, g = unit(full), unit(smaller)
    cosines = (f * g).sum(axis=1)
    found = overlaps(f @ unit(pool[0]).T, g @ unit(pool[1]).T)
    return {
        **named("cosine", _within(mean_interval(cosines), -1.0)),
        **named("cosine_p10", percentile(cosines)),
        **named("nn_overlap", _within(mean_interval(found), 0.0)),
        **named("spearman", spearman(f @ f.T, g @ g.T)),
    }


def _within(ends: tuple[float, float, float], least: float) -> tuple[float, float, float]:
    return float(ends[0]), max(float(ends[1]), least), min(float(ends[2]), 1.0)


def percentile(values: Floats) -> tuple[float, float, float]:
    """The percentile of cosines with an interval between two order statistics, which no distribution can upset.

    With fewer than `LEAST_PERCENTILE` texts even the smallest cosine may lie above the percentile, so that the lower
    end is NaN.
    """
    ordered, n = np.sort(values), len(values)
    low, high = (int(binom.ppf(level, n, PERCENTILE)) for level in (0.025, 0.975))
    ends = ordered[low - 1] if low > 0 else np.nan, ordered[min(high, n - 1)]
    return float(np.quantile(values, PERCENTILE)), float(ends[0]), float(ends[1])


def overlaps(ours: Floats, theirs: Floats) -> Floats:
    """For each text, the share of its nearest texts of the pool that both similarities (texts, pool) agree on."""
    count = min(NEIGHBOURS, ours.shape[1])
    near = [np.argpartition(-similarity, count - 1, axis=1)[:, :count] for similarity in (ours, theirs)]
    return np.array([len(np.intersect1d(a, b)) / count for a, b in zip(*near, strict=True)])


def spearman(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """The rank correlation over pairs of texts, with its interval.

    A resample that holds text i cᵢ times holds the pair of the texts i and j cᵢcⱼ times.
    """
    rows, columns = np.triu_indices(len(ours), 1)
    a, b = ours[rows, columns], theirs[rows, columns]
    drawn = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    counts = np.array([np.bincount(chosen, minlength=len(ours)) for chosen in drawn], dtype=np.float64)
    parts = np.array_split(counts, max(1, RESAMPLES * len(rows) // scores.CHUNK))
    found = [scores.spearman(a, b, part[:, rows] * part[:, columns]) for part in parts]
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return scores.value(scores.spearman, a, b), float(low), float(high)
