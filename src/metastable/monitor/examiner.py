"""The detectors of a setting at work on one encoder: texts or forward passes in, records out.

An examiner knows nothing of streams, alarms or sinks; these belong to `Monitor`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from metastable.encoder.hooks import Passage, Reader, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.texts import batches, blank, strings, unusable
from metastable.monitor import passes
from metastable.monitor.baseline import Baseline
from metastable.monitor.record import FAILED, NO_TOKEN, Record, records
from metastable.monitor.scoring import Assessment, ColumnTable

Failed = Callable[[str, Exception], None]
"""Called with where an error occurred, "scoring" or "records", and the error."""


class Examiner:
    """A setting of a baseline at work on its encoder. Threads may share it.

    depths, projected : where the setting reads tokens, and where queries and keys
    """

    def __init__(self, baseline: Baseline, name: str, encoder: Encoder, alpha: float = 0.01) -> None:
        self.scorer = baseline.scorer(name)
        baseline.check(encoder)
        self.encoder, self.special, self.alpha = encoder, baseline.special, alpha
        setting = self.scorer.setting
        self._detectors = {name: baseline.detectors[name] for name in setting.members}
        self._visits = {name: setting.visits(detector) for name, detector in self._detectors.items()}
        self.depths = frozenset().union(*self._visits.values())
        self.projected = frozenset(passes.projected(self._detectors.values()))
        self._local = threading.local()

    def open(self, passage: Passage, done: Callable[[Passage, Assessment], None]) -> Watch:
        """Begin to examine a forward pass; `done` is called after it."""

        def assess(table: ColumnTable, tokens: dict[str, Tensor]) -> None:
            done(passage, self.scorer.assess(table, tokens))

        return passes.reading(self._detectors, passage, assess, self._visits)

    def records(self, texts: Iterable[str], batch_size: int = 32, failed: Failed | None = None) -> list[Record]:
        """Run the encoder on texts: one record for each, in order. A text that cannot be used has the reason in it.

        The model that the encoder was made from is not touched: the passes run on modules of their own that share its
        weights. Batches change scores by the rounding of float32 only.

        failed : called with errors of the detectors; the texts of such a pass are rejected in any case
        """
        encoder, tokenizer = self._own()
        given = list(strings(texts))
        reasons = [_unfit(text) for text in given]
        made = [Record.rejected(reason or NO_TOKEN) for reason in reasons]
        places = [place for place, reason in enumerate(reasons) if reason is None]
        found: list[tuple[Passage, Assessment]] = []
        errors: list[Exception] = []

        def open(passage: Passage) -> Watch:
            return self.open(passage, lambda *result: found.append(result))

        projected = self.projected
        with Reader(
            encoder.model, encoder.anatomy, self.special, self.depths, open, errors.append, projected=projected
        ):
            for batch in batches(tokenizer, [given[place] for place in places], encoder.limit, batch_size):
                found.clear()
                errors.clear()
                encoder.run(batch.inputs)
                rows = [places[number] for number in batch.numbers.tolist()]
                try:
                    if errors:
                        raise errors[-1]
                    passage, assessment = found[-1]
                    own = records(assessment, passage, tokenizer, [given[row] for row in rows], self.alpha)
                except Exception as error:
                    if failed is not None:
                        failed("scoring" if errors else "records", error)
                    own = [Record.rejected(f"{FAILED} ({one_line(error)})")] * len(rows)
                for row, record, cut in zip(rows, own, batch.cut, strict=True):
                    made[row] = replace(record, cut=cut)
        return made

    def _own(self) -> tuple[Encoder, Any]:
        """An encoder and a tokenizer for this thread, because hooks and truncation are state of theirs."""
        if not hasattr(self._local, "encoder"):
            tokenizer = copy.deepcopy(self.encoder.reads_text())
            self._local.encoder, self._local.tokenizer = self.encoder.private(), tokenizer
        return self._local.encoder, self._local.tokenizer


def one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:200]


def _unfit(text: str) -> str | None:
    """Why a text is not given to the model, or None."""
    if blank(text):
        return "holds only white space" if text else "is empty"
    return unusable(text)
