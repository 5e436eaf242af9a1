"""Integrators on the unit sphere: Euler (order 1), Heun (2), classical Runge–Kutta (4) and Dormand–Prince (5).

Every step and every stage is scaled back to the sphere. A stage evaluates g(x) = f(x/|x|), which is smooth near the
sphere and has it as an invariant set, so each method keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Field = Callable[[Tensor], Tensor]

# The Dormand–Prince tableau after its first row; the last row is also the fifth-order solution.
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

# The next step is this fraction of the one that would just meet the tolerance ...
SAFETY = 0.9
# ... and between these factors of the present one.
SHRINK, GROW = 0.2, 5.0


def unit(x: Tensor) -> Tensor:
    """x/|x| for each row of (n, d)."""
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)


def euler(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """Euler's method, order 1: x + h k₁ with k₁ = f(x)."""
    return unit(x + h * k1)


def heun(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """Heun's method, order 2, also called the explicit trapezoidal rule: x + h/2 (k₁ + k₂), k₂ = f(x + h k₁).

    Not to be confused with Heun's third-order method.
    """
    k2 = f(unit(x + h * k1))
    return unit(x + (0.5 * h) * (k1 + k2))


def rk4(f: Field, x: Tensor, k1: Tensor, h: float) -> Tensor:
    """The classical Runge–Kutta method, order 4: x + h/6 (k₁ + 2k₂ + 2k₃ + k₄)."""
    k2 = f(unit(x + (0.5 * h) * k1))
    k3 = f(unit(x + (0.5 * h) * k2))
    k4 = f(unit(x + h * k3))
    return unit(x + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4))


FIXED = {"euler": euler, "heun": heun, "rk4": rk4}
"""The methods of fixed step, by name."""


def dopri5(f: Field, x: Tensor, k1: Tensor, h: float, counts: Tensor | None = None) -> tuple[Tensor, Tensor, float]:
    """One step of the Dormand–Prince pair 5(4) from x with k₁ = f(x).

    Returns the new x, f there (the first stage of the next step), and the estimated error (RMS length over tokens).
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
    """A cautious first step: the error is taken as the cube of the RMS distance moved."""
    speed = float(k1.double().square().sum(dim=1).mean().sqrt())
    return min(0.1, tol ** (1 / 3) / max(speed, 1e-12))


def _combine(x: Tensor, stages: list[Tensor], weights: tuple[float, ...], h: float) -> Tensor:
    total = x.clone()
    for weight, k in zip(weights, stages, strict=True):
        if weight:
            total.add_(k, alpha=h * weight)
    return total
