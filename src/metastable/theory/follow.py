"""Follow decoupled tokens along a field on the sphere, each with its own step, until each has arrived somewhere.

Tokens of a zero-temperature field do not interact, so a token that has arrived is dropped and each of the others takes
steps of its own length: the pair 3(2) of Bogacki and Shampine with every stage scaled back to the sphere. (The
integrators of the room `flow` move all tokens with one step.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metastable.theory.several_heads import unit

TOLERANCE = 1e-6
"""Estimated error of one step."""
SHORTEST = 1e-5
"""A step this short, in units of the inverse field, means that the token has met a point where the field jumps: the
error of a step across it is about its length. The token is dropped. Smooth fields need steps of about 0.01."""
STEPS = 20_000
"""Most steps of one token."""

Arrived = Callable[[Tensor, Tensor], Tensor]
"""Positions (n, d) and speeds (n,) to labels (n,): −1 means that the token goes on."""


def follow(
    field: Callable[[Tensor], Tensor], x: Tensor, horizon: float, scale: float, arrived: Arrived, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """Labels (n,) of the rows of x (n, d) on arrival, −1 if not by the horizon, and their last positions (n, d)."""
    ends, labels = x.clone(), torch.full((len(x),), -1)
    active = torch.arange(len(x))
    time = torch.zeros(len(x), dtype=x.dtype)
    h = torch.full((len(x),), 0.05 / scale, dtype=x.dtype)
    k1 = field(x)
    for _ in range(steps):
        found = arrived(x, k1.norm(dim=1))
        ends[active], labels[active] = x, found
        going = (found == -1) & (time < horizon) & (h > SHORTEST / scale)
        active, x, k1, time, h = active[going], x[going], k1[going], time[going], h[going]
        if len(active) == 0:
            break
        new, k4, error = _step(field, x, k1, h.unsqueeze(1))
        accepted = error <= TOLERANCE
        time = torch.where(accepted, time + h, time)
        x = torch.where(accepted.unsqueeze(1), new, x)
        k1 = torch.where(accepted.unsqueeze(1), k4, k1)
        h = h * (0.9 * (TOLERANCE / error.clamp_min(1e-30)) ** (1 / 3)).clamp(0.2, 5.0)
        # A field that vanishes would let the step grow without bound.
        h = h.clamp_max(0.1 * horizon)
    return labels, ends


def _step(field: Callable[[Tensor], Tensor], x: Tensor, k1: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Bogacki and Shampine: the new rows, the field there, and the estimated error of each row."""
    k2 = field(unit(x + 0.5 * h * k1))
    k3 = field(unit(x + 0.75 * h * k2))
    new = unit(x + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3))
    k4 = field(new)
    error = h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
    return new, k4, error.norm(dim=1)
