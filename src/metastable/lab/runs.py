"""The runs of the page: one job a tab, in threads of its own, watched and stopped from others.

A run learns that it is no longer wanted in `_Part.stage`, which `simulate` calls several times a step; after every step
it lets others have their turn (see `turns`). Numbers do not depend on turns: a job's run is that of `simulate`, on as
many threads bit for bit.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from metastable.attention import TREE_TOLERANCE, choose
from metastable.attention.tree.ordered import threads
from metastable.cloud import Cloud, uniform
from metastable.errors import BadInput, SimulationStopped
from metastable.figures.distance import DistanceCurves, distance_curves
from metastable.lab.controls import Call, Controls, call_of, common_frames, head_of
from metastable.lab.problems import controls_problems
from metastable.lab.queue import Claim, Stopped, Turns
from metastable.run.run import Run
from metastable.run.simulation import simulate

MOST_JOBS = 4
MOST_TABS = 12
"""A tab keeps its finished runs in memory; of more tabs than this, the one that was longest away is forgotten."""
MANY = 4000
"""From so many tokens on a step of an exact engine is worth more than one thread, even beside a busy browser."""
COMPILING = "compiling the tree engine, once, for about twenty seconds"


@dataclass(frozen=True)
class Look:
    """How a job is getting on.

    status : waiting, running, measuring, done, failed, stopped, or unknown where another key is current
    fraction : of the simulated time, 0 to 1
    message : what it is doing, or what went wrong, in one line
    version : another number whenever there is something new to show; never the same for two jobs
    seconds : since the start, up to the end
    """

    status: str
    fraction: float
    message: str
    version: int
    seconds: float


UNKNOWN = Look("unknown", 0.0, "", 0, 0.0)


class Runs:
    """At most one job a tab and `MOST_JOBS` in all; the others wait.

    idle : a tab that nobody has looked at for so many seconds is stopped and forgotten
    """

    def __init__(self, idle: float = 20.0) -> None:
        self.idle = idle
        self.changed = threading.Condition()
        self._tabs: dict[Hashable, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self.turns = Turns(self.changed, threads())
        self._workers: set[threading.Thread] = set()
        self._sweeper: threading.Thread | None = None
        self._closed = False
        self._versions = itertools.count(1)

    def start(self, tab: Hashable, key: Hashable, controls: Sequence[Controls]) -> None:
        """Run these, one beside the other, in the place of the tab's former job. The same key goes on as it is, unless
        it was stopped or has failed.
        """
        if not controls:
            raise ValueError("a job needs something to run")
        with self.changed:
            former = self._tabs.get(tab)
            if self._closed or (former is not None and former.key == key and not former.over):
                return
            self._drop(tab)
            job = self._tabs[tab] = _Job(self, key, controls)
            self._waiting.append(job)
            if len(self._tabs) > MOST_TABS:
                self._drop(min(self._tabs, key=lambda name: self._tabs[name].seen))
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, name="lab sweeper", daemon=True)
                self._sweeper.start()
            self._admit()

    def look(self, tab: Hashable, key: Hashable) -> Look:
        with self.changed:
            job = self._current(tab, key)
            return UNKNOWN if job is None else job.look(self._status(job))

    def partial(self, tab: Hashable, key: Hashable) -> list[Run]:
        """The finished runs, or runs over the frames so far once each has two of them; until then, nothing."""
        with self.changed:
            job = self._current(tab, key)
            parts = [] if job is None else list(job.parts)
            if not all(part.run or len(part.frames) > 1 for part in parts):
                return []
        return [part.so_far() for part in parts]

    def measured(self, tab: Hashable, key: Hashable) -> list[DistanceCurves]:
        """The distances of the finished runs, once all are there."""
        with self.changed:
            job = self._current(tab, key)
            found = [] if job is None else [part.measured for part in job.parts]
            return [] if None in found else [one for one in found if one is not None]

    def stop(self, tab: Hashable) -> None:
        """End the tab's job within a step. What there is of it stays."""
        with self.changed:
            job = self._tabs.get(tab)
            if job is not None and self._status(job) in ("waiting", "running", "measuring"):
                self._cancel(job)

    def touch(self, tab: Hashable) -> None:
        """The tab is still there."""
        with self.changed:
            if tab in self._tabs:
                self._tabs[tab].seen = time.monotonic()

    def forget(self, tab: Hashable) -> None:
        """The tab is gone: end its job and keep nothing of it."""
        with self.changed:
            self._drop(tab)

    def close(self) -> None:
        """End every job and wait for the threads, but not for long: a part of a large step may last seconds."""
        with self.changed:
            self._closed = True
            for tab in list(self._tabs):
                self._drop(tab)
            ending = [*self._workers, *([self._sweeper] if self._sweeper else [])]
            self.changed.notify_all()
        deadline = time.monotonic() + 2
        for thread in ending:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _current(self, tab: Hashable, key: Hashable) -> _Job | None:
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
        if job in self._waiting:
            return "waiting"
        if all(part.measured is not None for part in job.parts):
            return "done"
        return "measuring" if all(part.run is not None for part in job.parts) else "running"

    def _drop(self, tab: Hashable) -> None:
        job = self._tabs.pop(tab, None)
        if job is not None:
            self._cancel(job)

    def _cancel(self, job: _Job) -> None:
        job.cancelled = True
        if job in self._waiting:
            self._waiting.remove(job)
        self.news(job, ended=True)

    def news(self, job: _Job, ended: bool = False) -> None:
        """Something about the job has changed."""
        with self.changed:
            job.version = next(self._versions)
            if ended and job.ended is None:
                job.ended = time.monotonic()
            self.changed.notify_all()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < MOST_JOBS:
            job = self._waiting.popleft()
            self._running.append(job)
            self._workers = {worker for worker in self._workers if worker.is_alive()}
            self.news(job)
            for part in job.parts:
                worker = threading.Thread(target=self._work, args=(job, part), name="lab run", daemon=True)
                job.workers += 1
                self._workers.add(worker)
                worker.start()

    def _work(self, job: _Job, part: _Part) -> None:
        try:
            part.work()
            done = all(other.measured is not None for other in job.parts)
            self.news(job, ended=done)
        except Stopped:
            pass
        except BaseException as error:
            with self.changed:
                if not job.cancelled:
                    job.error, job.cancelled = one_line(error), True
                    self.news(job, ended=True)
        finally:
            with self.changed:
                job.workers -= 1
                if not job.workers:
                    self._running.remove(job)
                    self._admit()

    def _sweep(self) -> None:
        with self.changed:
            while not self._closed:
                now = time.monotonic()
                for tab in [tab for tab, job in self._tabs.items() if now - job.seen > self.idle]:
                    self._drop(tab)
                nearest = min((job.seen for job in self._tabs.values()), default=now)
                self.changed.wait(max(nearest + self.idle - now, 0.0) + 0.01)


