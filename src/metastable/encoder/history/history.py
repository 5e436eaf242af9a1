"""`History`: what changes in an encoder while it is trained, recorded every few steps."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metastable import files
from metastable.arrays import whole
from metastable.encoder.audit import frame
from metastable.encoder.audit import records as plain
from metastable.encoder.compare import ALIKE
from metastable.encoder.families import FAMILIES
from metastable.encoder.history.collapse import sentence, together, unseen
from metastable.encoder.history.collapse import warning as warning_of
from metastable.encoder.history.record import (
    CHANGES,
    COLUMNS,
    EMBEDDINGS,
    MATRICES,
    REST,
    check_linear,
    checksums,
    distinct,
    fixed_texts,
    rows,
    sample,
    shapes,
)
from metastable.encoder.load import IMAGES, Encoder, load
from metastable.errors import BadInput, extra

LOGGER = logging.getLogger(__name__)
SCHEMA = "metastable.history/1"
EVERY = 500
"""Steps between two records by default: on a CPU a record of a small encoder takes about as long as a step, see
benchmarks/callback.py. Heads are decomposed on the CPU, so on a GPU a record takes as long as many steps."""
BUDGET = 0.02
"""Records that take a larger share of the time of the training are too frequent."""
FILE, FIRST, PAGE = "audit-history.jsonl", "first-weights.npy", "report.html"
"""Files of a history: a line for each start of a training, each record and each failure, sampled weights of the first
record, the page."""


class Guard:
    """Counts errors and logs the first one. An error in a record must not end a training.

    count : how many errors there were
    reason : the last one in one line
    """

    def __init__(self) -> None:
        self.count, self.reason = 0, ""

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.count += 1
            kind = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
            self.reason = " ".join(f"{kind}{error}".split())
            if self.count == 1:
                LOGGER.error(
                    "%s failed, and the training goes on; later failures are only counted: %s", what, self.reason
                )


class History:
    """Records of an encoder during its training, in a folder.

    The training is the same, bit for bit, with and without a history: records are taken on a private copy of the
    modules that shares the weights and is in eval mode. The first record is taken at once, the others by `step`. A
    process that is killed keeps every record. Give each training a folder of its own: a newer history in the same
    folder takes its place, and the records of the older one fail from then on.

    model : the model that is trained: an encoder of transformers, or a module that holds one, such as an encoder with a
        task head
    texts : a list, or a file with one text a line. The first 16 different texts with a word are used, and of each text
        at most 128 tokens, so that a record costs the same for every corpus. At least 4 must have different tokens.
    out : the folder of `audit-history.jsonl`
    every : the number of training steps between two records
    start : the step that the training continues from; later records in the folder belong to steps that are made again
        and are left out. 0 begins a new history: older records stay in the file, but are not shown.
    tensorboard : a SummaryWriter, or a folder for one; None writes nothing

    Attributes
    ----------
    failures : the number of records that failed in `step` and `report`, which does not end the training. The first
        failure is logged; `sentences` and the page tell of them.

    Examples
    --------
    >>> history = ms.History(model, texts, tokenizer=tokenizer, every=100)  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     train(model, batch)
    ...     history.step()
    >>> history.report()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        texts: str | Path | Iterable[str],
        *,
        tokenizer: Any = None,
        out: str | Path = "metastable-history",
        every: int = EVERY,
        start: int = 0,
        tensorboard: Any = None,
    ) -> None:
        self.folder, self.every = Path(out), interval(every)
        start = whole(start, "start", 0, "it must be a whole number, 0 or more")
        files.folder_for(self.folder, FILE)
        self._model, chosen = inside(model), fixed_texts(texts)
        encoder = load(self._model, tokenizer=tokenizer if tokenizer is not None else getattr(model, "tokenizer", None))
        self._tokenizer = _tokenizer(encoder)
        check_linear(encoder.anatomy)
        self._texts = distinct(encoder, chosen)
        self._header: dict[str, Any] = {
            "schema": SCHEMA,
            "run": uuid.uuid4().hex,
            "start": start,
            "name": encoder.name,
            "family": encoder.anatomy.family,
            "layers": len(encoder.anatomy.layers),
            "shapes": shapes(encoder.anatomy),
            "texts": files.sha256(self._texts),
            "every": self.every,
        }
        self._board = _board(tensorboard)
        self._guard = Guard()
        self._records: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []
        self._written: int | None = None
        self._first = sample(encoder.anatomy)
        if start and (self.folder / FILE).exists():
            self._continue(start)
        self.name, self.family = encoder.name, encoder.anatomy.family
        self._step = self._tried = self._since = start
        self._ended: float | None = None
        if not self._records:
            self.measure()
        else:
            self._ended = time.perf_counter()

    @classmethod
    def load(cls, folder: str | Path) -> History:
        """The history in a folder, for its table and its page. It cannot take records."""
        path = Path(folder) / FILE
        header, records, failed = _read(path)
        if not records:
            raise BadInput(f"{path} holds no record of a training; give the folder of a History")
        self = cls.__new__(cls)
        self.folder, self.every, self.name, self.family = path.parent, *(header[k] for k in ("every", "name", "family"))
        self._records, self._failed, self._model = records, failed, None
        return self

    def __repr__(self) -> str:
        last = self._records[-1]["step"]
        return f"History({self.name!r}, {len(self._records)} records up to step {last}, in {str(self.folder)!r})"

    def step(self, step: int | None = None) -> None:
        """Tell that a training step is done. Every `every` steps the model is recorded.

        An error in a record does not end the training: see `failures`.

        step : the number of the step; None counts from the step before
        """
        self._check_model()
        self._step = self._step + 1 if step is None else int(step)
        if self._step // self.every > self._tried // self.every:
            self._attempt()

    def _attempt(self) -> None:
        """Record the model, and note a failure."""
        before = self._guard.count
        with self._guard(f"the record at step {self._step}"):
            self.measure()
        if self._guard.count > before:
            failure = {"failed": self._step, "reason": self._guard.reason}
            self._failed.append(failure)
            # A disk that cannot be written may be the reason of the failure.
            with contextlib.suppress(BadInput):
                self._append(failure)

    def _check_model(self) -> None:
        if self._model is None:
            raise BadInput("this history was read from a file, without a model; make a History of the model")

    def measure(self) -> pd.DataFrame:
        """Record the model as it is now; returns the rows of the record, see `table`."""
        self._check_model()
        began, self._tried = time.perf_counter(), self._step
        encoder = replace(load(self._model), tokenizer=self._tokenizer, no_tokenizer="")
        found = rows(encoder, self._texts, self._first)
        passed = self._step - self._since
        timed = self._ended is not None and passed > 0
        record = {
            "step": self._step,
            "warning": warning_of(self._rows(0), found) if self._records else None,
            "training_seconds": began - self._ended if timed and self._ended is not None else None,
            "training_steps": passed if timed else None,
            "checksums": checksums(encoder),
            "rows": plain(found),
        }
        begins = record["warning"] is not None and self._records[-1]["warning"] is None
        self._write({**record, "seconds": time.perf_counter() - began})
        if self._board is not None:
            _scalars(self._board, self._step, found)
        if begins:
            LOGGER.warning("step %d: %s", self._step, record["warning"])
        self._ended, self._since = time.perf_counter(), self._step
        return found.assign(step=self._step)

    def _write(self, record: dict[str, Any]) -> None:
        """Put a record into the file and into memory. It takes the place of an older one of the same step."""
        self._append(record)
        step = record["step"]
        others = [other for other in self._records if other["step"] != step]
        # Through JSON, so that a history in memory and one from the file are the same.
        others.append(json.loads(files.to_json(record, indent=None)))
        self._records = sorted(others, key=lambda one: one["step"])
        self._failed = [failure for failure in self._failed if failure["failed"] != step]
        self.__dict__.pop("table", None)

    def _append(self, row: dict[str, Any]) -> None:
        """Put a row into the file. Its header and the first weights are written before the first row.

        If the file was deleted, all is written again.
        """
        path = self.folder / FILE
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._check_newest()
        size = path.stat().st_size if path.exists() else None
        before: list[dict[str, Any]] = []
        if self._written is None or size is None:
            files.write(self.folder / FIRST, lambda temporary: np.save(temporary, self._first))
            before = [self._header] if size is not None else [self._header, *self._records, *self._failed]
        with files.Lines(path) as lines:
            lines.append(*({**one, "run": self._header["run"]} for one in (*before, row)))
        self._written = size or 0

    def _check_newest(self) -> None:
        """Refuse to go on if another history has begun in the folder. The rows after its header are its own.

        A lock would not do: it must be released, and a training has no end that this class can see.
        """
        path = self.folder / FILE
        if self._written is None or not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self._written if path.stat().st_size >= self._written else 0)
            headers = [row for row in map(_parsed, file) if "schema" in row]
        if headers and headers[-1].get("run") != self._header["run"]:
            raise BadInput(f"a newer history writes to {self.folder}; give each training a folder of its own")

    def _continue(self, start: int) -> None:
        """Take up the history in the folder at the step `start`."""
        header, records, failed = _read(self.folder / FILE)
        for name in ("family", "layers", "shapes", "texts"):
            if records and header.get(name) != self._header[name]:
                raise BadInput(f"{self.folder} holds a history with other {name}; give another folder")
        self._records = [record for record in records if record["step"] <= start]
        self._failed = [failure for failure in failed if failure["failed"] <= start]
        if self._records:
            path = self.folder / FIRST
            try:
                first = np.load(path)
            except (OSError, ValueError, EOFError) as error:
                raise BadInput(f"{path} cannot be read ({error}); give another folder") from error
            if first.shape != self._first.shape:
                raise BadInput(f"{path} does not fit the model; give another folder")
            self._first = first

    @property
    def failures(self) -> int:
        return len(self._failed)

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded."""
        return [record["step"] for record in self._records]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a record and depth, see `record.COLUMNS`; NAME_low and NAME_high are ends of 95 % intervals."""
        return self.part(range(len(self._records)))

    def part(self, places: Iterable[int]) -> pd.DataFrame:
        """The rows of `table` that belong to some of the records. places : which ones, counted from 0"""
        parts = [self._rows(place).assign(step=self._records[place]["step"]) for place in places]
        table = pd.concat(parts, ignore_index=True)
        return table[["step", *(name for name in table if name != "step")]]

    @property
    def warnings(self) -> list[str]:
        """One sentence for each time that a collapse began, with its step."""
        texts = {record["step"]: record["warning"] for record in self._records}
        return [f"step {begun}: {texts[begun]}" for begun, _ in self.phases]

    @property
    def phases(self) -> list[tuple[int, int | None]]:
        """For each collapse the step of its first record, and of the first record without it; None if it lasts."""
        found: list[tuple[int, int | None]] = []
        lasts = False
        for record in self._records:
            if record["warning"] and not lasts:
                found.append((record["step"], None))
            elif lasts and not record["warning"]:
                found[-1] = found[-1][0], record["step"]
            lasts = record["warning"] is not None
        return found

    @property
    def overhead(self) -> float | None:
        """The time of the records relative to the training between them; None before the second record."""
        timed = self._timed()
        if not timed:
            return None
        return sum(record["seconds"] for record in timed) / sum(record["training_seconds"] for record in timed)

    def _timed(self) -> list[dict[str, Any]]:
        """The records that follow a training of known time and a known number of steps."""
        return [record for record in self._records if record["training_seconds"] and record.get("training_steps")]

    def sentences(self) -> list[str]:
        """What changed, in words: which layers moved most and whether texts collapse, then the numbers."""
        last = self._records[-1]["step"]
        earlier = [failure for failure in self._failed if failure["failed"] < last]
        since = self._failed[len(earlier) :]
        if len(self._records) == 1:
            found = [f"There is one record, of step {last}, so nothing can be compared yet."]
        else:
            found = self._compared()
            found[0] = f"Up to step {last}: {found[0]}" if since else found[0]
        if since:
            unknown = f"{_failures(since)}, so nothing is known of the model after step {last}."
            found = [unknown, _reason(since), *found]
        if earlier:
            found += [f"{_failures(earlier)}, but the record of step {last} did not.", _reason(earlier)]
        return found + self._cost()

    def _compared(self) -> list[str]:
        """The last record beside the first one."""
        first, last = self._rows(0), self._rows(-1)
        warning, moved, blind = self._records[-1]["warning"], self._moved(), unseen(first, last)
        everywhere = sum(map(len, blind.values())) == len(first)
        past = "nothing collapses" if not blind else "no collapse is seen"
        past = "a collapse began, but did not last" if self.phases else past
        if everywhere:
            past = "a collapse cannot be seen"
            past += f", because {next(iter(blind))} at every depth" if len(blind) == 1 else " at any depth"
        found = [f"{moved[0]}; {past}."] if warning is None else [f"{warning}.", f"{moved[0]}."]
        found += moved[1:]
        if not everywhere or len(blind) > 1:
            for why, depths in blind.items():
                found.append(f"A collapse cannot be seen at {_listed('depth', depths)}, because {why}.")
        if tokens := sentence(together(first, last), "The tokens of a text came together"):
            alone = "" if warning else " This alone is no collapse: a task that reads one vector of a text causes it."
            found.append(f"{tokens}.{alone}")
        for name, what in (("text_cosine", "mean cosine of two texts"), ("entropy", "attention entropy")):
            found += _largest_change(first, last, name, what)
        return found

    def _moved(self) -> list[str]:
        """Which layers moved most, without a full stop; then by how much, and which other weights changed."""
        before, now = (self._records[place].get("checksums") for place in (0, -1))
        changed = {kind: before[kind] != now[kind] for kind in before} if before and now else {}
        found = _layers_moved(self._rows(-1))
        if not found:
            if changed.get(MATRICES, True):
                found = ["The weight matrices of the layers changed in few places or not at all"]
            else:
                found = ["No weight matrix of a layer changed" if any(changed.values()) else "No weight changed"]
        if any(changed.values()):
            found.append(
                {
                    (True, True): "The embeddings changed, and so did biases, gains or other weights.",
                    (True, False): "The embeddings changed; biases, gains and other weights did not.",
                    (False, True): "The embeddings did not change; biases, gains or other weights did.",
                    (False, False): "Neither the embeddings nor biases, gains and other weights changed.",
                }[changed[EMBEDDINGS], changed[REST]]
            )
        return found

    def _cost(self) -> list[str]:
        """What the records cost, and the interval that would cost less."""
        share, timed = self.overhead, self._timed()
        if share is None:
            return []
        size = f"{share:.0f} times" if share >= 10 else f"{_percent(share)} of"
        words = f"The records took {size} the time of the training between them"
        if share <= BUDGET:
            return [f"{words}."]
        apart = sum(record["training_steps"] for record in timed) / len(timed)
        return [f"{words}; with every={math.ceil(apart * share / BUDGET)} they would take {100 * BUDGET:g} %."]

    def report(self, path: str | Path | None = None) -> Path:
        """Write the history as one HTML file that needs no network; `report.html` in its folder by default.

        If steps have passed since the last record, the model is recorded first. If this fails, the page tells it.
        """
        if self._model is not None and self._step > self._tried:
            self._attempt()
        return self.write_page(path)

    def write_page(self, path: str | Path | None = None) -> Path:
        """Write the page of `report` from the records that there are."""
        from metastable.encoder.history.report import write

        if path is None and self._model is not None:
            self._check_newest()
        return write(self, self.folder / PAGE if path is None else path)

    def _rows(self, place: int) -> pd.DataFrame:
        return frame(self._records[place]["rows"])


