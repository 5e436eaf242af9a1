"""Metastability: how long the plateau lasts, against β and against the number of tokens, and how high it is.

On the plateau the law is two clusters at ±e and a thin tail, which shrinks like e^{−κt} while tokens escape from the
repelling point x_r at the rate κ = g/|Bᵀx_r|. A cluster stays as long as the tail that it looks for outweighs it:

    departure = (βD − (3/2) log β + O(1))/κ,      D = |Bᵀe| − ⟨Bᵀe, e⟩,

linear in β, where the paper's bound speaks of log β; derived here, for d = 2 and the uniform law. Of the 3/2, one half
is the width of the tail that is seen, and 1 the height of the plateau, of order 1/β. The law must have come down to
that height first, at its rate r: as long as βD·r/κ is not well above log β, the distance turns while it is still
falling, and departure grows by less than D/κ for each β.

N tokens of equal weight have no tail thinner than 1/N, so they leave after about log N: at the rate κ at which the last
of them escape, or, where they are too few to see each other on the way, at no less than the rate c at which they come
to ±e. The slope in log N lies between 1/κ and 1/c. Single times jump by as much as the last tokens pass û one by one,
which depends on how the repelling point lies between two tokens; that place is varied with N.

Departure is the first time at which W₂ to the limit law exceeds 1.5 times its least. For tokens, whose least depends on
N, the time at which the clusters have gone half of the way to V's eigenvector is compared instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, overlapping, undecided, within
from metastable.claims.fitting import Line, line
from metastable.claims.plateau_runs import (
    FOLLOWED,
    STEPPED,
    Curves,
    Drawn,
    Numbers,
    Seen,
    Spaced,
    equal_tokens,
    mean_field_curve,
    numbers,
    random_heads,
)
from metastable.claims.plateau_views import pictures, tables
from metastable.claims.prescribed import circle_head
from metastable.errors import BadInput
from metastable.head import Head
from metastable.theory.phases import detect

SLOPE = 0.05
"""Relative error of the slope of κt + (3/2) log β in βD: the O(1) still changes by a few tenths over the range."""
DEEP = 18.0
"""Slopes are fitted from this βD on: below, the tail is not yet thin when the cluster leaves."""
SETTLED = 1.2
"""Slopes are read where βD·r/κ is at least this many times log β, so that the plateau has a floor."""
LOGARITHM = 0.5
"""What a straight line in β leaves unexplained, over what a line in log β leaves, is at most this."""
FORECAST = 0.10
"""Relative error of `theory().plateau`: twice the band it states from βD = 23 on, which other heads gave."""
TOKENS = 0.10
"""The slope in log N may miss the interval from 1/κ to 1/c by this share: spacing makes single times jump."""
GOLDEN = (math.sqrt(5) - 1) / 2
COLDEST = 5000.0
"""No run is colder than this: the cells of a given head with a smaller D would take hours."""


@dataclass(frozen=True)
class Sizes:
    depths: tuple[float, ...]
    """βD of the head that is followed"""
    cell: float
    """longest cells, in β^{−1/2}"""
    frames: int
    heads: int
    """random heads, each at two depths"""
    head_depths: tuple[float, float]
    tokens: tuple[int, ...]
    staircase: tuple[float, float] | None
    """β and horizon"""


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """One head at several β, random heads at two each, equal tokens at one β, and in full a staircase."""
    deepest = max(*sizes.depths, *sizes.head_depths)
    horizon = f"uniform law, d = 2, βD = {min(sizes.depths):g} … {deepest:g}, N ≤ {max(sizes.tokens, default=0)}"
    subject = circle_head(*FOLLOWED) if head is None else head.to(torch.float64)
    obstacle = _obstacle(subject, min(sizes.depths), max(sizes.depths))
    if obstacle:
        return Finding("no forecast for this head", horizon, (undecided("plateau", obstacle),), explanation=obstacle)
    others = random_heads(sizes.heads, max(sizes.head_depths)) if head is None else []
    work, done = len(sizes.depths) + 2 * len(others) + len(sizes.tokens), 0

    def follow(one: Head, depth: float) -> tuple[float, Seen]:
        nonlocal done
        beta = depth / numbers(one).D
        done += 1
        tell(done / (work + 1))
        until = 1.05 * one.theory().plateau(beta).upper + 3
        return beta, mean_field_curve(one, beta, until, sizes.cell, sizes.frames)

    curves = [follow(subject, depth) for depth in sizes.depths]
    drawn = [(one, [follow(one, depth) for depth in sizes.head_depths]) for one in others]
    spaced = _spaced(subject, curves[-1], sizes, lambda share: tell((done + share * (work - done)) / (work + 1)))
    stairs = _stairs(sizes) if head is None and sizes.staircase else None
    return _finding(horizon, subject, curves, drawn, spaced, stairs)


def _obstacle(head: Head, shallowest: float, deepest: float) -> str | None:
    try:
        if head.dim != 2:
            raise BadInput(f"the head has d = {head.dim}: the length of the plateau is derived for d = 2")
        if head.theory().no_limit:
            raise BadInput(str(head.theory().no_limit))
        D = numbers(head).D
        if D > 0 and deepest / D > COLDEST:
            raise BadInput(f"D is {D:.3g}: the plateau ends late only beyond β = {COLDEST:g}, too cold to follow")
        head.theory().plateau(max(shallowest, 11.6) / max(D, 1e-12))
    except BadInput as error:
        return str(error)
    return None


def _spaced(head: Head, exact: tuple[float, Seen], sizes: Sizes, tell: Tell) -> Spaced:
    """Equal tokens at the last β of the mean field; the shifts go on by the golden ratio."""
    q, (beta, seen) = numbers(head), exact
    rows = []
    for i, n in enumerate(sizes.tokens):
        until = min(1.3 * math.log(n) / min(q.kappa, q.rate) + 5, float(seen.times[-1]))
        shift = (0.5 + i * GOLDEN) % 1
        found = equal_tokens(head, n, beta, until, shift, sizes.frames)
        rows.append((n, shift, found.departure, found.left))
        tell((i + 1) / len(sizes.tokens))
    return rows


def _stairs(sizes: Sizes) -> Seen:
    assert sizes.staircase is not None
    beta, until = sizes.staircase
    return mean_field_curve(circle_head(*STEPPED), beta, until, sizes.cell, 241)


def _in_theory(beta: float, seen: Seen, q: Numbers) -> float:
    """κt + (3/2) log β, which should be βD + O(1)."""
    return q.kappa * seen.departure + 1.5 * math.log(beta)


def _length_checks(curves: Curves, q: Numbers) -> tuple[list[Check], Line | None]:
    title = "slope of κt + (3/2) log β in βD, mean field"
    seen = [(beta, s) for beta, s in curves if math.isfinite(s.departure)]
    if len(seen) < len(curves):
        missing = f"departure seen in {len(seen)} of {len(curves)} runs, up to 5 % after the latest forecast"
        return [within(title, math.nan, 1 - SLOPE, 1 + SLOPE, missing)], None
    deep = [(beta, s) for beta, s in seen if beta * q.D >= DEEP * (1 - 1e-9) and q.settled(beta) >= SETTLED]
    if len(deep) < 3:
        why = f"the law falls at the rate {q.law_rate:.3g} only and has no floor yet at these β when it departs"
        return [undecided(title, why)], None
    fit = line([beta * q.D for beta, _ in deep], [_in_theory(beta, s, q) for beta, s in deep])
    betas, departures = np.array([b for b, _ in seen]), np.array([s.departure for _, s in seen])
    ratio = line(betas, departures).rms / max(line(np.log(betas), departures).rms, 1e-12)
    heights = [s.least for _, s in seen]
    fall = max(b / a for a, b in pairwise(heights))
    return [
        overlapping(title, fit.interval, 1 - SLOPE, 1 + SLOPE),
        within("rest of a line in β over rest of a line in log β", ratio, high=LOGARITHM),
        within("height of the plateau over that at the β before, largest", fall, high=1.0),
    ], fit


def _head_checks(drawn: Drawn) -> list[Check]:
    """The slope between the two depths, as a mean over the heads with a floor, and the forecasts of all."""
    if not drawn:
        return []
    slopes, errors = [], []
    for head, curves in drawn:
        q = numbers(head)
        (b0, s0), (b1, s1) = curves
        errors += [abs(s.departure / head.theory().plateau(beta).departure - 1) for beta, s in curves]
        if q.settled(b0) >= SETTLED:
            slopes.append((_in_theory(b1, s1, q) - _in_theory(b0, s0, q)) / ((b1 - b0) * q.D))
    title = f"the same slope, mean of {len(slopes)} random heads"
    if not slopes:
        return [undecided(title, "none of the random heads has a floor at these β")]
    spread = f"from {min(slopes):.3f} to {max(slopes):.3f}; {len(drawn) - len(slopes)} heads have no floor yet"
    return [
        within(title, float(np.mean(slopes)), 1 - SLOPE, 1 + SLOPE, spread),
        within("departure against its forecast, largest relative error", max(errors), high=FORECAST),
    ]


def _token_checks(spaced: Spaced, exact: Seen, q: Numbers) -> list[Check]:
    left = [(n, t) for n, _, _, t in spaced if math.isfinite(t)]
    slow, fast = sorted((1 / q.kappa, 1 / q.rate))
    if not spaced:
        return []
    title = "slope in log N of the time at which equal tokens are half-way"
    if len({n for n, _ in left}) < 3:
        return [undecided(title, "fewer than three numbers of tokens left the plateau while they were followed")]
    fit = line(np.log([n for n, _ in left]), [t for _, t in left])
    latest = max(t for _, t in left) / exact.left
    return [
        overlapping(title, fit.interval, (1 - TOKENS) * slow, (1 + TOKENS) * fast),
        within("latest half-way time of equal tokens over that of the mean field", latest, high=1.0),
    ]


def _finding(
    horizon: str,
    head: Head,
    curves: Curves,
    drawn: Drawn,
    spaced: Spaced,
    stairs: Seen | None,
) -> Finding:
    q = numbers(head)
    checks, fit = _length_checks(curves, q)
    checks += _head_checks(drawn) + _token_checks(spaced, curves[-1][1], q)
    if stairs:
        steps = len(detect(stairs.times, stairs.curve).plateaus)
        checks.append(within("plateaus of one run past its departure", steps, low=2))
    slope = f"{fit.slope:.3f} ({fit.low:.3f} to {fit.high:.3f})" if fit else "not measured"
    (first, early), (last, late) = curves[0], curves[-1]
    sentence = (
        f"the mean field leaves at t = {early.departure:.4g} for β = {first:.4g} and {late.departure:.4g} for "
        f"{last:.4g}, slope over D/κ with the logarithm taken off {slope}"
    )
    if spaced:
        sentence += f"; {spaced[-1][0]} equal tokens leave at {spaced[-1][2]:.4g} for β = {last:.4g}"
    shown = pictures(q, curves, drawn, spaced, stairs)
    return Finding(sentence, horizon, tuple(checks), shown, tables(head, curves, drawn, spaced))


CLAIM = Claim(
    "metastability",
    "Metastability",
    "On the circle the plateau of the mean field ends at (βD − (3/2) log β + O(1))/κ, linear in β and far beyond the "
    "log β of the bound, and N equal tokens leave after a multiple of log N [both derived here].",
    check,
    quick=Sizes(
        depths=(12.0, 18.0, 21.0, 24.0, 28.0),
        cell=0.6,
        frames=61,
        heads=5,
        head_depths=(20.0, 28.0),
        tokens=(200, 330, 540, 900, 1500, 2400, 4000, 6500),
        staircase=None,
    ),
    full=Sizes(
        depths=(12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0),
        cell=0.3,
        frames=201,
        heads=16,
        head_depths=(24.0, 40.0),
        tokens=(200, 250, 310, 390, 490, 610, 760, 950, 1190, 1490, 1860, 2330, 2910, 3640, 4550, 5690),
        staircase=(800.0, 60.0),
    ),
)
