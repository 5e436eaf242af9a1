"""The ladder of lengths 32, 64, 128, …, and the documents that are measured on it.

All rungs are measured on the same documents, those that reach the last rung, so that two rungs differ by the length
alone. Where documents are too short for the upper rungs, texts glued together are measured on the whole ladder too.
Glued texts show what attention does. They are not documents, so nothing about embeddings is measured on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from metastable.encoder.length.documents import SHORTEST, Documents
from metastable.errors import BadInput

FEWEST = 8
"""The smallest number of documents on a rung. Half of them make the forecast and half of them score it."""
MOST = 32
"""Documents that are measured, the first ones that are long enough."""
GLUED = 16
"""Glued texts that are measured."""


@dataclass(frozen=True)
class LengthLadder:
    """Which documents are measured at which length.

    start : n₀; top : the last rung that whole documents reach
    cohort : documents of at least `top` tokens
    glued : texts joined to documents of the last rung; there are none if `top` is the last rung
    """

    rungs: tuple[int, ...]
    start: int
    top: int
    cohort: Documents
    glued: Documents

    @property
    def last(self) -> int:
        return self.rungs[-1]

    @property
    def upper(self) -> str:
        """The source that reaches the last rung. Forecasts are made from it and scored on it."""
        return "prefix" if self.last <= self.top else "glued"

    @property
    def measured(self) -> list[tuple[str, int]]:
        """The source ("prefix" or "glued") and the length of each measurement."""
        glued = [("glued", n) for n in self.rungs if len(self.glued)]
        return [*(("prefix", n) for n in self.rungs if n <= self.top), *glued]

    def documents(self, source: str, n: int) -> Documents:
        """The documents of a source, cut to n tokens."""
        return (self.cohort if source == "prefix" else self.glued).prefixes(n)

    @classmethod
    def of(cls, documents: Documents, start: int, longest: int) -> LengthLadder:
        """The ladder up to `longest` tokens that these documents reach, alone or glued."""
        possible = [SHORTEST * 2**i for i in range(40) if SHORTEST * 2**i <= longest]
        reached = {n: len(documents.at_least(n)) for n in possible}
        if reached[SHORTEST] < FEWEST:
            few = f"{reached[SHORTEST]} of {len(documents)} texts have {SHORTEST} tokens or more"
            raise BadInput(f"{few}; effects of length need at least {FEWEST} such texts")
        top = max(n for n in possible if reached[n] >= FEWEST)
        rungs = [n for n in possible if n <= top or len(documents.glued(n)) >= FEWEST]
        last = rungs[-1]
        return cls(
            tuple(rungs),
            start=max(n for n in rungs if n <= max(SHORTEST, min(start, last // 4))),
            top=top,
            cohort=documents.at_least(top).first(MOST),
            glued=documents.glued(last).first(GLUED if last > top else 0),
        )
