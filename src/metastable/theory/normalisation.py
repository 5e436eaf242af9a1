"""The clocks of normalisation schemes: how fast tokens cluster when the same attention is normalised differently.

A token is h = r x with x on the sphere, and f(x) is what attention adds to it. The schemes (see Karagodin, Ge,
Polyanskiy, Rigollet, "Normalization in attention dynamics", arXiv 2510.22026) are

    post   x' = P_x f                                                    r constant
    ngpt   x' = P_x f/|f|                                                r constant
    pre    h' = f(x),        so x' = P_x f/r,         r' = ⟨x, f⟩
    peri   h' = f(x)/|f(x)|, so x' = P_x f/(|f| r),   r' = ⟨x, f⟩/|f|    (also called sandwich)
    none   h' = f(h): attention sees h itself, without any normalisation

**Equiangular tokens.** Let B = V = I and let n tokens have one pairwise cosine ρ and one radius r. The flow preserves
this, so two numbers describe everything. With b = β (none: b = βr²) and q = e^{−b(1−ρ)} a token gives itself the weight
a_s = 1/(1 + (n−1)q) and each other token a_o = q a_s. Then f_i = a_s x_i + a_o Σ_{j≠i} x_j (none: times r), so that

    ⟨x_i, f_i⟩ = a_s + (n−1)a_o ρ,        ⟨x_k, f_i⟩ = a_s ρ + a_o(1 + (n−2)ρ)  (k ≠ i),
    |f_i|² = a_s⟨x_i, f_i⟩ + (n−1)a_o⟨x_k, f_i⟩,
    ρ' = 2 c (⟨x_k, f_i⟩ − ρ⟨x_i, f_i⟩) = 2 c a_o (1−ρ)(1 + (n−1)ρ),

with the clock c = 1, 1/|f|, 1/r, 1/(|f|r), 1 in the order above. Except for "none" all schemes run through the same
values of ρ; only the clock differs.

**Late times.** As ρ → 1, a_o → 1/n, |f| → 1 and ⟨x, f⟩ → 1, so (1−ρ)' = −2c(1−ρ).
post and ngpt: c = 1 and 1−ρ ~ e^{−2t}. pre and peri: r' → 1, c ~ 1/t and 1−ρ ~ t^{−2}.
none: D = |h_i − h_k|² obeys D' = 2(a_s − a_o)D with a_s > a_o for β > 0, so tokens never come closer. As D grows, each
token attends to itself alone, h' = h, and the rescaled tokens z = e^{−t}h stop: 1−ρ has a positive limit, and there is
no consensus. (β = 0: D is constant and 1−ρ ~ e^{−2t}.)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from metastable.arrays import Array, inverse_temperature, positive, real, vector, whole
from metastable.errors import BadInput

NORMS = ("post", "ngpt", "pre", "peri", "none")
TOLERANCE = 1e-12
"""Relative and absolute tolerance of the integrator, for log(1 − ρ) and log r."""


class Clustering(NamedTuple):
    """How 1 − ρ vanishes at late times: like e^{−exponent·t}, like t^{−exponent}, or not at all."""

    kind: str
    """"exponential", "power", or "none"."""
    exponent: float


CLUSTERING = {
    "post": Clustering("exponential", 2.0),
    "ngpt": Clustering("exponential", 2.0),
    "pre": Clustering("power", 2.0),
    "peri": Clustering("power", 2.0),
    "none": Clustering("none", 0.0),
}


def clustering_exponent(norm: str) -> Clustering:
    """The law of 1 − ρ at late times for B = V = I, for every 0 < β < ∞ and every number of tokens."""
    _known(norm)
    return CLUSTERING[norm]


def equiangular(
    n: int, beta: float, rho0: float, norm: str, times: Array, radius: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(ρ(t), r(t)) at `times` (increasing, ≥ 0) for n ≥ 2 equiangular tokens with B = V = I.

    rho0 : cosine at t = 0, between −1/(n−1) (the least that n tokens can have) and 1
    radius : r at t = 0

    The equations are solved for log(1 − ρ) and log r, so that 1 − ρ and r may become very small and very large.

    Examples
    --------
    >>> rho, r = equiangular(8, 1.0, 0.2, "pre", [0.0, 2.0])
    >>> rho.round(4).tolist(), r.round(4).tolist()
    ([0.2, 0.8166], [1.0, 2.3039])
    """
    _known(norm)
    n = whole(n, "n", 2, "equiangular tokens are a whole number, 2 or more")
    beta, radius = inverse_temperature(beta), positive(radius, "radius")
    least = -1 / (n - 1)
    real(rho0, "rho0", f"for {n} tokens it must be above {least:.4g} and below 1", least, lambda rho: least < rho < 1)
    if math.isinf(beta):
        raise BadInput("beta is inf; equiangular tokens then attend to themselves alone and do not move")
    wanted = vector(times, "times", None).double().cpu().numpy()
    if wanted[0] < 0 or not bool((np.diff(wanted) > 0).all()):
        raise BadInput("times must be increasing numbers, 0 or more")

    def slope(_: float, state: np.ndarray) -> list[float]:
        return _slope(norm, n, beta, float(state[0]), float(state[1]))

    start = [math.log1p(-rho0), math.log(radius)]
    # t = 0 is added for the integrator and taken away again.
    span = np.concatenate([[0.0], wanted]) if wanted[0] > 0 else wanted
    if len(span) == 1:
        return np.array([float(rho0)]), np.array([radius])
    found: Any = solve_ivp(slope, (0.0, span[-1]), start, method="DOP853", t_eval=span, rtol=TOLERANCE, atol=TOLERANCE)
    log_gap, log_radius = found.y[:, -len(wanted) :]
    return -np.expm1(log_gap), np.exp(log_radius)


def _slope(norm: str, n: int, beta: float, log_gap: float, log_radius: float) -> list[float]:
    """Derivatives of log(1 − ρ) and of log r."""
    gap = math.exp(log_gap)
    rho = 1 - gap
    # Beyond e^{50} the weight of other tokens is 0 in any case.
    scale = math.exp(min(log_gap + (2 * log_radius if norm == "none" else 0.0), 50.0))
    q = math.exp(-beta * scale)
    own = 1 / (1 + (n - 1) * q)
    other = q * own
    along = own + (n - 1) * other * rho
    across = own * rho + other * (1 + (n - 2) * rho)
    clock, growth = 1.0, 0.0
    if norm in ("ngpt", "peri"):
        clock = 1 / math.sqrt(own * along + (n - 1) * other * across)
    if norm in ("pre", "peri"):
        clock *= math.exp(-log_radius)
        growth = along * clock
    elif norm == "none":
        growth = along
    return [-2 * clock * other * (1 + (n - 1) * rho), growth]


def _known(norm: str) -> None:
    if norm not in NORMS:
        raise BadInput(f"norm is {norm!r}; use one of {', '.join(NORMS)}")
