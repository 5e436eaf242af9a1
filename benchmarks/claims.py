"""The outcome of every claim at its quick and at its full size, for the documentation.

    python benchmarks/claims.py                   # all claims at the quick size, minutes
    python benchmarks/claims.py --full            # all claims at the full size, hours
    python benchmarks/claims.py [--full] NAME …   # these claims; the others stay as they are recorded
    python benchmarks/claims.py --time            # the time of `metastable claims --quick`, whose bar is 60 seconds

Writes benchmarks/results/claims.json or claims_full.json after each claim. `metastable claims` shows the same with
tables and pictures.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time

import torch
from measure import RESULTS

from metastable import claims


def quick() -> None:
    """Print the wall time of the command and the processor time of all its processes, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "metastable", "claims", "--quick", "--out", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = sum(getattr(after, kind) - getattr(before, kind) for kind in ("ru_utime", "ru_stime"))
    print(done.stdout + done.stderr, end="")
    print(f"seconds={time.perf_counter() - began:.4g}  cpu_seconds={used:.4g}  bar=60")


def main(names: list[str], full: bool) -> None:
    benchmark = "claims_full" if full else "claims"
    path = RESULTS / f"{benchmark}.json"
    known = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for name in names or claims.NAMES:
        found = claims.check(name, full=full)
        row = {"name": name, "outcome": found.outcome, "checks": found.tally, "headline": found.headline}
        known[name] = {**row, "horizon": found.horizon, "torch": torch.__version__}
        print(name, found.outcome, found.headline, flush=True)
        rows = [known[each] for each in claims.NAMES if each in known]
        path.write_text(json.dumps({"benchmark": benchmark, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    quick() if given == ["--time"] else main([name for name in given if name != "--full"], "--full" in given)
