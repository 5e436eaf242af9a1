"""Where the limit law does not hold: what happens instead, and which verdict of `theory()` warns of it.

Complex dominant pair a ± iω: with w the left eigenvector, ⟨w, x⟩ ∝ e^{iωτ}, so tokens circle in a plane for ever, with
the mean frequency ω/(mean of |Bᵀx| over a turn).
Gap → 0: time enters as gτ only, so concentration takes a time ∝ 1/g; without a gap nothing moves.
Singular B with Re λ₁ > 0: the limit law survives, but at x₀ with Bᵀx₀ = 0 the field jumps: from x₀ ± εv it tends to
±P V Bᵀv/|Bᵀv|.
Singular B without a positive eigenvalue: B = diag(1, 0), V = −I draws tokens to the kernel with a speed that does not
vanish there, dφ/dt = −cos φ for the angle φ from the kernel. They arrive at t* = log(sec φ₀ + tan φ₀), where the
equation ends: φ(t) = gd(t* − t), gd u = 2 atan tanh(u/2).

A law without full support, of which `theory()` cannot warn, because it knows the head and not the law. With a hole
around û, m_β tends to the best point y of the support, not to û; at an edge with the angle η from û the softmax weights
fall off like e^{−κ s sin η}, so |m_β − y| ≈ 1/(κ sin η). At the limit point e, where a law of full support would hold a
token at rest, the velocity tends to P_e V y. Tokens still follow T in the end: tokens from nearer {Πx = 0} are swept
through the hole and refill it, so the plateau comes and ends as without a hole. A hole of half-width ω around {Πx = 0}
itself (d = 2: two arcs around the repelling points ±x_r) is never refilled. The flow widens it until it reaches û(e),
at a time that does not depend on β, and then the cluster leaves. So the departures for two widths differ by the time
that the edge of the narrow hole takes to the edge of the wide one, on the side from which tokens reach e by way of
û(e).

All of this is derived here; the paper's theorem excludes these cases by assumption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from metastable.attention import attend
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, first_below, line, not_tried, size, told
from metastable.claims.heads import circle_head, clocked, identity, too_long
from metastable.claims.laplace import nodes, panels
from metastable.claims.limit import SHARE, follow
from metastable.cloud import Cloud, equally_spaced, graded, uniform
from metastable.flow.exact import zero_temperature_flow
from metastable.flow.fields import velocity, zero_temperature
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.transport import to_limit

FREQUENCY = 1e-3
"""Largest relative error of the mean frequency over whole turns: frames are 1/64 of a turn apart and interpolated."""
PLANE = 1e-3
"""Largest median distance from the plane of the pair: the run waits until e^{−gτ} ≤ e^{−12}."""
GAP_SLOPE = 0.02
"""Largest error of the slope −1 of log time against log gap: exact for the formula, the rest is interpolation."""
NEAR = 0.1
"""The law has concentrated when W₂ ≤ 0.1."""
FIELD = 1e-3
"""Largest relative error of fields and positions with a closed form, at the distance 10⁻⁶ from the kernel."""
EDGE = 0.02
"""Largest relative error of the leading order at the edge of a hole: the next one is 1/(κ tan η), 10⁻³ at κ = 10³."""
REFILLED = 0.1
"""Largest relative difference of departures with and without a hole around û: tokens leave 1/(κ log N) apart."""
SAME = 0.2
"""Largest relative difference of departures at two β; in the mean field of full support β = 300 and 1000 differ by a
factor 2.6."""
WIDTHS = 0.1
"""Largest relative error of the difference of departures for two widths: the softmax blurs edges by β^{−1/2}."""
LEFT = 0.12
"""A cluster has left when W₂ rises to this, about half of its distance from V's eigenvector."""
PARTS = {
    "rotation": ("complex dominant pair", "λ₁ real"),
    "gap": ("gap → 0", "gap > 0"),
    "singular": ("singular B, Re λ₁ > 0", "B invertible"),
    "kernel": ("singular B, no positive eigenvalue", "Re λ₁ > 0 if B is singular"),
    "hole": ("support with a hole around û", "none: theory() sees the head only"),
    "flow": ("holes under the flow", "none: theory() sees the head only"),
}
"""Each boundary in the order of the report, with the verdict that warns of it."""


