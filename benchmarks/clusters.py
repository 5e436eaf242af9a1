"""Clusters in four and more dimensions: the tree, and what "auto" takes, against torch's flash attention in float32.

    python benchmarks/clusters.py --n 1e5 --d 4 16 64 --beta 1e3 --repeat 3

The clouds have 16 to 60 clusters of widths 0.003 to 0.1 on the sphere, in one of them with unequal numbers of tokens
and unequal weights. Queries are u = βx, as for a field at the tokens. As in benchmarks/tree.py, flash attention is
timed at 20 000 tokens before each case and its time is scaled by (N / 20 000)²; the tree's time is for building it and
for answering all queries within 1e-3. Both sides use the same cores and repeat. The ratio of the fastest runs is
printed with the range over all pairs of runs. The error is measured in float64 at 20 random queries. `direct` is the
ratio of the time of the direct engine in float32, scaled from 20 000 queries, to the tree's.

The rows "uniform" have clouds of 32 000 tokens, where "auto" looks for clusters: their ratio is the time of
"auto" to that of the engine that it takes, at most a few per cent above 1.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from measure import ratios, record
from tree import FLASH_N, time_flash, uniform

import metastable as ms
from metastable.attention import choose
from metastable.attention.cells import Cells, compile_kernels

TOL = 1e-3
CASES = {
    "20 clusters of width 0.05": (20, 0.05, False),
    "16 clusters of width 0.01": (16, 0.01, False),
    "16 clusters of width 0.02, unequal": (16, 0.02, True),
    "60 clusters of width 0.1": (60, 0.1, False),
    "20 clusters of width 0.003": (20, 0.003, False),
}


def clusters(rng: np.random.Generator, n: int, d: int, k: int, width: float, unequal: bool) -> ms.Cloud:
    """`k` clusters; if `unequal`, their numbers of tokens are between 1 and 4 parts, and weights between 1 and 1000."""
    parts = np.linspace(1, 4, k) if unequal else np.ones(k)
    chosen = rng.choice(k, n, p=parts / parts.sum())
    x = uniform(rng, k, d)[chosen] + width * rng.standard_normal((n, d))
    logs = np.log(1e3) * rng.random(n) if unequal else np.zeros(n)
    return ms.Cloud(x / np.linalg.norm(x, axis=1, keepdims=True), log_weights=logs)


def weighted_error(rng: np.random.Generator, cloud: ms.Cloud, beta: float, means: torch.Tensor) -> float:
    """The largest error at 20 random queries."""
    some = torch.from_numpy(rng.integers(0, len(cloud.points), 20))
    exact = ms.attend(cloud, beta * cloud.points[some], engine="dense")
    return float((exact - means[some]).norm(dim=1).max())


def compare(cloud: ms.Cloud, what: str, beta: float, repeats: int) -> dict[str, object]:
    points, logs, n, d = cloud.points.numpy(), cloud.log_weights.numpy(), len(cloud.points), cloud.dim
    single, u = cloud.to(torch.float32), beta * cloud.points
    share = single.points[:: max(1, n // FLASH_N)]
    flash, tree, direct = [], [], []
    ms.attend(single, share[:10], engine="direct")
    for _ in range(repeats):
        flash.append(time_flash(d, beta) * (n / FLASH_N) ** 2)
        began = time.perf_counter()
        ms.attend(single, beta * share, engine="direct")
        direct.append((time.perf_counter() - began) * n / len(share))
        began = time.perf_counter()
        found = Cells(points, logs).attend(u.numpy(), TOL, paired=True)
        tree.append(time.perf_counter() - began)
    return {
        "what": f"{what}, d = {d}, tol = {TOL:g}",
        "N": n,
        "beta": beta,
        "flash_seconds": min(flash),
        "tree_seconds": min(tree),
        "ratio": min(flash) / min(tree),
        "lowest": min(flash) / max(tree),
        "highest": max(flash) / min(tree),
        "direct": min(direct) / min(tree),
        "repeats": repeats,
        "auto": choose("auto", cloud.log_weights, d, n, TOL, without=(), at=(cloud.points, u)),
        "error": weighted_error(np.random.default_rng(0), cloud, beta, found.mean),
        "bound": float(found.bound.max()),
        **found.work,
    }


def no_clusters(d: int, beta: float, repeats: int) -> dict[str, object]:
    """What it costs that "auto" looks for clusters where there are none."""
    cloud = ms.uniform(32_000, d, seed=0).to(torch.float32)
    u = beta * cloud.points
    engine = choose("auto", cloud.log_weights, d, len(u), TOL, without=(), at=(cloud.points, u))
    timing = ratios(
        lambda: ms.attend(cloud, u, "auto", TOL), lambda: ms.attend(cloud, u, engine, TOL), repeats=max(5, repeats)
    )
    return {"what": f"uniform, `auto` against its engine, d = {d}", "N": len(u), "beta": beta, "auto": engine, **timing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=float, default=1e5)
    parser.add_argument("--d", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--beta", type=float, default=1e3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    compile_kernels()
    rows = []
    for d in args.d:
        time_flash(d, 1.0)
        for what, case in CASES.items():
            rows.append(compare(clusters(rng, int(args.n), d, *case), what, args.beta, args.repeat))
    for d in (8, 16):
        rows.append(no_clusters(d, args.beta, args.repeat))
    record("clusters", rows)


if __name__ == "__main__":
    main()
