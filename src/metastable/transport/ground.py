"""The ground costs c(x, y)^p, accurate for tokens that nearly coincide.

Differences are formed before they are squared: |x|² + |y|² − 2⟨x, y⟩ would lose everything below |x − y| ≈ 1e-8.
The angle is 2·atan2(|x − y|, |x + y|), which is accurate at both ends, 0 and π.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from metastable.transport.distance import Floats

BLOCK = 2**16
"""Numbers handled at a time, so that the temporaries stay in the cache."""


def token_costs(x: Floats, y: Floats, p: float, cost: str) -> Floats:
    """c(x_i, y_i)^p, (N,), for the rows of x (N, d) and y (N, d), or one point y (d,) for all."""
    out = np.empty(len(x))
    rows = max(1, BLOCK // x.shape[1])
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        xs = x[part].T
        ys = y[:, None] if y.ndim == 1 else y[part].T
        out[part] = _power(_squares(np.subtract, xs, ys), None if cost == "chordal" else (xs, ys), p)
    return out


def _squares(combine: np.ufunc, xs: Floats, ys: Floats) -> Floats:
    # Columns are made contiguous, because numpy crawls along rows as short as d = 3.
    gap = combine(xs, ys, order="C")
    return np.asarray(np.einsum("ij,ij->j", gap, gap))


def _power(squared: Floats, both: tuple[Floats, Floats] | None, p: float) -> Floats:
    if both is not None:
        angle = 2.0 * np.arctan2(np.sqrt(squared), np.sqrt(_squares(np.add, *both)))
        return angle if p == 1 else angle**p
    return squared if p == 2 else squared ** (p / 2)


def pair_costs(x: Floats, y: Floats, p: float, cost: str) -> Floats:
    """c(x_i, y_j)^p, (N, M). scipy's cdist forms the differences directly."""
    if cost == "chordal" and p == 2:
        return np.asarray(cdist(x, y, "sqeuclidean"))
    gaps = np.asarray(cdist(x, y))
    if cost == "geodesic":
        np.arctan2(gaps, cdist(x, -y), out=gaps)
        gaps *= 2.0
    if p != 1:
        np.power(gaps, p, out=gaps)
    return gaps
