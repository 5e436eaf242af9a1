"""The runs of the page: one job for each tab, in threads of its own.

A run learns that it is no longer wanted in `_Part.stage`, which `simulate` calls several times a step. After every step
it lets other runs have their turn (see `queue`). The numbers do not depend on turns: a run is that of `simulate`, bit
for bit.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from metastable.arrays import set_own_threads
from metastable.attention import TREE_TOLERANCE
from metastable.attention.engines import needed
from metastable.attention.threads import threads
from metastable.attention.tree import compiled
from metastable.cloud import Cloud
from metastable.figures.distance import DistanceCurves, distance_curves
from metastable.flow.fields import engine_of, engines_to_come
from metastable.lab.encoders import EncoderCache
from metastable.lab.queue import UNKNOWN, JobProgress, Stopped, Turns, one_line
from metastable.lab.state import State, check, common_frames, problem_of
from metastable.problem import Problem, resolved_beta
from metastable.run.run import Run
from metastable.run.simulation import simulate

IDLE = 100.0
"""A tab that sent nothing for this many seconds counts as closed. Browsers let a hidden tab send once a minute."""
MOST_JOBS = 4
"""The number of jobs that run at the same time; further jobs wait."""
MOST_TABS = 12
"""The number of tabs whose runs stay in memory; beyond it the tab that was silent longest is forgotten."""
MANY_TOKENS = 4000
"""From this number of tokens on, a step of an exact engine uses all cores."""
COMPILING = "compiling the tree engine (once, about 20 seconds)"


class Runs:
    """At most one job for each tab and `MOST_JOBS` in total; further jobs wait.

    idle : a tab that sent nothing for this many seconds is stopped and forgotten
    """

    def __init__(self, idle: float = IDLE, encoders: EncoderCache | None = None) -> None:
        self.idle, self.encoders = idle, encoders or EncoderCache()
        self.changed = threading.Condition()
        self.cores, self.host_threads = threads(), torch.get_num_threads()
        self.one_thread, self.many_threads = Turns(self.changed, self.cores), Turns(self.changed, 1)
        self._tabs: dict[Hashable, _Job] = {}
        self._active: list[_Job] = []  # in the order of their starts; the first MOST_JOBS run, the others wait
        self._workers: set[threading.Thread] = set()
        self._closed = False
        self._versions = itertools.count(1)

    def start(self, tab: Hashable, key: Hashable, states: Sequence[State]) -> None:
        """Run these states side by side, instead of the tab's former job. A job with the same key continues, unless it
        was stopped or failed.
        """
        with self.changed:
            former = self._tabs.get(tab)
            if self._closed or (former is not None and former.key == key and not former.cancelled):
                return
            self._drop(tab)
            self._drop_idle()
            job = self._tabs[tab] = _Job(self, key, states)
            if len(self._tabs) > MOST_TABS:
                self._drop(min(self._tabs, key=lambda name: self._tabs[name].seen))
            self._active.append(job)
            self.notify(job)
            self._workers = {worker for worker in self._workers if worker.is_alive()}
            for part in job.parts:
                worker = threading.Thread(target=self._work, args=(job, part), name="lab run", daemon=True)
                self._workers.add(worker)
                worker.start()

    def progress(self, tab: Hashable, key: Hashable) -> JobProgress:
        with self.changed:
            job = self._current(tab, key)
            return UNKNOWN if job is None else job.progress(self._status(job))

    def results(self, tab: Hashable, key: Hashable) -> tuple[list[Run], list[DistanceCurves]]:
        """The runs of a job and their distances.

        Unfinished runs contain the frames so far; there are none until each run has two frames. The distances are empty
        until all runs are finished.
        """
        with self.changed:
            job = self._current(tab, key)
            parts = [] if job is None else list(job.parts)
            if not all(part.run or len(part.frames) > 1 for part in parts):
                return [], []
            distances = [part.distances for part in parts if part.distances is not None]
        return [part.so_far() for part in parts], distances if len(distances) == len(parts) else []

    def stop(self, tab: Hashable) -> None:
        """End the tab's job within a step. Its frames so far are kept."""
        with self.changed:
            job = self._tabs.get(tab)
            if job is not None and self._status(job) in ("waiting", "running", "measuring"):
                self._cancel(job)

    def touch(self, tab: Hashable) -> None:
        """The tab is still open."""
        with self.changed:
            self._drop_idle()
            if tab in self._tabs:
                self._tabs[tab].seen = time.monotonic()

    def forget(self, tab: Hashable) -> None:
        """The tab was closed: end its job and keep nothing of it."""
        with self.changed:
            self._drop(tab)

    def close(self) -> None:
        """End every job and wait for its threads."""
        with self.changed:
            self._closed = True
            for tab in list(self._tabs):
                self._drop(tab)
            workers = list(self._workers)
        for worker in workers:
            worker.join()

    def _current(self, tab: Hashable, key: Hashable) -> _Job | None:
        self._drop_idle()
        job = self._tabs.get(tab)
        if job is None or job.key != key:
            return None
        job.seen = time.monotonic()
        return job

    def _status(self, job: _Job) -> str:
        if job.error:
            return "failed"
        if job.cancelled:
            return "stopped"
        if all(part.distances is not None for part in job.parts):
            return "done"
        if job in self._active[MOST_JOBS:]:
            return "waiting"
        return "measuring" if all(part.run is not None for part in job.parts) else "running"

    def _drop(self, tab: Hashable) -> None:
        job = self._tabs.pop(tab, None)
        if job is not None:
            self._cancel(job)

    def _cancel(self, job: _Job) -> None:
        job.cancelled = True
        self.notify(job, ended=True)

    def notify(self, job: _Job, ended: bool = False) -> None:
        """Something about the job has changed."""
        with self.changed:
            job.version = next(self._versions)
            if ended and job.ended is None:
                job.ended = time.monotonic()
            self.changed.notify_all()

    def _work(self, job: _Job, part: _Part) -> None:
        try:
            with self.changed:
                self.changed.wait_for(lambda: job.cancelled or job not in self._active[MOST_JOBS:])
            part.work()
            self.notify(job, ended=all(other.distances is not None for other in job.parts))
        except Stopped:
            job.cancelled = True
        except BaseException as error:
            with self.changed:
                if not job.cancelled:
                    job.error, job.cancelled = one_line(error), True
                    self.notify(job, ended=True)
        finally:
            with self.changed:
                job.working -= 1
                self._drop_idle()
                if not job.working:
                    self._active.remove(job)
                    self.changed.notify_all()

    def _drop_idle(self) -> None:
        for tab in [tab for tab, job in self._tabs.items() if self.idles(job)]:
            self._drop(tab)

    def idles(self, job: _Job) -> bool:
        """Whether the tab of a job sent nothing for too long. A run asks this at every step."""
        return time.monotonic() - job.seen > self.idle


