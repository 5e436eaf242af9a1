"""Metastability: how long the plateau lasts, against β and against the number of tokens, and how high it is.

On the plateau the law is two clusters at ±e and a thin tail, which shrinks like e^{−κt} while tokens escape from the
repelling point x_r at the rate κ = g/|Bᵀx_r|. A cluster stays as long as the tail that it looks at outweighs it:

    departure = (βD − (3/2) log β + O(1))/κ,      D = |Bᵀe| − ⟨Bᵀe, e⟩,

linear in β, where the paper's bound has log β; derived here, for d = 2 and the uniform law. Of the 3/2, one half is the
width of the visible tail, and 1 the height of the plateau, of order 1/β. The law must have come down to that height
first, at its rate r: as long as βD·r/κ is not well above log β, the distance turns while it is still falling, and the
departure grows by less than D/κ for each β.

N tokens of equal weight have no tail thinner than 1/N, so they leave after about log N: at the rate κ at which the last
of them escape, or, where they are too few to see each other on the way, at no less than the rate c at which they come
to ±e. The slope in log N lies between 1/κ and 1/c. Single times jump as the last tokens pass û one by one, which
depends on the position of the repelling point between two tokens; that position is varied with N.

Departure is the first time at which W₂ to the limit law exceeds 1.5 times its least. The least distance of tokens
depends on N, so for them the time at which the clusters have gone half of the way to V's eigenvector is compared.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from metastable.claims.experiment import Finding, Panel, Tell, claim, first_below, line, not_tried, size, told
from metastable.claims.heads import circle_head, without_curves
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.flow.meanfield.flow import CellSizes, follow, start
from metastable.head import Head
from metastable.progress import Progress
from metastable.run.mean_field import STEP
from metastable.run.simulation import simulate
from metastable.theory import phases
from metastable.transport import two_atoms

SLOPE = 0.05
"""Largest relative error of the slope of κt + (3/2) log β in βD: the O(1) still changes by a few tenths."""
DEEP = 18.0
"""Slopes are fitted from this βD on: below, the tail is not yet thin when the cluster leaves."""
SETTLED = 1.2
"""Slopes are read where βD·r/κ is at least this many times log β, so that the plateau has a floor."""
LOGARITHM = 0.5
"""Largest residual of a straight line in β over the residual of a line in log β."""
FORECAST = 0.10
"""Largest relative error of `theory().plateau`: twice the band that it states from βD = 23 on."""
TOKENS = 0.10
"""The slope in log N may miss the interval from 1/κ to 1/c by this share: spacing makes single times jump."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""The position of the repelling point between two tokens moves by this share of a spacing from one N to the next."""
COLDEST = 5000.0
"""Largest β: the cells of a given head with a smaller D would take hours."""
LONGEST = 60.0
"""Latest forecast of a departure for random heads: at t ≈ 50, two levels of cells disagreed on a longer plateau."""
FEW = (200, 330, 540, 900, 1500, 2400, 4000, 6500)
MANY = (200, 250, 310, 390, 490, 610, 760, 950, 1190, 1490, 1860, 2330, 2910, 3640, 4550, 5690)
"""Numbers of equal tokens."""
FOLLOWED = (0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
"""`circle_head` that is followed over β."""
STEPPED = (0.5, (1.5, 0.6), -0.3, (1.0, 0.7))
"""`circle_head` whose distance has further steps after its departure."""


class Numbers(NamedTuple):
    """The quantities in a prediction for one head.

    D : |Bᵀe| − ⟨Bᵀe, e⟩, by how much the best direction scores above the cluster itself
    kappa : κ, the rate at which tokens escape from the repelling point
    rate : c, the rate at which they come to ±e
    law_rate : r, the rate at which W₂ to the limit law falls at zero temperature
    way : distance from e to where V alone takes it
    """

    D: float
    kappa: float
    rate: float
    law_rate: float
    way: float

    def has_floor(self, beta: float) -> bool:
        """Whether the law falls to the plateau's height, of order 1/β, well before the departure."""
        return beta * self.D / self.kappa * self.law_rate / math.log(beta) >= SETTLED


def numbers(head: Head) -> Numbers:
    theory = head.theory()
    e = theory.basis[:, :1].T
    u = head.directions(e)
    D = float(torch.linalg.vector_norm(u) - (u * e).sum())
    way = float((theory.terminal.limit(e) - e).norm()) if not theory.terminal.rotates else 1.0
    return Numbers(D, theory.escape_rate, theory.rate, theory.law_rate(2), way)


def random_heads(count: int, deepest: float, seed: int = 11) -> list[Head]:
    """Random spectra and angles with D ≥ 0.03, κ ≥ 0.6 and a forecast that ends by t = LONGEST at βD = `deepest`."""
    rng = np.random.default_rng(seed)
    found: list[Head] = []
    while len(found) < count:
        a, a2 = rng.uniform(-math.pi / 2, math.pi / 2, 2)
        b, v = rng.uniform(0.4, 1.6, 2), rng.uniform(0.3, 1.3, 2)
        head = circle_head(float(a), (b[0], b[1]), float(a2), (v[0], v[1]))
        try:
            q = numbers(head)
            strong = q.D >= 0.03 and 0.6 <= q.kappa < math.inf and q.way > 0.1
            if strong and head.theory().plateau(deepest / q.D).departure <= LONGEST:
                found.append(head)
        except BadInput:
            continue
    return found


class Stay(NamedTuple):
    """A curve of W₂ to the limit law at one β, and its times; a time is inf if the event was not seen.

    departure : first time above 1.5 times the least distance
    left : first time after the least at which the distance is more than half of `Numbers.way`
    """

    beta: float
    times: np.ndarray
    curve: np.ndarray
    least: float
    departure: float
    left: float


def stay(head: Head, beta: float, times: np.ndarray, curve: np.ndarray) -> Stay:
    found = phases.detect(times, curve)
    later = times >= found.least_time
    left = first_below(times[later], -curve[later], -0.5 * numbers(head).way)
    return Stay(beta, times, curve, found.least, math.inf if found.terminal is None else found.terminal, left)


def mean_field(head: Head, beta: float, until: float, cell: float, frames: int) -> Stay:
    """The uniform law under the head by cells up to `cell`·β^{−1/2} long, one level of `run.mean_field`."""
    longest = cell * beta**-0.5
    times = np.linspace(0.0, until, frames)
    cells = start(head, lambda x: np.zeros(len(x)), longest)
    sizes = CellSizes(longest, 0.5 * longest, STEP * longest)
    found, _ = follow(head, cells, beta, times.tolist(), sizes, Progress(until, False))
    e = head.theory().basis[:, 0].numpy()
    curve = [two_atoms(x, np.exp(w), np.stack([e, -e]), [0.5, 0.5]).value for x, w in found]
    return stay(head, beta, times, np.array(curve))


def equal_tokens(head: Head, n: int, beta: float, until: float, shift: float, frames: int) -> Stay:
    """n equally spaced tokens; the repelling point lies `shift` of a spacing before one of them."""
    normal = head.theory().co_basis[:, 0].numpy()
    theta = math.atan2(normal[1], normal[0]) + math.pi / 2 + (np.arange(n) + shift) * (2 * math.pi / n)
    cloud = Cloud(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    merge = 0.02 * beta**-0.5
    run = simulate(head, cloud, beta, until, tol=1e-5, t_eval=frames, merge=merge, progress=False)
    return stay(head, beta, run.times.numpy(), run.distance().values)


def _obstacle(head: Head, depths: tuple[float, ...]) -> str | None:
    if reason := without_curves(head):
        return reason
    try:
        D = numbers(head).D
        if D > 0 and max(depths) / D > COLDEST:
            return f"D is {D:.3g}: the plateau ends late only beyond β = {COLDEST:g}, too cold to follow"
        head.theory().plateau(max(min(depths), 11.6) / max(D, 1e-12))
    except BadInput as error:
        return str(error)
    return None


@claim("metastability", "Metastability")
def check(
    head: Head | None,
    tell: Tell,
    depths: tuple[float, ...] = size((12.0, 18.0, 21.0, 24.0, 28.0), full=(12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0)),
    cell: float = size(0.6, full=0.3),
    frames: int = size(61, full=201),
    heads: int = size(5, full=16),
    head_depths: tuple[float, float] = size((20.0, 28.0), full=(24.0, 40.0)),
    tokens: tuple[int, ...] = size(FEW, full=MANY),
    staircase: tuple[float, float] | None = size(None, full=(800.0, 60.0)),
) -> Finding:
    """On the circle the plateau of the mean field ends at (βD − (3/2) log β + O(1))/κ, linear in β and far beyond the
    log β of the bound, and N equal tokens leave after a multiple of log N [both derived here].

    Measure departures of one head at several β, of random heads at two β each, and of equal tokens at one β.

    depths : βD of the head that is followed
    cell, frames : length of the longest cells in β^{−1/2}, and the number of saved times
    heads, head_depths : number of random heads, and their βD
    tokens : numbers of equal tokens
    staircase : β and the last time of one run far beyond its departure, or None
    """
    subject = circle_head(*FOLLOWED) if head is None else head
    if reason := _obstacle(subject, depths):
        return not_tried("plateau", reason)
    deepest = max(*depths, *head_depths)
    found = Finding(f"uniform law, d = 2, βD = {min(depths):g} … {deepest:g}, N ≤ {max(tokens, default=0)}")
    others = random_heads(heads, max(head_depths)) if head is None else []
    plan = [("followed", subject, depth) for depth in depths]
    plan += [(f"random {i}", other, depth) for i, other in enumerate(others) for depth in head_depths]
    half = len(plan) / (len(plan) + len(tokens) + 1)
    stays: dict[str, list[Stay]] = {}
    for name, one, depth in told(plan, tell, end=half):
        own = numbers(one)
        forecast = one.theory().plateau(depth / own.D)
        seen = mean_field(one, depth / own.D, 1.05 * forecast.upper + 3, cell, frames)
        stays.setdefault(name, []).append(seen)
        row = {
            "head": name,
            "beta": seen.beta,
            "beta D": seen.beta * own.D,
            "beta D / kappa": seen.beta * own.D / own.kappa,
            "forecast of the departure": forecast.departure,
            "departure": seen.departure,
            "least distance": seen.least,
        }
        found.row("plateaus of the mean field", row)
    q, followed = numbers(subject), stays.pop("followed")
    last = followed[-1]
    equal: dict[int, Stay] = {}
    for i, n in enumerate(told(tokens, tell, half)):
        until = min(1.3 * math.log(n) / min(q.kappa, q.rate) + 5, float(last.times[-1]))
        shift = (0.5 + i * GOLDEN) % 1
        equal[n] = equal_tokens(subject, n, last.beta, until, shift, frames)
        scales = {"log N / kappa": math.log(n) / q.kappa, "log N / c": math.log(n) / q.rate}
        times = {"departure": equal[n].departure, "half-way time": equal[n].left}
        found.row("equal tokens", {"N": n, "shift, spacings": shift, **scales, **times})
    slope = _judge_length(found, followed, q)
    pairs = list(zip(others, stays.values(), strict=True))
    if pairs:
        _judge_heads(found, pairs)
    if equal:
        _judge_tokens(found, equal, last, q)
    _show(found, followed, pairs, equal, q)
    if staircase and head is None:
        stairs = mean_field(circle_head(*STEPPED), *staircase, cell, 241)
        steps = len(phases.detect(stairs.times, stairs.curve).plateaus)
        found.within("plateaus of one run past its departure", steps, low=2)
        caption = (
            "One run of the mean field past its departure: it rests on further steps on the way to V's eigenvector."
        )
        picture = found.picture("A staircase", caption, Panel("time t", "W₂ to the limit law"))
        picture.add("W₂ to the limit law", stairs.times, stairs.curve)
    found.sentence = (
        f"the mean field leaves at t = {followed[0].departure:.4g} for β = {followed[0].beta:.4g} and "
        f"{last.departure:.4g} for {last.beta:.4g}, slope over D/κ with the logarithm taken off {slope}"
    )
    if equal:
        n, seen = max(equal.items())
        found.sentence += f"; {n} equal tokens leave at {seen.departure:.4g} for β = {last.beta:.4g}"
    return found


def _in_theory(seen: Stay, q: Numbers) -> float:
    """κt + (3/2) log β, which should be βD + O(1)."""
    return q.kappa * seen.departure + 1.5 * math.log(seen.beta)


def _judge_length(found: Finding, stays: list[Stay], q: Numbers) -> str:
    """Add the checks of departures against β; returns the slope in words."""
    title = "slope of κt + (3/2) log β in βD, mean field"
    seen = [one for one in stays if math.isfinite(one.departure)]
    if len(seen) < len(stays):
        missing = f"departure seen in {len(seen)} of {len(stays)} runs, up to 5 % after the latest forecast"
        found.within(title, math.nan, 1 - SLOPE, 1 + SLOPE, missing)
        return "not measured"
    deep = [one for one in seen if one.beta * q.D >= DEEP * (1 - 1e-9) and q.has_floor(one.beta)]
    if len(deep) < 3:
        slow = f"the law falls at the rate {q.law_rate:.3g} only and has no floor yet at these β when it departs"
        found.undecided(title, slow)
        return "not measured"
    fit = line([one.beta * q.D for one in deep], [_in_theory(one, q) for one in deep])
    found.overlapping(title, fit.interval, 1 - SLOPE, 1 + SLOPE)
    betas, departures = np.array([one.beta for one in seen]), np.array([one.departure for one in seen])
    ratio = line(betas, departures).rms / max(line(np.log(betas), departures).rms, 1e-12)
    found.within("residual of a line in β over residual of a line in log β", ratio, high=LOGARITHM)
    fall = max(later.least / one.least for one, later in pairwise(seen))
    found.within("height of the plateau over that at the β before, largest ratio", fall, high=1.0)
    return f"{fit.slope:.3f} ({fit.low:.3f} to {fit.high:.3f})"


def _judge_heads(found: Finding, pairs: list[tuple[Head, list[Stay]]]) -> None:
    """Add the checks of random heads: the mean slope of those with a floor, and the forecasts of all."""
    slopes = []
    for head, (first, second) in pairs:
        q = numbers(head)
        if q.has_floor(first.beta):
            slopes.append((_in_theory(second, q) - _in_theory(first, q)) / ((second.beta - first.beta) * q.D))
    title = f"the same slope, mean of {len(slopes)} random heads"
    if not slopes:
        found.undecided(title, "none of the random heads has a floor at these β")
        return
    spread = f"from {min(slopes):.3f} to {max(slopes):.3f}; {len(pairs) - len(slopes)} heads have no floor yet"
    found.within(title, float(np.mean(slopes)), 1 - SLOPE, 1 + SLOPE, spread)
    rows = [row for row in found.tables["plateaus of the mean field"] if row["head"] != "followed"]
    error = max(abs(row["departure"] / row["forecast of the departure"] - 1) for row in rows)
    found.within("departure against its forecast, largest relative error", error, high=FORECAST)


def _judge_tokens(found: Finding, equal: dict[int, Stay], exact: Stay, q: Numbers) -> None:
    """Add the checks of equal tokens: the slope in log N, and no later than the mean field."""
    left = {n: seen.left for n, seen in equal.items() if math.isfinite(seen.left)}
    slow, fast = sorted((1 / q.kappa, 1 / q.rate))
    title = "slope in log N of the time at which equal tokens are half-way"
    too_few = "fewer than three numbers of tokens left the plateau while they were followed"
    x, y = np.log(list(left)), list(left.values())
    if found.slope(title, x, y, (1 - TOKENS) * slow, (1 + TOKENS) * fast, too_few):
        latest = max(y) / exact.left
        found.within("latest half-way time of equal tokens over that of the mean field", latest, high=1.0)


def _show(
    found: Finding, followed: list[Stay], pairs: list[tuple[Head, list[Stay]]], equal: dict[int, Stay], q: Numbers
) -> None:
    """Add the picture."""
    picture = found.picture(
        "When the plateau ends",
        "First: κ times the departure of the mean field, against βD. Second: when N equally spaced tokens are half-way "
        "to V's eigenvector, at the largest of these β. Third: the distance to the limit law at the smallest and the "
        "largest β.",
        Panel("βD", "κ × departure"),
        Panel("number of tokens N", "half-way time, time units", log_x=True),
        Panel("time t", "W₂ to the limit law", log_y=True),
    )
    last = followed[-1]
    depths = np.array([seen.beta * q.D for seen in followed])
    law = np.linspace(depths.min(), depths.max(), 50)
    constant = _in_theory(last, q) - last.beta * q.D
    dots = [
        (seen.beta * numbers(head).D, numbers(head).kappa * seen.departure) for head, both in pairs for seen in both
    ]
    picture.add("mean field", depths, [q.kappa * seen.departure for seen in followed], "points")
    picture.add("βD − (3/2) log β + constant", law, law - 1.5 * np.log(law / q.D) + constant, "dashed")
    picture.add("random heads", [x for x, _ in dots], [y for _, y in dots], "points")
    picture.add("equal tokens", list(equal), [seen.left for seen in equal.values()], "points", panel=1)
    if equal:
        picture.add("mean field, same β", [min(equal), max(equal)], [last.left] * 2, panel=1)
    for seen in (followed[0], last):
        picture.add(f"β = {seen.beta:.4g}", seen.times, seen.curve, panel=2)
