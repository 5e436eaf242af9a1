"""Features of texts, fitted on clean ones: a column a number, in named groups. Higher need not mean stranger yet.

`Features.fit` sees the fit split only. Then `adjust` (in detectors.py) takes the dependence on length off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from states import States
from torch import Tensor

WORST = 3
"""Tokens in the mean of the worst."""

NEAREST = 10
"""Neighbours in k-NN."""

RANK, PLACED = 64, (2, 3)
"""Dimensions in which a token is predicted from what stands around it, and the depths where it is."""

Table = dict[str, np.ndarray]
"""By the name of a group, (texts, columns)."""


SHRINKAGE = 0.01
"""Least share of the identity in a covariance. Of tokens there are enough; but x̂ has no part along (1, …, 1)."""


def blended(scatter: Tensor, share: float) -> Tensor:
    """(1 − α) S + α (tr S/d) I."""
    d = len(scatter)
    return (1 - share) * scatter + share * (torch.trace(scatter) / d) * torch.eye(d, dtype=scatter.dtype)


def shrunk(centred: Tensor) -> Tensor:
    """Ledoit & Wolf (2004): `blended` with α estimated, at least SHRINKAGE.

    centred : (samples, d), their mean taken off.
    """
    samples, d = centred.shape
    scatter = centred.T @ centred / samples
    level = torch.trace(scatter) / d
    spread = (scatter - level * torch.eye(d, dtype=scatter.dtype)).square().sum()
    # One column has no spread, and nothing to be shrunk towards but itself.
    spread = spread.clamp_min(1e-30)
    noise = (centred.square().sum(dim=1).square().mean() - scatter.square().sum()) / samples
    return blended(scatter, min(max(float(noise / spread), SHRINKAGE), 1.0))


def whitening(covariance: Tensor) -> Tensor:
    """W with W C Wᵀ = I, (d, d), upper triangular inverse Cholesky factor transposed; |W(x − μ)|² is Mahalanobis'."""
    factor = torch.linalg.cholesky(covariance.double())
    eye = torch.eye(len(covariance), dtype=torch.float64)
    return torch.linalg.solve_triangular(factor, eye, upper=False)


@dataclass(frozen=True)
class Gaussian:
    """Mahalanobis distances |W(x − μ)|²/d, or |W(y − μ − A x)|²/d where y is predicted from x."""

    white: Tensor
    offset: Tensor
    predictor: Tensor | None = None

    @classmethod
    def of(cls, y: Tensor) -> Gaussian:
        """Fitted on rows y (samples, d), for few of them: the share of the identity is estimated."""
        y = y.double()
        mean = y.mean(dim=0)
        white = whitening(shrunk(y - mean))
        return cls(white.float(), (white @ mean).float())

    @classmethod
    def of_many(cls, y: Tensor, x: Tensor | None = None) -> Gaussian:
        """Fitted on rows y (samples, d), given rows x (samples, k) by a ridge regression if there are such."""
        mean_y = y.mean(dim=0)
        y = y - mean_y
        scatter = (y.T @ y).double() / len(y)
        if x is None:
            white = whitening(blended(scatter, SHRINKAGE))
            return cls(white.float(), (white @ mean_y.double()).float())
        mean_x = x.mean(dim=0)
        x = x - mean_x
        cross = (x.T @ y).double() / len(y)
        a = torch.linalg.solve(blended((x.T @ x).double() / len(x), SHRINKAGE), cross).T
        # The scatter of y − A x, from moments: A need not be the exact least-squares one.
        part = a @ cross
        rest = scatter - part - part.T + a @ ((x.T @ x).double() / len(x)) @ a.T
        white = whitening(blended(rest, SHRINKAGE))
        offset = white @ (mean_y.double() - a @ mean_x.double())
        return cls(white.float(), offset.float(), (white @ a).float())

    def __call__(self, y: Tensor, x: Tensor | None = None) -> np.ndarray:
        """(samples,)"""
        residual = y @ self.white.T - self.offset
        if self.predictor is not None:
            assert x is not None
            residual -= x @ self.predictor.T
        return (residual.square().mean(dim=1)).numpy()


