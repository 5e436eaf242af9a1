"""What happened in a run, in plain English and in a few key numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

from metastable.figures.distance import DistanceCurves
from metastable.figures.look import number
from metastable.run.observables import mean_cosine, observe
from metastable.run.run import Run
from metastable.theory import Theory
from metastable.theory.assumptions import Verdict
from metastable.theory.block import BlockTheory

SAMPLE = 1000
"""The tokens that the log-energy is computed on."""
ONE_POINT = 0.99
"""Tokens with this mean cosine are one point, and a share of energy as large is all of it."""


def headline(run: Run, curves: DistanceCurves) -> str:
    """One sentence: what the tokens did, and when."""
    phases = curves.phases
    if phases is None:
        if run.block.plain:
            return f"This head has no limit law to compare with: {run.theory().no_limit}."
        return gathering(run)
    end, least = f"t = {number(phases.horizon)}", number(phases.least)
    if math.isinf(run.theory().gap):
        assert curves.distance is not None
        away = number(float(curves.distance[-1]))
        start = "No direction is preferred, so every token starts at its limit"
        return f"{start}; at {end} the tokens were at distance {away} from it."
    if phases.course == "one time":
        return f"Only one time was saved: the distance to the limit law was {least} at {end}."
    if phases.concentrated is None and phases.course == "still":
        # The distance can stay the same while all tokens move, for example to one point elsewhere.
        first, last = (number(mean_cosine(run.at(i))) for i in (0, -1))
        moved = f"the mean cosine between tokens changed from {first} to {last}"
        stayed = f"The distance to the limit law stayed near {least} until {end}, while {moved}."
        return f"{ending(run)} {stayed}".strip()
    if phases.concentrated is None:
        return f"Tokens were still concentrating when the run ended at {end}, at distance {least} from the limit law."
    came = f"Tokens concentrated by t = {number(phases.concentrated)}"
    if phases.terminal is None:
        return f"{came} and stayed near distance {least} from the limit law; no terminal phase was seen until {end}."
    lasted = number(phases.terminal - phases.concentrated)
    stayed = f"stayed for {lasted} time units near distance {least} from the limit law"
    return f"{came}, {stayed}, and left for the terminal phase at t = {number(phases.terminal)}."


def gathering(run: Run) -> str:
    """How much the tokens came together, in one sentence that needs no theory."""
    first, last = (observe(run.block, run.at(i), run.beta, SAMPLE, 0) for i in (0, -1))
    ways = [("the number of clusters of tokens", "clusters"), ("their mean cosine", "mean_cosine")]
    ways.append(("their effective rank", "effective_rank"))
    ends = [(name, number(first[key]), number(last[key])) for name, key in ways]
    changed = [f"{name} went from {a} to {b}" for name, a, b in ends if a != b]
    told = changed + [f"{name} stayed at {a}" for name, a, b in ends if a == b]
    return f"Until t = {number(run.horizon)} {', '.join(told[:-1])} and {told[-1]}."


def ending(run: Run) -> str:
    """A sentence if the tokens ended in one point though they never rested at the limit law; else empty.

    The distance to the limit law does not show this: one point is about as far from two opposite points as before.
    """
    th = run.theory()
    if th.no_limit or math.isinf(th.gap) or th.terminal is None or run.phases().concentrated is not None:
        return ""
    last = mean_cosine(run.at(-1))
    if last < ONE_POINT:
        return ""
    basis = th.terminal.basis
    end = run.at(-1)
    x, w = end.points.double().cpu(), end.weights.double().cpu()
    share = float((w * (x @ basis.double().cpu()).square().sum(dim=1)).sum())
    words = f"The tokens ended in one point, with a mean cosine of {last:.3f}, without resting at the limit law first"
    if share >= ONE_POINT:
        words += ". This is the terminal phase"
    return f"{words}: {100 * share:.0f} % of their energy is in the dominant space of {th.terminal.name}."


def afterwards(run: Run, curves: DistanceCurves) -> str:
    """Where the tokens stayed after they left the limit law, or that they left unnoticed; empty if neither applies."""
    phases = curves.phases
    if phases is None or phases.concentrated is None:
        return ""
    if phases.terminal is None:
        return _unnoticed(run)
    later = [plateau for plateau in phases.plateaus if plateau.end > phases.terminal]
    if not later:
        return ""
    last = later[-1]
    since = f" from t = {number(last.start)}" if last.start > phases.terminal else ""
    until = "to the end of the run" if last.end == phases.horizon else f"to t = {number(last.end)}"
    return f"They then stayed at distance {number(last.level)}{since} {until}."


def _unnoticed(run: Run) -> str:
    """A sentence if most tokens went from ±e to a nearby ±v, and the distance did not rise enough to show it."""
    th = run.theory()
    if th.attention is None or th.terminal is None or th.dim != 1 or th.terminal.dim != 1:
        return ""
    e, v = (space.basis[:, 0].double().cpu() for space in (th.attention, th.terminal))
    end = run.at(-1)
    x, w = end.points.double().cpu(), end.weights.double().cpu()
    share = float(w[(x @ v).abs() > (x @ e).abs()].sum())
    angle = math.degrees(math.acos(min(1.0, abs(float(e @ v)))))
    if share <= 0.5 or angle < 1:
        return ""
    near = f"At the end {100 * share:.0f} % of the tokens are nearer to ±v, where the terminal phase leads, than to ±e"
    return f"{near}. The two axes are {angle:.0f}° apart, too close for the distance to show the departure."


def assumptions(verdict: Verdict) -> str:
    """How many of the theory's assumptions the head or the block meets."""
    names = {s: [c.name for c in verdict.checks if c.status == s] for s in ("fails", "doubtful")}
    if not names["fails"] and not names["doubtful"]:
        return f"All {len(verdict.checks)} assumptions of the theory hold."
    words = {"fails": ("fails", "fail"), "doubtful": ("is doubtful", "are doubtful")}
    parts = [f"{len(n)} {words[s][len(n) > 1]} ({'; '.join(n)})" for s, n in names.items() if n]
    return f"Of the theory's {len(verdict.checks)} assumptions, {' and '.join(parts)}."


