"""The engines by name, and the choice between them for engine="auto"."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from metastable.arrays import real
from metastable.attention.compilation import cells_ready, missing
from metastable.attention.dense import dense, dense_sums
from metastable.attention.direct import direct, direct_sums
from metastable.attention.flash import flash, flash_sums
from metastable.errors import BadInput, choice

ENGINES = {"dense": dense, "flash": flash, "direct": direct}
"""The engines that are exact up to rounding."""

SUMS = {"dense": dense_sums, "flash": flash_sums, "direct": direct_sums}
"""The same engines with log Z."""

EXPONENTIAL = ("softmax", "unnormalised")
"""The kernels that are sums of exponentials. Every engine computes them; the others have the engine "dense" only."""

FEW_PAIRS = 40_000
"""Up to this many (query, token) pairs `dense` is used, and nothing is compiled."""

DIRECT_UP_TO = 16
"""The largest dimension for which `direct` was measured to be quicker than `flash`: see benchmarks/direct.py."""

TREE_FROM = {2: (1_500, 1e-9), 3: (5_000, 1e-9), 4: (75_000, 1e-3)}
"""By dimension, the N·n/(N + n) from which `tree` is used instead of `direct`, and down to which tolerance.

For d = 2 and 3 most clouds of benchmarks/crossover.py cost less with the tree from there on, up to seven times less,
and uniform clouds at β = 10⁴ up to a half more. The numbers lie between sizes that were measured on a busy machine,
2 500 and 4 000 tokens for d = 2, 9 000 and 12 000 for d = 3. The number for d = 4 is a guess.
"""

EITHER = "direct or tree"
"""The tree where tokens lie in few places, and `direct` elsewhere: see `crowded`. The error is at most `tol`."""

EITHER_FROM = {3: 1_250}
"""By dimension, the N·n/(N + n) from which the tree costs less than `direct` for tokens in one place."""

PER_CELL = 25
"""The N·n/(N + n) by which each further place raises that threshold: see `crowded` and benchmarks/crossover.py."""

CLUSTERED_FROM, CLUSTERED_PAIRS, CLUSTERED_TOKENS, FINEST = 4, 1e9, 5_000, 1e-9
"""The dimension, the number of (query, token) pairs, and of tokens and of queries, from which "auto" looks for
clusters, and down to which tolerance. Looking takes one or two per cent of the time of all pairs, or less."""

CLUSTERED = 0.25
"""Up to this share of visible pairs the tree is taken to be quicker than all pairs, in the same or in higher precision:
see benchmarks/clusters.py."""

CAUSAL_TREE_FROM = {2: (8_000, 1e-9), 3: (10_000, 1e-9)}
"""By dimension, the N·n/(N + n) from which `tree` is used instead of `direct` under a causal mask, where n = N:
guesses from the thresholds against `flash`. benchmarks/causal.py compares the two and is still to be recorded."""


def choose(
    engine: str,
    log_weights: Tensor,
    d: int,
    queries: int,
    tol: float,
    kernel: str = "softmax",
    causal: bool = False,
    without: Collection[str] | None = None,
    at: tuple[Tensor, Tensor] | None = None,
) -> str:
    """The engine that `engine` stands for: itself, or for "auto" the quickest one that keeps to `tol` and is ready.

    without : the engines that "auto" does not take. By default those that are not compiled yet; their compilation is
        then started in the background, see `compilation`
    at : the points and the queries; without them "auto" cannot see whether tokens in `CLUSTERED_FROM` or more
        dimensions are clustered
    """
    if engine == EITHER and kernel == "softmax" and not causal:
        return engine
    choice(engine, "engine", ("auto", *ENGINES, "tree"))
    if kernel not in EXPONENTIAL:
        if engine not in ("auto", "dense"):
            raise BadInput(
                f"engine is {engine!r}, which computes sums of exponentials only; "
                f"for the kernel {kernel!r} use 'dense' or 'auto'"
            )
        return "dense"
    if engine != "auto":
        return engine
    best = quickest(log_weights, d, queries, tol, causal)
    if best == EITHER and kernel != "softmax":
        best = "direct"
    if best != "tree" and not causal and at is not None and _clustered(log_weights, *at, tol, without):
        return "tree"
    if without is None:
        without = missing(best, d, log_weights.dtype, float(queries) * len(log_weights))
    return next(name for name in (best, "direct", "flash") if not set(needed(name)) & set(without))


def needed(engine: str) -> tuple[str, ...]:
    """The engines that an engine is made of."""
    return tuple(engine.split(" or "))


def crowded(points: Tensor, queries: Tensor) -> bool:
    """Whether so many tokens lie in so few places that the tree is quicker than `direct`.

    Places are cubes of side max |u|^(−1/2): on the sphere, the width of e^{⟨u,y⟩} about its maximum. With the share p_c
    of the tokens in cube c, there are in effect 1/Σp_c² places.
    """
    longest = float(torch.linalg.vector_norm(queries, dim=1).max())
    if not math.isfinite(longest) or not bool(torch.isfinite(points).all()):
        return False
    cells = torch.floor(points.double() * math.sqrt(longest)).long()
    number = cells[:, 0]
    for k in range(1, cells.shape[1]):
        column = cells[:, k] - cells[:, k].min()
        number = number * (int(column.max()) + 1) + column
    share = torch.unique(number, return_counts=True)[1] / len(points)
    places = 1 / float(share.square().sum())
    start = EITHER_FROM.get(points.shape[1], math.inf)
    return _size(points.dtype, len(points), len(queries)) > start + PER_CELL * places


def _size(dtype: torch.dtype, n: int, queries: int) -> float:
    """N·n/(N + n), a third of it in float32, where `direct` is quicker and the tree is not."""
    return n * queries / (n + queries) / (3 if dtype == torch.float32 else 1)


def _clustered(
    log_weights: Tensor, points: Tensor, queries: Tensor, tol: float, without: Collection[str] | None
) -> bool:
    """Whether the tree is quicker than all pairs because the tokens are clustered, and ready.

    This is tried on a sample, for some milliseconds, and only where all pairs would take much longer.
    """
    d, pairs = points.shape[1], float(len(points)) * len(queries)
    worth = pairs >= CLUSTERED_PAIRS and min(points.shape[0], len(queries)) >= CLUSTERED_TOKENS
    if not (worth and d >= CLUSTERED_FROM and points.device.type == "cpu" and FINEST <= tol < 1):
        return False
    if not bool(torch.isfinite(queries).all()):
        return False
    if "tree" in without if without is not None else not cells_ready():
        return False
    from metastable.attention.cells import visible_share

    y, logs, u = (a.detach().double().numpy() for a in (points, log_weights, queries))
    return visible_share(y, logs, u, float(tol)) <= CLUSTERED


def quickest(log_weights: Tensor, d: int, queries: int, tol: float, causal: bool = False) -> str:
    """The engine that is expected to take the shortest time.

    The tree costs about a(N + n) and direct b·N·n, so the tree is quicker from N·n/(N + n) = a/b on. In three
    dimensions a is up to ten times smaller for tokens in few places than for others: between the two thresholds
    `EITHER` looks at the tokens. In more dimensions the tree is quicker for clustered clouds only: see
    `choose`. Under a causal mask the tree costs about a·N·log N and direct half of b·N², with a threshold of its
    own.
    """
    n = len(log_weights)
    on_cpu = log_weights.device.type == "cpu"
    start, finest = (CAUSAL_TREE_FROM if causal else TREE_FROM).get(d, (math.inf, math.inf))
    if on_cpu and finest <= real(tol, "tol", "it is a tolerance") < 1:
        size = _size(log_weights.dtype, n, queries)
        if size > start:
            return "tree"
        if not causal and size > EITHER_FROM.get(d, math.inf):
            return EITHER
    if queries * n <= FEW_PAIRS:
        return "dense"
    return "direct" if on_cpu and d <= DIRECT_UP_TO else "flash"
