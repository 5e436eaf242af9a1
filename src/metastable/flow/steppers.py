"""Integrators: Euler (order 1), Heun (2), classical Runge–Kutta (4), Dormand–Prince (5), and Heun with noise.

On the unit sphere every step and every stage is scaled back to it. A stage evaluates g(x) = f(x/|x|), which is smooth
near the sphere and has it as an invariant set, so each method keeps its order. With `sphere=False` points are free, as
the streams of tokens under a normalisation that lets them grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Field = Callable[[Tensor, float], Tensor]
"""(points (n, d), time) → velocities (n, d)."""

# The Dormand–Prince tableau after its first row; the last row is also the fifth-order solution.
A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
# The times of the stages after the first, as shares of the step.
C = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0)
# Fifth-order minus fourth-order weights.
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

# The next step is this fraction of the one that would just meet the tolerance ...
SAFETY = 0.9
# ... and between these factors of the present one.
SHRINK, GROW = 0.2, 5.0


def unit(x: Tensor) -> Tensor:
    """x/|x| for each row of (n, d)."""
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)


def _free(x: Tensor) -> Tensor:
    return x


def _place(sphere: bool) -> Callable[[Tensor], Tensor]:
    """Where a step ends: on the sphere, or anywhere."""
    return unit if sphere else _free


def euler(f: Field, t: float, x: Tensor, k1: Tensor, h: float, sphere: bool = True) -> Tensor:
    """Euler's method, order 1: x + h k₁ with k₁ = f(x, t)."""
    return _place(sphere)(x + h * k1)


def heun(f: Field, t: float, x: Tensor, k1: Tensor, h: float, sphere: bool = True) -> Tensor:
    """Heun's method, order 2, also called the explicit trapezoidal rule: x + h/2 (k₁ + k₂), k₂ = f(x + h k₁, t + h).

    Not to be confused with Heun's third-order method.
    """
    place = _place(sphere)
    k2 = f(place(x + h * k1), t + h)
    return place(x + (0.5 * h) * (k1 + k2))


def rk4(f: Field, t: float, x: Tensor, k1: Tensor, h: float, sphere: bool = True) -> Tensor:
    """The classical Runge–Kutta method, order 4: x + h/6 (k₁ + 2k₂ + 2k₃ + k₄)."""
    place = _place(sphere)
    k2 = f(place(x + (0.5 * h) * k1), t + 0.5 * h)
    k3 = f(place(x + (0.5 * h) * k2), t + 0.5 * h)
    k4 = f(place(x + h * k3), t + h)
    return place(x + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4))


def noisy_heun(f: Field, t: float, x: Tensor, k1: Tensor, h: float, increment: Tensor) -> Tensor:
    """Heun's method for dx = f dt + P_x ∘ dW on the sphere, in the sense of Stratonovich: strong order ½.

    With ΔW = `increment` (n, d), of variance σ²h in each coordinate: x + h/2 (k₁ + k₂) + (P_x + P_y)ΔW/2, where
    y = x + h k₁ + P_x ΔW and k₂ = f(y, t + h). The tangential fields P_x e_i do not commute, so that no method without
    iterated integrals of W has a higher strong order. The weak order is 1: a step weakens the noise, σ² by the share
    (d/2 + ¾)σ²h, so that h must be short against 2/(dσ²). Without noise it is `heun`.
    """
    first = increment - (increment * x).sum(dim=1, keepdim=True) * x
    y = unit(x + h * k1 + first)
    second = increment - (increment * y).sum(dim=1, keepdim=True) * y
    return unit(x + (0.5 * h) * (k1 + f(y, t + h)) + 0.5 * (first + second))


FIXED = {"euler": euler, "heun": heun, "rk4": rk4}
"""The methods of fixed step, by name."""


def dopri5(
    f: Field, t: float, x: Tensor, k1: Tensor, h: float, counts: Tensor | None = None, sphere: bool = True
) -> tuple[Tensor, Tensor, float]:
    """One step of the Dormand–Prince pair 5(4) from x at time t with k₁ = f(x, t).

    Returns the new x, f there (the first stage of the next step), and the estimated error (RMS length over tokens, for
    free points relative to their length where that is above 1). With `counts` (n,) a row stands for that many tokens in
    the mean.
    """
    place = _place(sphere)
    stages = [k1]
    for row, c in zip(A[:-1], C, strict=True):
        stages.append(f(place(_combine(x, stages, row, h)), t + c * h))
    new = place(_combine(x, stages, A[-1], h))
    stages.append(f(new, t + h))
    error = _combine(torch.zeros_like(x), stages, E, h)
    squares = error.double().square().sum(dim=1)
    if not sphere:
        squares = squares / x.double().square().sum(dim=1).clamp_min(1.0)
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
