"""Heads whose spectrum is known by construction, and why a head may have no limit to test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from metastable.head import Head

SHEAR = 0.6
"""Size of the random part of the eigenvectors of a non-normal M, relative to the identity."""


PANELS = 3000
"""Panels of internal time after which a given head counts as too slow; those of the claims need 100 to 500."""


def circle_head(a: float, b: tuple[float, float], c: float, v: tuple[float, float]) -> Head:
    """On the circle: B = R(a) diag(b) R(a)ᵀ and V = R(c) diag(v) R(c)ᵀ with rotations by a and c."""
    return Head.from_interaction(_turned(a, b), _turned(c, v))


def _turned(angle: float, values: tuple[float, float]) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return R @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ R.T


def prescribed(kind: str, values: Sequence[float], seed: int, spread: float = 0.25) -> Head:
    """A head with V Bᵀ = M of the given kind and eigenvalues; B = (I + spread·G/√d)·R, G Gaussian and R a rotation.

    "symmetric": M = S diag(values) Sᵀ with S a rotation. "non-normal": M = X diag(values) X⁻¹, X = I + 0.6·G/√d.
    "non-symmetric": M = S A Sᵀ, where the pair λ ± 0.7i replaces the last two values, or, if only one value is not the
    largest, a shear joins it to the first. spread = 0 makes |Bᵀx| = 1 everywhere.
    """
    rng = np.random.default_rng(seed)
    d = len(values)
    A = np.diag(np.asarray(values, dtype=float))
    S, R = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    if kind == "non-normal":
        X = np.eye(d) + SHEAR * rng.standard_normal((d, d)) / math.sqrt(d)
        M = X @ A @ np.linalg.inv(X)
    elif kind == "non-symmetric":
        if values[-2] < max(values):
            A[-2, -2] = A[-1, -1]
            A[-2, -1], A[-1, -2] = 0.7, -0.7
        else:
            A[0, -1] = 0.5
        M = S @ A @ S.T
    else:
        M = S @ A @ S.T
    B = (np.eye(d) + spread * rng.standard_normal((d, d)) / math.sqrt(d)) @ R
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(M @ np.linalg.inv(B.T)))


def clocked(values: Sequence[float], clocks: Sequence[float], seed: int, shear: float = SHEAR) -> Head:
    """A head whose M has the unit eigenvectors x_k, the given eigenvalues, and |Bᵀx_k| = clocks[k].

    The eigenvectors of the largest value come first and are orthonormal. A token near x_k has its time run at
    clocks[k], so the rates at E and at the repelling set are g/clocks[0] and g/clocks[m], m = dim E. With shear = 0 all
    eigenvectors are orthonormal, and |Bᵀx| is constant if the clocks are equal.
    """
    rng = np.random.default_rng(seed)
    d, leading = len(values), sum(v == max(values) for v in values)
    S, R = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    X = S + shear * rng.standard_normal((d, d)) / math.sqrt(d)
    X[:, :leading] = np.linalg.qr(X[:, :leading])[0]
    X /= np.linalg.norm(X, axis=0)
    inverse = np.linalg.inv(X)
    B = (R @ np.diag(clocks) @ inverse).T
    V = X @ np.diag(np.asarray(values, dtype=float) / np.asarray(clocks, dtype=float)) @ R.T
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(V))


def too_long(head: Head, until: float) -> str | None:
    """Why the exact flow of this head up to `until` is out of reach, or None: its panels are 1/(2‖M − λ₁‖) long.

    On E, where tokens spend their time, internal time runs at 1/|Bᵀe|.
    """
    theory = head.theory()
    B, E = head.B.double().numpy(), theory.basis.double().numpy()
    slowest = float(np.linalg.svd(B.T @ E, compute_uv=False)[-1])
    panels = 2 * (theory.attention.norm + abs(theory.attention.leading)) * until / max(slowest, 1e-300)
    if panels <= PANELS:
        return None
    ratio = theory.attention.norm / theory.gap
    return (
        f"this head is slow (‖M‖ is {ratio:.3g} times the gap): the run would need {panels:.2g} panels of internal time"
    )


def without_limit(head: Head) -> str | None:
    """Why the limit law of this head cannot be tested by the exact zero-temperature flow, or None when it can."""
    theory = head.theory()
    if head.offset is not None:
        return "the scores of this head have an offset, and the zero-temperature flow is known for linear scores only"
    if theory.no_limit:
        return theory.no_limit
    if not theory.attention.semisimple:
        return "λ₁ has a Jordan block: convergence is algebraic in time, without an exponential rate"
    if math.isinf(theory.gap):
        return "every eigenvalue of M is dominant: tokens stay where they start, and there is nothing to converge"
    status = theory.verdict["gap > 0"]
    return None if status.status == "holds" else f"{status.sentence} The run would be too long."