class KeyNumber(NamedTuple):
    """A number with its name and what it means."""

    name: str
    value: str
    meaning: str


def _about_dimension(run: Run) -> str:
    if run.radii is None:
        return "tokens lie on the unit sphere of this space"
    return "directions of tokens lie on the unit sphere of this space"


def _member(run: Run) -> tuple[str, str]:
    """The name of the member in short, and in full with its discrete layers."""
    parts = run.block.name.split(", ")
    parts += [f"discrete layers of length {number(run.configuration['step'])}"] if run.discrete else []
    return next(part for part in parts if part not in ("softmax attention", "one head")), ", ".join(parts)


def key_numbers(run: Run, curves: DistanceCurves) -> list[KeyNumber]:
    """The numbers to quote from a run, each with its meaning."""
    th = run.theory()
    weights = "equal weights" if run.cloud.equal_weights else "weighted"
    gamma = run.configuration.get("gamma")
    scaled = "" if gamma is None else f"{number(gamma)} log N; "
    found = [
        KeyNumber("tokens N", f"{len(run.cloud):,}".replace(",", " "), f"{weights}, law: {run.cloud.law['law']}"),
        KeyNumber("dimension d", str(run.cloud.dim), _about_dimension(run)),
        KeyNumber("horizon", f"t = {number(run.horizon)}", f"{len(run.times)} times saved; later times are unknown"),
        KeyNumber("inverse temperature β", number(run.beta), f"{scaled}a larger β makes attention sharper"),
    ]
    if not run.block.plain or run.discrete:
        found.insert(0, KeyNumber("member", *_member(run)))
    if run.radii is not None:
        first, last = (number(float(run.radii[i].median())) for i in (0, -1))
        what = "a token z = e^(−tV)h" if run.block.norm == "none" else "a token"
        found.append(KeyNumber("radius", f"{first} → {last}", f"the median length of {what} at the start and the end"))
    if run.merged is not None:
        found.append(KeyNumber("live tokens", str(int(run.merged[-1, 0])), run.merge_sentence()))
    if th.no_limit:
        return found
    assert curves.phases is not None
    assert curves.floor is not None
    floor = curves.floor
    size = f"{floor.size} tokens" + (", fewer than in the run, so too high" if floor.size < floor.tokens else "")
    least, least_time = number(curves.phases.least), number(curves.phases.least_time)
    placed = "; these tokens are no random sample" if curves.placed else ""
    return [
        *found,
        KeyNumber("least distance", least, f"W₂ to the limit law, at t = {least_time}"),
        KeyNumber("noise floor", number(floor.mean), f"W₂ of two random samples of the limit law, {size}{placed}"),
        rate(th),
        *(_of_one_head(th, curves) if isinstance(th, Theory) else []),
    ]


def rate(th: Theory | BlockTheory) -> KeyNumber:
    """How fast a token approaches its limit at zero temperature."""
    if isinstance(th, BlockTheory) and th.power is not None:
        words = "a single token approaches its limit like a power of t, by the gap and the top eigenvalue of M"
        return KeyNumber("token power", f"t^(−{number(th.power)})", words)
    if isinstance(th, BlockTheory) and not th.rate > 0:
        return KeyNumber("token rate c", "not known", "no rate at which a single token approaches its limit is known")
    return KeyNumber("token rate c", number(th.rate), "a single token approaches its limit like exp(−ct)")


def _of_one_head(th: Theory, curves: DistanceCurves) -> list[KeyNumber]:
    return [
        KeyNumber("law rate", number(th.law_rate()), "W₂ of the whole law decays at this rate, which is at most c"),
        KeyNumber("Lipschitz constant L", number(th.lipschitz), "zero-temperature flows separate at most like exp(Lt)"),
        _bound(curves),
    ]


def _bound(curves: DistanceCurves) -> KeyNumber:
    name = "bound useful for"
    if curves.bound is None:
        return KeyNumber(name, "none", "there is no bound for this head")
    if curves.vacuous_from is None:
        return KeyNumber(name, "the whole run", "the bound stays below 2, the diameter of the sphere")
    return KeyNumber(name, f"t < {number(curves.vacuous_from)}", "later it exceeds 2, the diameter of the sphere")
