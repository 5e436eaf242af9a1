"""The terminal phase: for finite β and large t the spectrum of V decides where the tokens end.

A Dirac stays one and obeys dx/dt = P_x V x for every β, so x(t) = e^{tV}x₀/|e^{tV}x₀|. A cluster narrower than
β^{−1/2} that sees nothing else does the same, and the differences inside it change at the rate −⟨x̄, Vx̄⟩. Hence, with
λ₁, … the eigenvalues of V by decreasing real part, Π the spectral projector of the first, and x̄ a cluster's centre:

- x̄ follows e^{tV}, and the cluster's width shrinks like exp(−∫⟨x̄, Vx̄⟩dt);
- λ₁ > 0 simple: clusters end at ±v, at most two of them, at the rate λ₁ − Re λ₂;
- λ₁ > 0 of higher multiplicity: at Πx/|Πx| in the eigenspace, x being where the cluster began, at the same rate;
- a complex pair a ± iω, a > 0: with l its left eigenvector, arg⟨l, x̄⟩ grows by ω a time unit for ever;
- all real parts negative: differences grow and the cluster comes apart, until it is at least as wide as β^{−1/2}, where
  the softmax distinguishes its tokens.

The paper states a terminal phase dominated by the spectrum of V; the cases and their rates are derived here. One
condition is not in the statement: a cluster has to see itself rather than the one opposite, ⟨x̄, Bx̄⟩ > 0 at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from scipy.integrate import cumulative_trapezoid
from torch import Tensor

from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, line, size, told
from metastable.cloud import Cloud, uniform
from metastable.flow.exact import value_flow
from metastable.flow.merging import groups
from metastable.flow.steppers import unit
from metastable.head import Head
from metastable.run.run import Run
from metastable.run.simulation import simulate

DIRAC = 1e-6
"""Largest distance of a single token from e^{tV}x₀; the simulation uses a tolerance of 1e-9 a step."""
TOL = 1e-9
"""Tolerance of a time step."""
TOGETHER = 0.2
"""Tokens this close at the end, in (β‖B‖)^{−1/2}, are one cluster."""
NARROW = 0.01
"""Largest distance of a token from the centre of a narrow cluster, in (β‖B‖)^{−1/2}: it bends the path by NARROW²."""
PATH = 2e-3
"""Largest distance of a narrow cluster from e^{tV}x̄; its width of 0.01 β^{−1/2} bends the path by about 1e-4."""
CROWDED = 0.1
"""Clusters that others draw further than this off their way are not moved by V alone, and decide nothing."""
END = 1e-3
"""Largest distance of the last tokens from the predicted end: horizons leave e^{−rate·t} well below it."""
RATE = 0.03
"""Largest relative error of a rate or frequency; later eigenvalues fade only gradually over the fitted interval."""
FITTED = (1e-9, 1e-3)
"""Distances from which a rate is read: after the first bend, above rounding."""
SINGLE = 0.1
"""Largest share of the tokens in a narrow cluster of a cloud that has come apart."""
WIDE = 0.3
"""Least width of such a cloud at the end, in (β‖B‖)^{−1/2}: of order 1, since a narrower one would still grow."""

COLUMNS = ("predicted rate or frequency", "measured", "clusters", "narrow from t", "distance of the end from E of M")
"""The measured columns of the table."""


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


@claim("terminal", "Terminal phase")
def check(
    head: Head | None,
    tell: Tell,
    tokens: int = size(100, full=1000),
    beta: float = size(40.0, full=200.0),
    until: float = size(50.0, full=80.0),
    frames: int = size(201, full=281),
    longest: float = size(400.0, full=20000.0),
) -> Finding:
    """For finite β and large t the spectrum of V decides where tokens end [paper]: clusters move by e^{tV}, so they
    come to the eigenspace of its top eigenvalue at the rate of its gap, circle at the frequency of a complex top pair,
    and come apart to a width of at least order β^(−1/2) where V is negative definite [derived here].

    Follow tokens from a uniform start for each case or for the given head, then single tokens and antipodal pairs.

    beta : β‖B‖ of the runs
    until, frames : the last time and the number of saved times
    longest : the last time of antipodal pairs, and the latest end of a given head's run
    """
    found = Finding(f"N = {tokens}, β‖B‖ = {beta:g}, t ≤ {until:g}, antipodal pair to t = {longest:g}")
    picture = found.picture(
        "Where clusters go when only V moves them",
        "Lines: measured from the time that all clusters are narrow. Dots: e^{tV} alone, or its rate. First the "
        "distance to the eigenspace of V's top eigenvalue, then the turns made by clusters under a complex pair, "
        "last the width of a cluster under a negative definite V.",
        Panel("time t", "distance to V's top eigenspace", log_y=True),
        Panel("time t", "turns"),
        Panel("time t", "width of the cluster", log_y=True),
    )
    heads = own_heads() if head is None else {"the given head": head}
    for name, one in heads.items():
        _single(found, name, one, beta)
    for name, one in told(list(heads.items()), tell):
        if reason := _obstacle(one):
            _undecided(found, name, one, reason)
        elif one.theory().terminal.leading < 0:
            _come_apart(found, picture, name, one, beta, tokens, frames)
        else:
            last = until if head is None else _horizon(one, tokens, longest)
            cloud = uniform(tokens, one.dim, seed=1)
            run = simulate(one, cloud, beta / _norm(one.B), last, tol=TOL, t_eval=frames, progress=False)
            late = late_clusters(run)
            if late is None:
                why = f"tokens were not in narrow clusters for long enough up to t = {last:.4g}; they may be later"
                _undecided(found, name, one, why)
            else:
                _settle(found, picture, name, run, late)
    if head is None:
        for name in ("simple, V and M apart", "double"):
            _antipodal(found, name, heads[name], beta, longest)
    seen = [row for row in found.tables["where tokens end"] if row["measured"] not in ("–", "nan")]
    off = [abs(float(row["measured"]) / float(row["predicted rate or frequency"]) - 1) for row in seen]
    rates = f", rates and frequencies to {100 * max(off):.2g} %" if off else ""
    found.sentence = f"tokens end as the spectrum of V predicts in {found.tally}{rates}"
    return found


def _row(found: Finding, name: str, head: Head, *cells: object) -> None:
    """Add a row; `cells` are the first of COLUMNS, and the others do not apply."""
    top = head.theory().terminal
    label = f"{top.leading:.4g}" + (f" ± {top.frequency:.4g}i" if top.rotates else f", dim {top.dim}")
    columns = dict(zip_longest(COLUMNS, cells, fillvalue="–"))
    found.row("where tokens end", {"case": name, "top eigenvalue of V": label, **columns})


def _undecided(found: Finding, name: str, head: Head, reason: str) -> None:
    found.undecided(name, reason)
    _row(found, name, head)


def _obstacle(head: Head) -> str | None:
    """Why the statement does not apply to this head."""
    top = head.theory().terminal
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


def _horizon(head: Head, tokens: int, longest: float) -> float:
    """Long enough for the slowest of V's rates, at most `longest`: the plateau before it takes a multiple of log N."""
    theory = head.theory()
    slow = min(theory.terminal.leading, theory.terminal.gap)
    leave = 2 * math.log(tokens) / theory.rate if theory.rate > 0 else 0.0
    return float(min(25 / slow + leave, longest))


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


