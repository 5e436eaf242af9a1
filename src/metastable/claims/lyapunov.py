"""How fast the zero-temperature law comes to its limit: the exponents of W₁ and W₂, and that of a single token.

A token near E converges at c = g/|Bᵀe|. A token that starts at the distance ρ = |Πx| from the set {Πx = 0} first
leaves that set at the rate κ = g/|Bᵀx_r|, where x_r attracts the tokens of the set, and has left it at (1/κ) log(1/ρ).
Under a density the mass of ρ is ρ^{m−1}dρ, m = dim E, so that up to constants

    W_p^p(t) = ∫₀¹ min(1, e^{−pct} ρ^{−pc/κ}) ρ^{m−1} dρ,

which decays like e^{−prt} with r = min(c, mκ/p), and like t·e^{−prt} where the two tie. A later group of eigenvectors
may keep its tokens for longer: the formula for all groups is in `Theory.law_rate`, and such heads are INCONCLUSIVE
here. With |Bᵀx| constant no later group does, and κ = c:
W₂ at c/2 and W₁ like t·e^{−ct} for m = 1, W₂ like √t·e^{−ct} for m = 2, and W₂ at c for m ≥ 3. Where |Bᵀe| varies over
the sphere of E its largest values dominate, with a negative power of t. So W_p ~ t^q e^{−rt} with

    q = 1/p          where c and mκ/p tie,
    q = −(n − n₁)/2p otherwise: Laplace's method around the slowest points of E (or of E₂ if the late tokens dominate),
                     where n is the dimension of that space and n₁ the multiplicity of the largest |Bᵀe| on its sphere.

Derived here, not in the paper.

Fits are of log W = a − rt + q·log(t + t₀) with t₀ free where q ≠ 0, over rt = 7 … 12. The clouds are graded towards
{Πx = 0}, which resolves tails of mass 10⁻¹². For m = 1 the distance is exact. For m ≥ 2 it lies between the coupling of
each token with its own limit and the distance to the unit sphere of E; the reported interval contains the rates of
both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize_scalar

from metastable.claims.experiment import Finding, Interval, Panel, Tell, claim, line, size, told
from metastable.claims.heads import clocked, too_long, without_limit
from metastable.cloud import Cloud, graded
from metastable.errors import SimulationStopped
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.theory import Theory
from metastable.transport import coupling, to_limit

TOLERANCE = 0.03
"""Largest relative error of a rate: the terms that the formula leaves out fall like e^{−rt/2} and add about 1 %."""
WIDEST = 0.15
"""Largest half-width of an interval over the prediction: c and c/2 must stay far apart."""
TOKEN_TOLERANCE = 0.02
"""Largest relative error of the median token's rate, which has no factor t^q."""
WINDOW = (7.0, 12.0)
"""The fit's window in rt: late enough for the leading term, early enough for tails that float64 resolves."""
DEEPEST = 24.0
"""Largest κt: tokens that are late by then started at e^{−24} ≈ 4·10⁻¹¹ from {Πx = 0}, 10⁵ roundings away."""
SMALLEST = 1e-13
"""The innermost stratum of the graded clouds."""
NEAR_TIE = 0.25
"""Largest relative difference of rates c and mκ/p that nearly tie: they would need a longer window."""


class ClockedCase(NamedTuple):
    """The eigenvalues, clocks, shear and seed of a `clocked` head."""

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


CASES = (
    ClockedCase((1.0, 0.3), (0.7, 1.4), 0.6, 1),
    ClockedCase((1.0, 0.4), (1.0, 1.0), 0.0, 2),
    ClockedCase((1.0, 0.4, -0.5), (1.2, 0.8, 0.8), 0.6, 3),
    ClockedCase((1.0, 1.0, 0.4), (1.0, 1.0, 1.0), 0.0, 4),
    ClockedCase((1.0, 1.0, 0.4, -0.2), (1.0, 0.7, 0.6, 0.6), 0.6, 5),
    ClockedCase((1.0, 1.0, 1.0, 0.4, -0.2), (1.0, 1.0, 1.0, 0.8, 0.8), 0.6, 6),
)


