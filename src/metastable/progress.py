"""A progress bar with the time left, on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


class Progress:
    """Context manager; `at(t)` moves the bar. `show` None means: when standard error is a terminal."""

    def __init__(self, until: float, show: bool | None) -> None:
        self.until = until
        self.show = sys.stderr.isatty() if show is None else show
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self.show:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("simulating"),
                BarColumn(),
                TextColumn("t = {task.completed:.2f} of {task.total:g}"),
                TextColumn("elapsed"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("run", total=self.until)
            self._bar.start()
        return self

    def at(self, t: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=t)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Shares:
    """A bar for several pieces of work: call it with the share of each that is done."""

    def __init__(self, names: Sequence[str], show: bool | None) -> None:
        self.names = names
        self.show = sys.stderr.isatty() if show is None else show
        self._bar: Any = None

    def __enter__(self) -> Shares:
        if self.show:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            ends = (TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self._bar = Bar(TextColumn("{task.description}"), BarColumn(), *ends, console=Console(stderr=True))
            self._task = self._bar.add_task("starting", total=1.0)
            self._bar.start()
        return self

    def __call__(self, shares: dict[str, float]) -> None:
        if self._bar is None:
            return
        done = sum(shares.get(name, 0.0) >= 1 for name in self.names)
        busy = [name for name in self.names if 0 < shares.get(name, 0.0) < 1]
        words = f"{done} of {len(self.names)} claims" + (f", now {', '.join(busy)}" if busy else "")
        total = sum(shares.get(name, 0.0) for name in self.names) / len(self.names)
        self._bar.update(self._task, completed=total, description=words)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
