"""Requests of many clients as one stream of texts: a bounded queue, and one thread that examines what waits together.

Texts get their line numbers, and the alarm takes their p-values, in the order in which requests were accepted. A
request is accepted whole or refused whole. The thread takes all requests that wait, up to a few batches: a slow stream
is answered at once, and a fast one is examined in batches, as in `monitor.stream`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from metastable.encoder.texts import Line
from metastable.errors import BadInput
from metastable.monitor.examiner import one_line
from metastable.monitor.monitor import Monitor
from metastable.monitor.record import FAILED, Record
from metastable.monitor.stream import CHARACTERS, TOGETHER, StreamFolder, examined

log = logging.getLogger("metastable.monitor")

# Rows that are kept in memory while they cannot be written to the folder. With more, the folder is given up.
UNWRITTEN = 10_000


class Full(Exception):
    """So many texts wait that a request is refused."""


class Closed(Exception):
    """The service has stopped accepting requests."""


@dataclass(frozen=True)
class _Request:
    lines: Sequence[Line]
    answer: Future[list[dict[str, Any]]] = field(default_factory=Future)

    @property
    def characters(self) -> int:
        return sum(len(line.text or "") for line in self.lines)


class Service:
    """Scores the texts of requests with one monitor, in a thread of its own.

    monitor : counts the texts, holds the alarm and writes to its sinks
    folder : also gets each record, before the request is answered
    batch_size : texts in one forward pass
    most : texts that may wait; a request that does not fit is refused, unless nothing waits
    private : records quote no words of the texts
    """

    def __init__(
        self,
        monitor: Monitor,
        folder: StreamFolder | None = None,
        *,
        batch_size: int = 32,
        most: int = 1024,
        private: bool = False,
    ) -> None:
        self.monitor, self.most = monitor, most
        self._folder, self._batch_size, self._private = folder, batch_size, private
        self._examine = partial(monitor.examiner().records, batch_size=batch_size, failed=self._fail)
        self._ready: deque[_Request] = deque()
        self._waiting = self._characters = 0
        self._closed = False
        self._changed = threading.Condition()
        self._unwritten: list[tuple[Record, dict[str, Any]]] = []
        self._failures: Counter[str] = Counter()
        self._error: tuple[str, Exception] | None = None
        self._worker = threading.Thread(target=self._work, name="scoring service", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """Texts that wait."""
        return self._waiting

    @property
    def failures(self) -> dict[str, int]:
        """Errors by place: those of the monitor, "scoring" and "records" (of texts that are then rejected), "request"
        (a forward pass failed), "out" (a write to the folder)."""
        return dict(self._failures + Counter(self.monitor.failures))

    @property
    def error(self) -> str | None:
        """The newest error on one line, for the person who runs the server: it may quote a text or a path."""
        return None if self._error is None else one_line(self._error[1])

    @property
    def error_name(self) -> str | None:
        """The place and the type of the newest error, for clients."""
        return None if self._error is None else f"{self._error[0]}: {type(self._error[1]).__name__}"

    def submit(self, lines: Sequence[Line]) -> Future[list[dict[str, Any]]]:
        """Accept the texts of a request: the future gives one row per text, see `Record.to_dict`.

        A request whose future is cancelled before the worker takes it is not examined, and does not count. Line numbers
        are given by the service.
        """
        request = _Request(lines)
        with self._changed:
            if self._closed:
                raise Closed("the service is stopping; ask another one")
            if self._waiting and (self._waiting + len(lines) > self.most or self._characters > CHARACTERS):
                raise Full(f"{self._waiting} texts are waiting; try again later")
            self._ready.append(request)
            self._waiting += len(lines)
            self._characters += request.characters
            self._changed.notify()
        return request.answer

    def close(self, answer: bool = True) -> None:
        """Stop accepting requests, answer those that wait, and close the sinks.

        answer : False cancels the requests that wait
        """
        with self._changed:
            self._closed = True
            if not answer:
                for request in self._ready:
                    request.answer.cancel()
            self._changed.notify()
        self._worker.join()
        for sink in self.monitor.sinks:
            with suppress(Exception):
                sink.close()

    def _take(self) -> list[_Request] | None:
        """The requests that wait, up to a few batches, without those that were cancelled; None at the end."""
        with self._changed:
            while not self._ready and not self._closed:
                self._changed.wait()
            if not self._ready:
                return None
            taken: list[_Request] = []
            texts = characters = 0
            while self._ready and (not texts or texts + len(self._ready[0].lines) <= TOGETHER * self._batch_size):
                if characters > CHARACTERS:
                    break
                request = self._ready.popleft()
                self._waiting -= len(request.lines)
                self._characters -= request.characters
                if request.answer.set_running_or_notify_cancel():
                    taken.append(request)
                    texts += len(request.lines)
                    characters += request.characters
            return taken

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            if taken and not self._answer(taken) and len(taken) > 1:
                # One text can fail a whole pass; requests of other clients are answered on their own.
                for request in taken:
                    self._answer([request])

    def _answer(self, requests: Sequence[_Request]) -> bool:
        """Examine requests together and answer them; False if that failed for several requests."""
        given = [line for request in requests for line in request.lines]
        done = self.monitor.counts.texts
        lines = [replace(line, number=done + place) for place, line in enumerate(given, start=1)]
        try:
            records = self.monitor.take([_discreet(record) for record in examined(lines, self._examine)])
            rows = [record.to_dict(words=not self._private) for record in records]
        except Exception as error:
            if len(requests) == 1:
                self._fail("request", error)
                requests[0].answer.set_exception(error)
            return False
        self._write(list(zip(records, rows, strict=True)))
        for request in requests:
            request.answer.set_result(rows[: len(request.lines)])
            rows = rows[len(request.lines) :]
        return True

    def _write(self, made: list[tuple[Record, dict[str, Any]]]) -> None:
        """Write records, each with its row, to the folder. What cannot be written now is written with later ones."""
        if self._folder is None:
            return
        self._unwritten += made
        try:
            if not self._private:
                self._folder.keep(record for record, _ in self._unwritten)
            if self._unwritten:
                self._folder.write([row for _, row in self._unwritten])
            self._unwritten = []
            self._folder.refresh(self.monitor)
        except (BadInput, OSError) as error:
            self._fail("out", error)
            if len(self._unwritten) > UNWRITTEN:
                self._folder, self._unwritten = None, []

    def finish(self, summary: dict[str, Any]) -> bool:
        """Write the last rows and the summary, after `close`; whether the folder has all records."""
        self._write([])
        if self._folder is None or self._unwritten:
            return False
        self._folder.finish(summary)
        return True

    def _fail(self, kind: str, error: Exception) -> None:
        if self._failures[kind] == 0:
            log.warning("an error (%s): %s (others like it are only counted)", kind, one_line(error))
        self._failures[kind] += 1
        self._error = kind, error


def _discreet(record: Record) -> Record:
    """The record without the words of an error, which may quote a text of another client."""
    return replace(record, because=FAILED) if record.because.startswith(FAILED) else record
