"""Two tokens with B = V = I: the angle between them obeys one equation, solved here to rounding by another method.

For tokens at the angle φ, dφ/dt = −2 sin φ · e^{β cos φ}/(e^β + e^{β cos φ}) (Geshkovski, Letrouit, Polyanskiy and
Rigollet, "A mathematical perspective on transformers", arXiv 2312.10794; the constant is that of a softmax over both).
The package follows the two tokens on the circle and knows nothing of this; the reference integrates the scalar
equation with scipy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Finding, Panel, Picture, Series, Table, undecided, within
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

TOLERANCE = 1e-5
"""Largest |φ − φ_reference| in radians; the simulation is asked for 1e-8 a step."""
START = 1.2


@dataclass(frozen=True)
class Sizes:
    betas: tuple[float, ...]
    until: float
    frames: int


def reference(beta: float, times: np.ndarray) -> np.ndarray:
    """φ(t) from the scalar equation."""

    def slope(_: float, phi: np.ndarray) -> np.ndarray:
        return -2 * np.sin(phi) / (np.exp(beta * (1 - np.cos(phi))) + 1)

    found = solve_ivp(slope, (0.0, float(times[-1])), [START], "DOP853", times, rtol=1e-11, atol=1e-13)
    return np.asarray(found.y[0])


def _measured(beta: float, times: np.ndarray) -> np.ndarray:
    points = torch.tensor([[1.0, 0.0], [math.cos(START), math.sin(START)]], dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64)
    head = Head.from_interaction(identity, identity)
    run = simulate(head, Cloud(points), beta, float(times[-1]), tol=1e-8, t_eval=times.tolist(), progress=False)
    ends = torch.stack([run.at(i).points for i in range(len(times))])
    sines = ends[:, 0, 0] * ends[:, 1, 1] - ends[:, 0, 1] * ends[:, 1, 0]
    return torch.atan2(sines, (ends[:, 0] * ends[:, 1]).sum(dim=1)).numpy()


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """The angle at every saved time, for each β."""
    horizon = f"t ≤ {sizes.until:g}, β = {', '.join(f'{b:g}' for b in sizes.betas)}"
    if head is not None:
        return Finding("about B = V = I only", horizon, (undecided("angle", "this claim is about B = V = I only"),))
    times = np.linspace(0, sizes.until, sizes.frames)
    checks, series, rows = [], [], []
    for i, beta in enumerate(sizes.betas):
        exact, seen = reference(beta, times), _measured(beta, times)
        error = float(np.abs(exact - seen).max())
        checks.append(within(f"largest error of the angle, β = {beta:g}", error, high=TOLERANCE))
        rows.append((beta, float(exact[-1]), float(seen[-1]), error))
        series.append(Series(f"β = {beta:g}", tuple(times), tuple(seen)))
        series.append(Series("exact", tuple(times), tuple(exact), style="dotted"))
        tell((i + 1) / len(sizes.betas))
    worst = max(row[3] for row in rows)
    picture = Picture(
        "Two tokens meet",
        "Lines: the simulated angle between two tokens. Dots: the scalar equation. The colder, the longer they wait.",
        (Panel("time t", "angle φ"),),
        tuple(series),
    )
    table = Table("angles", ("beta", "exact angle at the end", "simulated", "largest error"), tuple(rows))
    return Finding(
        f"the angle of two tokens follows its equation to {worst:.1e}", horizon, tuple(checks), (picture,), (table,)
    )


CLAIM = Claim(
    "two-tokens",
    "Two tokens",
    "For B = V = I two tokens at the angle φ obey dφ/dt = −2 sin φ · e^{β cos φ}/(e^{β} + e^{β cos φ}) "
    "(Geshkovski et al., arXiv 2312.10794).",
    check,
    quick=Sizes((0.0, 1.0, 5.0, 20.0), 8.0, 33),
    full=Sizes((0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0), 20.0, 101),
    peer=True,
)
