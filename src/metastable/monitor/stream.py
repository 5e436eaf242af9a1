"""A stream of lines in, a record for each line out, in the order of the lines.

A thread takes lines as they come, a bounded number ahead, and the scorer takes what is there, up to a few batches: a
slow stream has its answer at once, a fast one is scored in batches. From a regular file whole batches are taken, so
that a run is the same each time to the last bit. On a live stream batches depend on time, and scores on batches by the
rounding of float32; a p-value differs only where a score lies that near to a calibration score.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

from metastable import files
from metastable.encoder.texts import Line
from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.records import Record

SCHEMA = "metastable.watch/1"

TOGETHER = 4
"""Batches of lines given to the scorer at once, where they are there: it sorts them by length, and pads less."""

AHEAD = 2 * TOGETHER
"""Batches of lines taken ahead of the scorer."""

CHARACTERS = 2**24
"""No more lines are taken ahead, or into a batch, once they hold so many characters."""

ASSUMES = "texts independent of each other, and a calibration set drawn like the clean stream"


class Intake:
    """Lines taken from a source by a thread of its own.

    ahead : most lines that wait; the thread stops reading while so many do
    """

    def __init__(self, source: Iterable[Line], ahead: int) -> None:
        self.ahead = ahead
        self._ready: deque[Line] = deque()
        self._held = 0
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
                    self._held += len(line.text or "")
                    self._changed.notify()
        except Exception as error:
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify()

    def take(self, most: int, whole: bool) -> list[Line]:
        """At most `most` lines and about CHARACTERS characters; [] at the end.

        whole : wait until there are that many, or the source ends: what is taken then depends on the lines alone.
        Otherwise wait for one line and take what is there.
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

    def _enough(self, most: int) -> bool:
        return len(self._ready) >= min(most, self.ahead) or self._held > CHARACTERS


@dataclass
class Tally:
    """What became of the lines so far, and the alarm. `take` is given every record, in order, as a row of JSON.

    alpha : a text with a p-value of at most this is called strange
    """

    alarm: Alarm
    alpha: float
    lines: int = 0
    scored: int = 0
    strange: int = 0
    cut: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    raised_line: int | None = None
    raised_log_e: float | None = None

    def take(self, record: dict[str, Any]) -> bool:
        """Whether this very record raised the alarm."""
        self.lines += 1
        if record["status"] == "rejected":
            self.rejected[kind(record["reason"])] += 1
            return False
        self.scored += 1
        self.strange += record["p_value"] <= self.alpha
        self.cut += bool(record["cut"])
        was = self.alarm.raised_at
        self.alarm.update(record["p_marginal"])
        if was is not None or self.alarm.raised_at is None:
            return False
        self.raised_line, self.raised_log_e = record["line"], self.alarm.log_e
        return True

    @property
    def code(self) -> int:
        """1 after an alarm, else 2 where lines were rejected or there were none, else 0."""
        if self.alarm.raised_at is not None:
            return 1
        return 2 if self.rejected or not self.lines else 0

    def to_dict(self) -> dict[str, Any]:
        alarm = {
            "raised": self.alarm.raised_at is not None,
            "text": self.alarm.raised_at,
            "line": self.raised_line,
            "log_e_then": self.raised_log_e,
            "log_e": self.alarm.log_e,
            "peak_log_e": self.alarm.peak,
            "threshold_log_e": self.alarm.threshold,
            "alpha": self.alarm.alpha,
            "assumes": ASSUMES,
        }
        counts = {"texts": self.lines, "scored": self.scored, "strange": self.strange, "cut": self.cut}
        return counts | {"rejected": dict(sorted(self.rejected.items())), "alarm": alarm}

    def words(self) -> list[str]:
        """The summary for people."""
        if not self.lines:
            return ["the stream is empty: no text was scored; give one text a line"]
        texts = "text" if self.lines == 1 else "texts"
        found = [
            f"{self.lines} {texts}, {self.scored} scored, {self.strange} strange at p ≤ {self.alpha:g}"
            + (f" (of clean texts about {math.ceil(self.alpha * self.scored)} or fewer)" if self.scored else "")
        ]
        if self.cut:
            found.append(f"{self.cut} cut to the model's limit")
        if self.rejected:
            parts = ", ".join(f"{count} × {reason}" for reason, count in self.rejected.most_common())
            found.append(f"{self.rejected.total()} rejected: {parts}")
        return [*found, self.alarm_words(), f"what the alarm assumes: {ASSUMES}"]

    def alarm_words(self) -> str:
        at = _power(self.alarm.threshold)
        if self.alarm.raised_at is None or self.raised_log_e is None:
            return f"no alarm: e-value {_power(self.alarm.log_e)}, at most {_power(self.alarm.peak)}; alarm at {at}"
        where = "" if self.raised_line == self.alarm.raised_at else f" (line {self.raised_line})"
        once = f"at most 1 of {1 / self.alarm.alpha:.0f}" if self.alarm.alpha < 0.5 else f"{self.alarm.alpha:g} of all"
        return (
            f"alarm at text {self.alarm.raised_at}{where}: the stream is not like the clean texts "
            f"(e-value {_power(self.raised_log_e)} ≥ {at}; on clean streams this happens in {once})"
        )


