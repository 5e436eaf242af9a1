"""What a sharper certificate of the tree could gain at most: tol = 1e-6 against a tolerance that its errors would meet.

    python benchmarks/certificate.py --n 1e6

The tree's bound at tol = 1e-6 is never below the error, and the largest error seen is some fifteen times smaller. If
the bound were exact, the engine could work with `SLACK` times the tolerance and still keep the promise. So the ratio of
the two times is an upper limit on what sharpening the bound can gain. Both sides are timed in turn on the clouds of
tree.py and include the building of the tree. The error is measured in float64 at 400 random queries.
"""

import argparse

import numpy as np
from measure import ratios, record
from tree import clustered, measured_error, uniform

from metastable.attention.tree import Tree

TOL, SLACK = 1e-6, 15.0
BAR = 1.4
BETAS = (30.0, 1e2, 1e3, 1e4)


def row(name: str, points: np.ndarray, beta: float, repeats: int) -> dict[str, object]:
    def at(tol: float) -> np.ndarray:
        return Tree(points).attend(beta * points, tol, paired=True).mean.numpy()

    found = ratios(lambda: at(TOL), lambda: at(SLACK * TOL), repeats)
    errors = [
        max(measured_error(np.random.default_rng(seed), points, beta, means) for seed in range(20))
        for means in (at(TOL), at(SLACK * TOL))
    ]
    return {
        "what": f"{name}, d = 3, tol = {TOL:g} against {SLACK * TOL:g}",
        "N": len(points),
        "beta": beta,
        **found,
        "error": errors[0],
        "error_with_slack": errors[1],
        "bar": BAR,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=float, default=1e6)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    rows = []
    for name, draw in (("uniform", uniform), ("clustered", clustered)):
        points = draw(rng, int(args.n), 3)
        rows += [row(name, points, beta, args.repeat) for beta in BETAS]
    record("certificate", rows)


if __name__ == "__main__":
    main()
