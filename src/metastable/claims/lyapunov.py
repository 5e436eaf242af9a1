"""How fast the zero-temperature law comes to its limit: the exponents of W₁ and W₂, and that of a single token.

A token near E converges at c = g/|Bᵀe|. A token that starts at the distance ρ = |Πx| from the set {Πx = 0} first
leaves that set at the rate κ = g/|Bᵀx_r|, x_r being where the set is drawn to, and has left it at (1/κ) log(1/ρ). Under
a density the mass of ρ is ρ^{m−1}dρ, m = dim E, so that up to constants

    W_p^p(t) = ∫₀¹ min(1, e^{−pct} ρ^{−pc/κ}) ρ^{m−1} dρ,

which decays like e^{−prt} with r = min(c, mκ/p), and like t·e^{−prt} where the two tie. With |Bᵀx| constant (κ = c):
W₂ at c/2 and W₁ like t·e^{−ct} for m = 1, W₂ like √t·e^{−ct} for m = 2, and W₂ at c for m ≥ 3. Where |Bᵀe| varies over
the sphere of E its largest values win, with a negative power of t (see `decay`). Derived here, not in the paper.

Fits are of log W = a − rt + q·log(t + t₀) with t₀ free where q ≠ 0, over rt = 7 … 12. The clouds are graded towards
{Πx = 0}, which resolves tails of mass 10⁻¹². For m = 1 the distance is exact. For m ≥ 2 it lies between the coupling of
each token with its own limit and the distance to the unit sphere of E; the rate of either is reported and the
interval contains both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from metastable.claims.claim import Claim, Tell
from metastable.claims.decay import Forecast, fitted, forecast
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided
from metastable.claims.prescribed import clocked, too_long, without_limit
from metastable.cloud import Cloud, graded
from metastable.errors import SimulationStopped
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.theory import Theory
from metastable.transport import coupling, to_limit

TOLERANCE = 0.03
"""Largest relative error of a rate: the terms that the formula leaves out fall like e^{−rt/2} and add about 1 %."""
WIDEST = 0.15
"""A half-width beyond this share of the prediction decides nothing: c and c/2 must stay far apart."""
TOKEN_TOLERANCE = 0.02
"""Largest relative error of the median token's rate, which has no factor t^q."""
WINDOW = (7.0, 12.0)
"""The fit's window in rt: late enough for the leading term, early enough for tails that float64 resolves."""
DEEPEST = 24.0
"""Largest κt: tokens that are late by then started at e^{−24} ≈ 4·10⁻¹¹ from {Πx = 0}, 10⁵ roundings away."""
SMALLEST = 1e-13
"""The innermost stratum of the graded clouds."""


@dataclass(frozen=True)
class Case:
    values: tuple[float, ...]
    clocks: tuple[float, ...]
    shear: float
    seed: int

    @property
    def name(self) -> str:
        leading = sum(v == max(self.values) for v in self.values)
        kind = "symmetric" if self.shear == 0 else "non-normal"
        clock = "constant clock" if self.shear == 0 and len(set(self.clocks)) == 1 else "uneven clock"
        return f"d = {len(self.values)}, dim E = {leading}, {kind}, {clock}"


@dataclass(frozen=True)
class Sizes:
    cases: tuple[Case, ...]
    tokens: int
    seeds: int
    points: int


def distances(cloud: Cloud, ends: Cloud, theory: Theory, p: int) -> tuple[float, float]:
    """(upper, lower) of W_p to the limit law; equal for dim E = 1."""
    basis = theory.basis.double().numpy()
    if basis.shape[1] == 1:
        value = to_limit(cloud, ends, basis, p).value
        return value, value
    x = cloud.points.numpy()
    inside = x @ basis
    nearest = (inside / np.linalg.norm(inside, axis=1, keepdims=True)) @ basis.T
    least = cloud.weights.numpy() @ np.linalg.norm(x - nearest, axis=1) ** p
    return coupling(cloud, ends, p).value, float(least ** (1 / p))


def _windows(theory: Theory, forecasts: dict[int, Forecast], points: int) -> dict[int, np.ndarray]:
    escape = theory.escape_rate if math.isfinite(theory.escape_rate) else 0.0
    found = {}
    for p, f in forecasts.items():
        last = WINDOW[1] if escape == 0 else min(WINDOW[1], DEEPEST * f.rate / escape)
        found[p] = np.linspace(min(WINDOW[0], 0.6 * last), last, points) / f.rate
    return found


