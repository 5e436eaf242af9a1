"""Causal attention with V = I: the first token never moves, and early tokens with free space around them hold clusters.

With a causal mask token j sees tokens 1 … j only. The first token follows the flow of V alone (`flow.exact.value_flow`)
and rests for V = I, where all others converge to it in the end. Before that, clusters form around **Rényi centres**
(Karagodin, Polyanskiy, Rigollet, "Clustering in causal attention masking", arXiv 2411.04990): read the tokens in their
order and call token j

    a Rényi centre          if its geodesic distance to all earlier centres exceeds δ,
    a strong Rényi centre   if its geodesic distance to all earlier tokens exceeds δ,

with δ = c/√β, c above 1 (the paper draws c = 4). Strong centres are nearly at rest for a long time. Rényi centres
explain more of the clusters, but they may move and merge.

**Expected numbers** for N independent uniform tokens on the circle, of length L = 2π.

Strong centres: token j is one if j − 1 tokens avoid an arc of length 2δ, so Σ_j (1 − 2δ/L)^{j−1}, exactly.

Centres: they are cars of length δ that park at random (random sequential adsorption). If tokens arrive as a Poisson
process, the density of gaps between neighbouring centres of length x ≥ δ obeys a linear equation, and the number of
centres after t arrivals per length δ is (L/δ)θ(t) with

    θ(t) = ∫_0^t exp( −2 ∫_0^u (1 − e^{−v})/v dv ) du,      θ(∞) = 0.7475979… (Rényi's constant).

For a number N that is fixed and not Poisson, f(N) = F(N) − (N/2)F''(N) + … with F(N) = (L/δ)θ(Nδ/L), which adds
θ'(t)(1 − e^{−t}). The finite length of the circle changes this by less than any power of δ/L.
"""

from __future__ import annotations

import bisect
import math
from itertools import pairwise

import numpy as np
from scipy import special
from scipy.integrate import quad

from metastable.arrays import Array, positive, whole
from metastable.cloud import Cloud
from metastable.errors import BadInput

RENYI = 0.7475979202534114
"""Rényi's parking constant, the limit of θ(t)."""
BLOCK, CHUNK = 512, 4096
"""Tokens that are compared at once, and earlier tokens that they are compared with at once: 16 MB."""


def renyi_centres(points: Array, delta: float, strong: bool = False) -> np.ndarray:
    """Indices of the Rényi centres of tokens, the rows of `points` (N, d), in their order.

    delta : geodesic distance in radians, above 0 and at most π
    strong : compare with all earlier tokens instead of all earlier centres

    On the circle the cost is about N log N. In higher dimension it is N times the number of centres (strong: N²).

    Examples
    --------
    >>> renyi_centres([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]], delta=0.2).tolist()
    [0, 2, 3]
    >>> renyi_centres([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.9, 0.3]], delta=0.25, strong=True).tolist()
    [0, 2]
    """
    x = Cloud(points).points.double().cpu().numpy()
    if positive(delta, "delta") > math.pi:
        raise BadInput(f"delta is {delta}; geodesic distances are at most π")
    kept = _on_circle(np.arctan2(x[:, 1], x[:, 0]), delta, strong) if x.shape[1] == 2 else _anywhere(x, delta, strong)
    return np.array(kept)


def _on_circle(angle: np.ndarray, delta: float, strong: bool) -> list[int]:
    """Only the neighbours on both sides can be near: they are found in a sorted list."""
    turn = 2 * math.pi
    kept: list[int] = []
    placed: list[float] = []
    for j, theta in enumerate((angle % turn).tolist()):
        i = bisect.bisect(placed, theta)
        neighbours = (placed[i - 1], placed[i % len(placed)]) if placed else ()
        free = all(min((theta - a) % turn, (a - theta) % turn) > delta for a in neighbours)
        if free:
            kept.append(j)
        if free or strong:
            placed.insert(i, theta)
    return kept


def _anywhere(x: np.ndarray, delta: float, strong: bool) -> list[int]:
    """Blocks of tokens are compared with all earlier ones by one product; inside a block one by one."""
    nearest = math.cos(delta)
    kept: list[int] = []
    for start in range(0, len(x), BLOCK):
        part = x[start : start + BLOCK]
        free = _largest_cosine(part, x[:start] if strong else x[kept]) < nearest
        apart = part @ part.T < nearest
        chosen: list[int] = []
        for j in np.flatnonzero(free).tolist():
            if apart[j, :j].all() if strong else apart[j, chosen].all():
                chosen.append(j)
        kept += [start + j for j in chosen]
    return kept


def _largest_cosine(part: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Cosine of each row with the nearest of the others; −inf without any."""
    found = np.full(len(part), -np.inf)
    for start in range(0, len(others), CHUNK):
        found = np.maximum(found, (part @ others[start : start + CHUNK].T).max(axis=1))
    return found


def parking_density(t: float) -> float:
    """θ(t): the share of a long line that is covered by parked cars after t arrivals per length of a car.

    The inner integral is log u + γ + E₁(u). For large u, exp(−2·inner) ≈ e^{−2γ}/u², so that θ(t) ≈ θ(∞) − e^{−2γ}/t.
    """
    t = positive(t, "t")
    if t > 1e4:
        return RENYI - math.exp(-2 * np.euler_gamma) / t
    cuts = [0.0, *(c for c in (1.0, 10.0, 100.0, 1000.0) if c < t), t]
    return float(sum(quad(_arrival, a, b, epsabs=1e-13, epsrel=1e-12)[0] for a, b in pairwise(cuts)))


def _arrival(u: float) -> float:
    """θ'(u) = exp(−2(log u + γ + E₁(u))), the share of arrivals that find a place."""
    if u < 1e-8:
        return 1 - 2 * u
    return float(np.exp(-2 * (math.log(u) + np.euler_gamma + special.exp1(u))))


def expected_renyi_centres(delta: float, n: int | None = None, strong: bool = False) -> float:
    """Expected number of Rényi centres of n independent uniform tokens on the circle; n = None is the limit of many.

    delta : geodesic distance, above 0 and at most π/2; for centres (not strong ones) the formula is accurate when many
        cars fit on the circle, δ < 1 say

    The number of strong centres tends to π/δ, that of centres to 0.7476·2π/δ.
    """
    delta = positive(delta, "delta")
    if delta > math.pi / 2:
        raise BadInput(f"delta is {delta}; the expected number is known for delta up to π/2")
    cars = 2 * math.pi / delta
    if n is None:
        return cars / 2 if strong else cars * RENYI
    n = whole(n, "n", 1, "it must be a whole number of tokens, 1 or more")
    if strong:
        return -math.expm1(n * math.log1p(-2 / cars)) * cars / 2
    t = n / cars
    return cars * parking_density(t) - _arrival(t) * math.expm1(-t)
