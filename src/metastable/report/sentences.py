"""What happened in a run, in plain English and in a handful of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metastable.figures.look import number

if TYPE_CHECKING:
    from metastable.cloud import Cloud
    from metastable.figures.distance import DistanceCurves
    from metastable.run.run import Run
    from metastable.theory.assumptions import Verdict


def headline(run: Run, measured: DistanceCurves) -> str:
    """One or two sentences: what the tokens did, and when."""
    phases = measured.phases
    if phases is None:
        return f"This head has no limit law to compare with: {run.theory.no_limit}."
    end, least = f"t = {number(phases.horizon)}", number(phases.least)
    if math.isinf(run.theory.gap):
        assert measured.distance is not None
        away = number(float(measured.distance[-1]))
        start = "No direction is preferred, so every token starts at its limit"
        return f"{start}; at {end} the tokens were at distance {away} from it."
    if phases.course == "one time":
        return f"Only one time was saved: distance {least} from the limit law at {end}."
    if phases.concentrated is None and phases.course == "still":
        # The tokens themselves may have gone a long way: from everywhere to one point elsewhere, for one.
        first, last = (number(mean_cosine(run.at(i))) for i in (0, -1))
        moved = f"the tokens' mean cosine went from {first} to {last}"
        return f"The distance to the limit law stayed near {least} up to {end}, while {moved}."
    if phases.concentrated is None:
        return f"Tokens were still concentrating when the run ended at {end}, at distance {least} from the limit law."
    came = f"Tokens concentrated by t = {number(phases.concentrated)}"
    if phases.terminal is None:
        return f"{came} and stayed near distance {least} from the limit law; a terminal phase was not seen up to {end}."
    lasted = number(phases.terminal - phases.concentrated)
    stayed = f"stayed for {lasted} time units near distance {least} from the limit law"
    return f"{came}, {stayed}, and left for the terminal phase at t = {number(phases.terminal)}."


def mean_cosine(cloud: Cloud) -> float:
    """Between two different tokens, Σ_{i≠j} w_i w_j ⟨x_i, x_j⟩/Σ_{i≠j} w_i w_j."""
    w, x = cloud.weights.double(), cloud.points.double()
    alone = float((w * w).sum())
    mean = w @ x
    return (float(mean @ mean) - alone) / (1 - alone) if alone < 1 else 1.0


def afterwards(run: Run, measured: DistanceCurves) -> str:
    """Where the tokens came to rest after they had left, or where they are if leaving cannot be told; else nothing."""
    phases = measured.phases
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
    return f"They then rested at distance {number(last.level)}{since} {until}."


def _unnoticed(run: Run) -> str:
    """Tokens that went from ±e to ±v nearby, without the distance rising by what counts as leaving."""
    th = run.theory
    if th.dim != 1 or th.terminal.dim != 1:
        return ""
    e, v = (space.basis[:, 0].double().cpu() for space in (th.attention, th.terminal))
    end = run.at(-1)
    x, w = end.points.double().cpu(), end.weights.double().cpu()
    share = float(w[(x @ v).abs() > (x @ e).abs()].sum())
    angle = math.degrees(math.acos(min(1.0, abs(float(e @ v)))))
    if share <= 0.5 or angle < 1:
        return ""
    near = f"At the end {100 * share:.0f} % of the tokens are nearer to ±v, where the terminal phase leads, than to ±e"
    return f"{near}: the two are {angle:.0f}° apart, too little for the distance to rise by what counts as leaving."


def assumptions(verdict: Verdict) -> str:
    """How many of the theory's assumptions the head meets."""
    names = {s: [c.name for c in verdict.checks if c.status == s] for s in ("fails", "doubtful")}
    if not names["fails"] and not names["doubtful"]:
        return f"All {len(verdict.checks)} assumptions of the theory hold for this head."
    words = {"fails": ("fails", "fail"), "doubtful": ("is doubtful", "are doubtful")}
    parts = [f"{len(n)} {words[s][len(n) > 1]} ({'; '.join(n)})" for s, n in names.items() if n]
    return f"Of the theory's {len(verdict.checks)} assumptions, {' and '.join(parts)}."


@dataclass(frozen=True)
class KeyNumber:
    """A number with its name and what it means."""

    name: str
    value: str
    meaning: str


def key_numbers(run: Run, measured: DistanceCurves) -> list[KeyNumber]:
    """The numbers to quote from a run, each with a word on how to take it."""
    th = run.theory
    weights = "equal weights" if run.cloud.equal_weights else "weighted"
    found = [
        KeyNumber("tokens N", f"{len(run.cloud):,}".replace(",", " "), f"{weights}, law: {run.cloud.law['law']}"),
        KeyNumber("dimension d", str(run.cloud.dim), "tokens live on the unit sphere of this space"),
        KeyNumber("horizon", f"t = {number(run.horizon)}", f"{len(run.times)} times saved; nothing is known beyond"),
        KeyNumber("inverse temperature β", number(run.beta), "the larger, the sharper the attention"),
    ]
    if run.merged is not None:
        found.append(KeyNumber("live tokens", str(int(run.merged[-1, 0])), run.merge_sentence()))
    return [*found, *_of_the_distance(run, measured), *_of_the_theory(run, measured)] if not th.no_limit else found


def _of_the_distance(run: Run, m: DistanceCurves) -> list[KeyNumber]:
    assert m.phases is not None
    assert m.floor is not None
    size = f"{m.floor.size} tokens" + (" (fewer than in the run: too high)" if m.floor.size < m.floor.tokens else "")
    only = "; for scale only, the tokens were not drawn at random" if m.placed else ""
    where = f"W₂ to the limit law, at t = {number(m.phases.least_time)}"
    return [
        KeyNumber("least distance", number(m.phases.least), where),
        KeyNumber("noise floor", number(m.floor.mean), f"W₂ of two random samples of the limit law, {size}{only}"),
    ]


def _of_the_theory(run: Run, m: DistanceCurves) -> list[KeyNumber]:
    th = run.theory
    until = "the whole run" if m.vacuous_from is None else f"t < {number(m.vacuous_from)}"
    bound = "none" if m.bound is None else until
    limit = (
        "it stays below 2, the diameter of the sphere"
        if bound == "the whole run"
        else "later it exceeds 2, the diameter of the sphere"
    )
    return [
        KeyNumber("token rate c", number(th.rate), "a single token approaches its limit like exp(−ct)"),
        KeyNumber(
            "law rate",
            number(th.law_rate()),
            "the whole law approaches it in W₂ at this rate, never faster than a token",
        ),
        KeyNumber("Lipschitz constant L", number(th.lipschitz), "two zero-temperature flows part at most like exp(Lt)"),
        KeyNumber("bound useful for", bound, limit),
    ]