class _Job:
    """The runs of a tab. A job that failed or was stopped is `cancelled`."""

    def __init__(self, runs: Runs, key: Hashable, states: Sequence[State]) -> None:
        self.key, self.cancelled, self.error, self.version = key, False, "", 0
        self.began = self.seen = time.monotonic()
        self.ended: float | None = None
        self.parts = [_Part(runs, self, state) for state in states]
        self.working = len(self.parts)

    def progress(self, status: str) -> JobProgress:
        fraction = sum(part.fraction for part in self.parts) / len(self.parts)
        seconds = (time.monotonic() if self.ended is None else self.ended) - self.began
        slowest = min(self.parts, key=lambda part: part.fraction)
        where = f"t = {slowest.t:.2f} of {slowest.state.until:g}"
        message = {
            "waiting": f"waiting: {MOST_JOBS} other runs are in progress",
            "running": next((part.doing for part in self.parts if part.doing), where),
            "measuring": "measuring the distances to the limit law",
            "failed": self.error,
            "stopped": f"stopped at {where}",
        }.get(status, "")
        return JobProgress(status, fraction, message, self.version, seconds)


class _Part(AbstractContextManager):
    """One run of a job, in its own thread. `simulate` reports its progress to it."""

    def __init__(self, runs: Runs, job: _Job, state: State) -> None:
        self.runs, self.job, self.state = runs, job, state
        self.t, self.doing = 0.0, "starting"
        self.frames: list[tuple[float, Tensor]] = []
        self.turns = runs.one_thread
        self.problem: Problem | None = None
        self.run: Run | None = None
        self.distances: DistanceCurves | None = None

    @property
    def fraction(self) -> float:
        return 1.0 if self.run is not None else self.t / self.state.until if self.frames else 0.0

    def work(self) -> None:
        self.stage()
        check(self.state)
        if self.state.trained:
            self._report(f"loading {self.state.address[0]}")
        frames = common_frames([part.state for part in self.job.parts])
        problem = self.problem = problem_of(self.state, self.runs.encoders, frames)
        engine = _engine(problem)
        self._report(COMPILING if "tree" in needed(engine) and not compiled() else "starting")
        alone = len(problem.cloud) >= MANY_TOKENS or "tree" in needed(engine)
        if alone:
            self.turns = self.runs.many_threads
        set_own_threads(self.runs.cores if alone else 1, self.runs.host_threads)
        with self.turns.turn(self.wanted):
            run = simulate(problem.block, problem.cloud, **problem.arguments, progress=self)
        with self.runs.changed:
            self.run, self.frames = run, []
            self.runs.notify(self.job)
        # On one thread and outside the queue. A distance may hold a lock while it is computed, and a thread that waits
        # for a turn with a lock stops all others.
        set_own_threads(1, self.runs.host_threads)
        self.distances = distance_curves(replace(run, cloud=_StoppableCloud(run.cloud, self.stage)))

    def _report(self, doing: str) -> None:
        self.doing = doing
        self.runs.notify(self.job)

    def __exit__(self, *exc: object) -> None:
        """A watcher of `simulate` is a context manager."""

    def wanted(self) -> bool:
        return not (self.job.cancelled or self.runs.idles(self.job))

    def stage(self) -> None:
        if not self.wanted():
            raise Stopped

    def at(self, t: float) -> None:
        self.t = t
        self.turns.pass_on(self.wanted)

    def frame(self, t: float, x: Tensor) -> None:
        with self.runs.changed:
            self.frames.append((t, x))
            self.doing = ""
            self.runs.notify(self.job)

    def so_far(self) -> Run:
        """The run over the frames so far."""
        with self.runs.changed:
            run, problem, frames = self.run, self.problem, list(self.frames)
        if run is not None:
            return run
        assert problem is not None
        return Run(
            block=problem.block.to(problem.cloud.dtype),
            cloud=problem.cloud,
            beta=self.state.beta,
            times=torch.tensor([t for t, _ in frames], dtype=torch.float64),
            frames=torch.stack([x for _, x in frames]),
            field_errors=torch.empty(0, 2, dtype=torch.float64),
        )


class _StoppableCloud(Cloud):
    """A cloud that calls `check` before it is moved: distances are computed frame by frame, and `check` stops them."""

    def __init__(self, cloud: Cloud, check: Callable[[], None]) -> None:
        self.points, self.log_weights, self.law, self._check = cloud.points, cloud.log_weights, cloud.law, check

    def moved_to(self, points: Tensor) -> Cloud:
        self._check()
        return super().moved_to(points)


def _engine(problem: Problem) -> str:
    """The engine that `simulate` will choose."""
    cloud = problem.cloud
    beta = resolved_beta(problem.beta, problem.gamma, len(cloud))
    if beta == math.inf:
        return "hardmax"
    without = engines_to_come(problem.block, cloud.log_weights, beta, "auto", TREE_TOLERANCE)
    return engine_of(problem.block, cloud.log_weights, "auto", TREE_TOLERANCE, without)
