"""`History`: what changes in an encoder while it is trained, recorded every few steps."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
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
from metastable.encoder.history.collapse import collapses, sentence, together
from metastable.encoder.history.record import CHANGES, COLUMNS, check_linear, fixed_texts, rows, sample
from metastable.encoder.load import Encoder, load
from metastable.errors import BadInput

LOGGER = logging.getLogger(__name__)
SCHEMA = "metastable.history/1"
EVERY = 500
"""Steps between two records by default: on a CPU a record of a small encoder takes about as long as a step, see
benchmarks/callback.py. Heads are decomposed on the CPU, so on a GPU a record takes as long as many steps."""
COLLAPSE = "Texts begin to collapse"
BUDGET = 0.02
"""Records that take a larger share of the time of the training are too frequent."""
FILE, FIRST, PAGE = "audit-history.jsonl", "first-weights.npy", "report.html"
"""Files of a history: a line for each start of a training and each record, sampled weights of the first record, the
page."""


class Guard:
    """Counts errors and logs the first one. An error in a record must not end a training.

    count : how many errors there were
    """

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.count += 1
            if self.count == 1:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                LOGGER.error("%s failed, and the training goes on; later failures are only counted: %s", what, reason)


class History:
    """Records of an encoder during its training, in a folder.

    The training is the same, bit for bit, with and without a history: records are taken on a private copy of the
    modules that shares the weights and is in eval mode. The first record is taken at once, the others by `step`. A
    process that is killed keeps every record.

    model : the model that is trained: an encoder of transformers, or a module that holds one, such as an encoder with a
        task head
    texts : a list, or a file with one text a line. The first 16 texts with a word are used, and of each text at most
        128 tokens, so that a record costs the same for every corpus.
    out : the folder of `audit-history.jsonl`
    every : the number of training steps between two records
    start : the step that the training continues from; later records in the folder belong to steps that are made again
        and are left out. 0 begins a new history: older records stay in the file, but are not shown.
    tensorboard : a SummaryWriter, or a folder for one; None writes nothing

    Attributes
    ----------
    failures : the number of errors in `step`, which do not end the training. The first one is logged.

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
        self.folder, self.every = Path(out), steps(every)
        start = whole(start, "start", 0, "it must be a whole number, 0 or more")
        files.folder_for(self.folder, FILE)
        self._model, self._texts = inside(model), fixed_texts(texts)
        encoder = load(self._model, tokenizer=tokenizer if tokenizer is not None else getattr(model, "tokenizer", None))
        self._tokenizer = encoder.reads_text()
        check_linear(encoder.anatomy)
        self._header: dict[str, Any] | None = {
            "schema": SCHEMA,
            "start": start,
            "name": encoder.name,
            "family": encoder.anatomy.family,
            "layers": len(encoder.anatomy.layers),
            "texts": files.sha256(self._texts),
            "every": self.every,
        }
        self._board = _board(tensorboard)
        self._guard = Guard()
        self._records: list[dict[str, Any]] = []
        self._first = np.empty(0)
        if start and (self.folder / FILE).exists():
            self._continue(start)
        self.name, self.family = encoder.name, encoder.anatomy.family
        self._step = self._tried = start
        self._ended: float | None = None
        if not self._records:
            self._first = sample(encoder.anatomy)
            self.measure()
        else:
            self._ended = time.perf_counter()

    @classmethod
    def load(cls, folder: str | Path) -> History:
        """The history in a folder, for its table and its page. It cannot take records."""
        path = Path(folder) / FILE
        header, records = _read(path)
        if not records:
            raise BadInput(f"{path} holds no record of a training; give the folder of a History")
        self = cls.__new__(cls)
        self.folder, self.every, self.name, self.family = path.parent, *(header[k] for k in ("every", "name", "family"))
        self._records, self._guard, self._model = records, Guard(), None
        return self

    def __repr__(self) -> str:
        last = self._records[-1]["step"]
        return f"History({self.name!r}, {len(self._records)} records up to step {last}, in {str(self.folder)!r})"

    def step(self, step: int | None = None) -> None:
        """Tell that a training step is done. Every `every` steps the model is recorded.

        An error in a record does not end the training: see `failures`.

        step : the number of the step; None counts from the step before
        """
        self._step = self._step + 1 if step is None else int(step)
        if self._step // self.every <= self._tried // self.every:
            return
        with self._guard(f"the record at step {self._step}"):
            self.measure()

    def measure(self) -> pd.DataFrame:
        """Record the model as it is now; returns the rows of the record, see `table`."""
        if self._model is None:
            raise BadInput("this history was read from a file, without a model; make a History of the model")
        began, self._tried = time.perf_counter(), self._step
        encoder = replace(load(self._model), tokenizer=self._tokenizer, no_tokenizer="")
        found = rows(encoder, self._texts, self._first)
        record = {
            "step": self._step,
            "warning": sentence(collapses(self._rows(0), found), COLLAPSE) if self._records else None,
            "training_seconds": None if self._ended is None else began - self._ended,
            "rows": plain(found),
        }
        begins = record["warning"] is not None and self._records[-1]["warning"] is None
        self._write({**record, "seconds": time.perf_counter() - began})
        if self._board is not None:
            _scalars(self._board, self._step, found)
        if begins:
            LOGGER.warning("step %d: %s", self._step, record["warning"])
        self._ended = time.perf_counter()
        return found.assign(step=self._step)

    def _write(self, record: dict[str, Any]) -> None:
        """Put a record into the file. The first record of a history is preceded by the sample of its weights."""
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not self._records:
            files.write(self.folder / FIRST, lambda path: np.save(path, self._first))
        with files.Lines(self.folder / FILE) as lines:
            lines.append(*filter(None, (self._header, record)))
        self._header = None
        # Through JSON, so that a history in memory and one from the file are the same.
        self._records = _with(self._records, json.loads(files.to_json(record, indent=None)))
        self.__dict__.pop("table", None)

    def _continue(self, start: int) -> None:
        """Take up the history in the folder at the step `start`."""
        assert self._header is not None
        header, records = _read(self.folder / FILE)
        for name in ("family", "layers", "texts"):
            if records and header[name] != self._header[name]:
                raise BadInput(f"{self.folder} holds a history with other {name}; give another folder")
        self._records = [record for record in records if record["step"] <= start]
        if self._records:
            try:
                self._first = np.load(self.folder / FIRST)
            except (OSError, ValueError) as error:
                raise BadInput(f"{self.folder / FIRST} cannot be read ({error}); give another folder") from error

    @property
    def failures(self) -> int:
        return self._guard.count

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded."""
        return [record["step"] for record in self._records]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a record and depth, see `record.COLUMNS`; NAME_low and NAME_high are ends of 95 % intervals."""
        parts = [self._rows(i).assign(step=record["step"]) for i, record in enumerate(self._records)]
        table = pd.concat(parts, ignore_index=True)
        return table[["step", *(name for name in table if name != "step")]]

    @property
    def warnings(self) -> list[str]:
        """One sentence for each time that a collapse began, with its step."""
        before = [None, *(record["warning"] for record in self._records)]
        return [
            f"step {record['step']}: {record['warning']}"
            for record, earlier in zip(self._records, before, strict=False)
            if record["warning"] and not earlier
        ]

    @property
    def overhead(self) -> float | None:
        """The time of the records relative to the training between them; None before the second record."""
        timed = [record for record in self._records if record["training_seconds"]]
        if not timed:
            return None
        return sum(record["seconds"] for record in timed) / sum(record["training_seconds"] for record in timed)

    def sentences(self) -> list[str]:
        """What changed, in words: which layers moved most and whether texts collapse, then the numbers."""
        warning = self._records[-1]["warning"]
        moved = _moved(self._rows(-1))
        past = "nothing collapses" if not self.warnings else "a collapse began, but did not last"
        found = [f"{moved[0]}; {past}." if warning is None else f"{warning}."]
        found += [f"{moved[0]}."] if warning else []
        found += moved[1:]
        if tokens := sentence(together(self._rows(0), self._rows(-1)), "The tokens of a text came together"):
            alone = "" if warning else " This alone is no collapse: a task that reads one vector of a text causes it."
            found.append(f"{tokens}.{alone}")
        for name, what in (("text_cosine", "mean cosine of two texts"), ("entropy", "attention entropy")):
            found += _largest_change(self._rows(0), self._rows(-1), name, what)
        return found + self._cost()

    def _cost(self) -> list[str]:
        """What the records cost, and the interval that would cost less."""
        share = self.overhead
        if share is None:
            return []
        words = f"The records took {100 * share:.2g} % of the time of the training between them"
        if share <= BUDGET:
            return [f"{words}."]
        return [f"{words}; with every={math.ceil(self.every * share / BUDGET)} they would take {100 * BUDGET:g} %."]

    def report(self, path: str | Path | None = None) -> Path:
        """Write the history as one HTML file that needs no network; `report.html` in its folder by default."""
        from metastable.encoder.history.report import write

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
        raise BadInput("the callback needs the package transformers; install metastable[encoder]")
    from metastable.encoder.history.trainer import HistoryCallback

    return HistoryCallback(fixed_texts(texts), tokenizer, out, steps(every), tensorboard)