@dataclass(frozen=True)
class LateClusters:
    """G clusters at the T saved times from the onset on, the first time after which every cluster is narrow.

    Attributes
    ----------
    shares : (G,) share of the tokens, decreasing
    centres : (G, T, d) mean of each cluster's tokens, scaled to norm 1
    spreads : (G, T) largest distance of a token from its centre
    """

    times: np.ndarray
    shares: np.ndarray
    centres: np.ndarray
    spreads: np.ndarray

    def by_value_alone(self, head: Head) -> np.ndarray:
        """Where e^{tV} takes the centres from the onset on, (G, T, d)."""
        moved = value_flow(head, torch.from_numpy(self.centres[:, 0]), torch.from_numpy(self.times - self.times[0]))
        return np.asarray(moved.transpose(0, 1).numpy())

    def drawn_off(self, run: Run) -> float:
        """About how far other clusters have drawn a cluster off its own way, for the cluster drawn furthest.

        ‖V‖ times ∫ (share of its softmax that a cluster gives to the others) dt from the onset on.
        """
        x = self.centres.transpose(1, 0, 2)
        scores = run.beta * np.einsum("tgi,ij,thj->tgh", x, run.head.B.numpy(), x) + np.log(self.shares)
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        own = np.einsum("tgg->tg", scores) / scores.sum(axis=2)
        drawn = cumulative_trapezoid(_norm(run.head.V) * (1 - own), self.times, axis=0)
        return float(drawn[-1].max())


def late_clusters(run: Run) -> LateClusters | None:
    """The clusters of the last frame from their onset on; None if they were narrow for fewer than ten saved times."""
    frames = run.frames.double().numpy()
    unit_length = (run.beta * _norm(run.head.B)) ** -0.5
    leader = groups(frames[-1], TOGETHER * unit_length, len(frames[-1]))
    assert leader is not None
    names, sizes = np.unique(leader, return_counts=True)
    centres, spreads = [], []
    for name in names[np.argsort(-sizes, kind="stable")]:
        tokens = frames[:, leader == name]
        mean = tokens.mean(axis=1)
        centres.append(mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-300))
        spreads.append(np.linalg.norm(tokens - centres[-1][:, None], axis=2).max(axis=1))
    wide = np.flatnonzero(np.max(spreads, axis=0) > NARROW * unit_length)
    onset = int(wide[-1]) + 1 if len(wide) else 0
    if len(frames) - onset < 10:
        return None
    shares = np.sort(sizes)[::-1] / len(leader)
    return LateClusters(run.times.numpy()[onset:], shares, np.stack(centres)[:, onset:], np.stack(spreads)[:, onset:])


