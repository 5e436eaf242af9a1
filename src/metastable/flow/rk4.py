"""The classical Runge–Kutta method: order 4, four stages."""

from __future__ import annotations

from torch import Tensor

from metastable.flow.sphere import Field, unit

ORDER = 4


def rk4(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """x + h/6 (k₁ + 2k₂ + 2k₃ + k₄) on the sphere, with k₁ = f(x)."""
    k2 = f(unit(x + (0.5 * h) * k1))
    k3 = f(unit(x + (0.5 * h) * k2))
    k4 = f(unit(x + h * k3))
    return unit(x + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4))
