"""Exponentially long plateaus: with B = V = I two clusters at the angle φ₀ wait for a time of order e^{β(1 − cos φ₀)}.

Narrow clusters of mass p and q = 1 − p are two weighted tokens. Each sees the other with the weight of its own softmax,
so with c = cos φ

    −dφ/dt = sin φ · ( q/(p e^{β(1−c)} + q) + p/(q e^{β(1−c)} + p) ),

and the time from φ₀ to a small angle is the integral of dφ over the right-hand side, dominated by its upper end:

    T ≈ e^{β(1 − cos φ₀)} / ( (p/q + q/p) β sin²φ₀ ),     log T + log β = β(1 − cos φ₀) + O(1).

That separated clusters rest for a time exponential in β is a theorem of Geshkovski, Koubbi, Polyanskiy and Rigollet,
"Dynamic metastability in the self-attention model" (arXiv 2410.06833); the constant is derived here. The package
follows forty tokens with merging and does not use the integral. The reference computes it with scipy's quadrature.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import quad

from metastable.claims.experiment import Finding, Panel, Tell, claim, first_below, line, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

MET = 0.1
"""Clusters have met at this angle, in radians."""
EXACT = 0.02
"""Largest relative error of a meeting time: times are saved at every 1/40 of the wait, more densely near its end."""
SLOPE = 0.05
"""Largest relative error of the slope in β: the terms after log β change it by about 1/β² ≈ 1 %."""
SHARES = (30, 10)
"""Tokens in the two clusters."""


def closed_form(angle: float, beta: float) -> float:
    """The time from the angle φ₀ to MET, by quadrature."""
    p, q = (n / sum(SHARES) for n in SHARES)

    def wait(phi: float) -> float:
        far = math.exp(beta * (1 - math.cos(phi)))
        return 1 / (math.sin(phi) * (q / (p * far + q) + p / (q * far + p)))

    # Nearly all of the integral comes from the last 1/β below φ₀.
    breaks = [max(MET, angle - k / beta) for k in (20.0, 5.0, 1.0)]
    edges = sorted({MET, *breaks, angle})
    return float(sum(quad(wait, a, b, epsrel=1e-10)[0] for a, b in pairwise(edges)))


def simulated(angle: float, beta: float, wait: float) -> tuple[np.ndarray, np.ndarray]:
    """Times up to 1.5 of the predicted wait, and the angle between the means of the clusters at these times."""
    # The tokens of a cluster start evenly over 0.002 radians.
    parts = [middle + np.linspace(-1e-3, 1e-3, n) for middle, n in zip((0.0, angle), SHARES, strict=True)]
    theta = np.concatenate(parts)
    near = wait + np.linspace(-6.0, 6.0, 25)
    times = np.concatenate([np.linspace(0.0, 1.5 * wait, 61), near[(near > 0) & (near < 1.5 * wait)]])
    cloud = Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    run = simulate(identity(2), cloud, beta, 1.5 * wait, tol=1e-9, t_eval=times.tolist(), merge=1e-4, progress=False)
    means = [run.frames[:, : SHARES[0]].mean(dim=1), run.frames[:, SHARES[0] :].mean(dim=1)]
    first, second = (torch.atan2(m[:, 1], m[:, 0]).numpy() for m in means)
    return run.times.numpy(), np.abs(second - first)


@claim("long-plateaus", "Exponentially long plateaus", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    angles: tuple[float, ...] = size((1.0, 1.4), full=(0.7, 1.0, 1.4, 2.0)),
    depths: tuple[float, ...] = size((9.0, 11.0, 13.0, 15.0), full=(9.0, 11.0, 13.0, 15.0, 17.0, 19.0, 21.0)),
) -> Finding:
    """With B = V = I two clusters at the angle φ₀ meet after a time that grows like e^{β(1 − cos φ₀)}/β (exponentially
    long: Geshkovski et al., arXiv 2410.06833; the constant is derived here).

    Compare meeting times with the integral, and their growth in β with its exponent.

    angles : φ₀ in radians
    depths : β(1 − cos φ₀), from 9 on: the wait is then 100 time units or more, of which the meeting itself takes a few
    """
    found = Finding(f"φ₀ = {', '.join(f'{a:g}' for a in angles)}, β(1 − cos φ₀) = {depths[0]:g} … {depths[-1]:g}")
    picture = found.picture(
        "Two clusters wait, then meet",
        "Above: the angle between two clusters against time in units of the predicted wait, abrupt where it is cold. "
        "Below: the wait against β, simulated (points) and from the integral (dots).",
        Panel("time over the predicted wait", "angle φ, radians"),
        Panel("inverse temperature β", "wait, time units", log_y=True),
    )
    rows = []
    for angle, depth in told([(angle, depth) for angle in angles for depth in depths], tell):
        beta = depth / (1 - math.cos(angle))
        exact = closed_form(angle, beta)
        times, phi = simulated(angle, beta, exact)
        rows.append((angle, beta, exact, first_below(times, phi, MET)))
        if angle == angles[0] and len(picture.series) < 4:
            picture.add(f"β = {beta:.3g}", times / exact, phi)
    for angle, beta, exact, seen in rows:
        name = f"meeting time over the integral, φ₀ = {angle:g}, β = {beta:.3g}"
        found.near(name, seen / exact, EXACT)
        columns = {"angle, radians": angle, "beta": beta, "integral, time units": exact, "simulated": seen}
        found.row("meeting times", columns)
    slopes = []
    for angle in angles:
        depth = 1 - math.cos(angle)
        betas, exact_waits, waits = np.array([row[1:] for row in rows if row[0] == angle]).T
        met = np.isfinite(waits)
        name = f"slope of log T + log β in β, φ₀ = {angle:g}"
        if met.sum() < 3:
            found.within(name, math.nan, note="fewer than three pairs of clusters met within 1.5 of the integral")
            continue
        fit = line(betas[met], np.log((waits * betas)[met]))
        found.overlapping(name, fit.interval, (1 - SLOPE) * depth, (1 + SLOPE) * depth)
        slopes.append(f"{fit.slope:.3f} for {depth:.3f}")
        picture.add(f"φ₀ = {angle:g}", betas, waits, "points", panel=1)
        picture.add(f"integral, φ₀ = {angle:g}", betas, exact_waits, "dotted", panel=1)
    worst = max(abs(seen / exact - 1) for _, _, exact, seen in rows)
    found.sentence = (
        f"the wait of two clusters grows exponentially in β, at the slope {'; '.join(slopes) or 'none'}; "
        f"times agree to {worst:.1e}"
    )
    return found
