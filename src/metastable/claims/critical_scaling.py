"""Critical scaling of attention: with β = γ log N, attention dilutes for small γ and freezes for large γ.

Let N tokens have the common cosine ρ, with B = V = I. The score of a token on itself is β and on every other token βρ,
so its weight a on itself satisfies

    log(a/(1 − a)) = β(1 − ρ) − log(N − 1) = γ(1 − ρ) log N − log(N − 1).

a goes to 0 for γ < γ_c = 1/(1 − ρ), to 1 for γ > γ_c, and it is about ½ at γ_c (Chen, Lin, Polyanskiy and Rigollet,
"Critical attention scaling in long-context transformers", arXiv 2510.05554). The outputs of attention become parallel
below γ_c and keep their cosine ρ above.

**One attention step.** Exactly equiangular tokens need d ≥ N. For large N we take x_i = √ρ e + √(1 − ρ) g_i with g_i
uniform on the unit sphere orthogonal to e, of dimension d − 1. Other tokens then have the cosines ρ + (1 − ρ)s with
s = ⟨g_i, g_j⟩. With κ = β(1 − ρ) and ₀F₁, the hypergeometric function,

    E e^{κs} = ₀F₁(;(d − 1)/2; κ²/4),    A(κ) = E s e^{κs}/E e^{κs} = (log E e^{κs})',

    log(a/(1 − a)) = κ − log(N − 1) − log E e^{κs},    ⟨m_i, x_i⟩ = a + (1 − a)(ρ + (1 − ρ)A(κ)),

up to the sampling noise of N tokens. The last equation gives a from the output m_i of the engine. The term
log E e^{κs}, about κ²/2d, is known and is added to the measured log-odds. Their slope in log N is then γ(1 − ρ) − 1.
The formula holds as long as many of the other tokens contribute to the sum of a query, κ < √(2d log N); beyond, a few
tokens dominate it. For d = 256, γ ≤ 1.4 γ_c and N = 1000 … 10⁶, κ is below a quarter of this limit.

A measured a is used only if the error of its log-odds is at most RESOLVED. This error is the standard error over
queries plus the bound for rounding, divided by a(1 − a). A slope with fewer than three such points is undecided.

**The flow.** Exactly equiangular tokens with d = N obey a scalar equation (see `equiangular`). Their cosine goes from ρ
to σ = (1 + ρ)/2 in the time

    T = ∫ (e^{β(1 − r)} + N − 1)/(2(1 − r)((N − 1)r + 1)) dr    over r from ρ to σ.

The part with N − 1, without the weight of tokens on themselves, is

    T₀ = (N − 1)/(2N) · log( ((N − 1)σ + 1)(1 − ρ)/((1 − σ)((N − 1)ρ + 1)) )  →  ½ log(1 + 1/ρ).

The rest vanishes for large N below γ_c and grows above, like N^{γ(1−ρ)−1}/log N:

    T − T₀ ≈ N^{γ(1−ρ)}/(2(1 − ρ)((N − 1)ρ + 1)β),

with relative corrections of order 1/β, of which the first vanishes at ρ = ½.

The scale log N belongs to tokens that are all equally far from each other. For tokens that are independent and uniform
on a sphere of fixed dimension, the nearest token comes closer as N grows, and the critical scale of β is N^{2/(d−1)}
(arXiv 2605.08505).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import hyp0f1

from metastable.arrays import seeded
from metastable.attention import attend
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, first_below, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud, sample_indices
from metastable.head import Head
from metastable.run.simulation import simulate

SHARES = (0.6, 0.8, 1.25, 1.4)
"""γ over γ_c. Farther from 1, float32 does not resolve a or 1 − a for 10⁶ tokens."""
START = 0.5
"""ρ at the start of the flow, where the first correction to the growth of T vanishes."""
SLOPE = 0.02
"""Largest error of a slope in log N, and of the measured γ_c over γ_c; a slope is γ/γ_c − 1."""
LOG_ODDS = 0.05
"""Largest error of the log-odds of a; sampling noise is below 0.01."""
RESOLVED = 0.05
"""Largest error of log-odds that count as measured."""
ROUNDING = 2**-24 / 512
"""Bound for the float32 error of ⟨m, x⟩, for each token: the kernel adds up blocks of 512 tokens one by one."""
COSINE = 0.01
"""Largest error of the mean cosine of outputs: the noise of N tokens adds about 1/N to their squared length."""
PARALLEL = 0.9
"""Least mean cosine of outputs below γ_c."""
KEPT = 0.05
"""Largest change of the mean cosine above γ_c, where 1 − a is up to 0.1 at the largest N of the quick size."""
TIME = 1e-3
"""Largest relative error of a time T."""
GROWTH = 0.06
"""Largest error of the exponent of N in β((N − 1)ρ + 1)(T − T₀): the corrections add 0.02 to 0.05."""


def tokens(n: int, rho: float, d: int, seed: int) -> Cloud:
    """n float32 tokens √ρ e + √(1 − ρ) g with e = (1, 0, …, 0) and g uniform on the unit sphere orthogonal to e."""
    points = torch.randn(n, d, generator=seeded(seed), dtype=torch.float32)
    points[:, 0] = 0.0
    points *= math.sqrt(1 - rho) / torch.linalg.vector_norm(points, dim=1, keepdim=True)
    points[:, 0] = math.sqrt(rho)
    # Not Cloud(points), which would need three more arrays of this size.
    return Cloud.exactly(points, torch.full((n,), -math.log(n), dtype=torch.float32), {"law": "array"})


def others(kappa: float, d: int) -> tuple[float, float]:
    """log E e^{κs} and A(κ) for s = ⟨g, g'⟩ of two random unit vectors in d − 1 dimensions."""
    first, second = (float(hyp0f1((d - 1) / 2 + k, kappa**2 / 4)) for k in (0, 1))
    return math.log(first), kappa * second / ((d - 1) * first)


