"""What goes from a monitor to its sinks: one queue, and one thread at a time that writes from it.

The passes of a live model only put records into the queue, and a thread of the monitor writes them: a sink that is slow
or that hangs holds up no pass. If too much waits, further texts are dropped for the sinks and counted. Texts that are
given to `examine` outside of a live model are written in the thread of the caller, in the same order.

The writing thread does not live on in a forked child. The child starts its own, with an empty queue: what waited during
the fork is written by the parent. A fork waits for a sink that is just being called, so that locks inside the sink are
free in the child. It does not wait longer than `FORK` seconds: in the child of such a fork, a sink may hang.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from metastable.files import renewed_in_children
from metastable.monitor.alarm import Alarm
from metastable.monitor.record import Record
from metastable.monitor.sinks import Sink

# Texts of a live model: no more wait for the sinks, unless a single pass has more.
WAITING = 4096
# Seconds for which the end of a `with` block, or of the program, waits for the sinks.
FLUSH = 5.0
# Seconds for which a fork waits for the sinks.
FORK = 1.0


class Failed(Protocol):
    """Called with the kind of a failure, the error, and the number of failures that it counts as."""

    def __call__(self, kind: str, error: BaseException, times: int = 1) -> None: ...


@dataclass(eq=False)
class _Job:
    """Records for the sinks, or the closing of the sinks.

    make : makes the records
    texts : how many there are
    state : the alarm after them, if a sink wants it
    close : whether the sinks are closed after them
    thread : where the job comes from
    written : texts that every sink has by now
    finished : whether the job is done
    given_up : whether the records that are not written yet are left out
    forked : whether a fork has waited for the job in vain; later forks do not wait for it
    """

    make: Callable[[], Iterable[Record]] = tuple
    texts: int = 0
    state: Alarm | None = None
    close: bool = False
    thread: int = field(default_factory=threading.get_ident)
    written: int = 0
    finished: bool = False
    given_up: bool = False
    forked: bool = False


class Delivery:
    """The queue between a monitor and its sinks.

    sinks : what is written to
    failed : see `Failed`; called without any lock of this class

    Attributes
    ----------
    live : whether the writing thread waits for more when the queue is empty
    """

    def __init__(self, sinks: Sequence[Sink], failed: Failed) -> None:
        self.sinks, self.live = tuple(sinks), False
        self._failed = failed
        self.renew()
        renewed_in_children(self)
        _ALL[next(_NUMBERS)] = self

    def renew(self) -> None:
        """Begin anew: in a forked child, which has neither the thread nor the work of its parent."""
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        # Texts of these jobs.
        self._waiting = 0
        # Failures that the sinks have not been told of, by kind.
        self._untold: Counter[str] = Counter()
        # The thread that writes, and its job, if it has one.
        self._writer: int | None = None
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        # Whether a thread that is about to fork waits until nobody writes.
        self._forking = False

    @property
    def wants_state(self) -> bool:
        """Whether a sink wants the state of the alarm."""
        return any(getattr(sink, "state", None) is not None for sink in self.sinks)

    def put(
        self, make: Callable[[], Iterable[Record]], texts: int, state: Alarm | None = None, wait: bool = False
    ) -> Exception | None:
        """Put records into the queue. If they are dropped instead, returns the reason.

        state : the alarm after these texts; nobody else may change it
        wait : the caller will call `drain`, so nothing is dropped and no thread is needed
        """
        if not self.sinks:
            return None
        with self._changed:
            why = None if wait else self._obstacle(texts)
            if why is None:
                self._jobs.append(_Job(make, texts, state))
                self._waiting += texts
                self._changed.notify_all()
            elif self._jobs and state is not None:
                # The state is that of the newest text, whether or not the text is dropped.
                self._jobs[-1].state = state
        return why

    def _obstacle(self, texts: int) -> Exception | None:
        """Why texts of a live model are dropped, if they are."""
        if not self._start():
            return RuntimeError(f"no thread can be started that writes to the sinks, and {texts} texts are not written")
        if self._waiting and self._waiting + texts > WAITING:
            return queue.Full(
                f"the sinks are too slow: {WAITING} texts wait for them, and {texts} more are not written"
            )
        return None

    def tell(self, kind: str, times: int = 1) -> None:
        """The sinks are told of failures, before they get the next records."""
        if not self.sinks:
            return
        with self._changed:
            self._untold[kind] += times
            if self.live:
                self._start()
            self._changed.notify_all()

    def drain(self) -> None:
        """Write, in this thread, until nothing waits that it has put. If a sink calls this, it returns at once.

        If it is known that a sink hangs, this waits for `FLUSH` seconds and then drops what waits.
        """
        me = threading.get_ident()
        if self._writer == me:
            return

        def mine() -> bool:
            if self.given_up:
                # Failures, and the closing of the sinks, are left to the thread in which the sink hangs.
                return any(job.texts and job.thread == me for job in self._jobs)
            here = (*self._jobs, *(() if self._job is None else (self._job,)))
            return bool(self._untold) or any(job.thread == me for job in here)

        limit = FLUSH if self.given_up else None
        while self._write_next(mine, limit):
            pass
        with self._changed:
            late = limit is not None and mine()
        if late:
            self.give_up()

    def flush(self, limit: float) -> bool:
        """Wait for at most `limit` seconds until all is written that was put so far; returns whether it is."""
        with self._changed:
            if self._writer == threading.get_ident():
                return False
            if not (self._jobs or self._untold or self._writer is not None):
                return True
            if not self._start():
                return False
            if not self._jobs:
                self._jobs.append(_Job())
            last = self._jobs[-1]
            self._changed.notify_all()
            self._changed.wait_for(lambda: last.finished or last.given_up, limit)
            return last.finished

    def leave(self) -> None:
        """The model is no longer live. Write what waits and close the sinks, for at most `FLUSH` seconds.

        A sink that hangs is left to the writing thread. When it returns, the sinks get no more of the records that
        waited, and are closed.
        """
        end = time.monotonic() + FLUSH
        with self._changed:
            self.live = False
            if not self.sinks:
                return
            last = _Job(close=True)
            self._jobs.append(last)
            started, thread = self._start(), self._thread
            self._changed.notify_all()
            if self._writer == threading.get_ident():
                # A sink has left the monitor: it is closed when it returns.
                return
            if started:
                self._changed.wait_for(lambda: last.finished, FLUSH)
        if thread is None:
            self.drain()
        elif last.finished:
            thread.join(max(end - time.monotonic(), 0.0))
        elif not self.give_up():
            self._failed("sink", TimeoutError(f"the sinks were not closed within {FLUSH:g} s"))

    @property
    def given_up(self) -> bool:
        """Whether a sink hangs, and it is known that what it has not taken is not written."""
        return self._job is not None and self._job.given_up

    def give_up(self) -> int:
        """Drop the texts that wait, because the sinks did not take them within `FLUSH` seconds; returns how many."""
        with self._changed:
            dropped = self._waiting
            if self._job is not None and not self._job.given_up:
                self._job.given_up = True
                dropped += self._job.texts - self._job.written
            for job in self._jobs:
                # The sinks are closed all the same.
                job.given_up = not job.close
            self._jobs = deque(job for job in self._jobs if job.close)
            self._waiting = 0
            self._changed.notify_all()
        if dropped:
            words = f"the sinks did not take {dropped} texts within {FLUSH:g} s, and these are not written"
            self._failed("dropped", TimeoutError(words), dropped)
        return dropped

    def hold(self, end: float) -> None:
        """Before a fork: wait until the thread that writes has done its job, or until `end`. None writes after that."""
        me = threading.get_ident()

        def free() -> bool:
            # A sink that forks does not wait for itself.
            return self._writer in (None, me) or self._job is None or self._job.given_up or self._job.forked

        self._changed.acquire()
        self._forking = True
        try:
            if not self._changed.wait_for(free, end - time.monotonic()) and self._job is not None:
                self._job.forked = True
        finally:
            self._forking = False
            self._changed.notify_all()

    def release(self) -> None:
        """After a fork, in the parent: let threads write again."""
        # What was made during the fork is not held.
        with suppress(RuntimeError):
            self._changed.release()

    def _start(self) -> bool:
        """Start the writing thread, if there is none; whether there is one now."""
        if self._thread is None or not self._thread.is_alive():
            thread = self._thread = threading.Thread(target=self._work, name="metastable sinks", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system has no more threads, or the interpreter is ending.
                self._thread = None
                return False
        return True

    def _work(self) -> None:
        """What the writing thread does."""
        me = threading.current_thread()
        while self._write_next(lambda: self._thread is me and bool(self.live or self._jobs or self._untold)):
            pass

    def _write_next(self, wanted: Callable[[], bool], limit: float | None = None) -> bool:
        """Write the next job in this thread, once there is one and no other thread writes; returns whether it did so.

        wanted : asked with the lock; once it is false, nothing is written
        limit : seconds to wait
        """
        me = threading.get_ident()

        def ready() -> bool:
            return self._writer is None and not self._forking and bool(self._jobs or self._untold)

        try:
            with self._changed:
                waited = self._changed.wait_for(lambda: ready() or not wanted(), limit)
                if not (waited and wanted()):
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return False
                self._writer = me
                job = self._job = self._jobs.popleft() if self._jobs else _Job()
                self._waiting -= job.texts
                untold, self._untold = self._untold, Counter()
            self._tell(untold)
            self._write(job)
            return True
        finally:
            # An interrupt may come at any place above.
            with self._changed:
                if self._writer == me:
                    if self._job is not None:
                        self._job.finished = True
                    self._writer = self._job = None
                    self._changed.notify_all()

    def _tell(self, untold: Counter[str]) -> None:
        for kind in untold.elements():
            for sink in self.sinks:
                with suppress(self._caught):
                    if (failed := getattr(sink, "failed", None)) is not None:
                        failed(kind)

    def _write(self, job: _Job) -> None:
        for record in self._try("records", job.make) or ():
            for sink in self.sinks:
                if job.given_up:
                    return
                self._try("sink", sink.write, record)
            job.written += 1
        for sink in self.sinks:
            if job.state is not None and (state := getattr(sink, "state", None)) is not None:
                self._try("sink", state, job.state)
        if job.close:
            for sink in self.sinks:
                self._try("sink", sink.close)

    def _try(self, kind: str, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except self._caught as error:
            self._failed(kind, error)
            return None

    @property
    def _caught(self) -> type[BaseException]:
        """What is counted and goes no further. In the writing thread that includes what would end a program."""
        return BaseException if threading.current_thread() is self._thread else Exception


# By the order in which they were made, which is the order in which a fork holds them.
_ALL: WeakValueDictionary[int, Delivery] = WeakValueDictionary()
_NUMBERS = itertools.count()


def _all() -> list[Delivery]:
    # Other threads may make more meanwhile.
    return [delivery for known in _ALL.valuerefs() if (delivery := known()) is not None]


@atexit.register
def _finish_all() -> None:
    """At the end of the program, the records of a monitor that was not left are written, unless a sink hangs."""
    end = time.monotonic() + FLUSH
    for delivery in _all():
        if not delivery.given_up and not delivery.flush(max(end - time.monotonic(), 0.0)):
            delivery.give_up()


def _hold_all() -> None:
    end = time.monotonic() + FORK
    for delivery in _all():
        delivery.hold(end)


def _release_all() -> None:
    for delivery in _all():
        delivery.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all)
