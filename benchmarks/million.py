"""A whole run of a million tokens in d = 3: β = 1000 until t = 15, with its distance curve; time and peak memory.

    python benchmarks/million.py --n 1e6 --beta 1000 --until 15

The other side is one flash attention of 20 000 tokens in float32, measured in the same run and scaled as N², times the
number of field evaluations that the run took.
"""

import argparse
import time

import torch
from measure import high_water, record

import metastable as ms

FLASH_N = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=float, default=1e6)
    parser.add_argument("--beta", type=float, default=1e3)
    parser.add_argument("--until", type=float, default=15.0)
    parser.add_argument("--tol", type=float, default=None, help="that of simulate unless given")
    args = parser.parse_args()
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
            }
        ],
    )


if __name__ == "__main__":
    main()
