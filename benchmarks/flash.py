"""`flash` against the plain dense softmax of published scripts: time and peak memory, float32, d = 3, N = 20 000."""

from __future__ import annotations

import torch
from measure import peak_bytes, ratios, record

import metastable as ms

N, D = 20_000, 3


def plain(x: torch.Tensor, beta: float) -> torch.Tensor:
    """What scripts do: all scores, softmax over rows, product."""
    return torch.softmax(beta * (x @ x.T), dim=1) @ x


def main() -> None:
    cloud = ms.uniform(N, d=D, seed=0).to(torch.float32)
    x, small = cloud.points, ms.uniform(100, d=D, seed=0).to(torch.float32)
    rows = []
    # Peaks first, in forked processes: a fork after torch has started its threads would hang.
    peaks = {}
    for name, call, prepare in (
        ("plain", lambda: plain(x, 30.0), lambda: plain(small.points, 30.0)),
        ("flash", lambda: ms.attend(cloud, 30.0 * x, "flash"), lambda: ms.attend(small, small.points, "flash")),
    ):
        peaks[name] = peak_bytes(call, prepare)
    rows.append({"what": "peak memory", **peaks, "ratio": peaks["plain"] / max(peaks["flash"], 1)})
    for beta in (10.0, 30.0, 100.0, 1000.0):
        gap = float((plain(x, beta) - ms.attend(cloud, beta * x, "flash")).norm(dim=1).max())
        timing = ratios(lambda b=beta: plain(x, b), lambda b=beta: ms.attend(cloud, b * x, "flash"), repeats=5)
        rows.append({"what": "time", "beta": beta, "N": N, **timing, "largest_difference": gap})
    record("flash", rows)


if __name__ == "__main__":
    main()
