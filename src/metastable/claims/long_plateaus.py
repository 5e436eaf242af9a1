"""Exponentially long plateaus: with B = V = I two clusters at the angle φ₀ wait for a time of order e^{β(1 − cos φ₀)}.

Narrow clusters of mass p and q = 1 − p are two weighted tokens. Each sees the other with the weight of its own softmax,
so with c = cos φ

    −dφ/dt = sin φ · ( q/(p e^{β(1−c)} + q) + p/(q e^{β(1−c)} + p) ),

and the time from φ₀ to a small angle is the integral of dφ over the right-hand side, dominated by its upper end:

    T ≈ e^{β(1 − cos φ₀)} / ( (p/q + q/p) β sin²φ₀ ),     log T + log β = β(1 − cos φ₀) + O(1).

That separated clusters rest for a time exponential in β is a theorem of Geshkovski, Koubbi, Polyanskiy and Rigollet,
"Dynamic metastability in the self-attention model" (arXiv 2410.06833); the constant is derived here. The package
follows forty tokens with merging and knows nothing of this; the reference is the integral, by scipy's quadrature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import quad

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import Line, line
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

MET = 0.1
"""Clusters count as met at this angle, in radians."""
EXACT = 0.02
"""Relative error of a meeting time: times are saved at every 1/40 of the wait, and more closely where it ends."""
SLOPE = 0.05
"""Relative error of the slope in β: the terms after log β change it by about 1/β² ≈ 1 % of it."""
SHARES = (30, 10)
"""Tokens in the two clusters."""


@dataclass(frozen=True)
class Sizes:
    angles: tuple[float, ...]
    depths: tuple[float, ...]
    """β(1 − cos φ₀), from 9 on: the wait is then 100 time units or more, of which the meeting itself takes a few."""


def closed_form(angle: float, beta: float) -> float:
    """The time from the angle φ₀ to MET, by quadrature."""
    p, q = (n / sum(SHARES) for n in SHARES)

    def wait(phi: float) -> float:
        far = math.exp(beta * (1 - math.cos(phi)))
        return 1 / (math.sin(phi) * (q / (p * far + q) + p / (q * far + p)))

    # Nearly all of it comes from the last 1/β below φ₀.
    breaks = [max(MET, angle - k / beta) for k in (20.0, 5.0, 1.0)]
    edges = sorted({MET, *breaks, angle})
    return float(sum(quad(wait, a, b, epsrel=1e-10)[0] for a, b in pairwise(edges)))


def _start(angle: float) -> Cloud:
    """Both clusters, their tokens spread evenly over 0.002 radians."""
    parts = [middle + np.linspace(-1e-3, 1e-3, n) for middle, n in zip((0.0, angle), SHARES, strict=True)]
    theta = np.concatenate(parts)
    return Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))


def _curve(angle: float, beta: float, wait: float) -> tuple[np.ndarray, np.ndarray]:
    """The angle between the clusters' means up to 1.5 of the predicted wait, at more times near to it."""
    near = wait + np.linspace(-6.0, 6.0, 25)
    times = np.concatenate([np.linspace(0.0, 1.5 * wait, 61), near[(near > 0) & (near < 1.5 * wait)]])
    one = torch.eye(2, dtype=torch.float64)
    head = Head.from_interaction(one, one)
    run = simulate(head, _start(angle), beta, 1.5 * wait, tol=1e-9, t_eval=times.tolist(), merge=1e-4, progress=False)
    means = [run.frames[:, : SHARES[0]].mean(dim=1), run.frames[:, SHARES[0] :].mean(dim=1)]
    first, second = (torch.atan2(m[:, 1], m[:, 0]).numpy() for m in means)
    return run.times.numpy(), np.abs(second - first)


def _meeting(times: np.ndarray, phi: np.ndarray) -> float:
    """When the angle first is below MET; inf if it never is."""
    below = np.flatnonzero(phi <= MET)
    if len(below) == 0 or below[0] == 0:
        return math.inf
    k = int(below[0])
    share = (phi[k - 1] - MET) / (phi[k - 1] - phi[k])
    return float(times[k - 1] + share * (times[k] - times[k - 1]))


