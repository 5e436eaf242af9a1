"""The tree engine against torch's flash attention in float32, on the same cores, in one run.

    python benchmarks/tree.py --n 1e6 --d 3 --beta 30 100 1e3 1e4 --tol 1e-3 1e-6 --cloud uniform clustered --repeat 3

Flash attention is timed at 20 000 tokens before each case and its time is scaled by (N / 20 000)²; the tree's time is
for building it and for answering N queries u = βx, as for a field at the tokens. Both repeat; the ratio of the fastest
runs is printed with the range of ratios over all pairs of runs. The error is measured in float64 at 20 random queries.
`growth` is the exponent of the tree's time between N/10 and N. The first row is the compilation in a new process with
an empty cache, in seconds.
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from measure import record

import metastable as ms
from metastable.attention.tree import Tree

FLASH_N = 20_000


def uniform(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Uniform on the sphere."""
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def clustered(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Twenty clusters of width 0.05 on the sphere."""
    x = uniform(rng, 20, d)[rng.integers(0, 20, n)] + 0.05 * rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def time_flash(d: int, beta: float) -> float:
    """Seconds for one flash attention of FLASH_N tokens with themselves, float32."""
    cloud = ms.uniform(FLASH_N, d, seed=0).to(torch.float32)
    start = time.perf_counter()
    ms.attend(cloud, beta * cloud.points, engine="flash")
    return time.perf_counter() - start


def time_tree(points: np.ndarray, beta: float, tol: float) -> tuple[float, np.ndarray, float]:
    """Seconds to build the tree and to answer, the means, the largest bound."""
    start = time.perf_counter()
    result = Tree(points).attend(beta * points, tol, paired=True)
    return time.perf_counter() - start, result.mean.numpy(), float(result.bound.max())


def measured_error(rng: np.random.Generator, points: np.ndarray, beta: float, means: np.ndarray) -> float:
    some = rng.integers(0, len(points), 20)
    scores = beta * points[some] @ points.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact = weights @ points / weights.sum(axis=1, keepdims=True)
    return float(np.linalg.norm(exact - means[some], axis=1).max())


def compare(points: np.ndarray, cloud: str, beta: float, tol: float, repeats: int) -> dict[str, object]:
    """Both sides in turn; the ratio of the fastest runs, with the range over all pairs of runs."""
    n, d = points.shape
    flash, tree = [], []
    for _ in range(repeats):
        flash.append(time_flash(d, beta) * (n / FLASH_N) ** 2)
        seconds, means, bound = time_tree(points, beta, tol)
        tree.append(seconds)
    return {
        "what": f"{cloud}, d = {d}, tol = {tol:g}",
        "N": n,
        "beta": beta,
        "flash_seconds": min(flash),
        "tree_seconds": min(tree),
        "ratio": min(flash) / min(tree),
        "growth": math.log10(min(tree) / min(time_tree(points[: n // 10], beta, tol)[0] for _ in range(3))),
        "lowest": min(flash) / max(tree),
        "highest": max(flash) / min(tree),
        "repeats": repeats,
        "error": measured_error(np.random.default_rng(0), points, beta, means),
        "bound": bound,
    }


def compilation() -> dict[str, object]:
    """Seconds for the first call of the tree in a new process that finds nothing compiled, three times."""
    program = (
        "import time; from metastable.attention.tree import compile_kernels;"
        "began = time.perf_counter(); compile_kernels(); print(time.perf_counter() - began)"
    )
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
            run = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
            )
            found.append(float(run.stdout))
    return {"what": "compilation", "seconds": sorted(found)[1], "fastest": min(found), "slowest": max(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=float, default=1e6)
    parser.add_argument("--d", type=int, nargs="+", default=[3])
    parser.add_argument("--beta", type=float, nargs="+", default=[30.0, 1e2, 1e3, 1e4])
    parser.add_argument("--tol", type=float, nargs="+", default=[1e-3, 1e-6])
    parser.add_argument("--cloud", nargs="+", default=["uniform", "clustered"], choices=["uniform", "clustered"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    rows = [compilation()]
    for d in args.d:
        Tree(uniform(rng, 100, d)).attend(uniform(rng, 100, d), 0.1)  # compiles, or loads what was compiled
        time_flash(d, 1.0)
        for cloud in args.cloud:
            points = {"uniform": uniform, "clustered": clustered}[cloud](rng, int(args.n), d)
            rows += [compare(points, cloud, beta, tol, args.repeat) for beta in args.beta for tol in args.tol]
    record("tree", rows)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
