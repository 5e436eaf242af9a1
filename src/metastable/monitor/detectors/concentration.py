"""Concentration: how a text's cloud of tokens contracts over the layers."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Leading, Reading, Unfitted, Values

# Chosen tokens of a text that are looked at. The cost of all pairs grows with the square of this number.
LEADING = 128
# What is computed from the cosines at each depth, in the order of the columns.
PAIRS = ("mean_cosine", "mean_square_cosine", "nearest", "three_nearest", "neighbours", "next_neighbours")


class Concentration(Unfitted):
    """Cosines between a text's tokens at each depth, and how far the tokens move in each layer.

    With G_ij = ⟨x̂_i, x̂_j⟩ over the first m ≤ 128 chosen tokens of a text, at each depth:

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


class _Course(Reading):
    def __init__(self, columns: tuple[Column, ...], passage: Passage) -> None:
        self._columns, self._passage = columns, passage
        self._leading = Leading(passage, LEADING)
        self._found: dict[Column, Tensor] = {}
        self._before: tuple[int, Tensor] | None = None

    def visit(self, depth: Depth) -> None:
        leading = self._leading
        unit = leading.filled(depth.lens.of_view(leading.forth(depth.v)))
        for name, value in zip(PAIRS, pair_statistics(unit, leading), strict=True):
            self._found[Column(name, depth.index)] = value
        if self._before is not None and self._before[0] == depth.index - 1:
            moved = torch.linalg.vector_norm(self._before[1].sub_(unit), dim=-1).sum(dim=1)
            self._found[Column("update_length", depth.index, depth.index - 1)] = moved / leading.count.clamp_min(1)
        self._before = depth.index, unit

    def values(self) -> Values:
        none = torch.zeros(len(self._passage.ids), dtype=torch.float32, device=self._passage.ids.device)
        columns = torch.stack([self._found.get(column, none) for column in self._columns], dim=1)
        return Values(torch.where(self._passage.counts.unsqueeze(1) > 0, columns, 0.0).double())


def pair_statistics(unit: Tensor, leading: Leading) -> list[Tensor]:
    """The statistics `PAIRS` of each text, (texts,) each.

    unit : (texts, n, d), the tokens of each text and then zeros, as `leading` says
    """
    n, m, there = unit.shape[1], leading.count, leading.there
    gram = torch.bmm(unit, unit.transpose(1, 2))
    own = gram.diagonal(dim1=1, dim2=2)
    pairs = (m * (m - 1)).clamp_min(1)
    means = [(gram.sum(dim=(1, 2)) - own.sum(dim=1)) / pairs]
    means.append((gram.square().sum(dim=(1, 2)) - own.square().sum(dim=1)) / pairs)
    # Rows beyond the text are 0, so that they add nothing.
    along = [gram.diagonal(step, dim1=1, dim2=2).sum(dim=1) for step in (1, 2)]
    own.fill_(-torch.inf)
    if not leading.full:
        gram.masked_fill_(~there.unsqueeze(1), -torch.inf)
    nearest = gram.amax(dim=2)
    means.append(torch.where(there, nearest, 0.0).sum(dim=1) / m.clamp_min(1))
    highest = torch.where(there, nearest, -torch.inf).topk(min(3, n), dim=1).values
    among = torch.arange(highest.shape[1], device=unit.device) < m.unsqueeze(1)
    means.append(torch.where(among, highest, 0.0).sum(dim=1) / m.clamp(1, 3))
    for step, total in enumerate(along, start=1):
        means.append(torch.where(m > step, total / (m - step).clamp_min(1), 1.0))
    return [torch.where(m > 1, mean, 1.0) for mean in means]
