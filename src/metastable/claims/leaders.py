"""Hardmax attention without normalisation: tokens that attend to themselves are leaders, and all end in their hull.

With V = I and β = ∞ the rescaled tokens z = e^{−t}h obey z_i' = m_i − z_i, where m_i is the mean of the tokens that
attain max_j ⟨Bz_i, z_j⟩. A step of Euler's method of length α/(1 + α) is the discrete layer of Alcalde, Fantuzzi and
Zuazua, "Clustering in pure-attention hardmax transformers and its role in sentiment analysis" (arXiv 2407.01602), for
tokens divided by (1 + α)^k. They prove for every α > 0 and every symmetric positive definite B:

- A token that attends to itself only is a leader. It stays where it is, and it stays a leader.
- Every token converges to a point of the convex hull of the leaders: a leader or one of finitely many other points.

So Euler's method has no discretisation error here. Heun's method with a short step stands for continuous time. A step
of either is a mean of tokens with positive weights, so that the hull of all tokens can only shrink. A token that
follows a resting leader halves its distance in each step of Euler's method with step ½. One that follows it through a
chain of k others has the distance t^k e^{−t}/k! in continuous time, so that chains delay the end by about k.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import nnls

from metastable.block import Block
from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.cloud import uniform
from metastable.head import Head
from metastable.run.simulation import simulate

METHODS = {"euler": 0.5, "heun": 0.1}
"""Methods and their steps; Euler's step ½ is α = 1."""
UNTIL = 40.0
"""End of a run. A direct follower is then at e^{−40} from its leader; a chain of 10 delays this to about e^{−22}."""
HULL = 1e-6
"""Largest distance from the hull of the leaders at the end: e^{−22} = 3e-10, and the quadratic programs' 1e-8."""
RESTS = 1e-9
"""Largest motion of a leader. Tokens whose scores differ by rounding count as tied, so that it may move by 1e-13."""
MOVING = 1e-9
"""A token that is not in the hull and has a greater speed may still arrive."""
OTHERS = 1e-3
"""Least distance of the farthest final token from the hull of as many other tokens: a thousand times HULL."""
CONDITION = (2.0, 16.0)
"""Range of the condition number of random B. At condition number 1 all unit tokens are leaders."""


def random_head(d: int, seed: int) -> Head:
    """V = I and B = R diag(λ) Rᵀ with a random rotation R.

    The smallest eigenvalue is 1, the largest one log-uniform in CONDITION, and the others log-uniform in between.
    """
    rng = np.random.default_rng(seed)
    R = np.linalg.qr(rng.standard_normal((d, d)))[0]
    largest = rng.uniform(math.log(CONDITION[0]), math.log(CONDITION[1]))
    logs = np.array([0.0, *rng.uniform(0, largest, d - 2), largest])
    B = R @ np.diag(np.exp(logs)) @ R.T
    return Head.from_interaction(torch.from_numpy(0.5 * (B + B.T)), torch.eye(d, dtype=torch.float64))


