"""Fixed points of the zero-temperature field of several heads, and where tokens go.

With one head x is a fixed point exactly if V Bᵀx = λx with λ real and Bᵀx ≠ 0. With several heads the condition is a
nonlinear eigenvalue problem, M(x)x = λx with M(x) = Σ_h V_h B_hᵀ/|B_hᵀx|, and there is no formula. The points are
searched for:

- d = 2: F(x) has one component f(θ). Every sign change of f on a grid of 8192 cells is closed in by bisection. Only two
  fixed points inside one cell can be missed.
- d ≥ 3: starts are random points, the ends of the flow of F (stable points) and of −F (sources) from random points,
  and the real eigenvectors of M(x) at random x (saddles; with one head these are the fixed points themselves). Each
  start is refined by Newton's method on the sphere, x ← unit(x + δ) with Jδ = −F(x) and J = A(x) + xxᵀ. Starts that
  fail are refined once more with

      (JᵀJ + μI)δ = −JᵀF(x),     μ = |F|² in units of the field,

  which also converges to continua of fixed points, where J is singular.

The Poincaré–Hopf theorem tests the result for d ≥ 3: the indices (−1)^(number of negative real eigenvalues) of all
fixed points add up to 2 on spheres of even dimension and to 0 on the others. The test is necessary, not sufficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from metastable.arrays import Array, matrix, positive, whole
from metastable.cloud import Cloud, uniform
from metastable.errors import BadInput
from metastable.head import Head
from metastable.theory.follow import follow
from metastable.theory.several_heads import SeveralHeads, Smooth, project, unit

Solve = Callable[[Tensor, Tensor], Tensor]
"""J (n, d, d) and F (n, d) to the step δ (n, d) of Newton's method."""
RESIDUAL = 1e-10
"""Largest |F| of an accepted fixed point, in units of the field."""
SAME = 1e-6
"""Fixed points closer than this are one."""
DEGENERATE = 1e-7
"""A real part below this, in units of the field, counts as 0."""
NEWTON = 40
"""Most iterations of Newton's method."""
STRIDE = 0.5
"""Longest step of Newton's method."""
GRID = 8192
"""Cells of the circle for d = 2."""
EIGENVECTORS = 8
"""Random points x at which the eigenvectors of M(x) are taken as starts."""
FLOW = 60.0
"""Time for which starts follow the flow, in units of the inverse field."""
FLOW_STEPS = 500
"""Most steps of that flow: Newton's method needs starts, not limits."""
NEAR = 1e-5
"""A token this close to a stable fixed point has arrived; one slower than this, in units of the field, rests."""
PATIENCE = 40.0
"""Default horizon of `limit`, in units of the slowest time scale of any fixed point."""


class Basins(NamedTuple):
    """Shares of the uniform law that go to each stable fixed point (k of them), from n tokens.

    Attributes
    ----------
    share : (k,) share of the tokens
    low, high : (k,) ends of the 95 % interval of Clopper and Pearson
    nowhere : share that had reached no stable fixed point at the horizon: limit cycles, or points where the field is
        undefined
    n : the number of tokens
    """

    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nowhere: float
    n: int


