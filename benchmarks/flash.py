"""`flash` against the plain dense softmax of published scripts: time and peak memory, float32, d = 3, N = 20 000."""

from __future__ import annotations

import sys

import torch
from measure import peak_bytes, print_peak, ratios, record

import metastable as ms

N, D = 20_000, 3


def plain(x: torch.Tensor, beta: float) -> torch.Tensor:
    """What scripts do: all scores, softmax over rows, product."""
    return torch.softmax(beta * (x @ x.T), dim=1) @ x


def main() -> None:
    cloud, few = (ms.uniform(n, d=D, seed=0).to(torch.float32) for n in (N, 1000))
    calls = {"plain": lambda c: plain(c.points, 30.0), "flash": lambda c: ms.attend(c, 30.0 * c.points, "flash")}
    if sys.argv[1:]:
        call = calls[sys.argv[1]]
        return print_peak(lambda: call(cloud), lambda: call(few))
    peaks = {name: peak_bytes(__file__, name) for name in calls}
    rows = [{"what": "peak memory in bytes", "N": N, **peaks, "ratio": peaks["plain"] / max(peaks["flash"], 1)}]
    x = cloud.points
    for beta in (10.0, 30.0, 100.0, 1000.0):
        gap = float((plain(x, beta) - ms.attend(cloud, beta * x, "flash")).norm(dim=1).max())
        timing = ratios(lambda b=beta: plain(x, b), lambda b=beta: ms.attend(cloud, b * x, "flash"), repeats=5)
        rows.append({"what": "time", "beta": beta, "N": N, **timing, "largest_difference": gap})
    record("flash", rows)


if __name__ == "__main__":
    main()
