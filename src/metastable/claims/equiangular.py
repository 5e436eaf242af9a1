"""Equiangular tokens with B = V = I: all pairwise cosines stay equal and obey one equation.

For n tokens with the common cosine ρ,

    dρ/dt = 2 e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ})

(Geshkovski, Letrouit, Polyanskiy and Rigollet, "A mathematical perspective on transformers", arXiv 2312.10794, where n
orthogonal tokens, ρ(0) = 0, are followed). It holds for ρ ≥ −1/(n − 1), the cosine of a regular simplex, which stands
still. The package moves the n tokens on S^{n−1}; the reference integrates the scalar equation with scipy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, undecided, within
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate

TOLERANCE = 1e-5
"""Largest error of any cosine; the simulation is asked for 1e-8 a step."""
SIMPLEX = 1e-10
"""How far tokens of a regular simplex may move: their field vanishes up to rounding, which grows like e^{2t/n}."""


@dataclass(frozen=True)
class Sizes:
    cases: tuple[tuple[int, float, float], ...]
    """(n, ρ(0), β)"""
    until: float
    frames: int


def reference(n: int, start: float, beta: float, times: np.ndarray) -> np.ndarray:
    """ρ(t) from the scalar equation."""

    def slope(_: float, rho: np.ndarray) -> np.ndarray:
        return 2 * (1 - rho) * ((n - 1) * rho + 1) / (np.exp(beta * (1 - rho)) + n - 1)

    found = solve_ivp(slope, (0.0, float(times[-1])), [start], "DOP853", times, rtol=1e-11, atol=1e-13)
    return np.asarray(found.y[0])


def tokens(n: int, cosine: float) -> torch.Tensor:
    """n unit vectors in dimension n with this cosine between any two: the symmetric root of their Gram matrix."""
    gram = torch.full((n, n), cosine, dtype=torch.float64) + (1 - cosine) * torch.eye(n, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(gram)
    return vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.T


def _measured(n: int, start: float, beta: float, times: np.ndarray) -> np.ndarray:
    """The cosines of all pairs at the given times, (T, n(n − 1)/2)."""
    identity = torch.eye(n, dtype=torch.float64)
    head = Head.from_interaction(identity, identity)
    cloud = Cloud(tokens(n, start))
    run = simulate(head, cloud, beta, float(times[-1]), tol=1e-8, t_eval=times.tolist(), progress=False)
    first, second = np.triu_indices(n, 1)
    return np.asarray((run.frames[:, first] * run.frames[:, second]).sum(dim=2).numpy())


def _simplex(sizes: Sizes) -> Check:
    n, beta = 4, 5.0
    seen = _measured(n, -1 / (n - 1), beta, np.linspace(0, min(sizes.until, 5.0), 6))
    off = float(np.abs(seen + 1 / (n - 1)).max())
    return within(f"motion of a regular simplex, n = {n}, β = {beta:g}", off, high=SIMPLEX)


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """All cosines at every saved time, for each (n, ρ(0), β)."""
    horizon = f"t ≤ {sizes.until:g}, n = {', '.join(str(n) for n, _, _ in sizes.cases)}"
    if head is not None:
        return Finding("about B = V = I only", horizon, (undecided("cosine", "this claim is about B = V = I only"),))
    times = np.linspace(0, sizes.until, sizes.frames)
    checks, series, rows = [_simplex(sizes)], [], []
    for i, (n, start, beta) in enumerate(sizes.cases):
        exact, seen = reference(n, start, beta, times), _measured(n, start, beta, times)
        error = float(np.abs(seen - exact[:, None]).max())
        name = f"n = {n}, β = {beta:g}"
        checks.append(within(f"largest error of the cosines, {name}, ρ(0) = {start:g}", error, high=TOLERANCE))
        rows.append((n, start, beta, float(exact[-1]), float(seen[-1].mean()), error))
        if i < 4:
            series.append(Series(name, tuple(times), tuple(seen.mean(axis=1))))
            series.append(Series(f"exact, {name}", tuple(times), tuple(exact), style="dotted"))
        tell((i + 1) / len(sizes.cases))
    picture = Picture(
        "Equiangular tokens come together",
        "Lines: the mean cosine of all pairs of tokens. Dots: the scalar equation. The colder, the longer they wait.",
        (Panel("time t", "cosine ρ"),),
        tuple(series),
    )
    columns = ("n", "cosine at t = 0", "beta", "exact cosine at the end", "simulated", "largest error")
    table = Table("cosines", columns, tuple(rows))
    worst = max(row[-1] for row in rows)
    sentence = f"the cosines of equiangular tokens follow their equation to {worst:.1e}"
    return Finding(sentence, horizon, tuple(checks), (picture,), (table,))


CLAIM = Claim(
    "equiangular",
    "Equiangular tokens",
    "For B = V = I and n tokens with the common cosine ρ, dρ/dt = 2 e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ}) "
    "(Geshkovski et al., arXiv 2312.10794).",
    check,
    quick=Sizes(((3, 0.0, 1.0), (8, 0.0, 4.0), (8, -0.1, 2.0), (32, 0.0, 9.0)), 12.0, 49),
    full=Sizes(
        (
            (3, 0.0, 1.0),
            (8, 0.0, 4.0),
            (8, -0.1, 2.0),
            (32, 0.0, 9.0),
            (32, 0.0, 0.0),
            (64, 0.3, 20.0),
            (128, 0.0, 12.0),
            (128, 0.1, 5.0),
        ),
        30.0,
        121,
    ),
    peer=True,
)