def _settle(found: Finding, picture: Picture, name: str, run: Run, late: LateClusters) -> None:
    """Clusters that hold together: their path, their width, and where they end or how they circle."""
    top, drawn, expected = run.head.theory().terminal, late.drawn_off(run), late.by_value_alone(run.head)

    def on_course(title: str, off: float, allowed: float) -> None:
        """Check `off` against what is allowed, plus what clusters that see each other account for."""
        if drawn > CROWDED:
            found.undecided(title, f"clusters see each other, enough to be drawn {drawn:.2g} off their way", off)
        else:
            note = f"other clusters account for {drawn:.1e}" if drawn > END else ""
            found.within(title, off, high=allowed + drawn, note=note)

    off = float(np.linalg.norm(late.centres - expected, axis=2).max())
    on_course(f"distance of the clusters from e^(tV), {name}", off, PATH)
    if not top.rotates:
        goals = top.limit(torch.from_numpy(late.centres[:, 0])).numpy()
        missed = float(np.linalg.norm(late.centres[:, -1] - goals, axis=1).max())
        on_course(f"distance of the last clusters from Πx/|Πx|, {name}", missed, END)
    exponent, seen = _growth(run.head, late.times, late.centres[0]), late.spreads[0] > 1e-12
    title, too_few = f"width against ∫⟨x̄, Vx̄⟩dt, slope, {name}", "the cluster was narrower than rounding from the start"
    found.slope(title, exponent[seen], np.log(late.spreads[0][seen]), 1 - RATE, 1 + RATE, too_few, least=5)
    measured = (_circle if top.rotates else _arrive)(found, picture, name, run, late, expected)
    predicted = top.frequency if top.rotates else top.gap
    distance = "no E" if run.head.theory().no_limit else f"{_off(late.centres[:, -1:], run.head.theory().basis)[0]:.4g}"
    cells = (f"{predicted:.4g}", f"{measured:.4g}", len(late.shares), f"{late.times[0]:.4g}", distance)
    _row(found, name, run.head, *cells)


