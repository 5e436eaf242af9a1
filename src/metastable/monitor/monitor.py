"""The monitor: examines the texts of a live model, or texts that it is given, and watches the stream of p-values.

It is a guest of the program that runs the model. Outputs and gradients are bit for bit those without the monitor.
Errors inside the monitor (a full disk, a sink that raises, a bug) are counted and logged once per kind, and the model
goes on. Only `KeyboardInterrupt` and `SystemExit` pass. A forked process can use the model and the monitor, even if
another thread was inside the monitor during the fork.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from metastable.monitor.examiner import Examiner, one_line
from metastable.monitor.record import NO_TOKEN, NOT_FINITE, Record, records
from metastable.monitor.scoring import Assessment
from metastable.monitor.sinks import Sink

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
    failures : errors inside the monitor, by place: "scoring" (a whole pass), "records", "alarm", "sink", "on_alarm"
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
    embeddings without token ids) is counted with its reason. Sinks are written to in the thread of the pass and closed
    when the monitor is left.

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
    on_alarm : called once with the monitor when the alarm is raised, in the thread of the pass
    keep : how many of the newest records are kept
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
    ) -> None:
        self.baseline = baseline if isinstance(baseline, Baseline) else Baseline.load(os.fspath(baseline))
        self.setting, self.alpha = setting, alpha
        self.alarm = Alarm(self.baseline.scorer(setting).texts, alpha)
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
        self._raised_line: int | None = None

    def __repr__(self) -> str:
        counts, at = self.counts, self.raised_at
        state = "no alarm" if at is None else f"alarm at text {at}"
        return (
            f"Monitor({self.baseline.encoder_name}, {self.setting}, alpha={self.alpha:g}: {counts.scored} scored, "
            f"{counts.texts - counts.scored} rejected, {state})"
        )

    @property
    def raised_at(self) -> int | None:
        """The number, from 1, of the scored text that raised the alarm; None if there is no alarm."""
        return self.alarm.raised_at

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
        """The stream so far, for JSON: counts and the alarm."""
        with self._lock:
            counts, alarm = self.counts, self.alarm
            return {
                "texts": counts.texts,
                "scored": counts.scored,
                "strange": counts.strange,
                "cut": counts.cut,
                "rejected": counts.rejected,
                "alarm": {
                    "raised": alarm.raised_at is not None,
                    "text": alarm.raised_at,
                    "line": self._raised_line,
                    "log_e_then": alarm.raised_log_e,
                    "log_e": alarm.log_e,
                    "peak_log_e": alarm.peak,
                    "threshold_log_e": alarm.threshold,
                    "alpha": alarm.alpha,
                    "assumes": ASSUMES,
                },
            }

    def __enter__(self) -> Monitor:
        if isinstance(self._model, (str, os.PathLike)):
            raise BadInput(f"model is the name {str(self._model)!r}; give a live model, or use examine without `with`")
        with self._lock:
            if self._reader is not None:
                raise BadInput("this monitor is entered already; leave it first, or make another one")
            examiner = self._examiner = self._checked()
            encoder = examiner.encoder

            def open(passage: Passage) -> Watch | None:
                # A copy of the model keeps the hooks after the monitor is left.
                live = self._reader is reader
                return examiner.open(passage, partial(self._passed, encoder.tokenizer)) if live else None

            special, depths, entry = examiner.special, examiner.depths, entry_of(self._model)
            reader = Reader(encoder.model, encoder.anatomy, special, depths, open, self._unread, entry=entry)
            self._reader = reader.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.__exit__()
                for sink in self.sinks:
                    self._try("sink", sink.close)

    def examine(self, texts: Iterable[str], batch_size: int = 32) -> list[Record]:
        """Run the encoder on texts: one record for each, in order. They count as the next texts of the stream.

        A text that cannot be used has a record with the reason. How texts are put into batches changes scores by the
        rounding of float32 only. The live model is not touched, and its own passes are not disturbed.
        """
        given = texts if isinstance(texts, str) else list(texts)
        made = self.examiner().records(given, batch_size, self._fail)
        if self._with_text:
            made = [replace(record, text=text) for record, text in zip(made, given, strict=True)]
        return self.take(made)

    def examiner(self) -> Examiner:
        """What makes the records of texts, without any effect on counts, alarm and sinks."""
        with self._lock:
            if self._examiner is None:
                self._examiner = self._checked()
            return self._examiner

    def take(self, made: Sequence[Record]) -> list[Record]:
        """Take records as the next texts of the stream; returns them with `log_e` and `alarm`.

        `examine` calls this. Call it yourself for records that an `Examiner` made, for example in another process.
        """
        with self._lock:
            done, raised = self._counted(made)
            self._deliver(_Block(lambda: done), len(done))
        self._announce(raised)
        return done

    def replay(self, past: Iterable[Record]) -> None:
        """Go on from records of an earlier process: they count, but sinks and callbacks do not get them again."""
        with self._lock:
            for record in past:
                self._counted([record])

    def _counted(self, made: Sequence[Record]) -> tuple[list[Record], int | None]:
        """Records with `log_e` and `alarm`, and the place of the one that raised the alarm."""
        p_marginal, p_value = (
            np.array([getattr(record, name) for record in made], dtype=np.float64) for name in ("p_marginal", "p_value")
        )
        log_e, raised = self._count(p_marginal, p_value, [r.because for r in made if r.p_marginal is None])
        self._cut += sum(bool(record.cut) for record in made if record.p_value is not None)
        if raised is not None:
            self._raised_line = made[raised].line
        return _stamped(made, log_e, raised), raised

    def _passed(self, tokenizer: Any, passage: Passage, found: Assessment) -> None:
        """A pass of the live model has ended. Words are made on demand, and the inputs may have changed by then."""
        own = Passage(passage.ids.clone(), passage.mask.clone(), passage.chosen)
        with self._lock:
            empty = found.lengths[~found.usable] == 0
            reasons = [NO_TOKEN if none else NOT_FINITE for none in empty]
            log_e, raised = self._count(found.p_marginal, found.p_value, reasons)

            def make() -> list[Record]:
                made = _stamped(records(found, own, tokenizer, alpha=self.alpha), log_e, raised)
                if not self._with_text or tokenizer is None:
                    return made
                rows = zip(made, own.ids, own.chosen, strict=True)
                return [replace(record, text=tokenizer.decode(ids[chosen])) for record, ids, chosen in rows]

            self._deliver(_Block(make), len(found.usable))
        self._announce(raised)

    def _count(self, p_marginal: np.ndarray, p_value: np.ndarray, reasons: list[str]) -> tuple[np.ndarray, int | None]:
        """Count texts and give their p-values to the alarm. Returns `log_e` after each text, and the row of the alarm.

        p_marginal, p_value : (texts,), NaN for rejected texts
        reasons : of the rejected texts
        """
        usable = ~np.isnan(p_marginal)
        self._scored += int(usable.sum())
        self._strange += int((p_value <= self.alpha).sum())
        self._rejected.update(map(kind, reasons))
        p, before, at = p_marginal[usable], self.alarm.log_e, self.alarm.raised_at
        found = self._try("alarm", self.alarm.evidence, p)
        log_e = np.concatenate([[before], np.full(len(p), before) if found is None else found])[np.cumsum(usable)]
        if at is not None or self.alarm.raised_at is None:
            return log_e, None
        place = self.alarm.raised_at - 1 - (self.alarm.count - len(p))
        return log_e, int(np.flatnonzero(usable)[place])

    def _deliver(self, block: _Block, texts: int) -> None:
        self._kept.extend((block, row) for row in range(texts))
        for record in self._try("records", block.records) or () if self.sinks else ():
            for sink in self.sinks:
                self._try("sink", sink.write, record)
        for sink in self.sinks:
            if (state := getattr(sink, "state", None)) is not None:
                self._try("sink", state, self.alarm)

    def _announce(self, raised: int | None) -> None:
        if raised is not None and self._on_alarm is not None:
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

    def _fail(self, kind: str, error: Exception) -> None:
        with self._lock:
            self._failures[kind] += 1
        words = f"the monitor failed ({kind}): {one_line(error)}; the model goes on"
        self._report(kind, type(error).__name__, words, error)

    def _report(self, kind: str, what: str, words: str, error: Exception | None) -> None:
        """Tell the sinks of every failure, and the log of the first one of its kind."""
        for sink in self.sinks:
            with suppress(Exception):
                if (failed := getattr(sink, "failed", None)) is not None:
                    failed(kind)
        with self._lock:
            new = (kind, what) not in self._logged
            self._logged.add((kind, what))
        if new:
            with suppress(Exception):
                log.warning("%s (others like it are only counted)", words, exc_info=error)


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


def _stamped(made: Iterable[Record], log_e: np.ndarray, raised: int | None) -> list[Record]:
    return [replace(r, log_e=float(log_e[row]), alarm=row == raised) for row, r in enumerate(made)]


def kind(reason: str) -> str:
    """A reason without what is particular to its text.

    >>> kind("is not UTF-8 (byte 0xc3 at place 5); save it as UTF-8 text")
    'is not UTF-8'
    """
    return re.split(r"\s*[(,;]", reason, maxsplit=1)[0]


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
