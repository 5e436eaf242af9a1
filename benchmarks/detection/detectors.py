"""Detectors that the library's settings do not use, for comparison with those that they do.

Five simple ones from the literature, and two controls that every detector has to beat: the number of tokens and the
rarity of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from metastable.encoder.anatomy import Anatomy, AttentionLayer
from metastable.encoder.hooks import Attended, Depth, Passage, Tokens, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.measure import HeadLens
from metastable.encoder.statistics import CLOUD, Sample, cloud
from metastable.errors import BadInput
from metastable.monitor import detectors as library
from metastable.monitor.detectors.base import (
    Column,
    Detector,
    Gathering,
    Reading,
    Values,
    gaussian,
    mean_over,
    over_tokens,
    squares,
)
from metastable.monitor.length_adjustment import Adjustment
from metastable.monitor.moments import Moments, blended, whitening
from metastable.monitor.scoring import Member

# Neighbours whose distances `PooledKNN` averages.
NEAREST = 10
# Most clean texts that `PooledKNN` keeps: 30 MB for 384 features.
KNOWN = 20_000
# A cloud in one point, for texts with one token, where a mean over pairs has nothing to average.
ONE_TOKEN = {"mean_cosine": 1.0, "mean_square_cosine": 1.0, "effective_rank": 1.0, "dispersion": 0.0, "energy": 0.0}


def need_some(count: int, what: str) -> None:
    """Refuse to settle on nothing."""
    if count == 0:
        raise BadInput(f"the detector has learned from 0 {what}; give texts with words in them")


class Unfitted(Detector):
    """A detector that learns nothing. In two-sided ones, too small is as anomalous as too large."""

    stages = 0
    two_sided: ClassVar[bool] = True

    def learn(self, stage: int, passage: Passage) -> Watch:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def settle(self, stage: int) -> None:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}


class LayerMeanMahalanobis(Detector):
    """|W(x̄ − μ)|²/d, x̄ the mean of x̂ over the chosen tokens of a text and over all depths 0, …, L.

    Averaging over layers before the distance is taken is from Colombo, Dadalto, Staerman, Noiry, Piantanida, "Beyond
    Mahalanobis distance for textual OOD detection", NeurIPS 2022, who use another distance than this one. The
    covariance is shrunk as Ledoit and Wolf estimate.
    """

    name = "layer-mean-mahalanobis"
    words = "on average over its words and the layers it is unlike the clean texts"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.depths = tuple(range(len(encoder.anatomy.layers) + 1))
        self.columns = (Column("mean token", None),)
        self._moments = Moments(self._width)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return depth.lens.of_view(mean_over(depth.v, passage.chosen))[passage.counts > 0]

        return Gathering(take, lambda rows: self._moments.add(torch.stack(list(rows.values())).mean(dim=0)))

    def settle(self, stage: int) -> None:
        white, offset = gaussian(self._moments)
        self.keep({"white": white, "offset": offset})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"white": (self._width, self._width), "offset": (self._width,)}

    def open(self, passage: Passage) -> Reading:
        return _LayerMean(self.arrays_on(passage.ids.device), passage)


class _LayerMean(Reading):
    def __init__(self, arrays: dict[str, Tensor], passage: Passage) -> None:
        self._arrays, self._passage = arrays, passage
        self._means: list[Tensor] = []

    def visit(self, depth: Depth) -> None:
        self._means.append(depth.lens.of_view(mean_over(depth.v, self._passage.chosen)))

    def values(self) -> Values:
        if not self._means:
            return Values(torch.zeros(len(self._passage.ids), 1, dtype=torch.float64))
        mean = torch.stack(self._means).mean(dim=0)
        found = squares(self._arrays["white"], self._arrays["offset"], mean, self._passage)
        return Values(found.double().unsqueeze(1))


class PooledKNN(Detector):
    """1 − the mean cosine of a text's sentence embedding to the ten nearest ones of clean texts.

    Sun, Ming, Zhu, Li, "Out-of-distribution detection with deep nearest neighbors", ICML 2022, who take the distance to
    the k-th neighbour on the unit sphere. The embedding is the mean of the last hidden state over all tokens, special
    ones too, as most sentence encoders make it. Of more than 20 000 clean texts a uniform sample is kept.
    """

    name = "pooled-knn"
    words = "none of the clean texts is near to it in meaning"

    def __init__(self, encoder: Encoder, known: int = KNOWN) -> None:
        super().__init__(encoder)
        self.depths = (len(encoder.anatomy.layers),)
        self.columns = (Column("nearest texts", self.depths[0]),)
        self._sample = Sample(known, self._width)

    def learn(self, stage: int, passage: Passage) -> Watch:
        def give(rows: dict[int, Tensor]) -> None:
            self._sample.add(rows[self.depths[0]][passage.counts > 0])

        return Gathering(embedding, give)

    def settle(self, stage: int) -> None:
        need_some(self._sample.seen, "texts")
        self.keep({"known": self._sample.rows})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"known": (-1, self._width)}

    def open(self, passage: Passage) -> Reading:
        return _Nearest(self.arrays_on(passage.ids.device)["known"], passage)


def embedding(depth: Depth) -> Tensor:
    """Sentence embeddings on the unit sphere, (texts, d), from the last depth."""
    return torch.nn.functional.normalize(mean_over(depth.x, depth.passage.mask), dim=-1)


class _Nearest(Reading):
    def __init__(self, known: Tensor, passage: Passage) -> None:
        self._known, self._passage = known, passage
        self._found = torch.zeros(len(passage.ids), 1, device=passage.ids.device)

    def visit(self, depth: Depth) -> None:
        cosines = embedding(depth) @ self._known.T
        nearest = cosines.topk(min(NEAREST, cosines.shape[1]), dim=1).values
        self._found = torch.where(self._passage.counts > 0, 1 - nearest.mean(dim=1), 0.0).unsqueeze(1)

    def values(self) -> Values:
        return Values(self._found.double())


class Heads:
    """The heads of an encoder as the audit measures them, prepared at first use."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    @cached_property
    def lenses(self) -> list[HeadLens]:
        return [HeadLens(layer) for layer in self.anatomy.layers]

    def betas(self) -> list[float]:
        """At depths 0, …, L: the median effective β of the layer's heads; at depth L that of the last layer."""
        found = [lens.beta for lens in self.lenses]
        return [*found, found[-1]]


