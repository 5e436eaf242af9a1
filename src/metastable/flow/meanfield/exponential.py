"""An exponential Runge–Kutta step for numbers that are drawn together fast.

With x' = f(x) and rates L_i ≤ 0 close to ∂f_i/∂x_i, let N(δ) = f(x + δ) − Lδ. Then δ' = Lδ + N(δ), whose linear part is
solved exactly, so that large |L| do not limit the step. With the functions

    φ₁(z) = (e^z − 1)/z,   φ₂(z) = (φ₁(z) − 1)/z,   φ₃(z) = (φ₂(z) − ½)/z

of hL, the scheme of Krogstad (Journal of Computational Physics 203, 2005) has four stages and order 4:

    a₂ = (h/2) φ₁(hL/2) N₁,                             N₁ = N(0) = f(x),
    a₃ = (h/2) φ₁(hL/2) N₁ + h φ₂(hL/2) (N₂ − N₁),      N_i = N(a_i),
    a₄ = h φ₁ N₁ + 2h φ₂ (N₃ − N₁),
    δ  = h φ₁ N₁ + h φ₂ (−3N₁ + 2N₂ + 2N₃ − N₄) + 4h φ₃ (N₁ − N₂ − N₃ + N₄).

Its error is estimated by the change of δ if N(δ) replaces N₄: h (4φ₃ − φ₂) (N(δ) − N₄). The estimate is of order 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Velocity = Callable[[np.ndarray], np.ndarray]
TERMS = 16
"""Terms of the power series of φ₃ for |z| ≤ 1; the next one is below 1e-17."""


def phis(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """φ₁, φ₂ and φ₃ at z ≤ 0, (n,) each."""
    small, third = np.where(np.abs(z) < 1, z, 0.0), np.zeros_like(z)
    for k in range(TERMS, -1, -1):
        # φ₃(z) = Σ_k z^k/(k + 3)!
        third = small * third + 1 / math.factorial(k + 3)
    second = 0.5 + small * third
    first = 1 + small * second
    if (far := np.abs(z) >= 1).any():
        large = z[far]
        first[far] = np.expm1(large) / large
        second[far] = (first[far] - 1) / large
        third[far] = (second[far] - 0.5) / large
    return first, second, third


def step(
    f: Velocity, x: np.ndarray, k: np.ndarray, rates: np.ndarray, h: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """One step of length h from x (n,) with k = f(x) and rates L ≤ 0: the new x, f there, and the error (RMS)."""
    half1, half2, _ = phis(0.5 * h * rates)
    one, two, three = phis(h * rates)

    def rest(delta: np.ndarray) -> np.ndarray:
        return f(x + delta) - rates * delta

    n1 = k
    n2 = rest(0.5 * h * half1 * n1)
    n3 = rest(0.5 * h * half1 * n1 + h * half2 * (n2 - n1))
    n4 = rest(h * one * n1 + 2 * h * two * (n3 - n1))
    change = h * (one * n1 + two * (2 * (n2 + n3) - 3 * n1 - n4) + 4 * three * (n1 - n2 - n3 + n4))
    new = f(x + change)
    error = h * (4 * three - two) * (new - rates * change - n4)
    return x + change, new, float(np.sqrt(np.mean(error**2)))
