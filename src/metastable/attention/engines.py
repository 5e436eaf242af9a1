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

TREE_FROM = {2: (2_000, 1e-9), 3: (9_000, 1e-9), 4: (75_000, 1e-3)}
"""By dimension, the N·n/(N + n) from which `tree` is used instead of `direct`, and down to which tolerance.

For d = 2 and 3 it costs less there on the clouds that are worst for it, in trials with two repeats. The number for
d = 4 is a guess. benchmarks/crossover.py compares the two engines and is still to be recorded.
"""

CLUSTERED_FROM, CLUSTERED_PAIRS, CLUSTERED_TOKENS, FINEST = 4, 1e9, 5_000, 1e-9
"""The dimension, the number of (query, token) pairs, and of tokens and of queries, from which "auto" looks for
clusters, and down to which tolerance. Looking takes one or two per cent of the time of all pairs, or less."""

CLUSTERED = 0.25
"""Up to this share of visible pairs the tree is taken to be quicker than all pairs, in the same or in higher precision:
see benchmarks/clusters.py."""

CAUSAL_TREE_FROM = {2: (16_000, 1e-9), 3: (20_000, 1e-9)}
"""By dimension, the N from which `tree` is used instead of `direct` under a causal mask, and down to which tolerance:
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
    if best != "tree" and not causal and at is not None and _clustered(log_weights, *at, tol, without):
        return "tree"
    if without is None:
        without = missing(best, d, log_weights.dtype, float(queries) * len(log_weights))
    return next(name for name in (best, "direct", "flash") if name not in without)


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
    """The engine that was measured to take the shortest time (benchmarks/crossover.py).

    The tree costs about a(N + n) and direct b·N·n, so the tree is quicker from N·n/(N + n) = a/b on. This threshold was
    measured on the CPU for the clouds, β and tolerances that are worst for the tree. In more dimensions the tree is
    quicker for clustered clouds only: see `choose`. Under a causal mask the tree costs about
    a·N·log N and direct half of b·N², with a threshold of its own.
    """
    n = len(log_weights)
    on_cpu = log_weights.device.type == "cpu"
    size, finest = (CAUSAL_TREE_FROM if causal else TREE_FROM).get(d, (math.inf, math.inf))
    if on_cpu and finest <= real(tol, "tol", "it is a tolerance") < 1:
        # In float32 `direct` is assumed to take a third of the time. The tree is always in float64.
        single = 3 if log_weights.dtype == torch.float32 else 1
        if (n > single * size) if causal else (n * queries > single * size * (n + queries)):
            return "tree"
    if queries * n <= FEW_PAIRS:
        return "dense"
    return "direct" if on_cpu and d <= DIRECT_UP_TO else "flash"
