"""Place surprise: words that are ordinary in themselves but do not fit the words around them."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import Sample
from metastable.monitor.detectors.base import (
    TYPICAL,
    Detector,
    Gathering,
    Leading,
    Reading,
    TokenReading,
    adding,
    chosen_units,
    token_columns,
    typical,
)
from metastable.monitor.moments import Moments, blended, regression, whitening

# Principal directions in which a token is predicted from its context.
RANK = 64
# Distances, in tokens, of the neighbours in the context.
BEFORE, AFTER = (1, 2), (1, 2)
# The token, its neighbours, the mean of all others.
PARTS = 1 + len(BEFORE) + len(AFTER) + 1


def place_depths(layers: int) -> tuple[int, ...]:
    """Depths L/3 and L/2, rounded.

    >>> place_depths(6), place_depths(1)
    ((2, 3), (0,))
    """
    return tuple(sorted({round(layers / 3), round(layers / 2)}))


class PlaceSurprise(Detector):
    """How anomalous a token is in its context, beyond how anomalous it is without one.

    This is minus the pointwise mutual information of token and context, up to a constant.

    Let y = Pᵀ(x̂ − μ), P the first 64 principal directions of clean tokens. The context c is y of the two chosen tokens
    before and of the two after the token (0 beyond the text's ends), and the mean of y over all other chosen tokens.
    Both y and y given c are modelled as Gaussian, the latter with mean A c + a:

        s = (|W_c(y − A c − a)|² − |W(y − m)|²)/64;      mean and worst three of each text

    W and W_c whiten the covariances of y and of y − A c. Words that are rare everywhere do not raise s; words out of
    place do. The difference of two Mahalanobis distances is from Ren, Fort, Liu, Roy, Padhy, Lakshminarayanan, "A
    simple fix to Mahalanobis distance for improving near-OOD detection", 2021, whose second Gaussian is that of all
    classes. Conditioning the first one on the context is new here.

    Neighbours are the neighbouring *chosen* tokens: special tokens between them are skipped.
    """

    name = "place-surprise"
    words = "some of its words do not fit in with the words around them"
    stages = 2

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.depths, self.rank = place_depths(len(encoder.anatomy.layers)), min(RANK, self._width)
        self.columns = token_columns(self.depths)
        self._units = {depth: Moments(self._width) for depth in self.depths}
        self._rows = {depth: Moments(PARTS * self.rank) for depth in self.depths}
        self._samples = {depth: Sample(TYPICAL, PARTS * self.rank) for depth in self.depths}
        self._bases: dict[str, Tensor] = {}

    def learn(self, stage: int, passage: Passage) -> Watch:
        if stage == 0:
            return Gathering(chosen_units, adding(self._units))
        leading = all_of(passage)

        def take(depth: Depth) -> Tensor:
            y = self._coordinates(depth, self._bases, leading)
            return torch.cat([y, *surroundings(y, leading)], dim=-1)[leading.there]

        return Gathering(take, adding(self._rows, self._samples))

    def settle(self, stage: int) -> None:
        if stage == 1:
            self.keep(self._bases | {name: a for depth in self.depths for name, a in self._fitted(depth).items()})
            return
        for depth, units in self._units.items():
            basis, lens = torch.linalg.eigh(units.covariance).eigenvectors[:, -self.rank :].T, self._lenses[depth]
            self._bases[f"basis.{depth}"] = (basis * lens.scale).float()
            self._bases[f"centre.{depth}"] = (basis @ (lens.shift - units.mean)).float()

    def _fitted(self, depth: int) -> dict[str, Tensor]:
        """The matrix from y of a token to its part in its own and its neighbours' residuals, and the offsets."""
        k, moments = self.rank, self._rows[depth]
        mean, covariance = moments.mean, moments.covariance
        a, rest = regression(covariance, k)
        alone, placed = (whitening(blended(c)) / k**0.5 for c in (covariance[:k, :k], rest))
        predictor = placed @ a
        offsets = torch.stack([predictor @ mean[k:] - placed @ mean[:k], -alone @ mean[:k]])
        rows = self._samples[depth].rows.double()
        residual = rows[:, :k] @ placed.T - rows[:, k:] @ predictor.T + offsets[0]
        itself = rows[:, :k] @ alone.T + offsets[1]
        values = torch.linalg.vecdot(residual, residual) - torch.linalg.vecdot(itself, itself)
        return {
            f"mixed.{depth}": torch.cat([placed, alone, *predictor.split(k, dim=1)]),
            f"offsets.{depth}": offsets,
            f"typical.{depth}": typical(values),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for depth in self.depths:
            found |= {f"basis.{depth}": (self.rank, self._width), f"centre.{depth}": (self.rank,)}
            found |= {f"mixed.{depth}": ((1 + PARTS) * self.rank, self.rank), f"offsets.{depth}": (2, self.rank)}
            found[f"typical.{depth}"] = (2,)
        return found

    def open(self, passage: Passage) -> Reading:
        arrays, leading = self.arrays_on(passage.ids.device), all_of(passage)

        def score(depth: Depth) -> Tensor:
            y = self._coordinates(depth, arrays, leading)
            mixed, (placed, alone) = arrays[f"mixed.{depth.index}"], arrays[f"offsets.{depth.index}"]
            return leading.back(self._surprise(y, leading, mixed, placed, alone))

        return TokenReading(self, passage, score, arrays)

    def _coordinates(self, depth: Depth, arrays: dict[str, Tensor], leading: Leading) -> Tensor:
        """y of the chosen tokens, moved to the beginning of each text; 0 after them. (texts, n, rank)"""
        basis, centre = arrays[f"basis.{depth.index}"], arrays[f"centre.{depth.index}"]
        y = torch.addmm(centre.to(depth.v), depth.v.reshape(-1, depth.v.shape[-1]), basis.to(depth.v).T)
        return leading.filled(leading.forth(y.view(*depth.x.shape[:2], -1)))

    def _surprise(self, y: Tensor, leading: Leading, mixed: Tensor, placed: Tensor, alone: Tensor) -> Tensor:
        """s of each token, (texts, n), in the order of `y`."""
        parts = (y.reshape(-1, self.rank) @ mixed.T).view(*y.shape[:2], 1 + PARTS, self.rank).unbind(dim=2)
        own, itself, before, after, mean = parts[0], parts[1], parts[2:4], parts[4:6], parts[6]
        # The mean of the others is the mean of all without the token's own part.
        share = others(leading)
        residual = torch.addcmul(own, mean, share)
        residual -= (y.sum(dim=1) @ mixed[-self.rank :].T).unsqueeze(1) * share - placed
        for step, part in zip(BEFORE, before, strict=True):
            residual[:, step:] -= part[:, :-step]
        for step, part in zip(AFTER, after, strict=True):
            residual[:, :-step] -= part[:, step:]
        itself = itself + alone
        return torch.linalg.vecdot(residual, residual) - torch.linalg.vecdot(itself, itself)


def all_of(passage: Passage) -> Leading:
    """All chosen tokens of each text."""
    return Leading(passage, passage.chosen.shape[1])


def others(leading: Leading) -> Tensor:
    """1/(number of other tokens) in each text, (texts, 1, 1), for the mean of the others."""
    return (leading.count - 1).clamp_min(1).float().reciprocal()[:, None, None]


def surroundings(y: Tensor, leading: Leading) -> list[Tensor]:
    """The context of each token, five times (texts, n, k): tokens before it, tokens after it, the mean of all others.

    y : (texts, n, k), 0 beyond the chosen tokens, as `Leading.filled` gives it
    """
    parts = []
    for step in BEFORE:
        part = torch.zeros_like(y)
        part[:, step:] = y[:, :-step]
        parts.append(part)
    for step in AFTER:
        part = torch.zeros_like(y)
        part[:, :-step] = y[:, step:]
        parts.append(part)
    return [*parts, (y.sum(dim=1, keepdim=True) - y) * others(leading)]
