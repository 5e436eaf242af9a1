"""Several heads: when they are one head, how they move a cluster, and where they lead tokens.

A block of heads moves tokens by x' = P_x Σ_h V_h m_h(x), with m_h the softmax mean of head h. Derived here:

- *The same B.* All m_h are equal, so heads (B, V₁) and (B, V₂) are the one head (B, V₁ + V₂), at every β.
- *One cluster.* If all tokens are at x, then m_h = x for every head, so x' = P_x Vx with V = Σ_h V_h. For all B_h and β
  the cluster follows x(t) = e^{tV}x₀/|e^{tV}x₀|. In a cluster much narrower than (β‖B_h‖)^{−1/2} every m_h is close to
  the centre, and the centre moves in the same way.
- *Different B.* For a law of full support and β → ∞, m_h tends to B_hᵀx/|B_hᵀx| with an error of the order 1/β, and
  tokens follow F(x) = Σ_h P_x V_h B_hᵀx/|B_hᵀx| to its stable fixed points. There is no formula for these points, and
  the package searches for them. The reference follows tokens along F with scipy.

For V_h = B_h, F is the gradient of Σ_h |B_hᵀx|. The heads of the last experiment are close to that: head h has
B = 0.35 I + 0.65 aaᵀ with an axis a of its own, and the d axes are nearly orthogonal. Each |B_hᵀx| is least on the
plane orthogonal to the axis. The d planes cut the sphere into 2^d parts with one stable fixed point each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from metastable.block import Block
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, size, told
from metastable.cloud import Cloud, equally_spaced, uniform
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.theory.block import BlockTheory

TOL = 1e-10
"""Tolerance of a time step."""
UNTIL = 2.0
"""Last time of runs against one head and against e^{tV}, in 1/‖V‖."""
SAME = 1e-6
"""Largest distance of tokens under two heads from those under one. Both runs take the same steps. Rounding of 1e-15 is
enlarged in unstable directions, by a factor far below 1e9 at the times and β of the runs."""
DIRAC = 1e-6
"""Largest distance of coinciding tokens from e^{tV}x₀: TOL in each of some hundred steps, enlarged e^{2·UNTIL}-fold."""
WIDTH = 1e-4
"""Distance of the tokens of a narrow cluster from its centre at t = 0."""
PATH = 1e-3
"""Largest distance of its centre from e^{tV}x̄: tokens see the centre up to β‖B‖·width², at most 1e-4 by UNTIL."""
LOW, LEAN, NOISE = 0.35, 0.1, 0.05
"""Of the heads with different B: the least eigenvalue of B, the tilt of the axes, and the size of B⁻¹V − I."""
ARRIVED = 0.01
"""Tokens that follow F for a time of 12/rate come this close to their stable fixed point ..."""
SHARE = 0.99
"""... except for a share of 0.01: the package may misjudge tokens that start within 1e-3 of the edge of a basin."""
SIGMAS = 5.0
"""Largest difference between the shares of two random samples, in standard deviations."""
EXPONENT = 0.1
"""Largest error of the exponent −1 of β between the two largest β. The next order is 1/(β|Bᵀx|), at most 0.004, times
the steepening of the density until t = 1, at most tenfold."""


def unit(x: np.ndarray) -> np.ndarray:
    """x/|x| for each row."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def norm_of(matrix: torch.Tensor) -> float:
    """‖matrix‖₂, or 1 for a matrix of zeros: the unit of 1/β and of 1/t."""
    return float(torch.linalg.matrix_norm(matrix, 2)) or 1.0


def random_head(d: int, rng: np.random.Generator) -> Head:
    """B and V with independent normal entries of variance 1/d."""
    B, V = rng.standard_normal((2, d, d)) / math.sqrt(d)
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(V))


def crossed_heads(d: int, seed: int) -> list[Head]:
    """d heads with different B, as the module describes them."""
    rng = np.random.default_rng([d, seed])
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0] + LEAN * rng.standard_normal((d, d)) / d
    heads = []
    for a in unit(axes.T):
        B = LOW * np.eye(d) + (1 - LOW) * np.outer(a, a)
        V = B @ (np.eye(d) + NOISE * rng.standard_normal((d, d)) / math.sqrt(d))
        heads.append(Head.from_interaction(torch.from_numpy(B), torch.from_numpy(V)))
    return heads