class RateForecast(NamedTuple):
    """r and q of W_p ~ t^q e^{−rt}, or the reason why they cannot be tested."""

    rate: float
    power: float
    reason: str | None = None


def forecast(theory: Theory, p: int) -> RateForecast:
    """The rate that the package predicts, with the power of t derived above."""
    rate, token, tail = theory.law_rate(p), theory.rate, theory.escape_rate * theory.dim / p
    if _later(theory, p) < min(token, tail):
        return RateForecast(rate, 0.0, "a later eigenvector decides, and the graded cloud does not resolve its tail")
    if math.isclose(token, tail, rel_tol=1e-6):
        return RateForecast(rate, 1 / p)
    if abs(token - tail) < NEAR_TIE * min(token, tail):
        near = f"c = {token:.3g} and mκ/p = {tail:.3g} nearly tie"
        return RateForecast(rate, 0.0, f"{near}: the leading term would show only at much later times")
    if token < tail:
        return RateForecast(rate, -_codimension(theory, theory.basis.double().numpy()) / (2 * p))
    _, basis, pair = theory.attention.lower_groups[0]
    return RateForecast(rate, 0.0 if pair else -_codimension(theory, basis) / (2 * p))


def _later(theory: Theory, p: int) -> float:
    """The least rate of the tails at the third and later groups of eigenvalues, Σ_j (λ_j − λ_k)/(p·|Bᵀx_k|)."""
    values, rates = theory.eigenvalues.real.numpy(), [math.inf]
    for level, basis, _ in theory.attention.lower_groups[1:]:
        clock = float(np.linalg.norm(theory.head.B.double().numpy().T @ basis, 2))
        rates.append(float(np.maximum(values - level, 0).sum()) / max(p * clock, 1e-300))
    return min(rates)


def _codimension(theory: Theory, basis: np.ndarray) -> int:
    """The dimension of the sphere of the space, minus that of the set where |Bᵀe| is largest."""
    sizes = np.linalg.svd(theory.head.B.double().numpy().T @ basis, compute_uv=False)
    return int((sizes < (1 - 1e-6) * sizes[0]).sum())


def fitted(times: np.ndarray, distances: np.ndarray, power: float) -> float:
    """r of log W = a − rt + q·log(t + t₀)."""
    logs = np.log(distances)
    if power == 0:
        return -line(times, logs).slope

    def residual(shift: float) -> float:
        return line(times, logs - power * np.log(times + shift)).rms

    best = minimize_scalar(residual, bounds=(-0.9 * times[0], 4 * times[-1]), method="bounded", options={"xatol": 1e-6})
    return -line(times, logs - power * np.log(times + best.x)).slope


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


def window(theory: Theory, rate: float, points: int) -> np.ndarray:
    """The times of a fit: rt = 7 … 12, or earlier if tokens escape too fast."""
    fast = 0 < theory.escape_rate < math.inf
    last = min(WINDOW[1], DEEPEST * rate / theory.escape_rate) if fast else WINDOW[1]
    return np.linspace(min(WINDOW[0], 0.6 * last), last, points) / rate


def token_times(theory: Theory) -> np.ndarray:
    """Three times between which a token's rate is read: 4/c apart, or whole half-turns of a complex second pair."""
    begin, apart = 8 / theory.rate, 4 / theory.rate
    groups, second = theory.attention.lower_groups, theory.eigenvalues[theory.attention.multiplicity]
    if theory.dim == 1 and groups[0][2]:
        half = math.pi / abs(float(second.imag)) * float(theory.clock(theory.basis.T)[0])
        apart = half * max(1, round(apart / half)) if half < 4 * apart else apart
    return begin + apart * np.arange(3)


