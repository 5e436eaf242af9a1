"""N tokens against the mean field: how fast, in N, the particle system comes to the continuity equation.

At fixed β and on a fixed stretch of time t ≤ T, the distance W₂(μ_t^N, ν^N) of N tokens to the limit law of their own
starting tokens is compared with that of the mean-field solution, W₂(μ_t, ν); the error of a run is the largest
difference over the saved times. For independent tokens it is a smooth function of an empirical measure, so by the
central limit theorem it fluctuates like N^{−1/2}; for equally spaced tokens it is the error of a quadrature, at least
of order N^{−1} (both derived here; the paper works with the limit N → ∞ itself).

The power −1/2 shows late. Where a token looks, the softmax sees a width of β^{−1/2}, and the flow has drawn the law out
by e^{κT} there, κ being the escape rate from {Πx = 0}; so N tokens are many only beyond N₀ = √β·e^{κT}, and the next
term of the expansion, of relative size N₀/N in the square, makes smaller N look steeper:

    error² ≈ (a²/N)(1 + N₀/N).

N₀ is an order of magnitude; that its factor is near 1 was seen, not derived. At β = 20, T = 3 this head has N₀ = 131,
for which the formula says −0.64 over N = 125 to 1000; studies/results/particles.json has −0.66. So the exponent is
taken twice: with the factor 1 + N₀/N divided out, and plainly, for N ≥ 3N₀ only. Its interval comes from drawing the
seeds again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from metastable.claims.claim import Claim, Tell
from metastable.claims.distance_curves import circle_heads, refusal, warm_curve
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.cloud import Cloud, equally_spaced, graded, uniform
from metastable.head import Head
from metastable.run.simulation import simulate

RANDOM = (-0.6, -0.4)
"""Exponent of N for independent tokens: −1/2, with a fifth for the terms of higher order."""
MANY = 3.0
"""The plain exponent is taken from N ≥ 3N₀: it is then −0.63 at its steepest and −0.56 over a decade."""
SPACED = (-math.inf, -0.9)
"""Exponent of N for equally spaced tokens: at least −1, with a tenth for the scatter over rotations."""
FAR_BELOW = 0.1
"""Largest error of the reference, in root mean square errors of the most random tokens."""
RESOLVED = 3.0
"""Errors of equally spaced tokens count while they are this many times that of the reference."""
CONFIDENCE = 0.95
STEP = 1e-5
RESAMPLED = 2000


@dataclass(frozen=True)
class Sizes:
    beta: float
    until: float
    frames: int
    tokens: tuple[int, ...]
    seeds: int
    turns: int
    tol: float


def curve_error(head: Head, cloud: Cloud, sizes: Sizes, target: np.ndarray) -> float:
    """The largest |W₂(μ_t^N, ν^N) − W₂(μ_t, ν)| over the saved times."""
    run = simulate(head, cloud, sizes.beta, sizes.until, tol=STEP, t_eval=sizes.frames, progress=False)
    return float(np.abs(run.distance().values - target).max())


def turned(n: int, share: float) -> Cloud:
    """n equally spaced tokens, turned by a share of their spacing."""
    angle = 2 * math.pi * share / n
    c, s = math.cos(angle), math.sin(angle)
    return Cloud(equally_spaced(n).points @ torch.tensor([[c, s], [-s, c]], dtype=torch.float64))


@dataclass(frozen=True)
class Errors:
    """The largest error over time of every run: random and spaced are (sizes, runs), graded is (sizes,)."""

    tokens: np.ndarray
    many: float
    reference: float
    random: np.ndarray
    spaced: np.ndarray
    graded: np.ndarray

    @property
    def corrected(self) -> np.ndarray:
        """The errors of independent tokens with √(1 + N₀/N) divided out."""
        return np.asarray(self.random / np.sqrt(1 + self.many / self.tokens)[:, None])


def measure(head: Head, sizes: Sizes, tell: Tell) -> Errors:
    exact = warm_curve(head, sizes.beta, np.linspace(0, sizes.until, sizes.frames), sizes.tol)
    many = math.sqrt(sizes.beta) * math.exp(min(head.theory().escape_rate * sizes.until, 100.0))
    random, spaced, crowded = [], [], []
    work = np.cumsum(np.array(sizes.tokens, dtype=float) ** 2)
    shares = (np.arange(sizes.turns) + 0.5) / sizes.turns
    for k, n in enumerate(sizes.tokens):
        random.append([curve_error(head, uniform(n, 2, seed=s), sizes, exact.distance) for s in range(sizes.seeds)])
        spaced.append([curve_error(head, turned(n, float(s)), sizes, exact.distance) for s in shares])
        crowded.append(curve_error(head, graded(n, head), sizes, exact.distance))
        tell(float(work[k] / work[-1]))
    error = float(exact.error.max())
    return Errors(np.array(sizes.tokens), many, error, np.array(random), np.array(spaced), np.array(crowded))


def root_mean_square(errors: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((errors**2).mean(axis=1)))


def exponent(tokens: np.ndarray, errors: np.ndarray) -> tuple[float, float, float]:
    """Slope of log error against log N of the root mean squares, with its interval when the seeds are drawn again."""
    logs, rng = np.log(tokens), np.random.default_rng(0)
    value = np.polyfit(logs, np.log(root_mean_square(errors)), 1)[0]
    drawn = rng.integers(0, errors.shape[1], (RESAMPLED, *errors.shape))
    again = np.sqrt((np.take_along_axis(errors[None], drawn, axis=2) ** 2).mean(axis=2))
    slopes = np.polyfit(logs, np.log(again).T, 1)[0]
    low, high = np.quantile(slopes, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return float(value), float(low), float(high)


def judged(found: Errors) -> list[Check]:
    """Exponents of independent and spaced tokens, and the reference and graded tokens beside them."""
    tokens, spread, even = found.tokens, root_mean_square(found.random), root_mean_square(found.spaced)
    title = "exponent of N, independent tokens, 1 + N₀/N divided out"
    checks = [overlapping(title, exponent(tokens, found.corrected), *RANDOM)]
    title, large = f"exponent of N ≥ {MANY:g}N₀, independent tokens", tokens >= MANY * found.many
    if large.sum() >= 3:
        checks.append(overlapping(title, exponent(tokens[large], found.random[large]), *RANDOM))
    else:
        checks.append(undecided(title, f"N₀ is {found.many:.3g}: only {large.sum()} sizes are large enough"))
    title, seen = "exponent of N, equally spaced tokens", even > RESOLVED * found.reference
    if seen.sum() >= 3:
        checks.append(overlapping(title, line(np.log(tokens[seen]), np.log(even[seen])).interval, *SPACED))
    else:
        checks.append(undecided(title, f"only {seen.sum()} sizes have an error above that of the reference"))
    share = found.reference / float(spread.min())
    checks.append(within("error of the reference over the least of independent tokens", share, high=FAR_BELOW))
    ratio = float(found.graded[-1] / spread[-1])
    checks.append(within(f"error of {tokens[-1]} graded tokens over that of independent ones", ratio, high=1.0))
    return checks


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Errors against N for independent, equally spaced and graded tokens."""
    span = f"N = {', '.join(str(n) for n in sizes.tokens)}, {sizes.seeds} seeds"
    horizon = f"t ≤ {sizes.until:g}, β = {sizes.beta:g}, {span}, d = 2"
    reason = None if head is None else refusal(head)
    if reason:
        return Finding(f"not tried: {reason}", horizon, (undecided("mean field", reason),))
    chosen = next(iter(circle_heads().values())) if head is None else head.to(torch.float64)
    found = measure(chosen, sizes, tell)
    checks = judged(found)
    plain, value = exponent(found.tokens, found.random)[0], exponent(found.tokens, found.corrected)
    sentence = (
        f"independent tokens come to the mean field like N^{plain:.2f}, and like N^{value[0]:.2f} ({value[1]:.2f} to "
        f"{value[2]:.2f}) when the next order, N₀ = {found.many:.3g}, is divided out"
    )
    why = "; ".join(f"{one.name}: {one.note}" for one in checks if one.outcome != "PASS")
    return Finding(sentence, horizon, tuple(checks), (picture(found),), (table(found),), why)


