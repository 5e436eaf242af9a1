"""One point of a sweep: a simulation, and the numbers that are kept of it. This is what workers do."""

from __future__ import annotations

import math
import pickle
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from metastable.cloud import Cloud
from metastable.errors import BadInput, SimulationStopped
from metastable.head import Head
from metastable.run import storage as store
from metastable.run.mean_field import mean_field
from metastable.run.observables import observe
from metastable.run.run import BaseRun
from metastable.run.simulation import saved_times, simulate
from metastable.scale.cluster import same_versions
from metastable.scale.plan import FRAMES, Plan

COURSES = ("one time", "still", "falling", "settled")
DONE, FAILED = 0, 1
# As `Run.observables` has them.
SAMPLE, SAMPLE_SEED = 1000, 0

Outcome = tuple[int, int, bytes]
"""Number of the point, DONE or FAILED, and its outputs as float64 bytes or the reason as UTF-8."""


def packed(plan: Plan) -> bytes:
    """A plan as it goes to workers, with the versions that they must have too."""
    return pickle.dumps((plan, store.versions()))


def compute(spec: bytes, indices: Sequence[int]) -> tuple[list[Outcome], float]:
    """The outcomes of some points of a packed plan, and the seconds that they took."""
    plan, began = _unpacked(spec), time.perf_counter()
    return [outcome(plan, index) for index in indices], time.perf_counter() - began


@lru_cache(maxsize=2)
def _unpacked(spec: bytes) -> Plan:
    plan, versions = pickle.loads(spec)
    assert isinstance(plan, Plan)
    # Also of workers that joined when the sweep was under way.
    same_versions(versions)
    return plan


def outcome(plan: Plan, index: int) -> Outcome:
    """A point's numbers, or why it has none: one bad point must not end a sweep of thousands."""
    try:
        return index, DONE, np.ascontiguousarray(measure(plan, index), dtype="<f8").tobytes()
    except Exception as error:
        return index, FAILED, reason(error).encode()


def reason(error: BaseException) -> str:
    """Why a point failed, in one line."""
    words = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate" in words:
        return "not enough memory for this many tokens"
    if isinstance(error, (BadInput, SimulationStopped)):
        return words
    return f"unexpected {type(error).__name__}: {words}"


def measure(plan: Plan, index: int) -> np.ndarray:
    """The numbers of one point, in the order of `plan.columns`."""
    arguments = plan.arguments(index)
    head = plan.head_at(index)
    cloud = plan.cloud_at(index, head)
    until = float(arguments["until"])
    save = arguments.pop("t_eval", FRAMES)
    kept = [t for t in plan.times if t <= until]
    # Phases are read off a whole curve, also where distances are kept at a few times only.
    whole = saved_times(save if isinstance(save, int) else [t for t in save if t <= until], until)
    times = [*kept, *whole] if plan.phases else kept
    run = _solved(head, cloud, times, arguments)
    places = np.searchsorted(run.times.numpy(), kept)
    parts = [_along(plan, run.distance().values[places])] if plan.distance else []
    if plan.observables:
        seen = [observe(run.head, run.at(int(i)), run.beta, SAMPLE, SAMPLE_SEED) for i in places]
        parts += [_along(plan, [row[name] for row in seen]) for name in plan.observables]
    if plan.phases:
        parts.append(_phases(plan, run))
    return np.concatenate(parts)


def _solved(head: Head, cloud: Cloud, times: list[float], arguments: dict[str, Any]) -> BaseRun:
    if not arguments.pop("mean_field", False):
        return simulate(head, cloud, t_eval=times, progress=False, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solved = mean_field(head, cloud, t_eval=times, progress=False, **arguments)
    if not solved.converged:
        raise BadInput(f"the mean field is known to {solved.discretisation:.2g} only, which is more than tol")
    return solved


def _along(plan: Plan, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The values at the first times; NaN at those that this point does not reach."""
    row = np.full(len(plan.times), math.nan)
    row[: len(values)] = values
    return row


def _phases(plan: Plan, run: BaseRun) -> np.ndarray:
    found = run.phases()
    numbers = {
        "concentrated": math.nan if found.concentrated is None else found.concentrated,
        "terminal": math.nan if found.terminal is None else found.terminal,
        "least": found.least,
        "least_time": found.least_time,
        "course": float(COURSES.index(found.course)),
    }
    return np.array([numbers[name] for name in plan.phases])
