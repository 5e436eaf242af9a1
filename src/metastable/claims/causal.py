"""Causal attention: the first token moves by V alone, later tokens change nothing for earlier ones, and clusters park.

Under a causal mask token j attends to the tokens 1 … j. Four statements are tested (Karagodin, Polyanskiy and Rigollet,
"Clustering in causal attention masking", arXiv 2411.04990).

1. The first token attends to itself only: x_1(t) = e^{tV}x_1/|e^{tV}x_1|, for all B, V and β.
2. The first n tokens move as if there were no others.
3. For V = I and every B, almost every start converges to x_1(0). Time needed: with a the attention of token 2 to token
   1 and φ their angle, φ' = −a sin φ, so log tan(φ/2) falls at the rate a. For ‖B‖ = 1 scores differ by at most 2β, and
   a ≥ 1/(1 + e^{2β}).
4. For B = V = I on the circle, strong Rényi centres with δ = 4β^{−1/2} (see `theory.causal`) are nearly at rest. Each
   of their few earlier tokens pulls with a speed of at most δe^{−8}, so that by t = 20 they have moved by about δ/100.
   Clusters are therefore at least as many as strong centres. On the other side, two equal clusters at the distance
   aβ^{−1/2} meet after about ∫e^{a²/2}da/a = Ei(a²/2)/2, which is 20 at a² = 10. This suggests at most as many
   clusters as cars of length √10 β^{−1/2} park on the circle. This upper end is an estimate and not a theorem.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from metastable.block import Block
from metastable.claims.clusters import count
from metastable.claims.experiment import Finding, Panel, Picture, Tell, claim, line, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud, uniform
from metastable.flow.exact import value_flow
from metastable.flow.fields import velocity
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.theory.causal import expected_renyi_centres, renyi_centres

TOKENS, STEPS = 48, 100
"""Tokens of statements 1 to 3, and steps of the classical Runge–Kutta method up to t = 2/‖V‖ in statements 1 and 2."""
FIRST = 1e-6
"""Largest error of the first token. Its field P_x Vx has derivatives of the order of ‖V‖: (2/STEPS)⁴e⁴/120 ≈ 1e-7."""
PREFIX = 1e-9
"""Largest change of earlier tokens by later ones. Only the order of sums differs: 1e-15, times the growth of errors."""
WAIT = 20.0
"""Statement 3 is followed to t = WAIT·(1 + e^{2β}). From 90 degrees token 2 needs log(2/ARRIVED) = 10 units."""
ARRIVED, AT_REST = 1e-4, 1e-6
"""Distance from the first token at which a token has arrived, and speed below which it has come to rest elsewhere."""
CLUSTERED, SPACING, CLOSEST = 20.0, 4.0, math.sqrt(10.0)
"""Time of the count of clusters, δ√β of Rényi centres as in the paper, and a in the estimate of statement 4."""
MOVED, EXPONENT = 0.1, 0.1
"""Largest motion of a strong centre over δ, ten times the estimate, and largest error of the exponent ½ of β."""
CLOUDS, ERRORS = 40, 4.0
"""Clouds a seed whose Rényi centres are counted, and standard errors by which a mean may differ: 1 in 16 000."""
VARIANCE = 0.038
"""Variance of the number of parked cars, for each length of a car on the circle."""
BETAS = tuple(50.0 * 2**k for k in range(8))


def random_head(d: int, seed: int, value: torch.Tensor | None = None) -> Head:
    """Gaussian B with ‖B‖₂ = 1, and V: the given one, or Gaussian with entries of variance 1/d."""
    rng = np.random.default_rng(seed)
    B, V = torch.from_numpy(rng.standard_normal((2, d, d)) / math.sqrt(d))
    return Head.from_interaction(B / torch.linalg.matrix_norm(B, 2), V if value is None else value)


def leading_tokens(head: Head, beta: float, seed: int) -> dict[str, float]:
    """Statements 1 and 2: errors of the first token and of the first half of the tokens, up to t = 2/‖V‖."""
    cloud, half = uniform(TOKENS, head.dim, seed), TOKENS // 2
    block, until = Block(head, causal=True), 2 / float(torch.linalg.matrix_norm(head.V, 2))
    both, alone = (
        simulate(block, tokens, beta, until, method="rk4", step=until / STEPS, t_eval=5, progress=False)
        for tokens in (cloud, Cloud(cloud.points[:half]))
    )
    exact = value_flow(head, cloud.points[:1], both.times)
    return {
        "motion of the first token": _largest(exact - exact[0]),
        "its error": _largest(both.frames[:, :1] - exact),
        "change of the first half by the second": _largest(both.frames[:, :half] - alone.frames),
    }


def _largest(difference: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(difference, dim=-1).max())


def approach(head: Head, beta: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Statement 3 for V = vI: times, the largest distance from x_1(0) at each, and the largest speed at the end."""
    until = WAIT * (1 + math.exp(2 * beta)) / float(head.V[0, 0])
    block, cloud = Block(head, causal=True), uniform(TOKENS, head.dim, seed)
    beta = beta / max(float(torch.linalg.matrix_norm(head.B, 2)), 1e-300)
    times = (np.geomspace(1, until + 1, 40) - 1).clip(0, until).tolist()
    run = simulate(block, cloud, beta, until, tol=1e-7, t_eval=times, progress=False)
    far = torch.linalg.vector_norm(run.frames - cloud.points[0], dim=2).amax(dim=1)
    return run.times.numpy(), far.numpy(), _largest(velocity(block, run.final, beta)) / float(head.V[0, 0])


