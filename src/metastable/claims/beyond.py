"""Heads beyond the assumptions of the limit law, each with what `theory()` says of it.

Complex dominant pair a ± iω: with w the left eigenvector, ⟨w, x⟩ ∝ e^{iωτ}, so tokens circle in a plane for ever, with
the mean frequency ω/(mean of |Bᵀx| over a turn).
Gap → 0: time enters as gτ only, so concentration takes a time ∝ 1/g; without a gap nothing moves.
Singular B with Re λ₁ > 0: the limit law survives, but at x₀ with Bᵀx₀ = 0 the field jumps: from x₀ ± εv it tends to
±P V Bᵀv/|Bᵀv|.
Singular B without a positive eigenvalue: B = diag(1, 0), V = −I draws tokens to the kernel with a speed that does not
vanish there, dφ/dt = −cos φ for the angle φ from the kernel. They arrive at t* = log(sec φ₀ + tan φ₀), where the
equation ends: φ(t) = gd(t* − t), gd u = 2 atan tanh(u/2).

All of this is derived here; the paper's theorem excludes these cases by assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from metastable.claims.finding import Check, Series, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.claims.limit import SHARE, followed
from metastable.claims.prescribed import clocked, too_long
from metastable.cloud import Cloud, graded, uniform
from metastable.flow.exact import zero_temperature_flow
from metastable.flow.fields import zero_temperature
from metastable.head import Head
from metastable.transport import to_limit

FREQUENCY = 1e-3
"""Relative, of the mean frequency over whole turns: frames are 1/64 of a turn apart and interpolated."""
PLANE = 1e-3
"""Largest median distance from the plane of the pair: the run waits until e^{−gτ} ≤ e^{−12}."""
GAP_SLOPE = 0.02
"""Of the slope −1 of log time against log gap: exact for the formula, the rest is interpolation between frames."""
NEAR = 0.1
"""Concentrated means W₂ ≤ 0.1."""
FIELD = 1e-3
"""Relative, of fields and positions that have a closed form, at the distance 10⁻⁶ from the kernel."""


@dataclass(frozen=True)
class Sizes:
    tokens: int
    particles: int
    turns: int
    gaps: tuple[float, ...]
    betas: tuple[float, ...]


@dataclass(frozen=True)
class Part:
    """What one boundary gave: checks, a line of the table and the curves of one panel."""

    what: str
    warned: str
    instead: str
    checks: tuple[Check, ...]
    series: tuple[Series, ...] = ()


def warns(head: Head, name: str, statuses: tuple[str, ...], where: str) -> Check:
    """That this verdict has one of these statuses: 1 if so."""
    found = head.theory().verdict[name]
    return within(f"{where}: verdict “{name}” says {' or '.join(statuses)}", float(found.status in statuses), low=1.0)


def rotation(head: Head, sizes: Sizes) -> Part:
    """Tokens of a head with a complex dominant pair, followed for some turns after they have reached its plane."""
    M, B = head.M.numpy(), head.B.numpy()
    values, right = np.linalg.eig(M)
    lead = int(np.argmax(values.real + 1e-9 * values.imag))
    frequency, dual = float(values[lead].imag), np.linalg.inv(right)[lead]
    phases = np.exp(2j * np.pi * (np.arange(2048) + 0.5) / 2048)
    orbit = np.real(right[:, lead, None] * phases)
    clock = np.linalg.norm(B.T @ orbit, axis=0) / np.linalg.norm(orbit, axis=0)
    predicted = frequency / float(clock.mean())
    rest = np.sort(values.real)[: len(values) - 2]
    settle = 12 / (values[lead].real - rest[-1]) if len(rest) else 0.0
    begin = settle * float(np.linalg.norm(B, 2))
    times = begin + np.linspace(0, 2 * np.pi * (sizes.turns + 1) / predicted, 64 * (sizes.turns + 1) + 1)
    if reason := too_long(head, float(times[-1])):
        return Part("complex dominant pair", "λ₁ real", reason, (undecided("rotation", reason),))
    path = zero_temperature_flow(head, uniform(sizes.tokens, head.dim, 1), torch.from_numpy(times)).numpy()
    angle = np.unwrap(np.angle(path @ dual), axis=0)
    angle -= angle[0]
    ends = [float(np.interp(2 * np.pi * sizes.turns, a, times)) for a in angle.T]
    seen = float(np.median(2 * np.pi * sizes.turns / (np.array(ends) - begin)))
    plane = np.linalg.qr(np.stack([right[:, lead].real, right[:, lead].imag], axis=1))[0]
    off = float(np.median(np.linalg.norm(path[-1] - path[-1] @ plane @ plane.T, axis=1)))
    checks = (
        warns(head, "λ₁ real", ("fails",), "complex pair"),
        within("complex pair: frequency over ω/⟨|Bᵀx|⟩", seen / predicted, 1 - FREQUENCY, 1 + FREQUENCY),
        within("complex pair: median distance from the plane", off, high=PLANE),
    )
    inside = path[:, 0] @ plane[:, 0]
    series = (Series("one token in its plane", tuple(times[:300] - begin), tuple(inside[:300])),)
    return Part(
        "complex dominant pair", "λ₁ real", f"rotation at {seen:.4f}, predicted {predicted:.4f}", checks, series
    )


def _first_below(level: float, times: np.ndarray, values: np.ndarray) -> float:
    """The time at which the values first fall to the level, interpolated in their logarithm; NaN if they do not."""
    late = int(np.argmax(values <= level))
    if late == 0:
        return math.nan
    part = slice(late - 1, late + 1)
    return float(np.interp(-math.log(level), -np.log(values[part]), times[part]))


def small_gap(sizes: Sizes) -> Part:
    """Times to W₂ = 0.1 over two decades of gaps, then no gap at all."""
    found, checks = [], []
    for gap in sizes.gaps:
        head = clocked((1.0, 1.0 - gap), (1.0, 0.8), 3)
        theory, cloud = head.theory(), graded(sizes.tokens, head, 1e-8)
        times = np.linspace(0, 6 / theory.law_rate(2), 41)
        path = zero_temperature_flow(head, cloud, torch.from_numpy(times))
        ends = theory.limit(cloud.points)
        w2 = np.array([to_limit(cloud.moved_to(x), ends, theory.basis).value for x in path])
        found.append(_first_below(NEAR, times, w2))
        wanted = ("doubtful",) if gap <= 1e-3 else ("holds",)
        checks.append(warns(head, "gap > 0", wanted, f"gap {gap:g}"))
    none = Head.from_interaction(torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    cloud = uniform(sizes.tokens, 2, 5)
    moved = zero_temperature_flow(none, cloud, torch.tensor([100.0]))[0] - cloud.points
    never = (math.nan, math.nan, math.nan)
    slope = line(np.log(sizes.gaps), np.log(found)).interval if np.isfinite(found).all() else never
    checks += [
        overlapping("gap → 0: slope of log time against log gap", slope, -1 - GAP_SLOPE, -1 + GAP_SLOPE),
        warns(none, "gap > 0", ("fails",), "no gap"),
        within("no gap: largest distance moved up to t = 100", float(moved.norm(dim=1).max()), high=1e-9),
    ]
    instead = f"time to W₂ = {NEAR:g} grows from {found[0]:.3g} to {found[-1]:.3g}, slope {slope[0]:.3f} in the gap"
    series = Series("time to W₂ = 0.1", tuple(sizes.gaps), tuple(found), style="points", panel=1)
    return Part("gap → 0", "gap > 0", instead, tuple(checks), (series,))


def singular(head: Head, sizes: Sizes) -> Part:
    """Singular B with a positive eigenvalue: the limit law survives, the field jumps across the kernel."""
    run = followed(head, uniform(sizes.tokens, head.dim, 2), 2)
    B, V = head.B.numpy(), head.V.numpy()
    left, _, _ = np.linalg.svd(B)
    rank = int(np.linalg.matrix_rank(B))
    x, v = left[:, -1], left[:, 0]
    ahead = V @ (B.T @ v) / np.linalg.norm(B.T @ v)
    wanted = 2 * float(np.linalg.norm(ahead - (ahead @ x) * x))
    pair = np.stack([x + 1e-6 * v, x - 1e-6 * v])
    fields = zero_temperature(head, torch.from_numpy(pair / np.linalg.norm(pair, axis=1, keepdims=True)))
    jump = float((fields[0] - fields[1]).norm())
    checks = (
        warns(head, "B invertible", ("fails",), "singular B"),
        warns(head, "Re λ₁ > 0 if B is singular", ("holds",), "singular B"),
        within("singular B, λ₁ > 0: share of tokens at the limit", run.arrived, low=SHARE),
        within("singular B: jump of the field across the kernel", jump / wanted, 1 - FIELD, 1 + FIELD),
    )
    instead = (
        f"limit law for {100 * run.arrived:.4g} % of the tokens, field jumps by {jump:.3g} at the kernel (rank {rank})"
    )
    return Part("singular B, Re λ₁ > 0", "B invertible", instead, checks)


def kernel(sizes: Sizes) -> Part:
    """B = diag(1, 0), V = −I: tokens fall into the kernel in finite time."""
    head = Head.from_interaction(torch.diag(torch.tensor([1.0, 0.0])).double(), -torch.eye(2, dtype=torch.float64))
    start = np.linspace(0.3, 1.3, 11)
    ends = np.log(1 / np.cos(start) + np.tan(start))
    shares = np.linspace(0, 0.98, 50)
    angles = np.empty((len(shares), len(start)))
    for j, (phi, end) in enumerate(zip(start, ends, strict=True)):
        one = Cloud([[math.sin(phi), math.cos(phi)]])
        path = zero_temperature_flow(head, one, torch.from_numpy(shares * end))[:, 0].numpy()
        angles[:, j] = np.arctan2(path[:, 0], path[:, 1])
    exact = 2 * np.arctan(np.tanh(ends * (1 - shares[:, None]) / 2))
    error = float(np.abs(angles / exact - 1).max())
    near = zero_temperature(head, torch.tensor([[math.sin(1e-6), math.cos(1e-6)]], dtype=torch.float64))
    no_limit = head.theory().no_limit or ""
    checks = (
        warns(head, "Re λ₁ > 0 if B is singular", ("fails",), "dominant kernel"),
        within("dominant kernel: theory() gives no limit map", float("kernel" in no_limit), low=1.0),
        within("dominant kernel: relative error of the angle on the way", error, high=FIELD),
        within("dominant kernel: speed at 10⁻⁶ from it", float(near.norm()), 1 - FIELD, 1 + FIELD),
    )
    instead = f"tokens reach the kernel at finite times, {ends[0]:.3f} to {ends[-1]:.3f}, and the equation ends there"
    series = tuple(
        Series(f"φ₀ = {start[j]:.1f}", tuple(shares * ends[j]), tuple(angles[:, j]), panel=2) for j in (0, 10)
    )
    return Part("singular B, no positive eigenvalue", "Re λ₁ > 0 if B is singular", instead, checks, series)
