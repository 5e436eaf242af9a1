"""How far a cloud at finite β strays from its zero-temperature twin, against a bound without fitted constants.

Follow the same starting tokens under both flows, x at inverse temperature β and y at zero temperature. The root mean
square D(t) of their angles obeys D' ≤ L·D + ε(t), where ε is the root mean square of |𝒱_β[μ_t](x) − 𝒱_∞(x)| measured
along the run and L the one-sided Lipschitz constant of 𝒱_∞. By Grönwall's inequality, derived here,

    W₂(μ_t^β, μ_t^∞) ≤ D(t) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds      (geodesic, so chordal as well).

The experiment compares D, the larger of the two left sides, with the right side (the certificate) at every saved time
of every run. The two sides agree to first order at t = 0, so an ε that is too small shows at once. An L that is too
small shows late, on tokens that start where the field spreads them most. No limit law is needed, so rotating heads are
admitted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.cloud import Cloud, graded, mixture, uniform, von_mises_fisher
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.theory.lipschitz import symmetric_derivative

ABOVE = 1.001
"""Largest D/certificate: a thousandth for ε between two steps, of which only the two ends are measured."""
ROUNDING = 1e-5
"""Added to the certificate: the error of time stepping, 1e-7 a step over some hundred steps."""
SAYS_SOMETHING = 0.5
"""Every certificate must stay below π, the diameter of the sphere, up to this time; otherwise it is useless."""
LOOSE = 10.0
"""Largest median over the runs of certificate/D at t = 0.5: the growth e^{Lt} may cost at most this factor."""
SHARP = 0.9
"""Least median over the runs of D/certificate at the first saved time, where both sides agree to first order: a
distance that is too small by a factor would pass as a bound, but not here."""
LAWS = ("uniform", "von Mises–Fisher", "mixture", "where tokens part", "graded")
STEP = 1e-7
"""Tolerance of a time step."""


class TwinRun(NamedTuple):
    """One run: L, and D and the certificate at its times after the start."""

    name: str
    lipschitz: float
    times: np.ndarray
    apart: np.ndarray
    certificate: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """D/certificate."""
        return np.asarray(self.apart / (self.certificate + ROUNDING))

    @property
    def vacuous_after(self) -> float:
        """The first saved time at which the certificate is π or more; inf if there is none."""
        return float(min(self.times[~(self.certificate < math.pi)], default=math.inf))

    def loose(self, t: float) -> float:
        """certificate/D at the saved time next to t."""
        i = int(np.abs(self.times - t).argmin())
        return float(self.certificate[i] / max(self.apart[i], 1e-300))


def own_heads(dims: tuple[int, ...], seeds: int) -> dict[str, Head]:
    """For each dimension: M symmetric, B and V symmetric that do not commute, and nothing symmetric."""
    found = {}
    for d in dims:
        b, v = torch.linspace(1.5, 0.6, d, dtype=torch.float64), torch.linspace(1.2, 0.5, d, dtype=torch.float64)
        found[f"d = {d}, M symmetric"] = Head.from_interaction(torch.diag(b), torch.diag(v))
        for seed in range(seeds):
            symmetric = Head.from_spectra(b.tolist(), v.tolist(), seed=seed)
            found[f"d = {d}, B and V symmetric, seed {seed}"] = symmetric
            noise = torch.randn(2, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            B, V = symmetric.B + 0.4 * noise[0] / math.sqrt(d), symmetric.V + 0.4 * noise[1] / math.sqrt(d)
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
        # Around a point at which the zero-temperature field spreads tokens nearly as much as anywhere.
        x = uniform(2000, d, seed=1).points
        most = int(symmetric_derivative(head.B.double(), head.M.double(), x).argmax())
        return von_mises_fisher(tokens, x[most], 200.0)
    theory = head.theory()
    return None if theory.no_limit or theory.dim == d else graded(tokens, head)


def compare(name: str, head: Head, cloud: Cloud, beta: float, times: list[float]) -> TwinRun:
    """Run one cloud and compute both sides of the bound."""
    run = simulate(head, cloud, beta, times[-1], tol=STEP, t_eval=times, progress=False)
    apart, bound = run.laplace_term(cost="geodesic").values, run.certificate()
    return TwinRun(name, bound.attrs["lipschitz"], run.times.numpy()[1:], apart[1:], bound.values[1:])


def _obstacle(head: Head) -> str | None:
    if head.theory().singular:
        return "B is singular, so the zero-temperature field has no Lipschitz constant and the certificate is infinite"
    return None


@claim("stability", "Stability", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    tokens: int = size(120, full=1000),
    dims: tuple[int, ...] = size((2, 3, 8), full=(2, 3, 8, 16)),
    seeds: int = size(1, full=4),
    betas: tuple[float, ...] = size((10.0, 300.0), full=(3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
    laws: tuple[str, ...] = size(("uniform", "where tokens part", "graded"), full=LAWS),
    until: float = size(3.0, full=6.0),
    frames: int = size(15, full=61),
) -> Finding:
    """W₂(μ_t^β, μ_t^∞) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds with the measured field error ε and the one-sided Lipschitz constant L
    of the zero-temperature field, on every run (derived here from the stability estimate of the paper).

    Compare D with the certificate, for every head, law and β.

    tokens, laws : tokens of a cloud, and the starting laws
    dims, seeds : dimensions of the claim's own heads, and random heads in each
    until, frames : the last time, and the number of saved times
    """
    heads = own_heads(dims, seeds) if head is None else {f"the given head, d = {head.dim}": head}
    found = Finding(f"t ≤ {until:g}, β = {', '.join(f'{b:g}' for b in betas)}, N = {tokens}")
    # Saved times are denser at the start, where the two sides nearly agree.
    times = (until * np.linspace(0, 1, frames) ** 2).tolist()
    runs: list[TwinRun] = []
    for name, law in told([(name, law) for name in heads for law in laws], tell):
        cloud = cloud_of(law, heads[name], tokens)
        if cloud is None:
            continue
        for beta in betas:
            run = compare(f"{name}, {law}, β = {beta:g}", heads[name], cloud, beta, times)
            runs.append(run)
            row = {
                "head": name,
                "law": law,
                "beta": beta,
                "L": run.lipschitz,
                "largest D/certificate": run.ratio.max(),
                "certificate/D at t = 0.5": run.loose(0.5),
                "vacuous from t": "not seen" if math.isinf(run.vacuous_after) else run.vacuous_after,
            }
            found.row("runs", row)
    ratio = np.array([run.ratio for run in runs])
    for name in heads:
        most = max(row["largest D/certificate"] for row in found.tables["runs"] if row["head"] == name)
        found.within(f"largest D/certificate, {name}", most, high=ABOVE)
    found.within("median of D/certificate at the first saved time", float(np.median(ratio[:, 0])), SHARP, ABOVE)
    soonest = min(run.vacuous_after for run in runs)
    found.within("shortest time until a certificate exceeds π", soonest, low=SAYS_SOMETHING)
    median = float(np.median([run.loose(0.5) for run in runs]))
    found.within("median of certificate/D at t = 0.5", median, high=LOOSE)
    curves = found.picture(
        "Distance to the zero-temperature cloud, and its certificate",
        "Lines: the measured distance, tokens followed one by one. Dashed: the certificate, from the field error along "
        "the run. Shown are the tightest run at the last time, the median one and the loosest.",
        Panel("time t", "geodesic distance", log_y=True),
    )
    order = sorted(runs, key=lambda run: run.loose(run.times[-1]))
    for run in (order[0], order[len(order) // 2], order[-1]):
        curves.add(f"distance: {run.name}", run.times, run.apart)
        curves.add(f"certificate: {run.name}", run.times, run.certificate, "dashed")
    tight = found.picture(
        "How tight the certificate is",
        "Distance over certificate: the band holds all runs, the line is their median. Above 1 the claim would fail; "
        "the certificate is sharp at the start and loses with the growth e^{Lt}.",
        Panel("time t", "distance/certificate"),
    )
    tight.add("all runs", times[1:], style="band", low=ratio.min(axis=0), high=ratio.max(axis=0))
    tight.add("median", times[1:], np.median(ratio, axis=0))
    lasting = "none becomes vacuous" if math.isinf(soonest) else f"the first becomes vacuous at t = {soonest:.2g}"
    found.sentence = (
        f"on {len(runs)} runs the distance is at most {ratio.max():.4f} of its certificate; at t = 0.5 the certificate "
        f"is {median:.2g} times the distance in the median, and {lasting}"
    )
    return found
