"""Timing and memory for the benchmark programs: both sides in one run, interleaved, with the spread."""

from __future__ import annotations

import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def ratios(slow: Callable[[], Any], fast: Callable[[], Any], repeats: int, at_least: float = 0.0) -> dict[str, Any]:
    """Time both sides in turn, `repeats` times after one warm-up each; the ratio slow/fast of each pair.

    at_least : seconds that one timing takes. Short calls are made several times in a row and their time is the mean:
        threads of the other side that still wait for work, as those of OpenMP do, would disturb a single call
    """
    fast()
    slow()
    sides = [(call, math.ceil(at_least / _seconds(call)) if at_least else 1) for call in (slow, fast)]
    timings = [[_seconds(call, times) for call, times in sides] for _ in range(repeats)]
    pairs = [(s, f) for s, f in timings]
    found = sorted(s / f for s, f in pairs)
    return {
        "slow_seconds": statistics.median(s for s, _ in pairs),
        "fast_seconds": statistics.median(f for _, f in pairs),
        "ratio": statistics.median(found),
        "lowest": found[0],
        "highest": found[-1],
        "repeats": repeats,
    }


def _seconds(call: Callable[[], Any], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def peak_bytes(program: str, *arguments: str) -> int:
    """What `program` prints in a fresh process: the growth of its peak memory, see `print_peak`."""
    command = [sys.executable, program, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(call: Callable[[], Any], prepare: Callable[[], Any]) -> None:
    """Print by how many bytes `call` raises the peak resident memory of a process that ran `prepare` first."""
    prepare()
    before = high_water()
    call()
    print(high_water() - before)


def high_water() -> int:
    """Peak resident memory of this process so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def record(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows and write them to results/NAME.json."""
    for row in rows:
        print("  ".join(f"{key}={_short(value)}" for key, value in row.items()))
    RESULTS.mkdir(exist_ok=True)
    machine = {"cores": torch.get_num_threads(), "torch": torch.__version__, "processor": platform.machine()}
    text = json.dumps({"benchmark": name, "machine": machine, "rows": rows}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
