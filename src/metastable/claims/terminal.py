"""The terminal phase: for finite β and large t the tokens end where the spectrum of V says.

A Dirac stays one and obeys dx/dt = P_x V x whatever β is, so x(t) = e^{tV}x₀/|e^{tV}x₀|. A cluster narrower than
β^{−1/2} that sees nothing else does the same, and the differences inside it change at the rate −⟨x̄, Vx̄⟩. Hence, with
λ₁, … the eigenvalues of V by decreasing real part and Π the spectral projector of the first:

- λ₁ > 0 simple: clusters end at ±v, at most two of them, at the rate λ₁ − Re λ₂;
- λ₁ > 0 of higher multiplicity: at Πx/|Πx| in the eigenspace, x being where the cluster began, at the same rate;
- a complex pair a ± iω, a > 0: with l its left eigenvector, arg⟨l, x̄⟩ grows by ω a time unit for ever;
- all real parts negative: differences grow and the cluster comes apart, until it is as wide as β^{−1/2} at least, where
  its tokens begin to tell each other apart.

The paper states a terminal phase dominated by the spectrum of V; the four cases and their rates are derived here. One
condition is not in the statement: a cluster has to see itself rather than the one opposite, ⟨x̄, Bx̄⟩ > 0 at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.claims.late_clusters import NARROW, elapsed, late_clusters
from metastable.claims.settling import END, RATE, Part, settling
from metastable.cloud import Cloud, uniform
from metastable.flow.exact import value_flow
from metastable.flow.merging import groups
from metastable.flow.steppers import unit
from metastable.head import Head
from metastable.run.simulation import simulate

DIRAC = 1e-6
"""Largest distance of a single token from e^{tV}x₀; the simulation is asked for 1e-9 a step."""
SINGLE = 0.1
"""A cloud of which no narrow cluster holds more than this share has no Dirac left in it."""
WIDE = 0.3
"""Least width of such a cloud at the end, in (β‖B‖)^{−1/2}: of order 1, since below it would still grow."""
TOL = 1e-9


@dataclass(frozen=True)
class Sizes:
    tokens: int
    beta: float
    until: float
    frames: int
    longest: float


def own_heads() -> dict[str, Head]:
    """One head for each case, d = 3. The bases X are oblique, so that eigenvectors of V and of Vᵀ differ."""
    generator = torch.Generator().manual_seed(3)
    R = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    X = torch.eye(3, dtype=torch.float64) + 0.3 * torch.randn(3, 3, generator=generator, dtype=torch.float64)

    def diagonal(*values: float) -> Tensor:
        return torch.diag(torch.tensor(values, dtype=torch.float64))

    def oblique(*values: float) -> Tensor:
        return X @ diagonal(*values) @ torch.linalg.inv(X)

    turning = torch.tensor([[1.0, -0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.3]], dtype=torch.float64)
    B, V = R @ diagonal(1.5, 0.9, 0.6) @ R.T, R @ diagonal(1.0, 0.5, 0.2) @ R.T
    return {
        "simple, V shares E with M": Head.from_interaction(B, V),
        "simple, V and M apart": Head.from_interaction(B, oblique(1.0, 0.5, 0.2)),
        "double": Head.from_interaction(B, oblique(1.0, 1.0, 0.4)),
        "complex pair": Head.from_interaction(diagonal(2.0, 0.4, 0.5), turning),
        "negative definite": Head.from_interaction(B, -R.T @ diagonal(1.2, 0.9, 0.6) @ R),
    }


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Every case from a uniform start, or the given head; then single tokens and an antipodal pair."""
    heads = own_heads() if head is None else {"the given head": head.to(torch.float64)}
    parts = []
    for i, (name, one) in enumerate(heads.items()):
        parts.append(_part(name, one, sizes, given=head is not None))
        tell((i + 1) / (len(heads) + 1))
    checks = [_dirac(name, one, sizes) for name, one in heads.items() if one.offset is None]
    checks += [found for part in parts for found in part.checks]
    if head is None:
        for name in ("simple, V and M apart", "double"):
            checks += _antipodal(name, heads[name], sizes) if name in heads else []
    tell(1.0)
    columns = (
        "case",
        "top eigenvalue of V",
        "predicted rate or frequency",
        "measured",
        "clusters",
        "narrow from t",
        "distance of the end from E of M",
    )
    table = Table("where tokens end", columns, tuple(part.row for part in parts))
    passed = sum(found.outcome == "PASS" for found in checks)
    off = [abs(float(row[3]) / float(row[2]) - 1) for row in table.rows if row[3] not in ("–", "nan")]
    rates = f", rates and frequencies to {100 * max(off):.2g} %" if off else ""
    sentence = f"tokens end as V's spectrum says in {passed} of {len(checks)} checks{rates}"
    horizon = f"N = {sizes.tokens}, β‖B‖ = {sizes.beta:g}, t ≤ {sizes.until:g}, antipodal pair to t = {sizes.longest:g}"
    return Finding(sentence, horizon, tuple(checks), (_picture(parts),), (table,), _explanation(checks))


