"""A watched stream as a whole, read from its records: in columns, with about 80 bytes per text, and 4 for each depth.

Reports and the live view of the lab are made from this. Records are rows as in records.jsonl, from a file that may
still grow or from a monitor in memory.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metastable.errors import BadInput
from metastable.files import Lines, Tail, read_json
from metastable.monitor.alarm import Alarm
from metastable.monitor.change_point import ChangePoint, change_point
from metastable.monitor.dependence import warnings
from metastable.monitor.episodes import persistence
from metastable.monitor.record import Record, kind
from metastable.monitor.scripts import script
from metastable.monitor.slices import MOST

# The names of the files in the folder of a stream.
RECORDS, SUMMARY, TEXTS, REPORT = "records.jsonl", "summary.json", "strangest.json", "report.html"
WINDOWS = "windows.jsonl"
# Texts that are kept for the page, unless records are private: the strangest of the stream, and as many examples, each
# the strangest text of those that have its cause in common.
KEPT = 20
# Characters of a text that are kept, from its beginning.
LONGEST = 2000

NO_LAYER = -1
NO_SLICE = -1

Value = str | int | None


@dataclass(frozen=True)
class StreamFacts:
    """What the records of a stream do not say themselves. Fields that are not known are None.

    alpha : a text is strange if its p-value is at most alpha
    calibration_texts : m
    independent : how many independent texts these are worth, see `alarm.worth`; None counts as m
    threshold : the logarithm of the evidence at which the alarm is raised
    lengths : the fewest and the most tokens that 99 % of the clean texts have
    finished : whether the stream was read to its end
    private : whether no words of the texts may be shown
    missing : earlier texts of the stream without a record
    sliced_by : the field that slices are values of
    reset_after : texts after an alarm until the evidence starts again; None if it never does
    dependence : sentences about texts that are visibly dependent
    """

    alpha: float = 0.01
    calibration_texts: int | None = None
    independent: float | None = None
    threshold: float | None = None
    encoder: str | None = None
    setting: str | None = None
    lengths: tuple[int, int] | None = None
    finished: bool | None = None
    private: bool = False
    missing: int = 0
    sliced_by: str | None = None
    reset_after: int | None = None
    dependence: tuple[str, ...] = ()

    @classmethod
    def of_summary(cls, path: Path) -> StreamFacts:
        """From summary.json; defaults without a file, or with one that is just being replaced."""
        try:
            found = read_json(path, "the summary") if path.exists() else {}
            made, about = dict(found.get("made") or {}), dict(found.get("about") or {})
            lengths = about.get("lengths")
            return cls(
                alpha=float(made.get("alpha", cls.alpha)),
                calibration_texts=about.get("calibration_texts"),
                independent=about.get("independent"),
                threshold=about.get("threshold_log_e"),
                encoder=about.get("encoder"),
                setting=made.get("setting"),
                lengths=None if lengths is None else (int(lengths[0]), int(lengths[1])),
                finished=found.get("finished"),
                private=bool(made.get("private", False)),
                sliced_by=made.get("slice"),
                reset_after=made.get("reset_after_alarm"),
                dependence=_dependence(found.get("dependence")),
            )
        except (BadInput, TypeError, ValueError):
            return cls()


def _dependence(found: Any) -> tuple[str, ...]:
    """Sentences of the warning of dependence; none if the summary is of an earlier version."""
    try:
        return tuple(warnings(found).values())
    except (LookupError, TypeError):
        return ()


@dataclass(frozen=True)
class Columns:
    """The scored texts, in the order of the stream, as arrays of one length.

    place : which record of the stream, from 0
    number : the line, or place + 1 where there is none
    layer : the first strange depth, `NO_LAYER` if there is none
    detector, script, like : places in `Watched.names`; `like` is the kind of spoilt text that the text is most like
    episode : the number of the episode, from 1
    slice : the place in `Watched.slices`, `NO_SLICE` without slices
    """

    place: np.ndarray
    number: np.ndarray
    p_value: np.ndarray
    p_marginal: np.ndarray
    log_e: np.ndarray
    score: np.ndarray
    n: np.ndarray
    layer: np.ndarray
    detector: np.ndarray
    script: np.ndarray
    like: np.ndarray
    episode: np.ndarray
    slice: np.ndarray


# Type codes of `array` for each column, in order.
CODES = dict(zip(Columns.__annotations__, "qqddddqhhhhqh", strict=True))


@dataclass
class WatchedSlice:
    """A slice of the stream.

    others : whether this is the slice that further values share
    alarms : numbers of the texts that raised an alarm of this slice
    """

    value: Value
    others: bool = False
    alarms: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class RaisedAlarm:
    """An alarm over all texts, and the texts after it up to the end of its episode.

    number : of the text that raised it
    restart : the number of the text with which the evidence starts again, if there is one
    ended : whether its episode has ended
    texts, strange : texts after the alarm, and strange ones among them
    persists : whether these texts alone are not like the clean texts, see `episodes`; None if that is not known
    persistence : the same in words, see `episodes.persistence`
    """

    number: int
    restart: int | None
    ended: bool
    texts: int
    strange: int
    persists: bool | None
    persistence: str | None


class Watched:
    """The records of a stream; `facts` may be replaced at any time.

    rejected : the number of each rejected text
    alarms : numbers of the texts that raised an alarm over all texts
    slices : in the order in which they appeared
    cut : scored texts that were longer than the model's limit
    damaged : rows that are no records
    names : of detectors and scripts; columns have their places in it
    depths : those of `p_by_depth`
    """

    def __init__(self, facts: StreamFacts | None = None) -> None:
        self.facts = facts or StreamFacts()
        self._clear()

    def _clear(self) -> None:
        self.rejected, self._reasons = array("q"), array("h")
        self.alarms: list[int] = []
        self.slices: list[WatchedSlice] = []
        self._slice_places: dict[Value, int] = {}
        self.cut = self.damaged = self.records = 0
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in CODES.items()}
        self.depths: tuple[int, ...] = ()
        self._p_by_depth = array("f")
        self._made: Columns | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the next record. A row that is none is counted as damaged."""
        try:
            if row["status"] == "rejected":
                self._reasons.append(self._code(kind(str(row["reason"]))))
                self.rejected.append(int(row.get("line") or self.records + 1))
            else:
                self._add_scored(row)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            self.damaged += 1
        self.records += 1

    def _add_scored(self, row: Mapping[str, Any]) -> None:
        number, get = int(row.get("line") or self.records + 1), row.get
        p_value, p_marginal = float(row["p_value"]), float(row["p_marginal"])
        log_e, layer = get("log_e"), get("first_layer")
        if not (0 < p_value <= 1 and 0 < p_marginal <= 1):
            raise ValueError("p-values are above 0 and at most 1")
        own_slice = NO_SLICE if get("slice_log_e") is None else self.slice_place(get("slice"))
        values = (
            self.records,
            number,
            p_value,
            p_marginal,
            math.nan if log_e is None else float(log_e),
            float(get("score") or 0.0),
            int(get("n") or 0),
            NO_LAYER if layer is None else int(layer),
            self._code(str(get("detector"))),
            self._code(script([str(word["text"]) for word in get("tokens") or ()])),
            self._code(str(get("like") or "")),
            int(get("episode") or 1),
            own_slice,
        )
        by_depth = {int(depth): float(p) for depth, p in (get("p_by_depth") or {}).items()}
        # A value that does not fit its column is an error before any column grows.
        new = [array(code, [value]) for code, value in zip(CODES.values(), values, strict=True)]
        if not self.depths:
            self.depths = tuple(by_depth)
            self._p_by_depth = array("f", [math.nan] * (self.scored * len(by_depth)))
        self._p_by_depth.extend(by_depth.get(depth, math.nan) for depth in self.depths)
        for own, value in zip(self._columns.values(), new, strict=True):
            own.extend(value)
        self.cut += bool(get("cut"))
        if get("alarm"):
            self.alarms.append(number)
        if get("slice_alarm") and own_slice != NO_SLICE:
            self.slices[own_slice].alarms.append(number)

    def slice_place(self, value: Value) -> int:
        """The place of a value's slice in `slices`. Values after the first `MOST` share one slice."""
        if value not in self._slice_places:
            if len(self._slice_places) < MOST:
                self._slice_places[value] = len(self.slices)
                self.slices.append(WatchedSlice(value))
            elif not self.slices[-1].others:
                self.slices.append(WatchedSlice(None, others=True))
        return self._slice_places.get(value, MOST)

    def _code(self, name: str) -> int:
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]

    @property
    def columns(self) -> Columns:
        if self._made is None or len(self._made.place) != self.scored:
            self._made = Columns(**{name: np.array(own) for name, own in self._columns.items()})
        return self._made

    @property
    def scored(self) -> int:
        return len(self._columns["place"])

    @property
    def p_by_depth(self) -> np.ndarray:
        """(scored, depths), NaN where it is not known."""
        return np.array(self._p_by_depth).reshape(self.scored, len(self.depths))

    @property
    def strange(self) -> np.ndarray:
        """(scored,) of bool."""
        return self.columns.p_value <= self.facts.alpha

    def reasons(self, first: int = 0, last: float = math.inf) -> Counter[str]:
        """How many texts with numbers from first to last were rejected, by reason without what is particular to it."""
        numbers = np.array(self.rejected)
        codes = np.array(self._reasons)[(numbers >= first) & (numbers <= last)]
        return Counter(
            {self.names[code]: int(n) for code, n in zip(*np.unique(codes, return_counts=True), strict=True)}
        )

    def strangest(self, most: int) -> list[int]:
        """Indices of the strangest of the strange scored texts, most anomalous first."""
        found = np.flatnonzero(self.strange)
        order = np.lexsort((-self.columns.score[found], self.columns.p_marginal[found]))
        return [int(i) for i in found[order[:most]]]

    @property
    def considered(self) -> int:
        """The number of scored texts that the change is estimated from: all, or those up to the end of the episode of
        the first alarm if there are several alarms. Several changes are not one."""
        if len(self.alarms) < 2 or not np.isin(self.alarms[0], self.columns.number):
            return self.scored
        own = self.columns.episode[np.searchsorted(self.columns.number, self.alarms[0])]
        return int(np.searchsorted(self.columns.episode, own, side="right"))

    def change(self) -> ChangePoint | None:
        """The first change of a stream that raised the alarm; its places are indices of scored texts, plus 1."""
        texts = self.facts.calibration_texts
        if not self.alarms or texts is None:
            return None
        p = self.columns.p_marginal[: self.considered]
        return change_point(p, texts, self.facts.alpha, independent=self.facts.independent)

    def raised(self) -> list[RaisedAlarm]:
        """The alarms over all texts whose record is there, in their order, with the texts after each."""
        columns, found = self.columns, []
        for at in np.flatnonzero(np.isin(columns.number, self.alarms)).tolist():
            end = int(np.searchsorted(columns.episode, columns.episode[at], side="right"))
            own, texts, threshold = slice(at + 1, end), self.facts.calibration_texts, self.facts.threshold
            persists = words = None
            if self.facts.reset_after is not None and texts is not None and threshold is not None and end > at + 1:
                after = Alarm(texts, self.facts.alpha, independent=self.facts.independent)
                log_e = after.evidence(columns.p_marginal[own])
                persists = bool(log_e.max() >= threshold)
                words = persistence(persists, float(log_e[-1]))
            restart = int(columns.number[end]) if end < self.scored else None
            strange = int(self.strange[own].sum())
            texts_after = end - at - 1
            ended = restart is not None or texts_after == self.facts.reset_after
            found.append(RaisedAlarm(int(columns.number[at]), restart, ended, texts_after, strange, persists, words))
        return found

    def row(self, index: int) -> dict[str, Any]:
        """The record of a scored text."""
        raise NotImplementedError


