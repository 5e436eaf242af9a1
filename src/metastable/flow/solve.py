"""Steps in time: adaptive ones by Dormand–Prince, and equal ones by any method.

`simulate` moves tokens with it and `mean_field` the vertices of cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from metastable.errors import SimulationStopped
from metastable.flow.steppers import Field, dopri5, next_step

SMALLEST = 1e-12
"""Steps are not made shorter than this share of the horizon (of 1, for a horizon below 1)."""


class Trial(NamedTuple):
    """The end of a step of length h: time, position, velocity there, and the estimated error of the step."""

    t: float
    x: Tensor
    k: Tensor
    h: float
    error: float


@dataclass
class Motion:
    """Points x (n, d) at time t with velocity k = f(x, t). h is the adaptive step to try next."""

    t: float
    x: Tensor
    k: Tensor
    h: float
    steps: int = 0
    rejected: int = 0
    sphere: bool = True

    def attempt(self, f: Field, target: float, horizon: float, tol: float, counts: Tensor | None = None) -> Trial:
        """An adaptive step that ends at `target` at the latest. Nothing changes until it is judged."""
        h = self.next_length(target, horizon, tol)
        x, k, error = dopri5(f, self.t, self.x, self.k, h, counts, self.sphere)
        return Trial(target if h == target - self.t else self.t + h, x, k, h, error)

    def next_length(self, target: float, horizon: float, tol: float) -> float:
        """The length of the next adaptive step, which ends at `target` at the latest."""
        remaining = target - self.t
        h = remaining if self.h >= remaining * (1 - 1e-9) else self.h
        if h < SMALLEST * max(1.0, horizon) and h < remaining:
            what = f"at t = {self.t:.6g} no step is small enough for tol = {tol:g}"
            raise SimulationStopped(f'{what}; raise tol or use a fixed step (method="rk4")')
        return h

    def judge(self, trial: Trial, tol: float, too_long: bool = False) -> bool:
        """Take the step if its error is at most `tol`, and choose the next one; whether it was taken.

        too_long : refuse the step whatever its error is, and at least halve it
        """
        proposed = next_step(trial.h, trial.error, tol)
        if too_long or not trial.error <= tol:
            self.h = min(proposed, 0.5 * trial.h) if too_long else proposed
            self.rejected += 1
            return False
        # A step cut short to hit a saved time says little about the step that the tolerance allows.
        self.h = max(self.h, proposed) if trial.h < self.h else proposed
        self.take(trial)
        return True

    def equal_step(
        self,
        advance: Callable[[float, float], tuple[Tensor, Tensor]],
        start: float,
        target: float,
        longest: float,
        count: int | None = None,
    ) -> Trial:
        """The next of the equal steps, none longer than `longest`, that lead from `start` to `target`.

        advance : (step, time at its end) → (points, velocities) at the end of the step
        count : the number of steps; by default the least one
        """
        if count is None:
            count = max(1, math.ceil((target - start) / longest * (1 - 1e-12)))
        done = round((self.t - start) / (target - start) * count)
        h = (target - start) / count
        end = target if done + 1 >= count else start + (done + 1) * h
        return Trial(end, *advance(h, end), h, 0.0)

    def take(self, trial: Trial) -> None:
        self.t, self.x, self.k = trial.t, trial.x, trial.k
        self.steps += 1
