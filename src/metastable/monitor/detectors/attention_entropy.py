"""Attention entropy: whether the heads of a middle layer look as widely as on clean texts."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.anatomy import AttentionLayer
from metastable.encoder.hooks import Depth, Passage
from metastable.encoder.load import Encoder
from metastable.monitor.detectors.base import Column, Leading, Reading, TextReading, Unfitted

# Chosen tokens of a text whose attention is looked at.
LEADING = 128
# Scores that are computed at once, as many as a processor's cache holds with their softmax.
SCORES = 400_000
# The score of a key that is masked, or outside a local window. Its share is 0, and 0 times this score is 0.
NOWHERE = -1e30


class AttentionEntropy(Unfitted):
    """For each head h of layer L/2, over the first 128 chosen tokens i of a text:

        entropy h    mean of −Σ_j a_ij log a_ij / log(number of keys)
        words h      mean of Σ_j a_ij over chosen tokens j, the attention that does not go to special tokens

    Clark, Khandelwal, Levy, Manning, "What does BERT look at? An analysis of BERT's attention", BlackboxNLP 2019, use
    the entropy of heads to tell broad from narrow ones; here its change from clean texts is the signal. Queries and
    keys are those that the layer itself computes in the pass.
    """

    name = "attention-entropy"
    words = "its tokens attend to more or fewer others than in the clean texts"
    needs_weights = True
    reads_projections = True
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
    passage, leading = depth.passage, Leading(depth.passage, LEADING)
    q, k = _query_and_key(layer, depth)
    if layer.scores is None:
        q = layer.scale * leading.forth(q.transpose(1, 2)).transpose(1, 2)
    step = max(1, SCORES // (q.shape[1] * q.shape[2] * k.shape[2]))
    found = []
    for texts in (slice(first, first + step) for first in range(0, len(q), step)):
        if layer.scores is None:
            scores = q[texts] @ k[texts].transpose(-1, -2)
        else:
            scores = layer.scores(q[texts], k[texts]).transpose(1, 2)
            scores = leading.forth(scores, texts).transpose(1, 2).clamp_min(NOWHERE)
        if not passage.unpadded:
            scores = scores.masked_fill_(~passage.mask[texts, None, None, :], NOWHERE)
        found.append(_entropy_and_words(scores, passage.chosen[texts]))
    keys = passage.mask.sum(dim=1).clamp_min(2).to(q.dtype).log()[:, None, None]
    by_token = torch.cat(found)
    by_token[:, : layer.heads] /= keys
    mean = torch.where(leading.there.unsqueeze(1), by_token, 0.0).sum(dim=-1) / leading.count.clamp_min(1).unsqueeze(1)
    return torch.where(passage.counts.unsqueeze(1) > 0, mean, 0.0)


def _query_and_key(layer: AttentionLayer, depth: Depth) -> tuple[Tensor, Tensor]:
    """Of all heads, (texts, heads, n, width) each: as the layer computed them, or computed again."""
    if depth.projected is None:
        return layer.query(depth.x), layer.key(depth.x)
    query, key = (part.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for part in depth.projected)
    return query, key


def _entropy_and_words(scores: Tensor, chosen: Tensor) -> Tensor:
    """−Σ a log a and Σ a over the chosen keys, a = softmax(scores), of each query: (texts, 2·heads, queries).

    −Σ a log a = log Z − Σ a s with log Z = max s − log max a: no logarithm or exponential but those of the softmax.

    scores : (texts, heads, queries, keys); chosen : (texts, keys) of bool
    """
    share = scores.softmax(dim=-1)
    log_norm = scores.amax(dim=-1) - share.amax(dim=-1).log()
    entropy = log_norm - torch.linalg.vecdot(scores, share)
    return torch.cat([entropy, torch.linalg.vecdot(share, chosen.to(share.dtype)[:, None, None, :])], dim=1)