def token_times(theory: Theory) -> np.ndarray:
    """Three times between which a token's rate is read: 4/c apart, or whole half-turns of a complex second pair."""
    begin, apart = 8 / theory.rate, 4 / theory.rate
    groups, second = theory.attention.lower_groups, theory.eigenvalues[theory.attention.multiplicity]
    if theory.dim == 1 and groups[0][2]:
        half = math.pi / abs(float(second.imag)) * float(theory.clock(theory.basis.T)[0])
        apart = half * max(1, round(apart / half)) if half < 4 * apart else apart
    return begin + apart * np.arange(3)


@dataclass(frozen=True)
class Measured:
    """What one cloud gave: for each p the times and (upper, lower) distances, and the median token's rate over c."""

    curves: dict[int, tuple[np.ndarray, np.ndarray]]
    token: float
    drift: float


def _measured(head: Head, theory: Theory, windows: dict[int, np.ndarray], tokens: int, seed: int) -> Measured:
    # Another number of tokens for every seed, because in two dimensions nothing else is random.
    cloud = graded(tokens + 101 * seed, head, SMALLEST, seed)
    alone = token_times(theory)
    times = np.unique(np.concatenate([*windows.values(), alone]))
    path = zero_temperature_flow(head, cloud, torch.from_numpy(times))
    ends = cloud.moved_to(theory.limit(cloud.points))
    curves = {}
    for p, window in windows.items():
        at = np.searchsorted(times, window)
        curves[p] = (window, np.array([distances(cloud.moved_to(path[i]), ends, theory, p) for i in at]))
    away = [np.linalg.norm((path[i] - ends.points).numpy(), axis=1) for i in np.searchsorted(times, alone)]
    own = theory.gap / theory.clock(ends.points).double().numpy()
    seen = -np.diff(np.log(np.maximum(away, 1e-300)), axis=0) / (alone[1] - alone[0]) / own
    early, late = (_median(rates, cloud.weights.numpy()) for rates in seen)
    return Measured(curves, late, abs(late - early))


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weights[order]), 0.5)]])


