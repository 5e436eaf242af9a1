"""Mahalanobis distance of a text's mean token, at each depth: texts on other topics, or of another kind."""

from __future__ import annotations

from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import (
    Column,
    Detector,
    Gathering,
    Reading,
    TextReading,
    adding,
    folded,
    gaussian,
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
        super().__init__(encoder)
        self.depths = tuple(range(len(self._lenses)))
        self.columns = tuple(Column("mean token", depth) for depth in self.depths)
        self._moments = {depth: Moments(self._width) for depth in self.depths}

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return depth.lens.of_view(depth.mean)[passage.counts > 0]

        return Gathering(take, adding(self._moments))

    def settle(self, stage: int) -> None:
        arrays = {}
        for depth, moments in self._moments.items():
            arrays[f"white.{depth}"], arrays[f"offset.{depth}"] = folded(*gaussian(moments), self._lenses[depth])
        self.keep(arrays)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        whites = {f"white.{depth}": (self._width, self._width) for depth in self.depths}
        return whites | {f"offset.{depth}": (self._width,) for depth in self.depths}

    def open(self, passage: Passage) -> Reading:
        arrays = self.arrays_on(passage.ids.device)

        def score(depth: Depth) -> Tensor:
            white, offset = arrays[f"white.{depth.index}"], arrays[f"offset.{depth.index}"]
            return squares(white, offset, depth.mean, passage).unsqueeze(1)

        return TextReading(self, passage, score)
