"""Computing many items on Dask workers: a bounded number of tasks at a time, and a policy for workers that die."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from metastable.errors import BadInput, SchedulerLost
from metastable.scale.cluster import check_versions

if TYPE_CHECKING:
    from distributed import Client, Future

# Seconds between two looks at which workers there are.
LOOK_SECONDS = 2.0
# With `in_order`: the newest item is at most this many items for each thread ahead of the oldest unfinished one.
SPAN = 8

Item = tuple[int, Any]
"""A number and what the function is called with."""


class Tasks:
    """Results of function(common, items), a list with one result for each item, computed by the workers of a client.

    A worker that dies costs only time: Dask gives its tasks to other workers. Dask gives up a task on which several
    workers died. All items of such a task are suspects: each is computed once more, alone, with nothing beside it. If
    workers die on a suspect again, `died` has the last word.

    versions : of the packages that results depend on; a worker with other versions, which may have joined late, is
        refused
    died : called with an item; returns a result for it, or raises
    kept : called when the scheduler is lost; returns the end of the message: what is saved and how to go on
    task_seconds : items are grouped into tasks of about this duration; by default a task is one item
    """

    def __init__(
        self,
        client: Client,
        function: Callable[[Any, Sequence[Any]], list[Any]],
        common: Any,
        *,
        versions: Mapping[str, str | None],
        died: Callable[[Any], Any],
        kept: Callable[[], str],
        task_seconds: float | None = None,
    ) -> None:
        self.client, self.function, self.common = client, function, common
        self.versions, self.died, self.kept, self.task_seconds = versions, died, kept, task_seconds
        self._running: dict[Future, list[Item]] = {}
        self._alone: list[Item] = []
        self._suspects: set[int] = set()
        # Recent average of the seconds for one item.
        self._item_seconds: float | None = None
        self._threads, self._looked = 0, -LOOK_SECONDS

    def groups(
        self, items: Iterable[Item], total: int | None = None, span: int | None = None
    ) -> Iterator[list[tuple[int, Any]]]:
        """The items' numbers and results, one list for each task that is finished.

        total : how many items there are, if that is known; the last tasks are then small, so that workers end together
        span : largest distance of the newest from the oldest unfinished number, for each thread
        """
        coming, left = iter(items), total
        try:
            while True:
                while self._has_room(span) and (group := list(islice(coming, self._group_size(left)))):
                    left = None if left is None else left - len(group)
                    self._submit(group)
                if self._alone and not self._running:
                    self._submit([self._alone.pop(0)])
                if not self._running:
                    return
                for future in self._finished():
                    found = self._collect(future, self._running.pop(future))
                    if found:
                        yield found
        except BadInput:
            raise
        except (asyncio.CancelledError, concurrent.futures.CancelledError, OSError) as error:
            raise self._lost() from error
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._lost() from error

    def in_order(self, items: Iterable[Item]) -> Iterator[Any]:
        """The results in the order of the items, which are numbered from 0 without a gap."""
        waiting: dict[int, Any] = {}
        due = 0
        for group in self.groups(items, span=SPAN):
            waiting.update(group)
            while due in waiting:
                yield waiting.pop(due)
                due += 1

    def _has_room(self, span: int | None) -> bool:
        """Two tasks for each thread are enough that no worker waits, and few enough that memory stays bounded."""
        if self._alone:
            return False
        if time.monotonic() - self._looked > LOOK_SECONDS:
            found = sum(self.client.nthreads().values())
            if not found and self._threads == 0:
                print("metastable: the scheduler has no workers yet: waiting for one", file=sys.stderr)
            self._threads, self._looked = max(1, found), time.monotonic()
        pending = [number for group in self._running.values() for number, _ in group]
        if span is not None and pending and max(pending) - min(pending) >= span * self._threads:
            return False
        return len(self._running) < 2 * self._threads + 1

    def _group_size(self, left: int | None) -> int:
        if self.task_seconds is None or self._item_seconds is None:
            return 1
        wanted = int(self.task_seconds / max(self._item_seconds, 1e-6))
        fair = wanted if left is None else left // (2 * self._threads)
        return max(1, min(wanted, fair))

    def _submit(self, group: list[Item]) -> None:
        values = [item for _, item in group]
        future = self.client.submit(timed, self.versions, self.function, self.common, values, pure=False)
        self._running[future] = group

    def _finished(self) -> list[Future]:
        from distributed import wait

        try:
            return list(wait(list(self._running), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []

    def _collect(self, future: Future, group: list[Item]) -> list[tuple[int, Any]]:
        from distributed import KilledWorker

        numbers = {number for number, _ in group}
        try:
            results, seconds = future.result()
        except KilledWorker:
            if not self._suspects.issuperset(numbers):
                # Dask blames every task that waited on a worker that died.
                self._suspects |= numbers
                self._alone += group
                return []
            results, seconds = [self.died(item) for _, item in group], None
        self._suspects -= numbers
        if seconds is not None:
            each = seconds / len(group)
            self._item_seconds = each if self._item_seconds is None else 0.7 * self._item_seconds + 0.3 * each
        return [(number, result) for (number, _), result in zip(group, results, strict=True)]

    def _lost(self) -> SchedulerLost:
        return SchedulerLost(f"the connection to the Dask scheduler was lost; {self.kept()}")


def timed(
    versions: Mapping[str, str | None], function: Callable[..., list[Any]], common: Any, items: Sequence[Any]
) -> tuple[list[Any], float]:
    """On a worker: the results, and the seconds that they took."""
    check_versions(versions)
    began = time.perf_counter()
    try:
        return function(common, items), time.perf_counter() - began
    except OSError as error:
        # An OSError on the other side would mean that the scheduler was lost.
        raise BadInput(f"a worker on {socket.gethostname()}: {error}") from error