@claim("boundaries", "Where the limit law does not hold")
def check(
    head: Head | None,
    tell: Tell,
    parts: Sequence[str] = tuple(PARTS),
    tokens: int = size(1000, full=20_000),
    particles: int = size(500, full=4000),
    turns: int = size(6, full=40),
    gaps: Sequence[float] = size((0.3, 0.1, 0.03, 0.01, 3e-3, 7e-4, 2e-4), full=np.geomspace(0.3, 1e-4, 15).tolist()),
    betas: Sequence[float] = size((1e3, 3e3, 1e4, 3e4, 1e5), full=np.geomspace(1e3, 1e6, 13).tolist()),
) -> Finding:
    """The limit law needs a real dominant eigenvalue, a gap, B invertible (or Re λ₁ > 0) and a law of full support
    [paper: assumptions]. Without them: rotation at ω over the mean of |Bᵀx|, a time ∝ 1/gap, arrival at the kernel in
    finite time, m_β at the best point of the support, and a plateau that does not wait for β [derived].

    Test each boundary, with heads that are beyond it; a given head is tested at its own boundaries.

    parts : which of PARTS
    tokens, particles : tokens of the exact flows, and of the simulations at finite β
    turns : turns of a rotation
    gaps, betas : of the closing gap, and of the hole around û
    """
    found = Finding(f"{turns} turns, gaps {gaps[0]:g} to {gaps[-1]:g}, β up to {betas[-1]:g}")
    picture = found.picture(
        "What happens where the limit law does not hold",
        "A token that rotates for ever; concentration that takes longer as the gap closes; tokens that reach the "
        "kernel of B in finite time; plateaus that end early because the law has a hole where Πx = 0.",
        Panel("time t", "coordinate in the plane", title="complex pair"),
        Panel("gap g", "time to W₂ = 0.1", log_x=True, log_y=True, title="gap → 0"),
        Panel("time t", "angle φ from the kernel", title="dominant kernel"),
        Panel("time t", "W₂ to the limit law", log_y=True, title="holes"),
    )
    measure = {
        "rotation": lambda: rotation(found, picture, head or _turning(), tokens, turns),
        "gap": lambda: small_gap(found, picture, gaps, tokens),
        "singular": lambda: singular(found, head or _flat(), tokens),
        "kernel": lambda: kernel(found, picture),
        "hole": lambda: hole(found, head or clocked((1.0, 0.2), (1.0, 0.7), 5), betas),
        "flow": lambda: holes_under_flow(found, picture, particles),
    }
    chosen = parts if head is None else _parts_of(head)
    if not chosen:
        assert head is not None
        unmet = ", ".join(head.theory().verdict.unmet) or "none"
        reason = f"no boundary of this head can be measured here; assumptions that it does not meet: {unmet}"
        return not_tried("boundaries", reason)
    for part in told(chosen, tell):
        boundary, verdict = PARTS[part]
        row = {"boundary": boundary, "verdict that warns": verdict, "what happens instead": measure[part]()}
        found.row("boundaries", row)
    names = "; ".join(row["boundary"] for row in found.tables["boundaries"])
    found.sentence = f"{found.tally} show what the verdicts warn of: {names}"
    return found


def _turning() -> Head:
    """A head with a complex dominant pair."""
    X = np.eye(3) + 0.3 * np.random.default_rng(4).standard_normal((3, 3))
    M = X @ np.array([[0.3, -1.0, 0.0], [1.0, 0.3, 0.0], [0.0, 0.0, -0.5]]) @ np.linalg.inv(X)
    B = np.array([[1.2, 0.3, 0.0], [-0.2, 0.8, 0.1], [0.1, 0.0, 1.0]])
    return Head.from_interaction(B, M @ np.linalg.inv(B.T))


def _flat() -> Head:
    """A head with a singular B."""
    rng = np.random.default_rng(6)
    return Head(rng.standard_normal((2, 3)), rng.standard_normal((2, 3)), np.eye(3))