def exact_weight(n: int, d: int, kappa: float) -> float:
    """a from log(a/(1 − a)) = κ − log(N − 1) − log E e^{κs}."""
    return 1 / (1 + (n - 1) * math.exp(others(kappa, d)[0] - kappa))


def exact_cosine(n: int, d: int, kappa: float, rho: float) -> float:
    """The mean cosine of the outputs √ρ e + √(1 − ρ) b g_i, with b = a + (1 − a)A(κ)."""
    a = exact_weight(n, d, kappa)
    b = a + (1 - a) * others(kappa, d)[1]
    return rho / (rho + (1 - rho) * b**2)


def log_odds(a: float) -> float:
    return math.log(a / (1 - a))


class AttentionStep(NamedTuple):
    """One attention step.

    n : the number of tokens
    kappa : β(1 − ρ)
    weight : the measured a, a mean over queries
    error : the error of its log-odds; inf if the measured a is not between 0 and 1
    cosine : mean cosine between the outputs of two different tokens
    """

    n: int
    kappa: float
    weight: float
    error: float
    cosine: float

    @property
    def resolved(self) -> bool:
        return self.error <= RESOLVED


def measured(cloud: Cloud, rho: float, queries: int) -> list[AttentionStep]:
    """A step for each γ of SHARES, with some of the tokens as queries."""
    n, d = len(cloud), cloud.dim
    x = cloud.points[sample_indices(n, queries, seed=0)]
    kappas = [share * math.log(n) for share in SHARES]
    means = attend(cloud, torch.cat([kappa / (1 - rho) * x for kappa in kappas]), engine="flash")
    parts = means.double().split(len(x))
    return [_step(n, d, kappa, rho, x.double(), m) for kappa, m in zip(kappas, parts, strict=True)]


def _step(n: int, d: int, kappa: float, rho: float, x: torch.Tensor, m: torch.Tensor) -> AttentionStep:
    away = rho + (1 - rho) * others(kappa, d)[1]
    weights = ((m * x).sum(dim=1) / x.square().sum(dim=1) - away) / (1 - away)
    weight, error = float(weights.mean()), math.inf
    if 0 < weight < 1:
        error = (float(weights.std()) / math.sqrt(len(x)) + ROUNDING * n) / (weight * (1 - weight))
    return AttentionStep(n, kappa, weight, error, mean_cosine(m))


def mean_cosine(vectors: torch.Tensor) -> float:
    """The mean cosine between two different rows of (n, d)."""
    n = len(vectors)
    units = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return float((units.sum(dim=0).square().sum() - n) / (n * (n - 1)))


def equal_cosines(n: int, rho: float) -> Cloud:
    """n tokens in n dimensions with all cosines ρ: √(1 − ρ) e_i + c(1, …, 1)."""
    c = (math.sqrt(1 - rho + n * rho) - math.sqrt(1 - rho)) / n
    return Cloud(math.sqrt(1 - rho) * torch.eye(n, dtype=torch.float64) + c)


def exact_time(n: int, beta: float) -> float:
    """T from the cosine START to (1 + START)/2, by quadrature."""

    def wait(r: float) -> float:
        return (math.exp(beta * (1 - r)) + n - 1) / (2 * (1 - r) * ((n - 1) * r + 1))

    return float(quad(wait, START, (1 + START) / 2, epsrel=1e-10)[0])


