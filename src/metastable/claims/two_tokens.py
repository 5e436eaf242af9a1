"""Two tokens with B = V = I: the angle between them obeys one scalar equation.

For tokens at the angle φ, dφ/dt = −2 sin φ · e^{β cos φ}/(e^β + e^{β cos φ}) (Geshkovski, Letrouit, Polyanskiy and
Rigollet, "A mathematical perspective on transformers", arXiv 2312.10794; the constant is that of a softmax over both).
The package moves the two tokens on the circle and does not use this equation. The reference integrates it with scipy.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.integrate import solve_ivp

from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

TOLERANCE = 1e-5
"""Largest |φ − φ_reference| in radians; the simulation uses a tolerance of 1e-8 a step."""
START = 1.2
"""The angle at t = 0, in radians."""


def reference(beta: float, times: np.ndarray) -> np.ndarray:
    """φ(t) from the scalar equation."""

    def slope(_: float, phi: np.ndarray) -> np.ndarray:
        return -2 * np.sin(phi) / (np.exp(beta * (1 - np.cos(phi))) + 1)

    found = solve_ivp(slope, (0.0, float(times[-1])), [START], "DOP853", times, rtol=1e-11, atol=1e-13)
    return np.asarray(found.y[0])


def simulated(beta: float, times: np.ndarray) -> np.ndarray:
    """φ(t) between the two tokens of a simulation."""
    points = torch.tensor([[1.0, 0.0], [math.cos(START), math.sin(START)]], dtype=torch.float64)
    run = simulate(identity(2), Cloud(points), beta, float(times[-1]), tol=1e-8, t_eval=times.tolist(), progress=False)
    first, second = run.frames[:, 0], run.frames[:, 1]
    sines = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    return np.asarray(torch.atan2(sines, (first * second).sum(dim=1)).numpy())


@claim("two-tokens", "Two tokens", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    betas: tuple[float, ...] = size((0.0, 1.0, 5.0, 20.0), full=(0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0)),
    until: float = size(8.0, full=20.0),
    frames: int = size(33, full=101),
) -> Finding:
    """For B = V = I two tokens at the angle φ obey dφ/dt = −2 sin φ · e^{β cos φ}/(e^{β} + e^{β cos φ}) (Geshkovski et
    al., arXiv 2312.10794).

    Compare the angle with its equation at `frames` times up to `until`, for each β.
    """
    found = Finding(f"t ≤ {until:g}, β = {', '.join(f'{b:g}' for b in betas)}")
    picture = found.picture(
        "Two tokens meet",
        "Lines: the simulated angle between two tokens. Dots: the scalar equation. The colder, the longer they wait.",
        Panel("time t", "angle φ"),
    )
    times = np.linspace(0, until, frames)
    for beta in told(betas, tell):
        exact, seen = reference(beta, times), simulated(beta, times)
        error = float(np.abs(exact - seen).max())
        found.within(f"largest error of the angle, β = {beta:g}", error, high=TOLERANCE)
        ends = {"exact angle at the end": exact[-1], "simulated": seen[-1]}
        found.row("angles", {"beta": beta, **ends, "largest error": error})
        picture.add(f"β = {beta:g}", times, seen)
        picture.add("exact", times, exact, "dotted")
    worst = max(row["largest error"] for row in found.tables["angles"])
    found.sentence = f"the angle of two tokens follows its equation to {worst:.1e}"
    return found