class CloudSample(NamedTuple):
    """The measurement of one cloud.

    curves : for each p the times (T,) and the (upper, lower) distances (T, 2)
    token, drift : the median token's rate over c, and its change from the earlier to the later interval
    """

    curves: dict[int, tuple[np.ndarray, np.ndarray]]
    token: float
    drift: float


def sample(head: Head, windows: dict[int, np.ndarray], tokens: int, seed: int) -> CloudSample:
    """Follow one graded cloud."""
    # The number of tokens depends on the seed, because nothing else is random in two dimensions.
    theory, cloud = head.theory(), graded(tokens + 101 * seed, head, SMALLEST, seed)
    alone = token_times(theory)
    times = np.unique(np.concatenate([*windows.values(), alone]))
    path = zero_temperature_flow(head, cloud, torch.from_numpy(times))
    ends = cloud.moved_to(theory.limit(cloud.points))
    curves = {}
    for p, at in windows.items():
        frames = path[np.searchsorted(times, at)]
        curves[p] = (at, np.array([distances(cloud.moved_to(x), ends, theory, p) for x in frames]))
    away = [np.linalg.norm((path[i] - ends.points).numpy(), axis=1) for i in np.searchsorted(times, alone)]
    own = theory.gap / theory.clock(ends.points).double().numpy()
    seen = -np.diff(np.log(np.maximum(away, 1e-300)), axis=0) / (alone[1] - alone[0]) / own
    early, late = (_median(rates, cloud.weights.numpy()) for rates in seen)
    return CloudSample(curves, late, abs(late - early))


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weights[order]), 0.5)]])


