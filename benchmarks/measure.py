"""Timing and memory for the benchmark programs: both sides in one run, interleaved, with the spread."""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def ratios(slow: Callable[[], Any], fast: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Time both sides in turn, `repeats` times after one warm-up each; the ratio slow/fast of each pair."""
    fast()
    slow()
    pairs = [(_seconds(slow), _seconds(fast)) for _ in range(repeats)]
    found = sorted(s / f for s, f in pairs)
    return {
        "slow_seconds": statistics.median(s for s, _ in pairs),
        "fast_seconds": statistics.median(f for _, f in pairs),
        "ratio": statistics.median(found),
        "lowest": found[0],
        "highest": found[-1],
        "repeats": repeats,
    }


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def peak_bytes(call: Callable[[], Any], prepare: Callable[[], Any]) -> int:
    """Growth of the peak resident memory over `call`, in a fresh process that ran `prepare` first."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure_peak, args=(call, prepare, send))
    process.start()
    grown = receive.recv()
    process.join()
    return int(grown)


def _measure_peak(call: Callable[[], Any], prepare: Callable[[], Any], send: Any) -> None:
    prepare()
    # Linux: writing 5 resets the high-water mark, so that it tells of this call alone.
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    call()
    send.send(_high_water() - before)


def _high_water() -> int:
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