class _Job:
    def __init__(self, runs: Runs, key: Hashable, controls: Sequence[Controls]) -> None:
        self.key, self.cancelled, self.error, self.workers = key, False, "", 0
        self.began = self.seen = time.monotonic()
        self.ended: float | None = None
        self.version = 0
        self.parts = [_Part(runs, self, one) for one in controls]

    @property
    def over(self) -> bool:
        """It was stopped or has failed: there will be no more of it."""
        return self.cancelled or bool(self.error)

    def look(self, status: str) -> Look:
        fraction = sum(part.fraction for part in self.parts) / len(self.parts)
        seconds = (time.monotonic() if self.ended is None else self.ended) - self.began
        return Look(status, fraction, self._message(status), self.version, seconds)

    def _message(self, status: str) -> str:
        slowest = min(self.parts, key=lambda part: part.fraction)
        where = f"t = {slowest.t:.2f} of {slowest.controls.until:g}"
        return {
            "waiting": f"waiting: {MOST_JOBS} other runs are under way",
            "running": next((part.doing for part in self.parts if part.doing), where),
            "measuring": "measuring the distances to the limit law",
            "failed": self.error,
            "stopped": f"stopped at {where}",
        }.get(status, "")


class _Part:
    """One run of a job: it works in its own thread and is what `simulate` reports to."""

    def __init__(self, runs: Runs, job: _Job, controls: Controls) -> None:
        self.runs, self.job, self.controls = runs, job, controls
        self.t, self.doing = 0.0, "starting"
        self.frames: list[tuple[float, Tensor]] = []
        self.claim = Claim(1, lambda: not job.cancelled)
        self.call: Call | None = None
        self.run: Run | None = None
        self.measured: DistanceCurves | None = None

    @property
    def fraction(self) -> float:
        return 1.0 if self.run is not None else self.t / self.controls.until if self.frames else 0.0

    def work(self) -> None:
        for field, line in controls_problems(self.controls).items():
            raise BadInput(f"{field}: {line}")
        if self.controls.trained:
            self._tell(f"reading {self.controls.trained.rsplit(':', 2)[0]}")
        self.call = call_of(self.controls, common_frames([part.controls for part in self.job.parts]))
        engine = _engine(self.call)
        self._tell(COMPILING if engine == "tree" and not _compiled() else "starting")
        many = engine == "tree" or len(self.call.cloud) >= MANY
        self.claim.cores = self.runs.turns.cores if many else 1
        with self.runs.turns.turn(self.claim):
            # The tree has threads of its own, and what else there is to do is too little for two.
            torch.set_num_threads(1 if engine == "tree" else self.claim.cores)
            run = simulate(self.call.head, self.call.cloud, **self.call.arguments, progress=self)
        with self.runs.changed:
            self.run, self.frames, self.claim.cores = run, [], 1
            self.runs.news(self.job)
        with self.runs.turns.turn(self.claim):
            torch.set_num_threads(1)
            gate = _Gate(run.cloud, lambda: self.runs.turns.pass_on(self.claim))
            self.measured = distance_curves(replace(run, cloud=gate))

    def _tell(self, doing: str) -> None:
        self.doing = doing
        self.runs.news(self.job)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> None:
        pass

    def stage(self) -> None:
        if not self.claim.wanted():
            raise Stopped

    def at(self, t: float) -> None:
        self.t = t
        self.runs.turns.pass_on(self.claim)

    def frame(self, t: float, x: Tensor) -> None:
        with self.runs.changed:
            self.frames.append((t, x))
            self.doing = ""
            self.runs.news(self.job)

    def so_far(self) -> Run:
        """The run as far as it has come: its cloud, its head and the frames that there are."""
        with self.runs.changed:
            run, call, frames = self.run, self.call, list(self.frames)
        if run is not None:
            return run
        assert call is not None
        return Run(
            head=call.head.to(call.cloud.dtype),
            cloud=call.cloud,
            beta=self.controls.beta,
            times=torch.tensor([t for t, _ in frames], dtype=torch.float64),
            frames=torch.stack([x for _, x in frames]),
            field_errors=torch.empty(0, 2, dtype=torch.float64),
        )