Row = tuple[float, float, float, float]


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """The meeting time for each angle and each β, against the integral and against its exponential growth."""
    horizon = (
        f"φ₀ = {', '.join(f'{a:g}' for a in sizes.angles)}, β(1 − cos φ₀) = {sizes.depths[0]:g} … {sizes.depths[-1]:g}"
    )
    if head is not None:
        return Finding("about B = V = I only", horizon, (undecided("waiting", "this claim is about B = V = I only"),))
    rows: list[Row] = []
    shown: list[Series] = []
    for angle in sizes.angles:
        for depth in sizes.depths:
            beta = depth / (1 - math.cos(angle))
            exact = closed_form(angle, beta)
            times, phi = _curve(angle, beta, exact)
            rows.append((angle, beta, exact, _meeting(times, phi)))
            if angle == sizes.angles[0] and len(shown) < 4:
                shown.append(Series(f"β = {beta:.3g}", tuple(times / exact), tuple(phi)))
            tell(len(rows) / (len(sizes.angles) * len(sizes.depths)))
    return _finding(horizon, rows, shown)


def _finding(horizon: str, rows: list[Row], shown: list[Series]) -> Finding:
    checks, fits = [], {}
    for angle, beta, exact, seen in rows:
        name = f"meeting time over the integral, φ₀ = {angle:g}, β = {beta:.3g}"
        checks.append(within(name, seen / exact, 1 - EXACT, 1 + EXACT))
    for angle in dict.fromkeys(row[0] for row in rows):
        depth = 1 - math.cos(angle)
        met = [(beta, math.log(seen * beta)) for a, beta, _, seen in rows if a == angle and math.isfinite(seen)]
        name = f"slope of log T + log β in β, φ₀ = {angle:g}"
        if len(met) < 3:
            checks.append(
                within(name, math.nan, note="fewer than three pairs of clusters met within 1.5 of the integral")
            )
            continue
        fits[angle] = line([beta for beta, _ in met], [log_wait for _, log_wait in met])
        checks.append(overlapping(name, fits[angle].interval, (1 - SLOPE) * depth, (1 + SLOPE) * depth))
    slopes = "; ".join(f"{fit.slope:.3f} for {1 - math.cos(a):.3f}" for a, fit in fits.items()) or "none"
    worst = max(abs(seen / exact - 1) for _, _, exact, seen in rows)
    sentence = f"the wait of two clusters grows exponentially in β, at the slope {slopes}; times agree to {worst:.1e}"
    columns = ("angle, radians", "beta", "integral, time units", "simulated")
    picture = _picture(rows, fits, shown)
    return Finding(sentence, horizon, tuple(checks), (picture,), (Table("meeting times", columns, tuple(rows)),))


def _picture(rows: list[Row], fits: dict[float, Line], shown: list[Series]) -> Picture:
    series = list(shown)
    for angle in fits:
        chosen = [row for row in rows if row[0] == angle]
        betas = tuple(row[1] for row in chosen)
        series.append(Series(f"φ₀ = {angle:g}", betas, tuple(row[3] for row in chosen), "points", panel=1))
        series.append(Series(f"integral, φ₀ = {angle:g}", betas, tuple(row[2] for row in chosen), "dotted", panel=1))
    return Picture(
        "Two clusters wait, then meet",
        "Above: the angle between two clusters against time in units of the predicted wait, abrupt where it is cold. "
        "Below: the wait against β, simulated (points) and from the integral (dots).",
        (
            Panel("time over the predicted wait", "angle φ, radians"),
            Panel("inverse temperature β", "wait, time units", log_y=True),
        ),
        tuple(series),
    )


CLAIM = Claim(
    "long-plateaus",
    "Exponentially long plateaus",
    "With B = V = I two clusters at the angle φ₀ meet after a time that grows like e^{β(1 − cos φ₀)}/β "
    "(exponentially long: Geshkovski et al., arXiv 2410.06833; the constant is derived here).",
    check,
    quick=Sizes((1.0, 1.4), (9.0, 11.0, 13.0, 15.0)),
    full=Sizes((0.7, 1.0, 1.4, 2.0), (9.0, 11.0, 13.0, 15.0, 17.0, 19.0, 21.0)),
    peer=True,
)