@dataclass(frozen=True, eq=False)
class FixedPoints:
    """The fixed points of the zero-temperature field F of several heads that were found, the most stable ones first.

    Attributes
    ----------
    points : (m, d)
    eigenvalues : (m, d − 1), complex: of the covariant derivative of F on the tangent space, by decreasing real part
    kinds : for each point "stable", "unstable" (a source), "saddle", or "degenerate" if a real part is 0 within the
        tolerance
    rates : (m,): minus the largest real part, the rate at which tokens nearby converge; negative for saddles and
        sources
    residuals : (m,): |F|
    complete : whether the sum of the indices is that of the Poincaré–Hopf theorem, which is necessary for a complete
        list. None if a point is degenerate or F is undefined somewhere: the theorem does not apply then
    scale : root mean square of |F| over the sphere, the unit of all tolerances
    """

    field: SeveralHeads
    points: Tensor
    eigenvalues: Tensor
    kinds: tuple[str, ...]
    rates: Tensor
    residuals: Tensor
    complete: bool | None
    scale: float

    def __len__(self) -> int:
        return len(self.points)

    def count(self, kind: str) -> int:
        return self.kinds.count(kind)

    @property
    def stable(self) -> Tensor:
        """(k, d): the stable fixed points, in the order of `points`."""
        return self.points[[kind == "stable" for kind in self.kinds]]

    @property
    def index_sum(self) -> int:
        """Sum of the indices (−1)^(number of negative real eigenvalues)."""
        return int(_indices(self.eigenvalues, DEGENERATE * self.scale).sum())

    @property
    def horizon(self) -> float:
        """Default time that `limit` waits: 40 times the slowest time scale of any fixed point."""
        parts = self.eigenvalues.real.abs()
        parts = parts[parts > DEGENERATE * self.scale]
        return PATIENCE / min(self.scale, float(parts.min()) if len(parts) else self.scale)

    def limit(self, x: Array, horizon: float | None = None) -> Tensor:
        """Where tokens that start at the rows of x (n, d) go: (n, d), the stable fixed point that is reached.

        NaN where none is reached within the horizon. If degenerate points attract (a continuum of fixed points, as for
        dim E ≥ 2), a token that has come to rest has its own position as its limit.
        """
        labels, ends = self._arrivals(_points(x, self.field.dim), horizon)
        found = torch.full_like(ends, math.nan)
        found[labels >= 0] = self.stable[labels[labels >= 0]]
        resting = labels == RESTING
        found[resting] = ends[resting]
        return found

    def basins(self, n: int = 10_000, seed: int = 0, horizon: float | None = None) -> Basins:
        """The share of the uniform law that each stable fixed point draws, from n random tokens."""
        n = whole(n, "n", 1, "it must be a whole number of tokens, 1 or more")
        labels, _ = self._arrivals(uniform(n, self.field.dim, seed).points, horizon)
        counts = np.bincount(labels[labels >= 0].numpy(), minlength=len(self.stable))
        low = np.where(counts > 0, stats.beta.ppf(0.025, np.maximum(counts, 1), n - counts + 1), 0.0)
        high = np.where(counts < n, stats.beta.ppf(0.975, counts + 1, np.maximum(n - counts, 1)), 1.0)
        return Basins(counts / n, low, high, 1.0 - float(counts.sum()) / n, n)

    def _arrivals(self, x: Tensor, horizon: float | None) -> tuple[Tensor, Tensor]:
        """For each row the index of its stable point (RESTING or −1 without one), and its last position."""
        until = self.horizon if horizon is None else positive(horizon, "horizon")
        stable = self.stable
        pairs = zip(self.kinds, self.eigenvalues.real, strict=True)
        continuum = any(k == "degenerate" and bool((r <= DEGENERATE * self.scale).all()) for k, r in pairs)

        def arrived(points: Tensor, speed: Tensor) -> Tensor:
            found = torch.full((len(points),), -1)
            if len(stable):
                distance, nearest = torch.cdist(points, stable).min(dim=1)
                found = torch.where(distance < NEAR, nearest, found)
            still = (found < 0) & (speed < NEAR * self.scale)
            return found.masked_fill(still, RESTING) if continuum else found

        return follow(self.field, x, until, self.scale, arrived)


RESTING = -2
"""Label of a token that came to rest in a continuum of fixed points."""


