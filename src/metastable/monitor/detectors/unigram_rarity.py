"""How rare a text's tokens are: a control that does not look at what the encoder makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Fitted, Gathering, need_some, over_tokens


class UnigramRarity(Fitted):
    """−log((N_t + 1)/(N + V)) of each chosen token t; mean and worst three of each text.

    N_t of the N clean tokens are t, out of a vocabulary of V, each counted once more than it came (Laplace's rule). No
    reference: this is what a table of counts can do, and others must be better than.
    """

    name = "unigram-rarity"
    words = "its words are rare in the clean texts"

    depths = ()
    columns = (Column("mean", None), Column("worst three", None))

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._counts = torch.zeros(encoder.model.get_input_embeddings().num_embeddings, dtype=torch.long)

    @classmethod
    def blank(cls, encoder: Encoder) -> UnigramRarity:
        return cls(encoder)

    def learn(self, stage: int, passage: Passage) -> Watch:
        return Gathering(lambda depth: depth.x, lambda rows: self._add(passage.ids[passage.chosen]))

    def _add(self, ids: Tensor) -> None:
        self._counts = self._counts + torch.bincount(ids.cpu(), minlength=len(self._counts))

    def settle(self, stage: int) -> None:
        counts = self._counts.double()
        total = counts.sum()
        need_some(int(total), "tokens")
        rarity = -((counts + 1) / (total + len(counts))).log()
        mean = (counts @ rarity) / total
        deviation = (counts @ (rarity - mean).square() / total).sqrt().clamp_min(1e-6)
        self.keep({"rarity": rarity, "typical": torch.stack([mean, deviation])})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"rarity": (len(self._counts),), "typical": (2,)}

    def open(self, passage: Passage) -> Reading:
        return _Rarity(self.arrays_on(passage.ids.device), passage)


class _Rarity(Reading):
    def __init__(self, arrays: dict[str, Tensor], passage: Passage) -> None:
        self._arrays, self._passage = arrays, passage

    def visit(self, depth: Depth) -> None:
        pass

    def values(self) -> Values:
        rarity, (mean, deviation) = self._arrays["rarity"][self._passage.ids], self._arrays["typical"]
        strange = torch.where(self._passage.chosen, (rarity - mean) / deviation, 0.0)
        return Values(over_tokens(rarity, self._passage).double(), strange)
