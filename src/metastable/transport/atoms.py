"""The exact distance from a cloud to a law with two atoms, at any number of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metastable.arrays import Array, matrix, vector
from metastable.errors import BadInput
from metastable.transport.measure import Distance, Floats, Measure, exactly, numbers, order_and_cost, token_costs

SORTABLE = 4096
"""Selection ends with a sort of at most this many tokens."""
SAMPLE = 1024
"""Tokens in a sample that brackets the token to find, drawn at random: every k-th token of a lattice is biased."""
TINY = 1e-300
MASS_ROUNDING = 64 * 2.0**-52
"""Largest difference between two sums of the same weights in different orders."""


def two_atoms(
    points: Array, weights: Array, atoms: Array, masses: Array, p: float = 2, cost: str = "chordal"
) -> Distance:
    """W_p between Σ w_i δ_{x_i} and m₀ δ_{a₀} + m₁ δ_{a₁}, exact, in O(N).

    The first atom takes its mass m₀ from the tokens in the order of c(x, a₀)^p − c(x, a₁)^p. One token (or
    one group of tokens with the same difference) is split where the mass runs out. Selection finds this token
    without sorting. A difference of mass below 1e-14 counts as rounding, and no token is split for it.

    Shapes: points x (N, d), weights (N,), atoms (2, d), masses (2,). Weights and masses are 0 or more and are
    scaled to sum 1. The ground cost is |x − y|^p ("chordal") or the angle to the power p ("geodesic").

    Examples
    --------
    Half of a single token moves a quarter of the way round the circle, and half of it stays:

    >>> d = two_atoms([[1.0, 0.0]], [1.0], [[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5], p=1)
    >>> round(d.value, 6)
    0.707107
    """
    p, cost = order_and_cost(p, cost)
    x, a = matrix(points, "points"), matrix(atoms, "atoms")
    if tuple(a.shape) != (2, x.shape[1]):
        raise BadInput(f"atoms have shape {tuple(a.shape)}, expected (2, {x.shape[1]}): one row an atom")
    w, m = (numbers(vector(v, name, n)) for v, name, n in ((weights, "weights", len(x)), (masses, "masses", 2)))
    for v, name in ((w, "weights"), (m, "masses")):
        if v.min() < 0 or v.sum() <= 0:
            raise BadInput(f"{name} have minimum {v.min():g} and sum {v.sum():g}; they must be 0 or more and not all 0")
    return to_two_atoms(Measure(numbers(x), w), numbers(a), m, p, cost)


def to_two_atoms(mu: Measure, atoms: Floats, masses: Floats, p: float, cost: str) -> Distance:
    """`two_atoms` without the checks. The weights may have any sum."""
    weights, mass = mu.weights, mu.weights.sum()
    first, second = (token_costs(mu.points, atom, p, cost) for atom in atoms)
    keys = first - second
    target = mass * masses[0] / masses.sum()
    key = _threshold(keys, weights, float(target))
    taken, tied = keys < key, keys == key
    tied_mass = _mass(weights, tied)
    missing = target - _mass(weights, taken)
    if tied_mass - missing <= MASS_ROUNDING * mass:
        taken |= tied
    total = weights @ np.where(taken, first, second)
    if MASS_ROUNDING * mass < missing < tied_mass - MASS_ROUNDING * mass:
        total += missing / tied_mass * ((weights * tied) @ keys)
    return exactly(float(total / mass), "two atoms", p, cost)


def few_atoms(m: Measure) -> Measure | None:
    """The atoms of a law that has at most two of them, up to the rounding of its points; None if it has more."""
    first = m.points[0]
    away = token_costs(m.points, first, 1.0, "chordal") > m.rounding
    if not away.any():
        return Measure(m.points[:1], np.ones(1))
    second = m.points[away.argmax()]
    if (token_costs(m.points[away], second, 1.0, "chordal") > m.rounding).any():
        return None
    return Measure(np.stack([first, second]), np.array([m.weights[~away].sum(), m.weights[away].sum()]))


def to_few_atoms(mu: Measure, atoms: Measure, p: float, cost: str) -> Distance:
    if len(atoms.points) == 2:
        return to_two_atoms(mu, atoms.points, atoms.weights, p, cost)
    total = mu.weights @ token_costs(mu.points, atoms.points[0], p, cost)
    return exactly(float(total / mu.weights.sum()), "one atom", p, cost)


def _threshold(keys: Floats, weights: Floats, target: float) -> float:
    """A key such that the tokens below it weigh at most `target` and those up to it at least that.

    Each round brackets the key by a sample and drops the tokens outside the bracket, until few are left to sort.
    A bad sample costs time but does not change the answer.
    """
    below, mass, random = 0.0, float(weights.sum()), np.random.default_rng(0)
    while (size := len(keys)) > SORTABLE:
        some = random.integers(size, size=SAMPLE)
        low, high = _bracket(keys[some], weights[some], (target - below) / max(mass, TINY))
        keep = keys <= low
        light = _mass(weights, keep)
        if target <= below + light:
            mass = light
        else:
            put_aside, keep = keep, (keys > low) & (keys >= high)
            heavy = _mass(weights, keep)
            if target > below + mass - heavy:
                below, mass = below + mass - heavy, heavy
            else:
                keep = ~(put_aside | keep)
                below, mass = below + light, mass - light - heavy
        keys, weights = keys[keep], weights[keep]
        if len(keys) == 0:
            return low
        if keys.min() == keys.max() or len(keys) > 0.9 * size:
            break
    if keys.min() == keys.max():
        return float(keys[0])
    order = np.argsort(keys)
    place = np.searchsorted(below + np.cumsum(weights[order]), target)
    return float(keys[order[min(int(place), len(order) - 1)]])


def _mass(weights: Floats, chosen: NDArray[np.bool_]) -> float:
    # Pairwise summation: a dot product adds 10⁶ equal weights with an error of 1e-13, enough to split a token.
    return float(np.multiply(weights, chosen).sum())


def _bracket(keys: Floats, weights: Floats, share: float) -> tuple[float, float]:
    """Two keys of the sample that probably enclose the key with this share of the mass below it."""
    order = np.argsort(keys)
    shares = np.cumsum(weights[order])
    low, high = np.searchsorted(shares / max(shares[-1], TINY), [share - 0.05, share + 0.05])
    last = len(order) - 1
    return float(keys[order[min(low, last)]]), float(keys[order[min(high, last)]])
