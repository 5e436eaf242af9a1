"""One evaluation of the field of each member of the family with a million tokens, against one softmax head.

    python benchmarks/family.py [--n 1e6]

Both sides evaluate the velocities of all tokens by the tree, each with a new tree, d = 3, β = 100, tol = 1e-4. For
unnormalised attention β = 5, on both sides, because its speeds grow like e^β. Several heads are compared per head.
"""

from __future__ import annotations

import argparse

from measure import ratios, record

import metastable as ms
from metastable.flow.fields import TokenField

HEADS = [ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=seed) for seed in (0, 1)]
MEMBERS = {
    "pre": (ms.Block(HEADS[0], norm="pre"), 100.0),
    "peri": (ms.Block(HEADS[0], norm="peri"), 100.0),
    "ngpt": (ms.Block(HEADS[0], norm="ngpt"), 100.0),
    "perceptron of 32 neurons": (ms.Block(HEADS[0], ms.Perceptron.random(3, 32)), 100.0),
    "two heads, per head": (ms.Block(HEADS), 100.0),
    "unnormalised": (ms.Block(HEADS[0], kernel="unnormalised"), 5.0),
    "causal": (ms.Block(HEADS[0], causal=True), 100.0),
}
TOL = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=float, default=1e6)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    cloud = ms.uniform(int(chosen.n), d=3, seed=0)
    rows = []
    for name, (block, beta) in MEMBERS.items():

        def evaluate(block: ms.Block, beta: float = beta) -> None:
            field = TokenField(block, cloud.log_weights, beta, "tree", TOL)
            field(cloud.points, 0.0)

        row = ratios(lambda block=block: evaluate(block), lambda: evaluate(ms.Block(HEADS[0])), chosen.repeat)
        row |= {key: row[key] / len(block.heads) for key in ("ratio", "lowest", "highest")}
        rows.append({"what": name, "n": len(cloud), "beta": beta, "tol": TOL, **row})
    record("family", rows)


if __name__ == "__main__":
    main()
