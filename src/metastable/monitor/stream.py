"""A stream of lines: taken in batches, given records in the order of the lines, and kept in a folder.

A thread takes lines as they come, a bounded number ahead, and the examiner takes those that are there, up to a few
batches. So a slow stream is answered at once, and a fast one is examined in batches. From a regular file whole batches
are taken, so that a run is reproducible to the last bit. On a live stream batches depend on time, and scores depend on
batches by the rounding of float32; a p-value changes only if a score is that close to a calibration score.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metastable.encoder.texts import Line
from metastable.errors import BadInput
from metastable.files import Lines, locked, read_json, write_json
from metastable.monitor.record import Record
from metastable.monitor.watched import (
    KEPT,
    LONGEST,
    RECORDS,
    REPORT,
    SUMMARY,
    TEXTS,
    WINDOWS,
    KeptText,
    kept_texts,
    likeness,
    read_windows,
)

if TYPE_CHECKING:
    from metastable.monitor.monitor import Monitor

SCHEMA = "metastable.watch/1"

# What is said of facts that are hashes, if they are others than those of the records.
CHANGED = {
    "encoder": "the weights of the encoder are others than those with which",
    "baseline": "the baseline was changed (recalibrated or made again), or is another one, since",
}

# Batches of lines that are examined at once, if there are as many: they are sorted by length, which saves padding.
TOGETHER = 4
# Batches of lines that are read ahead.
AHEAD = 2 * TOGETHER
# Characters: no more lines are read ahead, or taken into a batch, once they hold as many.
CHARACTERS = 2**24


class Intake:
    """Lines that a thread of its own takes from a source.

    ahead : most lines that wait; the thread stops reading while there are as many
    """

    def __init__(self, source: Iterable[Line], ahead: int) -> None:
        self.ahead = ahead
        self._ready: deque[Line] = deque()
        self._held = 0
        self._newest: Line | None = None
        self._over = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._fill, args=(source,), name="intake", daemon=True).start()

    def _fill(self, source: Iterable[Line]) -> None:
        try:
            for line in source:
                with self._changed:
                    while len(self._ready) >= self.ahead or self._held > CHARACTERS:
                        self._changed.wait()
                    self._ready.append(line)
                    self._newest = line
                    self._held += len(line.text or "")
                    self._changed.notify()
        except Exception as error:
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify()

    def take(self, most: int, whole: bool) -> list[Line]:
        """At most `most` lines and about CHARACTERS characters; [] at the end.

        whole : wait until there are as many, or the source ends: the result then depends on the lines alone. Otherwise
            wait for one line and take those that are there.
        """
        with self._changed:
            while not self._over and not (self._enough(most) if whole else self._ready):
                self._changed.wait()
            taken: list[Line] = []
            characters = 0
            while self._ready and len(taken) < most and characters <= CHARACTERS:
                taken.append(self._ready.popleft())
                characters += len(taken[-1].text or "")
            self._held -= characters
            self._changed.notify()
        if not taken and self._error is not None:
            raise self._error
        return taken

    def expected(self, size: int) -> float:
        """About how many lines a file of `size` bytes has, from those that were read; exact once all were read."""
        newest = self._newest
        return 0.0 if newest is None or not newest.end else newest.number * max(size / newest.end, 1.0)

    def _enough(self, most: int) -> bool:
        return len(self._ready) >= min(most, self.ahead) or self._held > CHARACTERS


def regular(source: str) -> bool:
    """Whether lines come from a regular file, and not from a pipe, a terminal or a socket."""
    return file_size(source) is not None


def file_size(source: str) -> int | None:
    """The size in bytes of a regular file; None for a pipe, a terminal or a socket. "-" is standard input."""
    try:
        found = os.fstat(0) if source == "-" else os.stat(source)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def batches(
    intake: Intake, size: int, done: int = 0, past: Iterable[Record] = (), after: int | None = None
) -> Iterator[list[Line]]:
    """The lines of a regular file after the first `done`, in batches. The batch that `done` falls into comes whole.

    Lines that are done are skipped in whole batches, so that the following batches are the same as without a stop.

    past : the records of the lines that are done; the lines must have the same sha, id and slice
    after : the last line, at most `done`, that is not needed again; `done` unless given
    """
    known = iter(past)
    after = done if after is None else after
    passed = 0
    while batch := intake.take(size, whole=True):
        for line, then in zip(batch[: max(done - passed, 0)], known, strict=False):
            if (sha(line), line.id, line.slice) != (then.sha, then.id, then.slice):
                raise BadInput(
                    f"line {line.number} is not the text of its record; give the same texts, or use --overwrite"
                )
        passed += len(batch)
        if passed > after:
            yield batch
    if passed < done:
        raise BadInput(f"there are {passed} lines and {done} records of them; give the same texts, or use --overwrite")


def arriving(intake: Intake, size: int, done: int = 0) -> Iterator[list[Line]]:
    """The lines of a live stream, in batches of those that are there, numbered after the `done` lines before a stop."""
    while batch := intake.take(size, whole=False):
        yield [replace(line, number=done + line.number) for line in batch]


Examine = Callable[[list[str]], Sequence[Record]]
"""From texts to their records, one for each, in order."""


def examined(lines: Sequence[Line], examine: Examine) -> list[Record]:
    """The records of lines, with line number, id, slice and sha; strange ones have the beginning of their text too."""
    found = iter(examine([line.text for line in lines if line.text is not None]))
    records = (Record.rejected(line.reason or "") if line.text is None else next(found) for line in lines)
    return [
        replace(
            record,
            line=line.number,
            id=line.id,
            slice=line.slice,
            sha=sha(line),
            text=line.text[:LONGEST] if record.strange and line.text is not None else None,
        )
        for record, line in zip(records, lines, strict=True)
    ]


def sha(line: Line) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the text in UTF-8, or of the reason why there is none."""
    content = line.reason or "" if line.text is None else line.text
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def page_facts(monitor: Monitor) -> dict[str, Any]:
    """What the page of a stream needs besides the records: `about` of `stream_folder`."""
    return {
        "encoder": monitor.baseline.encoder_name,
        "calibration_texts": monitor.alarm.texts,
        "independent": monitor.alarm.independent,
        "threshold_log_e": monitor.alarm.threshold,
        "lengths": monitor.baseline.usual_lengths,
    }


