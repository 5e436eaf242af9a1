"""One bound for all temperatures and times, fitted on half of the β's and tried on the others.

The paper states W₂(μ_t, ν) ≤ A(√(log(β+1)/β)·e^{Ct} + e^{−ct}) with constants that do not depend on β or t. Any finite
table of distances lies below such a bound if A is large enough, so the constants are fixed on a part of the table, one
after the other, and the rest decides:

- c is not fitted: it is the rate at which the law converges at zero temperature, from the spectrum of M.
- A is the smallest constant with A·e^{−ct} above the zero-temperature curve (β = ∞) in the first half of its times.
- C is the smallest number, 0 or more, with the bound above every distance of every second β. The hottest and the
  coldest are among them: the first has the largest excess over zero temperature, the last leaves its plateau latest.

Tried are then the second half of the zero-temperature curve (it fails if c is too large) and the other β's. Because
A·e^{−ct} lies well above the zero-temperature curve at first, a wrong power of β could hide behind it. So the first
term is also tried by itself, with the zero-temperature distance in the place of the second: the excess

    |W₂(μ_t^β, ν) − W₂(μ_t^∞, ν)| must stay below A₁√(log(β+1)/β)·e^{C₁t},

with A₁ the smallest for t ≤ 1 and C₁ ≥ 0 the smallest for all t on the same half of the β's; and at t = 1 it must fall
at least as fast as √(log(β+1)/β). Distances are mean-field solutions on the circle from the uniform law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metastable.claims.claim import Claim, Tell
from metastable.claims.distance_curves import Curve, circle_heads, cold_curve, refusal, warm_curve
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.head import Head

MARGIN = 1.1
"""Largest distance/bound at β's that were not fitted: the smallest bound touches what it was fitted to, its neighbours
may stand out a little."""
COLD = 11.0
"""The zero-temperature curve is followed up to 11/c; the factor in front of e^{−ct} takes some 5/c to settle."""
COLD_MARGIN = 1.3
"""Largest distance/bound in its second half, e^{0.05·5.5}: it tells c from 1.05·c. The factor in front settles at the
difference of two rates, g/|Bᵀe| and κ/2, which may be small."""
START = (0.999 * math.sqrt(2 - 4 / math.pi), 1.001 * math.sqrt(2 - 4 / math.pi))
"""W₂ at t = 0: the mean of 2 − 2|cos θ| over the circle is 2 − 4/π. It pins the scale of every distance here."""
EARLY = 1.0
"""The time at which the power of β is measured: the tokens have moved, and their law is still far from ν."""
POWER = 1.0
"""Least power of √(log(β+1)/β) in the excess over zero temperature. For smooth laws the excess is of order 1/β, which
is more than twice that power."""
RESOLVED = 5.0
"""An excess counts when it is so many times the discretisation error of its curve."""


@dataclass(frozen=True)
class Sizes:
    betas: tuple[float, ...]
    until: float
    frames: int
    tol: float
    heads: int


@dataclass(frozen=True)
class Fitted:
    """A, C and c of one head."""

    front: float
    growth: float
    decay: float

    def __call__(self, beta: float, t: np.ndarray) -> np.ndarray:
        return self.front * (first_term(beta) * np.exp(self.growth * t) + np.exp(-self.decay * t))

    def worst(self, curve: Curve, after: float = -1.0) -> float:
        """The largest distance/bound later than `after`."""
        late = curve.times > after
        return float((curve.distance / self(curve.beta, curve.times))[late].max())


def first_term(beta: float) -> float:
    """√(log(β+1)/β), the rate of the quantitative Laplace principle."""
    return 0.0 if math.isinf(beta) else math.sqrt(math.log(beta + 1) / beta)


def fit(cold: Curve, training: list[Curve], decay: float) -> Fitted:
    """The smallest A on the first half of the cold curve, then the smallest C ≥ 0 on the training curves."""
    early = cold.times <= 0.5 * cold.times[-1]
    front = float((cold.distance * np.exp(decay * cold.times))[early].max())
    growth = 0.0
    for curve in training:
        t = curve.times[1:]
        left = (curve.distance[1:] / front - np.exp(-decay * t)) / first_term(curve.beta)
        growth = max(growth, float((np.log(np.maximum(left, 1e-300)) / t).max()))
    return Fitted(front, growth, decay)


@dataclass(frozen=True)
class Excess:
    """|W₂(μ_t^β, ν) − W₂(μ_t^∞, ν)| at the times at which it is resolved, in units of √(log(β+1)/β)."""

    beta: float
    times: np.ndarray
    scaled: np.ndarray

    @classmethod
    def of(cls, curve: Curve, cold: np.ndarray) -> Excess:
        over = np.abs(curve.distance - cold)
        seen = (over > RESOLVED * curve.error) & (curve.times > 0)
        return cls(curve.beta, curve.times[seen], over[seen] / first_term(curve.beta))

    def worst(self, front: float, growth: float) -> float:
        return float((self.scaled / (front * np.exp(growth * self.times))).max(initial=0.0))


def fit_excess(training: list[Excess]) -> tuple[float, float]:
    """A₁ from t ≤ EARLY, then C₁ from all times."""
    early = [one.scaled[one.times <= EARLY].max(initial=0.0) for one in training]
    front, growth = max(float(max(early)), 1e-300), 0.0
    for one in training:
        growth = max(growth, float((np.log(one.scaled / front) / one.times).max(initial=0.0)))
    return front, growth


def power(found: list[Excess], name: str) -> Check:
    """The power of √(log(β+1)/β) in the excess at t = EARLY."""
    x, y = [], []
    for one in found:
        at = np.flatnonzero(np.abs(one.times - EARLY) < 1e-9)
        if len(at):
            x.append(math.log(first_term(one.beta)))
            y.append(math.log(one.scaled[at[0]]) + x[-1])
    title = f"power of √(log(β+1)/β) in the excess at t = {EARLY:g}, {name}"
    if len(x) < 3:
        return undecided(title, f"only {len(x)} of {len(found)} excesses rise above the discretisation error")
    return overlapping(title, line(x, y).interval, POWER, math.inf)


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Fit and trial for each head."""
    horizon = f"t ≤ {sizes.until:g}, β = {', '.join(f'{b:g}' for b in sizes.betas)} and ∞, mean field, d = 2"
    reason = None if head is None else refusal(head)
    if reason:
        return Finding(f"not tried: {reason}", horizon, (undecided("bound", reason),))
    heads = dict(list(circle_heads().items())[: sizes.heads]) if head is None else {"the given head": head}
    checks: list[Check] = []
    rows: list[tuple[object, ...]] = []
    pictures, sentences = [], []
    for k, (name, one) in enumerate(heads.items()):
        found = measure(one, sizes, lambda share, k=k: tell((k + share) / len(heads)))  # type: ignore[misc]
        training, held_out = found.warm[::2], found.warm[1::2]
        bound = fit(found.cold, training, one.theory().law_rate(2))
        over = {curve.beta: Excess.of(curve, found.beside) for curve in found.warm}
        front, growth = fit_excess([over[curve.beta] for curve in training])
        checks += trial(bound, found.cold, held_out, name)
        checks += [alone(over[curve.beta], front, growth, name) for curve in held_out]
        checks.append(power(list(over.values()), name))
        fitted = {curve.beta for curve in training}
        rows += [row(name, bound, curve, curve.beta in fitted) for curve in [*found.warm, found.cold]]
        pictures.append(picture(name, bound, found.cold, held_out))
        worst = max(bound.worst(curve) for curve in held_out)
        sentences.append(
            f"{name}: A = {bound.front:.3g}, C = {bound.growth:.3g} and c = {bound.decay:.3g} give a bound of which "
            f"the distances at the other β reach at most {worst:.2g}; the first term alone needs C = {growth:.2g}"
        )
    return Finding("; ".join(sentences), horizon, tuple(checks), tuple(pictures), (table(rows),), why(checks))


