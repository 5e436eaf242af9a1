"""How far a warm cloud strays from its zero-temperature twin, against a bound in which nothing is fitted.

Follow the same starting tokens under both flows, x at inverse temperature β and y at zero temperature. The root mean
square D(t) of their angles obeys D' ≤ L·D + ε(t), where ε is the root mean square of |𝒱_β[μ_t](x) − 𝒱_∞(x)| measured
along the run and L the one-sided Lipschitz constant of 𝒱_∞. By Grönwall's inequality, derived here,

    W₂(μ_t^β, μ_t^∞) ≤ D(t) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds      (geodesic, so chordal as well).

The experiment compares D, the larger of the two left sides, with the right side at every saved time of every run. The
two sides agree to first order at t = 0, so an ε that is too small shows at once; an L that is too small shows late, on
tokens that start where the field spreads them most. No limit law is needed: rotating heads are admitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, undecided, within
from metastable.cloud import Cloud, graded, mixture, uniform, von_mises_fisher
from metastable.head import Head
from metastable.run.run import Run
from metastable.run.simulation import simulate
from metastable.theory import Theory
from metastable.theory.lipschitz import symmetric_derivative

ABOVE = 1.001
"""Largest D/certificate: a thousandth for ε between two steps, of which only the two ends are measured."""
ROUNDING = 1e-5
"""Added to the certificate: time stepping, asked for 1e-7 a step, over some hundred steps."""
SAYS_SOMETHING = 0.5
"""Every certificate must stay below π, the diameter of the sphere, up to this time, or it is no bound worth having."""
LOOSE = 10.0
"""Largest median over the runs of certificate/D at t = 0.5: the growth e^{Lt} may cost that much and no more."""
SHARP = 0.9
"""Least median over the runs of D/certificate at the first saved time, where both sides agree to first order: a
distance that is too small by a factor would pass as a bound, but not here."""
STEP = 1e-7


@dataclass(frozen=True)
class Sizes:
    tokens: int
    dims: tuple[int, ...]
    seeds: int
    betas: tuple[float, ...]
    laws: tuple[str, ...]
    until: float
    frames: int


@dataclass(frozen=True)
class Followed:
    """One run: D and the certificate at its times."""

    name: str
    law: str
    beta: float
    lipschitz: float
    times: np.ndarray
    apart: np.ndarray
    certificate: np.ndarray

    @property
    def worst(self) -> float:
        """The largest D/certificate."""
        return float((self.apart[1:] / (self.certificate[1:] + ROUNDING)).max())

    @property
    def vacuous_after(self) -> float:
        """The first saved time at which the certificate is π or more; inf if there is none."""
        above = np.flatnonzero(~(self.certificate < math.pi))
        return float(self.times[above[0]]) if len(above) else math.inf

    def loose(self, t: float) -> float:
        """certificate/D at the saved time next to t."""
        i = max(1, int(np.abs(self.times - t).argmin()))
        return float(self.certificate[i] / max(self.apart[i], 1e-300))


def own_heads(dims: tuple[int, ...], seeds: int) -> dict[str, Head]:
    """For each dimension: M symmetric, B and V symmetric that do not commute, and nothing symmetric."""
    found = {}
    for d in dims:
        b, v = torch.linspace(1.5, 0.6, d, dtype=torch.float64), torch.linspace(1.2, 0.5, d, dtype=torch.float64)
        found[f"d = {d}, M symmetric"] = Head.from_interaction(torch.diag(b), torch.diag(v))
        for seed in range(seeds):
            sort = Head.from_spectra(b.tolist(), v.tolist(), seed=seed)
            found[f"d = {d}, B and V symmetric, seed {seed}"] = sort
            noise = torch.randn(2, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            B, V = sort.B + 0.4 * noise[0] / math.sqrt(d), sort.V + 0.4 * noise[1] / math.sqrt(d)
            found[f"d = {d}, nothing symmetric, seed {seed}"] = Head.from_interaction(B, V)
    return found


def cloud_of(law: str, head: Head, tokens: int) -> Cloud | None:
    """The starting cloud; None where the head has no such law (graded needs directions that tokens leave)."""
    d, axis = head.dim, torch.eye(head.dim, dtype=torch.float64)
    if law == "uniform":
        return uniform(tokens, d)
    if law == "von Mises–Fisher":
        return von_mises_fisher(tokens, axis[0], 3.0)
    if law == "mixture":
        return mixture(tokens, torch.stack([axis[0], -axis[1]]), [4.0, 8.0])
    if law == "where tokens part":
        return von_mises_fisher(tokens, _spreading(head), 200.0)
    th = head.theory()
    return None if th.no_limit or th.dim == d else graded(tokens, head)


def _spreading(head: Head) -> torch.Tensor:
    """A point at which the zero-temperature field is nearly as spreading as anywhere."""
    x = uniform(2000, head.dim, seed=1).points
    return x[int(symmetric_derivative(head.B.double(), head.M.double(), x).argmax())]


def follow(name: str, theory: Theory, law: str, cloud: Cloud, beta: float, sizes: Sizes) -> Followed:
    # More of the first times, where the two sides nearly agree.
    times = (sizes.until * np.linspace(0, 1, sizes.frames) ** 2).tolist()
    run: Run = simulate(theory.head, cloud, beta, sizes.until, tol=STEP, t_eval=times, progress=False)
    # A run keeps its theory; sharing it finds L once a head instead of once a run.
    vars(run)["theory"] = theory
    apart, bound = run.laplace_term(cost="geodesic").values, run.certificate()
    return Followed(name, law, beta, bound.attrs["lipschitz"], run.times.numpy(), apart, bound.values)


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """D against the certificate, for every head, law and β."""
    heads = own_heads(sizes.dims, sizes.seeds) if head is None else {f"the given head, d = {head.dim}": head}
    horizon = f"t ≤ {sizes.until:g}, β = {', '.join(f'{b:g}' for b in sizes.betas)}, N = {sizes.tokens}"
    reason = None if head is None else refusal(head)
    if reason:
        return Finding(f"no certificate: {reason}", horizon, (undecided("certificate", reason),))
    runs, done, total = [], 0, len(heads) * len(sizes.laws) * len(sizes.betas)
    for name, one in heads.items():
        one = one.to(torch.float64)
        theory = one.theory()
        for law in sizes.laws:
            cloud = cloud_of(law, one, sizes.tokens)
            for beta in sizes.betas:
                if cloud is not None:
                    runs.append(follow(name, theory, law, cloud, beta, sizes))
                done += 1
                tell(done / total)
    return report(runs, horizon)


def refusal(head: Head) -> str | None:
    """Why this head has no certificate."""
    if head.offset is not None:
        return "this head's scores have an offset, and the zero-temperature flow of the theory has none"
    if head.theory().singular:
        return "B is singular, so the zero-temperature field has no Lipschitz constant and the certificate is infinite"
    return None


def report(runs: list[Followed], horizon: str) -> Finding:
    worst = max(run.worst for run in runs)
    soonest = min(run.vacuous_after for run in runs)
    median = float(np.median([run.loose(0.5) for run in runs]))
    checks: list[Check] = []
    for name in dict.fromkeys(run.name for run in runs):
        most = max(run.worst for run in runs if run.name == name)
        checks.append(within(f"largest D/certificate, {name}", most, high=ABOVE))
    first = float(np.median([run.apart[1] / (run.certificate[1] + ROUNDING) for run in runs]))
    checks.append(within("median of D/certificate at the first saved time", first, SHARP, ABOVE))
    checks.append(within("shortest time until a certificate exceeds π", soonest, low=SAYS_SOMETHING))
    checks.append(within("median of certificate/D at t = 0.5", median, high=LOOSE))
    lasting = "none becomes vacuous" if math.isinf(soonest) else f"the first becomes vacuous at t = {soonest:.2g}"
    sentence = (
        f"on {len(runs)} runs the distance is at most {worst:.4f} of its certificate; at t = 0.5 the certificate is "
        f"{median:.2g} times the distance in the median, and {lasting}"
    )
    failing = sorted({run.name for run in runs if run.worst > ABOVE})
    why = f"the distance rises above its certificate for: {'; '.join(failing)}" if failing else ""
    return Finding(sentence, horizon, tuple(checks), pictures(runs), (table(runs),), why)


def pictures(runs: list[Followed]) -> tuple[Picture, ...]:
    """Distances and certificates of the run closest to its certificate, of the loosest and of one between."""
    order = sorted(runs, key=lambda run: run.loose(run.times[-1]))
    series = []
    for run in (order[0], order[len(order) // 2], order[-1]):
        name, t = f"{run.name}, {run.law}, β = {run.beta:g}", tuple(run.times[1:])
        series.append(Series(f"distance: {name}", t, tuple(run.apart[1:])))
        series.append(Series(f"certificate: {name}", t, tuple(run.certificate[1:]), style="dashed"))
    curves = Picture(
        "Distance to the zero-temperature cloud, and its certificate",
        "Lines: the measured distance, tokens followed one by one. Dashed: the certificate, from the field error along "
        "the run. Shown are the tightest run at the last time, the median one and the loosest.",
        (Panel("time t", "geodesic distance", log_y=True),),
        tuple(series),
    )
    when = tuple(runs[0].times[1:])
    ratio = np.array([run.apart[1:] / (run.certificate[1:] + ROUNDING) for run in runs])
    middle, low, high = np.median(ratio, axis=0), ratio.min(axis=0), ratio.max(axis=0)
    tight = Picture(
        "How tight the certificate is",
        "Distance over certificate: the band holds all runs, the line is their median. Above 1 the claim would fail; "
        "the certificate is sharp at the start and loses with the growth e^{Lt}.",
        (Panel("time t", "distance/certificate"),),
        (
            Series("all runs", when, style="band", low=tuple(low), high=tuple(high)),
            Series("median", when, tuple(middle)),
        ),
    )
    return curves, tight


def table(runs: list[Followed]) -> Table:
    columns = ("head", "law", "beta", "L", "largest D/certificate", "certificate/D at t = 0.5", "vacuous from t")
    rows = []
    for run in runs:
        vacuous = "not seen" if math.isinf(run.vacuous_after) else run.vacuous_after
        rows.append((run.name, run.law, run.beta, run.lipschitz, run.worst, run.loose(0.5), vacuous))
    return Table("runs", columns, tuple(rows))


CLAIM = Claim(
    "stability",
    "Stability",
    "W₂(μ_t^β, μ_t^∞) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds with the measured field error ε and the one-sided Lipschitz constant L "
    "of the zero-temperature field, on every run (derived here from the stability estimate of the paper).",
    check,
    quick=Sizes(120, (2, 3, 8), 1, (10.0, 300.0), ("uniform", "where tokens part", "graded"), 3.0, 15),
    full=Sizes(
        1000,
        (2, 3, 8, 16),
        4,
        (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
        ("uniform", "von Mises–Fisher", "mixture", "where tokens part", "graded"),
        6.0,
        61,
    ),
)