def _parts_of(head: Head) -> tuple[str, ...]:
    """The boundaries of a given head: none if it meets the assumptions, except for the hole on the circle."""
    theory = head.theory()
    if theory.attention.rotates and theory.attention.multiplicity == 2 and not theory.singular:
        return ("rotation",)
    if theory.no_limit or theory.rate == 0 or math.isinf(theory.gap):
        return ()
    if theory.singular:
        return ("singular",) if too_long(head, 7 / theory.law_rate(2)) is None else ()
    return ("hole",) if head.dim == 2 and theory.dim == 1 else ()


def _warns(found: Finding, head: Head, name: str, status: str, where: str) -> None:
    """Check that this verdict of `theory()` has this status: 1 if so."""
    seen = head.theory().verdict[name].status
    found.within(f"{where}: verdict “{name}” says {status}", float(seen == status), low=1.0)


def rotation(found: Finding, picture: Picture, head: Head, tokens: int, turns: int) -> str:
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
    times = begin + np.linspace(0, 2 * np.pi * (turns + 1) / predicted, 64 * (turns + 1) + 1)
    if reason := too_long(head, float(times[-1])):
        found.undecided("rotation", reason)
        return reason
    path = zero_temperature_flow(head, uniform(tokens, head.dim, 1), torch.from_numpy(times)).numpy()
    angle = np.unwrap(np.angle(path @ dual), axis=0)
    angle -= angle[0]
    ends = [float(np.interp(2 * np.pi * turns, a, times)) for a in angle.T]
    seen = float(np.median(2 * np.pi * turns / (np.array(ends) - begin)))
    plane = np.linalg.qr(np.stack([right[:, lead].real, right[:, lead].imag], axis=1))[0]
    off = float(np.median(np.linalg.norm(path[-1] - path[-1] @ plane @ plane.T, axis=1)))
    _warns(found, head, "λ₁ real", "fails", "complex pair")
    found.near("complex pair: frequency over ω/⟨|Bᵀx|⟩", seen / predicted, FREQUENCY)
    found.within("complex pair: median distance from the plane", off, high=PLANE)
    picture.add("one token in its plane", times[:300] - begin, path[:300, 0] @ plane[:, 0])
    return f"rotation at {seen:.4f}, predicted {predicted:.4f}"


def small_gap(found: Finding, picture: Picture, gaps: Sequence[float], tokens: int) -> str:
    """Times to W₂ = 0.1 over decades of gaps, then no gap at all."""
    waits = []
    for gap in gaps:
        head = clocked((1.0, 1.0 - gap), (1.0, 0.8), 3)
        theory, cloud = head.theory(), graded(tokens, head, 1e-8)
        times = np.linspace(0, 6 / theory.law_rate(2), 41)
        path = zero_temperature_flow(head, cloud, torch.from_numpy(times))
        ends = theory.limit(cloud.points)
        w2 = np.array([to_limit(cloud.moved_to(x), ends, theory.basis).value for x in path])
        waits.append(first_below(times, np.log(w2), math.log(NEAR)))
        _warns(found, head, "gap > 0", "doubtful" if gap <= 1e-3 else "holds", f"gap {gap:g}")
    never = (math.nan, math.nan, math.nan)
    slope = line(np.log(gaps), np.log(waits)).interval if np.isfinite(waits).all() else never
    found.overlapping("gap → 0: slope of log time against log gap", slope, -1 - GAP_SLOPE, -1 + GAP_SLOPE)
    none = identity(2)
    cloud = uniform(tokens, 2, 5)
    moved = zero_temperature_flow(none, cloud, torch.tensor([100.0]))[0] - cloud.points
    _warns(found, none, "gap > 0", "fails", "no gap")
    found.within("no gap: largest distance moved up to t = 100", float(moved.norm(dim=1).max()), high=1e-9)
    picture.add("time to W₂ = 0.1", gaps, waits, "points", panel=1)
    return f"time to W₂ = {NEAR:g} grows from {waits[0]:.3g} to {waits[-1]:.3g}, slope {slope[0]:.3f} in the gap"