def parked(beta: float, n: int, seed: int) -> tuple[int, int, float]:
    """Statement 4: clusters at t = CLUSTERED, strong centres, and the largest motion of one in units of δ."""
    cloud, delta = uniform(n, 2, seed), SPACING * beta**-0.5
    run = simulate(Block(identity(2), causal=True), cloud, beta, CLUSTERED, tol=1e-4, t_eval=2, progress=False)
    strong = renyi_centres(cloud.points, delta, strong=True)
    moved = _largest(run.final.points[strong] - cloud.points[strong])
    return count(run.final.points, beta), len(strong), moved / delta


def deviation(delta: float, n: int, strong: bool, seeds: tuple[int, ...]) -> tuple[float, float, float]:
    """Mean number of Rényi centres of random clouds, the expected number, and their difference in standard errors."""
    clouds = (uniform(n, 2, 10_000 * (seed + 1) + k) for seed in seeds for k in range(CLOUDS))
    counts = np.array([len(renyi_centres(cloud.points, delta, strong)) for cloud in clouds], dtype=float)
    expected = expected_renyi_centres(delta, n, strong)
    mean, error = float(counts.mean()), max(float(counts.std(ddof=1)) / math.sqrt(len(counts)), 1e-12)
    return mean, expected, (mean - expected) / error


def _obstacle(head: Head) -> str | None:
    return None if bool(head.V.any()) else "V of this head is 0, so that no token moves"


def _followers(
    found: Finding, picture: Picture, head: Head | None, warm: tuple[float, ...], seeds: tuple[int, ...], tell: Tell
) -> str:
    """Add the checks of statement 3; the result in words."""
    farthest = 0.0
    for beta in told(warm, tell, 0.2, 0.4):
        for seed in seeds:
            own = head or random_head(2 + seed % 3, seed, torch.eye(2 + seed % 3, dtype=torch.float64))
            times, far, speed = approach(own, beta, seed)
            end = float(far[-1])
            farthest = max(farthest, end)
            name = f"distance from the first token at the end, d = {own.dim}, β‖B‖ = {beta:g}, seed {seed}"
            if end > ARRIVED and speed > AT_REST:
                found.undecided(name, f"tokens are still moving at t = {times[-1]:.3g}", end)
            else:
                found.within(name, end, high=ARRIVED)
        picture.add(f"β‖B‖ = {beta:g}", times, np.maximum(far, 1e-16))
    return f"for V a multiple of I the farthest token ends at {farthest:.1e} from it"


