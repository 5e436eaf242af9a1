"""The monitor on a live model: every forward pass is scored, and nothing of the model's own work is changed.

The promise to the host: outputs and gradients are bit for bit those without the monitor, and whatever goes wrong in
here (a full disk, a sink that raises, a bug) is counted, logged once for each kind, and the model goes on. Only
`KeyboardInterrupt` and `SystemExit` pass.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metastable.arrays import whole
from metastable.encoder.families import anatomy
from metastable.encoder.hooks import Passage, Reader, Unreadable, Watch
from metastable.encoder.load import Encoder, load
from metastable.encoder.texts import batches, blank, unusable
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.judge import Judge
from metastable.monitor.records import NO_TOKEN, Record, records
from metastable.monitor.scoring import Judged
from metastable.monitor.sinks import Sink

log = logging.getLogger("metastable.monitor")

REASONS = 20
"""Reasons that are told apart, so that one that names a shape cannot fill the memory; the rest are "others"."""


@dataclass(frozen=True)
class Counts:
    """What has become of the texts so far.

    texts : scored and rejected ones
    unreadable : passes that could not be scored, by reason; how many texts were in them is not known
    failures : of the monitor itself, by where: "scoring" (a whole pass), "records", "alarm", "sink", "on_alarm"
    """

    texts: int
    scored: int
    rejected: int
    unreadable: dict[str, int]
    failures: dict[str, int]


class Monitor:
    """Watches a live encoder.

    >>> with ms.Monitor(model, "baseline/") as monitor:             # doctest: +SKIP
    ...     serve(model)
    >>> monitor.alarm.raised_at, monitor.records[-1].reason         # doctest: +SKIP

    While it is entered, each call of the model, in any thread and in any gradient mode, is scored (a bare
    `model.forward(…)` is none: torch runs no hooks there): the texts get records, which go to `records` and to the
    sinks, and the alarm takes their p-values in the order in which passes end. A pass that cannot be scored
    (training mode, embeddings without token numbers) is counted with its reason. Sinks are written to in the thread
    of the pass; sinks are closed on leaving. Copying the model in there copies hooks that do nothing once the
    monitor is left, and pickling it fails; both are fine afterwards. What is compiled with torch.compile runs past
    the hooks, so compiled models are refused, and a model that is compiled while it is watched is not seen any
    more.

    model : of transformers, float32, with or without a task head; for `score` alone, also a folder or hub id
    baseline : a `Baseline` of the same encoder, or where it was saved
    setting : "light" or "full"
    sinks : see `monitor.sinks`
    alpha : the level of the alarm, and that at which a record calls a text strange
    tokenizer : for `score` and for the words in records; a model in memory brings none of its own
    on_alarm : called once with the monitor, when the alarm is raised, in the thread of the pass
    keep : how many records are kept
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
        self.alarm = self.baseline.alarm(setting, alpha)
        self.sinks = tuple(sinks)
        for sink in self.sinks:
            if not all(callable(getattr(sink, name, None)) for name in ("write", "close")):
                raise BadInput(f"a sink is of type {type(sink).__name__}; it must have the methods write and close")
        self._with_text = any(getattr(sink, "include_text", False) for sink in self.sinks)
        self._model, self._tokenizer, self._on_alarm = model, tokenizer, on_alarm
        # Of the newest texts: their passage, and their row in it.
        self._kept: deque[tuple[_Block, int]] = deque(maxlen=whole(keep, "keep", 1, "at least one record must be kept"))
        # Reentrant: a sink may run the model.
        self._lock = threading.RLock()
        self._local = threading.local()
        self._watched: tuple[Encoder, Judge] | None = None
        self._reader: Reader | None = None
        self._scored = self._rejected = 0
        self._unreadable: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()
        self._told = False

    @property
    def raised_at(self) -> int | None:
        """The number, from 1, of the scored text that raised the alarm."""
        return self.alarm.raised_at

    @property
    def records(self) -> list[Record]:
        """Of the newest texts, newest last; at most `keep`."""
        with self._lock:
            kept = list(self._kept)
        made = {block: self._try("records", block.make) or () for block in dict.fromkeys(block for block, _ in kept)}
        return [made[block][row] for block, row in kept if made[block]]

    @property
    def counts(self) -> Counts:
        with self._lock:
            scored, rejected = self._scored, self._rejected
            return Counts(scored + rejected, scored, rejected, dict(self._unreadable), dict(self._failures))

    @property
    def failures(self) -> dict[str, int]:
        """`counts.failures`: of the monitor itself, by where."""
        return self.counts.failures

    def __enter__(self) -> Monitor:
        if isinstance(self._model, (str, os.PathLike)):
            raise BadInput(f"model is the name {str(self._model)!r}; give a live model, or use score without `with`")
        with self._lock:
            if self._reader is not None:
                raise BadInput("this monitor is entered already; leave it first, or make another one")
            encoder, judge = self._watched = self._checked()

            def open(passage: Passage) -> Watch | None:
                # A copy of the model keeps the hooks; and `score` reads its own passes.
                if self._reader is not reader or getattr(self._local, "scoring", False):
                    return None
                return judge.open(passage, partial(self._done, encoder.tokenizer))

            reader = Reader(
                encoder.model, encoder.anatomy, self.baseline.special, judge.depths, open, self._unread
            ).__enter__()
            self._reader = reader
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.__exit__()
                for sink in self.sinks:
                    self._try("sink", sink.close)

    def score(self, texts: Iterable[str], batch_size: int = 32) -> list[Record]:
        """Run the model on texts: one record each, in the order given, which is also that of alarm and sinks.

        A text that cannot be used has its record, with the reason. How texts are put together in batches changes scores
        by the rounding of float32 only. Entered or not, the same records come out.
        """
        with self._lock:
            if self._watched is None:
                self._watched = self._checked()
            encoder, judge = self._watched
        if encoder.model.training:
            raise BadInput("the model is in training mode; call model.eval()")
        tokenizer, given = self._own_tokenizer(encoder), _strings(texts)
        reasons = [_unfit(text) for text in given]
        made = [Record.rejected(reason or NO_TOKEN) for reason in reasons]
        places = [place for place, reason in enumerate(reasons) if reason is None]
        with self._scoring(encoder, judge, tokenizer) as run:
            for batch in batches(tokenizer, [given[place] for place in places], encoder.limit, batch_size):
                rows = [places[number] for number in batch.numbers.tolist()]
                found = run(batch.inputs, [given[row] for row in rows])
                for row, record, cut in zip(rows, found, batch.cut, strict=True):
                    made[row] = replace(record, cut=cut)
        if self._with_text:
            made = [replace(record, text=text) for record, text in zip(made, given, strict=True)]
        p = [record.p_marginal for record in made if record.p_marginal is not None]
        self._take(np.array(p, dtype=np.float64), len(made), _Block(lambda: made))
        return made

    @contextmanager
    def _scoring(
        self, encoder: Encoder, judge: Judge, tokenizer: Any
    ) -> Iterator[Callable[[dict[str, Tensor], list[str]], Any]]:
        """A function that runs the model on a batch and gives its records; passes of other threads are not touched."""
        thread = threading.get_ident()
        judged: list[tuple[Passage, Judged]] = []
        errors: list[Exception] = []

        def open(passage: Passage) -> Watch | None:
            own = threading.get_ident() == thread
            return judge.open(passage, lambda *found: judged.append(found)) if own else None

        def failed(error: Exception) -> None:
            if threading.get_ident() == thread:
                errors.append(error)
                self._unread(error)

        def run(inputs: dict[str, Tensor], texts: list[str]) -> list[Record]:
            judged.clear()
            errors.clear()
            with torch.inference_mode():
                encoder.model(**{name: tensor.to(encoder.model.device) for name, tensor in inputs.items()})
            try:
                if judged:
                    passage, found = judged[-1]
                    return records(found, passage, tokenizer, texts, self.alpha)
            except Exception as error:
                errors.append(error)
                self._fail("records", error)
            why = _line(errors[0]) if errors else "the pass was not seen"
            return [Record.rejected(f"could not be scored ({why})")] * len(texts)

        self._local.scoring = True
        try:
            with Reader(encoder.model, encoder.anatomy, self.baseline.special, judge.depths, open, failed):
                yield run
        finally:
            self._local.scoring = False

    def _own_tokenizer(self, encoder: Encoder) -> Any:
        """A copy for this thread: cutting a text switches a tokenizer over, for whoever else uses it at that moment."""
        if not hasattr(self._local, "tokenizer"):
            self._local.tokenizer = copy.deepcopy(encoder.reads_text())
        return self._local.tokenizer

    def _checked(self) -> tuple[Encoder, Judge]:
        """The encoder inside the model, if it can be watched and is the baseline's."""
        live = isinstance(self._model, nn.Module)
        if live:
            _refuse_unwatchable(self._model)
        encoder = load(self._model, tokenizer=self._tokenizer)
        if live and encoder.model is not self._model.base_model:
            # In training mode `load` makes a copy; hooks belong on the model itself.
            base = self._model.base_model
            encoder = replace(encoder, model=base, anatomy=anatomy(base))
        self.baseline.check(encoder)
        return encoder, Judge(self.baseline, self.setting)

    def _done(self, tokenizer: Any, passage: Passage, judged: Judged) -> None:
        """A pass of the live model is over. Words are made when somebody looks, and inputs may have changed by then."""
        own = Passage(passage.ids.clone(), passage.mask.clone(), passage.chosen)

        def make() -> list[Record]:
            made = records(judged, own, tokenizer, alpha=self.alpha)
            if not self._with_text or tokenizer is None:
                return made
            rows = zip(made, own.ids, own.chosen, strict=True)
            return [replace(record, text=tokenizer.decode(ids[chosen])) for record, ids, chosen in rows]

        self._take(judged.p_alarm, len(judged.usable), _Block(make))

    def _take(self, p: np.ndarray, texts: int, block: _Block) -> None:
        """Some texts, p-values of the usable ones among them: to the counts, the alarm, the records and the sinks."""
        with self._lock:
            self._scored += len(p)
            self._rejected += texts - len(p)
            self._try("alarm", self.alarm.update, p)
            self._kept.extend((block, row) for row in range(texts))
            for record in self._try("records", block.make) or () if self.sinks else ():
                for sink in self.sinks:
                    self._try("sink", sink.write, record)
            for sink in self.sinks:
                if (state := getattr(sink, "state", None)) is not None:
                    self._try("sink", state, self.alarm)
            first = self.alarm.raised_at is not None and not self._told
            self._told = self._told or first
        if first and self._on_alarm is not None:
            self._try("on_alarm", self._on_alarm, self)

    def _try(self, kind: str, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except Exception as error:
            self._fail(kind, error)
            return None

    def _unread(self, error: Exception) -> None:
        """The reader could not read a pass: that is the pass's fault, or ours."""
        if not isinstance(error, Unreadable):
            self._fail("scoring", error)
            return
        reason = str(error)
        with self._lock:
            known = reason in self._unreadable or len(self._unreadable) < REASONS
            self._unreadable[reason if known else "others"] += 1
        self._tell("unreadable", reason if known else "others", f"a pass is not scored: {reason}", None)

    def _fail(self, kind: str, error: Exception) -> None:
        with self._lock:
            self._failures[kind] += 1
        self._tell(kind, type(error).__name__, f"the monitor failed ({kind}): {_line(error)}; the model goes on", error)

    def _tell(self, kind: str, what: str, words: str, error: Exception | None) -> None:
        """Sinks, of each failure; the log, of the first of its kind."""
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
    """Records of one pass, made when they are first asked for."""

    def __init__(self, make: Callable[[], list[Record]]) -> None:
        self._make: Callable[[], list[Record]] | None = make
        self._made: list[Record] = []
        self._lock = threading.RLock()

    def make(self) -> list[Record]:
        with self._lock:
            if self._make is not None:
                self._made, self._make = self._make(), None
            return self._made


def _refuse_unwatchable(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise BadInput("the model is compiled, and compiled code runs past hooks; watch it before torch.compile")
    base = getattr(model, "base_model", model)
    for name, weight in base.named_parameters():
        if weight.dtype != torch.float32 and not name.startswith("pooler."):
            raise BadInput(
                f"weight {name} is {str(weight.dtype).removeprefix('torch.')}, and baselines are of float32 weights; "
                "use model.float(), with torch.autocast around it for speed"
            )


def _strings(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise BadInput(f"texts is one string, {texts[:20]!r}; give a list of strings")
    found = list(texts)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise BadInput(f"text {place} is of type {type(text).__name__}; texts must be strings")
    return found


def _unfit(text: str) -> str | None:
    """Why a text is not given to the model, or None."""
    if blank(text):
        return "holds only white space" if text else "is empty"
    return unusable(text)


def _line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:200]