def singular(found: Finding, head: Head, tokens: int) -> str:
    """Singular B with a positive eigenvalue: the limit law survives, the field jumps across the kernel."""
    arrived = follow(head, uniform(tokens, head.dim, 2), 2)[0]["share arrived"]
    B, V = head.B.numpy(), head.V.numpy()
    left, _, _ = np.linalg.svd(B)
    x, v = left[:, -1], left[:, 0]
    ahead = V @ (B.T @ v) / np.linalg.norm(B.T @ v)
    wanted = 2 * float(np.linalg.norm(ahead - (ahead @ x) * x))
    pair = np.stack([x + 1e-6 * v, x - 1e-6 * v])
    fields = zero_temperature(head, torch.from_numpy(pair / np.linalg.norm(pair, axis=1, keepdims=True)))
    jump = float((fields[0] - fields[1]).norm())
    _warns(found, head, "B invertible", "fails", "singular B")
    _warns(found, head, "Re λ₁ > 0 if B is singular", "holds", "singular B")
    found.within("singular B, λ₁ > 0: share of tokens at the limit", arrived, low=SHARE)
    found.near("singular B: jump of the field across the kernel", jump / wanted, FIELD)
    share, rank = f"{100 * arrived:.4g} %", int(np.linalg.matrix_rank(B))
    return f"limit law for {share} of the tokens, field jumps by {jump:.3g} at the kernel (rank {rank})"


def kernel(found: Finding, picture: Picture) -> str:
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
    _warns(found, head, "Re λ₁ > 0 if B is singular", "fails", "dominant kernel")
    found.within("dominant kernel: theory() gives no limit map", float("kernel" in no_limit), low=1.0)
    found.within("dominant kernel: relative error of the angle on the way", error, high=FIELD)
    found.near("dominant kernel: speed at 10⁻⁶ from it", float(near.norm()), FIELD)
    for j in (0, 10):
        picture.add(f"φ₀ = {start[j]:.1f}", shares * ends[j], angles[:, j], panel=2)
    return f"tokens reach the kernel at finite times, {ends[0]:.3f} to {ends[-1]:.3f}, and the equation ends there"


def hole(found: Finding, head: Head, betas: Sequence[float], near: float = 0.5, far: float = 0.9) -> str:
    """The uniform law of the circle without an arc around the û of the limit point e; its nearer edge is at η = 0.5."""
    e = head.theory().basis[:, 0].numpy()
    look = head.B.numpy().T @ e
    scale = float(np.linalg.norm(look))
    u = look / scale
    centre = math.atan2(u[0], u[1])
    edge, other = centre + near, centre + 2 * math.pi - far
    y = np.array([math.sin(edge), math.cos(edge)])
    means = []
    for beta in betas:
        phi, w = nodes(panels(edge, 2 / (beta * scale * math.sin(near)), edge, other), edge, math.inf)
        cloud = Cloud(np.stack([np.sin(phi), np.cos(phi)], axis=1), weights=w)
        means.append(attend(cloud, beta * head.directions(torch.from_numpy(e)[None]), engine="dense")[0].numpy())
    to_edge = np.linalg.norm(np.array(means) - y, axis=1)
    to_look = float(np.linalg.norm(means[-1] - u))
    speed = velocity(head, cloud, betas[-1], at=e[None], engine="dense")[0].numpy()
    pushed = head.V.numpy() @ y
    wanted = pushed - (pushed @ e) * e
    constant = to_edge[-1] * (betas[-1] * scale) * math.sin(near)
    error = float(np.linalg.norm(speed - wanted) / np.linalg.norm(wanted))
    found.near("hole: |m_β − û| over 2 sin(η/2)", to_look / (2 * math.sin(near / 2)), EDGE)
    found.slope("hole: slope of |m_β − y| in β, y the edge", np.log(betas), np.log(to_edge), -1 - EDGE, -1 + EDGE)
    found.near("hole: κ sin η |m_β − y|", constant, EDGE)
    found.within("hole: relative error of the velocity P V y at the limit point", error, high=EDGE)
    return f"m_β stays {to_look:.4f} from û; a token at the limit point moves at {np.linalg.norm(wanted):.3f}"


