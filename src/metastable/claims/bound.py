"""One bound for all temperatures and times, fitted on half of the β's and tried on the others.

The paper states W₂(μ_t, ν) ≤ A(√(log(β+1)/β)·e^{Ct} + e^{−ct}) with constants that do not depend on β or t. Any finite
table of distances lies below such a bound if A is large enough. So the constants are fixed on a part of the table, one
after the other, and the rest decides:

- c is not fitted: it is the rate at which the law converges at zero temperature, from the spectrum of M.
- A is the smallest constant with A·e^{−ct} above the zero-temperature curve (β = ∞) in the first half of its times.
- C is the smallest number, 0 or more, with the bound above every distance of every second β. The largest and the
  smallest temperature are among them: the first has the largest excess over zero temperature, the last leaves its
  plateau latest.

The second half of the zero-temperature curve (which fails if c is too large) and the other β's are then tried. Because
A·e^{−ct} lies well above the zero-temperature curve at first, a wrong power of β could hide behind it. So the first
term is also tried by itself, with the zero-temperature distance in the place of the second: the excess

    |W₂(μ_t^β, ν) − W₂(μ_t^∞, ν)| must stay below A₁√(log(β+1)/β)·e^{C₁t},

with A₁ the smallest for t ≤ 1 and C₁ ≥ 0 the smallest for all t on the same half of the β's; and at t = 1 it must fall
at least as fast as √(log(β+1)/β). Distances are mean-field solutions on the circle from the uniform law.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.claims.heads import Curve, circle_heads, cold_curve, warm_curve, without_curves
from metastable.head import Head

MARGIN = 1.1
"""Largest distance/bound at β's that were not fitted: the smallest bound touches the fitted curves, and their
neighbours may exceed it a little."""
COLD = 11.0
"""The zero-temperature curve ends at 11/c; the factor in front of e^{−ct} takes some 5/c to settle."""
COLD_MARGIN = 1.3
"""Largest distance/bound in its second half, e^{0.05·5.5}: it tells c from 1.05·c. The factor in front settles at the
difference of two rates, g/|Bᵀe| and κ/2, which may be small."""
START = math.sqrt(2 - 4 / math.pi)
"""W₂ at t = 0, to a thousandth: the mean of 2 − 2|cos θ| over the circle is 2 − 4/π. It fixes the scale."""
EARLY = 1.0
"""The time at which the power of β is measured: the tokens have moved, and their law is still far from ν."""
POWER = 1.0
"""Least power of √(log(β+1)/β) in the excess over zero temperature. For smooth laws the excess is of order 1/β, which
is more than twice that power."""
QUICK = (10.0, 18.0, 32.0, 56.0, 100.0, 180.0, 320.0)
FULL = (10.0, 17.0, 30.0, 55.0, 100.0, 170.0, 300.0, 550.0, 1000.0)
"""The β's of the two sizes."""
TOLERANCE = 0.02
"""Wanted error of the distances."""
RESOLVED = 5.0
"""An excess counts when it is this many times the discretisation error of its curve."""


class Bound(NamedTuple):
    """A, C and c of one head."""

    front: float
    growth: float
    decay: float

    def at(self, curve: Curve) -> np.ndarray:
        """The bound at the times of a curve."""
        rise, fall = np.exp(self.growth * curve.times), np.exp(-self.decay * curve.times)
        return np.asarray(self.front * (first_term(curve.beta) * rise + fall))

    def worst(self, curve: Curve, after: float = -1.0) -> float:
        """The largest distance/bound later than `after`."""
        return float((curve.distance / self.at(curve))[curve.times > after].max())


def first_term(beta: float) -> float:
    """√(log(β+1)/β), the rate of the quantitative Laplace principle."""
    return 0.0 if math.isinf(beta) else math.sqrt(math.log(beta + 1) / beta)


def fit(cold: Curve, training: list[Curve], decay: float) -> Bound:
    """The smallest A on the first half of the cold curve, then the smallest C ≥ 0 on the training curves."""
    early = cold.times <= 0.5 * cold.times[-1]
    front = float((cold.distance * np.exp(decay * cold.times))[early].max())
    growth = 0.0
    for curve in training:
        t = curve.times[1:]
        left = (curve.distance[1:] / front - np.exp(-decay * t)) / first_term(curve.beta)
        growth = max(growth, float((np.log(np.maximum(left, 1e-300)) / t).max()))
    return Bound(front, growth, decay)


