"""What every detector is: something fitted on clean texts that turns a pass into numbers, a few columns a text.

A detector knows nothing of lengths, p-values or other detectors: its columns are put on one scale, adjusted for length,
by `monitor.scoring`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder


@dataclass(frozen=True)
class Column:
    """One number a text. depth : where it is read, None for the text as a whole."""

    name: str
    depth: int | None


@dataclass(frozen=True)
class Values:
    """What a detector says of a passage.

    columns : (texts, k) of float64, one for each of the detector's columns. Finite wherever the model's own tokens
        are, and 0 for texts without a chosen token and at depths that were not visited.
    tokens : (texts, n), how strange each chosen token is, in standard deviations of the clean tokens' values (0
        elsewhere), or None where the detector does not look at single tokens
    """

    columns: Tensor
    tokens: Tensor | None = None


class Reading(ABC):
    """A detector at work on one passage."""

    @abstractmethod
    def visit(self, depth: Depth) -> None:
        """Called at the detector's depths, in order. Depths whose columns nobody wants may be left out."""

    @abstractmethod
    def values(self) -> Values:
        """Called once, after the last depth; `tokens` are over the depths that were visited."""


class Detector(ABC):
    """A detector: `learn` on passages of clean texts, once for each stage and with `settle` after it, then `open`.

    name : as users type it
    two_sided : whether too little is as strange as too much; in the others only too much is
    stages : passes over the texts to be fitted on; 0 where nothing is learned
    depths : where it reads tokens
    columns : what it gives, in order
    words : what it means that a text is strange to it, to go after "because": "its words are unlike those of …"
    """

    name: ClassVar[str]
    words: ClassVar[str]
    two_sided: ClassVar[bool] = False
    stages: ClassVar[int] = 1

    depths: tuple[int, ...]
    columns: tuple[Column, ...]

    @classmethod
    @abstractmethod
    def blank(cls, encoder: Encoder) -> Detector:
        """Unfitted, with the depths and columns that it has on this encoder."""

    @abstractmethod
    def learn(self, stage: int, passage: Passage) -> Watch:
        """Begin to learn from a passage of clean texts; what it holds counts once the watch is closed."""

    @abstractmethod
    def settle(self, stage: int) -> None:
        """All texts of a stage are learned."""

    @abstractmethod
    def open(self, passage: Passage) -> Reading:
        """Begin to score a passage."""

    @abstractmethod
    def to_arrays(self) -> dict[str, np.ndarray]:
        """All that was learned."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back what `to_arrays` gave, into a blank detector of the same encoder."""
