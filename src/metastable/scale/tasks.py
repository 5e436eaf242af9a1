"""Pieces of one long piece of work on their way through the workers: a bounded number at a time, however many come."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from metastable.errors import BadInput, SchedulerLost
from metastable.scale.cluster import threads_of

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_SECONDS = 2.0
"""How often it is looked whether workers came or went."""
SPAN = 8
"""Pieces for each thread that may lie between the oldest that is not finished and the newest, where order matters."""

LOST = "the connection to the Dask scheduler was lost"


class Flight:
    """function(common, piece) of every piece, computed by the workers of a client.

    A worker that dies costs only time: its pieces go to others. One on which workers die again and again is tried by
    itself, with nothing beside it, and then ends the flight with BadInput.

    where : of a piece, what to call it
    lost : what to add to the words of SchedulerLost
    """

    def __init__(
        self,
        client: Client,
        function: Callable[[Any, Any], Any],
        common: Any,
        where: Callable[[Any], str],
        lost: Callable[[], str],
    ) -> None:
        self.client, self.function, self.common = client, function, common
        self.where, self.lost = where, lost
        self.flight: dict[Future, int] = {}
        self.pieces: dict[int, Any] = {}
        """Those under way, for a second try."""
        self.alone: list[int] = []
        self.suspects: set[int] = set()
        self.threads, self._looked = 1, 0.0

    def through(self, pieces: Iterable[tuple[int, Any]], span: int | None = None) -> Iterator[tuple[int, Any]]:
        """The pieces' numbers and results, as they are finished.

        span : for each thread, how far the newest piece may be from the oldest that is not finished
        """
        import dask

        coming = iter(pieces)
        more = True
        try:
            while more or self.pieces:
                while more and self._room(span):
                    following = next(coming, None)
                    more = following is not None
                    if following is not None:
                        # A piece may be a few long texts; Dask would warn of arguments above 10 MB.
                        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
                            self._submit(*following)
                if self.alone and not self.flight:
                    number = self.alone.pop()
                    self._submit(number, self.pieces[number])
                for future in self._finished():
                    yield from self._landed(future, self.flight.pop(future))
        except (asyncio.CancelledError, concurrent.futures.CancelledError) as error:
            raise self._lost() from error
        except Exception as error:
            if isinstance(error, BadInput) or self.client.status == "running":
                raise
            raise self._lost() from error

    def in_order(self, pieces: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """The results in the order of the pieces, which are numbered from 0 without a gap."""
        waiting: dict[int, Any] = {}
        due = 0
        for number, result in self.through(pieces, SPAN):
            waiting[number] = result
            while due in waiting:
                yield waiting.pop(due)
                due += 1

    def _room(self, span: int | None) -> bool:
        """Two pieces for every thread are under way: enough that no worker waits, few enough that memory stays flat."""
        if self.alone:
            return False
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self.threads, self._looked = max(1, threads_of(self.client)), time.monotonic()
        if span is not None and self.pieces and max(self.pieces) - min(self.pieces) >= span * self.threads:
            return False
        return len(self.flight) < 2 * self.threads + 1

    def _submit(self, number: int, piece: Any) -> None:
        self.pieces[number] = piece
        self.flight[self.client.submit(self.function, self.common, piece, pure=False)] = number

    def _finished(self) -> list[Future]:
        from distributed import wait

        if not self.flight:
            return []
        try:
            return list(wait(list(self.flight), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []

    def _landed(self, future: Future, number: int) -> Iterator[tuple[int, Any]]:
        from distributed import KilledWorker

        try:
            result = future.result()
        except KilledWorker as error:
            if number in self.suspects:
                why = "out of memory, or ended from outside"
                raise BadInput(
                    f"a worker died each time it came to {self.where(self.pieces[number])}: {why}; take fewer texts "
                    "at a time (--batch-size) or fewer workers"
                ) from error
            # Dask blames all that waited on a worker that died. So each again by itself.
            self.suspects.add(number)
            self.alone.append(number)
            return
        del self.pieces[number]
        self.suspects.discard(number)
        yield number, result

    def _lost(self) -> SchedulerLost:
        return SchedulerLost(f"{LOST}; {self.lost()}")