class HeadReading:
    """Statistics of layers and heads, each at the depth after the layer; see `HeadLens.measure`."""

    def __init__(self, heads: Heads, passage: Passage) -> None:
        self._heads, self._passage = heads, passage
        self._before: tuple[int, Tokens] | None = None

    def visit(self, depth: Depth) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Statistics of the layer before this depth, (texts,), and of its heads, (texts, heads); None at depth 0."""
        before, self._before = self._before, (depth.index, depth.tokens)
        if before is None or before[0] != depth.index - 1:
            return None
        mask, chosen, lens = self._passage.mask, self._passage.chosen, self._heads.lenses[before[0]]
        attended = _attended(lens.layer, before[1].z, mask)
        return lens.measure(before[1], attended, depth.tokens, mask, mask & ~chosen, chosen)


def _attended(layer: AttentionLayer, z: Tensor, mask: Tensor) -> Attended:
    """What the attention of a layer computes from the standardised tokens z, (texts, n, d)."""
    x = z if layer.norm is None else torch.addcmul(layer.norm.offset.to(z), layer.norm.gain.to(z), z)
    q, k, v = (rows(x) for rows in (layer.query, layer.key, layer.value))
    scores = layer.scale * q @ k.transpose(-1, -2) if layer.scores is None else layer.scores(q, k)
    scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    query, key, mean = (part.transpose(1, 2).flatten(2) for part in (q, k, scores.softmax(dim=-1) @ v))
    update = torch.nn.functional.linear(mean, layer.output.transpose(0, 1).flatten(1), layer.output_bias)
    return Attended(query, key, mean, update)


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

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        layers = [layer.index for layer in encoder.anatomy.layers]
        self._heads = Heads(encoder.anatomy)
        self.depths = (*layers, len(layers))
        of_layers = [Column(name, layer) for name in ("update_length", "logit_gap") for layer in layers]
        self.columns = (*(Column(name, depth) for name in CLOUD for depth in self.depths), *of_layers)

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


class AttentionEntropy(Unfitted):
    """−Σ_j a_ij log a_ij / log(keys), averaged over the chosen tokens i, of each head.

    Clark, Khandelwal, Levy, Manning, "What does BERT look at? An analysis of BERT's attention", BlackboxNLP 2019, use
    the entropy of heads to tell broad from narrow ones; here its change from clean texts is the signal. It costs about
    as much as the model's own attention.
    """

    name = "attention-entropy"
    words = "its tokens attend to more or fewer others than in the clean texts"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        layers = encoder.anatomy.layers
        self._heads = Heads(encoder.anatomy)
        self.depths = tuple(range(len(layers) + 1))
        self.columns = tuple(Column(f"head {h}", layer.index) for layer in layers for h in range(layer.heads))

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
        # Without a chosen token, or with one key, the entropy is not defined.
        return Values(torch.cat(self._found, dim=1).double().nan_to_num(nan=0.0))


class TokenCount(Unfitted):
    """log n, n the number of chosen tokens; 0 for none. A control: detectors must be better than this."""

    name = "token-count"
    words = "it is longer or shorter than the clean texts"

    depths = ()
    columns = (Column("log n", None),)

    def open(self, passage: Passage) -> Reading:
        return _Count(passage)


class _Count(Reading):
    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def visit(self, depth: Depth) -> None:
        pass

    def values(self) -> Values:
        return Values(self._passage.counts.clamp_min(1).double().log().unsqueeze(1))


class UnigramRarity(Detector):
    """−log((N_t + 1)/(N + V)) of each chosen token t; mean and worst three of each text.

    N_t of the N clean tokens are t, out of a vocabulary of V, each counted once more than it came (Laplace's rule). A
    control: detectors must be better than a table of counts.
    """

    name = "unigram-rarity"
    words = "its words are rare in the clean texts"

    depths = ()
    columns = (Column("mean", None), Column("worst three", None))

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._counts = torch.zeros(encoder.model.get_input_embeddings().num_embeddings, dtype=torch.long)

    def learn(self, stage: int, passage: Passage) -> Watch:
        return Gathering(lambda depth: depth.x, lambda rows: self._add(passage.ids[passage.chosen]))

    def _add(self, ids: Tensor) -> None:
        self._counts = self._counts + torch.bincount(ids.cpu(), minlength=len(self._counts))

    def settle(self, stage: int) -> None:
        counts = self._counts.double()
        total = counts.sum()
        need_some(int(total), "tokens")
        rarity = -((counts + 1) / (total + len(counts))).log()
        mean = (counts @ rarity) / total
        deviation = (counts @ (rarity - mean).square() / total).sqrt().clamp_min(1e-6)
        self.keep({"rarity": rarity, "typical": torch.stack([mean, deviation])})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"rarity": (len(self._counts),), "typical": (2,)}

    def open(self, passage: Passage) -> Reading:
        return _Rarity(self.arrays_on(passage.ids.device), passage)


class _Rarity(Reading):
    def __init__(self, arrays: dict[str, Tensor], passage: Passage) -> None:
        self._arrays, self._passage = arrays, passage

    def visit(self, depth: Depth) -> None:
        pass

    def values(self) -> Values:
        rarity, (mean, deviation) = self._arrays["rarity"][self._passage.ids], self._arrays["typical"]
        strange = torch.where(self._passage.chosen, (rarity - mean) / deviation, 0.0)
        return Values(over_tokens(rarity, self._passage).double(), strange)


DETECTORS: dict[str, type[Detector]] = library.DETECTORS | {
    found.name: found
    for found in (LayerMeanMahalanobis, PooledKNN, Concentration, AttentionEntropy, TokenCount, UnigramRarity)
}
"""The library's detectors and these, by name."""


@dataclass(frozen=True)
class Vector:
    """log |W(z − μ)|²/k of a vector z of k numbers, W C Wᵀ = I with C their covariance, shrunk: unusual in any way.

    C = (1 − α) S + α (tr S/k) I with Ledoit and Wolf's α: see `moments`.
    """

    white: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Vector:
        moments = Moments(z.shape[1])
        moments.add(torch.from_numpy(z))
        white = whitening(blended(moments.covariance, moments.ledoit_wolf()))
        return cls(white.numpy(), moments.mean.numpy())

    def __call__(self, z: np.ndarray) -> np.ndarray:
        square = np.square((z - self.mean) @ self.white.T).mean(axis=1)
        return np.asarray(np.log(square + 1e-9))


@dataclass(frozen=True)
class TwoSided(Member):
    """A detector's columns made one number per text by `Vector`, in place of their mean."""

    vector: Vector

    def number(self, z: np.ndarray) -> np.ndarray:
        return self.vector(z)

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        number, z = super().__call__(columns, lengths)
        return number, np.abs(z)


def member(detector: Detector, places: tuple[int, ...], columns: np.ndarray, lengths: np.ndarray) -> Member:
    """What `Scale.of` makes of a detector: two-sided where the detector is."""
    if not getattr(detector, "two_sided", False):
        return Member.of(detector, places, columns, lengths)
    first = Adjustment.of(columns[:, places], lengths)
    z = first(columns[:, places], lengths)
    vector = Vector.of(z)
    depths = tuple(detector.columns[place].depth for place in places)
    return TwoSided(detector.name, places, depths, first, Adjustment.of(vector(z)[:, None], lengths), vector)