def kind(reason: str) -> str:
    """A reason without what is particular to its line: 'is not UTF-8 (byte …' → 'is not UTF-8'."""
    return re.split(r"\s*[(,;]", reason, maxsplit=1)[0]


def _power(log: float) -> str:
    """e^log, where it may be far too large for a float."""
    if abs(log) > 600:
        return f"1e{log / math.log(10):+.0f}"
    value = math.exp(log)
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


Score = Callable[[list[str]], Sequence[Record]]
"""Texts to their records, one each, in order."""


def judged(lines: Sequence[Line], score: Score) -> list[tuple[Record, str]]:
    """The records of some lines, with their numbers and names, and the `sha` of each line."""
    found = iter(score([line.text for line in lines if line.text is not None]))
    records = []
    for line in lines:
        record = Record.rejected(line.reason or "") if line.text is None else next(found)
        records.append((replace(record, line=line.number, id=line.id), sha(line)))
    return records


def sha(line: Line) -> str:
    """The first 12 hexadecimal digits of SHA-256 of the text in UTF-8, or of why it cannot be used."""
    content = line.reason or "" if line.text is None else line.text
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def row(record: Record, sha: str, tally: Tally, private: bool) -> tuple[dict[str, Any], bool]:
    """A record for JSON, with the state of the alarm after it; and whether it raised the alarm.

    private : leave out all words of the text
    """
    found = record.to_dict(words=not private)
    raised = tally.take(found)
    return found | {"sha": sha, "log_e": tally.alarm.log_e, "alarm": tally.alarm.raised_at is not None}, raised


