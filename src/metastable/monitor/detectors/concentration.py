"""Concentration: how a text's cloud of tokens contracts over the layers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Leading, Reading, Unfitted, Values

# Chosen tokens of a text that are looked at. The cost of all pairs grows with the square of this number.
LEADING = 128
# What is computed from the cosines at each depth, in the order of the columns.
PAIRS = ("mean_cosine", "mean_square_cosine", "nearest", "three_nearest", "neighbours", "next_neighbours")
# Pairs of tokens of a passage that are kept until the pass ends: 32 MiB. One call for all depths is much quicker than
# one for each if texts are short.
KEPT = 2**23


class Concentration(Unfitted):
    """Cosines between a text's tokens at each depth, and how far the tokens move in each layer.

    With the cosines G_ij = 1 − ½|x̂_i − x̂_j|² over the first m ≤ 128 chosen tokens of a text, at each depth:

        mean_cosine            mean of G_ij over pairs i ≠ j
        mean_square_cosine     mean of G_ij² over the same pairs
        nearest                mean over i of max_{j≠i} G_ij
        three_nearest          mean of the three largest of these maxima
        neighbours             mean of G_{i,i+1}
        next_neighbours        mean of G_{i,i+2}

    and in each layer the mean of |x̂_i' − x̂_i|, x̂' the token after the layer. The theory (Alcalde, Bungert, Riedl,
    Roith, "Quantifying concentration phenomena of mean-field transformers in the low-temperature regime", 2026) is
    about the course of such numbers over depth: clean texts follow one course, and others may leave it on either side.
    A text of one token is a cloud in one point, where all cosines are 1.
    """

    name = "concentration"
    words = "its tokens concentrate over the layers otherwise than those of the clean texts"
    two_sided = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        layers = len(encoder.anatomy.layers)
        self.depths = tuple(range(layers + 1))
        moves = tuple(Column("update_length", depth, depth - 1) for depth in range(1, layers + 1))
        self.columns = (*(Column(name, depth) for depth in self.depths for name in PAIRS), *moves)

    def open(self, passage: Passage) -> Reading:
        return _Course(self.columns, passage)


class _Cloud(NamedTuple):
    """The tokens at a depth, (texts, n, d), minus their centre, (texts, d)."""

    depth: int
    x: Tensor
    centre: Tensor


class _Course(Reading):
    def __init__(self, columns: tuple[Column, ...], passage: Passage) -> None:
        self._columns, self._passage = columns, passage
        self._leading = Leading(passage, LEADING)
        self._found: dict[Column, Tensor] = {}
        self._apart: dict[int, Tensor] = {}
        self._before: _Cloud | None = None

    def visit(self, depth: Depth) -> None:
        leading = self._leading
        # Cosines of tokens are differences from 1 of products. Taken about the mean token, they do not cancel.
        centre = depth.lens.of_view(depth.mean)
        x = leading.filled(
            torch.addcmul(
                depth.lens.shift.to(centre) - centre.unsqueeze(1), depth.lens.scale.to(centre), leading.forth(depth.v)
            )
        )
        self._apart[depth.index] = half_squares(x)
        if (len(self._apart) + 1) * self._apart[depth.index].numel() > KEPT:
            self._look_at_pairs()
        if self._before is not None and self._before.depth == depth.index - 1:
            moved = self._before.x.sub_(x).add_((self._before.centre - centre).unsqueeze(1))
            length = torch.where(leading.there, torch.linalg.vector_norm(moved, dim=-1), 0.0).sum(dim=1)
            self._found[Column("update_length", depth.index, depth.index - 1)] = length / leading.count.clamp_min(1)
        self._before = _Cloud(depth.index, x, centre)

    def _look_at_pairs(self) -> None:
        """Compute the statistics of all depths whose pairs are kept."""
        if self._apart:
            found = pair_statistics(torch.stack([*self._apart.values()]), self._leading)
            for place, depth in enumerate(self._apart):
                self._found |= {Column(name, depth): own[place] for name, own in zip(PAIRS, found, strict=True)}
            self._apart.clear()

    def values(self) -> Values:
        self._look_at_pairs()
        none = torch.zeros(len(self._passage.ids), dtype=torch.float64, device=self._passage.ids.device)
        columns = torch.stack([self._found.get(column, none).double() for column in self._columns], dim=1)
        return Values(torch.where(self._passage.counts.unsqueeze(1) > 0, columns, 0.0))


def half_squares(x: Tensor) -> Tensor:
    """D_ij = 1 − G_ij = ½|x_i − x_j|² of the tokens (texts, n, d) of each text minus any common vector."""
    half = 0.5 * torch.linalg.vecdot(x, x)
    return torch.baddbmm(half.unsqueeze(2) + half.unsqueeze(1), x, x.transpose(1, 2), alpha=-1)


def pair_statistics(apart: Tensor, leading: Leading) -> list[Tensor]:
    """The statistics `PAIRS` of each text, (…, texts) of float64 each, from D_ij = 1 − G_ij.

    apart : (…, texts, n, n), D of the tokens that `leading` is about. It is changed.
    """
    n, m, there = apart.shape[-1], leading.count, leading.there
    own = apart.diagonal(dim1=-2, dim2=-1)
    own.zero_()
    if not leading.full:
        apart.masked_fill_(~(there.unsqueeze(1) & there.unsqueeze(2)), 0.0)
    pairs = (m * (m - 1)).clamp_min(1)
    mean = apart.sum(dim=(-2, -1)).double() / pairs
    square = torch.linalg.vector_norm(apart, dim=(-2, -1)).double().square() / pairs
    along = [apart.diagonal(step, dim1=-2, dim2=-1).sum(dim=-1) for step in (1, 2)]
    own.fill_(torch.inf)
    if not leading.full:
        apart.masked_fill_(~there.unsqueeze(1), torch.inf)
    nearest = apart.amin(dim=-1)
    means = [mean, 2 * mean - square, torch.where(there, nearest, 0.0).sum(dim=-1) / m.clamp_min(1)]
    highest = torch.where(there, nearest, torch.inf).topk(min(3, n), dim=-1, largest=False).values
    among = torch.arange(highest.shape[-1], device=apart.device) < m.unsqueeze(1)
    means.append(torch.where(among, highest, 0.0).sum(dim=-1) / m.clamp(1, 3))
    for step, total in enumerate(along, start=1):
        means.append(torch.where(m > step, total / (m - step).clamp_min(1), 0.0))
    return [1 - torch.where(m > 1, found.double(), 0.0) for found in means]
