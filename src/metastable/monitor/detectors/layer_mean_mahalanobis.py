"""Mahalanobis distance of the mean token of all depths at once."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Fitted, Gathering
from metastable.monitor.detectors.pooling import gaussian, mean_over, squares
from metastable.monitor.moments import Moments


class LayerMeanMahalanobis(Fitted):
    """|W(x̄ − μ)|²/d, x̄ the mean of x̂ over the chosen tokens of a text and over all depths 0, …, L.

    Averaging over layers before the distance is taken is from Colombo, Dadalto, Staerman, Noiry, Piantanida, "Beyond
    Mahalanobis distance for textual OOD detection", NeurIPS 2022, who use another distance than this one. The
    covariance is shrunk as Ledoit and Wolf estimate.
    """

    name = "layer-mean-mahalanobis"
    words = "on average over its words and the layers it is unlike the clean texts"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._width = encoder.anatomy.layers[0].width
        self.depths = tuple(range(len(encoder.anatomy.layers) + 1))
        self.columns = (Column("mean token", None),)
        self._moments = Moments(self._width)

    @classmethod
    def blank(cls, encoder: Encoder) -> LayerMeanMahalanobis:
        return cls(encoder)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return depth.lens.of_view(mean_over(depth.v, passage.chosen))[passage.counts > 0]

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
        self._means.append(depth.lens.of_view(mean_over(depth.v, self._passage.chosen)))

    def values(self) -> Values:
        if not self._means:
            return Values(torch.zeros(len(self._passage.ids), 1, dtype=torch.float64))
        mean = torch.stack(self._means).mean(dim=0)
        found = squares(self._arrays["white"], self._arrays["offset"], mean, self._passage)
        return Values(found.double().unsqueeze(1))
