"""The exact solution of a transport problem by the network simplex, with a lower bound that certifies it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable.transport.measure import Distance, Floats, Measure, pair_costs

ITERATIONS = 10**9
OPTIMAL = 1
"""POT's result code for a problem that is solved."""
PAIRS = 10**8
"""The largest problem the simplex is given, in pairs of tokens: 10⁴ × 10⁴, about a minute and 4 GB."""
BYTES_PER_PAIR = 48
"""Cost matrix, plan and the solver's own arrays, measured."""
MASS_UNIT = 2.0**-52


class Solution(NamedTuple):
    """Σ γ_ij C_ij of the plan γ (N, M), and a lower bound on the least possible total."""

    total: float
    lower: float
    plan: Floats


def solve(a: Floats, b: Floats, costs: Floats) -> Solution | None:
    """min Σ γ_ij C_ij over the couplings γ of the weights a (N,) and b (M,); None if the solver gives up.

    The lower bound is Σ a_i u_i + Σ b_j min_i(C_ij − u_i), which holds for every vector u. With the solver's own
    potentials it meets the total; a gap below 1e-12 of the largest cost is rounding and is reported as none.
    """
    # POT's `emd2` warns when the solver gives up. `emd_c` only returns a code.
    from ot.lp.emd_wrap import emd_c

    a, b = _exact_masses(a, b)
    # The solver stops at an absolute tolerance, so the costs are scaled to at most 1.
    scale = float(costs.max()) or 1.0
    costs = np.ascontiguousarray(costs / scale)
    plan, _, u, _, code = emd_c(a, b, costs, ITERATIONS, 1)
    if code != OPTIMAL:
        return None
    total = float(np.vdot(plan, costs))
    # The solver gives no potential where the rounded mass is 0. Such a row belongs to no coupling.
    rows = a > 0
    a, u, costs = (a, u, costs) if rows.all() else (a[rows], u[rows], costs[rows])
    dual = float(a @ u + b @ _transform(costs, u))
    lower = total if total - dual <= 1e-12 else max(dual, 0.0)
    return Solution(scale * total, scale * lower, plan)


def simplex(mu: Measure, nu: Measure, p: float, cost: str, plus: float = 0.0) -> Distance | None:
    """W_p(mu, nu), or (plus + W_p^p)^{1/p} for a reduced problem; None if the solver gives up."""
    solution = solve(mu.weights, nu.weights, pair_costs(mu.points, nu.points, p, cost))
    if solution is None:
        return None
    upper, lower = ((plus + total) ** (1.0 / p) for total in (solution.total, solution.lower))
    return Distance(upper, lower, upper, "network simplex", p, cost)


def fits(n: int, m: int) -> bool:
    """Whether a problem of n × m tokens is small enough for the simplex and for this machine's memory."""
    return n * m <= PAIRS and BYTES_PER_PAIR * n * m <= _free_memory()


def _exact_masses(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Both weights in whole multiples of 2⁻⁵², with equal sums, so that the solver's sums have no rounding.

    Otherwise mass of the order 1e-16 moves across the sphere, and W₂ cannot fall below 1e-8.
    """
    a, b = np.rint(a / MASS_UNIT), np.rint(b / MASS_UNIT)
    surplus = a.sum() - b.sum()
    short = b if surplus > 0 else a
    short[short.argmax()] += abs(surplus)
    return a * MASS_UNIT, b * MASS_UNIT


def _transform(costs: Floats, u: Floats) -> Floats:
    """min_i (C_ij − u_i) for each j, a few rows at a time."""
    best = np.full(costs.shape[1], np.inf)
    rows = max(1, 2**20 // costs.shape[1])
    for start in range(0, len(costs), rows):
        part = slice(start, start + rows)
        np.minimum(best, (costs[part] - u[part, None]).min(axis=0), out=best)
    return best


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as lines:
            kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf
    return 1024.0 * float(kilobytes)
