"""The monitor: examines the texts of a live model, or texts that it is given, and watches the stream of p-values.

It is a guest of the program that runs the model. Outputs and gradients are bit for bit those without the monitor.
Errors inside the monitor (a full disk, a sink that raises, a bug) are counted and logged once per kind, and the model
goes on. Only `KeyboardInterrupt` and `SystemExit` pass, and those that a sink of a live model raises are counted too.
A sink that is slow or hangs does not hold up the model, see `delivery`. A forked process can use the model and the
monitor, even if another thread was inside the monitor during the fork.
"""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from metastable.arrays import whole
from metastable.encoder.families import anatomy
from metastable.encoder.hooks import Passage, Reader, Unreadable, Watch
from metastable.encoder.load import Encoder, base_model, load
from metastable.encoder.sentence import entry_of
from metastable.errors import BadInput
from metastable.files import Mutex
from metastable.monitor.alarm import Alarm
from metastable.monitor.baseline import Baseline
from metastable.monitor.delivery import FLUSH, Delivery
from metastable.monitor.dependence import Dependence, warnings
from metastable.monitor.episodes import Episodes, Evidence, Place
from metastable.monitor.examiner import Examiner, one_line
from metastable.monitor.record import NO_TOKEN, NOT_FINITE, WRITTEN, Record, kind, records
from metastable.monitor.scoring import Assessment
from metastable.monitor.sinks import Sink
from metastable.monitor.slices import Slices
from metastable.monitor.windows import FEWEST, Window, compared
from metastable.notebook import curve, table

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("metastable.monitor")

# Reasons that are counted separately; all further ones are "others". A reason may name a shape, so there are many.
REASONS = 20

ASSUMES = "texts are independent of each other, and the calibration texts were drawn like the clean stream"


@dataclass(frozen=True)
class MonitorCounts:
    """What became of the texts so far.

    texts : scored and rejected texts
    scored : texts with a p-value
    strange : scored texts with p_value ≤ alpha
    cut : scored texts that were longer than the model's limit, as far as known
    rejected : texts that could not be scored, by reason
    unreadable : passes that could not be scored, by reason; the number of texts in them is not known
    failures : errors inside the monitor, by place: "scoring" (a whole pass), "records", "alarm", "sink", "on_alarm";
        and "dropped", the number of texts that the sinks did not get because they were too slow, or because no thread
        could be started that writes to them
    """

    texts: int
    scored: int
    strange: int
    cut: int
    rejected: dict[str, int]
    unreadable: dict[str, int]
    failures: dict[str, int]


