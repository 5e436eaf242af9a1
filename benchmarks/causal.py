"""Where a causal mask should turn over from `direct` to `tree`, and what log Z costs the tree.

The first part gives, for each N, the worst ratio over clouds and β of the time by direct to the time by the tree;
`attention.engines.CAUSAL_TREE_FROM` is the N from which it is above 1. The second part is the ratio of the tree's time
with log Z to its time without.
"""

from __future__ import annotations

from measure import ratios, record

import metastable as ms
from metastable.attention import Attention, Prepared

SIZES = (8_000, 16_000, 32_000)


def clouds(n: int, d: int) -> dict[str, ms.Cloud]:
    centres = ms.uniform(20, d, seed=1).points
    return {"uniform": ms.uniform(n, d, seed=0), "clustered": ms.mixture(n, centres, kappas=400.0, seed=2)}


def direct_and_tree(d: int, n: int, tol: float) -> dict[str, object]:
    """The worst ratio over clouds and β."""
    rows = []
    for name, cloud in clouds(n, d).items():
        for beta in (10.0, 1e2, 1e4):
            u = beta * cloud.points
            direct, tree = (Attention("softmax", True, cloud.log_weights, engine, tol) for engine in ("direct", "tree"))
            timing = ratios(
                lambda c=cloud, u=u, f=direct: f(c.points, u), lambda c=cloud, u=u, t=tree: t(c.points, u), repeats=3
            )
            rows.append(
                {"what": f"causal direct/tree, d = {d}, tol = {tol:g}", "N": n, "case": f"{name} {beta:g}"} | timing
            )
    return min(rows, key=lambda row: row["ratio"])


def with_and_without_log_z(d: int, n: int) -> dict[str, object]:
    cloud = ms.uniform(n, d, seed=0)
    tree, u = Prepared(cloud.log_weights, "tree", 1e-6), 300.0 * cloud.points
    timing = ratios(
        lambda: tree.sums(cloud.points, u, paired=True), lambda: tree(cloud.points, u, paired=True), repeats=7
    )
    return {"what": f"tree with log Z/without, d = {d}, beta = 300", "N": n} | timing


def main() -> None:
    rows = [direct_and_tree(d, n, 1e-6) for d in (2, 3) for n in SIZES]
    rows += [with_and_without_log_z(d, 100_000) for d in (2, 3)]
    record("causal", rows)


if __name__ == "__main__":
    main()