def diluted_time(n: int) -> float:
    """T₀: the part of T without the weight of tokens on themselves."""
    end = (1 + START) / 2
    ratio = ((n - 1) * end + 1) * (1 - START) / ((1 - end) * ((n - 1) * START + 1))
    return (n - 1) / (2 * n) * math.log(ratio)


def simulated_time(n: int, gamma: float, expected: float) -> float:
    """The time at which the mean cosine of a simulation passes (1 + START)/2; inf if it does not by 1.5 T."""
    times = expected * np.concatenate([np.linspace(0.0, 1.5, 7), np.linspace(0.99, 1.01, 5)])
    cloud, until = equal_cosines(n, START), float(times.max())
    run = simulate(identity(n), cloud, until=until, gamma=gamma, tol=1e-6, t_eval=times.tolist(), progress=False)
    cosines = np.array([mean_cosine(x) for x in run.frames])
    return first_below(run.times.numpy(), -cosines, -(1 + START) / 2)


@claim("critical-scaling", "Critical scaling of attention", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    counts: tuple[int, ...] = size(
        (1_000, 3_000, 10_000, 30_000, 100_000), full=(1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    ),
    cosines: tuple[float, ...] = (0.3, 0.6),
    d: int = 256,
    queries: int = size(128, full=512),
    flows: tuple[int, ...] = size((32, 40, 48, 56, 64), full=(32, 64, 128, 256, 512)),
) -> Finding:
    """For B = V = I, N tokens with the common cosine ρ and β = γ log N, the weight a of a token on itself satisfies
    log(a/(1 − a)) = γ(1 − ρ) log N − log(N − 1). Attention dilutes (a → 0, outputs become parallel) for
    γ < γ_c = 1/(1 − ρ) and freezes (a → 1, outputs keep the cosine ρ) for γ > γ_c (Chen et al., arXiv 2510.05554).

    Compare the growth of the log-odds of a in log N with γ(1 − ρ) − 1, the cosines of outputs at the largest N with
    their exact values, and the time in which equiangular tokens come together with its integral.

    counts, cosines, d, queries : N and ρ of the attention steps, their dimension, and how many tokens are queries
    flows : N of the simulations
    """
    shares = ", ".join(f"{share:g}" for share in SHARES)
    steps = f"one step: N = {counts[0]} … {counts[-1]}, d = {d}"
    found = Finding(f"γ = {shares} γ_c; {steps}; flow: N = d = {flows[0]} … {flows[-1]}")
    picture = found.picture(
        "Attention dilutes below the critical γ and freezes above it",
        "Above: the weight of a token on itself with β = γ log N. Lines: exact. Dots: measured on random tokens. The "
        "dots of both ρ coincide, because a depends on N and γ/γ_c only. Dotted: ½. Below: the time in which "
        "equiangular tokens come together. Lines: the integral. Dots: simulated. Dotted: its limit below γ_c.",
        Panel("tokens N", "weight a of a token on itself", log_x=True),
        Panel("tokens N", "time T", log_x=True, log_y=True),
    )
    grid = np.geomspace(counts[0], counts[-1], 60)
    for share in SHARES:
        exact = [exact_weight(n, d, share * math.log(n)) for n in grid]
        picture.add(f"exact, γ = {share:g} γ_c", grid, exact)
    picture.add("½, and limit of T", [grid[0], grid[-1]], [0.5, 0.5], "dotted")
    cases = [(rho, n) for rho in cosines for n in counts]
    seen = [measured(tokens(n, rho, d, seed), rho, queries) for seed, (rho, n) in enumerate(told(cases, tell, end=0.7))]
    criticals = []
    for i, rho in enumerate(cosines):
        curves = zip(*seen[i * len(counts) : (i + 1) * len(counts)], strict=True)
        slopes = {}
        for share, curve in zip(SHARES, curves, strict=True):
            slopes[share] = _check_weights(found, share, rho, d, curve)
            _check_outputs(found, share, rho, d, curve[-1])
            picture.add(f"measured, ρ = {rho:g}", counts, [step.weight for step in curve], "points")
        criticals.append(_check_critical(found, rho, slopes))
    worst = _check_flow(found, picture, flows, tell)
    shown = ", ".join(
        f"{value / (1 - rho):.3f} for ρ = {rho:g} (theory {1 / (1 - rho):.3f})"
        for value, rho in zip(criticals, cosines, strict=True)
        if math.isfinite(value)
    )
    critical = f"the measured critical γ is {shown}" if shown else "the critical γ could not be measured"
    found.sentence = f"{critical}; the times in which tokens come together agree with theory to {worst:.1e}"
    return found


def _check_weights(found: Finding, share: float, rho: float, d: int, curve: Sequence[AttentionStep]) -> float | None:
    """Check the log-odds of a against N at one γ; returns their slope in log N, None if it is undecided."""
    name = f"γ = {share:g} γ_c, ρ = {rho:g}"
    for step in curve:
        case = {"cosine ρ": rho, "γ over γ_c": share, "N": step.n, "beta": step.kappa / (1 - rho)}
        weights = {"exact weight": exact_weight(step.n, d, step.kappa), "measured": step.weight}
        seen = {"error of log-odds": step.error, "used": step.resolved, "cosine of outputs": step.cosine}
        found.row("weights", case | weights | seen)
    used = [step for step in curve if step.resolved]
    x = [math.log(step.n) for step in used]
    y = [log_odds(step.weight) + others(step.kappa, d)[0] for step in used]
    few = f"fewer than three weights have log-odds with an error of at most {RESOLVED:g}"
    fit = found.slope(f"slope of log-odds in log N, {name}", x, y, share - 1 - SLOPE, share - 1 + SLOPE, few)
    if fit is None:
        return None
    errors = [abs(log_odds(step.weight) - log_odds(exact_weight(step.n, d, step.kappa))) for step in used]
    found.within(f"largest error of log-odds, {name}", max(errors), high=LOG_ODDS)
    return fit.slope


def _check_critical(found: Finding, rho: float, slopes: dict[float, float | None]) -> float:
    """Check the γ at which the slope vanishes; returns this γ over γ_c, NaN if fewer than two slopes are known."""
    known = [(share, slope) for share, slope in slopes.items() if slope is not None]
    name = f"γ of slope 0 over γ_c, ρ = {rho:g}"
    if len(known) < 2:
        found.undecided(name, "fewer than two slopes are known")
        return math.nan
    x, y = np.array(known).T
    growth, offset = np.polyfit(x, y, 1)
    critical = float(-offset / growth)
    found.near(name, critical, SLOPE)
    return critical


def _check_outputs(found: Finding, share: float, rho: float, d: int, step: AttentionStep) -> None:
    """Check the mean cosine of outputs."""
    name = f"cosine of outputs, N = {step.n}, γ = {share:g} γ_c, ρ = {rho:g}"
    exact = exact_cosine(step.n, d, step.kappa, rho)
    found.within(f"{name}, minus exact", step.cosine - exact, -COSINE, COSINE)
    if share < 1:
        found.within(name, step.cosine, low=PARALLEL)
    else:
        found.within(name, step.cosine, rho - KEPT, rho + KEPT)


def _check_flow(found: Finding, picture: Picture, flows: Sequence[int], tell: Tell) -> float:
    """Check the times of the flow; returns their largest relative error."""
    limit = 0.5 * math.log(1 + 1 / START)
    picture.add("½, and limit of T", [flows[0], flows[-1]], [limit, limit], "dotted", panel=1)
    errors = []
    for share in told(SHARES, tell, 0.7):
        gamma = share / (1 - START)
        exact = [exact_time(n, gamma * math.log(n)) for n in flows]
        seen = [simulated_time(n, gamma, time) for n, time in zip(flows, exact, strict=True)]
        for n, wanted, time in zip(flows, exact, seen, strict=True):
            found.near(f"time T over its integral, N = {n}, γ = {share:g} γ_c", time / wanted, TIME)
            found.row("times", {"γ over γ_c": share, "N": n, "integral": wanted, "simulated": time})
            errors.append(abs(time / wanted - 1))
        if share < 1:
            found.within(f"T at the largest N over T at the smallest, γ = {share:g} γ_c", seen[-1] / seen[0], high=1.0)
        else:
            _check_growth(found, share, dict(zip(flows, seen, strict=True)))
        picture.add(f"exact, γ = {share:g} γ_c", flows, exact, panel=1)
        picture.add("simulated", flows, seen, "points", panel=1)
    return max(errors)


def _check_growth(found: Finding, share: float, times: dict[int, float]) -> None:
    """Check the exponent of N in β((N − 1)ρ + 1)(T − T₀), which is γ(1 − ρ) = γ/γ_c."""
    rest = {n: math.log(n) * ((n - 1) * START + 1) * (time - diluted_time(n)) for n, time in times.items()}
    grown = {n: value for n, value in rest.items() if 0 < value < math.inf}
    name = f"exponent of N in β((N − 1)ρ + 1)(T − T₀), γ = {share:g} γ_c"
    few = "fewer than three times T are finite and longer than T₀"
    x, y = np.log(list(grown)), np.log(list(grown.values()))
    found.slope(name, x, y, share - GROWTH, share + GROWTH, few)
