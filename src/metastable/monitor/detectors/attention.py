"""What heads do with a passage, for the detectors that look at attention: the audit's own measurements."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.hooks import Depth, Passage, Tokens
from metastable.encoder.measure import HeadLens


class Heads:
    """The heads of an encoder, made ready at first use."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    @cached_property
    def lenses(self) -> list[HeadLens]:
        return [HeadLens(layer) for layer in self.anatomy.layers]

    def betas(self) -> list[float]:
        """At depths 0, …, L: the median effective β of the layer's heads, and of the last layer's at the output."""
        found = [lens.beta for lens in self.lenses]
        return [*found, found[-1]]


class HeadReading:
    """Statistics of layers and heads, each at the depth after the layer; see `HeadLens.measure`."""

    def __init__(self, heads: Heads, passage: Passage) -> None:
        self._heads, self._passage = heads, passage
        self._before: tuple[int, Tokens] | None = None

    def visit(self, depth: Depth) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Of the layer before this depth, (texts,), and of its heads, (texts, heads); None at depth 0."""
        before, self._before = self._before, (depth.index, depth.tokens)
        if before is None or before[0] != depth.index - 1:
            return None
        mask, chosen = self._passage.mask, self._passage.chosen
        return self._heads.lenses[before[0]].measure(before[1], depth.tokens, mask, mask & ~chosen, chosen)
