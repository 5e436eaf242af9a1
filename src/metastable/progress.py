"""A progress bar with the time left, on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
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
