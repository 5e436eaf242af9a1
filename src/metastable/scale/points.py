"""One point of a sweep: a simulation, and the numbers that are kept of it. Workers run this."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from metastable.attention import TREE_TOLERANCE
from metastable.attention.compilation import compile_and_wait
from metastable.errors import BadInput, SimulationStopped
from metastable.files import Entry
from metastable.flow.fields import engines_to_come
from metastable.problem import Problem, resolved_beta
from metastable.run.mean_field import refined
from metastable.run.observables import observe
from metastable.run.run import BaseRun
from metastable.run.simulation import saved_times, simulate
from metastable.scale.plan import FRAMES, Plan

COURSES = ("one time", "still", "falling", "settled")
DONE, FAILED = 0, 1
# As in `Run.observables`: tokens in the sample, and its seed.
SAMPLE, SAMPLE_SEED = 1000, 0


def compute(plan: Plan, indices: Sequence[int]) -> list[Entry]:
    """The records of some points of a plan."""
    return [record(plan, index) for index in indices]


def record(plan: Plan, index: int) -> Entry:
    """The numbers of a point as float64 bytes, or the reason why it failed: one bad point does not end a sweep."""
    try:
        return Entry(index, DONE, np.ascontiguousarray(measure(plan, index), dtype="<f8").tobytes())
    except Exception as error:
        return Entry(index, FAILED, reason(error).encode())


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
    problem = plan.problem(index)
    until = float(problem.until)
    kept = [t for t in plan.times if t <= until]
    t_eval = problem.options.get("t_eval", FRAMES)
    # Phases need the whole curve, also if distances are kept at a few times only.
    whole = saved_times(t_eval if isinstance(t_eval, int) else [t for t in t_eval if t <= until], until)
    run = _solved(plan, problem.replace(t_eval=[*kept, *whole] if plan.phases else kept))
    places = np.searchsorted(run.times.numpy(), kept)
    # A member without a limit law has observables only.
    none = None if run.block.plain else run.theory().no_limit
    if none and not plan.observables:
        raise BadInput(f"there is no limit law: {none}; keep observables ([outputs] observables = true)")
    parts = [_over_time(plan, [] if none else run.distance().values[places])] if plan.distance else []
    if plan.observables:
        seen = [observe(run.block, run.at(int(i)), run.beta, SAMPLE, SAMPLE_SEED) for i in places]
        parts += [_over_time(plan, [row[name] for row in seen]) for name in plan.observables]
    if plan.phases and none:
        parts.append(np.full(len(plan.phases), math.nan))
    elif plan.phases:
        phases = run.phases()
        numbers = {name: getattr(phases, name) for name in plan.phases}
        if "course" in numbers:
            numbers["course"] = COURSES.index(phases.course)
        parts.append(np.array([math.nan if value is None else float(value) for value in numbers.values()]))
    return np.concatenate(parts)


def _solved(plan: Plan, problem: Problem) -> BaseRun:
    if not plan.mean_field:
        _compile_engines(problem)
        return simulate(problem.block, problem.cloud, **problem.arguments, progress=False)
    run = refined(problem.head, problem.cloud, **problem.arguments, progress=False)
    if not run.converged:
        raise BadInput(f"the error of the mean field is {run.discretisation:.2g}, which is more than tol")
    return run


def _compile_engines(problem: Problem) -> None:
    """Wait for the engines of "auto": a point must not depend on what was compiled when it was computed.

    An engine that cannot be compiled is a BadInput, because another engine gives other last digits.
    """
    cloud = problem.cloud
    beta = resolved_beta(problem.beta, problem.gamma, len(cloud))
    engine, tol = problem.options.get("engine") or "auto", problem.options.get("tol") or TREE_TOLERANCE
    for name in engines_to_come(problem.block, cloud.log_weights, beta, engine, tol):
        compile_and_wait(name, cloud.dim, cloud.dtype)
    if left := engines_to_come(problem.block, cloud.log_weights, beta, engine, tol):
        names = " and ".join(sorted(left))
        raise BadInput(
            f"{names} could not be compiled on this worker; set NUMBA_CACHE_DIR to a folder that it can write, or "
            "choose another engine, such as engine = 'flash'"
        )


def _over_time(plan: Plan, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The values at the first times; NaN at the times that this point does not reach."""
    row = np.full(len(plan.times), math.nan)
    row[: len(values)] = values
    return row
