"""Sweeps on Dask: 2 workers against 1, what Dask costs a point, and whether cost and memory stay in step with size."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measure import ratios, record

import metastable as ms
from metastable.files import Journal
from metastable.scale import cluster
from metastable.scale.plan import Plan, make
from metastable.scale.points import compute
from metastable.scale.sweep import PointsBar, compute_points

HEAD = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}
SIZES = (1000, 3000, 10_000)


def plan(points: int, n: int, until: float, save: int) -> Plan:
    return make({"seed": list(range(points))}, HEAD, {"n": n}, {"beta": 50.0, "until": until, "t_eval": save})


def lead(client: Any, chosen: Plan) -> float:
    """Compute and keep all points on workers that are up already; the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with Journal(Path(folder) / "journal", chosen.identity) as journal:
            compute_points(chosen, range(chosen.size), journal, client, PointsBar(chosen.size, False))
            assert len(journal.status) == chosen.size
        return time.perf_counter() - began


def speedup() -> dict[str, Any]:
    """200 points of some tenths of a second: the same sweep on one worker and on two, both up and warm."""
    chosen = plan(200, 400, 10.0, 21)
    with cluster.connected(workers=1) as one, cluster.connected(workers=2) as two:
        row = ratios(lambda: _in(one, chosen), lambda: _in(two, chosen), repeats=3)
    return {"what": "200 points, 1 worker against 2", "points": 200, **row}


def _in(client: Any, chosen: Plan) -> None:
    with client.as_current():
        lead(client, chosen)


def overhead() -> dict[str, Any]:
    """One worker against the same calls in a plain loop of this process: the difference a point."""
    chosen = plan(400, 20, 1.0, 5)
    with cluster.connected(workers=1) as client:
        row = ratios(lambda: lead(client, chosen), lambda: compute(chosen, range(chosen.size)), repeats=5)
    each = 1000 * (row["slow_seconds"] - row["fast_seconds"]) / chosen.size
    return {"what": "1 worker against a plain loop", "points": chosen.size, "overhead_ms_a_point": each, **row}


def growth(points: int) -> dict[str, Any]:
    """A whole sweep of small points in a fresh process: seconds from the first point on, and the process's memory."""
    command = [sys.executable, __file__, "--whole", str(points)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    seconds, start, middle, end = map(float, out)
    row = {
        "what": "small points, whole sweep",
        "points": points,
        "seconds": seconds,
        "ms_a_point": 1e3 * seconds / points,
    }
    return {**row, "megabytes_early": start, "megabytes_middle": middle, "megabytes_late": end}


def whole(points: int) -> None:
    """Print the seconds of a sweep from its first point to its dataset, and this process's memory on the way."""
    seen: list[tuple[int, float, float]] = []
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "s" / "journal"

        def watch() -> None:
            while not ended.wait(0.05):
                if journal.exists():
                    seen.append((journal.stat().st_size, _resident(), time.perf_counter()))

        thread = threading.Thread(target=watch)
        thread.start()
        arguments = {"n": 5, "beta": 50.0, "until": 0.2, "t_eval": 3}
        ms.sweep(
            axes={"seed": list(range(points))}, head=HEAD, out=journal.parent, workers=2, progress=False, **arguments
        )
        over = time.perf_counter()
        ended.set()
        thread.join()
    last = max(size for size, _, _ in seen)
    # The file appears with its header, just before the first record.
    began = seen[0][2]
    marks = [next(m for size, m, _ in seen if size >= share * last) for share in (0.1, 0.5, 0.99)]
    print(over - began, *marks)


def _resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no resident memory in /proc/self/status")


def main() -> None:
    record("sweep", [speedup(), overhead(), *(growth(points) for points in SIZES)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--whole"]:
        whole(int(sys.argv[2]))
    else:
        main()
