"""The Jacobian of the particle system: how the velocities of all tokens change when tokens are displaced.

Tokens x_i with weights w_i move by f_i = P_{x_i} V m_i, with m_i = Σ_j p_ij x_j, p_ij ∝ w_j e^{⟨u_i, x_j⟩} and
u_i = R x_i + βa, R = βBᵀ. Write g_i = V m_i, Σ_i = Σ_j p_ij (x_j − m_i)(x_j − m_i)ᵀ, and G_i = V Σ_i R, the derivative
of g_i in x_i. A displacement η of the tokens changes the velocities, to first order, by

    (Jη)_i = A_i η_i + P_i V Σ_j p_ij [ (x_j − m_i)⟨u_i, η_j⟩ + η_j ],      A_i = P_i G_i − ⟨g_i, x_i⟩ I − x_i g_iᵀ.

A_i is the effect of the displacement of token i itself, the sum is the effect of the displacements of the others.

If each x_j stands for a group of tokens x_j + ξ with mean ξ = 0 and mean ξξᵀ = S_j, then a displacement inside a group
obeys ξ' = A_j ξ to first order, because the others see the group's mean only. To second order the mean of group i moves
by q_i in addition, one part because the other groups are spread out and one because it is itself:

    q_i = P_i V Σ_j p_ij [ ½ (x_j − m_i)⟨u_i, S_j u_i⟩ + S_j u_i ]
        + ½ P_i V Σ_j p_ij (x_j − m_i) c_ij − tr(G_i S_i) x_i − S_i G_iᵀ x_i − S_i g_i,

    c_ij = ⟨x_j − m_i, R S_i Rᵀ (x_j − m_i)⟩.

Everything is in coordinates of the surrounding space: points of the sphere are compared with points of the sphere, and
the normal parts of η and q keep them there.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch

from metastable.head import Head

LARGEST_SPACE = 32
"""Dimension of the Krylov space at which a step of the linear equation is halved instead."""
ACCURACY = 1e-4
"""Largest relative error of a step of the linear equation."""


class Jacobian:
    """The derivatives above for tokens x (n, d) with log-weights (n,), in float64; takes O(n²) memory."""

    def __init__(self, head: Head, beta: float, x: np.ndarray, log_weights: np.ndarray) -> None:
        B, self.V = head.B.double().cpu().numpy(), head.V.double().cpu().numpy()
        a = 0.0 if head.offset is None else head.offset.double().cpu().numpy()
        self.x, self.R = x, beta * B.T
        self.u = x @ self.R.T + beta * a
        scores = self.u @ x.T + log_weights
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        self.p = p / p.sum(axis=1, keepdims=True)
        self.m = self.p @ x
        self.g = self.m @ self.V.T
        second = (self.p @ _outer(x, x).reshape(len(x), -1)).reshape(_outer(x, x).shape)
        self.covariance = second - _outer(self.m, self.m)
        self.G = self.V @ self.covariance @ self.R
        along = (self.g * x).sum(axis=1)[:, None, None] * np.eye(x.shape[1])
        self.A = self.G - x[:, :, None] * (x[:, None, :] @ self.G) - along - _outer(x, self.g)

    def __call__(self, eta: np.ndarray) -> np.ndarray:
        """Jη for displacements η (n, d)."""
        mixed = (self.p @ _outer(self.x, eta).reshape(len(eta), -1)).reshape(self.A.shape)
        mean = self.p @ eta
        others = _times(mixed, self.u) - self.m * (self.u * mean).sum(axis=1, keepdims=True) + mean
        return _times(self.A, eta) + self._tangent(others @ self.V.T)

    def spread(self, S: np.ndarray) -> np.ndarray:
        """q (n, d) for scatter matrices S (n, d, d)."""
        x, p, m = self.x, self.p, self.m
        keys, own = self._scores(S)
        turned = (p @ S.reshape(len(x), -1)).reshape(S.shape)
        weights = 0.5 * (keys + own)
        pushed = weights @ x - m * weights.sum(axis=1, keepdims=True) + _times(turned, self.u)
        pulled = (x[:, None, :] @ self.G)[:, 0] + self.g
        curved = np.einsum("nij,nji->n", self.G, S)[:, None] * x + _times(S, pulled)
        return self._tangent(pushed @ self.V.T) - curved

    def hidden(self, S: np.ndarray) -> float:
        """The largest standard deviation, over queries i, of the scores as displacements with moments S change them.

        The larger of (Σ_j p_ij ⟨u_i, S_j u_i⟩)^{1/2}, from the keys, and tr(R S_i Rᵀ Σ_i)^{1/2}, from the query itself.
        The expansion needs it to be small against 1.
        """
        return math.sqrt(max(0.0, *(float(part.sum(axis=1).max()) for part in self._scores(S))))

    def _scores(self, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p_ij ⟨u_i, S_j u_i⟩ and p_ij c_ij, (n, n)."""
        n, x, m = len(self.x), self.x, self.m
        keys = _outer(self.u, self.u).reshape(n, -1) @ S.reshape(n, -1).T
        Q = self.R @ S @ self.R.T
        own = Q.reshape(n, -1) @ _outer(x, x).reshape(n, -1).T - 2 * _times(Q, m) @ x.T
        own += (m * _times(Q, m)).sum(axis=1, keepdims=True)
        return self.p * keys, self.p * own

    def carry(self, S: np.ndarray, h: float) -> np.ndarray:
        """S after a time h under S' = A S + S Aᵀ with this A."""
        phi = torch.matrix_exp(torch.from_numpy(h * self.A)).numpy()
        return phi @ S @ phi.transpose(0, 2, 1)

    def shift(self, eta: np.ndarray, q: np.ndarray, h: float) -> np.ndarray:
        """η after a time h under η' = Jη + q with this J and q: η + h φ₁(hJ)(Jη + q), by Arnoldi's method."""
        start = self(eta) + q
        size = float(np.linalg.norm(start))
        if size == 0 or not math.isfinite(size):
            return eta + h * start
        basis = [start / size]
        space = min(start.size, LARGEST_SPACE)
        H = np.zeros((space + 1, space + 1))
        for k in range(space):
            new = self(basis[k])
            for _ in range(2):
                for i, old in enumerate(basis):
                    along = float((old * new).sum())
                    H[i, k] += along
                    new = new - along * old
            left = float(np.linalg.norm(new))
            ended = left <= 1e-12 * abs(H[: k + 1, : k + 1]).max() or k + 1 == start.size
            if ended or k % 4 == 3:
                weights = _phi1(h * H[: k + 1, : k + 1])
                if ended or h * left * abs(weights[-1]) <= ACCURACY:
                    return eta + h * size * sum(w * v for w, v in zip(weights, basis, strict=True))
            H[k + 1, k] = left
            basis.append(new / left)
        return self.shift(self.shift(eta, q, h / 2), q, h / 2)

    def _tangent(self, w: np.ndarray) -> np.ndarray:
        return w - (w * self.x).sum(axis=1, keepdims=True) * self.x


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, :, None] * b[:, None, :]


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _phi1(H: np.ndarray) -> np.ndarray:
    """φ₁(H)e₁ with φ₁(z) = (e^z − 1)/z, from one exponential of a matrix that is larger by one."""
    k = len(H)
    larger = np.zeros((k + 1, k + 1))
    larger[:k, :k] = H
    larger[0, k] = 1.0
    return np.asarray(scipy.linalg.expm(larger)[:k, k])