class Monitor:
    """Watches a live encoder, or texts.

    >>> with ms.Monitor(model, "baseline/") as monitor:             # doctest: +SKIP
    ...     serve(model)
    >>> monitor.alarm.raised_at, monitor.records[-1].reason         # doctest: +SKIP
    >>> ms.Monitor("my-encoder", "baseline/").examine(texts)        # doctest: +SKIP

    While it is entered, every call of the model is examined, in any thread and in any gradient mode. (Not a bare
    `model.forward(…)`: torch runs no hooks there.) The texts get records, which go to `records` and to the sinks, and
    the alarm takes their p-values in the order in which passes end. A pass that cannot be scored (training mode,
    embeddings without token ids) is counted with its reason. A thread of the monitor writes to the sinks, and no pass
    waits for it. `flush` waits until the sinks have the records. Sinks that fall thousands of texts behind do not get
    the next texts, which are counted as dropped. When the monitor is left, it waits a few seconds for the sinks and
    closes them.

    A copy of the model that is made meanwhile has hooks that do nothing once the monitor is left; pickling the model
    fails until then. torch.compile skips hooks: compiled models are refused, and a model that is compiled while it is
    watched is no longer seen.

    model : a model of transformers in float32, with or without a task head, or a `SentenceTransformer`, whose `encode`
        runs the texts in the order of their lengths; for `examine` alone also a folder, a hub id or an ONNX file
    baseline : a `Baseline` of the same encoder, or the folder of one
    setting : "light" or "full"
    sinks : where records go, see `monitor.sinks`
    alpha : the probability that a clean stream ever raises an alarm is at most alpha; a text is anomalous if its
        p-value is at most alpha
    tokenizer : for `examine` and for the words in records; a model in memory has none of its own
    on_alarm : called with the monitor at each text that raises an alarm, in the thread of the pass, which waits for it;
        other passes do not
    keep : how many of the newest records are kept
    reset_after : begin a new episode, with evidence 1, this many texts after an alarm, and say whether the shift
        persists; see `episodes` for what is then promised. None: the alarm stays raised.
    slices : whether texts belong to slices with alarms of their own, which share alpha; see `slices`
    """

    def __init__(
        self,
        model: Any,
        baseline: Baseline | str | os.PathLike[str],
        setting: str = "light",
        sinks: Iterable[Sink] = (),
        alpha: float = 0.01,
        tokenizer: Any = None,
        *,
        on_alarm: Callable[[Monitor], object] | None = None,
        keep: int = 1000,
        reset_after: int | None = None,
        slices: bool = False,
    ) -> None:
        self.baseline = baseline if isinstance(baseline, Baseline) else Baseline.load(os.fspath(baseline))
        self.setting, self.alpha = setting, alpha
        scorer = self.baseline.scorer(setting)
        texts, independent = scorer.texts, scorer.independent
        self.slices = Slices(texts, alpha, reset_after, independent) if slices else None
        self.episodes = (
            Episodes(texts, alpha, None, reset_after, independent=independent)
            if self.slices is None
            else self.slices.overall
        )
        self.dependence = Dependence()
        # `log_e` and `episode` of the newest scored text.
        self._newest = 0.0, 1
        self.sinks = tuple(sinks)
        for sink in self.sinks:
            if not all(callable(getattr(sink, name, None)) for name in ("write", "close")):
                raise BadInput(f"a sink is of type {type(sink).__name__}; it must have the methods write and close")
        self._with_text = any(getattr(sink, "include_text", False) for sink in self.sinks)
        self._model, self._tokenizer, self._on_alarm = model, tokenizer, on_alarm
        # The newest texts: the records of their pass, and their row in it.
        self._kept: deque[tuple[_Block, int]] = deque(maxlen=whole(keep, "keep", 1, "at least one record must be kept"))
        # Reentrant: a sink may run the model.
        self._lock = Mutex()
        self._examiner: Examiner | None = None
        self._reader: Reader | None = None
        self._scored = self._strange = self._cut = 0
        self._rejected: Counter[str] = Counter()
        self._unreadable: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()
        self._delivery = Delivery(self.sinks, self._fail)

    def __repr__(self) -> str:
        counts, at = self.counts, self.raised_at
        state = "no alarm" if at is None else f"alarm at text {at}"
        if self.episodes.total > 1:
            state += f" and {self.episodes.total - 1} more"
        return (
            f"Monitor({self.baseline.encoder_name}, {self.setting}, alpha={self.alpha:g}: {counts.scored} scored, "
            f"{counts.texts - counts.scored} rejected, {state})"
        )

    def _repr_html_(self) -> str:
        """The monitor in a notebook."""
        counts, at = self.counts, self.raised_at
        rows: dict[str, object] = {
            "setting": f"{self.setting}, alpha = {self.alpha:g}",
            "texts": f"{counts.scored} scored, {counts.texts - counts.scored} rejected",
            "strange": f"{counts.strange}; at most about {self.alpha * counts.scored:.2g} expected for clean texts",
            "alarm": "none" if at is None else f"raised at scored text {at}",
            "evidence": f"log E = {self.alarm.log_e:.2f}, alarm at {self.alarm.threshold:.2f}",
        }
        rows |= (
            {"failures": ", ".join(f"{kind}: {n}" for kind, n in counts.failures.items())} if counts.failures else {}
        )
        evidence = [record.log_e for record in self.records if record.log_e is not None]
        drawn = curve(range(len(evidence)), evidence, "log E of the kept texts", self.alarm.threshold)
        return table(f"Monitor of {self.baseline.encoder_name}", rows, drawn if evidence else "")

    def to_frame(self) -> pd.DataFrame:
        """The kept records, newest last, as a table: one row a text, with the fields of `Record` and `strange`."""
        import pandas as pd

        rows = [record.to_dict() | {"strange": record.strange} for record in self.records]
        for row in rows:
            row["tokens"] = [word["text"] for word in row["tokens"]]
        return pd.DataFrame(rows, columns=[*WRITTEN, "strange"])

    def report(self, path: str | os.PathLike[str], words: bool = True) -> Path:
        """Write a page about the kept records: timeline, change, groups of strange texts. It needs no network.

        words : whether words of the texts may be on the page
        """
        from metastable.monitor import report
        from metastable.monitor.watched import StreamFacts, WatchedRows

        with self._lock:
            made, texts, raised = self.records, self.counts.texts, self.episodes.numbers
            dependent = self.dependence.to_dict()
            of_slices = {own.value: own.episodes.numbers for own in self.slices or () if not own.others}
        missing = texts - len(made)
        rows = [
            record.to_dict(words) | {"line": missing + place if record.line is None else record.line}
            for place, record in enumerate(made, start=1)
        ]
        facts = StreamFacts(
            alpha=self.alpha,
            # The place of a change cannot be told from a part of the stream.
            calibration_texts=None if missing else self.alarm.texts,
            independent=self.alarm.independent,
            threshold=self.alarm.threshold,
            encoder=self.baseline.encoder_name,
            setting=self.setting,
            lengths=self.baseline.usual_lengths,
            private=not words,
            missing=missing,
            reset_after=self.episodes.reset_after,
            dependence=tuple(warnings(dependent).values()),
        )
        watched = WatchedRows(rows, facts)
        # Alarms whose records were not kept.
        watched.alarms[:0] = raised[: len(raised) - len(watched.alarms)]
        for value, numbers in of_slices.items():
            own = watched.slices[watched.slice_place(value)]
            own.alarms[:0] = numbers[: len(numbers) - len(own.alarms)]
        return report.write(watched, Path(path))

    @property
    def alarm(self) -> Alarm:
        """The alarm over all texts, of the episode that is going on. It counts the texts of its episode."""
        return self.episodes.alarm

    @property
    def raised_at(self) -> int | None:
        """The number, from 1, of the scored text that raised the first alarm over all texts; None without an alarm."""
        return None if self.episodes.first is None else self.episodes.first.place.text

    @property
    def records(self) -> list[Record]:
        """The records of the newest texts, newest last; at most `keep`."""
        with self._lock:
            kept = list(self._kept)
        made = {block: self._try("records", block.records) or () for block in dict.fromkeys(block for block, _ in kept)}
        return [made[block][row] for block, row in kept if made[block]]

    @property
    def counts(self) -> MonitorCounts:
        """The counts of this moment. They stay as they are when the stream goes on."""
        with self._lock:
            return MonitorCounts(
                self._scored + self._rejected.total(),
                self._scored,
                self._strange,
                self._cut,
                dict(sorted(self._rejected.items())),
                dict(self._unreadable),
                dict(self._failures),
            )

    @property
    def failures(self) -> dict[str, int]:
        """`counts.failures`: errors inside the monitor, by place."""
        return self.counts.failures

    def summary(self) -> dict[str, Any]:
        """The stream so far, for JSON: counts, the alarm over all texts, its episodes, slices and dependence.

        "alarm" has the place and the evidence of the first alarm, and the evidence of the episode that is going on.
        "alarms" are the first one and the newest.
        """
        with self._lock:
            counts, alarm, first = self.counts, self.alarm, self.episodes.first
            return {
                "texts": counts.texts,
                "scored": counts.scored,
                "strange": counts.strange,
                "cut": counts.cut,
                "rejected": counts.rejected,
                "alarm": {
                    "raised": first is not None,
                    "text": None if first is None else first.place.text,
                    "line": None if first is None else first.place.line,
                    "log_e_then": None if first is None else first.log_e,
                    "log_e": alarm.log_e,
                    "peak_log_e": alarm.peak,
                    "threshold_log_e": alarm.threshold,
                    "alpha": self.alpha,
                    "assumes": ASSUMES,
                    "episode": alarm.episode,
                    "reset_after": self.episodes.reset_after,
                },
                **self.episodes.to_dict(),
                "slices": None if self.slices is None else [own.to_dict() for own in self.slices],
                "dependence": self.dependence.to_dict(),
            }

    def __enter__(self) -> Monitor:
        if isinstance(self._model, (str, os.PathLike)):
            raise BadInput(f"model is the name {str(self._model)!r}; give a live model, or use examine without `with`")
        if self.slices is not None:
            raise BadInput("slices is True, and texts of a live model have no slice; use examine, or leave it out")
        with self._lock:
            if self._reader is not None:
                raise BadInput("this monitor is entered already; leave it first, or make another one")
            examiner = self._examiner = self._checked()
            encoder = examiner.encoder

            def open(passage: Passage) -> Watch | None:
                # A copy of the model keeps the hooks after the monitor is left.
                live = self._reader is reader
                return examiner.open(passage, partial(self._passed, encoder.tokenizer)) if live else None

            reader = Reader(
                encoder.model,
                encoder.anatomy,
                examiner.special,
                examiner.depths,
                open,
                self._unread,
                entry=entry_of(self._model),
                projected=examiner.projected,
            )
            self._reader = reader.__enter__()
            self._delivery.live = True
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.__exit__()
        if reader is not None:
            self._delivery.leave()

    def flush(self, timeout: float = FLUSH) -> bool:
        """Wait until the sinks have all records so far, for at most `timeout` seconds; returns whether they have.

        Records of later passes are not waited for, and dropped ones are only counted.

        Leaving the monitor does this too, and so does the end of the program. Call it where a program ends without
        either, such as in a forked worker that ends with `os._exit`.
        """
        return self._delivery.flush(timeout)

    def examine(
        self, texts: Iterable[str], batch_size: int = 32, slices: Iterable[str | int | None] | None = None
    ) -> list[Record]:
        """Run the encoder on texts: one record for each, in order. They count as the next texts of the stream.

        A text that cannot be used has a record with the reason. How texts are put into batches changes scores by the
        rounding of float32 only. The live model is not touched, and its own passes are not disturbed.

        slices : one value per text, if the monitor has slices
        """
        given = texts if isinstance(texts, str) else list(texts)
        values = None if slices is None else self._values(slices, len(given))
        made = self.examiner().records(given, batch_size, self._fail)
        if values is not None:
            made = [replace(record, slice=value) for record, value in zip(made, values, strict=True)]
        if self._with_text:
            made = [replace(record, text=text) for record, text in zip(made, given, strict=True)]
        return self._take(made, [hash(text) for text in given])

    def _values(self, slices: Iterable[str | int | None], texts: int) -> list[str | int | None]:
        if self.slices is None:
            raise BadInput("the monitor has no slices; make it with slices=True")
        if isinstance(slices, str):
            raise BadInput(f"slices is one string, {slices[:20]!r}; give a list with one value for each text")
        values = list(slices)
        if len(values) != texts:
            raise BadInput(f"there are {len(values)} slices and {texts} texts; give one slice for each text")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int | None):
                kind = type(value).__name__
                raise BadInput(f"a slice is of type {kind}; give strings, whole numbers or None")
        return values

    def test(self, texts: Iterable[str], batch_size: int = 32) -> Window:
        """Whether texts together are like the clean texts: one p-value for all of them, see `windows`.

        It has more power than the p-values of single texts. Texts that cannot be scored are left out. None of the texts
        counts as a text of the stream: they change no alarm, and the sinks get no records of them. Errors inside the
        monitor are counted in `failures`, and sinks are told of them.
        """
        made = self.examiner().records(texts, batch_size, self._fail)
        if self._reader is None:
            self._delivery.drain()
        rows = [record.traits for record in made if record.traits is not None]
        if len(rows) < len(made) and len(rows) < FEWEST:
            why = next(record.because for record in made if record.traits is None)
            raise BadInput(f"{len(rows)} of {len(made)} texts can be scored, and {FEWEST} are needed; a text {why}")
        return compared(self.examiner().scorer, np.array(rows), self.alpha)

    def examiner(self) -> Examiner:
        """What makes the records of texts, without any effect on counts, alarm and sinks."""
        with self._lock:
            if self._examiner is None:
                self._examiner = self._checked()
            return self._examiner

    def take(self, made: Sequence[Record]) -> list[Record]:
        """Take records as the next texts of the stream; returns them with the marks of the alarms.

        `examine` calls this. Call it yourself for records that an `Examiner` made, for example in another process.
        """
        return self._take(made, [record.sha for record in made])

    def _take(self, made: Sequence[Record], keys: Sequence[Hashable | None]) -> list[Record]:
        """keys : equal for equal texts, or None"""
        with self._lock:
            done, marks = self._counted(made, keys)
            alone = self._reader is None
            dropped = self._deliver(_Block(lambda: done), len(done), wait=alone)
        if alone:
            self._delivery.drain()
        self._drop(dropped, len(done))
        self._announce(marks)
        if alone:
            # The sinks are told of a callback that failed.
            self._delivery.drain()
        return done

    def replay(self, past: Iterable[Record]) -> None:
        """Go on from records of an earlier process: they count, but sinks and callbacks do not get them again."""
        with self._lock:
            for record in past:
                self._counted([record], [record.sha])

    def _counted(self, made: Sequence[Record], keys: Sequence[Hashable | None]) -> tuple[list[Record], _Marks]:
        """Records with their marks."""
        p_marginal, p_value = (
            np.array([getattr(record, name) for record in made], dtype=np.float64) for name in ("p_marginal", "p_value")
        )
        reasons = [record.because for record in made if record.p_marginal is None]
        lines, values = [record.line for record in made], [record.slice for record in made]
        marks = self._count(p_marginal, p_value, reasons, lines, values, keys)
        self._cut += sum(bool(record.cut) for record in made if record.p_value is not None)
        return marks.on(made), marks

    def _passed(self, tokenizer: Any, passage: Passage, found: Assessment) -> None:
        """A pass of the live model has ended. Words are made on demand, and the inputs may have changed by then."""
        own = Passage(passage.ids.clone(), passage.mask.clone(), passage.chosen)
        with self._lock:
            empty = found.lengths[~found.usable] == 0
            reasons = [NO_TOKEN if none else NOT_FINITE for none in empty]
            nowhere = [None] * len(found.usable)
            keys = self._try("alarm", _hashes, own) or nowhere
            marks = self._count(found.p_marginal, found.p_value, reasons, nowhere, nowhere, keys)

            def make() -> list[Record]:
                made = marks.on(records(found, own, tokenizer, alpha=self.alpha))
                if not self._with_text or tokenizer is None:
                    return made
                rows = zip(made, own.ids, own.chosen, strict=True)
                return [replace(record, text=tokenizer.decode(ids[chosen])) for record, ids, chosen in rows]

            dropped = self._deliver(_Block(make), len(found.usable))
        self._drop(dropped, len(found.usable))
        self._announce(marks)

    def _count(
        self,
        p_marginal: np.ndarray,
        p_value: np.ndarray,
        reasons: list[str],
        lines: Sequence[int | None],
        values: Sequence[str | int | None],
        keys: Sequence[Hashable | None],
    ) -> _Marks:
        """Count texts and give their p-values to the alarms.

        p_marginal, p_value : (texts,), NaN for rejected texts
        reasons : of the rejected texts
        lines, values : the line and the slice of each text, or None
        keys : a digest or a hash of each text, or None
        """
        usable = ~np.isnan(p_marginal)
        scored: list[int] = np.flatnonzero(usable).tolist()
        places = [Place(self._scored + number, lines[row]) for number, row in enumerate(scored, start=1)]
        p, strange = p_marginal[usable], p_value[usable] <= self.alpha
        self._scored += len(scored)
        self._strange += int(strange.sum())
        self._rejected.update(map(kind, reasons))
        found: Evidence | None = self._try("alarm", self.episodes.take, p, strange, places)
        own: Evidence | None = None
        if self.slices is not None:
            own = self._try("alarm", self.slices.take, p, strange, places, [values[row] for row in scored])
        self._try("alarm", self.dependence.update, p, [keys[row] for row in scored])
        # A rejected text has the evidence of the text before it.
        after = [self._newest] * (len(p) + 1)
        if found is not None:
            after[1:] = zip(found.log_e.tolist(), found.episode.tolist(), strict=True)
        self._newest = after[-1]
        by_text = [after[number] for number in np.cumsum(usable).tolist()]
        of_slice: list[float | None] = [None] * len(p_marginal)
        for row, log_e in zip(scored, [] if own is None else own.log_e.tolist(), strict=own is not None):
            of_slice[row] = log_e
        return _Marks(
            log_e=[log_e for log_e, _ in by_text],
            episode=[episode for _, episode in by_text],
            alarms=_rows(found, scored),
            slice_log_e=of_slice,
            slice_alarms=_rows(own, scored),
        )

    def _deliver(self, block: _Block, texts: int, wait: bool = False) -> Exception | None:
        """Keep records and put them into the queue of the sinks. If they are dropped there, returns the reason.

        wait : the caller will wait until they are written, without the lock
        """
        self._kept.extend((block, row) for row in range(texts))
        state = copy.copy(self.alarm) if self._delivery.wants_state else None
        return self._delivery.put(block.records, texts, state, wait)

    def _drop(self, why: Exception | None, texts: int) -> None:
        """Count texts as dropped, if there is a reason."""
        if why is not None:
            self._fail("dropped", why, texts)

    def _announce(self, marks: _Marks) -> None:
        if self._on_alarm is not None:
            for _ in marks.alarms | marks.slice_alarms:
                self._try("on_alarm", self._on_alarm, self)

    def _checked(self) -> Examiner:
        """An examiner for the encoder inside the model, if it can be watched and is the baseline's."""
        live = isinstance(self._model, nn.Module)
        if live:
            _refuse_unwatchable(self._model)
        encoder: Encoder = load(self._model, tokenizer=self._tokenizer, weights=False)
        if live and encoder.model is not (base := base_model(self._model)):
            # `load` copies models that are not float32 throughout; hooks belong on the model itself.
            encoder = replace(encoder, model=base, anatomy=anatomy(base))
        return Examiner(self.baseline, self.setting, encoder, self.alpha)

    def _try(self, kind: str, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except Exception as error:
            self._fail(kind, error)
            return None

    def _unread(self, error: Exception) -> None:
        """The reader could not read a pass: either the pass is unreadable, or the monitor failed."""
        if not isinstance(error, Unreadable):
            self._fail("scoring", error)
            return
        with self._lock:
            reason, known = str(error), self._unreadable
            if reason not in known and len(known) >= REASONS:
                reason = "others"
            known[reason] += 1
        self._report("unreadable", reason, f"a pass is not scored: {error}", None)

    def _fail(self, kind: str, error: BaseException, times: int = 1) -> None:
        with self._lock:
            self._failures[kind] += times
        words = f"the monitor failed ({kind}): {one_line(error)}; the model goes on"
        self._report(kind, type(error).__name__, words, error, times)

    def _report(self, kind: str, what: str, words: str, error: BaseException | None, times: int = 1) -> None:
        """Tell the sinks of every failure, and the log of the first one of its kind."""
        self._delivery.tell(kind, times)
        with self._lock:
            new = (kind, what) not in self._logged
            self._logged.add((kind, what))
        if new:
            with suppress(Exception):
                raised = error if error is not None and error.__traceback__ is not None else None
                log.warning("%s (others like it are only counted)", words, exc_info=raised)


class _Block:
    """The records of one pass, made when they are first asked for. Two threads may make them at once, and alike.

    What they are made from (the tensors of the pass) is then dropped.
    """

    def __init__(self, make: Callable[[], list[Record]]) -> None:
        self._make: Callable[[], list[Record]] | None = make
        self._made: list[Record] = []

    def records(self) -> list[Record]:
        make = self._make
        if make is not None:
            self._made = make()
            self._make = None
        return self._made


@dataclass(frozen=True)
class _Marks:
    """What the alarms make of some texts: evidence and episode by text, and the rows that raised an alarm."""

    log_e: list[float]
    episode: list[int]
    alarms: frozenset[int]
    slice_log_e: list[float | None]
    slice_alarms: frozenset[int]

    def on(self, made: Iterable[Record]) -> list[Record]:
        return [
            replace(
                record,
                log_e=self.log_e[row],
                episode=self.episode[row],
                alarm=row in self.alarms,
                slice_log_e=self.slice_log_e[row],
                slice_alarm=row in self.slice_alarms,
            )
            for row, record in enumerate(made)
        ]


def _hashes(passage: Passage) -> list[int]:
    """A hash of the tokens of each text, padding and special tokens left out."""
    ids, chosen = passage.ids.cpu().numpy(), passage.chosen.cpu().numpy()
    return [hash(row[own].tobytes()) for row, own in zip(ids, chosen, strict=True)]


def _rows(found: Evidence | None, scored: list[int]) -> frozenset[int]:
    """The rows of texts that raised an alarm. scored : the rows of the texts that the alarm took"""
    return frozenset() if found is None else frozenset(scored[row] for row in found.rows)


def _refuse_unwatchable(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise BadInput("the model is compiled, and compiled code skips hooks; watch it before torch.compile")
    for name, weight in base_model(model).named_parameters():
        if weight.dtype != torch.float32 and not name.startswith("pooler."):
            raise BadInput(
                f"weight {name} is {str(weight.dtype).removeprefix('torch.')}, and baselines are for float32 weights; "
                "use model.float(), with torch.autocast around it for speed"
            )
