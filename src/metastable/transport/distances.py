"""Distances of clouds: between two clouds, from a cloud to the limit law, and between two samples of one cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metastable.arrays import Array, matrix
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice
from metastable.transport.atoms import few_atoms, to_few_atoms, to_two_atoms
from metastable.transport.bounds import bounds, coupling, geodesic, lower, sliced, token_coupling
from metastable.transport.measure import (
    Distance,
    Floats,
    Measure,
    count,
    measure,
    numbers,
    order_and_cost,
    token_costs,
    two_measures,
)
from metastable.transport.simplex import PAIRS, fits, simplex

METHODS = ("auto", "exact", "bounds", "sliced", "coupling")
OFF_SUBSPACE = 1e-4
"""Largest accepted distance of the limit points and of the basis from what they should be."""
LINES = 8
"""Random lines for the lower bound on the distance to a limit law."""
LARGEST_SAMPLE = 500
"""Tokens in a sample for the noise floor of a law with more than two atoms."""


def wasserstein(
    a: Cloud,
    b: Cloud,
    p: float = 2,
    cost: str = "chordal",
    method: str = "auto",
    *,
    directions: int = 64,
    seed: int = 0,
) -> Distance:
    """W_p(a, b) = (inf over couplings γ of Σ γ_ij c(x_i, y_j)^p)^{1/p}, as a number between two bounds.

    Parameters
    ----------
    a, b : Cloud
        (N, d) and (M, d). Their dtypes and devices may differ.
    p : float
        The order, 1 or more.
    cost : "chordal" | "geodesic"
        c(x, y) = |x − y|, or the angle between x and y.
    method : str
        "exact": laws with at most two atoms at any size, else the network simplex up to N·M = 10⁸ if memory allows.
        "bounds": between a valid coupling (the value) and valid inequalities, at any size. The lower bound uses
        `directions` lines drawn from `seed`.
        "auto": exact where possible, else bounds.
        "sliced", "coupling": the functions of these names.

    Returns
    -------
    Distance
        The simplex computes W_p^p to about 1e-15 of the largest cost. So W₂ between equal clouds that are spread
        over the sphere may be about 1e-8 instead of 0. Laws with two atoms have no such limit.

    Examples
    --------
    >>> print(wasserstein(Cloud([[1.0, 0.0], [0.0, 1.0]]), Cloud([[-1.0, 0.0], [0.0, 1.0]])))
    W2 = 1.41421 (chordal, two atoms)
    """
    p, cost = order_and_cost(p, cost)
    choice(method, "method", METHODS)
    count(directions, "directions")
    count(seed, "seed", least=0)
    if method == "coupling":
        return coupling(a, b, p, cost)
    if method == "sliced":
        if cost != "chordal":
            raise BadInput("sliced distances are chordal; use cost='chordal' or method='bounds'")
        return sliced(a, b, p, directions, seed)
    mu, nu = (m.positive() for m in two_measures(a, b))
    if method == "bounds":
        return bounds(mu, nu, p, cost, directions, seed)
    for one, other in ((mu, nu), (nu, mu)):
        atoms = few_atoms(other)
        if atoms is not None:
            return to_few_atoms(one, atoms, p, cost)
    n, m = len(mu.points), len(nu.points)
    small = fits(n, m)
    if method == "exact" and not small:
        size = f"{n} × {m} tokens are more than {PAIRS:g} pairs or than this machine's memory"
        raise BadInput(f"{size}; use method='bounds', or take a subset of the tokens")
    # The simplex returns None if it gives up.
    found = simplex(mu, nu, p, cost) if small else None
    return found or bounds(mu, nu, p, cost, directions, seed)


def to_limit(
    cloud: Cloud, limit: Cloud | Array, basis: Array, p: float = 2, cost: str = "chordal", exact_up_to: int = 1000
) -> Distance:
    """W_p between a cloud and the limit law ν = Σ w_i δ_{y_i}, y_i = T(x_i(0)), that lives in a subspace E.

    For y in E, |x − y|² = |x − P_E x|² + |P_E x − y|², so for p = 2 and the chordal cost

        W₂²(μ, ν) = Σ w_i |x_i − P_E x_i|² + W₂²(P_E#μ, ν),

    a problem in dimension m = dim E. For m = 1 the law has two atoms ±e, and the distance is exact in O(N) for every
    p and cost. For m ≥ 2 the network simplex solves the problem up to `exact_up_to` tokens (in full dimension for
    other p and cost). Above that size the value is an upper bound in O(N), the coupling of x_i with y_i, and the
    lower bound comes from projections onto a few lines and from the covariances.

    Parameters
    ----------
    cloud : Cloud
        The tokens x_i and their weights, (N, d).
    limit : Cloud or (N, d)
        The points y_i, in the same order; the weights are those of `cloud`.
    basis : (d, m)
        Orthonormal columns that span E.

    Examples
    --------
    >>> x = Cloud([[0.0, 1.0], [0.6, 0.8], [-0.6, -0.8], [0.8, 0.6]])
    >>> print(to_limit(x, [[0.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0]], [[0.0], [1.0]]))
    W2 = 0.632456 (chordal, two atoms)
    """
    p, cost = order_and_cost(p, cost)
    count(exact_up_to, "exact_up_to", least=0)
    E = _orthonormal(basis, cloud)
    mu = measure(cloud, "the cloud")
    y = _limit_points(limit, mu, E)
    if E.shape[1] == 1:
        up = y @ E[:, 0] > 0
        masses = np.array([mu.weights @ up, mu.weights @ ~up])
        return to_two_atoms(mu, np.stack([E[:, 0], -E[:, 0]]), masses, p, cost)
    mu, nu = mu.positive(), Measure(y, mu.weights, mu.rounding).positive()
    small = len(mu.points) <= exact_up_to and fits(len(mu.points), len(nu.points))
    if p == 2 and cost == "chordal":
        return _reduced(mu, nu, E, small)
    found = simplex(mu, nu, p, cost) if small else None
    return found or token_coupling(mu, nu, p, cost, geodesic(lower(mu, nu, p, LINES, seed=0), cost))


def _reduced(mu: Measure, nu: Measure, E: Floats, small: bool) -> Distance:
    inside = mu.points @ E
    outside = float(mu.weights @ token_costs(mu.points, inside @ E.T, 2.0, "chordal"))
    flat_mu, flat_nu = Measure(inside, mu.weights), Measure(nu.points @ E, nu.weights)
    found = simplex(flat_mu, flat_nu, 2.0, "chordal", plus=outside) if small else None
    if found is not None:
        return replace(found, method=f"network simplex in dimension {E.shape[1]}")
    least = lower(flat_mu, flat_nu, 2.0, LINES, seed=0)
    return token_coupling(mu, nu, 2.0, "chordal", (outside + least**2) ** 0.5)


def _orthonormal(basis: Array, cloud: Cloud) -> Floats:
    E = numbers(matrix(basis, "basis"))
    d, m = E.shape
    if d != cloud.dim or m > d:
        raise BadInput(f"basis is {d}×{m}, expected {cloud.dim}×m with m ≤ {cloud.dim}: one column a basis vector")
    error = float(np.abs(E.T @ E - np.eye(m)).max())
    if error > OFF_SUBSPACE:
        raise BadInput(f"basis is off orthonormal by {error:.2g}; orthonormalise its columns, for example by QR")
    return np.asarray(np.linalg.qr(E)[0])


def _limit_points(limit: Cloud | Array, mu: Measure, E: Floats) -> Floats:
    """The limit points, put exactly onto the unit sphere of E."""
    y = numbers(limit.points if isinstance(limit, Cloud) else matrix(limit, "limit"))
    if y.shape != mu.points.shape:
        raise BadInput(f"limit has shape {y.shape}, expected {mu.points.shape}: a point for each token")
    inside = (y @ E) @ E.T
    inside /= np.maximum(np.sqrt(np.einsum("ij,ij->i", inside, inside)), 1e-300)[:, None]
    off = float(mu.weights @ token_costs(y, inside, 1.0, "chordal"))
    if not off <= OFF_SUBSPACE:
        where = f"{off:.2g} away from the unit sphere of the span of basis, on average"
        raise BadInput(f"limit is {where}; take limit and basis from the same theory")
    return inside


@dataclass(frozen=True)
class NoiseFloor:
    """Mean and standard deviation of W_p between two samples of `size` tokens, over `repeats` pairs of samples.

    `tokens` is the size that the floor was asked for. If it exceeds `size`, the true floor is lower.
    """

    mean: float
    std: float
    repeats: int
    size: int
    tokens: int
    p: float = 2.0
    cost: str = "chordal"

    def __str__(self) -> str:
        what = f"noise floor W{self.p:g} = {self.mean:.3g} ± {self.std:.2g} ({self.cost}, {self.size} tokens)"
        return what if self.size == self.tokens else f"{what}; lower at the {self.tokens} tokens of the cloud"


def noise_floor(
    cloud: Cloud,
    p: float = 2,
    cost: str = "chordal",
    repeats: int = 20,
    seed: int = 0,
    size: int | None = None,
) -> NoiseFloor:
    """W_p between two independent samples, n tokens each, of the law Σ w_j δ_{x_j} of the cloud.

    n is `size`, by default the effective number of tokens 1/Σ w_j². A distance between this law and an *independent*
    sample of n tokens is not significant below this floor. If the law has at most two atoms, W_p^p is c^p times the
    difference of two binomial counts over n, which is exact for any n. Other laws are sampled with at most 500
    tokens. The floor at a larger n is **smaller** than the mean given here, because it falls as n grows.

    Examples
    --------
    >>> atoms = Cloud([[1.0, 0.0], [-1.0, 0.0]])
    >>> floor = noise_floor(atoms, p=1, size=10_000, repeats=1000)
    >>> abs(floor.mean - 2 / (np.pi * 10_000) ** 0.5) < 0.001  # 2·E|k − k'|/n = 2/√(πn)
    True
    """
    p, cost = order_and_cost(p, cost)
    count(repeats, "repeats", least=2)
    rng = np.random.default_rng(count(seed, "seed", least=0))
    law = measure(cloud, "the cloud").positive()
    tokens = max(1, round(1.0 / float(law.weights @ law.weights))) if size is None else count(size, "size")
    atoms = few_atoms(law)
    if atoms is not None:
        n = tokens
        values = _between_atoms(atoms, n, p, cost, repeats, rng)
    else:
        n = min(tokens, LARGEST_SAMPLE)
        values = np.array([_between_samples(law, n, p, cost, rng) for _ in range(repeats)])
    return NoiseFloor(float(values.mean()), float(values.std(ddof=1)), repeats, n, tokens, p, cost)


def _between_atoms(atoms: Measure, n: int, p: float, cost: str, repeats: int, rng: np.random.Generator) -> Floats:
    if len(atoms.points) == 1:
        return np.zeros(repeats)
    counts = rng.binomial(n, min(float(atoms.weights[0]), 1.0), size=(2, repeats))
    across = float(token_costs(atoms.points[:1], atoms.points[1], p, cost)[0])
    return np.asarray((across * np.abs(counts[0] - counts[1]) / n) ** (1.0 / p))


def _between_samples(law: Measure, n: int, p: float, cost: str, rng: np.random.Generator) -> float:
    equal = np.full(n, 1.0 / n)
    one, other = (Measure(law.points[rng.choice(len(law.points), size=n, p=law.weights)], equal) for _ in range(2))
    found = simplex(one, other, p, cost)
    if found is None:
        raise BadInput(f"the network simplex gave up on samples of {n} tokens; give a smaller size=")
    return found.value