def fixed_points(
    heads: Sequence[Head], field: Smooth | None = None, *, starts: int = 256, seed: int = 0
) -> FixedPoints:
    """The fixed points of F(x) = P_x(Σ_h V_h û_h + g(x)) on S^(d-1); see the module for the method.

    heads : heads of one dimension d; offsets are allowed
    field : g, optional: float64 rows (n, d) to rows (n, d), such as a perceptron
    starts : random starts for d ≥ 3; more starts find more points

    F is undefined where some B_hᵀx + a_h = 0. Such points are not reported, even where they attract tokens.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> heads = [Head.from_interaction(eye, torch.diag(torch.tensor([3.0, 2.0, 1.0])).double())]
    >>> found = fixed_points(heads)
    >>> len(found), found.count("stable"), found.complete, round(float(found.rates[0]), 6)
    (6, 2, True, 1.0)
    """
    F = SeveralHeads(heads, field)
    starts = whole(starts, "starts", 1, "it must be a whole number of starting points, 1 or more")
    scale = F.scale(seed)
    found = _newton(F, _on_circle(F), scale, _damped)[:2] if F.dim == 2 else _search(F, starts, scale, seed)
    points, residuals = _distinct(*found)
    eigenvalues = F.tangent_eigenvalues(points)
    order = _order(points, eigenvalues)
    points, residuals, eigenvalues = points[order], residuals[order], eigenvalues[order]
    kinds = tuple(_kind(row, DEGENERATE * scale) for row in eigenvalues.real)
    return FixedPoints(
        field=F,
        points=points,
        eigenvalues=eigenvalues,
        kinds=kinds,
        rates=-eigenvalues[:, 0].real,
        residuals=residuals,
        complete=_complete(F, points, eigenvalues, kinds, scale),
        scale=scale,
    )


def _points(x: Array, d: int) -> Tensor:
    points = matrix(x, "x")
    if points.shape[1] != d:
        raise BadInput(f"x has {points.shape[1]} coordinates and the heads d = {d}; they must agree")
    return Cloud(points).points.to("cpu", torch.float64)


