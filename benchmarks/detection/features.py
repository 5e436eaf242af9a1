"""Features of texts, fitted on clean ones: a column a number, in named groups. Higher need not mean stranger yet.

`Features.fit` sees the fit split only. Then `adjust` (in detectors.py) takes the dependence on length off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from states import States
from torch import Tensor

WORST = 3
"""Tokens in the mean of the worst."""

NEAREST = 10
"""Neighbours in k-NN."""

RANK = 64
"""Dimensions in which a token is predicted from its neighbours in the text."""

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


def neighbours(x: Tensor, starts: np.ndarray) -> Tensor:
    """Each token's left and right neighbour side by side, 0 where there is none, (T, 2k)."""
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    left[1:], right[:-1] = x[:-1], x[1:]
    left[torch.from_numpy(starts[:-1])] = 0
    right[torch.from_numpy(starts[1:] - 1)] = 0
    return torch.cat([left, right], dim=1)


class Features:
    """All features of the exploration, fitted on a split of clean texts."""

    def __init__(self, fit: States, subspaces: dict[str, list[Tensor]] | None = None) -> None:
        self.depths = range(fit.tokens.shape[1])
        counts = np.bincount(fit.ids, minlength=2**15).astype(np.float64)
        # One more than seen, as if every token of the vocabulary had come once.
        self.rarity = -np.log((counts + 1) / (counts.sum() + len(counts)))
        self.token = [Gaussian.of_many(at(fit, depth)) for depth in self.depths]
        self.step = [Gaussian.of_many(at(fit, depth), at(fit, depth - 1)) for depth in self.depths[1:]]
        self.bases = [self.principal(at(fit, depth), RANK) for depth in self.depths]
        self.between = []
        for depth in self.depths:
            x = at(fit, depth) @ self.bases[depth]
            self.between.append(Gaussian.of_many(x, neighbours(x, fit.starts)))
        pools = [pooled(fit, depth) for depth in self.depths]
        self.pool = [Gaussian.of(x) for x in pools]
        self.layer_mean = Gaussian.of(torch.stack(pools).mean(dim=0))
        self.embedding = Gaussian.of(torch.from_numpy(fit.embeddings))
        self.known = torch.from_numpy(fit.embeddings)
        self.subspaces: dict[str, list[tuple[Tensor, Gaussian]]] = {}
        for name, bases in (subspaces or {}).items():
            self.subspaces[name] = [(b, Gaussian.of_many(at(fit, depth) @ b)) for depth, b in enumerate(bases)]

    @staticmethod
    def principal(x: Tensor, rank: int) -> Tensor:
        """The first principal directions, (d, rank)."""
        x = x - x.mean(dim=0)
        return torch.linalg.eigh((x.T @ x).double()).eigenvectors[:, -rank:].float()

    def groups(self, states: States) -> Table:
        """Every group's columns."""
        found: dict[str, Callable[[], np.ndarray]] = {
            "token count": lambda: np.log(states.lengths)[:, None].astype(np.float64),
            "unigram rarity": lambda: over_texts(self.rarity[states.ids], states.starts),
            "concentration": lambda: self._concentration(states),
            "attention entropy": lambda: states.heads[:, 0].mean(axis=-1),
            "entropy of heads": lambda: states.heads[:, 0].reshape(len(states), -1),
            "logit gap of heads": lambda: states.heads[:, 1].reshape(len(states), -1),
            "adjacent cosine": lambda: self._adjacent(states),
            "token Mahalanobis": lambda: self._tokens(states),
            "step Mahalanobis": lambda: self._steps(states),
            "neighbour Mahalanobis": lambda: self._between(states),
            "pooled Mahalanobis": lambda: self._pooled(states),
            "layer-mean Mahalanobis": lambda: self._layer_mean(states),
            "embedding Mahalanobis": lambda: self.embedding(torch.from_numpy(states.embeddings))[:, None],
            "pooled k-NN": lambda: self._nearest(states),
        }
        table = {name: make() for name, make in found.items()}
        for name, parts in self.subspaces.items():
            columns = [over_texts(g(at(states, depth) @ b), states.starts) for depth, (b, g) in enumerate(parts)]
            table[f"token Mahalanobis in {name}"] = np.concatenate(columns, axis=1)
        return table

    def _concentration(self, states: States) -> np.ndarray:
        gap = states.heads[:, 1].mean(axis=-1)
        parts = [states.clouds.reshape(len(states), -1), states.layers[:, 0], gap]
        return np.concatenate(parts, axis=1)

    def _adjacent(self, states: States) -> np.ndarray:
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

    def _tokens(self, states: States) -> np.ndarray:
        columns = [over_texts(self.token[depth](at(states, depth)), states.starts) for depth in self.depths]
        return np.concatenate(columns, axis=1)

    def _steps(self, states: States) -> np.ndarray:
        columns = [
            over_texts(self.step[depth - 1](at(states, depth), at(states, depth - 1)), states.starts)
            for depth in self.depths[1:]
        ]
        return np.concatenate(columns, axis=1)

    def _between(self, states: States) -> np.ndarray:
        columns = []
        for depth in self.depths:
            x = at(states, depth) @ self.bases[depth]
            columns.append(over_texts(self.between[depth](x, neighbours(x, states.starts)), states.starts))
        return np.concatenate(columns, axis=1)

    def _pooled(self, states: States) -> np.ndarray:
        return np.stack([self.pool[depth](pooled(states, depth)) for depth in self.depths], axis=1)

    def _layer_mean(self, states: States) -> np.ndarray:
        mean = torch.stack([pooled(states, depth) for depth in self.depths]).mean(dim=0)
        return self.layer_mean(mean)[:, None]

    def _nearest(self, states: States) -> np.ndarray:
        """1 − the mean cosine to the nearest texts of the fit split."""
        cosines = torch.from_numpy(states.embeddings) @ self.known.T
        return 1 - cosines.topk(NEAREST, dim=1).values.mean(dim=1).double().numpy()[:, None]
