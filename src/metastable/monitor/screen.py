"""What a person or a pipe sees of a stream while it is watched."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from metastable.errors import BadInput
from metastable.monitor.stream import SCHEMA, Tally, as_line


class Screen:
    """What a person or a pipe sees: records on standard output, the rest on standard error.

    In a pipe, or with `as_json`, every record is a line of JSON; on a terminal strange and rejected texts are a line in
    words. Where standard error is a terminal, its last line counts along, unless someone types the texts there.
    """

    def __init__(self, tally: Tally, as_json: bool, texts: str) -> None:
        self.tally, self.as_json = tally, as_json
        self.terminal = sys.stdout.isatty()
        self.lines = as_json or not self.terminal
        typed = texts == "-" and sys.stdin is not None and sys.stdin.isatty()
        self.live = sys.stderr.isatty() and not typed
        self._waiting = bytearray()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # where it is not UTF-8, as on some terminals
        if typed:
            print("one text a line; Ctrl-D ends", file=sys.stderr)

    def record(self, record: dict[str, Any], alarmed: bool) -> None:
        if self.lines:
            self._waiting += as_line(record, ascii=self.terminal)
        elif sentence := _sentence(record, self.tally.alpha):
            self._clear()
            print(sentence)
        if alarmed:
            self.flush()
            self._clear()
            print(self.tally.alarm_words(), file=sys.stderr)

    def flush(self) -> None:
        try:
            if self._waiting:
                sys.stdout.buffer.write(self._waiting)
            sys.stdout.flush()
            self._waiting.clear()
        except OSError as error:
            _discard_output()
            if isinstance(error, BrokenPipeError):
                raise
            raise BadInput(f"standard output cannot be written: {error.strerror}; free some space") from error
        if self.live:
            counts = f"{self.tally.lines} texts, {self.tally.strange} strange, {self.tally.rejected.total()} rejected"
            print(f"\r\x1b[2K{counts}, log e-value {self.tally.alarm.log_e:.1f}", end="", file=sys.stderr, flush=True)

    def summary(self, found: dict[str, Any]) -> None:
        self._clear()
        if self.as_json:
            self._waiting += as_line({"schema": SCHEMA, **found}, ascii=self.terminal)
            self.flush()
            self._clear()
        else:
            print("\n".join(self.tally.words()), file=sys.stderr)

    def _clear(self) -> None:
        if self.live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _sentence(record: dict[str, Any], alpha: float) -> str | None:
    """A record in words, if there is anything to say of it. Words and ids come without control characters."""
    where = f"line {record['line']}" + ("" if record["id"] is None else f" ({record['id']})")
    if record["status"] == "scored" and record["p_value"] > alpha:
        return None
    found = f"{where}{' rejected' if record['status'] == 'rejected' else ''}: {record['reason']}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in found)


def _discard_output() -> None:
    """What is still in the buffer of standard output goes nowhere: nobody takes it, and it would be tried at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
