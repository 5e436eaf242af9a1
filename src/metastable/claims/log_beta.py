"""How long concentration takes as the temperature falls: a time of order log β, not a power of β.

The bound √(log(β+1)/β)·e^{Ct} + e^{−ct} is least at a time of order log β. The distance itself behaves as follows
(derived here): it falls like e^{−ct}, c being the rate of the law at zero temperature, until it meets a plateau of a
height ~ β^{−p}, with p = 1 for a smooth law, so that

    time of least distance ≈ (p/c)·log β + constant,      least distance ~ β^{−p}.

This needs a plateau. With D = |Bᵀe| − ⟨Bᵀe, e⟩ the clusters stay for a time of about βD/κ, and while βD is small they
leave before they have come to rest; the time of least distance is then that of their departure. So β is counted in
units of 1/D, and values below βD = 11.5 are shown but not fitted: from there on the package forecasts plateaus.

On the plateau the distance is flat, and small terms decide where exactly it is least. The time of least distance is
therefore the first one at which the distance is within 5 % of its least; the minimum itself is in the table.
The time to reach a fixed distance cannot grow like log β: as β → ∞ it tends to the time at zero temperature.
Distances are mean-field solutions on the circle from the uniform law, d = 2.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from metastable.claims.experiment import (
    Finding,
    FittedLine,
    Interval,
    Panel,
    Tell,
    claim,
    first_below,
    line,
    size,
    told,
)
from metastable.claims.heads import Curve, circle_head, cold_curve, warm_curve, without_curves
from metastable.errors import BadInput
from metastable.head import Head

COLD_ENOUGH = 11.5
"""Least βD that is fitted: the same from which `theory().plateau` makes forecasts."""
NEAR = 1.05
"""The time of least distance is the first one with the distance within this factor of its least."""
CLEARLY = 2.0
"""Another law of β is clearly better when its residuals are less than 1/2 of those of log β (root mean square)."""
RESOLVED = 0.02
"""Laws whose residuals are both below this time are not distinguished: the solver's error moves the times by that."""
SLOPE = (0.7, 1.3)
"""Range of measured slope over p/c: the factor in front of e^{−ct} still grows at such times."""
POWER = (-1.2, -0.85)
"""Range of the power of β in the least distance, −1 derived here; the next order in 1/β counts at βD near 12."""
FLAT = 0.2
"""Largest slope in log β of the time to a fixed distance, in units of 1/c: far from the 1 of the least distance."""
SETTLED = 0.05
"""Largest relative difference of the time to a fixed distance, at the largest β, from that at zero temperature."""
QUICK = (4.0, 12.0, 20.0, 33.0, 55.0)
FULL = (2.0, 4.0, 8.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0)
"""The βD of the two sizes."""
SHARE = 0.05
"""Wanted error of the solver, in least distances: as much as NEAR resolves."""


def own_heads() -> dict[str, Head]:
    """Heads with a large D, so that moderate β are cold."""
    return {
        "c = g/|Bᵀe|": circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5)),
        "c = κ/2": circle_head(0.7, (1.4, 0.5), -0.4, (1.2, 0.4)),
        "c = κ/2, smaller D": circle_head(0.6, (1.5, 0.6), -0.4, (1.2, 0.5)),
    }


def reached(curve: Curve, level: float) -> float:
    """The first time at which the distance is at most `level`, interpolated in its logarithm; inf if it never is."""
    return first_below(curve.times, np.log(curve.distance), math.log(level))


def timed(curve: Curve, D: float, level: float) -> dict[str, float]:
    """The row of one curve in the table."""
    fine = np.linspace(0, curve.times[-1], 4001)
    smooth = curve._replace(times=fine, distance=np.exp(CubicSpline(curve.times, np.log(curve.distance))(fine)))
    i = int(smooth.distance.argmin())
    least = float(smooth.distance[i])
    return {
        "beta": curve.beta,
        "beta D": curve.beta * D,
        "time within 5 % of the least distance": reached(smooth, NEAR * least),
        "time of the minimum": float(fine[i]),
        "least distance": least,
        "fixed distance": level,
        "time to the fixed distance": reached(smooth, level),
    }


