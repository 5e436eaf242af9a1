"""The distance between two clouds and the distance to a limit law: which method is used, and when."""

from __future__ import annotations

from dataclasses import replace

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
    check_cost,
    check_count,
    check_order,
    measure,
    numbers,
    token_costs,
    two_measures,
)
from metastable.transport.simplex import PAIRS, fits, simplex

METHODS = ("auto", "exact", "bounds", "sliced", "coupling")
OFF_SUBSPACE = 1e-4
"""Largest mean distance of limit points from the span of the basis, and largest error of an orthonormal basis."""


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
        (N, d) and (M, d), weights honoured; dtypes and devices may differ, float64 is used throughout.
    p : float
        The order, 1 or more.
    cost : "chordal" | "geodesic"
        c(x, y) = |x − y|, or the angle between x and y.
    method : str
        "exact": two atoms at any size, else the network simplex up to N·M = 10⁸ (memory permitting).
        "bounds": between a valid coupling (the value) and valid inequalities, at any size; `directions` lines
        drawn from `seed` are tried for the lower bound.
        "auto": exact where it can be done, else bounds.
        "sliced", "coupling": as the functions of these names.

    Returns
    -------
    Distance
        The simplex resolves W_p^p to about 1e-15 of the largest cost, so W₂ between clouds that are spread over
        the sphere carries rounding of about 1e-8 when it should be zero; two atoms have no such limit.

    Examples
    --------
    >>> print(wasserstein(Cloud([[1.0, 0.0], [0.0, 1.0]]), Cloud([[-1.0, 0.0], [0.0, 1.0]])))
    W2 = 1.41421 (chordal, two atoms)
    """
    p, cost = check_order(p), check_cost(cost)
    choice(method, "method", METHODS)
    check_count(directions, "directions")
    check_count(seed, "seed", least=0)
    if method == "coupling":
        return coupling(a, b, p, cost)
    if method == "sliced":
        if cost != "chordal":
            raise BadInput("sliced distances are chordal; use cost='chordal' or method='bounds'")
        return sliced(a, b, p, directions, seed)
    mu, nu = (m.positive() for m in two_measures(a, b))
    found = None if method == "bounds" else _exact(mu, nu, p, cost, required=method == "exact")
    return found or bounds(mu, nu, p, cost, directions, seed)


def _exact(mu: Measure, nu: Measure, p: float, cost: str, required: bool) -> Distance | None:
    """None where the problem is too large, or where the simplex gave up: then there are bounds instead."""
    for one, other in ((mu, nu), (nu, mu)):
        atoms = few_atoms(other)
        if atoms is not None:
            return to_few_atoms(one, atoms, p, cost)
    n, m = len(mu.points), len(nu.points)
    if fits(n, m):
        return simplex(mu, nu, p, cost)
    if required:
        size = f"{n} × {m} tokens are more than {PAIRS:g} pairs or than this machine's memory"
        raise BadInput(f"{size}; use method='bounds', or take a subset of the tokens")
    return None


def to_limit(
    cloud: Cloud,
    limit: Cloud | Array,
    basis: Array,
    p: float = 2,
    cost: str = "chordal",
    *,
    exact_up_to: int = 1000,
    directions: int = 8,
    seed: int = 0,
) -> Distance:
    """W_p between a cloud and the limit law ν = Σ w_i δ_{y_i}, y_i = T(x_i(0)), that lives in a subspace E.

    For y in E, |x − y|² = |x − P_E x|² + |P_E x − y|², so for p = 2 and the chordal cost

        W₂²(μ, ν) = Σ w_i |x_i − P_E x_i|² + W₂²(P_E#μ, ν),

    a problem in dimension m = dim E. For m = 1 the law has two atoms ±e and every p and cost is exact in O(N).
    For m ≥ 2 the network simplex solves the problem (for other p and cost, the one in full dimension) up to
    `exact_up_to` tokens. Beyond, the value is an upper bound in O(N), the coupling of x_i with y_i, and the lower
    bound comes from `directions` lines drawn from `seed` and from the covariances.

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
    p, cost = check_order(p), check_cost(cost)
    check_count(exact_up_to, "exact_up_to", least=0)
    check_count(directions, "directions")
    check_count(seed, "seed", least=0)
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
        return _reduced(mu, nu, E, small, directions, seed)
    found = simplex(mu, nu, p, cost) if small else None
    return found or token_coupling(mu, nu, p, cost, geodesic(lower(mu, nu, p, directions, seed), cost))


def _reduced(mu: Measure, nu: Measure, E: Floats, small: bool, directions: int, seed: int) -> Distance:
    inside = mu.points @ E
    outside = float(mu.weights @ token_costs(mu.points, inside @ E.T, 2.0, "chordal"))
    flat_mu, flat_nu = Measure(inside, mu.weights), Measure(nu.points @ E, nu.weights)
    found = simplex(flat_mu, flat_nu, 2.0, "chordal", plus=outside) if small else None
    if found is not None:
        return replace(found, method=f"network simplex in dimension {E.shape[1]}")
    least = lower(flat_mu, flat_nu, 2.0, directions, seed)
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
