"""Detectors at work on forward passes: `learning` fits them, `reading` computes their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.monitor.detectors.base import Detector
from metastable.monitor.scoring import ColumnTable


class DetectorPass:
    """A watch of one forward pass: calls each visitor at its own depths, and `close` after the pass."""

    def __init__(
        self, visitors: Sequence[tuple[Collection[int], Callable[[Depth], None]]], close: Callable[[], None]
    ) -> None:
        self._visitors, self._close = visitors, close

    def visit(self, depth: Depth) -> None:
        for depths, visit in self._visitors:
            if depth.index in depths:
                visit(depth)

    def close(self) -> None:
        self._close()


def depths(detectors: Iterable[Detector]) -> set[int]:
    """Where any of the detectors reads tokens."""
    return {depth for detector in detectors for depth in detector.depths}


def projected(detectors: Iterable[Detector]) -> set[int]:
    """Where any of the detectors reads queries and keys."""
    return depths(detector for detector in detectors if detector.reads_projections)


def learning(detectors: Sequence[Detector], stage: int, passage: Passage) -> Watch:
    """All detectors learn from a passage of clean texts."""
    watches = [(detector.depths, detector.learn(stage, passage)) for detector in detectors]

    def close() -> None:
        for _, watch in watches:
            watch.close()

    return DetectorPass([(depths, watch.visit) for depths, watch in watches], close)


def reading(
    detectors: Mapping[str, Detector],
    passage: Passage,
    done: Callable[[ColumnTable, dict[str, Tensor]], None],
    visits: Mapping[str, Collection[int]] | None = None,
) -> Watch:
    """All detectors read a passage. After the pass, `done` gets their columns and, by detector, each token's anomaly.

    visits : where each detector is wanted, its own depths unless given; columns of other depths are 0
    """
    wanted = {name: detector.depths for name, detector in detectors.items()} if visits is None else visits
    readings = {name: detector.open(passage) for name, detector in detectors.items()}

    def close() -> None:
        columns: dict[str, np.ndarray] = {}
        tokens: dict[str, Tensor] = {}
        for name, own in readings.items():
            values = own.values()
            columns[name] = values.columns.double().cpu().numpy()
            if values.tokens is not None:
                tokens[name] = values.tokens
        done(ColumnTable(columns, passage.counts.cpu().numpy()), tokens)

    return DetectorPass([(wanted[name], own.visit) for name, own in readings.items()], close)
