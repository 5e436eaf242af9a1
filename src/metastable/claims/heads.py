"""Heads with a known spectrum, the reasons why a head cannot be tested, and distance curves on the circle.

A distance curve is W₂ to the limit law against time from the uniform law on the circle. Equal tokens would leave the
plateau too early, as soon as none of them is left near {Πx = 0}. So at finite β the continuity equation is solved, and
at zero temperature a cloud graded towards {Πx = 0} follows the exact flow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from metastable.cloud import graded
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.run.mean_field import refined
from metastable.transport import two_atoms

SHEAR = 0.6
"""Size of the random part of the eigenvectors of a non-normal M, relative to the identity."""
PANELS = 3000
"""Largest number of panels of internal time for a given head; the claims' own heads need 100 to 500."""
COLD_TOKENS = 4000
"""Tokens of the graded cloud at zero temperature."""
SMALLEST = 1e-14
"""Smallest distance of graded tokens from {Πx = 0}; rounding would spoil smaller ones."""


def identity(d: int) -> Head:
    """B = V = I."""
    return Head.from_interaction(torch.eye(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64))


def circle_head(a: float, b: tuple[float, float], c: float, v: tuple[float, float]) -> Head:
    """On the circle: B = R(a) diag(b) R(a)ᵀ and V = R(c) diag(v) R(c)ᵀ with rotations by a and c."""
    return Head.from_interaction(_turned(a, b), _turned(c, v))


def _turned(angle: float, values: tuple[float, float]) -> torch.Tensor:
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return R @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ R.T


def circle_heads() -> dict[str, Head]:
    """Three heads of the circle whose plateau ends early enough to be seen."""
    return {
        "B turned by 0.3, V by −0.5": circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)),
        "B turned by 0.5, V by −0.3": circle_head(0.5, (1.5, 0.6), -0.3, (1.0, 0.7)),
        "B turned by 0.2, V by −0.3": circle_head(0.2, (1.4, 0.7), -0.3, (1.2, 0.5)),
    }


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
        S = np.eye(d) + SHEAR * rng.standard_normal((d, d)) / math.sqrt(d)
    elif kind == "non-symmetric" and values[-2] < max(values):
        A[-2:, -2:] = [[values[-1], 0.7], [-0.7, values[-1]]]
    elif kind == "non-symmetric":
        A[0, -1] = 0.5
    M = S @ A @ (np.linalg.inv(S) if kind == "non-normal" else S.T)
    B = (np.eye(d) + spread * rng.standard_normal((d, d)) / math.sqrt(d)) @ R
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(M @ np.linalg.inv(B.T)))


def clocked(values: Sequence[float], clocks: Sequence[float], seed: int, shear: float = SHEAR) -> Head:
    """A head whose M has the unit eigenvectors x_k, the given eigenvalues, and |Bᵀx_k| = clocks[k].

    The eigenvectors of the largest value come first and are orthonormal. The internal time of a token near x_k runs at
    clocks[k], so the rates at E and at the repelling set are g/clocks[0] and g/clocks[m], m = dim E. With shear = 0 all
    eigenvectors are orthonormal, and |Bᵀx| is constant if the clocks are equal.
    """
    rng = np.random.default_rng(seed)
    d, leading = len(values), sum(v == max(values) for v in values)
    S, R = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    X = S + shear * rng.standard_normal((d, d)) / math.sqrt(d)
    X[:, :leading] = np.linalg.qr(X[:, :leading])[0]
    X /= np.linalg.norm(X, axis=0)
    B = (R @ np.diag(clocks) @ np.linalg.inv(X)).T
    V = X @ np.diag(np.asarray(values, dtype=float) / np.asarray(clocks, dtype=float)) @ R.T
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(V))


def too_long(head: Head, until: float) -> str | None:
    """Why the exact flow of this head up to `until` takes too long, or None if it does not.

    The panels of the flow are 1/(2‖M − λ₁‖) of internal time long. On E, where tokens spend most of the time, internal
    time runs at 1/|Bᵀe|.
    """
    theory = head.theory()
    B, E = head.B.double().numpy(), theory.basis.double().numpy()
    slowest = float(np.linalg.svd(B.T @ E, compute_uv=False)[-1])
    panels = 2 * (theory.attention.norm + abs(theory.attention.leading)) * until / max(slowest, 1e-300)
    if panels <= PANELS:
        return None
    slow = f"this head is slow (‖M‖ is {theory.attention.norm / theory.gap:.3g} times the gap)"
    return f"{slow}: the run would need {panels:.2g} panels of internal time"


def without_limit(head: Head) -> str | None:
    """Why the exact zero-temperature flow cannot test the limit law of this head, or None if it can."""
    theory = head.theory()
    if theory.no_limit:
        return theory.no_limit
    if not theory.attention.semisimple:
        return "λ₁ has a Jordan block: convergence is algebraic in time, without an exponential rate"
    if math.isinf(theory.gap):
        return "every eigenvalue of M is dominant: tokens stay where they start, and there is nothing to converge"
    gap = theory.verdict["gap > 0"]
    return None if gap.status == "holds" else f"{gap.sentence} The run would be too long."


def without_curves(head: Head) -> str | None:
    """Why this head has no distance curves, or None: they need the circle and a limit law of two atoms."""
    if head.dim != 2:
        return f"this head has d = {head.dim}; the experiment solves the mean-field equation on the circle, d = 2"
    theory = head.theory()
    if theory.no_limit:
        return theory.no_limit
    if theory.dim != 1 or not theory.attention.semisimple or theory.singular:
        return "the experiment needs an invertible B and a limit law of two atoms ±e"
    return None


class Curve(NamedTuple):
    """W₂(μ_t, ν) from the uniform law at each time, and its discretisation error at each time."""

    beta: float
    times: np.ndarray
    distance: np.ndarray
    error: np.ndarray


def warm_curve(head: Head, beta: float, times: np.ndarray, tol: float) -> Curve:
    """The curve at inverse temperature β, by the mean-field solver."""
    # A solver that stops before it reaches `tol` says so in the error of its distances.
    run = refined(head, "uniform", beta, float(times[-1]), tol, t_eval=times.tolist(), progress=False)
    found = run.distance()
    return Curve(beta, run.times.numpy(), found.values, 0.5 * (found["upper"].values - found["lower"].values))


def cold_curve(head: Head, times: np.ndarray) -> Curve:
    """The curve at zero temperature, by the exact flow; its error is the change when half as many tokens are taken."""
    fine, coarse = (_cold(head, times, n) for n in (COLD_TOKENS, COLD_TOKENS // 2))
    return Curve(math.inf, times, fine, np.abs(fine - coarse))


def _cold(head: Head, times: np.ndarray, tokens: int) -> np.ndarray:
    e, cloud = head.theory().basis[:, 0].double(), graded(tokens, head, SMALLEST)
    frames = zero_temperature_flow(head, cloud, torch.from_numpy(times))
    up = head.theory().limit(cloud.points) @ e > 0
    # The masses of the cloud's own limit: ½ and ½ would be off by a share of one token, which matters at late times.
    masses = [float(cloud.weights[side].sum()) for side in (up, ~up)]
    return np.array([two_atoms(x, cloud.weights, torch.stack([e, -e]), masses).value for x in frames])
