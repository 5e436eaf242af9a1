"""Texts by the million: the audit's measurement and the monitor's records, computed on workers.

This process reads the texts and sends them to the workers in pieces, cut where a single process cuts too: at the
windows of `encoder.texts.windows`, or at the monitor's batches of lines. So the model sees the same batches. Sums over
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Self

from metastable import files
from metastable.encoder.load import Encoder, load
from metastable.encoder.measure import Measurements, Meter
from metastable.encoder.texts import Line, windows
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.identity import configuration, tokenization
from metastable.monitor.record import Record
from metastable.monitor.stream import Examine, examined
from metastable.run import storage as store
from metastable.scale.cluster import connected
from metastable.scale.tasks import Tasks

# The journal of sums is rewritten as one record whenever it has this many.
FOLD = 32
# The parts of `Measurements` that depend on the texts.
SUMS = ("depths", "layers", "heads", "lengths", "counts")

# A worker with several threads has one model with one set of hooks.
_one_at_a_time = threading.Lock()

Window = list[tuple[int, str]]
"""Numbered texts."""


@dataclass(frozen=True)
class Source:
    """An encoder, as workers find it.

    name : a folder with its full path, or the name of a package or of a model on the hub
    fingerprint, configuration, tokenizer : what this process found there
    """

    name: str
    fingerprint: str
    configuration: str
    tokenizer: str | None
    allow_pickle: bool
    versions: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, encoder: Encoder, allow_pickle: bool) -> Source:
        folder = os.path.expanduser(encoder.name)
        name = os.path.abspath(folder) if os.path.isdir(folder) else encoder.name
        same = (encoder.fingerprint, configuration(encoder), tokenization(encoder))
        return cls(name, *same, allow_pickle, tuple(versions().items()))

    def found(self) -> Encoder:
        """The encoder, loaded by a worker; BadInput if it differs from that of the calling process."""
        here = f"a worker on {socket.gethostname()}"
        own = versions()
        for package, version in self.versions:
            if own[package] != version:
                words = f"{here} has {package} {own[package]} and this process {version}"
                raise BadInput(f"{words}; install the same versions, because results could differ in their last digits")
        try:
            encoder = load(self.name, self.allow_pickle)
        except BadInput as error:
            raise BadInput(f"{here} cannot load the model, which every worker must find: {error}") from None
        expected = (self.fingerprint, self.configuration, self.tokenizer)
        other = (encoder.fingerprint, configuration(encoder), tokenization(encoder))
        for what, known, seen in zip(("weights", "configuration", "tokenizer"), expected, other, strict=True):
            if known != seen:
                words = f"{here} finds another {self.name!r}: the hash of its {what} is {str(seen)[:12]}"
                raise BadInput(f"{words}, and here {str(known)[:12]}; give a model that is the same everywhere")
        return encoder


def versions() -> dict[str, str | None]:
    """The versions of the packages that results depend on."""
    found: dict[str, str | None] = dict(store.versions())
    for name in ("transformers", "tokenizers"):
        found[name] = None
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@dataclass(frozen=True)
class MeasureTask:
    """What a worker needs to measure texts."""

    source: Source
    batch_size: int
    special: str


@dataclass(frozen=True)
class WatchTask:
    """What a worker needs to make the records of texts.

    baseline : the folder, with its full path
    sha : SHA-256 of its baseline.json
    """

    source: Source
    baseline: str
    sha: str
    setting: str
    alpha: float
    batch_size: int

    def examine(self) -> Examine:
        encoder = _encoder(self.source)
        here = f"a worker on {socket.gethostname()}"
        try:
            known = Baseline.load(self.baseline)
            sha = hashlib.sha256((Path(self.baseline) / "baseline.json").read_bytes()).hexdigest()
        except (BadInput, OSError) as error:
            raise BadInput(f"{here} cannot load the baseline, which every worker must find: {error}") from None
        if sha != self.sha:
            raise BadInput(f"{here} finds another baseline in {self.baseline!r}; copy the same one to every machine")
        return partial(Examiner(known, self.setting, encoder, self.alpha).records, batch_size=self.batch_size)


@lru_cache(maxsize=1)
def _encoder(source: Source) -> Encoder:
    return source.found()


@lru_cache(maxsize=1)
def _meter(source: Source, special: str) -> Meter:
    return Meter(_encoder(source), special)


@lru_cache(maxsize=1)
def _examine(task: WatchTask) -> Examine:
    return task.examine()


def measure_windows(task: MeasureTask, pieces: Sequence[Window]) -> list[bytes]:
    """The packed sums over the texts of each window. Workers run this in an audit."""
    with _one_at_a_time:
        meter = _meter(task.source, task.special)
        return [packed(meter.tally((text for _, text in window), task.batch_size)) for window in pieces]


def examine_lines(task: WatchTask, pieces: Sequence[list[Line]]) -> list[list[Record]]:
    """The records of each batch of lines. Workers run this for `watch`."""
    with _one_at_a_time:
        return [examined(piece, _examine(task)) for piece in pieces]


def forget() -> None:
    """Free the memory of the model in a worker that continues with other work."""
    for made in (_meter, _examine, _encoder):
        made.cache_clear()


@dataclass(frozen=True)
class MeasureOnWorkers:
    """Measures an encoder on texts as `encoder.measure.measure` does, with the same result, on workers.

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
        self,
        encoder: Encoder,
        texts: Iterable[str],
        batch_size: int = 32,
        special: str = "exclude",
        progress: Callable[[int], None] | None = None,
    ) -> Measurements:
        task = MeasureTask(Source.of(encoder, self.allow_pickle), batch_size, special)
        with Sums(self.kept, self._identity(task), Meter(encoder, special).empty()) as sums:
            if sums.done:
                before = f"{sums.measured.counts.texts} texts were measured before and are saved"
                print(f"metastable: {before}: computing the others", file=sys.stderr)
            todo = ((number, window) for number, window in enumerate(windows(texts)) if number not in sums.done)

            def kept() -> str:
                many = sums.measured.counts.texts
                return f"{many} texts are measured and saved: start again to continue" if sums.saved else "start again"

            first = next(todo, None)
            if first is not None:
                with _tasks(self.scheduler, self.workers, measure_windows, task, _texts_of, kept) as tasks:
                    for [(number, blob)] in tasks.groups(chain([first], todo)):
                        sums.add(number, blob)
                        if progress is not None:
                            progress(sums.measured.counts.texts)
            sums.measured.counts.check()
            return sums.measured

    def _identity(self, task: MeasureTask) -> str | None:
        """What the sums depend on; None if the texts come through a pipe."""
        if self.texts == "-" or not os.path.isfile(self.texts):
            return None
        state = os.stat(self.texts)
        return files.sha256(repr(task), os.path.abspath(self.texts), state.st_size, state.st_mtime_ns)

    def clear(self) -> None:
        """Remove the saved sums: the audit is written."""
        shutil.rmtree(self.kept, ignore_errors=True)


