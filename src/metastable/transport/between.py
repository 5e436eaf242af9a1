"""The distance between two clouds: which method, and when."""

from __future__ import annotations

from metastable.cloud import Cloud
from metastable.errors import BadInput, choice
from metastable.transport.atoms import few_atoms, to_few_atoms
from metastable.transport.bounds import bounds, coupling
from metastable.transport.distance import (
    Distance,
    Measure,
    check_cost,
    check_count,
    check_order,
    two_measures,
)
from metastable.transport.line import sliced
from metastable.transport.simplex import PAIRS, fits, simplex

METHODS = ("auto", "exact", "bounds", "sliced", "coupling")


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
