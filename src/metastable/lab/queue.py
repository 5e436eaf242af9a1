"""Who computes next, when several runs share the cores of one machine.

Two runs that use every core at the same time only get into each other's way: threads that wait for one another keep
their core busy meanwhile, and both runs take many times as long as one after the other. So work is done in turns, a
step of a run each. A turn holds as many cores as the work has threads, and whoever has waited longest comes next. Work
of one thread, whose steps are short, has turns of its own: it need not wait for a step of a large run, which may take
seconds, and the system shares the cores between the two.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Stopped(Exception):
    """Raised inside work that is no longer wanted."""


@dataclass(eq=False)
class Claim:
    """A piece of work: how many cores it needs, and whether it is still wanted."""

    cores: int
    wanted: Callable[[], bool]
    held: bool = False


class _Lane:
    def __init__(self, cores: int) -> None:
        self.free = cores
        self.queue: deque[Claim] = deque()


class Turns:
    """Turns on `cores` cores. `changed` guards them; notify it when something is no longer wanted."""

    def __init__(self, changed: threading.Condition, cores: int) -> None:
        self.cores, self._changed = cores, changed
        self._lanes = {large: _Lane(cores) for large in (False, True)}

    @contextmanager
    def turn(self, claim: Claim) -> Iterator[None]:
        """Wait for the cores, have them in here, give them back."""
        with self._changed:
            self._wait(claim)
        try:
            yield
        finally:
            with self._changed:
                self._release(claim)

    def pass_on(self, claim: Claim) -> None:
        """Between two steps: let those who wait have their turn first; `Stopped` if there is to be no next step."""
        with self._changed:
            if not claim.wanted():
                raise Stopped
            if self._lane(claim).queue:
                self._release(claim)
                self._wait(claim)

    def _lane(self, claim: Claim) -> _Lane:
        return self._lanes[claim.cores > 1]

    def _wait(self, claim: Claim) -> None:
        lane = self._lane(claim)
        lane.queue.append(claim)
        try:
            while claim.wanted() and (lane.queue[0] is not claim or lane.free < claim.cores):
                self._changed.wait()
        finally:
            lane.queue.remove(claim)
            self._changed.notify_all()
        if not claim.wanted():
            raise Stopped
        lane.free -= claim.cores
        claim.held = True

    def _release(self, claim: Claim) -> None:
        if claim.held:
            self._lane(claim).free += claim.cores
            claim.held = False
            self._changed.notify_all()