def _explanation(checks: list[Check]) -> str:
    odd = [f"{found.name}: {found.note}" for found in checks if found.outcome != "PASS" and found.note]
    return "; ".join(odd)


def _picture(parts: list[Part]) -> Picture:
    return Picture(
        "Where clusters go when only V moves them",
        "Lines: measured from the time that all clusters are narrow. Dots: e^{tV} alone, or its rate. First the "
        "distance to the eigenspace of V's top eigenvalue, then the turns made by clusters under a complex pair, "
        "last the width of a cluster under a negative definite V.",
        (
            Panel("time t", "distance to V's top eigenspace", log_y=True),
            Panel("time t", "turns"),
            Panel("time t", "width of the cluster", log_y=True),
        ),
        tuple(series for part in parts for series in part.series),
    )


def _part(name: str, head: Head, sizes: Sizes, given: bool) -> Part:
    top = head.theory().terminal
    label = f"{top.leading:.4g}" + (f" ± {top.frequency:.4g}i" if top.rotates else f", dim {top.dim}")
    obstacle = _obstacle(head)
    if obstacle:
        return Part([undecided(name, obstacle)], (name, label, "–", "–", "–", "–", "–"), [])
    if top.leading < 0:
        return _coming_apart(name, label, head, sizes)
    until = _horizon(head, sizes) if given else sizes.until
    beta = sizes.beta / float(torch.linalg.matrix_norm(head.B, 2))
    run = simulate(
        head, uniform(sizes.tokens, head.dim, seed=1), beta, until, tol=TOL, t_eval=sizes.frames, progress=False
    )
    found = late_clusters(run)
    if found.onset is None or len(found.late) < 10:
        why = f"tokens were not in narrow clusters for long enough up to t = {until:.4g}; they may be later"
        return Part([undecided(name, why)], (name, label, "–", "–", len(found.shares), "–", "–"), [])
    return settling(name, label, run, found)


def _obstacle(head: Head) -> str | None:
    """Why the statement does not apply to this head."""
    top = head.theory().terminal
    if head.offset is not None:
        return "the head's scores have an offset, which the theory does not know"
    if abs(top.leading) <= top.tolerance:
        return "V's top eigenvalue is 0: clusters neither narrow nor come apart"
    if not top.semisimple:
        return "V's top eigenvalue has a Jordan block: clusters come to it like 1/t, with no rate"
    if top.leading > 0 and math.isinf(top.gap) and not top.rotates:
        return "every direction is an eigenvector of V: clusters have nowhere to go"
    if top.leading < 0:
        return None
    look = float(torch.linalg.eigvalsh(top.basis.T @ (head.B + head.B.T) @ top.basis).min()) / 2
    if look <= 0:
        return f"⟨x, Bx⟩ falls to {look:.3g} in V's top eigenspace: clusters there see the opposite one, not themselves"
    return None


def _horizon(head: Head, sizes: Sizes) -> float:
    """Long enough for the slowest of V's rates, at most sizes.longest: the plateau before it is a matter of log N."""
    theory = head.theory()
    slow = min(theory.terminal.leading, theory.terminal.gap)
    leave = 2 * math.log(sizes.tokens) / theory.rate if theory.rate > 0 else 0.0
    return float(min(25 / slow + leave, sizes.longest))


