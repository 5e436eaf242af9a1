"""The direct engine against torch's flash attention: the same cloud and queries, on the same cores, in one run.

The bars are those of d = 3: 3 times flash in float32 and 2.5 times in float64. Elsewhere, up to d = 16, direct must not
be slower. Errors are those of the mean at β = 1, against the engine "dense" in float64.
"""

from __future__ import annotations

import argparse
import json

import torch
from measure import RESULTS, ratios, record

import metastable as ms

DIMENSIONS = (2, 3, 4, 8, 16)
SIZES = (500, 2_000, 5_000, 20_000, 50_000)
BETA = 30.0
BARS = {(3, torch.float32): 3.0, (3, torch.float64): 2.5}


def row(d: int, n: int, dtype: torch.dtype) -> dict[str, object]:
    cloud = ms.uniform(n, d, seed=0).to(dtype)
    u, few = BETA * cloud.points, cloud.points[:200]
    exact = ms.attend(cloud.to(torch.float64), few.double(), "dense")
    error = float((ms.attend(cloud, few, "direct").double() - exact).abs().max())
    timing = ratios(
        lambda: ms.attend(cloud, u, "flash"),
        lambda: ms.attend(cloud, u, "direct"),
        repeats=9 if n <= 5_000 else 3,
        at_least=0.05 if n <= 5_000 else 0.0,
    )
    name = f"flash/direct, d = {d}, {str(dtype).removeprefix('torch.')}"
    return {"what": name, "N": n, **timing, "bar": BARS.get((d, dtype), 1.0), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", choices=DIMENSIONS, help="only these; others are kept")
    wanted = parser.parse_args().d
    rows = []
    if wanted:
        known = json.loads((RESULTS / "direct.json").read_text())["rows"] if (RESULTS / "direct.json").exists() else []
        rows = [known_row for known_row in known if not any(f"d = {d}," in known_row["what"] for d in wanted)]
    rows += [row(d, n, dtype) for d in wanted or DIMENSIONS for dtype in (torch.float32, torch.float64) for n in SIZES]
    rows.sort(key=lambda r: (int(r["what"].split("d = ")[1].split(",")[0]), r["what"], r["N"]))
    record("direct", rows)


if __name__ == "__main__":
    main()
