"""A whole run of a million tokens in d = 3: β = 1000 until t = 15, with its distance curve; time and peak memory.

    python benchmarks/million.py --n 1e6 --beta 1000 --until 15
    python benchmarks/million.py --evaluation 1e7   # only the seconds and the peak memory of one evaluation

The other side is one flash attention of 20 000 tokens in float32, measured in the same run and scaled as N², times the
number of field evaluations that the run took. One evaluation of ten million tokens, in a process of its own, has a bar
on its memory.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch
from measure import high_water, record

import metastable as ms

FLASH_N = 20_000
MOST_TOKENS, MOST_GIB = 10_000_000, 8.0


def evaluation(n: int, beta: float) -> dict[str, Any]:
    """Attention of n uniform tokens at tol = 1e-3, in float64. The engine is compiled before."""
    small, cloud = (ms.uniform(size, d=3, seed=0) for size in (10_000, n))
    ms.attend(small, beta * small.points, engine="tree", tol=1e-3)
    began = time.perf_counter()
    ms.attend(cloud, beta * cloud.points, engine="tree", tol=1e-3)
    seconds = time.perf_counter() - began
    what = f"one evaluation, N = {n}, d = 3, beta = {beta:g}"
    return {"what": what, "tol": 1e-3, "engine": "tree", "seconds": seconds, "peak_gib": high_water() / 2**30}


def in_a_new_process(n: int, beta: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--evaluation", str(n), "--beta", str(beta)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {**found, "bar_gib": MOST_GIB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=float, default=1e6)
    parser.add_argument("--beta", type=float, default=1e3)
    parser.add_argument("--until", type=float, default=15.0)
    parser.add_argument("--tol", type=float, default=None, help="that of simulate unless given")
    parser.add_argument("--evaluation", type=float, help="this many tokens, one evaluation, nothing recorded")
    args = parser.parse_args()
    if args.evaluation:
        print(json.dumps(evaluation(int(args.evaluation), args.beta)))
        return
    largest = in_a_new_process(MOST_TOKENS, args.beta)
    n = int(args.n)
    small = ms.uniform(FLASH_N, d=3, seed=0).to(torch.float32)
    flash = []
    for _ in range(4):
        began = time.perf_counter()
        ms.attend(small, args.beta * small.points, engine="flash")
        flash.append(time.perf_counter() - began)
    head = ms.Head.from_spectra(interaction=[1.5, 0.9, 0.6], value=[1.2, 0.7, 0.4], seed=4)
    began = time.perf_counter()
    run = ms.simulate(head, ms.uniform(n, d=3, seed=0), args.beta, args.until, tol=args.tol)
    simulated = time.perf_counter() - began
    distance = run.distance()
    seconds = time.perf_counter() - began
    evaluations = run.configuration["evaluations"]
    record(
        "million",
        [
            {
                "what": f"N = {n}, d = 3, beta = {args.beta:g}, until t = {args.until:g}",
                "tol": run.configuration["tol"],
                "engine": run.configuration["engine"],
                "steps": run.configuration["steps"],
                "evaluations": evaluations,
                "seconds": seconds,
                "of which simulating": simulated,
                "peak_gib": high_water() / 2**30,
                "ratio": min(flash[1:]) * (n / FLASH_N) ** 2 * evaluations / simulated,
                "times": run.times.tolist(),
                "distance": distance.values.tolist(),
                "phases": str(run.phases()),
            },
            largest,
        ],
    )


if __name__ == "__main__":
    main()
