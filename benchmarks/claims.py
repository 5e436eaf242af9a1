"""The outcome of every claim at its quick size, for the documentation.

    python benchmarks/claims.py            # all claims, minutes
    python benchmarks/claims.py NAME …     # these claims; the others stay as they are recorded

Writes benchmarks/results/claims.json. `metastable claims` shows the same with tables and pictures.
"""

from __future__ import annotations

import json
import sys

import torch
from measure import RESULTS

from metastable import claims


def main(names: list[str]) -> None:
    path = RESULTS / "claims.json"
    known = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for name in names or claims.NAMES:
        found = claims.check(name)
        row = {"name": name, "outcome": found.outcome, "checks": found.tally, "headline": found.headline}
        known[name] = {**row, "horizon": found.horizon, "torch": torch.__version__}
        print(name, found.outcome, found.headline, flush=True)
        rows = [known[each] for each in claims.NAMES if each in known]
        path.write_text(json.dumps({"benchmark": "claims", "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
