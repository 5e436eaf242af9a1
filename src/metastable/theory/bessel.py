"""Means of exponentials over spheres: modified Bessel functions in logarithms, without overflow or underflow.

    Ω_ν(z) = Γ(ν+1) (2/z)^ν I_ν(z) = Σ_k (z²/4)^k/(k! (ν+1)_k)

is the mean of e^{⟨u, y⟩} over the unit sphere of R^n, |u| = z and ν = n/2 − 1. Ω_{−1/2} = cosh (two points).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

TINY = 1e-250
"""Below this the scaled Bessel function is close to underflow, and the series is summed instead."""
LARGEST = 1000.0
"""Largest order: the series then has a sum below e^{300} wherever it is needed."""


def log_sphere_mean(nu: float, z: np.ndarray) -> np.ndarray:
    """log Ω_ν(z) for every z ≥ 0, −1/2 ≤ ν ≤ 1000."""
    z = np.asarray(z, dtype=float)
    if nu == -0.5:
        return np.asarray(np.logaddexp(z, -z) - math.log(2))
    scaled = special.ive(nu, z)
    direct = (scaled > TINY) & (z > 0)
    safe, factor = np.where(direct, z, 1.0), np.where(direct, scaled, 1.0)
    found = math.lgamma(nu + 1) + nu * np.log(2 / safe) + np.log(factor) + safe
    found[~direct] = _log_series(nu, z[~direct])
    return np.asarray(found)


def _log_series(nu: float, z: np.ndarray) -> np.ndarray:
    term, total, k = np.ones_like(z), np.ones_like(z), 0
    while term.size and bool((term > 1e-17 * total).any()):
        k += 1
        term = term * (z * z / 4) / (k * (nu + k))
        total = total + term
    return np.asarray(np.log(total))


def bessel_ratio(nu: float, z: float) -> float:
    """I_{ν+1}(z)/I_ν(z) for z ≥ 0: A_d(z) for ν = d/2 − 1, the mean of ⟨x, e⟩ under the density e^{z⟨x, e⟩}."""
    upper, lower = float(special.ive(nu + 1, z)), float(special.ive(nu, z))
    if upper > TINY:
        return upper / lower
    logs = [float(log_sphere_mean(order, np.array([z]))[0]) for order in (nu + 1, nu)]
    return z / (2 * (nu + 1)) * math.exp(logs[0] - logs[1])