def _clusters(
    found: Finding, picture: Picture, betas: tuple[float, ...], n: int, seeds: tuple[int, ...], tell: Tell
) -> str:
    """Add the checks of statement 4; the result in words."""
    runs = {beta: np.array([parked(beta, n, seed) for seed in seeds]) for beta in told(betas, tell, 0.4)}
    deltas = [SPACING * beta**-0.5 for beta in betas]
    for beta, delta in zip(betas, deltas, strict=True):
        (clusters, strong, _), moved = runs[beta].mean(axis=0), runs[beta][:, 2].max()
        found.within(f"largest motion of a strong centre over δ, β = {beta:g}", moved, high=MOVED)
        closest = CLOSEST * beta**-0.5
        chance = ERRORS * math.sqrt(VARIANCE * 2 * math.pi / closest / len(seeds))
        most = expected_renyi_centres(closest, n) + chance
        found.within(f"mean number of clusters, β = {beta:g}", clusters, strong, most)
        row = {"beta": beta, "strong centres": strong, "clusters": clusters, "most clusters": most}
        found.row("clusters", {**row, "Rényi centres": expected_renyi_centres(delta, n), "motion over δ": moved})
    every, counts = np.repeat(betas, len(seeds)), np.concatenate([runs[beta][:, 0] for beta in betas])
    fit = line(np.log(every), np.log(counts))
    found.overlapping("exponent of β in the number of clusters", fit.interval, 0.5 - EXPONENT, 0.5 + EXPONENT)
    for strong in (False, True):
        kind = "strong centres" if strong else "Rényi centres"
        mean, expected, errors = deviation(deltas[-1], n, strong, seeds)
        found.within(f"{kind} against the expected number, standard errors", errors, -ERRORS, ERRORS)
        found.row("parking", {"kind": kind, "expected": expected, "mean": mean, "difference, standard errors": errors})
        numbers = [expected_renyi_centres(delta, n, strong) for delta in deltas]
        picture.add(f"{kind}, expected", betas, numbers, "dotted", panel=1)
    picture.add("clusters", every, counts, "points", panel=1)
    ratio = counts.sum() / sum(len(seeds) * expected_renyi_centres(delta, n) for delta in deltas)
    farthest = max(run[:, 2].max() for run in runs.values())
    return (
        f"on the circle strong Rényi centres move by at most {farthest:.3f} δ "
        f"and there are {ratio:.2f} clusters for each Rényi centre, like β^{fit.slope:.2f}"
    )


@claim("causal", "Causal attention", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    scales: tuple[float, ...] = size((1.0, 100.0), full=(0.0, 1.0, 10.0, 100.0, 1000.0)),
    warm: tuple[float, ...] = size((0.0, 1.0), full=(0.0, 0.5, 1.0, 1.5, 2.0)),
    betas: tuple[float, ...] = size(BETAS[:6], full=BETAS),
    tokens: int = size(500, full=2000),
    seeds: tuple[int, ...] = size((0, 1, 2), full=tuple(range(8))),
) -> Finding:
    """With a causal mask the first token moves by V alone, x_1(t) = e^{tV}x_1/|e^{tV}x_1|, and later tokens change
    nothing for earlier ones; for V = I all tokens converge to x_1(0), and before that, for B = V = I on the circle, of
    the order of √β clusters park around Rényi centres (Karagodin et al., arXiv 2411.04990).

    A given head is tested for the first two statements, and for the third if its V is a positive multiple of I.

    scales : β‖B‖ of the first two statements
    warm : β‖B‖ of the third; the time grows like e^{2β‖B‖}
    betas, tokens : β and the number of tokens of the fourth
    """
    found = Finding(f"t ≤ 2/‖V‖, N = {TOKENS}, β‖B‖ = {', '.join(f'{b:g}' for b in scales)}")
    for seed in told(seeds, tell, end=0.2):
        own = random_head(2 + seed % 3, seed) if head is None else head
        norm = max(float(torch.linalg.matrix_norm(own.B, 2)), 1e-300)
        for beta in scales:
            row = leading_tokens(own, beta / norm, seed)
            name = f"d = {own.dim}, β‖B‖ = {beta:g}, seed {seed}"
            found.within(f"error of the first token, {name}", row["its error"], high=FIRST)
            found.within(f"change by later tokens, {name}", row["change of the first half by the second"], high=PREFIX)
            found.row("first tokens", {"d": own.dim, "β‖B‖": beta, "seed": seed, **row})
    worst = max(row["its error"] for row in found.tables["first tokens"])
    words = [f"the first token follows V alone to {worst:.1e}"]
    if head is None or torch.equal(head.V, head.V[0, 0].clamp_min(0) * torch.eye(head.dim).to(head.V)):
        picture = found.picture(
            "Followers of the first token",
            "Distance of the farthest token from the first one, for V a multiple of I. The claim's own heads also have "
            "the number of clusters on the circle at t = 20, beside the expected numbers of Rényi centres.",
            Panel("time t", "largest distance from the first token", log_y=True),
        )
        words.append(_followers(found, picture, head, warm, seeds, tell))
    if head is None:
        found.horizon += f"; clusters at t = {CLUSTERED:g}, N = {tokens}, β = {min(betas):g} … {max(betas):g}"
        picture.panels.append(Panel("inverse temperature β", "number", log_x=True, log_y=True))
        words.append(_clusters(found, picture, betas, tokens, seeds, tell))
    found.sentence = "; ".join(words)
    return found
