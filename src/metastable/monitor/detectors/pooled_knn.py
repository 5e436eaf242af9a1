"""Distance to the nearest clean texts: nothing like this text was there."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import Sample
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Fitted, Gathering, need_some
from metastable.monitor.detectors.pooling import mean_over

NEAREST = 10
"""Neighbours whose distances are averaged."""

KNOWN = 20_000
"""Most clean texts that are kept: 30 MB for 384 features."""


class PooledKNN(Fitted):
    """1 − the mean cosine of a text's sentence embedding to the ten nearest ones of clean texts.

    Sun, Ming, Zhu, Li, "Out-of-distribution detection with deep nearest neighbors", ICML 2022, who take the distance to
    the k-th neighbour on the unit sphere. The embedding is the mean of the last hidden state over all tokens, special
    ones too, as most sentence encoders make it. Of more than 20 000 clean texts a uniform sample is kept.
    """

    name = "pooled-knn"
    words = "none of the clean texts is near to it in meaning"

    def __init__(self, encoder: Encoder, known: int = KNOWN) -> None:
        super().__init__()
        self._width = encoder.anatomy.layers[0].width
        self.depths = (len(encoder.anatomy.layers),)
        self.columns = (Column("nearest texts", self.depths[0]),)
        self._sample = Sample(known, self._width)

    @classmethod
    def blank(cls, encoder: Encoder) -> PooledKNN:
        return cls(encoder)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def give(rows: dict[int, Tensor]) -> None:
            self._sample.add(rows[self.depths[0]][passage.counts > 0])

        return Gathering(embedding, give)

    def settle(self, stage: int) -> None:
        need_some(self._sample.seen, "texts")
        self.keep({"known": self._sample.rows})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"known": (-1, self._width)}

    def open(self, passage: Passage) -> Reading:
        return _Nearest(self.arrays_on(passage.ids.device)["known"], passage)


def embedding(depth: Depth) -> Tensor:
    """Sentence embeddings on the unit sphere, (texts, d), from the last depth."""
    return torch.nn.functional.normalize(mean_over(depth.x, depth.passage.mask), dim=-1)


class _Nearest(Reading):
    def __init__(self, known: Tensor, passage: Passage) -> None:
        self._known, self._passage = known, passage
        self._found = torch.zeros(len(passage.ids), 1, device=passage.ids.device)

    def visit(self, depth: Depth) -> None:
        cosines = embedding(depth) @ self._known.T
        nearest = cosines.topk(min(NEAREST, cosines.shape[1]), dim=1).values
        self._found = torch.where(self._passage.counts > 0, 1 - nearest.mean(dim=1), 0.0).unsqueeze(1)

    def values(self) -> Values:
        return Values(self._found.double())
