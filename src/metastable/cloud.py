"""Clouds of tokens: points on the unit sphere with weights, and the laws they start from.

A cloud is the measure Σ w_j δ_{x_j}. With w_j = 1/N it is the particle system; with other weights it is a
quadrature of the mean-field equation. Weights are stored as logarithms, so that they can be smaller than the
smallest float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from metastable import notebook
from metastable.arrays import Array, matrix, moved, real, seeded, serial, tensor, vector, whole
from metastable.errors import BadInput
from metastable.head import Head

GOLDEN_ANGLE = math.pi * (3.0 - math.sqrt(5.0))


class Cloud:
    """Points of the sphere S^(d-1), (N, d), with weights that add up to 1.

    Points are scaled to norm 1 and weights to sum 1; a zero vector, a negative or infinite weight or a NaN is
    refused. Weights may be given as such or as `log_weights`; a weight of 0 makes a token that follows the
    others without being seen. float32 points stay float32, everything else becomes float64.

    Examples
    --------
    >>> cloud = Cloud([[2.0, 0.0], [0.0, 1.0]], weights=[3, 1])
    >>> cloud.points[0].tolist(), [round(w, 6) for w in cloud.weights.tolist()]
    ([1.0, 0.0], [0.75, 0.25])
    """

    def __init__(
        self,
        points: Array,
        weights: Array | None = None,
        *,
        log_weights: Array | None = None,
        law: dict[str, Any] | None = None,
    ) -> None:
        x = matrix(points, "points")
        if x.shape[1] < 2:
            raise BadInput(f"points have {x.shape[1]} coordinate; the sphere needs d ≥ 2")
        # Divide by the largest coordinate first: squares of very large coordinates overflow, those of small ones are 0.
        largest = x.abs().amax(dim=1, keepdim=True)
        if bool((largest == 0).any()):
            raise BadInput(f"point {int(largest.argmin())} is the zero vector, which has no direction; remove it")
        self.points = _unit(x / largest)
        self.log_weights = _log_weights(len(x), weights, log_weights).to(dtype=x.dtype, device=x.device)
        self.law = law or {"law": "array"}

    @property
    def weights(self) -> Tensor:
        return serial(self.log_weights, torch.exp)

    @property
    def dim(self) -> int:
        return int(self.points.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        return self.points.dtype

    @property
    def equal_weights(self) -> bool:
        return bool((self.log_weights == self.log_weights[0]).all())

    def __len__(self) -> int:
        return len(self.points)

    def moved_to(self, points: Tensor) -> Cloud:
        """The same weights at other points, (N, d), which must have norm 1 already."""
        return Cloud.exactly(points, self.log_weights, self.law)

    @staticmethod
    def exactly(points: Tensor, log_weights: Tensor, law: dict[str, Any]) -> Cloud:
        """Points of norm 1 and weights of sum 1 as they are: scaling them again could change the last bit."""
        cloud = object.__new__(Cloud)
        cloud.points, cloud.log_weights, cloud.law = points, log_weights, law
        return cloud

    def subset(self, n: int, seed: int = 0) -> Cloud:
        """At most `n` of the tokens, drawn without replacement, with their weights rescaled to sum 1."""
        if len(self) <= whole(n, "n", 1, "a part of a cloud has 1 token or more"):
            return self
        keep = sample_indices(len(self), n, seed).to(self.points.device)
        return Cloud(self.points[keep], log_weights=self.log_weights[keep], law=self.law)

    def to(self, dtype: torch.dtype | None = None, device: Any = None) -> Cloud:
        """The same cloud in another dtype or on another device."""
        x, log_weights = (moved(a, dtype, device) for a in (self.points, self.log_weights))
        return Cloud(x, log_weights=log_weights, law=self.law)

    def __repr__(self) -> str:
        kind = "equal weights" if self.equal_weights else "weighted"
        name = str(self.dtype).removeprefix("torch.")
        return f"Cloud({len(self)} tokens, d={self.dim}, {kind}, {name}, {self.law['law']})"

    def _repr_html_(self) -> str:
        """The cloud in a notebook. At most `notebook.MOST` tokens are drawn."""
        law = ", ".join(f"{name} = {value}" for name, value in self.law.items() if name not in ("law", "n", "d"))
        rows: dict[str, object] = {
            "tokens": len(self),
            "d": self.dim,
            "weights": "equal"
            if self.equal_weights
            else f"{float(self.weights.min()):.3g} to {float(self.weights.max()):.3g}",
            "law": str(self.law["law"]) + (f" ({law})" if law else ""),
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        keep = torch.linspace(0, len(self) - 1, min(notebook.MOST, len(self))).round().long().to(self.points.device)
        shown = self.points[keep].detach().cpu().double().numpy()
        where = "on the circle" if self.dim == 2 else "in their two main directions"
        return notebook.table("Cloud", rows, notebook.tokens(shown, f"{len(shown)} of {len(self)} tokens {where}"))


def sample_indices(size: int, n: int, seed: int) -> Tensor:
    """`n` of range(size) without replacement, in increasing order, the same for the same seed."""
    return torch.randperm(size, generator=seeded(seed))[:n].sort().values


def _log_weights(n: int, weights: Array | None, log_weights: Array | None) -> Tensor:
    if weights is not None and log_weights is not None:
        raise BadInput("both weights and log_weights were given; give one of them")
    if weights is None and log_weights is None:
        return torch.full((n,), -math.log(n), dtype=torch.float64)
    if weights is not None:
        w = vector(weights, "weights", n).to(torch.float64)
        if bool((w < 0).any()):
            raise BadInput(f"weight {int(w.argmin())} is {float(w.min())}; weights must be 0 or more")
        if not bool((w > 0).any()):
            raise BadInput("all weights are 0; at least one must be positive")
        logs = serial(w, torch.log)
    else:
        logs = tensor(log_weights, "log_weights", finite=False).to(torch.float64)
        if logs.shape != (n,) or bool(torch.isnan(logs).any()) or not math.isfinite(float(logs.max())):
            raise BadInput(f"log_weights must be {n} numbers below infinity, at least one of them finite")
    # The steps of torch.logsumexp.
    top = logs.max()
    return logs - (serial(logs - top, torch.exp).sum().log() + top)


def token_count(n: int) -> int:
    """The number of tokens of a cloud."""
    return whole(n, "n", 1, "a cloud needs a whole number of tokens, 1 or more")


def _dimension(d: int) -> int:
    return whole(d, "d", 2, "the sphere needs a whole number of dimensions, 2 or more")


def _gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def uniform(n: int, d: int, seed: int = 0) -> Cloud:
    """`n` independent tokens from the uniform law on S^(d-1)."""
    n, d = token_count(n), _dimension(d)
    points = _gaussian(n, d, seeded(seed))
    return Cloud(points, law={"law": "uniform", "n": n, "d": d, "seed": int(seed)})


def equally_spaced(n: int) -> Cloud:
    """`n` equally spaced tokens on the circle (d = 2), at angles 2π(j + ½)/n."""
    n = token_count(n)
    angles = (torch.arange(n, dtype=torch.float64) + 0.5) * (2 * math.pi / n)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    return Cloud(points, law={"law": "equally_spaced", "n": n, "d": 2})


def fibonacci(n: int) -> Cloud:
    """`n` tokens on the Fibonacci lattice of the 2-sphere (d = 3): near-uniform, no randomness."""
    n = token_count(n)
    index = torch.arange(n, dtype=torch.float64)
    z = 1.0 - (2.0 * index + 1.0) / n
    r = (1.0 - z * z).sqrt()
    points = torch.stack([r * (GOLDEN_ANGLE * index).cos(), r * (GOLDEN_ANGLE * index).sin(), z], dim=1)
    return Cloud(points, law={"law": "fibonacci", "n": n, "d": 3})


def von_mises_fisher(n: int, mean: Array, kappa: float, seed: int = 0) -> Cloud:
    """`n` independent tokens with density ∝ e^{κ⟨mean, x⟩}; κ = 0 is the uniform law."""
    n, direction = token_count(n), _mean_direction(mean)
    points = _vmf_points(n, direction, concentration(kappa), seeded(seed))
    law = {"law": "von_mises_fisher", "n": n, "d": len(direction), "kappa": float(kappa), "seed": int(seed)}
    return Cloud(points, law={**law, "mean": direction.tolist()})


def mixture(
    n: int,
    means: Array,
    kappas: float | Sequence[float],
    proportions: Sequence[float] | None = None,
    seed: int = 0,
) -> Cloud:
    """`n` independent tokens from Σ_c p_c vMF(means_c, κ_c).

    `means` is (c, d); `kappas` one number or c of them; `proportions` defaults to equal shares.
    """
    centres = torch.stack([_mean_direction(row) for row in matrix(means, "means")])
    count = len(centres)
    spread: list[Any] = [kappas] * count if np.ndim(kappas) == 0 else list(kappas)  # type: ignore[arg-type]
    if len(spread) != count:
        raise BadInput(f"{len(spread)} kappas for {count} means; give one number or one per mean")
    shares = vector([1.0] * count if proportions is None else proportions, "proportions", count).to(torch.float64)
    if bool((shares < 0).any()) or float(shares.sum()) <= 0:
        raise BadInput(f"proportions are {shares.tolist()}; they must be 0 or more and not all 0")
    n, generator = token_count(n), seeded(seed)
    labels = torch.multinomial(shares, n, replacement=True, generator=generator)
    points = torch.empty(n, centres.shape[1], dtype=torch.float64)
    for c in range(count):
        chosen = labels == c
        points[chosen] = _vmf_points(int(chosen.sum()), centres[c], concentration(spread[c]), generator)
    law = {"law": "mixture", "n": n, "d": centres.shape[1], "means": centres.tolist(), "seed": int(seed)}
    return Cloud(points, law={**law, "kappas": [float(k) for k in spread], "proportions": shares.tolist()})


def graded(n: int, head: Head, smallest: float = 1e-8, seed: int = 0) -> Cloud:
    """A weighted quadrature of the uniform law with tokens crowded towards {Πx = 0}.

    Tokens that start near {Πx = 0} decide how fast the law converges and when the plateau ends. Among N tokens of equal
    weight there are few of them.

    Write x = r·a + √(1−r²)·b with unit vectors a in the row space of Π (dimension m) and b orthogonal to it. Under the
    uniform law r² ~ Beta(m/2, (d−m)/2), independent of the directions a and b. The values of r are cut into n strata,
    the n-quantiles of ½·(law of r) + ½·(log-uniform on [smallest, 1]). Each stratum has one token with its exact mass.
    The directions a and b fill their spheres evenly; spheres of three dimensions and more are filled at random from
    `seed`.
    """
    n, th, d = token_count(n), head.theory(), head.dim
    m = th.dim
    real(smallest, "smallest", "it must lie between 0 and 0.1", allowed=lambda number: 0 < number < 0.1)
    if m == d:
        raise BadInput("graded needs directions that tokens leave, but every eigenvalue of M is dominant; use uniform")
    rows = th.co_basis.to(torch.float64).cpu()
    frame = torch.linalg.qr(rows, mode="complete").Q
    radii, masses = _graded_radii(n, m, d, smallest)
    generator = seeded(seed)
    a = _directions(n, m, generator, period=1)
    b = _directions(n, d - m, generator, period=2 if m == 1 else 1)
    r = torch.from_numpy(radii).unsqueeze(1)
    points = (r * a) @ frame[:, :m].T + ((1 - r * r).clamp_min(0).sqrt() * b) @ frame[:, m:].T
    law = {"law": "graded", "n": n, "d": d, "smallest": smallest, "seed": int(seed)}
    return Cloud(points, weights=torch.from_numpy(masses), law=law)


def _directions(n: int, m: int, generator: torch.Generator, period: int) -> Tensor:
    """n unit vectors of dimension m that fill the sphere evenly along the index.

    m = 1: the signs +, − with the given period; m = 2: steps of the golden angle from a random start; else random.
    """
    index = torch.arange(n, dtype=torch.float64)
    if m == 1:
        return 1.0 - 2.0 * ((index // period) % 2).unsqueeze(1)
    if m == 2:
        angles = GOLDEN_ANGLE * index + 2 * math.pi * torch.rand(1, generator=generator, dtype=torch.float64)
        return torch.stack([angles.cos(), angles.sin()], dim=1)
    return _unit(_gaussian(n, m, generator))


def _graded_radii(n: int, m: int, d: int, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """The tokens' radii and masses: strata of equal mass under the mixed law, found by bisection of its CDF."""
    law = stats.beta(m / 2, (d - m) / 2)
    depth = -math.log(smallest)

    def mixed(log_r: np.ndarray) -> np.ndarray:
        return 0.5 * law.cdf(np.exp(2 * log_r)) + 0.5 * np.clip(1 + log_r / depth, 0, 1)

    levels = np.arange(1, 2 * n) / (2 * n)
    low, high = np.full(levels.shape, -depth * 4), np.zeros(levels.shape)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = mixed(middle) < levels
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    nodes = np.exp(0.5 * (low + high))
    inner = nodes[1::2] ** 2
    # The upper edges sit close to r = 1, where 1 − CDF keeps the digits that CDF loses.
    cdf = np.concatenate([[0.0], law.cdf(inner), [1.0]])
    survival = np.concatenate([[1.0], law.sf(inner), [0.0]])
    masses = np.where(cdf[1:] < 0.5, np.diff(cdf), -np.diff(survival))
    return nodes[0::2], masses


