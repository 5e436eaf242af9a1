"""The a posteriori certificate: Grönwall's inequality with a measured field error.

Follow the same starting tokens under both flows, x under β and y under zero temperature. With ε(t) the root mean
square over tokens of |𝒱_β[μ_t](x) − 𝒱_∞(x)|, measured on the β-run, and L the one-sided Lipschitz constant of 𝒱_∞,

    W₂(μ_t^β, μ_t^∞) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds      (geodesic; the chordal distance is smaller).

Where the run itself jumps at a time s, by e in geodesic W₂ (merged tokens), e·e^{L(t−s)} is added.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def gronwall(field_errors: Tensor, L: float, times: Tensor, jumps: Tensor | None = None) -> np.ndarray:
    """∫₀ᵗ ε(s)e^{L(t−s)}ds at each of `times`, with ε on each step replaced by the larger of its two ends.

    `jumps` (J, 2) are rows (s, e) at times of `field_errors`.
    """
    s, eps = field_errors.cpu().double().numpy().T
    jump = np.zeros(len(s))
    if jumps is not None:
        when, size = jumps.cpu().double().numpy().T
        np.add.at(jump, np.searchsorted(s, when), size)
    bound = np.zeros(len(s))
    for i in range(1, len(s)):
        h = s[i] - s[i - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(L * h)
            inner = np.expm1(L * h) / L if L != 0 else h
            bound[i] = bound[i - 1] * growth + max(eps[i], eps[i - 1]) * inner + jump[i]
        if not math.isfinite(bound[i]):
            bound[i:] = math.inf
            break
    return bound[np.searchsorted(s, times.cpu().double().numpy())]
