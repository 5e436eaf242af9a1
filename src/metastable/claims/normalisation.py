"""Normalisation sets the clock: the same attention clusters exponentially fast in depth, or like a power of depth.

The time t counts layers under every normalisation (Karagodin, Ge, Polyanskiy and Rigollet, "Normalization in attention
dynamics", arXiv 2510.22026). The schemes are those of `block`, and `theory.normalisation` derives the scalar equations.

*Equiangular tokens*, B = V = I: one cosine ρ and one radius describe all tokens. At late times 1 − ρ ~ e^{−2t} for post
and ngpt, and 1 − ρ ~ t^{−2} for pre and peri, whose radius grows like t. Without normalisation 1 − ρ has a positive
limit for β > 0.

*One cluster under any head*, derived here. Tokens at one point x add f = Vx to the stream, whatever B and β are. Let
h(s) = e^{sV}x₀. The cluster moves along the orbit x = h/|h| under every normalisation, and only the clock differs:

    dt/ds = 1 (post),   |Vx| (ngpt),   |h| (pre),   |Vh| (peri).

For pre and peri, h is the stream itself: dh/dt = Vh/(dt/ds), which is Vx for dt/ds = |h| and Vx/|Vx| for dt/ds = |Vh|.
Let λ₁ > 0 be the top eigenvalue of V, e its eigenvector and g the gap. At late times |x − e| ~ e^{−gs}, |Vx| → λ₁ and
|h| ~ e^{λ₁s}, which is of the order of t for pre and peri. So

    |x − e| ~ e^{−gt} (post),   e^{−(g/λ₁)t} (ngpt),   t^{−g/λ₁} (pre and peri).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.integrate import solve_ivp

from metastable.block import SPHERES, Block
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.theory.normalisation import NORMS, clustering_exponent, equiangular

TOKENS_TOL, CLUSTER_TOL = 1e-8, 1e-10
"""Tolerances of a time step, of equiangular tokens and of a cluster."""
TOKENS = 1e-5
"""Largest error of a cosine and relative error of a radius: TOKENS_TOL in each of some hundred steps."""
CLUSTER = 1e-5
"""Largest error of a cluster's position and relative error of its radius: CLUSTER_TOL in each of some hundred steps. A
non-normal V enlarges it by at most CONDITION."""
LATE = 1e-3
"""Largest 1 − ρ at which a rate or exponent is read: it is off by about (1 + β)(1 − ρ)."""
OFFSET = 0.01
"""Largest |r/t − 1| at which an exponent of t is read. The exponent is off by about as much, since 1 − ρ ~ r^{−2}."""
RATE = 0.02
"""Largest relative error of a rate or an exponent: (1 + β)(1 − ρ), at most 0.007, and OFFSET."""
LIMIT = 0.01
"""Largest relative error of the limit of 1 − ρ. At late times the equation is within a tenth of it."""
TOO_LATE = "the equations have no late time that can be simulated"
LATEST = {"exponential": 1e3, "power": 1e8, "none": 40.0}
"""The t up to which the equations are searched for late times. For "none", tokens have grown by e^{40} then."""
SPECTRUM = (1.2, 0.2, -0.8, -0.9)
"""Eigenvalues of V of the own heads, of which the first d are taken: λ₁ = 1.2 and g = 1."""
LAST, FIRST = 13.0, 8.0
"""Last gs of a cluster, and the gs from which rates are read: other terms are e^{−8} there."""
GROWTH = 16.0
"""Largest λ₁s of a given head: t is about e^{λ₁s} for pre and peri."""
CONDITION = 1e3
"""Largest norm of the spectral projector of a given V."""
LONGEST = 500.0
"""Largest ‖V‖s of a given head, a measure of the number of steps."""
QUICK = ((5, 0.0, 2.0, 1.0), (8, 0.3, 4.0, 2.0))
"""(n, ρ(0), β, radius at t = 0) of each case; the radius is for pre and peri."""
FULL = (*QUICK, (3, -0.3, 3.0, 0.5), (16, 0.1, 5.0, 1.0), (32, 0.0, 5.0, 3.0), (64, 0.2, 6.0, 1.0))


def last(head: Head) -> float:
    """The last s of a cluster."""
    top = head.theory().terminal
    return min(LAST / top.gap, GROWTH / top.leading)


def obstacle(head: Head) -> str | None:
    """Why a cluster under this head does not come to an eigenvector, or None if it does."""
    top = head.theory().terminal
    if top.rotates or top.leading <= top.tolerance or not top.semisimple or math.isinf(top.gap):
        return "the clocks need a real, positive and semisimple top eigenvalue of V that is not the only one"
    if top.projector_norm > CONDITION:
        return f"the spectral projector of V has the norm {top.projector_norm:.2g}; orbits cannot be followed precisely"
    if top.norm * last(head) > LONGEST:
        return f"this head is slow (‖V‖ is {top.norm / top.gap:.3g} times the gap): the run would be too long"
    return None


def own_head(d: int, seed: int) -> Head:
    """V = X diag(SPECTRUM) X⁻¹ with X = S + 0.2·G/√d, S a rotation and G Gaussian; B is Gaussian."""
    rng = np.random.default_rng([d, seed])
    X = np.linalg.qr(rng.standard_normal((d, d)))[0] + 0.2 * rng.standard_normal((d, d)) / math.sqrt(d)
    V = X @ np.diag(SPECTRUM[:d]) @ np.linalg.inv(X)
    return Head.from_interaction(torch.from_numpy(rng.standard_normal((d, d))), torch.from_numpy(V))


def follow_tokens(
    norm: str, case: tuple[int, float, float, float], times: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean 1 − ρ of the pairs of simulated tokens, 1 − ρ of the equations, (T,) each, and the largest error."""
    n, rho, beta, radius = case
    radius = radius if norm in ("pre", "peri") else 1.0
    # The projections of the basis vectors orthogonal to 1 = (1, …, 1) and along 1, scaled: rows with the cosine ρ.
    points = math.sqrt(1 - rho) * (np.eye(n) - 1 / n) + math.sqrt(1 + (n - 1) * rho) / n
    options = {"tol": TOKENS_TOL, "t_eval": times.tolist(), "radius": radius, "progress": False}
    run = simulate(Block(identity(n), norm=norm), Cloud(points), beta, float(times[-1]), **options)
    exact, radii = equiangular(n, beta, rho, norm, times, radius)
    first, second = np.triu_indices(n, 1)
    # |x_i − x_j|²/2 keeps the digits that 1 − ⟨x_i, x_j⟩ loses.
    gaps = 0.5 * (run.frames[:, first] - run.frames[:, second]).square().sum(dim=2).numpy()
    error = np.abs(gaps - (1 - exact)[:, None]).max()
    if run.radii is not None:
        # Without normalisation the package shows z = e^{−t}h.
        shown = radii * np.exp(-times) if norm == "none" else radii
        error = max(error, np.abs(run.radii.numpy() / shown[:, None] - 1).max())
    return gaps.mean(axis=1), 1 - exact, float(error)


