"""Where the choice of engine="auto" should turn over: from `dense` to `direct`, and from `direct` to `tree`.

The second part looks for the least N = n at which the tree, built anew, is quicker than direct in float64, for the
cloud, β and tolerance that suit it least among those tried; `attention.TREE_FROM` is half of it, N·n/(N + n). In five
dimensions it is quicker for some clouds and not for others.
"""

from __future__ import annotations

import argparse
import json

import torch
from measure import RESULTS, ratios, record

import metastable as ms

SIZES = {2: (4_000, 8_000, 16_000), 3: (8_000, 16_000, 32_000), 4: (40_000, 80_000)}


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


def clustered(n: int, d: int) -> ms.Cloud:
    return ms.mixture(n, ms.uniform(20, d, seed=1).points, kappas=400.0, seed=2)


def direct_and_tree(d: int, tol: float) -> list[dict[str, object]]:
    """For each size the worst ratio over clouds and β."""
    rows = []
    for n in SIZES[d]:
        worst: dict[str, object] | None = None
        for name, cloud in (("uniform", ms.uniform(n, d, seed=0)), ("clustered", clustered(n, d))):
            for beta in (10.0, 1e2, 1e4):
                u = beta * cloud.points
                timing = ratios(
                    lambda c=cloud, u=u: ms.attend(c, u, "direct"),
                    lambda c=cloud, u=u: ms.attend(c, u, "tree", tol),
                    repeats=3,
                )
                if worst is None or timing["ratio"] < worst["ratio"]:
                    worst = {
                        "what": f"direct/tree, d = {d}, tol = {tol:g}",
                        "N": n,
                        "case": f"{name} {beta:g}",
                        **timing,
                    }
        assert worst is not None
        rows.append(worst)
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