def steps(every: Any) -> int:
    return whole(every, "every", 1, "it must be a whole number of steps, 1 or more")


def inside(model: Any) -> Any:
    """The model of transformers that a module holds: the model itself if its family is known, else the outermost."""
    if isinstance(model, Encoder):
        return model.model
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) in FAMILIES or not hasattr(model, "modules"):
        return model
    from transformers import PreTrainedModel

    held = (m for m in model.modules() if isinstance(m, PreTrainedModel) and m.config.model_type in FAMILIES)
    return next(held, model)


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The newest header and the records that count, by step. Damaged lines are left out."""
    header: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    for line in files.Lines(path).read():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict):
            continue
        if "schema" in row:
            if row["schema"] != SCHEMA:
                raise BadInput(f"{path} is not a history of a training ({SCHEMA}); give another folder")
            header = row
            records = [record for record in records if 0 < row["start"] >= record["step"]]
        elif header and {"step", "rows", "warning", "seconds", "training_seconds"} <= row.keys():
            records = _with(records, row)
    return header, records


def _with(records: list[dict[str, Any]], record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records by step, with one more, which takes the place of an older one of the same step."""
    others = [other for other in records if other["step"] != record["step"]]
    return sorted([*others, record], key=lambda one: one["step"])


def _moved(last: pd.DataFrame) -> list[str]:
    """Which layers moved most, without a full stop; then by how much."""
    change = last.set_index("depth")[list(CHANGES)].astype(float).mean(axis=1).dropna()
    if not len(change) or not change.max() > 0:
        return ["No layer moved"]
    most = change[change >= change.max() / ALIKE].index.tolist()
    names = " and ".join(filter(None, (", ".join(map(str, most[:-1])), str(most[-1]))))
    where = "All layers moved about alike" if len(most) == len(change) and len(change) > 1 else ""
    where = where or f"Layer{'s' if len(most) > 1 else ''} {names} moved most"
    top, least = int(change.idxmax()), int(change.idxmin())
    row = last.set_index("depth").loc[top]
    size = f"by {100 * row[CHANGES[0]]:.2g} % in the attention and {100 * row[CHANGES[1]]:.2g} % in the perceptron"
    rest = "" if top == least else f"; the least, of layer {least}, by {100 * change.min():.2g} % on average"
    return [where, f"Since the first record, the weights of layer {top} changed {size}{rest}."]


def _largest_change(first: pd.DataFrame, last: pd.DataFrame, name: str, what: str) -> list[str]:
    change = (last[name].astype(float) - first[name].astype(float)).dropna()
    if not len(change) or change.abs().max() == 0:
        return []
    depth = int(change.abs().idxmax())
    values = f"from {first[name][depth]:.3g} to {last[name][depth]:.3g}"
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
