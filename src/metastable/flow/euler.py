"""Euler's method: order 1, one stage."""

from __future__ import annotations

from torch import Tensor

from metastable.flow.sphere import Field, unit

ORDER = 1


def euler(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """x + h k₁ on the sphere, with k₁ = f(x)."""
    return unit(x + h * k1)
