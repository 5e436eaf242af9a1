"""Clusters that hold together under V alone: their path, their width, where they arrive or how they circle.

From the time that all clusters are narrow (see `late_clusters`), with x̄ the centre of one:

- x̄ follows e^{tV}, apart from what others that it sees draw it off;
- its width shrinks like exp(−∫⟨x̄, Vx̄⟩dt);
- λ₁ real: it comes to Πx̄/|Πx̄| at the rate λ₁ − Re λ₂, and if λ₁ is simple at most the two clusters ±v are left;
- a complex pair a ± iω with the left eigenvector l: arg⟨l, x̄⟩ grows by ω a time unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from metastable.claims.finding import Check, Series, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.claims.late_clusters import LateClusters, elapsed
from metastable.run.run import Run

PATH = 2e-3
"""Largest distance of a narrow cluster from e^{tV}x̄; its width of 0.01 β^{−1/2} bends the path by about 1e-4."""
CROWDED = 0.1
"""Clusters that others draw further than this off their way are not moved by V alone, and decide nothing."""
END = 1e-3
"""Largest distance of the last tokens from the predicted end: horizons leave e^{−rate·t} well below it."""
RATE = 0.03
"""Relative error of a rate or frequency; later eigenvalues fade only gradually over the fitted stretch."""
FITTED = (1e-9, 1e-3)
"""Distances from which a rate is read: past the first bend, above rounding."""


@dataclass
class Part:
    """What one head contributes."""

    checks: list[Check]
    row: tuple[object, ...]
    series: list[Series]


def settling(name: str, label: str, run: Run, found: LateClusters) -> Part:
    """A run whose clusters hold together: their path, their width, and where they end or how they circle."""
    expected, late = found.by_value_alone(run), found.late
    centres = found.centres[:, found.onset :]
    off = float(np.linalg.norm(centres - expected, axis=2).max())
    drawn, top = found.seen(run), run.theory().terminal
    checks = [_on_course(f"distance of the clusters from e^(tV), {name}", off, PATH, drawn)]
    if not top.rotates:
        goals = top.limit(torch.from_numpy(centres[:, 0])).numpy()
        missed = float(np.linalg.norm(centres[:, -1] - goals, axis=1).max())
        checks.append(_on_course(f"distance of the last clusters from Πx/|Πx|, {name}", missed, END, drawn))
    ends, value, measured, series = (_circling if top.rotates else _arriving)(name, run, centres, expected, late)
    checks += [_narrowing(name, run, found), *ends]
    begins = f"{late[0]:.4g}"
    row = (name, label, f"{value:.4g}", f"{measured:.4g}", len(found.shares), begins, _from_limit(run, centres[:, -1]))
    return Part(checks, row, series)


def _on_course(title: str, off: float, allowed: float, drawn: float) -> Check:
    """`off` against what is allowed, plus what clusters that see each other account for."""
    if drawn > CROWDED:
        return undecided(title, f"clusters see each other, enough to be drawn {drawn:.2g} off their way", off)
    return within(
        title, off, high=allowed + drawn, note=f"other clusters account for {drawn:.1e}" if drawn > END else ""
    )


def _narrowing(name: str, run: Run, found: LateClusters) -> Check:
    """log width against −∫⟨x̄, Vx̄⟩dt for the largest cluster: slope 1."""
    x, width = found.centres[0, found.onset :], found.spreads[0, found.onset :]
    exponent = -elapsed(found.late, np.einsum("ti,ij,tj->t", x, run.head.V.numpy(), x))
    seen = width > 1e-12
    title = f"width against ∫⟨x̄, Vx̄⟩dt, slope, {name}"
    if seen.sum() < 5:
        return undecided(title, "the cluster was narrower than rounding from the start")
    return overlapping(title, line(exponent[seen], np.log(width[seen])).interval, 1 - RATE, 1 + RATE)


def _from_limit(run: Run, ends: np.ndarray) -> str:
    """How far from E, the metastable limit of M, the run ended."""
    if run.theory().no_limit:
        return "no E"
    basis = run.theory().basis.numpy()
    return f"{_off(ends[:, None], basis)[0]:.4g}"


Ends = tuple[list[Check], float, float, list[Series]]


def _arriving(name: str, run: Run, centres: np.ndarray, expected: np.ndarray, late: np.ndarray) -> Ends:
    top = run.theory().terminal
    basis = top.basis.numpy()
    ends = [within(f"distance of the last clusters from V's eigenspace, {name}", _off(centres, basis)[-1], high=END)]
    if top.dim == 1:
        ends.append(_at_most_two(name, centres[:, -1]))
    measured, predicted = _off(centres, basis), _off(expected, basis)
    fitted = (measured > FITTED[0]) & (measured < FITTED[1])
    series = [
        Series(name, tuple(late), tuple(np.maximum(measured, 1e-12))),
        Series(f"e^(tV), {name}", tuple(late), tuple(np.maximum(predicted, 1e-12)), style="dotted"),
    ]
    title = f"rate at which clusters come to V's eigenspace, {name}"
    if fitted.sum() < 5:
        return (
            [*ends, undecided(title, "too few saved times between first bend and rounding")],
            top.gap,
            math.nan,
            series,
        )
    fit = line(late[fitted], -np.log(measured[fitted]))
    ends.append(overlapping(title, fit.interval, (1 - RATE) * top.gap, (1 + RATE) * top.gap))
    return ends, top.gap, fit.slope, series


def _off(x: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Largest distance of clusters (G, T, d) from a subspace, at each time."""
    return np.asarray(np.linalg.norm(x - x @ basis @ basis.T, axis=2).max(axis=0))


def _at_most_two(name: str, ends: np.ndarray) -> Check:
    """Number of clusters, which are antipodal if there are two; any others would be elsewhere than ±v."""
    title = f"clusters left, one or an antipodal pair, {name}"
    if len(ends) == 2 and np.linalg.norm(ends[0] + ends[1]) > END:
        return within(title, 2, 1, 1, "two clusters that are not opposite to each other")
    return within(title, len(ends), 1, 2)


def _circling(name: str, run: Run, centres: np.ndarray, expected: np.ndarray, late: np.ndarray) -> Ends:
    values, vectors = np.linalg.eig(run.head.V.numpy().T)
    frequency = run.theory().terminal.frequency
    left = vectors[:, np.argmax(values.real + 1e-6 * (values.imag > 0))]
    angle, predicted = (np.unwrap(np.angle(c[0] @ left)) for c in (centres, expected))
    fit = line(late, angle)
    checks = [
        overlapping(f"frequency, {name}", fit.interval, (1 - RATE) * frequency, (1 + RATE) * frequency),
        within(f"turns seen, {name}", abs(angle[-1] - angle[0]) / (2 * math.pi), low=1.0),
    ]
    begin, turn = angle[0], 2 * math.pi
    series = [
        Series(name, tuple(late), tuple((angle - begin) / turn), panel=1),
        Series(f"e^(tV), {name}", tuple(late), tuple((predicted - begin) / turn), style="dotted", panel=1),
    ]
    return checks, frequency, fit.slope, series