class Kept:
    """The records of a stream in a folder: records.jsonl, a line a record as they are made, and summary.json.

    A process that is killed leaves whole records and at most a torn last line; `replay` leaves that line out and counts
    the others, so that the tally goes on as if nothing had happened. Records that are continued, and their summary,
    stay as they are until something new is written.

    facts : what the records depend on; records made otherwise are not continued
    """

    def __init__(self, folder: Path, facts: dict[str, Any], resume: bool = False, overwrite: bool = False) -> None:
        self.records, self.summary, self.facts = folder / "records.jsonl", folder / "summary.json", facts
        self._begun = False
        self._torn_at: int | None = None
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"--out {folder} is a file; give a folder")
        try:
            if (folder / "baseline.json").exists():
                raise BadInput(f"--out {folder} holds a baseline; give another folder for the records")
            self._saved()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.records, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _unwritable(self.records, error) from error
        try:
            self._claim(resume, overwrite)
        except BaseException:
            self._file.close()
            raise

    def _claim(self, resume: bool, overwrite: bool) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadInput(f"another process writes {self.records}; wait for it or give another --out") from error
        if overwrite:
            self._file.truncate(0)
        elif os.path.getsize(self.records):
            if not resume:
                raise BadInput(f"{self.records} holds records; use --resume to go on, --overwrite to begin again")
            self._agree()
            return
        self._begin()

    def _saved(self) -> dict[str, Any]:
        """What a stream that was kept here depended on. Files of other programs are refused, not written over."""
        if not self.summary.exists():
            if self.records.exists() and os.path.getsize(self.records):
                raise BadInput(f"{self.records} has no summary.json of watch beside it; give another --out")
            return {}
        try:
            saved = json.loads(self.summary.read_text(encoding="utf-8"))
            if saved["schema"] == SCHEMA:
                return dict(saved["made"])
        except (ValueError, KeyError, TypeError):
            pass
        raise BadInput(f"{self.summary} is no summary of watch; give another --out")

    def _agree(self) -> None:
        saved = self._saved()
        for name, value in self.facts.items():
            if saved.get(name) != value:
                raise BadInput(
                    f"{self.records} was made with {name} {saved.get(name)!r}, not {value!r}; --overwrite begins again"
                )

    def replay(self, tally: Tally) -> None:
        """Give the whole records that are there to a tally; a torn one at the end is left out."""
        good = 0
        with open(self.records, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    self._torn_at = good
                    return
                good += len(raw)
                try:
                    record = json.loads(raw)
                    if record["line"] != number:
                        raise ValueError(f"line {record['line']}")
                    tally.take(record)
                except (ValueError, KeyError, TypeError) as error:
                    words = f"{self.records} is damaged: its line {number} is not the record of line {number}"
                    raise BadInput(f"{words}; --overwrite begins again") from error

    def past(self) -> Iterator[tuple[str | None, Any]]:
        """Of each whole record that is there, its sha and id."""
        with open(self.records, "rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                record = json.loads(raw)
                yield record.get("sha"), record.get("id")

    def _begin(self) -> None:
        """Before anything is written: the stream is not finished, and nothing follows a torn line."""
        if self._begun:
            return
        if self._torn_at is not None:
            self._file.truncate(self._torn_at)
        self._write_summary({"finished": False})
        self._begun = True

    def write(self, data: bytes) -> None:
        self._begin()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _unwritable(self.records, error) from error

    def finish(self, found: dict[str, Any]) -> None:
        self._begin()
        self._write_summary(found)

    def close(self) -> None:
        self._file.close()

    def _write_summary(self, found: dict[str, Any]) -> None:
        content = {"schema": SCHEMA, "made": self.facts, **found}
        try:
            files.write_text(self.summary, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise _unwritable(self.summary, error) from error


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path} cannot be written: {error.strerror or error}; free some space or give another --out")


def as_line(record: dict[str, Any], ascii: bool = False) -> bytes:
    """JSON on one line. ascii : with all other characters as escapes, so that a terminal obeys none of them."""
    return json.dumps(record, ensure_ascii=ascii, allow_nan=False).encode() + b"\n"


def regular(source: str) -> bool:
    """Whether lines come from a file, all there already, and not from a pipe, a terminal or a socket."""
    try:
        mode = os.fstat(0).st_mode if source == "-" else os.stat(source).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode)


def batches(
    intake: Intake, size: int, done: int = 0, past: Iterable[tuple[str | None, Any]] = ()
) -> Iterator[list[Line]]:
    """The lines of a regular file after the first `done`, in batches; the one that `done` cuts in two comes whole.

    Lines that are done are passed over in whole batches, so that those that follow are cut where they were at first.

    past : sha and id of each of them, which must be those of the lines
    """
    known = iter(past)
    passed = 0
    while batch := intake.take(size, whole=True):
        for line, then in zip(batch[: max(done - passed, 0)], known, strict=False):
            if (sha(line), line.id) != then:
                raise BadInput(
                    f"line {line.number} is not the text that its record is of; give the same texts, or use --overwrite"
                )
        passed += len(batch)
        if passed > done:
            yield batch
    if passed < done:
        raise BadInput(f"there are {passed} lines and {done} records of them; give the same texts, or use --overwrite")


def arriving(intake: Intake, size: int, done: int = 0) -> Iterator[list[Line]]:
    """The lines of a live stream, in batches of those that are there. What was done is over: numbers go on after it."""
    while batch := intake.take(size, whole=False):
        yield [replace(line, number=done + line.number) for line in batch]