def apart(head: Head, parts: Sequence[Head], beta: float, cloud: Cloud) -> float:
    """Largest distance at any time between the same token under the head and under the block of its parts."""
    until = UNTIL / norm_of(head.V)
    one, several = (simulate(m, cloud, beta, until, tol=TOL, t_eval=9, progress=False) for m in (head, Block(parts)))
    return float((one.frames - several.frames).norm(dim=2).max())


def cluster(
    heads: Sequence[Head], beta: float, width: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight tokens around a random point: times (T,), their centre, and e^{tV} applied to its start, (T, d)."""
    V = np.sum([head.V.numpy() for head in heads], axis=0)
    points = unit(rng.standard_normal(len(V))) + width * unit(rng.standard_normal((8, len(V))))
    until = UNTIL / norm_of(torch.from_numpy(V))
    run = simulate(Block(heads), Cloud(points), beta, until, tol=TOL, t_eval=21, progress=False)
    centre = unit(run.frames.mean(dim=1).numpy())
    return run.times.numpy(), centre, unit(np.stack([expm(float(t) * V) @ centre[0] for t in run.times]))


def along(heads: Sequence[Head], x: np.ndarray, until: float) -> np.ndarray:
    """Tokens (n, d) after the time `until` under F, by scipy."""

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        y = unit(flat.reshape(x.shape))
        f = np.sum([unit(y @ head.B.numpy()) @ head.V.numpy().T for head in heads], axis=0)
        return np.asarray(f - (f * y).sum(axis=1, keepdims=True) * y).ravel()

    return unit(solve_ivp(slope, (0.0, until), x.ravel(), "DOP853", [until], rtol=1e-9, atol=1e-9).y.reshape(x.shape))


def _parts(found: Finding, picture: Picture, head: Head, seed: int, betas: tuple[float, ...]) -> None:
    """A head against two parts with random V₁ and V₂ = V − V₁, and clusters under these parts with two different B."""
    rng, d, scale = np.random.default_rng([seed, head.dim]), head.dim, norm_of(head.B)
    V = random_head(d, rng).V * norm_of(head.V)
    first, second = (Head.from_interaction(head.B, part) for part in (V, head.V - V))
    other = Head.from_interaction(random_head(d, rng).B * scale, second.V)
    for strength in betas:
        case = f"d = {d}, seed {seed}, β‖B‖ = {strength:g}"
        same = apart(head, (first, second), strength / scale, uniform(16, d, seed))
        found.within(f"distance of two heads from one, {case}", same, high=SAME)
        row = {"d": d, "seed": seed, "β‖B‖": strength, "two heads from one": same}
        for name, width, allowed in (("coinciding tokens", 0.0, DIRAC), ("narrow cluster", WIDTH, PATH)):
            times, centre, exact = cluster((first, other), strength / scale, width, rng)
            row[f"{name} from e^(tV)"] = off = float(np.linalg.norm(centre - exact, axis=1).max())
            found.within(f"distance from e^(tV), {name}, {case}", off, high=allowed)
        found.row("largest distances", row)
    if len(picture.series) < 8:
        way, predicted = (np.linalg.norm(path - centre[0], axis=1) for path in (centre, exact))
        picture.add(f"d = {d}, seed {seed}", times, way)
        picture.add(f"e^(tV), d = {d}, seed {seed}", times, predicted, "dotted")


def _fixed_points(found: Finding, picture: Picture, d: int, seed: int, tokens: int) -> None:
    """The ends of tokens that follow F against the fixed points that the package finds, and their shares."""
    block, case = Block(crossed_heads(d, seed)), f"d = {d}, seed {seed}"
    theory = block.theory()
    assert isinstance(theory, BlockTheory)
    if theory.no_limit is not None:
        found.undecided(f"ends of tokens, {case}", theory.no_limit)
        return
    x, stable, share = uniform(tokens, d, seed + 1).points, theory.fixed_points.stable.numpy(), theory.basins.share
    ends = along(block.heads, x.numpy(), 12 / theory.rate)
    arrived = float((np.linalg.norm(ends - theory.limit(x).numpy(), axis=1) <= ARRIVED).mean())
    found.within(f"share of tokens at their fixed points, {case}", arrived, low=SHARE)
    measured = (np.linalg.norm(ends[:, None] - stable, axis=2) <= ARRIVED).mean(axis=0)
    p = np.clip(share, 1 / theory.basins.n, 1 - 1 / theory.basins.n)
    deviation = np.sqrt(p * (1 - p) * (1 / tokens + 1 / theory.basins.n))
    off = float((np.abs(measured - share) / deviation).max())
    found.within(f"largest error of a share in standard deviations, {case}", off, high=SIGMAS)
    shares = {"least share": share.min(), "largest share": share.max(), "error in standard deviations": off}
    row = {"d": d, "seed": seed, "stable points": len(stable), "slowest rate": theory.rate, "arrived": arrived}
    found.row("fixed points", {**row, **shares})
    picture.add(f"d = {d}, seed {seed}", share, measured, "points", panel=2)


def _cold(found: Finding, picture: Picture, seed: int, betas: tuple[float, ...], spaced: int) -> float:
    """Tokens of the circle at t = 1 against F: the exponent of β in their mean distance."""
    heads, cloud = crossed_heads(2, seed), equally_spaced(spaced)
    exact = along(heads, cloud.points.numpy(), 1.0)
    ends = [simulate(Block(heads), cloud, b, 1.0, tol=1e-7, t_eval=2, progress=False).final.points for b in betas]
    distances = [float(np.linalg.norm(end.numpy() - exact, axis=1).mean()) for end in ends]
    exponent = math.log(distances[-1] / distances[-2]) / math.log(betas[-1] / betas[-2])
    found.within(f"exponent of β in the distance from F, seed {seed}", exponent, -1 - EXPONENT, -1 + EXPONENT)
    picture.add(f"d = 2, seed {seed}", betas, distances, panel=1)
    return exponent


@claim("multi-head", "Several heads")
def check(
    head: Head | None,
    tell: Tell,
    seeds: tuple[int, ...] = size((0,), full=(0, 1, 2, 3, 4, 5, 6, 7)),
    dims: tuple[int, ...] = size((2, 3), full=(2, 3, 4)),
    betas: tuple[float, ...] = size((0.0, 2.0, 50.0), full=(0.0, 1.0, 5.0, 20.0, 100.0)),
    tokens: int = size(300, full=2000),
    cold: tuple[float, ...] = size((400.0, 800.0, 1600.0), full=(400.0, 800.0, 1600.0, 3200.0)),
    spaced: int = size(1000, full=2000),
) -> Finding:
    """Heads with the same B are one head with the sum of their V, at every β. A narrow cluster moves by the sum of the
    V_h alone. At low temperature tokens of a law with full support follow F = Σ_h P_x V_h B_hᵀx/|B_hᵀx| with an error
    of the order 1/β, and F leads to its stable fixed points [derived].

    Compare a head with its parts, and clusters with e^{tV}; then the ends of F with the fixed points that the package
    finds, and tokens at large β with F. A given head takes part in the first two experiments.

    seeds, dims : the random heads, parts and tokens
    betas : β‖B‖ of the first two experiments
    tokens : random tokens that follow F to its fixed points
    cold, spaced : β, and the number of equally spaced tokens on the circle, of the last experiment
    """
    found = Finding(f"t ≤ {UNTIL:g}/‖V‖ at β‖B‖ = {min(betas):g} … {max(betas):g}")
    panels = [Panel("time t", "way of a cluster")]
    caption = "First the way of a narrow cluster under two heads (lines) and under e^(tV) (dots)."
    if head is None:
        found.horizon += f", t = 1 at β = {min(cold):g} … {max(cold):g}, 12/rate along F"
        panels.append(Panel("inverse temperature β", "mean distance from F", log_x=True, log_y=True))
        panels.append(Panel("predicted share of a fixed point", "measured share"))
        caption += " Then how far tokens of the circle are from F at t = 1, and where tokens that follow F end."
    picture = found.picture("Clusters and fixed points of several heads", caption, *panels)
    cases = [(d, seed) for seed in seeds for d in (dims if head is None else (head.dim,))]
    for d, seed in told(cases, tell, end=0.4):
        one = random_head(d, np.random.default_rng([d, seed])) if head is None else head
        _parts(found, picture, one, seed, betas)
    rows = found.tables["largest distances"]
    same, dirac = (max(row[key] for row in rows) for key in ("two heads from one", "coinciding tokens from e^(tV)"))
    found.sentence = (
        f"two heads with the same B are one head to {same:.1e}, and a cluster follows e^(tV) to {dirac:.1e}"
    )
    if head is None:
        for d, seed in told(cases, tell, 0.4, 0.8):
            _fixed_points(found, picture, d, seed, tokens)
        exponents = [_cold(found, picture, seed, cold, spaced) for seed in told(seeds, tell, 0.8)]
        off = max(exponents, key=lambda exponent: abs(exponent + 1))
        found.sentence += f"; the distance from the zero-temperature field falls like β^({off:.3f})"
    return found