def follow_cluster(head: Head, norm: str, seed: int, frames: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """t at equally spaced s, |x − e| of the simulation and of the orbit, (T,) each, and the largest error.

    The start has the direction of e + z, with e in the top eigenspace of V and z in the span of the other ones.
    """
    V, projector = head.V.numpy(), head.theory().terminal.projector.numpy()
    drawn = np.random.default_rng(seed).standard_normal(len(V))
    e, z = (part / np.linalg.norm(part) for part in (projector @ drawn, drawn - projector @ drawn))
    start = (e + z) / np.linalg.norm(e + z)

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        ahead, length = V @ state[:-1], np.linalg.norm(state[:-1])
        clock = np.linalg.norm(ahead) if norm in ("ngpt", "peri") else length
        return np.append(ahead, clock / length if norm in SPHERES else clock)

    s = np.linspace(0, last(head), frames)
    state = solve_ivp(slope, (0.0, s[-1]), [*start, 0.0], "DOP853", s, rtol=1e-12, atol=1e-12).y.T
    orbit, times = state[:, :-1], state[:, -1]
    lengths = np.linalg.norm(orbit, axis=1)
    options = {"tol": CLUSTER_TOL, "t_eval": times.tolist(), "progress": False}
    run = simulate(Block(head, norm=norm), Cloud(start[None]), 1.0, float(times[-1]), **options)
    x, exact = run.frames[:, 0].numpy(), orbit / lengths[:, None]
    error = np.linalg.norm(x - exact, axis=1).max()
    if run.radii is not None:
        error = max(error, np.abs(run.radii[:, 0].numpy() / lengths - 1).max())
    return times, np.linalg.norm(x - e, axis=1), np.linalg.norm(exact - e, axis=1), float(error)


def late_from(norm: str, case: tuple[int, float, float, float]) -> float:
    """The t from which the equations are as their law at late times, within the tolerances; inf if that is too late.

    Tokens that start far apart wait for long, and pre-LN turns the time that they wait into a power of it.
    """
    (n, rho, beta, radius), kind = case, clustering_exponent(norm).kind
    t = np.geomspace(0.1, LATEST[kind], 400)
    cosines, radii = equiangular(n, beta, rho, norm, t, radius if kind == "power" else 1.0)
    gap = 1 - cosines
    early = gap > LATE
    if kind == "power":
        early |= np.abs(radii / t - 1) > OFFSET
    if kind == "none":
        # A limit below 1e-6 is lost in the rounding of ρ.
        early = (np.abs(gap - gap[-1]) > 0.1 * LIMIT * gap[-1]) | (gap[-1] < 1e-6)
    since = t[min(int(np.flatnonzero(early)[-1]) + 1, len(t) - 1)] if early.any() else t[0]
    return float(since) if since <= 0.5 * LATEST[kind] else math.inf


def _tokens(found: Finding, picture: Picture, norm: str, case: tuple[int, float, float, float], frames: int) -> None:
    """Equiangular tokens under one normalisation."""
    n, rho, beta, _ = case
    law, name, since = clustering_exponent(norm), f"{norm}, n = {n}, β = {beta:g}", late_from(norm, case)
    power, seen = law.kind == "power", since if math.isfinite(since) else 10.0
    # A decade of t, or a time in which 1 − ρ falls by e^{−10} under post-LN and has to stay where it is without norm.
    end = 10 * seen if power else seen + 5
    times = np.append(0.0, np.geomspace(0.01, end, frames)) if power else np.linspace(0, end, frames)
    gap, exact, error = follow_tokens(norm, case, times)
    found.within(f"largest error of cosines and radii, {name}", error, high=TOKENS)
    predicted, quantity = law.exponent, {"exponential": "rate", "power": "exponent of t", "none": "limit"}[law.kind]
    title = f"{quantity} of 1 − ρ, {name}"
    if law.kind == "none":
        predicted, measured = float(1 - equiangular(n, beta, rho, norm, [LATEST["none"]])[0][0]), float(gap[-1])
        if math.isfinite(since):
            found.near(f"1 − ρ at the end over its limit, {name}", measured / predicted, LIMIT)
        else:
            found.undecided(title, TOO_LATE)
    else:
        late = times >= since
        measured = _slope(found, title, times[late], gap[late], power, predicted)
    row = {"norm": norm, "n": n, "ρ(0)": rho, "β": beta, "quantity": quantity, "predicted": predicted}
    found.row("equiangular tokens", {**row, "measured": measured, "last t": end, "largest error": error})
    if len(picture.series) < 2 * len(NORMS):
        picture.add(norm, times[1:], gap[1:])
        picture.add(f"exact, {norm}", times[1:], exact[1:], "dotted")


def _slope(found: Finding, name: str, t: np.ndarray, y: np.ndarray, power: bool, predicted: float) -> float:
    """Check that y ~ e^{−predicted·t}, or t^{−predicted}, and return the measured number."""
    low, high, clock = (1 - RATE) * predicted, (1 + RATE) * predicted, np.log(t) if power else t
    fit = found.slope(name, -clock, np.log(y), low, high, TOO_LATE)
    return math.nan if fit is None else fit.slope


def _cluster(
    found: Finding, picture: Picture, head: Head, name: str, seed: int, norm: str, frames: int, rates: bool
) -> None:
    """One cluster under one normalisation. The rates are those of a V whose later eigenvalues are well apart."""
    top, power, panel = head.theory().terminal, norm in ("pre", "peri"), len(picture.panels) - 1
    times, away, exact, error = follow_cluster(head, norm, seed, frames)
    found.within(f"largest error of the orbit and the radius, {norm}, {name}", error, high=CLUSTER)
    quantity, predicted = "exponent of t" if power else "rate", top.gap if norm == "post" else top.gap / top.leading
    row = {"norm": norm, "head": name, "quantity": quantity, "predicted": predicted, "measured": "–"}
    if rates:
        late = np.linspace(0, last(head) * top.gap, len(times)) >= FIRST
        row["measured"] = _slope(found, f"{quantity}, {norm}, {name}", times[late], away[late], power, predicted)
    found.row("clusters", {**row, "last t": times[-1], "largest error": error})
    if sum(series.panel == panel for series in picture.series) < 8:
        picture.add(norm, times[1:], away[1:], panel=panel)
        picture.add(f"exact, {norm}", times[1:], exact[1:], "dotted", panel=panel)


@claim("normalisation", "Normalisation sets the clock", obstacle=obstacle)
def check(
    head: Head | None,
    tell: Tell,
    cases: tuple[tuple[int, float, float, float], ...] = size(QUICK, full=FULL),
    seeds: tuple[int, ...] = size((0,), full=(0, 1, 2, 3, 4, 5, 6, 7)),
    dims: tuple[int, ...] = size((2, 3), full=(2, 3, 4)),
    frames: int = size(57, full=141),
) -> Finding:
    """For B = V = I equiangular tokens follow scalar equations. With t in layers, 1 − ρ falls like e^{−2t} for post-LN
    and nGPT and like t^{−2} for pre-LN and peri-LN (Karagodin et al., arXiv 2510.22026). It has a positive limit
    without normalisation for β > 0 [derived]. A single cluster has the same orbit h/|h|, h = e^{sV}x₀, under post-LN,
    nGPT, pre-LN and peri-LN. Only the clock differs: dt/ds = 1, |Vh|/|h|, |h| and |Vh| [derived].

    Compare tokens with the equations, and clusters with their orbits; a given head takes part in the second only.

    cases : (n, ρ(0), β, radius at t = 0) of equiangular tokens
    seeds, dims : the random heads of the clusters, and where the clusters start
    frames : the number of saved times of each run
    """
    found = Finding("a cluster to gs = 13" if head is None else f"a cluster to s = {last(head):.3g}")
    panels = [Panel("time t in layers", "distance of a cluster from its limit", log_x=True, log_y=True)]
    if head is None:
        found.horizon = f"tokens until 1 − ρ is small, {found.horizon}"
        panels.insert(0, Panel("time t in layers", "1 − ρ of equiangular tokens", log_x=True, log_y=True))
    picture = found.picture(
        "The clocks of normalisations",
        "Lines: simulated. Dots: exact. Pre-LN and peri-LN are straight lines in this picture, powers of t.",
        *panels,
    )
    if head is None:
        for case, norm in told([(case, norm) for case in cases for norm in NORMS], tell, end=0.7):
            _tokens(found, picture, norm, case, frames)
    own = [(f"d = {d}, seed {seed}", seed, own_head(d, seed)) for seed in seeds for d in dims]
    heads = own if head is None else [(f"the given head, seed {seed}", seed, head) for seed in seeds]
    for name, seed, one in told(heads, tell, 0.7 if head is None else 0.0):
        for norm in ("post", "ngpt", "pre", "peri"):
            _cluster(found, picture, one, name, seed, norm, frames, rates=head is None)
    worst = max(row["largest error"] for row in found.tables["clusters"])
    found.sentence = f"clusters follow one orbit at four clocks to {worst:.1e}"
    if head is None:
        rows = found.tables["equiangular tokens"]
        rate, power = (np.mean([row["measured"] for row in rows if row["norm"] == norm]) for norm in ("post", "pre"))
        found.sentence += f"; 1 − ρ falls like e^(−{rate:.3f}t) under post-LN and like t^(−{power:.3f}) under pre-LN"
    return found