def records_on_workers(
    task: WatchTask, stream: Iterable[list[Line]], scheduler: str | None, workers: int | None, kept: bool
) -> Generator[list[Record], None, None]:
    """The records of each batch of lines, in the order of the batches.

    kept : whether the records are saved, for the message when the scheduler is lost
    """

    def saved() -> str:
        return "the records so far are saved: continue with --resume" if kept else "start again"

    coming = enumerate(stream)
    first = next(coming, None)
    if first is not None:
        with _tasks(scheduler, workers, examine_lines, task, _lines_of, saved) as tasks:
            yield from tasks.in_order(chain([first], coming))


@contextmanager
def _tasks(
    scheduler: str | None,
    workers: int | None,
    function: Callable[[Any, Sequence[Any]], list[Any]],
    common: Any,
    name: Callable[[Any], str],
    kept: Callable[[], str],
) -> Iterator[Tasks]:
    """Tasks on workers. Texts on which workers die end the computation; other people's workers forget the model."""

    def died(piece: Any) -> None:
        raise BadInput(
            f"a worker died each time it processed {name(piece)}: out of memory, or ended from outside; use fewer "
            "texts at a time (--batch-size) or fewer workers"
        )

    with connected(scheduler, workers) as client:
        try:
            yield Tasks(client, function, common, died=died, kept=kept)
        finally:
            if scheduler is not None and client.status == "running":
                with suppress(Exception):
                    client.run(forget)


