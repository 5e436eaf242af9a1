"""Learning a baseline: passes of clean texts through the encoder, part by part, in memory that barely grows with them.

What is kept for each text is a few numbers: its columns in the "adjust" part, two scores a setting in "calibrate".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from metastable.encoder.hooks import Open, Passage, Reader, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.texts import TextCounts, batches
from metastable.errors import BadInput
from metastable.monitor.conformal import Calibration
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.detectors.base import Detector
from metastable.monitor.judge import Readings, Together
from metastable.monitor.scoring import SETTINGS, Scale, Scorer, Setting, Table
from metastable.monitor.split import TOKENS, Split, enough

NO_TOKEN = "without a token of its own"


class Learning:
    """The passes of one encoder over the parts of a split.

    special : numbers of the tokens that are no words; an unknown word is one
    """

    def __init__(
        self, encoder: Encoder, split: Split, batch_size: int, progress: Callable[[int], None] | None = None
    ) -> None:
        self.encoder, self.split, self.batch_size, self.progress = encoder.private(), split, batch_size, progress
        tokenizer = encoder.reads_text()
        self.special = special_of(tokenizer)
        self._done = 0
        self._counts: dict[str, TextCounts] = {}
        self._lengths: Counter[int] = Counter()

    def detectors(self) -> dict[str, dict[str, np.ndarray]]:
        """What each detector of the settings learns from the "fit" part, by its name."""
        names = dict.fromkeys(name for setting in SETTINGS.values() for name in setting.members)
        found = {name: DETECTORS[name].blank(self.encoder) for name in names}
        for stage in range(max(detector.stages for detector in found.values())):
            learners = [detector for detector in found.values() if stage < detector.stages]
            self._learn(stage, learners)
        return {name: detector.to_arrays() for name, detector in found.items()}

    def _learn(self, stage: int, learners: list[Detector]) -> None:
        def open(passage: Passage) -> Watch:
            return Together([(detector.depths, detector.learn(stage, passage)) for detector in learners])

        self._pass("fit", {depth for detector in learners for depth in detector.depths}, open)
        self._check_tokens()
        for detector in learners:
            detector.settle(stage)

    def _check_tokens(self) -> None:
        counts, d = self._counts["fit"], self.encoder.anatomy.layers[0].width
        tokens = counts.tokens - counts.special
        if tokens < TOKENS * d:
            more = -(-TOKENS * d * self.split.texts // max(tokens, 1))
            raise BadInput(
                f"the clean texts are too few: {tokens} tokens to fit {d} dimensions, which needs {TOKENS * d}; "
                f"give about {100 * (-(-more * 11 // 1000))} texts like these"
            )

    def scorers(self, settings: Mapping[str, Setting], detectors: Mapping[str, Detector]) -> dict[str, Scorer]:
        """Scales fitted on "adjust", calibrated on "calibrate"; the columns of the latter are not kept."""
        tables: list[Table] = []
        self._columns("adjust", detectors, tables.append)
        self._check_texts()
        adjust = Table.joined(tables)
        scales = {name: Scale.of(setting, detectors, adjust) for name, setting in settings.items()}
        totals: dict[str, list[np.ndarray]] = {name: [] for name in scales}
        depths: dict[str, list[np.ndarray]] = {name: [] for name in scales}

        def take(table: Table) -> None:
            for name, scale in scales.items():
                scores = scale(table)
                totals[name].append(scores.total)
                depths[name].append(scores.worst_depth)

        self._columns("calibrate", detectors, take)
        self._check_texts()
        return {
            name: Scorer(scale, Calibration(np.concatenate(totals[name])), Calibration(np.concatenate(depths[name])))
            for name, scale in scales.items()
        }

    def _columns(self, part: str, detectors: Mapping[str, Detector], take: Callable[[Table], None]) -> None:
        depths = {name: detector.depths for name, detector in detectors.items()}

        def done(table: Table, tokens: dict[str, Tensor]) -> None:
            self._lengths.update(table.lengths.tolist())
            take(table)

        wanted = {depth for detector in detectors.values() for depth in detector.depths}
        self._pass(part, wanted, lambda passage: Readings(detectors, depths, passage, done))

    def _check_texts(self) -> None:
        """Once texts are tokenized some may turn out to hold nothing."""
        known = {part: self._counts[part].texts if part in self._counts else n for part, n in self.split.counts.items()}
        enough(known, self._left_out())

    def _pass(self, part: str, depths: Collection[int], open: Open) -> None:
        counts = TextCounts()
        with Reader(self.encoder.model, self.encoder.anatomy, self.special, depths, open):
            found = batches(self.encoder.tokenizer, self.split.read(part), self.encoder.limit, self.batch_size, counts)
            for batch in found:
                self.encoder.run(batch.inputs)
                self._done += len(batch.numbers)
                if self.progress is not None:
                    self.progress(self._done)
        self._counts[part] = counts

    def _left_out(self) -> Counter[str]:
        skipped = sum(counts.skipped for counts in self._counts.values())
        return self.split.left_out + Counter({NO_TOKEN: skipped})

    def facts(self) -> dict[str, Any]:
        """About the texts, see `Baseline`."""
        lengths = sorted(self._lengths.elements())
        return {
            "parts": {part: counts.texts for part, counts in self._counts.items()},
            "left_out": dict(sorted(self._left_out().items())),
            "documents": self.split.documents,
            "commonest": self.split.commonest.share,
            "cut": sum(counts.cut for counts in self._counts.values()),
            "tokens": sum(counts.tokens - counts.special for counts in self._counts.values()),
            "lengths": {"least": lengths[0], "median": lengths[len(lengths) // 2], "most": lengths[-1]},
        }


def special_of(tokenizer: Any) -> tuple[int, ...]:
    """Numbers of the special tokens of a tokenizer. An unknown word is a word."""
    return tuple(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))