def callback(
    texts: str | Path | Iterable[str],
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    every: int = EVERY,
    tensorboard: Any = None,
) -> Any:
    """A callback for the Trainer of transformers that keeps a `History` of the model, and its page.

    >>> trainer = Trainer(model, arguments, callbacks=[ms.callback(texts)])  # doctest: +SKIP

    The history is the attribute `history` of the callback while the training runs and after it. Errors inside the
    callback do not end the training: they are counted in `failures`, and the first one is logged. A training that
    continues from a checkpoint continues its history. The page is written with every checkpoint and at the end.

    texts, every : see `History`
    tokenizer : by default the `processing_class` of the Trainer
    out : by default the folder `metastable-history` in the Trainer's `output_dir`
    tensorboard : a SummaryWriter, or a folder for one; None writes beside the Trainer's own scalars if the Trainer
        reports to TensorBoard
    """
    from importlib.util import find_spec

    if not find_spec("transformers"):
        raise BadInput(f"the callback needs the package transformers; {extra('encoder')}")
    from metastable.encoder.history.trainer import HistoryCallback

    return HistoryCallback(fixed_texts(texts), tokenizer, out, interval(every), tensorboard)


def interval(every: Any) -> int:
    return whole(every, "every", 1, "it must be a whole number of steps, 1 or more")


