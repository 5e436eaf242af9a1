"""Scaling rows back to the unit sphere, which every step of every integrator does.

Stages are scaled too: a stage evaluates g(x) = f(x/|x|), which is smooth near the sphere and has it as an
invariant set, so each method keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Field = Callable[[Tensor], Tensor]


def unit(x: Tensor) -> Tensor:
    """x/|x| for each row of (n, d)."""
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