def columns(table: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """β, the time near the least distance, the least distance, and the time to the fixed distance."""
    names = ("beta", "time within 5 % of the least distance", "least distance", "time to the fixed distance")
    return tuple(table[name].to_numpy() for name in names)


def measure(head: Head, depths: tuple[float, ...], frames: int, tell: Tell) -> tuple[pd.DataFrame, float]:
    """The rows of all curves, and the time to the fixed distance at zero temperature."""
    theory = head.theory()
    e, rate = theory.basis[:, 0].double(), theory.law_rate(2)
    D = float((head.B.T.double() @ e).norm() - e @ head.B.double() @ e)
    expected = theory.plateau(12 / D).least * 12
    curves = []
    for depth in told(depths, tell):
        times = np.linspace(0, (math.log(depth / D) + 2.5) / rate, frames)
        curves.append(warm_curve(head, depth / D, times, min(0.5, SHARE * expected / depth)))
    first = next(curve for curve in curves if curve.beta * D >= COLD_ENOUGH)
    level = 1.5 * float(first.distance.min())
    table = pd.DataFrame([timed(curve, D, level) for curve in curves])
    return table, reached(cold_curve(head, curves[-1].times), level)


def laws(betas: np.ndarray, times: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """Three laws with two constants each: the fitted times, and the root mean square of the residuals."""
    logs = np.log(betas)
    power = line(logs, np.log(times))
    fitted = {"log β": line(logs, times)(logs), "power of β": np.exp(power(logs)), "β": line(betas, times)(betas)}
    return {name: (model, float(np.sqrt(np.mean((model - times) ** 2)))) for name, model in fitted.items()}


def _scaled(found: FittedLine, factor: float) -> Interval:
    return found.slope * factor, found.low * factor, found.high * factor


def judge(found: Finding, fitted: pd.DataFrame, cold: float, rate: float, name: str) -> tuple[FittedLine, FittedLine]:
    """Add the checks of one head; returns the lines through the times and through the log of the least distances."""
    betas, near, least, fixed = columns(fitted)
    left = {law: rms for law, (_, rms) in laws(betas, near).items()}
    rival = min((law for law in left if law != "log β"), key=lambda law: left[law])
    ratio = left["log β"] / max(left[rival], 1e-300)
    note = "residuals " + ", ".join(f"{law} {rms:.3g}" for law, rms in left.items())
    title = f"time of least distance: residual of log β over that of the next best law ({rival}), {name}"
    if max(left["log β"], left[rival]) < RESOLVED:
        found.undecided(title, f"{note}: too small to tell the laws apart", ratio)
    else:
        found.overlapping(title, (ratio, ratio / CLEARLY, ratio * CLEARLY), 0.0, 1.0, note)
    slope, power = line(np.log(betas), near), line(np.log(betas), np.log(least))
    steep = _scaled(slope, rate / max(-power.slope, 1e-300))
    found.overlapping(f"slope in log β of the time of least distance, over p/c, {name}", steep, *SLOPE)
    found.overlapping(f"power of β in the least distance, {name}", power.interval, *POWER)
    title = f"slope in log β of the time to a fixed distance, over 1/c, {name}"
    if not np.isfinite([*fixed, cold]).all():
        found.undecided(title, "the fixed distance was not reached at every β")
    else:
        found.overlapping(title, _scaled(line(np.log(betas), fixed), rate), -FLAT, FLAT)
        title = f"time to the fixed distance, at β = {betas[-1]:.4g}, over that at zero temperature, {name}"
        found.within(title, fixed[-1] / cold, 1 - SETTLED, 1 + SETTLED)
    return slope, power


def _obstacle(head: Head) -> str | None:
    """Why this head has no plateau whose height and time could be measured here."""
    reason = without_curves(head)
    if reason is None:
        try:
            head.theory().plateau(1e9)
        except BadInput as error:
            return str(error)
    return reason


@claim("log-beta", "Concentration takes a time of order log β", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    depths: tuple[float, ...] = size(QUICK, full=FULL),
    frames: int = size(33, full=121),
    heads: int = size(1, full=3),
) -> Finding:
    """The distance to ν is least after a time of order log β (stated by the paper), with slope p/c when the least
    distance falls like β^{−p} and the zero-temperature law converges at rate c (derived here). It holds once there is a
    plateau, from about βD = 11.5 on: hotter clusters leave before they have come to rest, and the time of least
    distance is then that of their departure. The time to a fixed distance does not grow with β: it tends to that at
    zero temperature.

    Measure times and least distances against β, for each head.

    depths : βD of each β
    frames : saved times of a run
    heads : how many of the claim's own heads
    """
    found = Finding(f"βD = {', '.join(f'{x:g}' for x in depths)}, t ≤ (log β + 2.5)/c, mean field, d = 2")
    own = list(own_heads().items())[:heads] if head is None else [("the given head", head)]
    sentences = []
    for k, (name, one) in enumerate(own):
        every, cold = measure(one, depths, frames, lambda share, k=k: tell((k + share) / len(own)))  # type: ignore[misc]
        fitted = every[every["beta D"] >= COLD_ENOUGH]
        slope, power = judge(found, fitted, cold, one.theory().law_rate(2), name)
        for row in every.replace({"time to the fixed distance": {math.inf: "never"}}).to_dict("records"):
            found.row("times", {"head": name, **row})
        _picture(found, name, every, fitted, power)
        sentences.append(
            f"{name}: the time of least distance grows by {slope.slope:.3g} (interval {slope.low:.3g} to "
            f"{slope.high:.3g}) per unit of log β and the least distance falls like β^{power.slope:.2f}"
        )
    found.sentence = "; ".join(sentences)
    return found


def _picture(found: Finding, name: str, every: pd.DataFrame, fitted: pd.DataFrame, power: FittedLine) -> None:
    picture = found.picture(
        f"Time and height of least distance, {name}",
        "Above: the time of least distance with the best fits by log β, by a power of β and by β itself, and the time "
        f"to a fixed distance. Below: the least distance and its power of β. Points below βD = {COLD_ENOUGH:g} are not "
        "fitted: there the clusters leave before they have come to rest.",
        Panel("inverse temperature β", "time t", log_x=True),
        Panel("inverse temperature β", "least W₂ to the limit law", log_x=True, log_y=True),
    )
    betas, near, least, fixed = columns(every)
    cold, cold_near, _, _ = columns(fitted)
    picture.add("time of least distance (5 %)", betas, near, "points")
    styles = {"log β": "line", "power of β": "dashed", "β": "dotted"}
    for law, (model, _) in laws(cold, cold_near).items():
        picture.add(f"best fit by {law}", cold, model, styles[law])
    seen = np.isfinite(fixed)
    picture.add(f"time to distance {every['fixed distance'][0]:.2g}", betas[seen], fixed[seen], "points")
    picture.add("least distance", betas, least, "points", panel=1)
    picture.add(f"β^{power.slope:.2f}", cold, np.exp(power(np.log(cold))), panel=1)