def _texts_of(window: Window) -> str:
    return f"texts {window[0][0] + 1} to {window[-1][0] + 1}"


def _lines_of(batch: list[Line]) -> str:
    return f"lines {batch[0].number} to {batch[-1].number}"


def packed(measured: Measurements) -> bytes:
    """The sums, exactly, as compressed JSON."""
    found = measured.to_dict()
    return zlib.compress(json.dumps({name: found[name] for name in SUMS}).encode(), level=1)


class Sums:
    """The merged sums of finished windows, and which windows these are.

    With an identity of everything that they depend on, the sums are saved in a journal in `folder`. Saved sums of
    another identity are removed. Sums merge exactly, so FOLD records become one, and the journal stays small.

    empty : the sums of no text
    """

    def __init__(self, folder: Path, identity: str | None, empty: Measurements) -> None:
        self.folder, self.identity, self.measured = folder, identity, empty
        self.done: set[int] = set()
        self._blank = empty.to_dict()
        self._stack = ExitStack()
        self._journal: files.Journal | None = None
        self._next = 0

    @property
    def saved(self) -> bool:
        return self._journal is not None

    def __enter__(self) -> Self:
        if self.identity is None:
            return self
        self._new_parent = not self.folder.parent.exists()
        with ExitStack() as stack:
            stack.enter_context(files.locked(self.folder))
            self._journal = stack.enter_context(self._read(self.identity))
            self._stack = stack.pop_all()
        return self

    def _read(self, identity: str) -> files.Journal:
        path = self.folder / "journal"
        journal = files.Journal(path, identity)
        if journal.damaged:
            print("metastable: some saved sums are damaged and computed again", file=sys.stderr)
        if journal.foreign or not journal.begun:
            print("metastable: the saved sums are of other texts, settings or versions: starting anew", file=sys.stderr)
            path.unlink()
            journal = files.Journal(path, identity)
        for number, _, payload in journal.records():
            ranges, _, blob = payload.partition(b"\n")
            self._merge({i for first, last in json.loads(ranges) for i in range(first, last + 1)}, blob)
            self._next = number + 1
        return journal

    def add(self, number: int, blob: bytes) -> None:
        """Merge the packed sums of a window. If sums are saved, these are on the disk before they count."""
        if self._journal is not None:
            self._journal.append([self._record({number}, blob)])
        self._merge({number}, blob)
        if self._journal is not None and len(self._journal.status) >= FOLD:
            self._journal.rewrite([self._record(self.done, packed(self.measured))])

    def _record(self, windows: set[int], blob: bytes) -> files.Entry:
        self._next += 1
        return files.Entry(self._next - 1, 0, json.dumps(_ranges(windows)).encode() + b"\n" + blob)

    def _merge(self, windows: set[int], blob: bytes) -> None:
        found: dict[str, Any] = json.loads(zlib.decompress(blob))
        self.measured = self.measured.merge(Measurements.from_dict(self._blank | found))
        self.done |= windows

    def __exit__(self, *exc: object) -> None:
        if self.saved and not self.done:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._new_parent:
                with suppress(OSError):
                    self.folder.parent.rmdir()
        self._stack.close()


def _ranges(numbers: set[int]) -> list[list[int]]:
    """Whole numbers as ranges from first to last."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