def table(found: Errors) -> Table:
    columns = ("N", "independent: root mean square", "median", "largest", "1 + N₀/N divided out")
    rows = []
    for i, n in enumerate(found.tokens.tolist()):
        drawn = found.random[i]
        spread = [float(root_mean_square(errors)[i]) for errors in (found.random, found.corrected, found.spaced)]
        middle, most = float(np.median(drawn)), float(drawn.max())
        rows.append((n, spread[0], middle, most, spread[1], spread[2], float(found.graded[i])))
    return Table("largest error over time", (*columns, "equally spaced: root mean square", "graded"), tuple(rows))


def picture(found: Errors) -> Picture:
    n = tuple(found.tokens.astype(float).tolist())
    spread, corrected = root_mean_square(found.random), root_mean_square(found.corrected)
    low, high = np.quantile(found.random, [0.1, 0.9], axis=1)
    half = corrected[-1] * (found.tokens / n[-1]) ** -0.5
    return Picture(
        "Coming to the mean field as N grows",
        "Largest difference over time between the distance curves of N tokens and of the mean field. The band holds "
        f"the middle 80 % of the samples of independent tokens; dashed is N^(−1/2), and N₀ = {found.many:.3g}.",
        (Panel("number of tokens N", "largest error of W₂ to the limit law", log_x=True, log_y=True),),
        (
            Series("independent, 80 % of samples", n, style="band", low=tuple(low), high=tuple(high)),
            Series("independent, root mean square", n, tuple(spread), style="points"),
            Series("the same, 1 + N₀/N divided out", n, tuple(corrected), style="points"),
            Series("N^(−1/2)", n, tuple(half), style="dashed"),
            Series("equally spaced", n, tuple(root_mean_square(found.spaced))),
            Series("graded", n, tuple(found.graded)),
            Series("error of the reference", n, (found.reference,) * len(n), style="dotted"),
        ),
    )


CLAIM = Claim(
    "mean-field",
    "Mean field",
    "At fixed β the distance curve of N independent tokens comes to that of the mean-field equation like N^{−1/2}, and "
    "that of equally spaced ones at least like N^{−1} (derived here).",
    check,
    quick=Sizes(20.0, 2.0, 7, (64, 128, 256, 512, 1024), 100, 4, 2e-5),
    full=Sizes(20.0, 3.0, 25, (125, 250, 500, 1000, 2000, 4000), 200, 8, 1e-4),
)
