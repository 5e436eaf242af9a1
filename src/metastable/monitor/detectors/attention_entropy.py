"""Attention entropy: whether the heads of a middle layer look as widely as on clean texts."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.anatomy import AttentionLayer
from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Reading, TextReading, Unfitted, leading

# Chosen tokens of a text whose attention is looked at.
LEADING = 128


class AttentionEntropy(Unfitted):
    """For each head h of layer L/2, over the first 128 chosen tokens i of a text:

        entropy h    mean of −Σ_j a_ij log a_ij / log(number of keys)
        words h      mean of Σ_j a_ij over chosen tokens j, the attention that does not go to special tokens

    Clark, Khandelwal, Levy, Manning, "What does BERT look at? An analysis of BERT's attention", BlackboxNLP 2019, use
    the entropy of heads to tell broad from narrow ones; here its change from clean texts is the signal. One layer costs
    as much as its queries, keys and scores, about 3 % of a pass of six layers.
    """

    name = "attention-entropy"
    words = "its tokens attend to more or fewer others than in the clean texts"
    needs_weights = True
    two_sided = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        layers = encoder.anatomy.layers
        self._layer = layers[min(round(len(layers) / 2), len(layers) - 1)]
        self.depths = (self._layer.index,)
        names = [f"{what} {h}" for what in ("entropy", "words") for h in range(self._layer.heads)]
        self.columns = tuple(Column(name, self._layer.index) for name in names)

    def open(self, passage: Passage) -> Reading:
        return TextReading(self, passage, lambda depth: head_statistics(self._layer, depth))


def head_statistics(layer: AttentionLayer, depth: Depth) -> Tensor:
    """Entropy and attention to chosen tokens of each head, (texts, 2·heads); 0 for texts without a chosen token."""
    mask, passage = depth.passage.mask, depth.passage
    places, there = leading(passage, LEADING)
    x = torch.where(mask.unsqueeze(-1), depth.x, 0.0)
    q, k = layer.query(x), layer.key(x)
    if layer.scores is None:
        rows = q.gather(2, places[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
        scores = layer.scale * (rows @ k.transpose(-1, -2))
    else:
        scores = layer.scores(q, k)
        scores = scores.gather(2, places[:, None, :, None].expand(-1, scores.shape[1], -1, scores.shape[3]))
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    log_norm = scores.logsumexp(dim=-1)
    share = (scores - log_norm.unsqueeze(-1)).exp()
    # −Σ a log a = log Z − Σ a s; a key that is masked, or outside a local window, has a = 0 and s = −∞.
    entropy = log_norm - (share * scores.masked_fill(scores.isneginf(), 0.0)).sum(dim=-1)
    keys = mask.sum(dim=1).clamp_min(2).to(share.dtype)
    entropy = entropy / keys.log()[:, None, None]
    on_words = (share @ passage.chosen.to(share.dtype)[:, None, :, None]).squeeze(-1)
    found = torch.cat([entropy, on_words], dim=1)
    mean = torch.where(there.unsqueeze(1), found, 0.0).sum(dim=-1) / there.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.where(passage.counts.unsqueeze(1) > 0, mean, 0.0)
