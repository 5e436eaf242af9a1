"""Distance to the nearest clean texts: texts on topics that no clean text has."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import Sample, mean_over
from metastable.errors import BadInput
from metastable.monitor.detectors.base import Column, Detector, Gathering, Reading, TextReading

# Neighbours whose cosines are averaged.
NEAREST = 10
# Most clean texts that are kept: 30 MB for 384 features.
KNOWN = 20_000


class NearestTexts(Detector):
    """1 − the mean cosine of a text's sentence embedding to the ten nearest ones of clean texts.

    Sun, Ming, Zhu, Li, "Out-of-distribution detection with deep nearest neighbors", ICML 2022, who take the distance to
    the k-th neighbour on the unit sphere. The embedding is the mean of the last hidden state over all tokens, special
    ones too, as most sentence encoders make it. Of more than 20 000 clean texts a uniform sample is kept.
    """

    name = "nearest-texts"
    words = "none of the clean texts is near to it in meaning"

    def __init__(self, encoder: Encoder, known: int = KNOWN) -> None:
        super().__init__(encoder)
        self.depths = (len(encoder.anatomy.layers),)
        self.columns = (Column("nearest texts", self.depths[0]),)
        self._sample = Sample(known, self._width)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def give(rows: dict[int, Tensor]) -> None:
            self._sample.add(rows[self.depths[0]][passage.counts > 0])

        return Gathering(embedding, give)

    def settle(self, stage: int) -> None:
        if self._sample.seen == 0:
            raise BadInput("the detector has learned from 0 texts; give texts with words in them")
        self.keep({"known": self._sample.rows})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"known": (-1, self._width)}

    def open(self, passage: Passage) -> Reading:
        known = self.arrays_on(passage.ids.device)["known"]

        def score(depth: Depth) -> Tensor:
            own = embedding(depth)
            nearest = known[(own @ known.T).topk(min(NEAREST, len(known)), dim=1).indices]
            # 1 − cos = ½|x − y|² on the unit sphere, without the cancellation of 1 − cos between texts that are close.
            apart = 0.5 * (own.unsqueeze(1) - nearest).square().sum(dim=-1).mean(dim=1)
            return torch.where(passage.counts > 0, apart, 0.0).unsqueeze(1)

        return TextReading(self, passage, score)


def embedding(depth: Depth) -> Tensor:
    """Sentence embeddings on the unit sphere, (texts, d), from the last depth."""
    return torch.nn.functional.normalize(mean_over(depth.x, depth.passage.mask), dim=-1)
