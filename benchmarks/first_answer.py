"""The first answer of `simulate` in a fresh installation: nothing is compiled, N = 5000, d = 3, β = 1000.

Every repeat is a new process with an empty cache of numba. The bar for "auto" is one second from the call to the end of
a short run; the engine "tree", which compiles while the caller waits, is the other side. Imports are not part of it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from measure import record

PROGRAM = """
import json, os, subprocess, sys, time
children, start = [], subprocess.Popen
subprocess.Popen = lambda *a, **k: children.append(start(*a, **k)) or children[-1]
began = time.perf_counter()
import torch
torch_loaded = time.perf_counter()
import metastable as ms
head = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)
cloud, simulate = ms.uniform(5000, d=3, seed=0), ms.simulate
called = time.perf_counter()
run = simulate(head, cloud, beta=1e3, until=0.1, t_eval=2, engine=sys.argv[1])
ended = time.perf_counter()
print(json.dumps({"torch": torch_loaded - began, "metastable": called - torch_loaded, "seconds": ended - called,
                  "engine": run.configuration["engine"], "evaluations": run.configuration["evaluations"]}), flush=True)
# A compilation that goes on would disturb the next repeat.
for child in children:
    child.kill()
os._exit(0)
"""


def fresh(engine: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, engine], env=environment, capture_output=True, text=True, check=True
        )
    return json.loads(done.stdout)


def main() -> None:
    rows = []
    for engine, repeats in (("auto", 5), ("tree", 1)):
        found = [fresh(engine) for _ in range(repeats)]
        seconds = sorted(row["seconds"] for row in found)
        rows.append(
            {
                "what": f"first answer, engine = {engine}",
                "used": found[0]["engine"],
                "evaluations": found[0]["evaluations"],
                "seconds": statistics.median(seconds),
                "lowest_seconds": seconds[0],
                "highest_seconds": seconds[-1],
                "import_torch_seconds": statistics.median(row["torch"] for row in found),
                "import_metastable_seconds": statistics.median(row["metastable"] for row in found),
                "repeats": repeats,
            }
            | ({"bar": 1.0} if engine == "auto" else {})
        )
    record("first_answer", rows)


if __name__ == "__main__":
    main()
