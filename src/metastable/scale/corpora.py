"""Texts by the million: the audit's measurement, the effects of length and the monitor's records, on workers.

This process reads the texts and sends them to the workers in pieces, cut where a single process cuts too: at the
windows of `encoder.texts.windows`, at the jobs of `encoder.length`, or at the monitor's batches of lines. So the model
sees the same batches. Sums over
texts are exact integers and merge in any order. Records are put in order here, where the alarm is. With one thread for
each process, the results equal those of a single process to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from metastable import files
from metastable.encoder.identity import configuration, tokenization
from metastable.encoder.length.rung import Job, LengthMeter
from metastable.encoder.load import Encoder, load
from metastable.encoder.measure import Measurements, Meter
from metastable.encoder.texts import Line, windows
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.record import Record
from metastable.monitor.stream import examined
from metastable.scale.cluster import connected, installed
from metastable.scale.tasks import Item, Tasks
from metastable.versions import versions

if TYPE_CHECKING:
    from distributed import Client

# The journal of sums is rewritten as one record whenever it has this many.
FOLD = 32
# The parts of `Measurements` that depend on the texts.
SUMS = ("depths", "layers", "heads", "lengths", "counts", "largest", "embeddings")

# A worker with several threads has one model with one set of hooks.
_one_at_a_time = threading.Lock()

Window = list[tuple[int, str]]
"""Numbered texts."""


@dataclass(frozen=True)
class Source:
    """An encoder, as workers find it.

    name : a folder with its full path, or the name of a package or of a model on the hub
    hashes : of its weights, configuration and tokenizer, as this process found them
    tokenizer : the folder of the tokenizer, if it is not that of the model
    """

    name: str
    hashes: tuple[tuple[str, str | None], ...]
    allow_pickle: bool
    tokenizer: Path | None = None

    @classmethod
    def of(cls, encoder: Encoder, allow_pickle: bool) -> Source:
        folder = os.path.expanduser(encoder.name)
        name = os.path.abspath(folder) if os.path.isdir(folder) else encoder.name
        return cls(name, _hashes(encoder), allow_pickle, encoder.tokenizer_folder)

    def found(self) -> Encoder:
        """The encoder, loaded by a worker; BadInput if it differs from that of the calling process."""
        here = f"a worker on {socket.gethostname()}"
        try:
            encoder = load(self.name, self.allow_pickle, self.tokenizer, weights=False)
        except BadInput as error:
            raise BadInput(f"{here} cannot load the model, which every worker must find: {error}") from None
        for (what, known), (_, seen) in zip(self.hashes, _hashes(encoder), strict=True):
            if known != seen:
                words = f"{here} finds another {self.name!r}: the hash of its {what} is {str(seen)[:12]}"
                raise BadInput(f"{words}, and here {str(known)[:12]}; give a model that is the same everywhere")
        return encoder


def _hashes(encoder: Encoder) -> tuple[tuple[str, str | None], ...]:
    return (
        ("weights", encoder.fingerprint),
        ("configuration", configuration(encoder)),
        ("tokenizer", tokenization(encoder)),
    )


def text_versions() -> dict[str, str | None]:
    """The versions of the packages that results on texts depend on."""
    return {**versions(), **{name: installed(name) for name in ("transformers", "tokenizers")}}


@dataclass(frozen=True)
class MeasureTask:
    """What a worker needs to measure windows of texts."""

    source: Source
    batch_size: int
    special: str

    def ready(self) -> Callable[[Window], bytes]:
        """A function that returns the packed sums over the texts of a window."""
        meter = Meter(self.source.found(), self.special)
        return lambda window: packed(meter.tally((text for _, text in window), self.batch_size))

    def name(self, window: Window) -> str:
        return f"texts {window[0][0] + 1} to {window[-1][0] + 1}"


@dataclass(frozen=True)
class WatchTask:
    """What a worker needs to make the records of batches of lines.

    baseline : the folder, with its full path
    sha : SHA-256 of its baseline.json
    """

    source: Source
    baseline: str
    sha: str
    setting: str
    alpha: float
    batch_size: int

    def ready(self) -> Callable[[list[Line]], list[Record]]:
        """A function that returns the records of a batch of lines."""
        encoder = self.source.found()
        here = f"a worker on {socket.gethostname()}"
        try:
            known = Baseline.load(self.baseline)
            sha = hashlib.sha256((Path(self.baseline) / "baseline.json").read_bytes()).hexdigest()
        except (BadInput, OSError) as error:
            raise BadInput(f"{here} cannot load the baseline, which every worker must find: {error}") from None
        if sha != self.sha:
            raise BadInput(f"{here} finds another baseline in {self.baseline!r}; copy the same one to every machine")
        examiner = Examiner(known, self.setting, encoder, self.alpha)
        return lambda batch: examined(batch, lambda texts: examiner.records(texts, batch_size=self.batch_size))

    def name(self, batch: list[Line]) -> str:
        return f"lines {batch[0].number} to {batch[-1].number}"


@dataclass(frozen=True)
class LengthTask:
    """What a worker needs to run the jobs of a study of lengths."""

    source: Source
    pooling: str

    def ready(self) -> Callable[[Job], Any]:
        """A function that returns the result of a job."""
        return LengthMeter(self.source.found(), self.pooling).run

    def name(self, job: Job) -> str:
        return f"{len(job.documents)} texts of {job.documents.length(0)} tokens"


Task = MeasureTask | WatchTask | LengthTask


@lru_cache(maxsize=1)
def _ready(task: Task) -> Callable[[Any], Any]:
    return task.ready()


def process(task: Task, pieces: Sequence[Any]) -> list[Any]:
    """The result of each piece. Workers run this."""
    with _one_at_a_time:
        function = _ready(task)
        return [function(piece) for piece in pieces]


def forget() -> None:
    """Free the memory of the model in a worker that continues with other work."""
    _ready.cache_clear()


@contextmanager
def _model_on_workers(scheduler: str | None, workers: int | None) -> Iterator[Client]:
    """Workers that load a model. At the end, workers of other people forget the model."""
    with connected(scheduler, workers) as client:
        try:
            yield client
        finally:
            if scheduler is not None and client.status == "running":
                with suppress(Exception):
                    client.run(forget)


def _tasks(client: Client, task: Task, kept: Callable[[], str]) -> Tasks:
    """The computation of pieces. A piece on which workers die ends it."""

    def died(piece: Any) -> None:
        raise BadInput(
            f"a worker died each time it processed {task.name(piece)}: out of memory, or ended from outside; use fewer "
            "texts at a time (--batch-size) or fewer workers"
        )

    return Tasks(client, process, task, versions=text_versions(), died=died, kept=kept)


def _results(
    order: Callable[[Tasks, Iterable[Item]], Iterator[Any]],
    task: Task,
    items: Iterator[Item],
    scheduler: str | None,
    workers: int | None,
    kept: Callable[[], str],
) -> Generator[Any, None, None]:
    """The results of numbered pieces. Without a piece no worker is started.

    order : `Tasks.groups` or `Tasks.in_order`
    """
    first = next(items, None)
    if first is None:
        return
    with _model_on_workers(scheduler, workers) as client:
        yield from order(_tasks(client, task, kept), chain([first], items))


class JobsOnWorkers:
    """The jobs of a study of lengths on workers, for `length(work=…)`: a context manager, with the same result."""

    def __init__(self, scheduler: str | None = None, workers: int | None = None, allow_pickle: bool = False) -> None:
        self.scheduler, self.workers, self.allow_pickle = scheduler, workers, allow_pickle
        self._stack = ExitStack()
        self._client: Client | None = None
        self._last: tuple[LengthMeter, LengthTask] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._client = self._last = None
        self._stack.close()

    def __call__(self, meter: LengthMeter, jobs: Sequence[Job]) -> Iterator[Any]:
        if self._last is None or self._last[0] is not meter:
            self._last = meter, LengthTask(Source.of(meter.encoder, self.allow_pickle), meter.pooling)
        if self._client is None:
            self._client = self._stack.enter_context(_model_on_workers(self.scheduler, self.workers))
        return _tasks(self._client, self._last[1], lambda: "start again").in_order(enumerate(jobs))


def records_on_workers(
    task: WatchTask, stream: Iterable[list[Line]], scheduler: str | None, workers: int | None, kept: bool
) -> Generator[list[Record], None, None]:
    """The records of each batch of lines, in the order of the batches.

    kept : whether the records are saved, for the message when the scheduler is lost
    """
    words = "the records so far are saved: continue with --resume" if kept else "start again"
    return _results(Tasks.in_order, task, enumerate(stream), scheduler, workers, lambda: words)


@dataclass(frozen=True)
class TallyOnWorkers:
    """`Meter.tally` on workers, with the same result.

    Finished sums are saved in the folder `kept` until `clear`, so the same call after an interruption measures only
    the missing texts. Texts from a pipe cannot be recognised in a second call, and nothing is saved for them.

    texts : where the texts come from: a file, or "-"
    """

    texts: str
    kept: Path
    scheduler: str | None = None
    workers: int | None = None
    allow_pickle: bool = False

    def __call__(
        self, meter: Meter, texts: Iterable[str], batch_size: int, progress: Callable[[int], None] | None
    ) -> Measurements:
        task = MeasureTask(Source.of(meter.encoder, self.allow_pickle), batch_size, meter.special)
        with _saved(self.kept, self._identity(task)) as journal:
            sums = WindowSums(meter.empty(), journal)
            if sums.done:
                before = f"{sums.measured.counts.texts} texts were measured before and are saved"
                print(f"metastable: {before}: computing the others", file=sys.stderr)
            todo = ((number, window) for number, window in enumerate(windows(texts)) if number not in sums.done)

            def kept() -> str:
                many = f"{sums.measured.counts.texts} texts are measured and saved"
                return "start again" if journal is None else f"{many}: start again to continue"

            with closing(_results(Tasks.groups, task, todo, self.scheduler, self.workers, kept)) as results:
                for [(number, blob)] in results:
                    sums.add(number, blob)
                    if progress is not None:
                        progress(sums.measured.counts.texts)
            return sums.measured

    def _identity(self, task: MeasureTask) -> str | None:
        """What the sums depend on; None if the texts come through a pipe."""
        if self.texts == "-" or not os.path.isfile(self.texts):
            return None
        state = os.stat(self.texts)
        return files.sha256(repr(task), text_versions(), os.path.abspath(self.texts), state.st_size, state.st_mtime_ns)

    def clear(self) -> None:
        """Remove the saved sums: the audit is written."""
        shutil.rmtree(self.kept, ignore_errors=True)


@contextmanager
def _saved(folder: Path, identity: str | None) -> Iterator[files.Journal | None]:
    """The journal of sums in `folder`; None without an identity. A folder in which nothing was saved is removed.

    Saved sums of another identity are removed.
    """
    if identity is None:
        yield None
        return
    path, new_parent = folder / "journal", not folder.parent.exists()
    with files.locked(folder):
        journal = files.Journal(path, identity)
        if journal.damaged:
            print("metastable: some saved sums are damaged and computed again", file=sys.stderr)
        if journal.foreign or not journal.begun:
            print("metastable: the saved sums are of other texts, settings or versions: starting anew", file=sys.stderr)
            path.unlink()
            journal = files.Journal(path, identity)
        try:
            with journal:
                yield journal
        finally:
            if not journal.status:
                shutil.rmtree(folder, ignore_errors=True)
                if new_parent:
                    with suppress(OSError):
                        folder.parent.rmdir()


def packed(measured: Measurements) -> bytes:
    """The sums, exactly, as compressed JSON."""
    found = measured.to_dict()
    return zlib.compress(json.dumps({name: found[name] for name in SUMS}).encode(), level=1)


class WindowSums:
    """The merged sums of finished windows, and which windows these are.

    Sums merge exactly, so FOLD records of the journal become one, and the journal stays small.

    empty : the sums of no text
    journal : holds the sums that are saved; None if none are
    """

    def __init__(self, empty: Measurements, journal: files.Journal | None) -> None:
        self.measured, self.journal = empty, journal
        self.done: set[int] = set()
        # Sums that were saved without a part of them stay without it.
        self._blank = {name: part for name, part in empty.to_dict().items() if name not in SUMS} | {"embeddings": None}
        self._next = 0
        for number, _, payload in [] if journal is None else journal.records():
            ranges, _, blob = payload.partition(b"\n")
            self._merge({i for first, last in json.loads(ranges) for i in range(first, last + 1)}, blob)
            self._next = number + 1

    def add(self, number: int, blob: bytes) -> None:
        """Merge the packed sums of a window. If sums are saved, these are on the disk before they count."""
        if self.journal is not None:
            self.journal.append([self._record({number}, blob)])
        self._merge({number}, blob)
        if self.journal is not None and len(self.journal.status) >= FOLD:
            self.journal.rewrite([self._record(self.done, packed(self.measured))])

    def _record(self, windows: set[int], blob: bytes) -> files.Entry:
        """The sums of these windows, and their numbers as ranges from first to last."""
        numbers = np.array(sorted(windows))
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
        ranges = [[int(run[0]), int(run[-1])] for run in runs]
        self._next += 1
        return files.Entry(self._next - 1, 0, json.dumps(ranges).encode() + b"\n" + blob)

    def _merge(self, windows: set[int], blob: bytes) -> None:
        found: dict[str, Any] = json.loads(zlib.decompress(blob))
        self.measured = self.measured.merge(Measurements.from_dict(self._blank | found))
        self.done |= windows
