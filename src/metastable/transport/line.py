"""Transport on the line, and what it says about the sphere: sliced distances."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from metastable.cloud import Cloud
from metastable.transport.distance import Distance, Floats, Measure, check_count, check_order, two_measures

SAME_EDGE = 4 * 2.0**-52
"""Cumulated masses closer than this are the same number, summed in two ways."""


def sliced(a: Cloud, b: Cloud, p: float = 2, directions: int = 256, seed: int = 0) -> Distance:
    """The sliced distance SW_p = (mean over θ of W_p^p(⟨θ, ·⟩#a, ⟨θ, ·⟩#b))^{1/p}, chordal, weights honoured.

    The directions θ are independent and uniform on the sphere. Since |⟨θ, x − y⟩| ≤ |x − y|,
    SW_p ≤ W_p: the value is a lower bound, and the upper bound is infinite.

    Parameters
    ----------
    a, b : Cloud
        (N, d) and (M, d).
    directions : int
        How many directions θ are drawn from `seed`. O(directions · (N log N + M log M)).

    Examples
    --------
    The mean of ⟨θ, x − y⟩² over the circle is |x − y|²/2:

    >>> d = sliced(Cloud([[1.0, 0.0]]), Cloud([[-1.0, 0.0]]), directions=20_000)
    >>> abs(d.value - 2**0.5) < 0.01
    True
    """
    p = check_order(p)
    mu, nu = two_measures(a, b)
    thetas = random_directions(check_count(directions, "directions"), a.dim, check_count(seed, "seed", least=0))
    value = float(slice_totals(mu, nu, thetas, p).mean()) ** (1.0 / p)
    return Distance(value, value, math.inf, f"sliced over {directions} directions (lower bound)", p)


def random_directions(count: int, d: int, seed: int) -> Floats:
    """`count` independent uniform directions of dimension d, (count, d)."""
    thetas = np.random.default_rng(seed).normal(size=(count, d))
    return np.asarray(thetas / np.linalg.norm(thetas, axis=1, keepdims=True))


def slice_totals(mu: Measure, nu: Measure, thetas: Floats, p: float) -> Floats:
    """W_p^p of the two laws projected onto each direction: (k,) for thetas (k, d)."""
    same = len(mu.points) == len(nu.points) and mu.equal and nu.equal
    line = _sorted_total if same else _weighted_total
    return np.array([line(mu.points @ t, mu.weights, nu.points @ t, nu.weights, p) for t in thetas])


def _sorted_total(x: Floats, a: Floats, y: Floats, b: Floats, p: float) -> float:
    return float(np.mean(np.abs(np.sort(x) - np.sort(y)) ** p))


def _weighted_total(x: Floats, a: Floats, y: Floats, b: Floats, p: float) -> float:
    """∫₀¹ |F⁻¹(s) − G⁻¹(s)|^p ds: the two quantile functions are constant between merged edges."""
    i, j = np.argsort(x), np.argsort(y)
    left, right, mass = merge(a[i], b[j])
    return float(mass @ np.abs(x[i][left] - y[j][right]) ** p)


def merge(a: Floats, b: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """The monotone coupling of two rows of weights: index into a, index into b, mass, for each piece.

    Each row is laid out on [0, 1] in its order; the pieces are the intervals between the edges of both.
    """
    ends = np.concatenate([_ends(a), _ends(b)])
    order = np.argsort(ends, kind="stable")  # two sorted runs: one merge
    ends = ends[order]
    of_a = order < len(a)
    before: NDArray[np.intp] = np.cumsum(of_a) - of_a
    kept = np.flatnonzero(np.diff(ends, prepend=0.0) > SAME_EDGE)
    ends[kept[-1]] = 1.0
    return before[kept], kept - before[kept], np.diff(ends[kept], prepend=0.0)


def _ends(weights: Floats) -> Floats:
    # Extended precision keeps the edges of 10⁶ tokens within SAME_EDGE of where they belong.
    ends = np.cumsum(weights, dtype=np.longdouble)
    return np.asarray(ends / ends[-1], dtype=np.float64)
