"""The lab's server: seconds until the first frames of a run can be drawn, and until it is complete with its distances.

The run is that of the page at N = 5000, d = 3, β = 100 and its usual horizon. The drawing in the browser comes on top.
"""

from __future__ import annotations

import time
from typing import Any

from measure import record

from metastable.lab.controls import Controls
from metastable.lab.runs import Runs, warm_up

CONTROLS = Controls(n=5000)
BARS = {"first_frames": 2.0, "complete": 10.0}
REPEATS = 5


def once(runs: Runs, key: int) -> dict[str, float]:
    """Asked four times a second, as the page does."""
    began, found = time.perf_counter(), {}
    runs.start("tab", key, [CONTROLS])
    while "complete" not in found:
        time.sleep(0.25)
        seconds = time.perf_counter() - began
        if "first_frames" not in found and runs.partial("tab", key):
            found["first_frames"] = seconds
        if runs.look("tab", key).status == "done":
            found["complete"] = seconds
        elif runs.look("tab", key).status == "failed":
            raise SystemExit(runs.look("tab", key).message)
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