def departure(head: Head, cloud: Cloud, beta: float, until: float) -> tuple[float, np.ndarray, np.ndarray]:
    """When W₂ to the limit law, after its least, rises to LEFT (inf if never), and the curve."""
    run = simulate(head, cloud, beta, until, t_eval=81, tol=1e-5, engine="flash", progress=False)
    theory, times = head.theory(), run.times.numpy()
    ends = theory.limit(cloud.points)
    w2 = np.array([to_limit(run.at(i), ends, theory.basis).value for i in range(len(times))])
    least = int(w2.argmin())
    return first_below(times[least:], -w2[least:], -LEFT), times, w2


def arcs(n: int, axis: np.ndarray, width: float) -> Cloud:
    """About n tokens, even on the circle without the angles below `width` from ±axis; tokens sit at all four edges."""
    share = np.linspace(0, 1, n // 2)
    angles = math.atan2(axis[1], axis[0]) + width + share * (math.pi - 2 * width)
    angles = np.concatenate([angles, angles + math.pi])
    return Cloud(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def widening(head: Head, narrow: float, wide: float) -> float:
    """How long the zero-temperature flow takes from the angle `narrow` to `wide` from ±x_r, on the way to û(e), e."""
    theory = head.theory()
    e, normal = theory.basis[:, 0].numpy(), theory.co_basis[:, 0].numpy()
    normal = normal if normal @ e > 0 else -normal
    repelling = np.array([-normal[1], normal[0]])
    # û(e) = αe + γx_r lies between e and the repelling point of γ's sign, and between −e and the other for α < 0.
    alpha, gamma = np.linalg.solve(np.stack([e, repelling], axis=1), head.B.numpy().T @ e)
    repelling = repelling if alpha * gamma > 0 else -repelling
    edge = Cloud((math.cos(narrow) * repelling + math.sin(narrow) * normal)[None])
    times = np.linspace(0, 3 * math.log(wide / narrow) / theory.escape_rate, 400)
    path = zero_temperature_flow(head, edge, torch.from_numpy(times))[:, 0].numpy()
    return float(np.interp(wide, np.arctan2(path @ normal, path @ repelling), times))


def holes_under_flow(found: Finding, picture: Picture, n: int) -> str:
    """Simulate equal tokens: full circle, a hole around û(e), and holes of two widths around {Πx = 0}."""
    # û(e) is 15 degrees from e.
    head, (warm, cold) = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)), (300.0, 1000.0)
    look = (head.B.T @ head.theory().basis[:, 0]).numpy()
    normal = head.theory().co_basis[:, 0].numpy()
    repelling = np.array([-normal[1], normal[0]])
    narrow, wide = 0.05, 0.3
    cases = [("no hole", equally_spaced(n), cold), ("hole around û", arcs(n, look, 0.6), cold)]
    holes = [(width, beta) for width in (narrow, wide) for beta in (warm, cold)]
    cases += [(f"hole {width:g} at Πx = 0, β = {beta:g}", arcs(n, repelling, width), beta) for width, beta in holes]
    left = []
    for name, cloud, beta in cases:
        when, times, w2 = departure(head, cloud, beta, 12.0)
        left.append(when)
        if beta == cold:
            picture.add(name, times, w2, panel=3)
    full, refilled, narrow_warm, narrow_cold, wide_warm, wide_cold = left
    apart = (narrow_cold - wide_cold) / widening(head, narrow, wide)
    around = "around Πx = 0"
    found.near("hole around û: departure over that without a hole", refilled / full, REFILLED)
    found.near(f"hole {narrow:g} {around}: departures at two β, ratio", narrow_cold / narrow_warm, SAME)
    found.near(f"hole {wide:g} {around}: departures at two β, ratio", wide_cold / wide_warm, SAME)
    found.near(f"holes {around}: difference of departures over the flow's", apart, WIDTHS)
    title = f"hole {wide:g} {around}: departure over that without a hole"
    found.within(title, wide_cold / full, high=1 - REFILLED)
    return (
        f"the flow refills a hole around û (departure {refilled:.2f}, without a hole {full:.2f}); one of {wide:g} "
        f"around Πx = 0 ends the plateau at {wide_warm:.2f} and {wide_cold:.2f} for β = {warm:g} and {cold:g}"
    )
