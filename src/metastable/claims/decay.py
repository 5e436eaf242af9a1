"""The predicted decay W_p ~ t^q e^{−rt} of the zero-temperature law, and the fit that measures r.

The factor t^q is known (derived in `lyapunov`, where r comes from too):

    q = 1/p          where c and mκ/p tie,
    q = −(n − n₁)/2p otherwise: Laplace's method around the slowest points of E (or of E₂ if the late tokens win), n
                     being the dimension of that space and n₁ the multiplicity of the largest |Bᵀe| on its sphere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from metastable.claims.fitting import line
from metastable.theory import Theory

NEAR_TIE = 0.25
"""Rates c and mκ/p closer than this share, but not equal, would need a longer window than there is."""


@dataclass(frozen=True)
class Forecast:
    """r and q of W_p ~ t^q e^{−rt}, or why they cannot be tested."""

    rate: float
    power: float
    reason: str | None = None


def forecast(theory: Theory, p: int) -> Forecast:
    """The rate that the package predicts, with the power of t derived above."""
    rate, token, tail = theory.law_rate(p), theory.rate, theory.escape_rate * theory.dim / p
    if _later(theory, p) < min(token, tail):
        return Forecast(rate, 0.0, "a later eigenvector decides, and the graded cloud does not resolve its tail")
    if math.isclose(token, tail, rel_tol=1e-6):
        return Forecast(rate, 1 / p)
    if abs(token - tail) < NEAR_TIE * min(token, tail):
        near = f"c = {token:.3g} and mκ/p = {tail:.3g} nearly tie"
        return Forecast(rate, 0.0, f"{near}: the leading term would show only at much later times")
    if token < tail:
        return Forecast(rate, -_codimension(theory, theory.basis.double().numpy()) / (2 * p))
    _, basis, pair = theory.attention.lower_groups[0]
    return Forecast(rate, 0.0 if pair else -_codimension(theory, basis) / (2 * p))


def _later(theory: Theory, p: int) -> float:
    """The least rate of the tails at the third and later groups of eigenvalues, Σ_j (λ_j − λ_k)/(p·|Bᵀx_k|)."""
    values, rates = theory.eigenvalues.real.numpy(), [math.inf]
    for level, basis, _ in theory.attention.lower_groups[1:]:
        clock = float(np.linalg.norm(theory.head.B.double().numpy().T @ basis, 2))
        rates.append(float(np.maximum(values - level, 0).sum()) / max(p * clock, 1e-300))
    return min(rates)


def _codimension(theory: Theory, basis: np.ndarray) -> int:
    """The dimension of the sphere of the space less that of the set where |Bᵀe| is largest."""
    sizes = np.linalg.svd(theory.head.B.double().numpy().T @ basis, compute_uv=False)
    return int((sizes < (1 - 1e-6) * sizes[0]).sum())


def fitted(times: np.ndarray, distances: np.ndarray, power: float) -> float:
    """r of log W = a − rt + q·log(t + t₀)."""
    logs = np.log(distances)
    if power == 0:
        return -line(times, logs).slope

    def left(shift: float) -> float:
        return line(times, logs - power * np.log(times + shift)).rms

    best = minimize_scalar(left, bounds=(-0.9 * times[0], 4 * times[-1]), method="bounded", options={"xatol": 1e-6})
    return -line(times, logs - power * np.log(times + best.x)).slope