def _growth(head: Head, times: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """−∫⟨x̄, Vx̄⟩dt from the first time to each of them, the growth of log width of a narrow cluster at x̄ (T, d)."""
    rates = np.einsum("ti,ij,tj->t", centre, head.V.numpy(), centre)
    return -np.asarray(cumulative_trapezoid(rates, times, initial=0))


def _off(x: np.ndarray, basis: Tensor) -> np.ndarray:
    """Largest distance of clusters (G, T, d) from a subspace, at each time."""
    return np.asarray(np.linalg.norm(x - x @ basis.numpy() @ basis.numpy().T, axis=2).max(axis=0))


def _arrive(found: Finding, picture: Picture, name: str, run: Run, late: LateClusters, expected: np.ndarray) -> float:
    """λ₁ real: clusters come to its eigenspace. Returns the measured rate."""
    top, ends = run.head.theory().terminal, late.centres[:, -1]
    measured, predicted = _off(late.centres, top.basis), _off(expected, top.basis)
    found.within(f"distance of the last clusters from V's eigenspace, {name}", measured[-1], high=END)
    if top.dim == 1:
        title = f"clusters left, one or an antipodal pair, {name}"
        if len(ends) == 2 and np.linalg.norm(ends[0] + ends[1]) > END:
            found.within(title, 2, 1, 1, "two clusters that are not opposite to each other")
        else:
            found.within(title, len(ends), 1, 2)
    picture.add(name, late.times, np.maximum(measured, 1e-12))
    picture.add(f"e^(tV), {name}", late.times, np.maximum(predicted, 1e-12), "dotted")
    fitted = (measured > FITTED[0]) & (measured < FITTED[1])
    title = f"rate at which clusters come to V's eigenspace, {name}"
    too_few, wanted = (
        "too few saved times between first bend and rounding",
        ((1 - RATE) * top.gap, (1 + RATE) * top.gap),
    )
    fit = found.slope(title, late.times[fitted], -np.log(measured[fitted]), *wanted, too_few, least=5)
    return fit.slope if fit else math.nan


def _circle(found: Finding, picture: Picture, name: str, run: Run, late: LateClusters, expected: np.ndarray) -> float:
    """λ₁ of a complex pair: clusters rotate. Returns the measured frequency."""
    values, vectors = np.linalg.eig(run.head.V.numpy().T)
    frequency = run.head.theory().terminal.frequency
    left = vectors[:, np.argmax(values.real + 1e-6 * (values.imag > 0))]
    angle, predicted = (np.unwrap(np.angle(c[0] @ left)) for c in (late.centres, expected))
    fit = line(late.times, angle)
    found.overlapping(f"frequency, {name}", fit.interval, (1 - RATE) * frequency, (1 + RATE) * frequency)
    found.within(f"turns seen, {name}", abs(angle[-1] - angle[0]) / (2 * math.pi), low=1.0)
    picture.add(name, late.times, (angle - angle[0]) / (2 * math.pi), panel=1)
    picture.add(f"e^(tV), {name}", late.times, (predicted - angle[0]) / (2 * math.pi), "dotted", panel=1)
    return fit.slope


def _come_apart(found: Finding, picture: Picture, name: str, head: Head, beta: float, tokens: int, frames: int) -> None:
    """Tokens that start within 1e-6 of each other: their width grows by ∫−⟨x̄, Vx̄⟩dt to order β^{−1/2}."""
    start = uniform(1, head.dim, seed=2).points + 1e-6 * uniform(tokens, head.dim, seed=3).points
    until = 25 / -head.theory().terminal.leading + 10
    run = simulate(head, Cloud(start), beta / _norm(head.B), until, tol=TOL, t_eval=frames, progress=False)
    points, mean = run.frames.numpy(), unit(run.frames.mean(dim=1)).numpy()
    width = np.linalg.norm(points - mean[:, None], axis=2).max(axis=1)
    # 0 if the width stays small, so that all times count.
    last = int(np.argmax(width > 0.1 * beta**-0.5)) or len(width)
    if last < 6:
        _undecided(found, name, head, "the cluster came apart between two saved times: too few of them to read a rate")
        return
    times, logs = run.times.numpy()[:last], np.log(width[:last])
    exponent = _growth(head, times, mean[:last])
    leader = groups(points[-1], 2 * NARROW * beta**-0.5, tokens)
    assert leader is not None
    biggest = float(np.unique(leader, return_counts=True)[1].max()) / tokens
    final = math.sqrt(float(np.square(points[-1] - mean[-1]).sum(axis=1).mean()) * beta)
    found.slope(f"width against −∫⟨x̄, Vx̄⟩dt, slope, {name}", exponent, logs, 1 - RATE, 1 + RATE)
    title = f"largest narrow cluster at t = {run.horizon:.4g}, share of the tokens, {name}"
    found.within(title, biggest, high=SINGLE)
    found.within(f"width at t = {run.horizon:.4g} in (β‖B‖)^(−1/2), {name}", final, low=WIDE)
    picture.add(name, times, width[:last], panel=2)
    picture.add("from −⟨x̄, Vx̄⟩", times, width[0] * np.exp(exponent), "dotted", panel=2)
    speed, expected = (line(times[last // 2 :], y[last // 2 :]).slope for y in (logs, exponent))
    _row(found, name, head, f"{expected:.4g}", f"{speed:.4g}", "none")


def _single(found: Finding, name: str, head: Head, beta: float) -> None:
    """One token against e^{tV}x₀."""
    start = uniform(1, head.dim, seed=4)
    scale = _norm(head.V) or 1.0
    run = simulate(head, start, beta, 10 / scale, tol=TOL, t_eval=21, progress=False)
    off = (run.frames - value_flow(head, start.points, run.times)).norm(dim=2).max()
    found.within(f"distance of a single token from e^(tV)x₀, {name}", float(off), high=DIRAC)


def _antipodal(found: Finding, name: str, head: Head, beta: float, longest: float) -> None:
    """Clusters of 30 and 10 tokens at ±x₀, to a long horizon with merging: both go to ±Πx₀/|Πx₀| and both stay."""
    place, noise = uniform(1, head.dim, seed=5).points, uniform(40, head.dim, seed=6).points
    sign = torch.ones(40, 1, dtype=torch.float64)
    sign[30:] = -1
    cloud = Cloud(sign * place + 1e-3 * noise)
    run = simulate(head, cloud, beta / _norm(head.B), longest, tol=1e-8, t_eval=11, merge=1e-4, progress=False)
    goal = head.theory().terminal.limit(place)
    assert run.merged is not None
    off = float((run.final.points - sign * goal).norm(dim=1).max())
    found.within(f"clusters left of an antipodal pair, {name}", float(run.merged[-1, 0]), 2, 2)
    found.within(f"distance of an antipodal pair from ±Πx₀/|Πx₀|, each on its side, {name}", off, high=END)