@dataclass(frozen=True)
class Measured:
    """The mean-field curves, the zero-temperature curve on its own times, and its distances at theirs."""

    warm: list[Curve]
    cold: Curve
    beside: np.ndarray


def measure(head: Head, sizes: Sizes, tell: Tell) -> Measured:
    times = np.linspace(0, sizes.until, sizes.frames)
    warm = []
    for i, beta in enumerate(sizes.betas):
        warm.append(warm_curve(head, beta, times, sizes.tol))
        tell((i + 1) / len(sizes.betas))
    cold = cold_curve(head, np.linspace(0, COLD / head.theory().law_rate(2), sizes.frames))
    return Measured(warm, cold, cold_curve(head, times).distance)


def alone(over: Excess, front: float, growth: float, name: str) -> Check:
    title = f"largest excess/(A₁√(log(β+1)/β)e^(C₁t)) at β = {over.beta:g}, not fitted, {name}"
    return within(title, over.worst(front, growth), high=MARGIN, note=f"A₁ = {front:.3g}, C₁ = {growth:.3g}")


def trial(bound: Fitted, cold: Curve, held_out: list[Curve], name: str) -> list[Check]:
    late = bound.worst(cold, after=0.5 * cold.times[-1])
    title = f"largest distance/bound at zero temperature, t > {0.5 * cold.times[-1]:.3g}, {name}"
    start = "W₂ from the uniform law to two halves at ±e"
    checks = [within(title, late, high=COLD_MARGIN)]
    checks += [within(f"{start}, β = {c.beta:g}, {name}", float(c.distance[0]), *START) for c in held_out]
    for curve in held_out:
        title = f"largest distance/bound at β = {curve.beta:g}, not fitted, {name}"
        checks.append(within(title, bound.worst(curve), high=MARGIN))
    return checks