def _mean_direction(mean: Array) -> Tensor:
    v = tensor(mean, "mean").to(torch.float64)
    if v.ndim != 1 or len(v) < 2:
        raise BadInput(f"mean has shape {tuple(v.shape)}, expected a vector of d ≥ 2 numbers")
    if float(v.norm()) == 0:
        raise BadInput("mean is the zero vector, which has no direction")
    return v / v.norm()


def concentration(kappa: float) -> float:
    """κ of a von Mises–Fisher law."""
    return real(kappa, "kappa", "a concentration must be between 0 and 1e15", allowed=lambda number: number <= 1e15)


def _vmf_points(n: int, mean: Tensor, kappa: float, generator: torch.Generator) -> Tensor:
    """Wood's rejection sampler for t = ⟨mean, x⟩, then a uniform direction orthogonal to the mean."""
    d = len(mean)
    t = _vmf_heights(n, d, kappa, generator)
    tangent = _gaussian(n, d, generator)
    tangent = _unit(tangent - (tangent @ mean).unsqueeze(1) * mean)
    return t.unsqueeze(1) * mean + (1 - t * t).clamp_min(0).sqrt().unsqueeze(1) * tangent


def _vmf_heights(n: int, d: int, kappa: float, generator: torch.Generator) -> Tensor:
    m = d - 1
    b = m / (2 * kappa + math.sqrt(4 * kappa**2 + m**2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + m * math.log1p(-(x0**2))
    accepted: list[Tensor] = []
    missing = n
    while missing > 0:
        trial = 2 * missing + 16
        u = torch.rand(2, trial, generator=generator, dtype=torch.float64).numpy()
        z = torch.from_numpy(special.betaincinv(m / 2, m / 2, u[0]))
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        keep = kappa * w + m * torch.log1p(-x0 * w) - c >= torch.from_numpy(np.log(u[1]))
        accepted.append(w[keep][:missing])
        missing -= len(accepted[-1])
    return torch.cat(accepted) if accepted else torch.empty(0, dtype=torch.float64)