def _on_circle(F: SeveralHeads) -> Tensor:
    """Starts for d = 2: sign changes of f(θ) on the grid after bisection, and local minima of |f|."""

    def at(angle: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([angle.cos(), angle.sin()], dim=1)
        return x, (F(x) * torch.stack([-x[:, 1], x[:, 0]], dim=1)).sum(dim=1)

    # The half makes symmetric fixed points, such as the axes, fall inside cells.
    grid = (torch.arange(GRID + 1, dtype=torch.float64) + 0.5) * (2 * math.pi / GRID)
    f = at(grid)[1]
    change = f[:-1] * f[1:] <= 0
    low, high, sign = grid[:-1][change], grid[1:][change], f[:-1][change].sign()
    for _ in range(60):
        middle = 0.5 * (low + high)
        before = at(middle)[1].sign() == sign
        low, high = torch.where(before, middle, low), torch.where(before, high, middle)
    size = f[:-1].abs()
    dip = (size < size.roll(1)) & (size <= size.roll(-1)) & (size < 10 / GRID * size.max())
    return at(torch.cat([0.5 * (low + high), grid[:-1][dip]]))[0]


def _search(F: SeveralHeads, starts: int, scale: float, seed: int) -> tuple[Tensor, Tensor]:
    """Fixed points for d ≥ 3 and |F| there, with repetitions."""
    x = _starts(F, starts, scale, seed)
    points, residuals, failed = _newton(F, x, scale, _plain)
    again, more, _ = _newton(F, failed[:starts], scale, _damped)
    points, residuals = torch.cat([points, again]), torch.cat([residuals, more])
    if F.odd:
        return torch.cat([points, -points]), residuals.repeat(2)
    return points, residuals


def _starts(F: SeveralHeads, starts: int, scale: float, seed: int) -> Tensor:
    """Random points, ends of the flows of F and −F, and eigenvectors of M(x)."""
    x = uniform(starts, F.dim, seed).points
    never = lambda points, speed: torch.full((len(points),), -1)  # noqa: E731
    found = [x]
    for field in (F, lambda points: -F(points)):
        found.append(follow(field, x[: max(1, starts // 2)], FLOW / scale, scale, never, FLOW_STEPS)[1])
    for row in x[:EIGENVECTORS]:
        # In high dimension one x has enough of them.
        if sum(map(len, found[3:])) >= starts:
            break
        values, vectors = torch.linalg.eig(F.derivative(row[None])[0] + _rank_one(F, row))
        real = unit(vectors[:, values.imag.abs() <= 1e-12 * values.abs().max()].real.T)
        found += [real] if F.odd else [real, -real]
    return torch.cat(found)


def _rank_one(F: SeveralHeads, x: Tensor) -> Tensor:
    """What DG(x) lacks of M(x) = Σ_h V_h B_hᵀ/|u_h|: Σ_h (V_h û_h)(B_h û_h)ᵀ/|u_h|."""
    total = torch.zeros(F.dim, F.dim, dtype=torch.float64)
    for head in F.heads:
        u = head.directions(x[None])
        cube = torch.linalg.vector_norm(u).clamp_min(1e-300) ** 3
        total += head.values(u).T @ ((u @ head.key.T) @ head.query) / cube
    return total


def _plain(J: Tensor, force: Tensor) -> Tensor:
    """δ with Jδ = −F."""
    return -torch.linalg.solve_ex(J, force.unsqueeze(2))[0].squeeze(2)


def _damped(J: Tensor, force: Tensor) -> Tensor:
    """δ with (JᵀJ + μI)δ = −JᵀF, μ = |F|² but at most 0.01 and at least at rounding level."""
    mu = force.square().sum(dim=1).clamp(1e-15, 1e-2).view(-1, 1, 1)
    normal = J.transpose(1, 2) @ J + mu * torch.eye(J.shape[1], dtype=J.dtype)
    return -torch.linalg.solve_ex(normal, J.transpose(1, 2) @ force.unsqueeze(2))[0].squeeze(2)


def _newton(F: SeveralHeads, x: Tensor, scale: float, solve: Solve) -> tuple[Tensor, Tensor, Tensor]:
    """Each start refined by Newton's method: the fixed points, |F| there, and the starts that did not converge."""
    kept, residuals, failed = [], [], []
    for part in x.split(F.batch):
        best, least = part.clone(), F(part).norm(dim=1)
        active, point = torch.arange(len(part)), part
        for _ in range(NEWTON):
            step = project(point, solve(F.covariant(point) / scale, F(point) / scale))
            length = step.norm(dim=1, keepdim=True)
            point = unit(point + step * (STRIDE / length).clamp_max(1.0))
            size = F(point).norm(dim=1)
            better = size < least[active]
            best[active[better]], least[active[better]] = point[better], size[better]
            # NaN, where J is exactly singular or F undefined, ends the iteration too.
            going = (size > 1e-14 * scale) & (length.squeeze(1) > 1e-15)
            active, point = active[going], point[going]
            if len(active) == 0:
                break
        good = least <= RESIDUAL * scale
        kept.append(best[good])
        residuals.append(least[good])
        failed.append(part[~good])
    return torch.cat(kept), torch.cat(residuals), torch.cat(failed)


def _distinct(points: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """One row of each group of equal points, the one with the least residual."""
    order = residuals.argsort()
    points, residuals = points[order], residuals[order]
    keep: list[int] = []
    for i in range(len(points)):
        if not keep or float((points[keep] - points[i]).norm(dim=1).min()) > SAME:
            keep.append(i)
    return points[keep], residuals[keep]


def _order(points: Tensor, eigenvalues: Tensor) -> list[int]:
    """By increasing largest real part, rounded so that symmetric points stay together; then by coordinates."""
    keys = [(round(float(e[0].real), 8), *(-p).tolist()) for p, e in zip(points, eigenvalues, strict=True)]
    return sorted(range(len(points)), key=lambda i: keys[i])


def _kind(real: Tensor, tolerance: float) -> str:
    if bool((real.abs() <= tolerance).any()):
        return "degenerate"
    if bool((real < 0).all()):
        return "stable"
    return "unstable" if bool((real > 0).all()) else "saddle"


def _indices(eigenvalues: Tensor, tolerance: float) -> Tensor:
    """(−1)^(number of negative real eigenvalues) for each row; complex pairs contribute |λ|² > 0."""
    alone = eigenvalues.imag.abs() <= tolerance
    return 1 - 2 * ((alone & (eigenvalues.real < 0)).sum(dim=1) % 2)


def _complete(
    F: SeveralHeads, points: Tensor, eigenvalues: Tensor, kinds: tuple[str, ...], scale: float
) -> bool | None:
    if "degenerate" in kinds or F.undefined_somewhere():
        return None
    euler = 2 if F.dim % 2 else 0
    return int(_indices(eigenvalues, DEGENERATE * scale).sum()) == euler
