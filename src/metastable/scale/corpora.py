"""Texts by the million: the audit's measurement and the monitor's records, on workers.

Texts are read by this process and go to the workers in pieces that are cut where one process would cut them too: at
whole windows of `encoder.texts.windows`, or at the batches of lines of `monitor.stream`. So the same batches go
through the model; sums over texts are exact integers and merge in any order; records are put in order here, where the
alarm is. With one thread a process the results are those of one process, to the last bit.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from metastable.encoder.load import Encoder, load
from metastable.encoder.measure import Measurements, Meter, refuse_nothing
from metastable.encoder.texts import Line, windows
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.identity import configuration, tokenization
from metastable.monitor.record import Record
from metastable.monitor.stream import Examine, examined
from metastable.run import storage as store
from metastable.scale.cluster import connected
from metastable.scale.partial import Partial, packed
from metastable.scale.tasks import Flight

if TYPE_CHECKING:
    from distributed import Client

WINDOWS = 1
"""Windows in a piece: of 512 sentences a small encoder has some seconds of work."""

_one_at_a_time = threading.Lock()
"""A worker with several threads has one model, and hooks on it."""

Window = list[tuple[int, str]]


@dataclass(frozen=True)
class Source:
    """An encoder as workers are to find it.

    name : a folder with its whole path, or the name of a package or of the hub
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
        """The encoder, loaded by a worker, if it is the same there."""
        here = f"a worker on {socket.gethostname()}"
        own = versions()
        for package, version in self.versions:
            if own[package] != version:
                words = f"{here} has {package} {own[package]} and this process {version}"
                raise BadInput(f"{words}: the same text could have other bits; install the same versions")
        try:
            encoder = load(self.name, self.allow_pickle)
        except BadInput as error:
            raise BadInput(f"{here} cannot load the model, which every worker must find: {error}") from None
        other = (encoder.fingerprint, configuration(encoder), tokenization(encoder))
        for what, known, seen in zip(("weights", "configuration", "tokenizer"), self._same, other, strict=True):
            if known != seen:
                words = f"{here} finds another {self.name!r}: its {what} have {str(seen)[:12]}"
                raise BadInput(f"{words}, and here {str(known)[:12]}; give a model that is the same everywhere")
        return encoder

    @property
    def _same(self) -> tuple[str, str, str | None]:
        return self.fingerprint, self.configuration, self.tokenizer


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict(store.versions())
    for name in ("transformers", "tokenizers"):
        found[name] = None
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@lru_cache(maxsize=1)
def _encoder(source: Source) -> Encoder:
    return source.found()


@lru_cache(maxsize=1)
def _meter(source: Source, special: str) -> Meter:
    return Meter(_encoder(source), special)


@lru_cache(maxsize=1)
def _examine(watched: Watched) -> Examine:
    return watched.examine()


def forget() -> None:
    """A worker that goes on with other work gives back the memory of the model."""
    for made in (_meter, _examine, _encoder):
        made.cache_clear()


@dataclass(frozen=True)
class Measuring:
    """What a worker needs to measure texts."""

    source: Source
    batch_size: int
    special: str


def measure_piece(measuring: Measuring, piece: list[Window]) -> bytes:
    """The packed sums over the texts of some windows. This is what workers do in an audit."""
    with _one_at_a_time:
        meter = _meter(measuring.source, measuring.special)
        return packed(meter.tally((text for window in piece for _, text in window), measuring.batch_size))


@dataclass(frozen=True)
class Audit:
    """Measures an encoder on texts as `encoder.measuring.measure` does, with the same result, on workers.

    Sums that are finished are kept in the folder `kept` until `clear`, so that the same call after an interruption,
    of whatever kind, goes on with what is missing. Texts that do not come from a file are not known again, and nothing
    is kept of them.

    texts : where they come from: a file, or "-"
    """

    texts: str
    kept: Path
    scheduler: str | None = None
    workers: int | None = None
    allow_pickle: bool = False
    windows: int = WINDOWS

    def __call__(
        self,
        encoder: Encoder,
        texts: Iterable[str],
        batch_size: int = 32,
        special: str = "exclude",
        progress: Callable[[int], None] | None = None,
    ) -> Measurements:
        measuring = Measuring(Source.of(encoder, self.allow_pickle), batch_size, special)
        with Partial(self.kept, self._identity(measuring), Meter(encoder, special).empty()) as sums:
            if sums.done:
                before = f"{sums.measured.counts.texts} texts were measured before and are kept"
                print(f"metastable: {before}: computing the others", file=sys.stderr)
            every = enumerate(_pieces(windows(texts), self.windows))
            todo = ((number, piece) for number, piece in every if number not in sums.done)
            for number, found in self._through(measuring, sums, todo):
                sums.add(number, found)
                if progress is not None:
                    progress(sums.measured.counts.texts)
            refuse_nothing(sums.measured.counts)
            return sums.measured

    def _through(
        self, measuring: Measuring, sums: Partial, todo: Iterator[tuple[int, list[Window]]]
    ) -> Iterator[tuple[int, bytes]]:
        first = next(todo, None)
        if first is None:
            return

        def lost() -> str:
            many = sums.measured.counts.texts
            return f"{many} texts are measured and kept: start again to go on" if sums.kept else "start again"

        with connected(self.scheduler, self.workers) as client:
            try:
                yield from Flight(client, measure_piece, measuring, _texts_of, lost).through(chain([first], todo))
            finally:
                _leave(client, self.scheduler)

    def _identity(self, measuring: Measuring) -> bytes | None:
        """What the sums depend on; None where the texts come through a pipe."""
        if self.texts == "-" or not os.path.isfile(self.texts):
            return None
        state = os.stat(self.texts)
        texts = (os.path.abspath(self.texts), state.st_size, state.st_mtime_ns)
        return hashlib.sha256(repr((measuring, texts, self.windows)).encode()).digest()

    def clear(self) -> None:
        """Remove what was kept: the audit is written."""
        Partial.remove(self.kept)


def _pieces(every: Iterable[Window], size: int) -> Iterator[list[Window]]:
    piece: list[Window] = []
    for window in every:
        piece.append(window)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def _texts_of(piece: list[Window]) -> str:
    return f"texts {piece[0][0][0] + 1} to {piece[-1][-1][0] + 1}"


@dataclass(frozen=True)
class Watched:
    """What a worker needs to make the records of texts.

    baseline : the folder, with its whole path; sha : of its baseline.json
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


def score_piece(watched: Watched, piece: list[Line]) -> list[Record]:
    """The records of a batch of lines. This is what workers do for `watch`."""
    with _one_at_a_time:
        return examined(piece, _examine(watched))


def scored(
    watched: Watched, stream: Iterable[list[Line]], scheduler: str | None, workers: int | None, kept: bool
) -> Generator[list[Record], None, None]:
    """The records of each batch of lines, in the order of the batches.

    kept : whether they are kept, for the words when the scheduler is lost
    """
    coming = enumerate(stream)
    first = next(coming, None)
    if first is None:
        return

    def lost() -> str:
        return "records until now are kept: go on with --resume" if kept else "start again"

    def where(piece: list[Line]) -> str:
        return f"lines {piece[0].number} to {piece[-1].number}"

    with connected(scheduler, workers) as client:
        try:
            yield from Flight(client, score_piece, watched, where, lost).in_order(chain([first], coming))
        finally:
            _leave(client, scheduler)


def _leave(client: Client, scheduler: str | None) -> None:
    """Workers that are not ours live on, without our model."""
    if scheduler is not None and client.status == "running":
        with suppress(Exception):
            client.run(forget)
