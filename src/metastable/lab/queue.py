"""The queue for the processor cores, which several runs share, and the progress of a job.

Two runs that use every core at the same time slow each other down many times over, because OpenMP threads that wait
for one another keep their core busy. Runs therefore take turns: a run holds as many cores as it has threads, and
gives them to the run that has waited longest after each of its steps. Runs of one thread have a queue of their own:
they need not wait for a step of a large run, which may take seconds, and the operating system shares the cores between
the two queues.
"""

from __future__ import annotations

import threading
from collections import deque
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


@dataclass(eq=False)
class Ticket:
    """A run in the queue: the number of cores that it needs, and whether it is still wanted."""

    cores: int
    wanted: Callable[[], bool]
    held: bool = False


class CoreQueue:
    """A queue for `cores` cores. `changed` guards it; notify `changed` when a run is no longer wanted."""

    def __init__(self, changed: threading.Condition, cores: int) -> None:
        self.cores, self._changed = cores, changed
        self._free = {"one thread": cores, "many threads": cores}
        self._waiting: dict[str, deque[Ticket]] = {kind: deque() for kind in self._free}

    @contextmanager
    def turn(self, ticket: Ticket) -> Iterator[None]:
        """Wait for the cores, hold them inside the block, and return them."""
        with self._changed:
            self._wait(ticket)
        try:
            yield
        finally:
            with self._changed:
                self._release(ticket)

    def pass_on(self, ticket: Ticket) -> None:
        """Let waiting runs have their turn first. Raise `Stopped` if this run is no longer wanted."""
        with self._changed:
            if not ticket.wanted():
                raise Stopped
            if self._waiting[_kind(ticket)]:
                self._release(ticket)
                self._wait(ticket)

    def _wait(self, ticket: Ticket) -> None:
        kind = _kind(ticket)
        waiting = self._waiting[kind]
        waiting.append(ticket)
        try:
            while ticket.wanted() and (waiting[0] is not ticket or self._free[kind] < ticket.cores):
                self._changed.wait()
        finally:
            waiting.remove(ticket)
            self._changed.notify_all()
        if not ticket.wanted():
            raise Stopped
        self._free[kind] -= ticket.cores
        ticket.held = True

    def _release(self, ticket: Ticket) -> None:
        if ticket.held:
            self._free[_kind(ticket)] += ticket.cores
            ticket.held = False
            self._changed.notify_all()


def _kind(ticket: Ticket) -> str:
    return "many threads" if ticket.cores > 1 else "one thread"
