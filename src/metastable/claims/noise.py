"""Noise against attention with B = V = I: below a critical strength tokens keep an order, above it they are uniform.

Tokens move by dx = P_x m dt + σ P_x ∘ dW. `theory.noise` derives that the uniform law is stable exactly for σ > σ_c,
σ_c² = 2A_d(β)/β, and gives the order parameter |∫x dμ| of the stationary law below. Simulations have N tokens and steps
of length h, and their mean r = Σx_i/N fluctuates. The sizes of these effects are derived here.

**Above σ_c.** Noise alone forgets directions at the rate S = (d − 1)σ²/2. With attention the rate is γ = −rate(1) =
S(1 − σ_c²/σ²). To leading order r is an Ornstein–Uhlenbeck process of rate γ whose noise does not depend on attention.
Independent tokens have the rate S and N·E|r|² = 1, so that with attention

    N·E|r|² = S/γ = 1/(1 − σ_c²/σ²).

|r|² forgets its past like e^{−2γt}, so that its mean over a time T has the relative error √(2/(dγT)).

**Steps.** A step of Heun's method without attention turns a token by an angle θ with E cos θ = e^{−Sh(1 − κ)} and κ =
(d/2 + ¾)σ²h + O(h²), by an expansion in the increments. So the steps weaken the noise, σ² by the share κ. They weaken
attention too, which makes up for about half of it (measured). Steps are chosen so that κ ≤ WEAKER.

**Tokens.** A token attends to itself with a weight of about ω = e^β/(N·∫e^{βx_1}), and P_x x = 0, so that the pull of
the others is weaker by the share ω. This is as if σ² were larger by that share. Fluctuations add terms of order 1/N.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from metastable.block import Block
from metastable.claims.experiment import Finding, Interval, Panel, Tell, claim, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud, uniform
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.theory.bessel import log_sphere_mean
from metastable.theory.noise import critical_noise, growth_rate, stationary_law

WEAKER = 0.1
"""Largest κ."""
LONGEST = 0.1
"""Longest step: attention alone moves tokens at a speed of at most 1."""
FLUCTUATIONS = 2.0
"""Fluctuations may change the order parameter below σ_c by this number over N."""
SETTLE = 3.0
"""Time before the stationary state, in units of 1/|rate(1)|: from the ordered side the order relaxes at twice this."""
BLOCKS = 10
"""Blocks of a run whose means count as independent."""
CONFIDENCE = 0.95
"""Of the intervals of the measured means, by Student's t of the blocks."""


class NoiseCase(NamedTuple):
    """One strength of the noise: σ over σ_c, in dimension d at inverse temperature β."""

    d: int
    beta: float
    share: float

    @property
    def name(self) -> str:
        return f"d = {self.d}, β = {self.beta:g}, σ = {self.share:g} σ_c"

    @property
    def sigma(self) -> float:
        return self.share * critical_noise(self.beta, self.d)

    @property
    def rate(self) -> float:
        """|rate(1)|, by which the first harmonic leaves or returns to the uniform law."""
        return abs(growth_rate(1, self.beta, self.d, self.sigma))

    @property
    def step(self) -> float:
        return min(LONGEST, WEAKER / ((self.d / 2 + 0.75) * self.sigma**2))

    @property
    def weaker(self) -> float:
        """κ, the share by which the steps weaken σ²."""
        return (self.d / 2 + 0.75) * self.sigma**2 * self.step

    def own_weight(self, n: int) -> float:
        """ω, the attention of a token to itself among n uniform ones."""
        return math.exp(self.beta - float(log_sphere_mean(self.d / 2 - 1, np.array([self.beta]))[0])) / n

    def order(self, change: float = 0.0) -> float:
        """The order parameter of the stationary law when σ² is larger by the share `change`."""
        return stationary_law(self.beta, self.d, self.sigma * math.sqrt(1 + change)).order


def fluctuation(share: float | np.ndarray) -> np.ndarray:
    """N·E|r|² = 1/(1 − σ_c²/σ²) at σ/σ_c = share, above 1."""
    return np.asarray(1 / (1 - np.asarray(share, dtype=float) ** -2))


def followed(case: NoiseCase, n: int, span: float, seed: int) -> np.ndarray:
    """|r| at times of the stationary state. Tokens start at one point below σ_c and uniformly above it.

    span : length of the stationary state in units of 1/|rate(1)|
    """
    cloud = uniform(n, case.d, seed)
    if case.share < 1:
        # A random start could rest in several clusters for long.
        cloud = Cloud(cloud.points[:1].repeat(n, 1))
    block = Block(identity(case.d), noise=case.sigma, noise_seed=seed)
    until = (SETTLE + span) / case.rate
    frames = math.ceil(10 * (SETTLE + span))
    run = simulate(block, cloud, case.beta, until, step=case.step, t_eval=frames + 1, progress=False)
    kept = run.frames[run.times >= SETTLE / case.rate]
    return np.asarray(torch.linalg.vector_norm(kept.mean(dim=1), dim=1).numpy())


