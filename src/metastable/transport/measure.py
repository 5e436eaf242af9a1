"""The types of the room (`Distance`, `Measure`), the checks of arguments, and the ground costs c(x, y)^p.

The costs are accurate for tokens that nearly coincide. Differences are formed before they are squared:
|x|² + |y|² − 2⟨x, y⟩ would lose everything below |x − y| ≈ 1e-8. The angle is 2·atan2(|x − y|, |x + y|), which is
accurate at both ends, 0 and π.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from metastable.arrays import real, whole
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK = 2**16
"""How many numbers are handled at a time, so that temporary arrays stay in the cache."""


@dataclass(frozen=True)
class Distance:
    """lower ≤ W_p ≤ upper. `value` is the number to quote: W_p if it is exact, else the bound that `method` names.

    Examples
    --------
    >>> print(Distance(0.5, 0.5, 0.5, "network simplex"))
    W2 = 0.5 (chordal, network simplex)
    >>> print(Distance(0.5, 0.25, 0.5, "coupling (upper bound)", p=1.0))
    0.25 ≤ W1 ≤ 0.5 (chordal, coupling (upper bound))
    """

    value: float
    lower: float
    upper: float
    method: str
    p: float = 2.0
    cost: str = "chordal"

    @property
    def exact(self) -> bool:
        """Whether the two bounds agree up to rounding."""
        return math.isclose(self.lower, self.upper, rel_tol=1e-9, abs_tol=1e-15)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        name, how = f"W{self.p:g}", f"({self.cost}, {self.method})"
        if self.exact:
            return f"{name} = {self.value:.6g} {how}"
        top = "" if math.isinf(self.upper) else f" ≤ {self.upper:.6g}"
        return f"{self.lower:.6g} ≤ {name}{top} {how}"


def exactly(total: float, method: str, p: float, cost: str) -> Distance:
    """The exact distance whose p-th power is `total`."""
    value = max(total, 0.0) ** (1.0 / p)
    return Distance(value, value, value, method, p, cost)


@dataclass(frozen=True)
class Measure:
    """Σ w_i δ_{x_i} in float64 numpy: points (N, d), weights (N,) that add up to 1, and the points' own rounding."""

    points: Floats
    weights: Floats
    rounding: float = 1e-12

    @property
    def equal(self) -> bool:
        return bool((self.weights == self.weights[0]).all())

    def positive(self) -> Measure:
        """The tokens that carry mass. A token of weight 0 belongs to no coupling."""
        seen = self.weights > 0
        return self if seen.all() else Measure(self.points[seen], self.weights[seen], self.rounding)

    def mean(self) -> Floats:
        return self.weights @ self.points


def measure(cloud: Cloud, name: str) -> Measure:
    if not isinstance(cloud, Cloud):
        raise BadInput(f"{name} is a {type(cloud).__name__}, expected a Cloud; make one with Cloud(points, weights)")
    points = numbers(cloud.points)
    if not np.isfinite(points).all():
        raise BadInput(f"{name} holds a point that is not finite; check the run that it came from")
    weights = np.exp(numbers(cloud.log_weights))
    return Measure(points, weights / weights.sum(), 1e-12 if cloud.dtype == torch.float64 else 1e-6)


def two_measures(a: Cloud, b: Cloud) -> tuple[Measure, Measure]:
    mu, nu = measure(a, "the first cloud"), measure(b, "the second cloud")
    if mu.points.shape[1] != nu.points.shape[1]:
        raise BadInput(f"the clouds live in d = {a.dim} and d = {b.dim}; a distance needs the same dimension")
    return mu, nu


def numbers(t: torch.Tensor) -> Floats:
    """float64 numpy, sharing memory with the tensor where possible."""
    return np.asarray(t.detach().to(device="cpu", dtype=torch.float64).numpy())


def order_and_cost(p: Any, cost: str = "chordal") -> tuple[float, str]:
    """The checked order and cost of a distance."""
    rule = "the order of a Wasserstein distance is a finite number, 1 or more"
    if real(p, "p", rule, least=1.0) == math.inf:
        raise BadInput(f"p is {p!r}; {rule}")
    return float(p), choice(cost, "cost", ("chordal", "geodesic"))


def count(n: Any, name: str, least: int = 1) -> int:
    return whole(n, name, least, f"it must be a whole number, {least} or more")


def token_costs(x: Floats, y: Floats, p: float, cost: str) -> Floats:
    """c(x_i, y_i)^p, (N,), for the rows of x (N, d) and y (N, d), or one point y (d,) for all."""
    out = np.empty(len(x))
    rows = max(1, BLOCK // x.shape[1])
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        xs = x[part].T
        ys = y[:, None] if y.ndim == 1 else y[part].T
        squared = _squares(np.subtract, xs, ys)
        if cost == "geodesic":
            angle = 2.0 * np.arctan2(np.sqrt(squared), np.sqrt(_squares(np.add, xs, ys)))
            out[part] = angle if p == 1 else angle**p
        else:
            out[part] = squared if p == 2 else squared ** (p / 2)
    return out


def _squares(combine: np.ufunc, xs: Floats, ys: Floats) -> Floats:
    # Contiguous columns: numpy is slow along rows as short as d = 3.
    gap = combine(xs, ys, order="C")
    return np.asarray(np.einsum("ij,ij->j", gap, gap))


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
