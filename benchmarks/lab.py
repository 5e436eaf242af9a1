"""The lab's server: seconds until the first frames of a run can be drawn, and until the run and its distances are done.

The run is that of the page at N = 5000, d = 3, β = 100 and the default horizon. Drawing in the browser is not included.
"""

from __future__ import annotations

import time
from typing import Any

from measure import record

from metastable.lab.app import warm_up
from metastable.lab.runs import Runs
from metastable.lab.state import State

STATE = State(n=5000)
BARS = {"first_frames": 2.0, "complete": 1.5}
REPEATS = 5


def once(runs: Runs, key: int) -> dict[str, float]:
    """Times of one run. The page asks four times a second, which would round them up."""
    began, found = time.perf_counter(), {}
    runs.start("tab", key, [STATE])
    while "complete" not in found:
        time.sleep(0.02)
        seconds = time.perf_counter() - began
        if "first_frames" not in found and runs.results("tab", key)[0]:
            found["first_frames"] = seconds
        if runs.progress("tab", key).status == "done":
            found["complete"] = seconds
        elif runs.progress("tab", key).status == "failed":
            raise SystemExit(runs.progress("tab", key).message)
    return found


def main() -> None:
    warm_up()
    runs = Runs()
    times = [once(runs, key) for key in range(REPEATS)]
    runs.close()
    rows: list[dict[str, Any]] = []
    for what, bar in BARS.items():
        found = sorted(one[what] for one in times)
        rows.append(
            {"what": what, "seconds": found[REPEATS // 2], "lowest": found[0], "highest": found[-1], "bar": bar}
        )
    record("lab", rows)


if __name__ == "__main__":
    main()