class _Gate(Cloud):
    """The same cloud, which asks before it is moved whether to go on: distances are measured a frame at a time."""

    def __init__(self, cloud: Cloud, ask: Callable[[], None]) -> None:
        self.points, self.log_weights, self.law, self._ask = cloud.points, cloud.log_weights, cloud.law, ask

    def moved_to(self, points: Tensor) -> Cloud:
        self._ask()
        return super().moved_to(points)


def warm_up() -> None:
    """Load, or on the first use compile, what the first run would have to wait for: seconds to half a minute."""
    run = simulate(head_of(Controls()), uniform(3, d=3), beta=1.0, until=0.1, t_eval=2, engine="tree", progress=False)
    distance_curves(run)


def _engine(call: Call) -> str:
    """The engine that `simulate` will choose."""
    cloud = call.cloud
    hard = math.isinf(call.arguments["beta"])
    return "hardmax" if hard else choose("auto", cloud.log_weights, cloud.dim, len(cloud), TREE_TOLERANCE)


def _compiled() -> bool:
    from metastable.attention.tree import compiled

    return compiled()


def one_line(error: BaseException) -> str:
    """What to tell people of an error."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "there is not enough memory for this; take fewer tokens"
    return text if isinstance(error, BadInput | SimulationStopped) else f"{type(error).__name__}: {text}"[:300]