def inside(model: Any) -> Any:
    """The model of transformers that a module holds: the model itself if its family is known, else the outermost."""
    if isinstance(model, Encoder):
        return model.model
    # torch.compile wraps a model. The records must not be compiled.
    model = getattr(model, "_orig_mod", model)
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) in FAMILIES or not hasattr(model, "modules"):
        return model
    from transformers import PreTrainedModel

    held = (m for m in model.modules() if isinstance(m, PreTrainedModel) and m.config.model_type in FAMILIES)
    return next(held, model)


def _tokenizer(encoder: Encoder) -> Any:
    """The tokenizer of an encoder of texts."""
    from transformers import PreTrainedTokenizerBase

    if encoder.model.config.model_type == "vit":
        raise BadInput(f"{encoder.name!r} cannot read text: {IMAGES}; give an encoder of texts")
    tokenizer = encoder.reads_text()
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise BadInput(f"tokenizer is of type {type(tokenizer).__name__}; give a tokenizer of transformers")
    return tokenizer


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The newest header, and its records and failures that count, by step. Damaged lines are left out."""
    header: dict[str, Any] = {}
    records: dict[int, dict[str, Any]] = {}
    failed: dict[int, dict[str, Any]] = {}
    for row in map(_parsed, files.Lines(path).read()):
        if "schema" in row:
            if row["schema"] != SCHEMA:
                raise BadInput(f"{path} is not a history of a training ({SCHEMA}); give another folder")
            header = row
            for found in (records, failed):
                for step in [step for step in found if not 0 < row["start"] >= step]:
                    del found[step]
        elif not header or row.get("run") != header.get("run"):
            continue
        elif {"step", "rows", "warning", "seconds", "training_seconds"} <= row.keys():
            records[row["step"]] = row
            failed.pop(row["step"], None)
        elif {"failed", "reason"} <= row.keys():
            failed[row["failed"]] = row
    return header, [records[step] for step in sorted(records)], [failed[step] for step in sorted(failed)]


def _failures(failed: list[dict[str, Any]]) -> str:
    """How many records failed, without a full stop."""
    first = failed[0]["failed"]
    return (
        f"The record of step {first} failed" if len(failed) == 1 else f"{len(failed)} records failed since step {first}"
    )


def _reason(failed: list[dict[str, Any]]) -> str:
    return f"The record of step {failed[0]['failed']} failed for this reason: {failed[0]['reason']}."


def _listed(what: str, numbers: list[int]) -> str:
    names = " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))
    return f"{what}{'s' if len(numbers) > 1 else ''} {names}"


def _percent(share: float) -> str:
    value = 100 * share
    if 0 < value < 0.01:
        return "less than 0.01 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def _layers_moved(last: pd.DataFrame) -> list[str]:
    """Which layers moved most, without a full stop; then by how much. Empty if no sampled weight changed."""
    change = last.set_index("depth")[list(CHANGES)].astype(float).mean(axis=1).dropna()
    if not len(change) or not change.max() > 0:
        return []
    most = change[change >= change.max() / ALIKE].index.tolist()
    where = f"{_listed('Layer', most)} moved most"
    # The neighbours of half of the layers are no outliers, unless they hardly moved.
    if len(change) > 1 and 2 * len(most) >= len(change) and change.min() >= change.max() / 2:
        low, high = _percent(change.min()), _percent(change.max())
        where = f"All layers moved about alike, by {high if low == high else f'{low} to {high}'}"
        where = where.replace(" % to", " to")
    top, least = int(change.idxmax()), int(change.idxmin())
    row = last.set_index("depth").loc[top]
    size = f"by {_percent(row[CHANGES[0]])} in the attention and {_percent(row[CHANGES[1]])} in the perceptron"
    rest = "" if top == least else f"; the least, of layer {least}, by {_percent(change.min())} on average"
    return [where, f"Since the first record, the weights of layer {top} changed {size}{rest}."]


def _largest_change(first: pd.DataFrame, last: pd.DataFrame, name: str, what: str) -> list[str]:
    change = (last[name].astype(float) - first[name].astype(float)).dropna()
    if not len(change):
        return []
    depth = int(change.abs().idxmax())
    before, after = (f"{table[name][depth]:.3g}" for table in (first, last))
    if before == after:
        return []
    values = f"from {before} to {after}"
    place = f"depth {depth}" if name == "text_cosine" else f"layer {depth}"
    return [f"The {what} changed most at {place}: {values}."]


def _board(given: Any) -> Any:
    """A writer with `add_scalar`, from a writer or the path of a folder."""
    if given is None or hasattr(given, "add_scalar"):
        return given
    if not isinstance(given, (str, Path)):
        raise BadInput(f"tensorboard is of type {type(given).__name__}; give a SummaryWriter or a folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("the package tensorboard is not installed; install it, or leave out tensorboard=") from error
    return SummaryWriter(str(given))


def _scalars(writer: Any, step: int, table: pd.DataFrame) -> None:
    for name in COLUMNS:
        if name in ("step", "depth"):
            continue
        for depth, value in zip(table["depth"], table[name].astype(float), strict=True):
            if np.isfinite(value):
                writer.add_scalar(f"metastable/{name}/depth {depth}", float(value), step)
    writer.flush()