def excess_of(curve: Curve, cold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times at which |W₂(μ_t^β, ν) − W₂(μ_t^∞, ν)| is resolved, and its size there in units of √(log(β+1)/β)."""
    over = np.abs(curve.distance - cold)
    seen = (over > RESOLVED * curve.error) & (curve.times > 0)
    return curve.times[seen], over[seen] / first_term(curve.beta)


def fit_excess(training: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """The smallest A₁ for t ≤ 1, then the smallest C₁ ≥ 0."""
    early = [float(scaled[times <= EARLY].max(initial=0.0)) for times, scaled in training]
    front = max(*early, 1e-300)
    growth = max(float((np.log(scaled / front) / times).max(initial=0.0)) for times, scaled in training)
    return front, growth


def try_first_term(found: Finding, curves: list[Curve], cold: np.ndarray, name: str) -> float:
    """Add the checks of the first term by itself; returns C₁."""
    excesses = [excess_of(curve, cold) for curve in curves]
    front, growth = fit_excess(excesses[::2])
    for curve, (times, scaled) in zip(curves[1::2], excesses[1::2], strict=True):
        worst = float((scaled / (front * np.exp(growth * times))).max(initial=0.0))
        title = f"largest excess/(A₁√(log(β+1)/β)e^(C₁t)) at β = {curve.beta:g}, not fitted, {name}"
        found.within(title, worst, high=MARGIN, note=f"A₁ = {front:.3g}, C₁ = {growth:.3g}")
    x, y = [], []
    for curve, (times, scaled) in zip(curves, excesses, strict=True):
        for at in np.flatnonzero(np.abs(times - EARLY) < 1e-9):
            x.append(math.log(first_term(curve.beta)))
            y.append(math.log(scaled[at]) + x[-1])
    title = f"power of √(log(β+1)/β) in the excess at t = {EARLY:g}, {name}"
    too_few = f"only {len(x)} of {len(curves)} excesses are above the discretisation error"
    found.slope(title, x, y, POWER, math.inf, too_few)
    return growth


@claim("bound", "The bound", obstacle=without_curves)
def check(
    head: Head | None,
    tell: Tell,
    betas: tuple[float, ...] = size(QUICK, full=FULL),
    until: float = size(10.0, full=60.0),
    frames: int = size(41, full=241),
    heads: int = size(1, full=3),
) -> Finding:
    """W₂(μ_t, ν) ≤ A(√(log(β+1)/β)·e^{Ct} + e^{−ct}) with one A, C and c for all β and t (stated by the paper).

    Fit the bound on every second β and try it on the others, for each head.

    until, frames : the last time, and the number of saved times
    heads : how many of the claim's own heads
    """
    found = Finding(f"t ≤ {until:g}, β = {', '.join(f'{b:g}' for b in betas)} and ∞, mean field, d = 2")
    own = list(circle_heads().items())[:heads] if head is None else [("the given head", head)]
    times = np.linspace(0, until, frames)
    sentences = []
    for k, (name, one) in enumerate(own):
        progress = told(betas, tell, k / len(own), (k + 1) / len(own))
        warm = [warm_curve(one, beta, times, TOLERANCE) for beta in progress]
        rate = one.theory().law_rate(2)
        cold = cold_curve(one, np.linspace(0, COLD / rate, frames))
        bound, others = fit(cold, warm[::2], rate), warm[1::2]
        half = 0.5 * cold.times[-1]
        late = f"largest distance/bound at zero temperature, t > {half:.3g}, {name}"
        found.within(late, bound.worst(cold, after=half), high=COLD_MARGIN)
        for curve in others:
            start = f"W₂ from the uniform law to two halves at ±e, β = {curve.beta:g}, {name}"
            found.near(start, float(curve.distance[0]), 0.001, START)
        for curve in others:
            title = f"largest distance/bound at β = {curve.beta:g}, not fitted, {name}"
            found.within(title, bound.worst(curve), high=MARGIN)
        growth = try_first_term(found, warm, cold_curve(one, times).distance, name)
        for i, curve in enumerate([*warm, cold]):
            _row(found, name, bound, curve, "A, first half" if curve is cold else "nothing" if i % 2 else "C")
        _picture(found, name, bound, [cold, *others[:3]])
        constants = f"A = {bound.front:.3g}, C = {bound.growth:.3g} and c = {bound.decay:.3g}"
        worst = max(bound.worst(curve) for curve in others)
        sentences.append(
            f"{name}, t ≤ {until:g}: {constants} give a bound of which the distances at the other β reach at most "
            f"{worst:.2g}; the first term alone needs C = {growth:.2g}"
        )
    found.sentence = "; ".join(sentences)
    return found


def _row(found: Finding, name: str, bound: Bound, curve: Curve, use: str) -> None:
    i = int(curve.distance.argmin())
    columns = {
        "head": name,
        "beta": "∞" if math.isinf(curve.beta) else curve.beta,
        "fitted to it": use,
        "largest distance/bound": bound.worst(curve),
        "time of least distance": curve.times[i],
        "least distance": curve.distance[i],
        "bound/distance there": bound.at(curve)[i] / curve.distance[i],
        "discretisation error": curve.error.max(),
    }
    found.row("curves", columns)


def _picture(found: Finding, name: str, bound: Bound, curves: list[Curve]) -> None:
    picture = found.picture(
        f"The bound, {name}",
        "Lines: W₂ to the limit law at zero temperature and at β's that were not fitted. Dashed: the bound with "
        f"A = {bound.front:.3g}, C = {bound.growth:.3g}, c = {bound.decay:.3g}, up to 2, the diameter of the sphere.",
        Panel("time t", "W₂ to the limit law", log_y=True),
    )
    for curve in curves:
        label, above = "∞" if math.isinf(curve.beta) else f"{curve.beta:g}", bound.at(curve)
        picture.add(f"distance, β = {label}", curve.times, curve.distance)
        picture.add(f"bound, β = {label}", curve.times[above <= 2], above[above <= 2], "dashed")
