"""How concentrated a text's tokens are, depth by depth, and how fast they move: what the theory speaks of."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import CLOUD, cloud
from metastable.monitor.detectors.attention import HeadReading, Heads
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Unfitted

ONE_TOKEN = {"mean_cosine": 1.0, "mean_square_cosine": 1.0, "effective_rank": 1.0, "dispersion": 0.0, "energy": 0.0}
"""Of a cloud in one point, for texts with one token, where a mean over pairs has nothing to average."""


class Concentration(Unfitted):
    """The five numbers of `statistics.cloud` at each depth; of each layer, update length and mean logit gap of heads.

    The idea is that of the theory (Alcalde, Bungert, Riedl, Roith, "Quantifying concentration phenomena of mean-field
    transformers in the low-temperature regime", 2026): tokens concentrate over depth in a predictable way, so clean
    texts should follow one course, and others may leave it. The energy at a depth uses the median effective β of the
    layer's heads, as the audit does. All of these depend on the number of tokens. They cost more than the other
    detectors: Gram matrices and their eigenvalues at each depth, scores in each layer.
    """

    name = "concentration"
    words = "its tokens concentrate over the layers otherwise than those of the clean texts"
    two_sided = True

    def __init__(self, encoder: Encoder) -> None:
        layers = [layer.index for layer in encoder.anatomy.layers]
        self._heads = Heads(encoder.anatomy)
        self.depths = (*layers, len(layers))
        of_layers = [Column(name, layer) for name in ("update_length", "logit_gap") for layer in layers]
        self.columns = (*(Column(name, depth) for name in CLOUD for depth in self.depths), *of_layers)

    @classmethod
    def blank(cls, encoder: Encoder) -> Concentration:
        return cls(encoder)

    def open(self, passage: Passage) -> Reading:
        return _Concentration(self.columns, self._heads, passage)


class _Concentration(Reading):
    def __init__(self, columns: tuple[Column, ...], heads: Heads, passage: Passage) -> None:
        self._columns, self._passage, self._betas = columns, passage, heads.betas()
        self._reading = HeadReading(heads, passage)
        self._found: dict[Column, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        one = self._passage.counts == 1
        for name, value in cloud(depth.tokens.unit, self._passage.chosen, self._betas[depth.index]).items():
            self._found[Column(name, depth.index)] = torch.where(one, ONE_TOKEN[name], value.double())
        found = self._reading.visit(depth)
        if found is not None:
            layer, heads = found
            self._found[Column("update_length", depth.index - 1)] = layer["update_length"]
            self._found[Column("logit_gap", depth.index - 1)] = heads["logit_gap"].mean(dim=1)

    def values(self) -> Values:
        none = torch.zeros(len(self._passage.ids), dtype=torch.float64, device=self._passage.ids.device)
        columns = torch.stack([self._found.get(column, none).double() for column in self._columns], dim=1)
        columns = torch.where(self._passage.counts.unsqueeze(1) > 0, columns, 0.0)
        return Values(columns.nan_to_num(nan=0.0))
