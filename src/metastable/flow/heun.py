"""Heun's method, also called the explicit trapezoidal rule: order 2, two stages.

Not to be confused with Heun's third-order method.
"""

from __future__ import annotations

from torch import Tensor

from metastable.flow.sphere import Field, unit

ORDER = 2


def heun(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """x + h/2 (k₁ + k₂) on the sphere, with k₁ = f(x) and k₂ = f(x + h k₁)."""
    k2 = f(unit(x + h * k1))
    return unit(x + (0.5 * h) * (k1 + k2))
