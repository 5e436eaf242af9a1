"""The noise floor: how far two samples of the same law are from each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.transport.atoms import Atoms, few_atoms
from metastable.transport.measure import Floats, Measure, check_cost, check_count, check_order, measure, token_costs
from metastable.transport.simplex import simplex

LARGEST_SAMPLE = 500
"""Samples of laws with more than two atoms have at most this many tokens."""


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

    n is `size`, or else the effective number of tokens 1/Σ w_j². A distance between this law and an *independent*
    sample of n tokens means nothing below this floor. If the law has at most two atoms, W_p^p is c^p times the
    difference of two binomial counts over n, and any n is done exactly. Other laws are sampled with at most 500
    tokens, and then the floor at the true n is **smaller** than the mean given here, because it falls as n grows.

    Examples
    --------
    >>> atoms = Cloud([[1.0, 0.0], [-1.0, 0.0]])
    >>> floor = noise_floor(atoms, p=1, size=10_000, repeats=1000)
    >>> abs(floor.mean - 2 / (np.pi * 10_000) ** 0.5) < 0.001  # 2·E|k − k'|/n = 2/√(πn)
    True
    """
    p, cost = check_order(p), check_cost(cost)
    check_count(repeats, "repeats", least=2)
    rng = np.random.default_rng(check_count(seed, "seed", least=0))
    law = measure(cloud, "the cloud").positive()
    tokens = max(1, round(1.0 / float(law.weights @ law.weights))) if size is None else check_count(size, "size")
    atoms = few_atoms(law)
    if atoms is not None:
        n = tokens
        values = _between_atoms(atoms, n, p, cost, repeats, rng)
    else:
        n = min(tokens, LARGEST_SAMPLE)
        values = np.array([_between_samples(law, n, p, cost, rng) for _ in range(repeats)])
    return NoiseFloor(float(values.mean()), float(values.std(ddof=1)), repeats, n, tokens, p, cost)


def _between_atoms(atoms: Atoms, n: int, p: float, cost: str, repeats: int, rng: np.random.Generator) -> Floats:
    if len(atoms.points) == 1:
        return np.zeros(repeats)
    counts = rng.binomial(n, min(float(atoms.masses[0]), 1.0), size=(2, repeats))
    across = float(token_costs(atoms.points[:1], atoms.points[1], p, cost)[0])
    return np.asarray((across * np.abs(counts[0] - counts[1]) / n) ** (1.0 / p))


def _between_samples(law: Measure, n: int, p: float, cost: str, rng: np.random.Generator) -> float:
    equal = np.full(n, 1.0 / n)
    one, other = (Measure(law.points[rng.choice(len(law.points), size=n, p=law.weights)], equal) for _ in range(2))
    found = simplex(one, other, p, cost)
    if found is None:
        raise BadInput(f"the network simplex gave up on samples of {n} tokens; give a smaller size=")
    return found.value
