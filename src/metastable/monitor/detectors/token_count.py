"""The number of tokens: a control, which a detector that only notices lengths would match."""

from __future__ import annotations

from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Unfitted


class TokenCount(Unfitted):
    """log n, n the number of chosen tokens; 0 for none. No reference: this is what others must be better than."""

    name = "token-count"
    words = "it is longer or shorter than the clean texts"
    two_sided = True

    depths = ()
    columns = (Column("log n", None),)

    @classmethod
    def blank(cls, encoder: Encoder) -> TokenCount:
        return cls()

    def open(self, passage: Passage) -> Reading:
        return _Count(passage)


class _Count(Reading):
    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def visit(self, depth: Depth) -> None:
        pass

    def values(self) -> Values:
        return Values(self._passage.counts.clamp_min(1).double().log().unsqueeze(1))
