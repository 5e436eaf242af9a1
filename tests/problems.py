"""Problems whose answer is known by construction."""

from __future__ import annotations

import math

import torch

import metastable as ms


def rotation(angle: float) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def circle_head(a: float, b: tuple[float, float], a2: float, v: tuple[float, float]) -> ms.Head:
    """B = R(a) diag(b) R(a)ᵀ and V = R(a') diag(v) R(a')ᵀ: the heads of theory's section 5."""
    R, S = rotation(a), rotation(a2)
    B = R @ torch.diag(torch.tensor(b, dtype=torch.float64)) @ R.T
    return ms.Head.from_interaction(B, S @ torch.diag(torch.tensor(v, dtype=torch.float64)) @ S.T)


def random_matrix(d: int, seed: int) -> torch.Tensor:
    return torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def head_with_generator(M: torch.Tensor, seed: int = 0) -> ms.Head:
    """A head with a random well-conditioned B and V chosen so that V Bᵀ = M."""
    d = len(M)
    B = random_matrix(d, seed) * 0.3 + 1.5 * torch.eye(d, dtype=torch.float64)
    return ms.Head.from_interaction(B, M @ torch.linalg.inv(B.T))


def prescribed(eigenvalues: list[float], dominant: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A non-normal M = X diag(λ) X⁻¹ and its oblique projector onto the first `dominant` eigenvectors."""
    d = len(eigenvalues)
    X = random_matrix(d, seed) + 2 * torch.eye(d, dtype=torch.float64)
    inverse = torch.linalg.inv(X)
    M = X @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ inverse
    return M, X[:, :dominant] @ inverse[:dominant]


def equiangular(n: int, cosine: float) -> torch.Tensor:
    """n unit vectors of dimension n with all pairwise cosines equal."""
    gram = torch.full((n, n), cosine, dtype=torch.float64) + (1 - cosine) * torch.eye(n, dtype=torch.float64)
    return torch.linalg.cholesky(gram)