def interval(runs: list[np.ndarray]) -> Interval:
    """Mean of stationary series, and its interval from the means of their blocks."""
    means = np.array([block.mean() for run in runs for block in np.array_split(run, BLOCKS)])
    reach = stats.t.ppf(0.5 + CONFIDENCE / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean()), float(means.mean() - reach), float(means.mean() + reach)


@claim("noise", "Noise against attention", identity_only=True)
def check(
    head: Head | None,
    tell: Tell,
    laws: tuple[tuple[int, float], ...] = size(((2, 2.0), (3, 2.0)), full=((2, 0.5), (2, 2.0), (3, 2.0), (3, 4.0))),
    below: tuple[float, ...] = size((0.5, 0.75), full=(0.3, 0.5, 0.7, 0.8)),
    above: tuple[float, ...] = size((1.3,), full=(1.3, 1.6)),
    tokens: int = size(100, full=200),
    spans: tuple[float, float] = size((10.0, 50.0), full=(20.0, 100.0)),
    resolution: float = size(0.4, full=0.25),
    seeds: tuple[int, ...] = size((0,), full=(0, 1)),
) -> Finding:
    """For B = V = I and dx = P_x m dt + σ P_x ∘ dW the uniform law is stable exactly for σ > σ_c = √(2A_d(β)/β), below
    σ_c the order parameter |∫x dμ| is that of the stationary law μ ∝ Z_μ(βx)^{2/(σ²β)}, and above it the mean r of N
    tokens has N·E|r|² = 1/(1 − σ_c²/σ²) [derived].

    Simulate N tokens in their stationary state and compare r with the law and with the fluctuations.

    laws : (d, β) of each case
    below, above : σ over σ_c
    spans : lengths of the stationary state below and above σ_c, in units of 1/|rate(1)|
    resolution : relative error of N·E|r|² that can be told from statistical errors of such a run
    """
    found = Finding(f"N = {tokens}, σ = {min(below):g} … {max(above):g} σ_c, seeds {', '.join(map(str, seeds))}")
    picture = found.picture(
        "Noise ends the order",
        "Above: the order parameter of N tokens (points) and of the stationary law (dots). Below: how much attention "
        "increases the fluctuations of uniform tokens, measured (points) and derived (dots).",
        Panel("σ/σ_c", "order parameter |r|"),
        Panel("σ/σ_c", "N·E|r|²"),
    )
    cases = [NoiseCase(d, beta, share) for d, beta in laws for share in (*below, *above)]
    worst = {True: 0.0, False: 0.0}
    for case in told(cases, tell):
        ordered, weight = case.share < 1, case.own_weight(tokens)
        runs = [followed(case, tokens, spans[0 if ordered else 1], seed) for seed in seeds]
        if ordered:
            measured, exact = interval(runs), case.order()
            low = case.order(weight) - FLUCTUATIONS / tokens
            high = case.order(-case.weaker) + FLUCTUATIONS / tokens
            what = "order parameter"
        else:
            measured = interval([tokens * run**2 for run in runs])
            exact = float(fluctuation(case.share))
            low = (1 - resolution) * float(fluctuation(case.share * math.sqrt(1 + weight)))
            high = (1 + resolution) * float(fluctuation(case.share * math.sqrt(1 - case.weaker)))
            what = "N·E|r|²"
        found.overlapping(f"{what}, {case.name}", measured, low, high)
        worst[ordered] = max(worst[ordered], abs(measured[0] / exact - 1))
        row = {"d": case.d, "beta": case.beta, "σ/σ_c": case.share, "derived": exact, "measured": measured[0]}
        row |= {"interval from": measured[1], "interval to": measured[2], "step": case.step}
        found.row("order below σ_c" if ordered else "N·E|r|² above σ_c", row)
    for d, beta in laws:
        name = f"d = {d}, β = {beta:g}"
        grid = np.array([0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95])
        orders = [NoiseCase(d, beta, share).order() for share in grid]
        picture.add(f"law, {name}", [*grid, 1.0, max(above)], [*orders, 0.0, 0.0], "dotted")
        for panel, table in enumerate(found.tables.values()):
            rows = [row for row in table if (row["d"], row["beta"]) == (d, beta)]
            points = [[row[key] for row in rows] for key in ("σ/σ_c", "measured")]
            picture.add(f"tokens, {name}", *points, "points", panel=panel)
    grid = np.linspace(min(above) - 0.05, max(above) + 0.2, 40)
    picture.add("1/(1 − σ_c²/σ²)", grid, fluctuation(grid), "dotted", panel=1)
    found.sentence = (
        f"below σ_c the order parameter of {tokens} tokens differs from that of the stationary law by at most "
        f"{worst[True]:.1%}, and above it N·E|r|² differs from 1/(1 − σ_c²/σ²) by at most {worst[False]:.0%}"
    )
    return found
