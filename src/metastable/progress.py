"""Progress of long work, on standard error: a bar on a terminal, a line every ten seconds elsewhere.

Also objects that watch a simulation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from metastable.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Watcher(Protocol):
    """A context manager that `simulate` calls, in its own thread. An exception of a call ends the run.

    at(t) : called after every step, also after a rejected one
    stage() : optional; called before every evaluation of the field (a step has several)
    frame(t, x) : called with the positions (N, d) at each saved time, 0 included, in order. A resumed run also reports
        the frames from before the interruption. x belongs to the run and must not be changed
    """

    def __enter__(self) -> Any: ...

    def __exit__(self, *exc: Any) -> None: ...

    def at(self, t: float) -> None: ...

    def frame(self, t: float, x: Tensor) -> None: ...


def watching(until: float, progress: bool | Watcher | None) -> Watcher:
    """The object that `simulate` calls: the watcher that it was given, or a progress bar."""
    if isinstance(progress, Watcher):
        return progress
    if progress is not None and not isinstance(progress, int):
        kind = type(progress).__name__
        raise BadInput(f"progress is of type {kind}; give True, False or a context manager with at(t) and frame(t, x)")
    return Progress(until, progress)


SECONDS = 10.0
"""The time between two lines of progress, and before the first one: short work prints nothing."""


class _Bar:
    """Context manager for one bar. With `show` None it is shown if standard error is a terminal.

    lines : print a line now and then if standard error is not a terminal. Commands do; a library prints nothing into
        the log of its host.
    """

    def __init__(
        self, total: float | None, words: str, show: bool | None, after: str = "", lines: bool = False
    ) -> None:
        self.show = _terminal() if show is None else show
        self._total, self._words, self._after = total, words, after
        self._lines = lines and show is None and not self.show
        self._bar: Any = None

    def __enter__(self) -> Self:
        self._begun = self._told = time.monotonic()
        if self.show:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            ends = (TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(self._after), *ends)
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(self._words, total=self._total)
            self._bar.start()
        return self

    def _move(self, completed: float, **changes: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, **changes)
        elif self._lines and time.monotonic() - self._told >= SECONDS:
            self._tell(completed, changes.get("description", self._words))

    def _tell(self, completed: float, words: str) -> None:
        """One line: what is done, of how much and how long it will take if that is known."""
        self._told = time.monotonic()
        told = f"{words}: {self._done(completed)}, {_duration(self._told - self._begun)} elapsed"
        if self._total and 0 < completed <= self._total:
            told += f", about {_duration((self._told - self._begun) * (self._total / completed - 1))} left"
        # A closed or full standard error is no reason to stop.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(told, file=sys.stderr, flush=True)

    def _done(self, completed: float) -> str:
        return f"{completed:.0%}"

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Progress(_Bar):
    """A run through time; `at(t)` moves the bar."""

    def __init__(self, until: float, show: bool | None) -> None:
        super().__init__(until, "simulating", show, "t = {task.completed:.2f} of {task.total:g}")

    def at(self, t: float) -> None:
        self._move(t)

    def frame(self, t: float, x: Tensor) -> None:
        """A bar shows no frames."""


class Shares(_Bar):
    """A bar for several tasks: call it with the share of each task that is done."""

    def __init__(self, names: Sequence[str], show: bool | None) -> None:
        super().__init__(1.0, "starting", show, lines=True)
        self.names = names

    def __call__(self, shares: dict[str, float]) -> None:
        done = sum(shares.get(name, 0.0) >= 1 for name in self.names)
        busy = [name for name in self.names if 0 < shares.get(name, 0.0) < 1]
        words = f"{done} of {len(self.names)} claims" + (f", now {', '.join(busy)}" if busy else "")
        self._move(sum(shares.get(name, 0.0) for name in self.names) / len(self.names), description=words)


class Texts(_Bar):
    """Progress through texts: call it with how many are done, and of how many if that is known."""

    def __init__(self, show: bool | None = None, what: str = "texts") -> None:
        super().__init__(None, "measuring", show, f"{{task.completed:.0f}} {what}", lines=True)
        self._what = what

    def __call__(self, done: int, total: int | None = None) -> None:
        if total is not None:
            self._total = total
            if self._bar is not None:
                self._bar.update(self._task, total=total)
        self._move(done)

    def _done(self, completed: float) -> str:
        of = "" if self._total is None else f" of {self._total:.0f}"
        return f"{completed:.0f}{of} {self._what}"


class FileTexts(_Bar):
    """Progress through the texts of a file, in lines: none on a terminal, where `watch` has a line of its own.

    before : texts that were done by an earlier command
    """

    def __init__(self, before: int = 0) -> None:
        super().__init__(1.0, "examining", False if _terminal() else None, lines=True)
        self._before, self._counts = before, ""

    def __call__(self, done: int, total: float) -> None:
        """done : texts so far, with those from before; total : about how many the file has"""
        self._counts = f"{done} of about {total:.0f} texts"
        new = total - self._before
        self._move(min((done - self._before) / new, 1.0) if new > 0 else 0.0)

    def _done(self, completed: float) -> str:
        return self._counts


def _terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _duration(seconds: float) -> str:
    """
    >>> _duration(8.4), _duration(75), _duration(7300)
    ('8 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
