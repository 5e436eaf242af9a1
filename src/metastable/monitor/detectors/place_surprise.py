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
        order = Order(passage)

        def take(depth: Depth) -> Tensor:
            y = self._coordinates(depth, self._bases, order)
            return torch.cat([y, *surroundings(y, order)], dim=-1)[order.inside]

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
        arrays, order = self.arrays_on(passage.ids.device), Order(passage)

        def score(depth: Depth) -> Tensor:
            y = self._coordinates(depth, arrays, order)
            mixed, (placed, alone) = arrays[f"mixed.{depth.index}"], arrays[f"offsets.{depth.index}"]
            return order.back(self._surprise(y, order, mixed, placed, alone))

        return TokenReading(self, passage, score, arrays)

    def _coordinates(self, depth: Depth, arrays: dict[str, Tensor], order: Order) -> Tensor:
        """y of the chosen tokens, moved to the beginning of each text; 0 after them. (texts, n, rank)"""
        basis, centre = arrays[f"basis.{depth.index}"], arrays[f"centre.{depth.index}"]
        y = torch.addmm(centre.to(depth.v), depth.v.reshape(-1, depth.v.shape[-1]), basis.to(depth.v).T)
        return order.forth(y.view(*depth.x.shape[:2], -1))

    def _surprise(self, y: Tensor, order: Order, mixed: Tensor, placed: Tensor, alone: Tensor) -> Tensor:
        """s of each token, (texts, n), in the order of `y`."""
        parts = (y.reshape(-1, self.rank) @ mixed.T).view(*y.shape[:2], 1 + PARTS, self.rank).unbind(dim=2)
        own, itself, before, after, mean = parts[0], parts[1], parts[2:4], parts[4:6], parts[6]
        # The mean of the others is the mean of all without the token's own part.
        residual = torch.addcmul(own, mean, order.share)
        residual -= (y.sum(dim=1) @ mixed[-self.rank :].T).unsqueeze(1) * order.share - placed
        for step, part in zip(BEFORE, before, strict=True):
            residual[:, step:] -= part[:, :-step]
        for step, part in zip(AFTER, after, strict=True):
            residual[:, :-step] -= part[:, step:]
        itself = itself + alone
        return torch.linalg.vecdot(residual, residual) - torch.linalg.vecdot(itself, itself)


class Order:
    """Moves the chosen tokens of each text to its beginning, in their order, and back.

    inside : (texts, n) of bool, the places that chosen tokens take after the move
    share : (texts, 1, 1), 1/(number of other tokens), for the mean of the others
    """

    def __init__(self, passage: Passage) -> None:
        self._places = (~passage.chosen).to(torch.uint8).argsort(dim=1, stable=True)
        counts = passage.counts.unsqueeze(1)
        self.inside = torch.arange(passage.ids.shape[1], device=counts.device) < counts
        self.share = (counts - 1).clamp_min(1).float().reciprocal().unsqueeze(-1)

    def forth(self, y: Tensor) -> Tensor:
        """y (texts, n, k) in the new order; 0 after the chosen tokens."""
        moved = y.gather(1, self._places.unsqueeze(-1).expand(y.shape))
        return torch.where(self.inside.unsqueeze(-1), moved, 0.0)

    def back(self, values: Tensor) -> Tensor:
        """Values (texts, n) in the old order: each at the place of its token."""
        return torch.empty_like(values).scatter_(1, self._places, values)


def surroundings(y: Tensor, order: Order) -> list[Tensor]:
    """The context of each token, five times (texts, n, k): tokens before it, tokens after it, the mean of all others.

    y : (texts, n, k), 0 beyond the chosen tokens, as `Order.forth` gives it
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
    return [*parts, (y.sum(dim=1, keepdim=True) - y) * order.share]