def leads(z: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Which of the tokens z (n, d) attend to themselves only, (n,); differences that may be rounding do not count."""
    queries = z @ B
    scores = queries @ z.T
    own = scores.diagonal().copy()
    np.fill_diagonal(scores, -math.inf)
    rounding = 1e-14 * np.linalg.norm(queries, axis=1) * np.linalg.norm(z, axis=1).max()
    return np.asarray(own > scores.max(axis=1) + rounding)


def hull_distance(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Distance of each of the points (n, d) from the convex hull of the corners (k, d), (n,)."""
    # The weights' sum is 1 by a penalty; the distance is too small by about its share of 1/penalty².
    penalty = 1e4
    A = np.vstack([corners.T, np.full(len(corners), penalty)])
    found = [nnls(A, np.append(x, penalty))[0] for x in points]
    weights = [w / w.sum() for w in found]
    return np.linalg.norm(np.array(weights) @ corners - points, axis=1)


def followed(head: Head, n: int, seed: int, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Saved times and the tokens z at each of them, (T, n, d)."""
    block, cloud = Block(head, norm="none"), uniform(n, head.dim, seed)
    run = simulate(
        block, cloud, math.inf, UNTIL, method=method, step=METHODS[method], t_eval=int(2 * UNTIL) + 1, progress=False
    )
    assert run.radii is not None
    return run.times.numpy(), (run.frames * run.radii.unsqueeze(2)).numpy()


def distinct(points: np.ndarray) -> int:
    """Number of different points, those within HULL of another being the same."""
    kept: list[np.ndarray] = []
    for x in points:
        if not kept or np.linalg.norm(np.array(kept) - x, axis=1).min() > HULL:
            kept.append(x)
    return len(kept)


def _obstacle(head: Head) -> str | None:
    B, V = head.B.double(), head.V.double()
    if not torch.equal(V, torch.eye(head.dim).to(V)):
        return "the theorem is about V = I, and V of this head is another matrix"
    size_of = float(torch.linalg.matrix_norm(B, 2))
    if float((B - B.T).abs().max()) > 1e-12 * size_of or float(torch.linalg.eigvalsh(B)[0]) <= 1e-9 * size_of:
        return "the theorem is about symmetric positive definite B, and B of this head is not"
    return None


@claim("leaders", "Leaders of hardmax attention", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    dims: tuple[int, ...] = size((2, 3), full=(2, 3, 4)),
    tokens: int = size(60, full=100),
    seeds: tuple[int, ...] = size((0, 1, 2, 3), full=tuple(range(20))),
) -> Finding:
    """At β = ∞ without normalisation, with V = I and B symmetric positive definite, tokens that attend to themselves
    only are leaders: they rest, and every token converges to a point of the convex hull of the leaders (Alcalde,
    Fantuzzi and Zuazua, arXiv 2407.01602).

    Follow random unit tokens under random B, or the given B, by the paper's discrete layers and in continuous time.
    The leaders of a run are the tokens that attend to themselves only at some saved time.
    """
    dims = dims if head is None else (head.dim,)
    found = Finding(f"t ≤ {UNTIL:g}, N = {tokens}, d = {', '.join(map(str, dims))}, {len(seeds)} starts")
    picture = found.picture(
        "Tokens enter the hull of the leaders",
        "Largest distance of a token from the convex hull of the leaders, for the first start in each dimension.",
        Panel("time t", "largest distance from the hull", log_y=True),
    )
    runs = [(d, method, seed) for d in dims for method in METHODS for seed in seeds]
    for d, method, seed in told(runs, tell):
        own = random_head(d, seed) if head is None else head
        B, name = own.B.numpy(), f"d = {d}, {method}, seed {seed}"
        times, path = followed(own, tokens, seed, method)
        led = np.array([leads(z, B) for z in path])
        leaders = led.any(axis=0)
        others = path[0][~leaders][: leaders.sum()]
        if not len(others):
            found.undecided(f"leaders, {name}", "every token is a leader, so that there is nothing to converge")
            continue
        since = led.argmax(axis=0)
        moved = max(
            float(np.linalg.norm(path[since[i] :, i] - path[since[i], i], axis=1).max())
            for i in np.flatnonzero(leaders)
        )
        start, end = (hull_distance(z, path[-1][leaders]) for z in (path[0], path[-1]))
        wrong = float(hull_distance(path[-1], others).max())
        found.within(f"largest motion of a leader, {name}", moved, high=RESTS)
        outside = f"largest distance from the hull of the leaders, {name}"
        speed = np.linalg.norm(path[-1] - path[-2], axis=1)[end > HULL].max(initial=0.0) / (times[-1] - times[-2])
        if speed > MOVING:
            found.undecided(outside, f"tokens outside still move at t = {UNTIL:g}", float(end.max()))
        else:
            found.within(outside, float(end.max()), high=HULL)
        found.within(f"largest distance from the hull of other tokens, {name}", wrong, low=OTHERS)
        numbers = {"leaders at t = 0": led[0].sum(), "leaders": leaders.sum(), "limit points": distinct(path[-1])}
        distances = {
            "motion of a leader": moved,
            "hull, t = 0": start.max(),
            "hull, end": end.max(),
            "hull of others": wrong,
        }
        found.row("leaders", {"d": d, "method": method, "seed": seed, **numbers, **distances})
        if seed == seeds[0]:
            curve = [hull_distance(z, path[-1][leaders]).max() for z in path[::4]]
            picture.add(f"d = {d}, {method}", times[::4], np.maximum(curve, 1e-16))
    rows = found.tables.get("leaders", [])
    if not rows:
        found.sentence = "every token is a leader in every run, so that nothing was decided"
        return found
    farthest, moved = (max(row[name] for row in rows) for name in ("hull, end", "motion of a leader"))
    counts = [row["leaders"] for row in rows]
    found.sentence = (
        f"of {tokens} tokens {min(counts)} to {max(counts)} are leaders; they move by at most {moved:.1e}, "
        f"and all tokens end within {farthest:.1e} of their hull"
    )
    return found
