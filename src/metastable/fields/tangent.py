"""P_x w = w − ⟨w, x⟩x, the projection onto the tangent space of the sphere at x."""

from __future__ import annotations

from torch import Tensor


def tangent(x: Tensor, w: Tensor) -> Tensor:
    """The tangential part of each row of w at the unit rows x: (n, d)."""
    return w - (w * x).sum(dim=1, keepdim=True) * x