def _coming_apart(name: str, label: str, head: Head, sizes: Sizes) -> Part:
    """Tokens that start within 1e-6 of each other: their width grows by ∫−⟨x̄, Vx̄⟩dt to order β^{−1/2}."""
    start = uniform(1, head.dim, seed=2).points + 1e-6 * uniform(sizes.tokens, head.dim, seed=3).points
    beta = sizes.beta / float(torch.linalg.matrix_norm(head.B, 2))
    slowest = -head.theory().terminal.leading
    run = simulate(head, Cloud(start), beta, 25 / slowest + 10, tol=TOL, t_eval=sizes.frames, progress=False)
    frames = run.frames.numpy()
    mean = unit(run.frames.mean(dim=1)).numpy()
    width = np.linalg.norm(frames - mean[:, None], axis=2).max(axis=1)
    last = int(np.argmax(width > 0.1 * sizes.beta**-0.5)) or len(width)
    if last < 6:
        why = "the cluster came apart between two saved times: too few of them to read a rate from"
        return Part([undecided(name, why)], (name, label, "–", "–", "–", "–", "–"), [])
    exponent = -elapsed(run.times.numpy(), np.einsum("ti,ij,tj->t", mean, head.V.numpy(), mean))[:last]
    times = run.times.numpy()[:last]
    fit = line(exponent, np.log(width[:last]))
    leader = groups(frames[-1], 2 * NARROW * sizes.beta**-0.5, len(start))
    assert leader is not None
    biggest = float(np.unique(leader, return_counts=True)[1].max()) / len(start)
    final = math.sqrt(float(np.square(frames[-1] - mean[-1]).sum(axis=1).mean()) * sizes.beta)
    speed, expected = (line(times[last // 2 :], y[last // 2 :]).slope for y in (np.log(width[:last]), exponent))
    checks = [
        overlapping(f"width against −∫⟨x̄, Vx̄⟩dt, slope, {name}", fit.interval, 1 - RATE, 1 + RATE),
        within(f"largest narrow cluster at t = {run.horizon:.4g}, share of the tokens, {name}", biggest, high=SINGLE),
        within(f"width at t = {run.horizon:.4g} in (β‖B‖)^(−1/2), {name}", final, low=WIDE),
    ]
    series = [
        Series(name, tuple(times), tuple(width[:last]), panel=2),
        Series("from −⟨x̄, Vx̄⟩", tuple(times), tuple(width[0] * np.exp(exponent)), style="dotted", panel=2),
    ]
    return Part(checks, (name, label, f"{expected:.4g}", f"{speed:.4g}", "none", "–", "–"), series)


def _dirac(name: str, head: Head, sizes: Sizes) -> Check:
    """One token against e^{tV}x₀."""
    start = uniform(1, head.dim, seed=4)
    scale = float(torch.linalg.matrix_norm(head.V, 2)) or 1.0
    run = simulate(head, start, sizes.beta, 10 / scale, tol=TOL, t_eval=21, progress=False)
    off = (run.frames - value_flow(head, start.points, run.times)).norm(dim=2).max()
    return within(f"distance of a single token from e^(tV)x₀, {name}", float(off), high=DIRAC)


def _antipodal(name: str, head: Head, sizes: Sizes) -> list[Check]:
    """Clusters of 30 and 10 tokens at ±x₀, to a long horizon with merging: both go to ±Πx₀/|Πx₀| and both stay."""
    place, noise = uniform(1, head.dim, seed=5).points, uniform(40, head.dim, seed=6).points
    sign = torch.ones(40, 1, dtype=torch.float64)
    sign[30:] = -1
    beta = sizes.beta / float(torch.linalg.matrix_norm(head.B, 2))
    run = simulate(
        head, Cloud(sign * place + 1e-3 * noise), beta, sizes.longest, tol=1e-8, t_eval=11, merge=1e-4, progress=False
    )
    goal = head.theory().terminal.limit(place)
    assert run.merged is not None
    off = float((run.final.points - sign * goal).norm(dim=1).max())
    return [
        within(f"clusters left of an antipodal pair, {name}", float(run.merged[-1, 0]), 2, 2),
        within(f"distance of an antipodal pair from ±Πx₀/|Πx₀|, each on its side, {name}", off, high=END),
    ]


CLAIM = Claim(
    "terminal",
    "Terminal phase",
    "For finite β and large t tokens end where the spectrum of V says [paper]: clusters move by e^{tV}, so they come "
    "to the eigenspace of its top eigenvalue at the rate of its gap, circle at the frequency of a complex top pair, "
    "and come apart to a width of at least order β^(−1/2) where V is negative definite [derived here].",
    check,
    quick=Sizes(tokens=100, beta=40.0, until=50.0, frames=201, longest=400.0),
    full=Sizes(tokens=1000, beta=200.0, until=80.0, frames=281, longest=20000.0),
)
