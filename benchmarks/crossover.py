"""Where the choice of engine="auto" should turn over: from `dense` to `direct`, and from `direct` to `tree`.

The second part compares direct, in float64, with the tree, built anew: for every size N = n the lowest, the median and
the highest ratio over clouds and β, and the ratio for what "auto" chooses, which looks at the tokens between two sizes
(see `attention.engines`, whose thresholds N·n/(N + n) are half of N). Times are processor times, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from measure import RESULTS, ratios, record

import metastable as ms

SIZES = {2: (1_500, 2_500, 4_000), 3: (3_000, 5_000, 9_000, 12_000, 18_000), 4: (40_000, 80_000)}
BETAS = (1.0, 10.0, 1e2, 1e3, 1e4)
REPEATS = 5


def dense_and_direct() -> list[dict[str, object]]:
    rows = []
    for dtype in (torch.float32, torch.float64):
        for n in (50, 100, 200, 400, 800, 1600):
            cloud = ms.uniform(n, d=3, seed=0).to(dtype)
            u = 100.0 * cloud.points
            timing = ratios(
                lambda c=cloud, u=u: ms.attend(c, u, "dense"),
                lambda c=cloud, u=u: ms.attend(c, u, "direct"),
                repeats=21,
                at_least=0.01,
            )
            rows.append({"what": f"dense/direct, {str(dtype).removeprefix('torch.')}", "pairs": n * n, **timing})
    return rows


def clouds(n: int, d: int) -> dict[str, ms.Cloud]:
    """Clouds as they are at the start of runs, and after tokens have met in clusters."""
    clusters = {(20, 400.0), (2, 30.0), (2, 3e3), (2, 1e6)}
    found = {"uniform": ms.uniform(n, d, seed=0)}
    for count, kappa in sorted(clusters):
        places = ms.uniform(count, d, seed=1).points
        found[f"{count} clusters of kappa {kappa:g}"] = ms.mixture(n, places, kappas=kappa, seed=2)
    return found


def cpu_seconds(calls: list[Callable[[], object]]) -> list[float]:
    """The median processor time of every call, made in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for found, call in zip(times, calls, strict=True):
            began = time.process_time()
            call()
            found.append(time.process_time() - began)
    return [statistics.median(found) for found in times]


def direct_and_tree(d: int, tol: float) -> list[dict[str, object]]:
    rows = []
    for n in SIZES[d]:
        trees, chosen = [], []
        for name, cloud in clouds(n, d).items():
            for beta in BETAS:
                u = beta * cloud.points
                asked = ("direct", "tree", "auto")
                calls = [lambda c=cloud, u=u, e=engine: ms.attend(c, u, e, tol) for engine in asked]
                direct, tree, auto = cpu_seconds(calls)
                trees.append((direct / tree, f"{name}, beta {beta:g}"))
                chosen.append(direct / auto)
        rows.append(
            {
                "what": f"direct/tree, d = {d}, tol = {tol:g}",
                "N": n,
                "ratio": statistics.median(ratio for ratio, _ in trees),
                "lowest": min(trees)[0],
                "lowest_case": min(trees)[1],
                "highest": max(trees)[0],
                "direct/auto": statistics.median(chosen),
                "direct/auto_lowest": min(chosen),
                "repeats": REPEATS,
            }
        )
    return rows


def kept(wanted: list[int]) -> list[dict[str, object]]:
    """What is recorded about everything but these dimensions."""
    rows = json.loads((RESULTS / "crossover.json").read_text())["rows"]
    return [row for row in rows if not any(f"d = {d}," in row["what"] for d in wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", choices=list(SIZES), help="only these dimensions; others are kept")
    wanted = parser.parse_args().d
    rows = dense_and_direct() if wanted is None else kept(wanted)
    for d in wanted or SIZES:
        for tol in (1e-3, 1e-6) if d < 4 else (1e-3,):
            rows += direct_and_tree(d, tol)
    record("crossover", rows)


if __name__ == "__main__":
    main()