class WatchedRows(Watched):
    """Records that are in memory."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], facts: StreamFacts | None = None) -> None:
        super().__init__(facts)
        self._rows = rows
        for row in rows:
            self.add(row)

    def row(self, index: int) -> dict[str, Any]:
        return dict(self._rows[int(self.columns.place[index])])


class WatchedFile(Watched):
    """Records of a file that may grow, begin later, or be replaced. Call `update` to take what is new.

    path : the folder of a stream, or a file of records
    """

    def __init__(self, path: str | Path) -> None:
        given = Path(path)
        self.path = given if given.suffix == ".jsonl" and not given.is_dir() else given / RECORDS
        self._tail = Tail(self.path)
        self._offsets = array("q")
        super().__init__()

    def update(self) -> bool:
        """Take the records that are new; returns whether anything changed."""
        facts, began, records = StreamFacts.of_summary(self.path.with_name(SUMMARY)), self._tail.restarted, self.records
        while lines := self._read():
            for offset, line in lines:
                self._offsets.append(offset)
                self.add(_parsed(line))
        changed = (facts, began, records) != (self.facts, self._tail.restarted, self.records)
        self.facts = facts
        return changed

    def _read(self) -> list[tuple[int, bytes]]:
        began = self._tail.restarted
        lines = self._tail.read()
        if self._tail.restarted != began:
            self._clear()
            self._offsets = array("q")
        return lines

    def row(self, index: int) -> dict[str, Any]:
        found = _parsed(self._tail.line(self._offsets[int(self.columns.place[index])]))
        # The file may have been replaced since it was read.
        return {"reason": "", "tokens": [], "sha": None, **found}

    def texts(self) -> dict[str, str]:
        """The strangest texts by their sha, as far as they were kept."""
        return {key: kept.text for key, kept in kept_texts(self.path.with_name(TEXTS)).items()}


@dataclass(frozen=True)
class KeptText:
    """The beginning of a strange text, and what decides whether it is among the strangest. of : see `likeness`"""

    p: float
    score: float
    text: str
    of: str

    @property
    def rank(self) -> tuple[float, float]:
        return self.p, -self.score


def likeness(record: Record) -> str:
    """What strange texts have in common if they are in one group of the page: script, detector, depth and kind."""
    written = script([word.text for word in record.tokens])
    return f"{written}, {record.detector}, {record.first_layer}, {record.like}"


def kept_texts(path: Path) -> dict[str, KeptText]:
    """Texts by the sha in their records, from the file of a stream; {} without a file. They are for people only."""
    try:
        found = read_json(path, "the strangest texts")["texts"].items() if path.exists() else ()
        return {
            key: KeptText(float(own["p"]), float(own["score"]), str(own["text"]), str(own["of"])) for key, own in found
        }
    except (BadInput, AttributeError, LookupError, TypeError, ValueError):
        return {}


def read_windows(path: Path) -> list[dict[str, Any]]:
    """The tested windows of a stream, in order; [] without a file."""
    found = []
    for number, raw in enumerate(Lines(path).read(), start=1):
        row = _parsed(raw)
        numbers = [row.get(name) for name in ("number", "first", "last", "texts")]
        p = row.get("p_value")
        words = isinstance(row.get("detector"), str) and isinstance(row.get("strange"), bool)
        if (
            numbers[0] != number
            or not all(isinstance(n, int) for n in numbers)
            or not isinstance(p, float)
            or not words
        ):
            raise BadInput(f"{path} is damaged: line {number} is not window {number}")
        found.append(row)
    return found


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
