"""Judging the texts of a passage while the model runs: what the detectors of a setting say, and how rare that is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.errors import BadInput
from metastable.monitor.detectors.base import Detector
from metastable.monitor.scoring import Judged, Table

if TYPE_CHECKING:
    from metastable.monitor.baseline import Baseline

Done = Callable[[Passage, Judged], None]
"""Called after a pass with what went in and what is said of it."""


class Together:
    """Several watches of one pass, each at its own depths."""

    def __init__(self, watches: Sequence[tuple[Collection[int], Watch]]) -> None:
        self._watches = watches

    def visit(self, depth: Depth) -> None:
        for depths, watch in self._watches:
            if depth.index in depths:
                watch.visit(depth)

    def close(self) -> None:
        for _, watch in self._watches:
            watch.close()


class Readings:
    """Detectors at work on one passage, and their columns as a `Table` when it is over.

    depths : where each is wanted; columns of other depths are 0
    """

    def __init__(
        self,
        detectors: Mapping[str, Detector],
        depths: Mapping[str, Collection[int]],
        passage: Passage,
        done: Callable[[Table, dict[str, Tensor]], None],
    ) -> None:
        self._passage, self._done = passage, done
        self._readings = [(name, depths[name], d.open(passage)) for name, d in detectors.items()]

    def visit(self, depth: Depth) -> None:
        for _, depths, reading in self._readings:
            if depth.index in depths:
                reading.visit(depth)

    def close(self) -> None:
        columns: dict[str, np.ndarray] = {}
        tokens: dict[str, Tensor] = {}
        for name, _, reading in self._readings:
            values = reading.values()
            columns[name] = values.columns.double().cpu().numpy()
            if values.tokens is not None:
                tokens[name] = values.tokens
        self._done(Table(columns, self._passage.counts.cpu().numpy()), tokens)


class Judge:
    """A setting of a baseline, at work on passages. The baseline must have been checked against the encoder by then.

    depths : where it reads
    """

    def __init__(self, baseline: Baseline, setting: str) -> None:
        if setting not in baseline.settings:
            raise BadInput(f"setting is {setting!r}; the baseline has {', '.join(sorted(baseline.settings))}")
        self.baseline, self.scorer = baseline, baseline.settings[setting]
        self._visits = {member.name: frozenset(member.visits) for member in self.scorer.scale.members}
        self.depths: frozenset[int] = frozenset().union(*self._visits.values())

    @cached_property
    def detectors(self) -> dict[str, Detector]:
        """Of the setting, in its order."""
        return {name: self.baseline.detectors[name] for name in self._visits}

    def open(self, passage: Passage, done: Done) -> Watch:
        """Begin to judge a passage; `done` is called when the watch is closed."""
        words = tuple(detector.words for detector in self.detectors.values())

        def judged(table: Table, tokens: dict[str, Tensor]) -> None:
            done(passage, self.scorer.judge(table, words, tokens))

        return Readings(self.detectors, self._visits, passage, judged)
