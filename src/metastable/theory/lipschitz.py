"""The one-sided Lipschitz constant of the zero-temperature field on the sphere.

For 𝒱_∞(x) = P_x F(x) with F(x) = Mx/s and s = |Bᵀx|, the covariant derivative on the tangent space at x is

    A(x) = P_x DF(x) P_x − ⟨F(x), x⟩ P_x,     DF(x) = M/s − Mx (BBᵀx)ᵀ/s³,

and L = max over the sphere of the largest eigenvalue of (A + Aᵀ)/2. Two zero-temperature flows then separate
at most like e^{Lt} in geodesic distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLES = 4096
"""Random points that are tried first."""
STARTS = 24
"""The best points, from which gradient ascent starts."""
ITERATIONS = 60
"""Steps of the ascent."""


def symmetric_derivative(B: Tensor, M: Tensor, x: Tensor) -> Tensor:
    """λ_max of the symmetric part of A(x) on the tangent space, for unit rows x of (n, d): (n,)."""
    d = x.shape[1]
    u = x @ B
    s = torch.linalg.vector_norm(u, dim=1).view(-1, 1, 1)
    Mx, BBx = x @ M.T, u @ B.T
    DF = M / s - Mx.unsqueeze(2) * BBx.unsqueeze(1) / s**3
    xx = x.unsqueeze(2) * x.unsqueeze(1)
    P = torch.eye(d, dtype=x.dtype) - xx
    A = P @ DF @ P - ((Mx * x).sum(1).view(-1, 1, 1) / s) * P
    symmetric = 0.5 * (A + A.transpose(1, 2))
    # x itself is an eigenvector with eigenvalue 0; pushing it far down leaves the tangent space's own maximum.
    floor = symmetric.detach().abs().sum(dim=(1, 2)).view(-1, 1, 1) + 1
    return torch.linalg.eigvalsh(symmetric - floor * xx)[:, -1]


def one_sided_lipschitz(B: Tensor, M: Tensor, seed: int = 0) -> float:
    """L for invertible B, found from many starts by gradient ascent: a lower bound that is sharp in practice.

    The maximum over the sphere is not a convex problem. 4096 points (fewer in high dimension) are tried and the
    24 best refined; no upper bound is proved.
    """
    # Gradients are needed whatever mode the caller is in. Both modes belong to this thread alone, and tensors that
    # were made in inference mode are cloned, because gradients do not pass through them.
    with torch.inference_mode(False), torch.enable_grad():
        B, M = (a.detach().to("cpu", torch.float64).clone() for a in (B, M))
        d = len(B)
        generator = torch.Generator().manual_seed(seed)
        count = max(STARTS, min(SAMPLES, 40_000_000 // d**2))
        x = torch.randn(count, d, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=1, keepdim=True)
        values = torch.cat([symmetric_derivative(B, M, part) for part in x.split(max(1, 4_000_000 // d**2))])
        best = x[values.topk(min(STARTS, count)).indices]
        return max(float(values.max()), _ascend(B, M, best))


def _ascend(B: Tensor, M: Tensor, x: Tensor) -> float:
    """Gradient ascent on the sphere from every row of x at once, each with its own step."""
    step = torch.full((len(x), 1), 0.05, dtype=x.dtype)
    value = symmetric_derivative(B, M, x)
    for _ in range(ITERATIONS):
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(symmetric_derivative(B, M, x).sum(), x)
        with torch.no_grad():
            tangent = gradient - (gradient * x).sum(1, keepdim=True) * x
            tangent = tangent / tangent.norm(dim=1, keepdim=True).clamp_min(1e-300)
            trial = x + step * tangent
            trial = trial / trial.norm(dim=1, keepdim=True)
            reached = symmetric_derivative(B, M, trial)
            better = (reached > value).unsqueeze(1)
            x, value = torch.where(better, trial, x), torch.maximum(value, reached)
            step = torch.where(better, step * 1.5, step * 0.4)
    return float(value.max())