def why(checks: list[Check]) -> str:
    failed = [check.name for check in checks if check.outcome == "FAIL"]
    return f"the bound does not carry over to: {'; '.join(failed)}" if failed else ""


def row(name: str, bound: Fitted, curve: Curve, fitted: bool) -> tuple[object, ...]:
    i = int(curve.distance.argmin())
    least, there = float(curve.distance[i]), float(bound(curve.beta, curve.times)[i])
    use = "A, first half" if math.isinf(curve.beta) else "C" if fitted else "nothing"
    beta: object = "∞" if math.isinf(curve.beta) else curve.beta
    largest = float(curve.error.max())
    return name, beta, use, bound.worst(curve), float(curve.times[i]), least, there / least, largest


def table(rows: list[tuple[object, ...]]) -> Table:
    columns = ("head", "beta", "fitted to it", "largest distance/bound", "time of least distance", "least distance")
    return Table("curves", (*columns, "bound/distance there", "discretisation error"), tuple(rows))


def picture(name: str, bound: Fitted, cold: Curve, held_out: list[Curve]) -> Picture:
    series = []
    for curve in [cold, *held_out[:3]]:
        label = "∞" if math.isinf(curve.beta) else f"{curve.beta:g}"
        series.append(Series(f"distance, β = {label}", tuple(curve.times), tuple(curve.distance)))
        above = bound(curve.beta, curve.times)
        seen = above <= 2
        series.append(Series(f"bound, β = {label}", tuple(curve.times[seen]), tuple(above[seen]), style="dashed"))
    return Picture(
        f"The bound, {name}",
        "Lines: W₂ to the limit law at zero temperature and at β's that were not fitted. Dashed: the bound with "
        f"A = {bound.front:.3g}, C = {bound.growth:.3g}, c = {bound.decay:.3g}, up to 2, the diameter of the sphere.",
        (Panel("time t", "W₂ to the limit law", log_y=True),),
        tuple(series),
    )


CLAIM = Claim(
    "bound",
    "The bound",
    "W₂(μ_t, ν) ≤ A(√(log(β+1)/β)·e^{Ct} + e^{−ct}) with one A, C and c for all β and t (stated by the paper).",
    check,
    quick=Sizes((10.0, 18.0, 32.0, 56.0, 100.0, 180.0, 320.0), 10.0, 41, 0.02, 1),
    full=Sizes((10.0, 17.0, 30.0, 55.0, 100.0, 170.0, 300.0, 550.0, 1000.0), 60.0, 241, 0.02, 3),
)