def over_texts(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Mean, and mean of the worst three, of the tokens of each text: (texts, 2)."""
    found = np.empty((len(starts) - 1, 2))
    for text in range(len(starts) - 1):
        own = values[starts[text] : starts[text + 1]]
        found[text] = own.mean(), np.sort(own)[-WORST:].mean()
    return found


def pooled(states: States, depth: int) -> Tensor:
    """The mean of x̂ over the tokens of each text, (texts, d)."""
    sums = np.add.reduceat(states.tokens[:, depth].astype(np.float32), states.starts[:-1], axis=0)
    return torch.from_numpy(sums / states.lengths[:, None].astype(np.float32))


def at(states: States, depth: int) -> Tensor:
    return torch.from_numpy(states.tokens[:, depth].astype(np.float32))


def surroundings(y: Tensor, starts: np.ndarray) -> Tensor:
    """What stands around each token: the two before it, the two after it (0 beyond the ends), the mean of all others.

    y : (T, k), the tokens of all texts one after another; the result is (T, 5k).
    """
    lengths = np.diff(starts)
    text = np.repeat(np.arange(len(lengths)), lengths)
    parts = []
    for step in (-2, -1, 1, 2):
        place = np.arange(len(y)) + step
        inside = (place >= 0) & (place < len(y))
        inside[inside] &= text[place[inside]] == text[inside]
        there = torch.from_numpy(np.flatnonzero(inside))
        part = torch.zeros_like(y)
        part[there] = y[there + step]
        parts.append(part)
    of_text = torch.from_numpy(text)
    sums = torch.zeros(len(lengths), y.shape[1]).index_add_(0, of_text, y)
    others = torch.from_numpy(lengths - 1).clamp_min(1).float()[of_text].unsqueeze(1)
    return torch.cat([*parts, (sums[of_text] - y) / others], dim=1)


@dataclass(frozen=True)
class Surprise:
    """How much stranger a token is in its place than anywhere: minus the pointwise mutual information, to a constant.

    With y = Pᵀ(x̂ − μ) of k principal directions and c what stands around it (`surroundings`), both Gaussian:
    s = (|W_c(y − A c)|² − |W y|²)/k. Words that are rare everywhere give nothing; words out of place do.
    """

    basis: Tensor
    mean: Tensor
    alone: Gaussian
    placed: Gaussian

    @classmethod
    def of(cls, x: Tensor, starts: np.ndarray, rank: int = RANK) -> Surprise:
        basis, mean = principal(x, rank), x.mean(dim=0)
        y = (x - mean) @ basis
        return cls(basis, mean, Gaussian.of_many(y), Gaussian.of_many(y, surroundings(y, starts)))

    def __call__(self, x: Tensor, starts: np.ndarray) -> np.ndarray:
        y = (x - self.mean) @ self.basis
        return self.placed(y, surroundings(y, starts)) - self.alone(y)


def principal(x: Tensor, rank: int) -> Tensor:
    """The first principal directions of rows x, (d, rank)."""
    x = x - x.mean(dim=0)
    return torch.linalg.eigh((x.T @ x).double()).eigenvectors[:, -rank:].float()


class Features:
    """All features of the exploration, fitted on a split of clean texts; each part at its first use."""

    def __init__(self, fit: States, subspaces: Callable[[], dict[str, list[Tensor]]]) -> None:
        self.fit = fit
        self.depths = range(fit.tokens.shape[1])
        self._subspaces = subspaces

    @cached_property
    def rarity(self) -> np.ndarray:
        """−log of each token's share; one more than seen, as if every token of the vocabulary had come once."""
        counts = np.bincount(self.fit.ids, minlength=2**15).astype(np.float64)
        found: np.ndarray = -np.log((counts + 1) / (counts.sum() + len(counts)))
        return found

    @cached_property
    def token(self) -> list[Gaussian]:
        return [Gaussian.of_many(at(self.fit, depth)) for depth in self.depths]

    @cached_property
    def step(self) -> list[Gaussian]:
        return [Gaussian.of_many(at(self.fit, depth), at(self.fit, depth - 1)) for depth in self.depths[1:]]

    @cached_property
    def surprise(self) -> list[Surprise]:
        return [Surprise.of(at(self.fit, depth), self.fit.starts) for depth in PLACED]

    @cached_property
    def pool(self) -> list[Gaussian]:
        return [Gaussian.of(pooled(self.fit, depth)) for depth in self.depths]

    @cached_property
    def layer_mean(self) -> Gaussian:
        return Gaussian.of(torch.stack([pooled(self.fit, depth) for depth in self.depths]).mean(dim=0))

    @cached_property
    def embedding(self) -> Gaussian:
        return Gaussian.of(torch.from_numpy(self.fit.embeddings))

    @cached_property
    def subspaces(self) -> dict[str, list[tuple[Tensor, Gaussian]]]:
        return {
            name: [(b, Gaussian.of_many(at(self.fit, depth) @ b)) for depth, b in enumerate(bases)]
            for name, bases in self._subspaces().items()
        }

    def group(self, name: str, states: States) -> np.ndarray:
        """The columns of a group, (texts, columns)."""
        return GROUPS[name](self, states)

    def count(self, states: States) -> np.ndarray:
        return np.log(states.lengths)[:, None].astype(np.float64)

    def unigram(self, states: States) -> np.ndarray:
        return over_texts(self.rarity[states.ids], states.starts)

    def concentration(self, states: States) -> np.ndarray:
        gap = states.heads[:, 1].mean(axis=-1)
        return np.concatenate([states.clouds.reshape(len(states), -1), states.layers[:, 0], gap], axis=1)

    def adjacent(self, states: States) -> np.ndarray:
        """Mean of ⟨x̂_i, x̂_{i+1}⟩ less the mean of ⟨x̂_i, x̂_j⟩ over all pairs, at each depth."""
        columns = []
        inner = np.ones(len(states.ids), dtype=bool)
        inner[states.starts[1:] - 1] = False
        for depth in self.depths:
            x = at(states, depth)
            cosine = np.zeros(len(x))
            cosine[:-1] = (x[:-1] * x[1:]).sum(dim=1).numpy()
            sums = np.add.reduceat(cosine * inner, states.starts[:-1])
            columns.append(sums / np.maximum(states.lengths - 1, 1) - states.clouds[:, 0, depth])
        return np.stack(columns, axis=1)

    def tokens(self, states: States) -> np.ndarray:
        columns = [over_texts(self.token[depth](at(states, depth)), states.starts) for depth in self.depths]
        return np.concatenate(columns, axis=1)

    def steps(self, states: States) -> np.ndarray:
        columns = [
            over_texts(self.step[depth - 1](at(states, depth), at(states, depth - 1)), states.starts)
            for depth in self.depths[1:]
        ]
        return np.concatenate(columns, axis=1)

    def surprises(self, states: States) -> np.ndarray:
        columns = [
            over_texts(found(at(states, depth), states.starts), states.starts)
            for depth, found in zip(PLACED, self.surprise, strict=True)
        ]
        return np.concatenate(columns, axis=1)

    def pools(self, states: States) -> np.ndarray:
        return np.stack([self.pool[depth](pooled(states, depth)) for depth in self.depths], axis=1)

    def layer_means(self, states: States) -> np.ndarray:
        mean = torch.stack([pooled(states, depth) for depth in self.depths]).mean(dim=0)
        return self.layer_mean(mean)[:, None]

    def embeddings(self, states: States) -> np.ndarray:
        return self.embedding(torch.from_numpy(states.embeddings))[:, None]

    def nearest(self, states: States) -> np.ndarray:
        """1 − the mean cosine to the nearest texts of the fit split."""
        cosines = torch.from_numpy(states.embeddings) @ torch.from_numpy(self.fit.embeddings).T
        found: np.ndarray = 1 - cosines.topk(NEAREST, dim=1).values.mean(dim=1).double().numpy()[:, None]
        return found

    def inside(self, name: str, states: States) -> np.ndarray:
        """Token Mahalanobis within subspaces of the layers' inputs."""
        parts = self.subspaces[name]
        columns = [over_texts(g(at(states, depth) @ b), states.starts) for depth, (b, g) in enumerate(parts)]
        return np.concatenate(columns, axis=1)


GROUPS: dict[str, Callable[[Features, States], np.ndarray]] = {
    "token count": Features.count,
    "unigram rarity": Features.unigram,
    "concentration": Features.concentration,
    "attention entropy": lambda _, states: states.heads[:, 0].mean(axis=-1),
    "entropy of heads": lambda _, states: states.heads[:, 0].reshape(len(states), -1),
    "logit gap of heads": lambda _, states: states.heads[:, 1].reshape(len(states), -1),
    "adjacent cosine": Features.adjacent,
    "token Mahalanobis": Features.tokens,
    "step Mahalanobis": Features.steps,
    "place surprise": Features.surprises,
    "pooled Mahalanobis": Features.pools,
    "layer-mean Mahalanobis": Features.layer_means,
    "embedding Mahalanobis": Features.embeddings,
    "pooled k-NN": Features.nearest,
    "token Mahalanobis in E": lambda features, states: features.inside("E", states),
    "token Mahalanobis in random": lambda features, states: features.inside("random", states),
    "token Mahalanobis in PCA": lambda features, states: features.inside("PCA", states),
}
"""What there is to detect with, by name."""