def interval(samples: list[Measured], p: int, power: float) -> tuple[float, float, float]:
    """The mean rate over the clouds, with Student's t over them, the drift of the later half and both bounds inside."""
    rates, late, least = [], [], []
    for sample in samples:
        times, found = sample.curves[p]
        rates.append(fitted(times, found[:, 0], power))
        late.append(fitted(times[len(times) // 2 :], found[len(times) // 2 :, 0], power))
        least.append(fitted(times, found[:, 1], power))
    value, n = float(np.mean(rates)), len(rates)
    sampling = float(stats.t.ppf(0.975, n - 1) * np.std(rates, ddof=1) / math.sqrt(n)) if n > 1 else math.inf
    reach = sampling + abs(float(np.mean(late)) - value) + abs(float(np.mean(least)) - value)
    return value, value - reach, value + reach


def _checks(name: str, samples: list[Measured], forecasts: dict[int, Forecast]) -> tuple[list[Check], list[tuple]]:
    checks, rows = [], []
    for p, f in forecasts.items():
        title = f"{name}: rate of W{'₁' if p == 1 else '₂'}"
        if f.reason:
            checks.append(undecided(title, f.reason))
            continue
        found = interval(samples, p, f.power)
        wide = found[2] - found[0] > WIDEST * f.rate
        allowed = ((1 - TOLERANCE) * f.rate, (1 + TOLERANCE) * f.rate)
        checks.append(
            undecided(title, f"interval {found[1]:.4g} to {found[2]:.4g} around {f.rate:.4g} is too wide", found[0])
            if wide and found[1] <= allowed[1] and found[2] >= allowed[0]
            else overlapping(title, found, *allowed)
        )
        plain = float(np.mean([fitted(s.curves[p][0], s.curves[p][1][:, 0], 0.0) for s in samples]))
        rows.append((name, f"W{p}", f.rate, f.power, plain, *found, found[0] / f.rate))
    tokens = [sample.token for sample in samples]
    drift = max(sample.drift for sample in samples)
    spread = (float(np.mean(tokens)), min(tokens) - drift, max(tokens) + drift)
    checks.append(overlapping(f"{name}: median token's rate over c", spread, 1 - TOKEN_TOLERANCE, 1 + TOKEN_TOLERANCE))
    rows.append((name, "median token, over c", 1.0, 0.0, spread[0], *spread, spread[0]))
    return checks, rows


def _samples(head: Head, forecasts: dict[int, Forecast], sizes: Sizes) -> list[Measured]:
    theory = head.theory()
    windows = _windows(theory, forecasts, sizes.points)
    return [_measured(head, theory, windows, sizes.tokens, seed) for seed in range(sizes.seeds)]


def _not_tested(head: Head, forecasts: dict[int, Forecast]) -> str | None:
    return too_long(head, max(WINDOW[1] / f.rate for f in forecasts.values()))


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """The rates of W₁, W₂ and the median token, for every head."""
    if head is not None and (reason := without_limit(head)):
        return Finding(f"no rate to test: {reason}", "nothing was run", (undecided("rates", reason),))
    own = [(c.name, clocked(c.values, c.clocks, c.seed, c.shear)) for c in sizes.cases]
    heads = own if head is None else [("the given head", head.to(torch.float64))]
    checks: list[Check] = []
    rows: list[tuple] = []
    curves = []
    for i, (name, one) in enumerate(heads):
        forecasts = {p: forecast(one.theory(), p) for p in (1, 2)}
        if reason := _not_tested(one, forecasts):
            checks.append(undecided(name, reason))
            continue
        try:
            samples = _samples(one, forecasts, sizes)
        except SimulationStopped as stopped:
            checks.append(undecided(name, str(stopped)))
            continue
        more, lines = _checks(name, samples, forecasts)
        checks += more
        rows += lines
        times, found = samples[0].curves[2]
        curves.append((name, forecasts[2].rate * times, found[:, 0]))
        tell((i + 1) / len(heads))
    return _finding(sizes, checks, rows, curves)


def _finding(sizes: Sizes, checks: list[Check], rows: list[tuple], curves: list[tuple]) -> Finding:
    if not rows:
        return Finding(f"no rate to test: {checks[0].note}", "nothing was run", tuple(checks))
    laws = [row for row in rows if row[1] in ("W1", "W2")]
    worst = max((abs(row[-1] - 1) for row in laws), default=math.nan)
    token = max((abs(row[-1] - 1) for row in rows if row not in laws), default=math.nan)
    sentence = (
        f"{len(laws)} measured rates of W₁ and W₂ differ from min(c, mκ/p) by at most {100 * worst:.2g} %, "
        f"and the median token's rate from c by at most {100 * token:.2g} %"
    )
    series = [Series(name, tuple(x), tuple(y)) for name, x, y in curves]
    grid = np.linspace(*WINDOW, 40)
    scale = max((y[0] * math.exp(x[0]) for _, x, y in curves), default=1.0)
    series.append(Series("slope of e^(−rt)", tuple(grid), tuple(scale * np.exp(-grid)), style="dashed"))
    for p in ("W1", "W2"):
        ratios = [row[-1] for row in laws if row[1] == p]
        series.append(Series(f"{p} rate", tuple(range(1, len(ratios) + 1)), tuple(ratios), style="points", panel=1))
    picture = Picture(
        "How fast the law comes to its limit",
        "Above: W₂ to the limit law over time in units of its predicted rate r, where every head should fall with the "
        "dashed slope, up to a power of t. Below: fitted over predicted rate, in the order of the table.",
        (Panel("time rt", "W₂", log_y=True), Panel("head", "measured rate / predicted rate")),
        tuple(series),
    )
    predicted = ("head", "quantity", "predicted rate r", "power q of t")
    measured = ("rate without t^q", "measured rate", "from", "to", "measured/predicted")
    horizon = f"rt = {WINDOW[0]:g} to {WINDOW[1]:g}, {sizes.seeds} graded clouds of {sizes.tokens} tokens and more"
    return Finding(
        sentence, horizon, tuple(checks), (picture,), (Table("rates", (*predicted, *measured), tuple(rows)),)
    )


_CASES = (
    Case((1.0, 0.3), (0.7, 1.4), 0.6, 1),
    Case((1.0, 0.4), (1.0, 1.0), 0.0, 2),
    Case((1.0, 0.4, -0.5), (1.2, 0.8, 0.8), 0.6, 3),
    Case((1.0, 1.0, 0.4), (1.0, 1.0, 1.0), 0.0, 4),
    Case((1.0, 1.0, 0.4, -0.2), (1.0, 0.7, 0.6, 0.6), 0.6, 5),
    Case((1.0, 1.0, 1.0, 0.4, -0.2), (1.0, 1.0, 1.0, 0.8, 0.8), 0.6, 6),
)

CLAIM = Claim(
    "lyapunov",
    "Lyapunov rate",
    "At zero temperature a token converges at c = g/|Bᵀe|, and the law's distance to its limit is of the order e^{−ct} "
    "[paper]; with its late tokens, W_p decays like t^q e^{−rt} with r = min(c, κ·dim E/p), which is c/2 for W₂ and "
    "dim E = 1 where |Bᵀx| is constant [derived].",
    check,
    quick=Sizes(_CASES, 2000, 3, 11),
    full=Sizes(_CASES, 60_000, 8, 21),
)
