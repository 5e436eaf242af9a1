"""Turns on the processor cores, which several runs share, and the progress of a job.

Two runs that use every core at the same time slow each other down many times over, because OpenMP threads that wait
for one another keep their core busy. Runs therefore take turns, one step at a time: one run of many threads, and as
many runs of one thread as there are cores. The two kinds do not wait for each other, because a step of a large run may
take seconds; the operating system shares the cores between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from metastable.errors import BadInput, SimulationStopped

LONGEST_MESSAGE = 300
"""The largest number of characters of an unexpected error that the page shows."""


@dataclass(frozen=True)
class JobProgress:
    """The progress of a run or an audit.

    status : waiting, running, measuring, done, failed, stopped, or unknown if the tab did not ask for this job
    fraction : the finished part of the job, 0 to 1
    message : what the job is doing, or what went wrong, in one line
    version : increases whenever there is something new to show; two jobs never have the same version
    seconds : the time from the start of the job until now, or until its end
    """

    status: str
    fraction: float
    message: str
    version: int = 0
    seconds: float = 0.0


UNKNOWN = JobProgress("unknown", 0.0, "")


def one_line(error: BaseException) -> str:
    """The message of an error for the page."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "not enough memory; use fewer tokens"
    expected = isinstance(error, BadInput | SimulationStopped)
    return text if expected else f"{type(error).__name__}: {text}"[:LONGEST_MESSAGE]


class Stopped(Exception):
    """Raised inside a run that is no longer wanted."""


class Turns:
    """Places for runs. After each step a run gives its place to the one that has waited longest.

    A run is known by its function `wanted`, which says whether it is still wanted. Notify `changed`, which guards the
    places, when that changes.
    """

    def __init__(self, changed: threading.Condition, places: int) -> None:
        self.places, self._changed = places, changed
        self._runs: list[Callable[[], bool]] = []  # the first ones have a place, the others wait in this order

    @contextmanager
    def turn(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for a place, hold it inside the block, and return it. Raise `Stopped` if the run is not wanted."""
        with self._changed:
            self._runs.append(wanted)
        try:
            self._wait(wanted)
            yield
        finally:
            with self._changed:
                self._runs.remove(wanted)
                self._changed.notify_all()

    def pass_on(self, wanted: Callable[[], bool]) -> None:
        """Let waiting runs have their turn first. Raise `Stopped` if this run is no longer wanted."""
        with self._changed:
            if len(self._runs) > self.places:
                self._runs.remove(wanted)
                self._runs.append(wanted)
                self._changed.notify_all()
        self._wait(wanted)

    def _wait(self, wanted: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not wanted() or self._runs.index(wanted) < self.places)
            if not wanted():
                raise Stopped
