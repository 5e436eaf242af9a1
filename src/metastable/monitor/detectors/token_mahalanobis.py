"""Mahalanobis distance of each token: words that are anomalous in themselves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import Sample
from metastable.monitor.detectors.base import (
    TYPICAL,
    Detector,
    Gathering,
    Reading,
    TokenReading,
    adding,
    chosen_units,
    folded,
    token_columns,
    typical,
)
from metastable.monitor.moments import Moments, blended, whitening

# Blocks of rows of the lower triangular whitening matrix.
BLOCKS = 3


def token_depths(layers: int) -> tuple[int, ...]:
    """Depths 0, L/3, 2L/3 and L, rounded.

    >>> token_depths(6), token_depths(1)
    ((0, 2, 4, 6), (0, 1))
    """
    return tuple(sorted({round(layers * k / 3) for k in range(4)}))


class TokenMahalanobis(Detector):
    """|W(x̂ − μ)|²/d of each chosen token, WᵀW the inverse of the clean tokens' covariance; mean and worst three.

    Lee, Lee, Lee, Shin, "A simple unified framework for detecting out-of-distribution samples and adversarial attacks",
    NeurIPS 2018, use one Gaussian per class with a common covariance; here there are no classes, and each token counts.
    The covariance is shrunk by 1 % towards a multiple of the identity. With x̂ = scale⊙v + shift this is |Uv + u|²,
    U = W diag(scale)/√d and u = W(shift − μ)/√d: one product with the tokens as they are.

    U is lower triangular, and of the zeros above its diagonal most are left out: see `distances`.

    bases : by depth, (d, rank): distances are computed from the coordinates basisᵀx̂ only, with rank in place of d
    """

    name = "token-mahalanobis"
    words = "some of its words, or how they are used, are unlike those of the clean texts"

    def __init__(
        self, encoder: Encoder, depths: Sequence[int] | None = None, bases: Mapping[int, Tensor] | None = None
    ) -> None:
        super().__init__(encoder)
        self.depths = token_depths(len(encoder.anatomy.layers)) if depths is None else tuple(depths)
        self.columns = token_columns(self.depths)
        self._bases = {} if bases is None else dict(bases)
        ranks = {depth: self._bases[depth].shape[1] if bases else self._width for depth in self.depths}
        self._moments = {depth: Moments(rank) for depth, rank in ranks.items()}
        self._samples = {depth: Sample(TYPICAL, rank) for depth, rank in ranks.items()}

    def learn(self, stage: int, passage: Passage) -> Watch:
        return Gathering(self._coordinates, adding(self._moments, self._samples))

    def _coordinates(self, depth: Depth) -> Tensor:
        units = chosen_units(depth)
        return units @ self._bases[depth.index].to(units) if self._bases else units

    def settle(self, stage: int) -> None:
        arrays = {}
        for depth, moments in self._moments.items():
            white = whitening(blended(moments.covariance)) / len(moments.centre) ** 0.5
            residual = (self._samples[depth].rows.double() - moments.mean) @ white.T
            lens, basis = self._lenses[depth], self._bases.get(depth)
            into = white if basis is None else white @ basis.double().T
            arrays[f"white.{depth}"], arrays[f"offset.{depth}"] = folded(into, -white @ moments.mean, lens)
            arrays[f"typical.{depth}"] = typical(torch.linalg.vecdot(residual, residual))
        self.keep(arrays)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for depth, moments in self._moments.items():
            rank = len(moments.centre)
            found |= {f"white.{depth}": (rank, self._width), f"offset.{depth}": (rank,), f"typical.{depth}": (2,)}
        return found

    def open(self, passage: Passage) -> Reading:
        arrays = self.arrays_on(passage.ids.device)

        def score(depth: Depth) -> Tensor:
            white, offset = arrays[f"white.{depth.index}"], arrays[f"offset.{depth.index}"]
            rows = depth.v.reshape(-1, depth.v.shape[-1])
            found = distances(rows, white, offset, 1 if self._bases else BLOCKS)
            return found.view(depth.x.shape[:2])

        return TokenReading(self, passage, score, arrays)


def distances(rows: Tensor, white: Tensor, offset: Tensor, blocks: int) -> Tensor:
    """|U row + u|² of each row, (rows,).

    blocks : U is lower triangular in so many blocks of rows. Three blocks leave out a third of the product.
    """
    total = rows.new_zeros(len(rows))
    edges = [len(white) * block // blocks for block in range(blocks + 1)]
    for first, last in itertools.pairwise(edges):
        width = rows.shape[1] if blocks == 1 else last
        y = torch.addmm(offset[first:last], rows[:, :width], white[first:last, :width].T)
        total += torch.linalg.vecdot(y, y)
    return total
