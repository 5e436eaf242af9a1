"""How long concentration takes as the temperature falls: log β, and not a power of β.

The bound √(log(β+1)/β)·e^{Ct} + e^{−ct} is least at a time of order log β. What the distance itself does, derived
here: it falls like e^{−ct}, c being the rate of the law at zero temperature, until it meets a plateau of a height
~ β^{−p}, with p = 1 for a smooth law, so that

    time of least distance ≈ (p/c)·log β + constant,      least distance ~ β^{−p}.

This needs a plateau. With D = |Bᵀe| − ⟨Bᵀe, e⟩ the clusters stay for a time of about βD/κ, and while βD is small they
leave before they have come to rest; the time of least distance is then that of their departure. So β is counted in
units of 1/D, and what lies below βD = 11.5 is shown but not fitted: from there on the package forecasts plateaus.

On the plateau the distance is flat, and where exactly it is least hangs on small terms. The time of least distance is
therefore taken as the first one at which the distance is within 5 % of its least; the minimum itself is in the table.
The time to reach a fixed distance cannot grow like log β: as β → ∞ it tends to the time that zero temperature takes.
Distances are mean-field solutions on the circle from the uniform law, d = 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline

from metastable.claims.claim import Claim, Tell
from metastable.claims.distance_curves import Curve, cold_curve, refusal, warm_curve
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import Line, line
from metastable.claims.prescribed import circle_head
from metastable.errors import BadInput
from metastable.head import Head

COLD_ENOUGH = 11.5
"""Least βD that is fitted: the same from which `theory().plateau` makes forecasts."""
NEAR = 1.05
"""The time of least distance is the first one with the distance within this factor of its least."""
CLEARLY = 2.0
"""Another law of β is clearly better when it leaves less than 1/2 of what log β leaves (root mean square)."""
RESOLVED = 0.02
"""Laws that both leave less than this time are not told apart: the solver's error moves the times by that."""
SLOPE = (0.7, 1.3)
"""Measured slope over p/c: the factor in front of e^{−ct} still grows at such times."""
POWER = (-1.2, -0.85)
"""Power of β in the least distance, −1 derived here; the next order in 1/β counts at βD near 12."""
FLAT = 0.2
"""Largest slope in log β of the time to a fixed distance, in units of 1/c: far from the 1 of the least distance."""
SETTLED = 0.05
"""Relative difference of the time to a fixed distance, at the largest β, from that at zero temperature."""
SHARE = 0.05
"""Wanted error of the solver, in least distances: as much as NEAR resolves."""


@dataclass(frozen=True)
class Sizes:
    depths: tuple[float, ...]
    """βD of each β."""
    frames: int
    heads: int


def own_heads() -> dict[str, Head]:
    """Heads with a large D, so that moderate β are cold."""
    return {
        "c = g/|Bᵀe|": circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5)),
        "c = κ/2": circle_head(0.7, (1.4, 0.5), -0.4, (1.2, 0.4)),
        "c = κ/2, smaller D": circle_head(0.6, (1.5, 0.6), -0.4, (1.2, 0.5)),
    }


@dataclass(frozen=True)
class Timed:
    """What one curve says: its minimum, the first time near it, and the time to a fixed distance (None if never)."""

    beta: float
    depth: float
    least: float
    minimum: float
    near: float
    fixed: float | None


def first_below(curve: Curve, level: float) -> float | None:
    """The first time at which the distance is at most `level`; None if it never is."""
    below = np.flatnonzero(curve.distance <= level)
    if len(below) == 0:
        return None
    k = int(below[0])
    if k == 0:
        return float(curve.times[0])
    high, low = np.log(curve.distance[k - 1 : k + 1])
    return float(curve.times[k - 1] + (high - math.log(level)) / (high - low) * np.diff(curve.times)[k - 1])


def timed(curve: Curve, D: float, level: float) -> Timed:
    fine = np.linspace(0, curve.times[-1], 4001)
    smooth = curve._replace(times=fine, distance=np.exp(CubicSpline(curve.times, np.log(curve.distance))(fine)))
    i = int(smooth.distance.argmin())
    least = float(smooth.distance[i])
    near = first_below(smooth, NEAR * least)
    assert near is not None
    return Timed(curve.beta, curve.beta * D, least, float(fine[i]), near, first_below(smooth, level))


