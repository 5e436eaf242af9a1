"""How many metastable clusters form from the uniform law on the circle with B = V = I: of the order of √β.

**Growth of a perturbation**, derived here. On the circle the field at θ is ∫sin(θ' − θ)e^{β cos(θ' − θ)}dμ(θ') over
∫e^{β cos(θ' − θ)}dμ(θ'). For the density (1 + ε cos kθ)/2π the denominator is I₀(β) to leading order, and the numerator

    −ε sin kθ · (1/2π)∫ sin φ sin kφ e^{β cos φ}dφ = −ε sin kθ · (I_{k−1} − I_{k+1})/2 = −ε sin kθ · k I_k(β)/β,

so by the continuity equation the mode k grows like e^{γt} with

    γ_k = k² I_k(β)/(β I₀(β)).

For large β, I_k/I₀ ≈ e^{−k²/2β}: the fastest mode is k* ≈ √(2β), with γ ≈ 2/e. That a perturbation of the uniform law
grows fastest at a wavenumber of order √β and leaves about as many clusters is the statement of Bruno, Pasqualotto and
Agazzi, "Emergence of meta-stable clustering in mean-field transformer models" (arXiv 2410.23228), and that clusters
then rest for long is that of Geshkovski, Koubbi, Polyanskiy and Rigollet, "Dynamic metastability in the self-attention
model" (arXiv 2410.06833). How many of the k* bumps survive until the tokens are clusters is measured here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ive

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import Line, line
from metastable.cloud import Cloud, equally_spaced, uniform
from metastable.head import Head
from metastable.run.simulation import simulate

GROWTH = 0.01
"""Relative error of a growth rate: the amplitude of 1e-4 leaves a few times 1e-4, tokens and steps less."""
AMPLITUDE = 1e-4
EXPONENT = 0.1
"""The slope of log(clusters) in log β may be off ½ by this: k* itself has the slope ½ only for large β."""
SURVIVING = (0.5, 1.2)
"""Clusters over k*: bumps can only fuse, apart from chance, and more than half should survive to be of the order k*."""
CLUSTERED = 20.0
"""Tokens are counted at this time: noise of size N^{−1/2} grows to order 1 by log N/2γ ≈ 5, and clusters are then
4.4 β^{−1/2} apart, which takes times of order e^{10} to close."""


@dataclass(frozen=True)
class Sizes:
    waves: tuple[float, ...]
    """β of the growth rates"""
    spaced: int
    betas: tuple[float, ...]
    """β of the counts"""
    tokens: int
    seeds: int


def growth(k: np.ndarray | int, beta: float) -> np.ndarray:
    """γ_k = k² I_k(β)/(β I₀(β))."""
    return np.asarray(np.square(k) * ive(k, beta) / (beta * ive(0, beta)))


def fastest(beta: float) -> float:
    """The real k at which γ is largest."""
    k = np.linspace(0.0, 3 * math.sqrt(beta) + 5, 4001)
    return float(k[np.argmax(growth(k, beta))])


def identity() -> Head:
    one = torch.eye(2, dtype=torch.float64)
    return Head.from_interaction(one, one)


def _angles(points: torch.Tensor) -> np.ndarray:
    return np.asarray(torch.atan2(points[..., 1], points[..., 0]).numpy())


def _measured_growth(k: int, beta: float, n: int) -> float:
    """γ_k of n equally spaced tokens moved to the density 1 + ε cos kθ: slope of the log of their k-th mode."""
    theta = _angles(equally_spaced(n).points)
    theta = theta - AMPLITUDE / k * np.sin(k * theta)
    cloud = Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    until = min(1.5 / float(growth(k, beta)), 4.0)
    run = simulate(identity(), cloud, beta, until, tol=1e-11, t_eval=5, progress=False)
    mode = np.abs(np.exp(1j * k * _angles(run.frames)).mean(axis=1))
    return line(run.times.numpy(), np.log(mode)).slope


def count(points: torch.Tensor, beta: float) -> int:
    """Groups of tokens with gaps wider than β^{−1/2} around them; fewer than three tokens are no cluster."""
    theta = np.sort(_angles(points))
    gaps = np.diff(theta, append=theta[0] + 2 * math.pi)
    ends = np.flatnonzero(gaps > beta**-0.5)
    if len(ends) == 0:
        return 1
    sizes = np.diff(ends, append=ends[0] + len(theta))
    return int((sizes >= 3).sum())


def _counted(beta: float, sizes: Sizes) -> list[int]:
    found = []
    for seed in range(sizes.seeds):
        cloud = uniform(sizes.tokens, 2, seed=seed)
        run = simulate(identity(), cloud, beta, CLUSTERED, tol=1e-4, t_eval=2, merge=0.02 * beta**-0.5, progress=False)
        found.append(count(run.final.points, beta))
    return found


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Growth rates against the dispersion relation, then cluster counts against √β."""
    horizon = f"counts at t = {CLUSTERED:g}, N = {sizes.tokens}, β = {min(sizes.betas):g} … {max(sizes.betas):g}"
    if head is not None:
        return Finding("about B = V = I only", horizon, (undecided("clusters", "this claim is about B = V = I only"),))
    rates = []
    for i, beta in enumerate(sizes.waves):
        for k in _wavenumbers(beta):
            rates.append((beta, k, float(growth(k, beta)), _measured_growth(k, beta, sizes.spaced)))
        tell(0.3 * (i + 1) / len(sizes.waves))
    counts = []
    for i, beta in enumerate(sizes.betas):
        counts.append((beta, fastest(beta), _counted(beta, sizes)))
        tell(0.3 + 0.7 * (i + 1) / len(sizes.betas))
    return _finding(horizon, rates, counts)


