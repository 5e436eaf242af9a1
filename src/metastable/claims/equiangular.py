"""Equiangular tokens with B = V = I: all pairwise cosines stay equal and obey one scalar equation.

For n tokens with the common cosine ρ,

    dρ/dt = 2 e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ})

(Geshkovski, Letrouit, Polyanskiy and Rigollet, "A mathematical perspective on transformers", arXiv 2312.10794, where n
orthogonal tokens, ρ(0) = 0, are followed). It holds for ρ ≥ −1/(n − 1), the cosine of a regular simplex, which is a
fixed point. The package moves the n tokens on S^{n−1}; the reference integrates the scalar equation with scipy.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp

from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

TOLERANCE = 1e-5
"""Largest error of any cosine; the simulation uses a tolerance of 1e-8 a step."""
SIMPLEX = 1e-10
"""Largest motion of a regular simplex: its field vanishes up to rounding, which grows like e^{2t/n}."""
QUICK = ((3, 0.0, 1.0), (8, 0.0, 4.0), (8, -0.1, 2.0), (32, 0.0, 9.0))
"""(n, ρ(0), β) of each case."""
FULL = (*QUICK, (32, 0.0, 0.0), (64, 0.3, 20.0), (128, 0.0, 12.0), (128, 0.1, 5.0))


def reference(n: int, start: float, beta: float, times: np.ndarray) -> np.ndarray:
    """ρ(t) from the scalar equation."""

    def slope(_: float, rho: np.ndarray) -> np.ndarray:
        return 2 * (1 - rho) * ((n - 1) * rho + 1) / (np.exp(beta * (1 - rho)) + n - 1)

    found = solve_ivp(slope, (0.0, float(times[-1])), [start], "DOP853", times, rtol=1e-11, atol=1e-13)
    return np.asarray(found.y[0])


def simulated(n: int, start: float, beta: float, times: np.ndarray) -> np.ndarray:
    """The cosines of all pairs at the given times, (T, n(n − 1)/2)."""
    gram = torch.full((n, n), start, dtype=torch.float64) + (1 - start) * torch.eye(n, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(gram)
    # The rows of the symmetric root of a Gram matrix are unit vectors with these cosines.
    cloud = Cloud(vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.T)
    run = simulate(identity(n), cloud, beta, float(times[-1]), tol=1e-8, t_eval=times.tolist(), progress=False)
    first, second = np.triu_indices(n, 1)
    return np.asarray((run.frames[:, first] * run.frames[:, second]).sum(dim=2).numpy())


@claim("equiangular", "Equiangular tokens", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    cases: tuple[tuple[int, float, float], ...] = size(QUICK, full=FULL),
    until: float = size(12.0, full=30.0),
    frames: int = size(49, full=121),
) -> Finding:
    """For B = V = I and n tokens with the common cosine ρ, dρ/dt = 2 e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ})
    (Geshkovski et al., arXiv 2312.10794).

    Compare all cosines with the equation at `frames` times up to `until`, for each case (n, ρ(0), β).
    """
    found = Finding(f"t ≤ {until:g}, n = {', '.join(str(n) for n, _, _ in cases)}")
    still = simulated(4, -1 / 3, 5.0, np.linspace(0, min(until, 5.0), 6))
    found.within("motion of a regular simplex, n = 4, β = 5", float(np.abs(still + 1 / 3).max()), high=SIMPLEX)
    picture = found.picture(
        "Equiangular tokens come together",
        "Lines: the mean cosine of all pairs of tokens. Dots: the scalar equation. The colder, the longer they wait.",
        Panel("time t", "cosine ρ"),
    )
    times = np.linspace(0, until, frames)
    for n, start, beta in told(cases, tell):
        exact, seen = reference(n, start, beta, times), simulated(n, start, beta, times)
        error = float(np.abs(seen - exact[:, None]).max())
        name = f"n = {n}, β = {beta:g}"
        found.within(f"largest error of the cosines, {name}, ρ(0) = {start:g}", error, high=TOLERANCE)
        case = {"n": n, "cosine at t = 0": start, "beta": beta}
        ends = {"exact cosine at the end": exact[-1], "simulated": seen[-1].mean(), "largest error": error}
        found.row("cosines", case | ends)
        if len(picture.series) < 8:
            picture.add(name, times, seen.mean(axis=1))
            picture.add(f"exact, {name}", times, exact, "dotted")
    worst = max(row["largest error"] for row in found.tables["cosines"])
    found.sentence = f"the cosines of equiangular tokens follow their equation to {worst:.1e}"
    return found