class StreamFolder:
    """The folder of a watched stream: records.jsonl, a line per record, and summary.json. See `stream_folder`.

    summary.json is complete at the end. During the stream it is written again with each alarm and each new warning.
    strangest.json has the strangest texts by their sha, if there are any, and windows.jsonl the windows that were
    tested. At the end report.html is written.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], about: dict[str, Any]) -> None:
        self.folder, self.summary, self.facts, self.about = folder, folder / SUMMARY, facts, about
        self._lines = Lines(folder / RECORDS)
        self._windows = Lines(folder / WINDOWS)
        self._begun = False
        self._strangest: dict[str, KeptText] = {}
        # Whether strangest.json has these texts.
        self._strangest_written = True
        self._events: tuple[int, ...] = (0, 0, 0)

    def past(self) -> Iterator[Record]:
        """The records that are there, in order, as far as a monitor needs them to go on."""
        for number, raw in enumerate(self._lines.read(), start=1):
            try:
                yield _restored(json.loads(raw), number)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                where = f"{self._lines.path} is damaged: line {number} is not the record of line {number}"
                raise BadInput(f"{where}; --overwrite starts again") from error

    def past_windows(self) -> list[dict[str, Any]]:
        """The windows that are there, in order."""
        try:
            return read_windows(self._windows.path)
        except BadInput as error:
            raise BadInput(f"{error}; --overwrite starts again") from error

    def write(self, rows: Sequence[dict[str, Any]], windows: Sequence[dict[str, Any]] = ()) -> None:
        """Records first: a window of a regular file that is missing after a kill is tested again."""
        self._begin()
        self._lines.append(*rows)
        if windows:
            self._windows.append(*windows)

    def keep(self, records: Iterable[Record]) -> None:
        """Keep the texts of strange records, as far as they are among the strangest, or the strangest of their like.

        Call this before the records are written: every record that is there after a kill then has its text here.
        """
        before = dict(self._strangest)
        for record in records:
            if record.text is not None and record.sha is not None and record.p_marginal is not None:
                self._strangest[record.sha] = KeptText(
                    record.p_marginal, record.score or 0.0, record.text, likeness(record)
                )
        ranked = sorted(self._strangest, key=lambda key: self._strangest[key].rank)
        # The first text of each likeness is its strangest one.
        first = list({self._strangest[key].of: key for key in reversed(ranked)}.values())
        kept = {*ranked[:KEPT], *sorted(first, key=ranked.index)[:KEPT]}
        self._strangest = {key: self._strangest[key] for key in ranked if key in kept}
        if self._strangest != before:
            self._strangest_written = False
        if not self._strangest_written:
            self._begin()
            texts = {key: vars(text) for key, text in self._strangest.items()}
            write_json(self.folder / TEXTS, {"schema": SCHEMA, "texts": texts})
            self._strangest_written = True

    def refresh(self, monitor: Monitor) -> None:
        """Write the summary of a stream that goes on, if an alarm or a warning came since it was written."""
        slices = () if monitor.slices is None else monitor.slices
        alarms = monitor.episodes.total + sum(own.episodes.total for own in slices)
        warned = monitor.dependence
        events = (alarms, warned.alike_at or 0, warned.copies.warned_at or 0)
        if events != self._events:
            self._write_summary({"finished": False, **monitor.summary()})
            self._events = events

    def finish(self, summary: dict[str, Any]) -> None:
        self._begin()
        self._write_summary(summary)

    def _begin(self) -> None:
        """Before anything is written, the summary says that the stream is not finished."""
        if not self._begun:
            self._begun = True
            self._write_summary({"finished": False})
            self._lines.append()

    def _write_summary(self, found: dict[str, Any]) -> None:
        write_json(self.summary, {"schema": SCHEMA, "made": self.facts, "about": self.about, **found})

    def open(self, resume: bool, overwrite: bool) -> None:
        """Begin a new stream, or refuse to."""
        path = self._lines.path
        if overwrite:
            path.unlink(missing_ok=True)
        if not _size(path):
            # Of a stream whose records are gone: its removal may have been interrupted.
            for old in (self.folder / TEXTS, self.folder / REPORT, self.folder / WINDOWS):
                old.unlink(missing_ok=True)
            self._begin()
            return
        if not resume:
            raise BadInput(f"{path} holds records; use --resume to go on, --overwrite to start again")
        saved = _saved(self.summary, path)
        for name, value in self.facts.items():
            if saved.get(name) != value:
                if name in CHANGED:
                    raise BadInput(
                        f"{CHANGED[name]} the records in {path} were made; p-values before and after cannot be one "
                        "stream: give another --out, or use --overwrite to start again"
                    )
                raise BadInput(
                    f"{path} was made with {name} {saved.get(name)!r}, not {value!r}; --overwrite starts again"
                )
        # Repairs a torn last line, so that the records that are read are those that stay.
        self._lines.append()
        if self._windows.path.exists():
            self._windows.append()
        self._strangest = kept_texts(self.folder / TEXTS)

    def close(self) -> None:
        self._lines.close()
        self._windows.close()


def _restored(row: dict[str, Any], number: int) -> Record:
    """The record of line `number` from its row in records.jsonl; an error if it is not one."""
    names = ("status", "p_value", "p_marginal", "cut", "line")
    own = {name: row[name] for name in names} | {name: row.get(name) for name in ("id", "sha", "slice")}
    found = Record(**own, because=row["reason"])
    given = (found.p_value, found.p_marginal)
    scored = all(isinstance(p, float) and 0 < p <= 1 for p in given)
    rejected = given == (None, None)
    if isinstance(found.slice, bool) or not isinstance(found.slice, str | int | None):
        raise TypeError("the slice")
    if found.line != number or not (scored or rejected) or found.status != ("scored" if scored else "rejected"):
        raise ValueError(f"line {found.line}")
    return found


@contextmanager
def stream_folder(
    folder: Path,
    facts: dict[str, Any],
    resume: bool = False,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
) -> Iterator[StreamFolder]:
    """Hold a folder for the records of a stream. Files of other programs in it are refused, not overwritten.

    A process that is killed leaves whole records and at most one torn line, which is removed. The records and the
    summary of a stream that is continued stay as they are until something new is written.

    facts : what the records depend on; with `resume`, records that depend on something else are refused
    about : what the page needs besides the records; see `watched.StreamFacts`
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out {folder} is a file; give a folder")
    if (folder / REPORT).exists() and not (folder / SUMMARY).exists():
        raise BadInput(f"--out {folder} holds a report of something else; give another folder")
    if (folder / "baseline.json").exists():
        raise BadInput(f"--out {folder} holds a baseline; give another folder for the records")
    _saved(folder / SUMMARY, folder / RECORDS)
    with locked(folder), closing(StreamFolder(folder, facts, about or {})) as kept:
        kept.open(resume, overwrite)
        yield kept


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _saved(summary: Path, records: Path) -> dict[str, Any]:
    """What the records in a folder depend on; {} for a new folder."""
    if not summary.exists():
        if _size(records):
            raise BadInput(f"{records} has no summary.json of watch beside it; give another --out")
        return {}
    with suppress(BadInput):
        found = read_json(summary, "the summary")
        if found.get("schema") == SCHEMA and isinstance(found.get("made"), dict):
            return dict(found["made"])
    raise BadInput(f"{summary} is no summary of watch; give another --out")