def _wavenumbers(beta: float) -> list[int]:
    """Around the fastest: a half of it, it, one and a half, and 1."""
    k = fastest(beta)
    return sorted({1, *(max(1, round(share * k)) for share in (0.5, 1.0, 1.5))})


Rates = list[tuple[float, int, float, float]]
Counts = list[tuple[float, float, list[int]]]


def _finding(horizon: str, rates: Rates, counts: Counts) -> Finding:
    checks = [
        within(f"growth rate of mode {k}, β = {beta:g}, over k²I_k/(βI₀)", seen / exact, 1 - GROWTH, 1 + GROWTH)
        for beta, k, exact, seen in rates
    ]
    betas = np.repeat([c[0] for c in counts], [len(c[2]) for c in counts])
    seen = np.concatenate([c[2] for c in counts]).astype(float)
    fit = line(np.log(betas), np.log(seen))
    checks.append(overlapping("exponent of β in the number of clusters", fit.interval, 0.5 - EXPONENT, 0.5 + EXPONENT))
    shares = [float(np.mean(number)) / k for _, k, number in counts]
    for (beta, _, _), share in zip(counts, shares, strict=True):
        checks.append(within(f"clusters over k*, β = {beta:g}", share, *SURVIVING))
    worst = max(abs(seen / exact - 1) for _, _, exact, seen in rates)
    sentence = (
        f"modes grow by k²I_k/(βI₀) to {worst:.1e}, and the number of clusters grows like "
        f"β^{fit.slope:.3f} ({fit.low:.3f} to {fit.high:.3f}), {min(shares):.2f} to {max(shares):.2f} of the fastest k"
    )
    rows = tuple((b, k, float(np.mean(n)), min(n), max(n), float(np.mean(n)) / k) for b, k, n in counts)
    tables = (
        Table("growth rates", ("beta", "mode k", "k² I_k/(β I_0)", "measured"), tuple(rates)),
        Table("clusters", ("beta", "fastest mode", "clusters, mean", "fewest", "most", "mean over fastest"), rows),
    )
    return Finding(sentence, horizon, tuple(checks), (_picture(rates, counts, fit),), tables)


def _picture(rates: Rates, counts: Counts, fit: Line) -> Picture:
    series = []
    for beta in sorted({rate[0] for rate in rates})[:3]:
        chosen = [rate for rate in rates if rate[0] == beta]
        k = np.linspace(0.0, 1.2 * max(rate[1] for rate in chosen), 120)
        series.append(Series(f"exact, β = {beta:g}", tuple(k), tuple(growth(k, beta)), style="dotted"))
        seen = tuple(rate[3] for rate in chosen)
        series.append(Series(f"β = {beta:g}", tuple(float(r[1]) for r in chosen), seen, style="points"))
    b = np.array([c[0] for c in counts])
    every = [(beta, float(n)) for beta, _, number in counts for n in number]
    series.append(Series("clusters", tuple(x for x, _ in every), tuple(y for _, y in every), "points", panel=1))
    series.append(Series("fastest mode k*", tuple(b), tuple(c[1] for c in counts), "dotted", panel=1))
    series.append(Series(f"fit, β^{fit.slope:.2f}", tuple(b), tuple(np.exp(fit(np.log(b)))), "dashed", panel=1))
    return Picture(
        "Modes that grow and clusters that stay",
        "Above: growth rates of small waves on the uniform law, measured (points) and exact (dots). Below: the number "
        "of clusters from random uniform tokens, beside the fastest mode.",
        (
            Panel("wavenumber k", "growth rate γ, per time unit"),
            Panel("inverse temperature β", "clusters", log_x=True, log_y=True),
        ),
        tuple(series),
    )


CLAIM = Claim(
    "clusters",
    "Number of metastable clusters",
    "On the circle with B = V = I a wave cos kθ on the uniform law grows at the rate k²I_k(β)/(βI₀(β)) [derived here], "
    "fastest at k* ≈ √(2β), and tokens form of the order of √β clusters (Bruno et al., arXiv 2410.23228; Geshkovski et "
    "al., arXiv 2410.06833).",
    check,
    quick=Sizes((4.0, 16.0, 64.0), 256, (12.5, 25.0, 50.0, 100.0, 200.0), 500, 3),
    full=Sizes((4.0, 16.0, 64.0, 256.0), 1024, (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0), 5000, 10),
    peer=True,
)
