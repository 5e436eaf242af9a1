"""Entropy of each head's attention."""

from __future__ import annotations

import torch

from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.attention import HeadReading, Heads
from metastable.monitor.detectors.base import Column, Reading, Values
from metastable.monitor.detectors.fitting import Unfitted


class AttentionEntropy(Unfitted):
    """−Σ_j a_ij log a_ij / log(keys), averaged over the chosen tokens i, of each head.

    Clark, Khandelwal, Levy, Manning, "What does BERT look at? An analysis of BERT's attention", BlackboxNLP 2019, use
    the entropy of heads to tell broad from narrow ones; here its change from clean texts is the signal. It costs about
    as much as the model's own attention.
    """

    name = "attention-entropy"
    words = "its tokens attend to more or fewer others than in the clean texts"
    two_sided = True

    def __init__(self, encoder: Encoder) -> None:
        layers = encoder.anatomy.layers
        self._heads = Heads(encoder.anatomy)
        self.depths = tuple(range(len(layers) + 1))
        self.columns = tuple(Column(f"head {h}", layer.index) for layer in layers for h in range(layer.heads))

    @classmethod
    def blank(cls, encoder: Encoder) -> AttentionEntropy:
        return cls(encoder)

    def open(self, passage: Passage) -> Reading:
        return _Entropy(self._heads, passage)


class _Entropy(Reading):
    def __init__(self, heads: Heads, passage: Passage) -> None:
        self._reading, self._passage = HeadReading(heads, passage), passage
        self._found = [torch.zeros(len(passage.ids), layer.heads) for layer in heads.anatomy.layers]

    def visit(self, depth: Depth) -> None:
        found = self._reading.visit(depth)
        if found is not None:
            self._found[depth.index - 1] = found[1]["entropy"].cpu()

    def values(self) -> Values:
        # Without a chosen token, or with one key, there is nothing to spread over.
        return Values(torch.cat(self._found, dim=1).double().nan_to_num(nan=0.0))
