"""The number of metastable clusters from the uniform law on the circle with B = V = I: of the order of √β.

**Growth of a perturbation**, derived here. On the circle the field at θ is ∫sin(θ' − θ)e^{β cos(θ' − θ)}dμ(θ') over
∫e^{β cos(θ' − θ)}dμ(θ'). For the density (1 + ε cos kθ)/2π the denominator is I₀(β) to leading order, and the numerator

    −ε sin kθ · (1/2π)∫ sin φ sin kφ e^{β cos φ}dφ = −ε sin kθ · (I_{k−1} − I_{k+1})/2 = −ε sin kθ · k I_k(β)/β,

so by the continuity equation the mode k grows like e^{γt} with

    γ_k = k² I_k(β)/(β I₀(β)).

For large β, I_k/I₀ ≈ e^{−k²/2β}: the fastest mode is k* ≈ √(2β), with γ ≈ 2/e. Bruno, Pasqualotto and Agazzi,
"Emergence of meta-stable clustering in mean-field transformer models" (arXiv 2410.23228), state that a perturbation of
the uniform law grows fastest at a wavenumber of order √β and leaves about as many clusters. Geshkovski, Koubbi,
Polyanskiy and Rigollet, "Dynamic metastability in the self-attention model" (arXiv 2410.06833), state that clusters
then rest for long. The share of the k* modes that survive as clusters is measured here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ive

from metastable.claims.experiment import Finding, Panel, Tell, claim, line, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud, equally_spaced, uniform
from metastable.head import Head
from metastable.run.simulation import simulate

GROWTH = 0.01
"""Largest relative error of a growth rate: the amplitude of 1e-4 causes a few times 1e-4, tokens and steps less."""
AMPLITUDE = 1e-4
"""ε of the perturbation."""
EXPONENT = 0.1
"""Largest error of the exponent ½ of β in the number of clusters: k* itself has this exponent only for large β."""
SURVIVING = (0.5, 1.2)
"""Range of clusters over k*: modes can only fuse, apart from chance, and more than half of them should survive."""
CLUSTERED = 20.0
"""Time of the count: noise of size N^{−1/2} grows to order 1 by log N/2γ ≈ 5. Clusters are then 4.4 β^{−1/2} apart,
which takes times of order e^{10} to close."""


def growth(k: np.ndarray | int, beta: float) -> np.ndarray:
    """γ_k = k² I_k(β)/(β I₀(β))."""
    return np.asarray(np.square(k) * ive(k, beta) / (beta * ive(0, beta)))


def fastest(beta: float) -> float:
    """The real k at which γ is largest."""
    k = np.linspace(0.0, 3 * math.sqrt(beta) + 5, 4001)
    return float(k[np.argmax(growth(k, beta))])


def _angles(points: torch.Tensor) -> np.ndarray:
    return np.asarray(torch.atan2(points[..., 1], points[..., 0]).numpy())


def measured_growth(k: int, beta: float, n: int) -> float:
    """γ_k of n equally spaced tokens moved to the density 1 + ε cos kθ: slope of the log of their k-th mode."""
    theta = _angles(equally_spaced(n).points)
    theta = theta - AMPLITUDE / k * np.sin(k * theta)
    cloud = Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    until = min(1.5 / float(growth(k, beta)), 4.0)
    run = simulate(identity(2), cloud, beta, until, tol=1e-11, t_eval=5, progress=False)
    mode = np.abs(np.exp(1j * k * _angles(run.frames)).mean(axis=1))
    return line(run.times.numpy(), np.log(mode)).slope


def count(points: torch.Tensor, beta: float) -> int:
    """Groups of three or more tokens, separated by gaps wider than β^{−1/2}."""
    theta = np.sort(_angles(points))
    gaps = np.diff(theta, append=theta[0] + 2 * math.pi)
    ends = np.flatnonzero(gaps > beta**-0.5)
    if len(ends) == 0:
        return 1
    sizes = np.diff(ends, append=ends[0] + len(theta))
    return int((sizes >= 3).sum())


def counted(beta: float, n: int, seed: int) -> int:
    """Clusters of n random tokens at t = CLUSTERED."""
    merge = 0.02 * beta**-0.5
    run = simulate(identity(2), uniform(n, 2, seed), beta, CLUSTERED, tol=1e-4, t_eval=2, merge=merge, progress=False)
    return count(run.final.points, beta)


@claim("clusters", "Number of metastable clusters", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    waves: tuple[float, ...] = size((4.0, 16.0, 64.0), full=(4.0, 16.0, 64.0, 256.0)),
    spaced: int = size(256, full=1024),
    betas: tuple[float, ...] = size(
        (12.5, 25.0, 50.0, 100.0, 200.0), full=(25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)
    ),
    tokens: int = size(500, full=5000),
    seeds: int = size(3, full=10),
) -> Finding:
    """On the circle with B = V = I a wave cos kθ on the uniform law grows at the rate k²I_k(β)/(βI₀(β)) [derived here],
    fastest at k* ≈ √(2β), and tokens form of the order of √β clusters (Bruno et al., arXiv 2410.23228; Geshkovski et
    al., arXiv 2410.06833).

    Compare growth rates with γ_k, then numbers of clusters with √β.

    waves, spaced : β of the growth rates, and their number of equally spaced tokens
    betas, tokens, seeds : β of the counts, their number of random tokens, and how often they are drawn
    """
    found = Finding(f"counts at t = {CLUSTERED:g}, N = {tokens}, β = {min(betas):g} … {max(betas):g}")
    picture = found.picture(
        "Modes that grow and clusters that stay",
        "Above: growth rates of small waves on the uniform law, measured (points) and exact (dots). Below: the number "
        "of clusters from random uniform tokens, beside the fastest mode.",
        Panel("wavenumber k", "growth rate γ, per time unit"),
        Panel("inverse temperature β", "clusters", log_x=True, log_y=True),
    )
    errors = []
    for i, beta in enumerate(told(waves, tell, end=0.3)):
        modes = sorted({1, *(max(1, round(share * fastest(beta))) for share in (0.5, 1.0, 1.5))})
        rates = [measured_growth(k, beta, spaced) for k in modes]
        for k, rate in zip(modes, rates, strict=True):
            exact = float(growth(k, beta))
            errors.append(abs(rate / exact - 1))
            found.near(f"growth rate of mode {k}, β = {beta:g}, over k²I_k/(βI₀)", rate / exact, GROWTH)
            found.row("growth rates", {"beta": beta, "mode k": k, "k² I_k/(β I_0)": exact, "measured": rate})
        if i < 3:
            grid = np.linspace(0.0, 1.2 * max(modes), 120)
            picture.add(f"exact, β = {beta:g}", grid, growth(grid, beta), "dotted")
            picture.add(f"β = {beta:g}", modes, rates, "points")
    counts = np.array([[counted(beta, tokens, seed) for seed in range(seeds)] for beta in told(betas, tell, 0.3)])
    every = np.repeat(betas, seeds)
    fit = line(np.log(every), np.log(counts.ravel().astype(float)))
    found.overlapping("exponent of β in the number of clusters", fit.interval, 0.5 - EXPONENT, 0.5 + EXPONENT)
    peaks = [fastest(beta) for beta in betas]
    shares = counts.mean(axis=1) / peaks
    for beta, mode, number, share in zip(betas, peaks, counts, shares, strict=True):
        found.within(f"clusters over k*, β = {beta:g}", share, *SURVIVING)
        spread = {"clusters, mean": number.mean(), "fewest": number.min(), "most": number.max()}
        found.row("clusters", {"beta": beta, "fastest mode": mode, **spread, "mean over fastest": share})
    picture.add("clusters", every, counts.ravel(), "points", panel=1)
    picture.add("fastest mode k*", betas, peaks, "dotted", panel=1)
    picture.add(f"fit, β^{fit.slope:.2f}", betas, np.exp(fit(np.log(betas))), "dashed", panel=1)
    found.sentence = (
        f"modes grow by k²I_k/(βI₀) to {max(errors):.1e}, and the number of clusters grows like "
        f"β^{fit.slope:.3f} ({fit.low:.3f} to {fit.high:.3f}), {min(shares):.2f} to {max(shares):.2f} of the fastest k"
    )
    return found
