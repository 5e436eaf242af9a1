"""The heads of the studies on the circle, and the numbers that a prediction may use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import metastable as ms
from metastable.claims.heads import circle_head

RESULTS = Path(__file__).parent / "results"


THREE = {
    "first": (0.5, (1.5, 0.6), -0.3, (1.0, 0.7)),
    "second": (0.2, (1.4, 0.7), -0.3, (1.2, 0.5)),
    "third": (0.3, (1.4, 0.7), -0.5, (1.2, 0.5)),
}
"""Three heads of the circle whose plateau ends: (a, b, a', v)."""


def random_parameters(count: int, seed: int) -> tuple[list[Any], dict[str, int]]:
    """Random positive spectra and angles (a, b, a', v), and how many draws were left out for which reason.

    M = VB is then diagonalisable with real eigenvalues. Left out are heads with a gap below 0.2, and heads for which
    no β up to 2000 makes a plateau that ends: D below 0.012, or ±e closer than 0.1 to V's own eigenvector.
    """
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    left = {"gap < 0.2": 0, "D < 0.012": 0, "|e - v| < 0.1": 0}
    while len(found) < count:
        a, a2 = rng.uniform(-math.pi / 2, math.pi / 2, 2)
        b, v = rng.uniform(0.4, 1.6, 2), rng.uniform(0.3, 1.3, 2)
        parameters = (float(a), tuple(map(float, b)), float(a2), tuple(map(float, v)))
        head = circle_head(*parameters)
        q = numbers(head) if head.theory().gap > 0.2 else None
        if q is None:
            left["gap < 0.2"] += 1
        elif q["D"] < 0.012:
            left["D < 0.012"] += 1
        elif q["to_v"] < 0.1:
            left["|e - v| < 0.1"] += 1
        else:
            found.append(parameters)
    return found, left


def numbers(head: ms.Head) -> dict[str, float]:
    """D(x) = |Bᵀx| − |⟨Bᵀx, e⟩| at e and at x_r, κ, c, where V pulls the cluster, and how D changes that way."""
    th = head.theory()
    B, V = head.B.numpy(), head.V.numpy()
    e, repelling = th.basis[:, 0].numpy(), _perpendicular(th.co_basis[:, 0].numpy())
    pull = V @ e - (e @ V @ e) * e
    speed = float(np.linalg.norm(pull))
    ahead = e + 1e-6 * pull / max(speed, 1e-300)
    ahead /= np.linalg.norm(ahead)
    return {
        "D": _own(B, e),
        "kappa": th.escape_rate,
        "rate": th.rate,
        "gap": th.gap,
        "D_repelling": float(np.linalg.norm(B.T @ repelling) - abs(repelling @ B @ e)),
        "pull": speed,
        "D_slope": (_own(B, ahead) - _own(B, e)) / 1e-6,
        "to_v": float(math.sqrt(2 - 2 * abs(float(th.terminal.basis[:, 0].numpy() @ e)))),
        "D_v": _own(B, th.terminal.basis[:, 0].numpy()),
        "e_V_e": float(e @ V @ e),
    }


def _own(B: np.ndarray, x: np.ndarray) -> float:
    """How much better the best direction is than x itself, for a cluster at x: |Bᵀx| − ⟨Bᵀx, x⟩."""
    return float(np.linalg.norm(B.T @ x) - x @ B @ x)


def _perpendicular(x: np.ndarray) -> np.ndarray:
    return np.array([-x[1], x[0]])


def write(name: str, record: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
