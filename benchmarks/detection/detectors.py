"""Detectors that the library's settings do not use, for comparison with those that they do.

One from the literature, and two controls that every detector has to beat: the number of tokens and the rarity of words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.errors import BadInput
from metastable.monitor import detectors as library
from metastable.monitor.detectors.base import (
    Column,
    Detector,
    Gathering,
    Reading,
    Unfitted,
    Values,
    gaussian,
    over_tokens,
    squares,
)
from metastable.monitor.moments import Moments


def need_some(count: int, what: str) -> None:
    """Refuse to settle on nothing."""
    if count == 0:
        raise BadInput(f"the detector has learned from 0 {what}; give texts with words in them")


class LayerMeanMahalanobis(Detector):
    """|W(x̄ − μ)|²/d, x̄ the mean of x̂ over the chosen tokens of a text and over all depths 0, …, L.

    Averaging over layers before the distance is taken is from Colombo, Dadalto, Staerman, Noiry, Piantanida, "Beyond
    Mahalanobis distance for textual OOD detection", NeurIPS 2022, who use another distance than this one. The
    covariance is shrunk as Ledoit and Wolf estimate.
    """

    name = "layer-mean-mahalanobis"
    words = "on average over its words and the layers it is unlike the clean texts"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.depths = tuple(range(len(encoder.anatomy.layers) + 1))
        self.columns = (Column("mean token", None),)
        self._moments = Moments(self._width)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return depth.lens.of_view(depth.mean)[passage.counts > 0]

        return Gathering(take, lambda rows: self._moments.add(torch.stack(list(rows.values())).mean(dim=0)))

    def settle(self, stage: int) -> None:
        white, offset = gaussian(self._moments)
        self.keep({"white": white, "offset": offset})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"white": (self._width, self._width), "offset": (self._width,)}

    def open(self, passage: Passage) -> Reading:
        return _LayerMean(self.arrays_on(passage.ids.device), passage)


class _LayerMean(Reading):
    def __init__(self, arrays: dict[str, Tensor], passage: Passage) -> None:
        self._arrays, self._passage = arrays, passage
        self._means: list[Tensor] = []

    def visit(self, depth: Depth) -> None:
        self._means.append(depth.lens.of_view(depth.mean))

    def values(self) -> Values:
        if not self._means:
            return Values(torch.zeros(len(self._passage.ids), 1, dtype=torch.float64))
        mean = torch.stack(self._means).mean(dim=0)
        found = squares(self._arrays["white"], self._arrays["offset"], mean, self._passage)
        return Values(found.double().unsqueeze(1))


class TokenCount(Unfitted):
    """log n, n the number of chosen tokens; 0 for none. A control: detectors must be better than this."""

    name = "token-count"
    words = "it is longer or shorter than the clean texts"
    two_sided = True

    depths = ()
    columns = (Column("log n", None),)

    def open(self, passage: Passage) -> Reading:
        return _Count(passage)


class _Count(Reading):
    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def visit(self, depth: Depth) -> None:
        pass

    def values(self) -> Values:
        return Values(self._passage.counts.clamp_min(1).double().log().unsqueeze(1))


class UnigramRarity(Detector):
    """−log((N_t + 1)/(N + V)) of each chosen token t; mean and worst three of each text.

    N_t of the N clean tokens are t, out of a vocabulary of V, each counted once more than it came (Laplace's rule). A
    control: detectors must be better than a table of counts.
    """

    name = "unigram-rarity"
    words = "its words are rare in the clean texts"

    depths = ()
    columns = (Column("mean", None), Column("worst three", None))

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._counts = torch.zeros(encoder.model.get_input_embeddings().num_embeddings, dtype=torch.long)

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


DETECTORS: dict[str, type[Detector]] = library.DETECTORS | {
    found.name: found for found in (LayerMeanMahalanobis, TokenCount, UnigramRarity)
}
"""The library's detectors and these, by name."""
