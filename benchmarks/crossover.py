"""`dense` against `flash` for few tokens: where the choice of engine="auto" should turn over."""

from __future__ import annotations

import torch
from measure import ratios, record

import metastable as ms


def main() -> None:
    rows = []
    for dtype in (torch.float32, torch.float64):
        for n in (50, 100, 200, 400, 800, 1600):
            cloud = ms.uniform(n, d=3, seed=0).to(dtype)
            u = 100.0 * cloud.points
            timing = ratios(
                lambda c=cloud, u=u: ms.attend(c, u, "dense"), lambda c=cloud, u=u: ms.attend(c, u, "flash"), repeats=21
            )
            rows.append({"what": f"dense/flash, {str(dtype).removeprefix('torch.')}", "pairs": n * n, **timing})
    record("crossover", rows)


if __name__ == "__main__":
    main()
