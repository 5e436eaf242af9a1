"""Mahalanobis distance of a text's mean token, at each depth: texts on other topics, or of another kind."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch, lenses
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import (
    Column,
    Detector,
    Gathering,
    Reading,
    Values,
    folded,
    gaussian,
    mean_over,
    squares,
)
from metastable.monitor.moments import Moments


class PooledMahalanobis(Detector):
    """|W(x̄ − μ)|²/d at each depth, x̄ the mean of x̂ over the chosen tokens of a text, WᵀW the inverse of its covariance.

    Podolskiy, Lipin, Bout, Artemova, Piontkovskaya, "Revisiting Mahalanobis distance for transformer-based
    out-of-domain detection", AAAI 2021, take one embedding of a fine-tuned encoder with classes; here there are no
    classes, and every depth has its own Gaussian. There are far fewer texts than tokens, so the covariance is shrunk as
    Ledoit and Wolf estimate (`Moments.ledoit_wolf`). The mean is taken of v (see `Lens`), and W is for v in place of x̂.
    """

    name = "pooled-mahalanobis"
    words = "on average its words are unlike those of the clean texts"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._width, self._lenses = encoder.anatomy.layers[0].width, lenses(encoder.anatomy)
        self.depths = tuple(range(len(self._lenses)))
        self.columns = tuple(Column("mean token", depth) for depth in self.depths)
        self._moments = [Moments(self._width) for _ in self.depths]

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return depth.lens.of_view(mean_over(depth.v, passage.chosen))[passage.counts > 0]

        return Gathering(take, self._add)

    def _add(self, rows: dict[int, Tensor]) -> None:
        for depth, own in rows.items():
            self._moments[depth].add(own)

    def settle(self, stage: int) -> None:
        arrays = {}
        for depth, (moments, lens) in enumerate(zip(self._moments, self._lenses, strict=True)):
            arrays[f"white.{depth}"], arrays[f"offset.{depth}"] = folded(*gaussian(moments), lens)
        self.keep(arrays)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        whites = {f"white.{depth}": (self._width, self._width) for depth in self.depths}
        return whites | {f"offset.{depth}": (self._width,) for depth in self.depths}

    def open(self, passage: Passage) -> Reading:
        return _PooledReading(self.arrays_on(passage.ids.device), len(self.depths), passage)


class _PooledReading(Reading):
    def __init__(self, arrays: dict[str, Tensor], depths: int, passage: Passage) -> None:
        self._arrays, self._passage = arrays, passage
        self._found = torch.zeros(len(passage.ids), depths, device=passage.ids.device)

    def visit(self, depth: Depth) -> None:
        white, offset = self._arrays[f"white.{depth.index}"], self._arrays[f"offset.{depth.index}"]
        mean = mean_over(depth.v, self._passage.chosen)
        self._found[:, depth.index] = squares(white, offset, mean, self._passage)

    def values(self) -> Values:
        return Values(self._found.double())