def laws(betas: np.ndarray, times: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """Three laws with two constants each: the fitted times, and the root mean square of what is left."""
    logs = np.log(betas)
    power = line(logs, np.log(times))
    fitted = {"log β": line(logs, times)(logs), "power of β": np.exp(power(logs)), "β": line(betas, times)(betas)}
    return {name: (model, float(np.sqrt(np.mean((model - times) ** 2)))) for name, model in fitted.items()}


def decided(betas: np.ndarray, times: np.ndarray, name: str) -> Check:
    """log β against the better of the two other laws: PASS if it leaves less, FAIL if it leaves twice as much."""
    left = {law: rms for law, (_, rms) in laws(betas, times).items()}
    rival = min((law for law in left if law != "log β"), key=lambda law: left[law])
    ratio = left["log β"] / max(left[rival], 1e-300)
    note = ", ".join(f"{law} leaves {rms:.3g}" for law, rms in left.items())
    title = f"what log β leaves of the time of least distance, over what the next best law ({rival}) leaves, {name}"
    if max(left["log β"], left[rival]) < RESOLVED:
        return undecided(title, f"{note}: too little to tell them apart", ratio)
    return overlapping(title, (ratio, ratio / CLEARLY, ratio * CLEARLY), 0.0, 1.0, note)


def judged(found: list[Timed], cold_time: float | None, rate: float, name: str) -> tuple[list[Check], Line, Line]:
    """All checks of one head, the line of the times and the line of the least distances."""
    logs = np.log([one.beta for one in found])
    near = np.array([one.near for one in found])
    slope, power = line(logs, near), line(logs, np.log([one.least for one in found]))
    steep = _scaled(slope, rate / max(-power.slope, 1e-300))
    checks = [
        decided(np.exp(logs), near, name),
        overlapping(f"slope in log β of the time of least distance, over p/c, {name}", steep, *SLOPE),
        overlapping(f"power of β in the least distance, {name}", power.interval, *POWER),
    ]
    title = f"slope in log β of the time to a fixed distance, over 1/c, {name}"
    reached = [one.fixed for one in found if one.fixed is not None]
    if cold_time is None or len(reached) < len(found):
        return [*checks, undecided(title, "the fixed distance was not reached at every β")], slope, power
    checks.append(overlapping(title, _scaled(line(logs, reached), rate), -FLAT, FLAT))
    title = f"time to the fixed distance, at β = {found[-1].beta:.4g}, over that of zero temperature, {name}"
    checks.append(within(title, reached[-1] / cold_time, 1 - SETTLED, 1 + SETTLED))
    return checks, slope, power


def _scaled(found: Line, factor: float) -> tuple[float, float, float]:
    return found.slope * factor, found.low * factor, found.high * factor


def measure(head: Head, sizes: Sizes, tell: Tell) -> tuple[list[Timed], float, float | None]:
    """What each curve says, the fixed distance, and the time that zero temperature takes to it."""
    th = head.theory()
    e, rate = th.basis[:, 0].double(), th.law_rate(2)
    D = float((head.B.T.double() @ e).norm() - e @ head.B.double() @ e)
    expected = th.plateau(12 / D).least * 12
    curves = []
    for i, depth in enumerate(sizes.depths):
        times = np.linspace(0, (math.log(depth / D) + 2.5) / rate, sizes.frames)
        curves.append(warm_curve(head, depth / D, times, min(0.5, SHARE * expected / depth)))
        tell((i + 1) / len(sizes.depths))
    first = next(curve for curve in curves if curve.beta * D >= COLD_ENOUGH)
    level = 1.5 * float(first.distance.min())
    cold = first_below(cold_curve(head, curves[-1].times), level)
    return [timed(curve, D, level) for curve in curves], level, cold


def refused(head: Head) -> str | None:
    """Why this head has no plateau whose height and time could be measured here."""
    reason = refusal(head)
    if reason is None:
        try:
            head.theory().plateau(1e9)
        except BadInput as error:
            return str(error)
    return reason


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Times and least distances against β, for each head."""
    horizon = f"βD = {', '.join(f'{x:g}' for x in sizes.depths)}, t ≤ (log β + 2.5)/c, mean field, d = 2"
    reason = None if head is None else refused(head)
    if reason:
        return Finding(f"not tried: {reason}", horizon, (undecided("log β", reason),))
    heads = dict(list(own_heads().items())[: sizes.heads]) if head is None else {"the given head": head}
    checks: list[Check] = []
    rows: list[tuple[object, ...]] = []
    pictures, sentences = [], []
    for k, (name, one) in enumerate(heads.items()):
        found, level, cold = measure(one, sizes, lambda share, k=k: tell((k + share) / len(heads)))  # type: ignore[misc]
        fitted = [item for item in found if item.depth >= COLD_ENOUGH]
        new, slope, power = judged(fitted, cold, one.theory().law_rate(2), name)
        checks += new
        rows += [(name, *row(item, level)) for item in found]
        pictures.append(picture(name, found, fitted, level))
        sentences.append(
            f"{name}: the time of least distance grows by {slope.slope:.3g} (interval {slope.low:.3g} to "
            f"{slope.high:.3g}) per unit of log β and the least distance falls like β^{power.slope:.2f}"
        )
    return Finding("; ".join(sentences), horizon, tuple(checks), tuple(pictures), (table(rows),), why(checks))


def why(checks: list[Check]) -> str:
    return "; ".join(f"{check.name}: {check.note}" for check in checks if check.outcome != "PASS")


def row(one: Timed, level: float) -> tuple[object, ...]:
    fixed = "never" if one.fixed is None else one.fixed
    return one.beta, one.depth, one.near, one.minimum, one.least, level, fixed


def table(rows: list[tuple[object, ...]]) -> Table:
    columns = ("head", "beta", "beta D", "time within 5 % of the least distance", "time of the minimum")
    return Table("times", (*columns, "least distance", "fixed distance", "time to the fixed distance"), tuple(rows))


def picture(name: str, found: list[Timed], fitted: list[Timed], level: float) -> Picture:
    betas, near, least = (np.array([getattr(one, key) for one in fitted]) for key in ("beta", "near", "least"))
    every = tuple(one.beta for one in found)
    series = [Series("time of least distance (5 %)", every, tuple(one.near for one in found), style="points")]
    styles = {"log β": "line", "power of β": "dashed", "β": "dotted"}
    for law, (model, _) in laws(betas, near).items():
        series.append(Series(f"best fit by {law}", tuple(betas), tuple(model), style=styles[law]))
    where = tuple(one.beta for one in found if one.fixed is not None)
    fixed = tuple(one.fixed for one in found if one.fixed is not None)
    series.append(Series(f"time to distance {level:.2g}", where, fixed, style="points"))
    series.append(Series("least distance", every, tuple(one.least for one in found), style="points", panel=1))
    power = line(np.log(betas), np.log(least))
    series.append(Series(f"β^{power.slope:.2f}", tuple(betas), tuple(np.exp(power(np.log(betas)))), panel=1))
    return Picture(
        f"Time and height of least distance, {name}",
        "Above: the time of least distance with the best fits by log β, by a power of β and by β itself, and the time "
        f"to a fixed distance. Below: the least distance and its power of β. Points below βD = {COLD_ENOUGH:g} are not "
        "fitted: there the clusters leave before they have come to rest.",
        (
            Panel("inverse temperature β", "time t", log_x=True),
            Panel("inverse temperature β", "least W₂ to the limit law", log_x=True, log_y=True),
        ),
        tuple(series),
    )


CLAIM = Claim(
    "log-beta",
    "Concentration takes log β",
    "The distance to ν is least after a time of order log β (stated by the paper), with slope p/c when the least "
    "distance falls like β^{−p} and the zero-temperature law converges at rate c (derived here). It holds once there "
    "is a plateau, from about βD = 11.5 on: hotter clusters leave before they have come to rest, and the time of least "
    "distance is then that of their departure. The time to a fixed distance does not grow with β: it tends to that of "
    "zero temperature.",
    check,
    quick=Sizes((4.0, 12.0, 20.0, 33.0, 55.0), 33, 1),
    full=Sizes((2.0, 4.0, 8.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0), 121, 3),
)
