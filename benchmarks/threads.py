"""What the default number of threads costs a small problem: the README's five lines against OMP_NUM_THREADS=1.

Each call runs in a fresh process, the two settings in turn, once on the machine as it is and once beside busy
processes, one for each core. A ratio near 1 means that small problems do not use thread pools.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import ratios, record

FIVE_LINES = """
import sys
import metastable as ms
head = ms.Head.from_spectra(interaction=[1.0, 0.8, 0.5, 0.3], value=[1.0, 0.7, 0.5, 0.2], seed=0)
run = ms.simulate(head, ms.uniform(500, d=4, seed=0), beta=20.0, until=5.0)
run.report(sys.argv[1])
"""
BUSY = "while True: pass"


def five_lines(folder: str, threads: int | None) -> None:
    """The README's example in a fresh process, with the default number of threads or with this many."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    report = str(Path(folder) / "report.html")
    subprocess.run([sys.executable, "-c", FIVE_LINES, report], env=environment, check=True, capture_output=True)


def compare(busy: int, repeats: int) -> dict[str, object]:
    """Default threads against one thread, beside so many busy processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = ratios(lambda: five_lines(folder, None), lambda: five_lines(folder, 1), repeats)
    finally:
        for other in others:
            other.kill()
            other.wait()
    return {"what": "default threads over one thread", "busy_processes": busy, **found}


def main() -> None:
    record("threads", [compare(busy, repeats=5) for busy in (0, os.cpu_count() or 1)])


if __name__ == "__main__":
    main()