def interval(samples: list[CloudSample], p: int, power: float) -> Interval:
    """The mean rate over the clouds; the interval has Student's t, the drift of the later half, and both bounds."""
    rates, late, least = [], [], []
    for one in samples:
        times, seen = one.curves[p]
        rates.append(fitted(times, seen[:, 0], power))
        late.append(fitted(times[len(times) // 2 :], seen[len(times) // 2 :, 0], power))
        least.append(fitted(times, seen[:, 1], power))
    value, n = float(np.mean(rates)), len(rates)
    sampling = float(stats.t.ppf(0.975, n - 1) * np.std(rates, ddof=1) / math.sqrt(n)) if n > 1 else math.inf
    reach = sampling + abs(float(np.mean(late)) - value) + abs(float(np.mean(least)) - value)
    return value, value - reach, value + reach


@claim("lyapunov", "Lyapunov rate", obstacle=without_limit)
def check(
    head: Head | None,
    tell: Tell,
    cases: tuple[ClockedCase, ...] = CASES,
    tokens: int = size(2000, full=60_000),
    seeds: int = size(3, full=8),
    points: int = size(11, full=21),
) -> Finding:
    """At zero temperature the law's distance to its limit falls exponentially [paper]. A token converges at
    c = g/|Bᵀe|. The law waits for its late tokens: W_p decays like t^q e^{−rt}, where r is the least of c and of
    Σ_j (λ_j − λ_k)/(p|Bᵀx_k|) over the groups k of lower eigenvalues. The first group gives κ·dim E/p, and only heads
    for which no later group is slower are judged. For W₂, dim E = 1 and constant |Bᵀx|, r is c/2 [derived].

    Measure the rates of W₁, W₂ and the median token, for every head.

    cases : the claim's own heads
    tokens, seeds : tokens of a graded cloud, and the number of clouds
    points : times of a fit
    """
    own = [(c.name, clocked(c.values, c.clocks, c.seed, c.shear)) for c in cases]
    found = Finding(f"rt = {WINDOW[0]:g} to {WINDOW[1]:g}, {seeds} graded clouds of {tokens} tokens and more")
    curves: list[tuple[str, np.ndarray, np.ndarray]] = []
    for name, one in told(own if head is None else [("the given head", head)], tell):
        forecasts = {p: forecast(one.theory(), p) for p in (1, 2)}
        windows = {p: window(one.theory(), f.rate, points) for p, f in forecasts.items()}
        if reason := too_long(one, max(WINDOW[1] / f.rate for f in forecasts.values())):
            found.undecided(name, reason)
            continue
        try:
            samples = [sample(one, windows, tokens, seed) for seed in range(seeds)]
        except SimulationStopped as stopped:
            found.undecided(name, str(stopped))
            continue
        _judge(found, name, samples, forecasts)
        curves.append((name, forecasts[2].rate * windows[2], samples[0].curves[2][1][:, 0]))
    if not curves:
        found.sentence = f"no rate was measured: {found.checks[0].note}"
        return found
    picture = found.picture(
        "How fast the law comes to its limit",
        "Above: W₂ to the limit law over time in units of its predicted rate r, where every head should fall with the "
        "dashed slope, up to a power of t. Below: fitted over predicted rate, in the order of the table.",
        Panel("time rt", "W₂", log_y=True),
        Panel("head", "measured rate / predicted rate"),
    )
    for name, x, y in curves:
        picture.add(name, x, y)
    grid = np.linspace(*WINDOW, 40)
    scale = max(y[0] * math.exp(x[0]) for _, x, y in curves)
    picture.add("slope of e^(−rt)", grid, scale * np.exp(-grid), "dashed")
    ratios: dict[str, list[float]] = {"W1": [], "W2": [], "median token, over c": []}
    for row in found.tables["rates"]:
        ratios[row["quantity"]].append(row["measured/predicted"])
    for p in ("W1", "W2"):
        picture.add(f"{p} rate", range(1, len(ratios[p]) + 1), ratios[p], "points", panel=1)
    laws = ratios["W1"] + ratios["W2"]
    worst = max((abs(ratio - 1) for ratio in laws), default=math.nan)
    token = max(abs(ratio - 1) for ratio in ratios["median token, over c"])
    found.sentence = (
        f"{len(laws)} measured rates of W₁ and W₂ differ from min(c, mκ/p) by at most {100 * worst:.2g} %, "
        f"and the median token's rate from c by at most {100 * token:.2g} %"
    )
    return found


def _judge(found: Finding, name: str, samples: list[CloudSample], forecasts: dict[int, RateForecast]) -> None:
    """Add the checks and rows of one head."""

    def row(quantity: str, rate: float, power: float, plain: float, seen: Interval) -> None:
        predicted = {"head": name, "quantity": quantity, "predicted rate r": rate, "power q of t": power}
        measured = {"rate without t^q": plain, "measured rate": seen[0], "from": seen[1], "to": seen[2]}
        found.row("rates", {**predicted, **measured, "measured/predicted": seen[0] / rate})

    for p, f in forecasts.items():
        title = f"{name}: rate of W{'₁' if p == 1 else '₂'}"
        if f.reason:
            found.undecided(title, f.reason)
            continue
        seen = interval(samples, p, f.power)
        low, high = (1 - TOLERANCE) * f.rate, (1 + TOLERANCE) * f.rate
        if seen[2] - seen[0] > WIDEST * f.rate and seen[1] <= high and seen[2] >= low:
            wide = f"interval {seen[1]:.4g} to {seen[2]:.4g} around {f.rate:.4g} is too wide"
            found.undecided(title, wide, seen[0])
        else:
            found.overlapping(title, seen, low, high)
        plain = float(np.mean([fitted(one.curves[p][0], one.curves[p][1][:, 0], 0.0) for one in samples]))
        row(f"W{p}", f.rate, f.power, plain, seen)
    tokens, drift = [one.token for one in samples], max(one.drift for one in samples)
    spread = (float(np.mean(tokens)), min(tokens) - drift, max(tokens) + drift)
    found.overlapping(f"{name}: median token's rate over c", spread, 1 - TOKEN_TOLERANCE, 1 + TOKEN_TOLERANCE)
    row("median token, over c", 1.0, 0.0, spread[0], spread)
