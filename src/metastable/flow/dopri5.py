"""The Dormand–Prince pair 5(4): order 5, six stages a step, with an embedded estimate of order 4.

The seventh stage is the first of the next step ("first same as last"); here it is taken at the point already
scaled to the sphere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.flow.sphere import Field, unit

ORDER = 5

# Rows of the tableau after the first; the last row is also the fifth-order solution.
A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
# Fifth-order minus fourth-order weights.
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

SAFETY = 0.9
SHRINK, GROW = 0.2, 5.0


def dopri5(f: Field, x: Tensor, k1: Tensor, h: float, counts: Tensor | None = None) -> tuple[Tensor, Tensor, float]:
    """One step from x with k₁ = f(x): the new x, f there, and the estimated error (RMS length over tokens).

    With `counts` (n,) a row stands for that many tokens in the mean.
    """
    stages = [k1]
    for row in A[:-1]:
        stages.append(f(unit(_combine(x, stages, row, h))))
    new = unit(_combine(x, stages, A[-1], h))
    stages.append(f(new))
    error = _combine(torch.zeros_like(x), stages, E, h)
    squares = error.double().square().sum(dim=1)
    mean = squares.mean() if counts is None else (counts * squares).sum() / counts.sum()
    return new, stages[-1], float(mean.sqrt())


def next_step(h: float, error: float, tol: float) -> float:
    """h·(tol/error)^{1/5} with a safety factor, changed at most fivefold."""
    factor = GROW if error == 0 else SAFETY * (tol / error) ** 0.2
    return h * min(GROW, max(SHRINK, factor))


def first_step(k1: Tensor, tol: float) -> float:
    """A cautious first step: as if the error were the cube of the RMS distance moved, as for a rough start."""
    speed = float(k1.double().square().sum(dim=1).mean().sqrt())
    return min(0.1, tol ** (1 / 3) / max(speed, 1e-12))


def _combine(x: Tensor, stages: list[Tensor], weights: tuple[float, ...], h: float) -> Tensor:
    total = x.clone()
    for weight, k in zip(weights, stages, strict=True):
        if weight:
            total.add_(k, alpha=h * weight)
    return total
