"""What the page says about the time that it shows: one sentence for each stretch of a run."""

from __future__ import annotations

import math

from metastable.figures.distance import DistanceCurves
from metastable.figures.look import number
from metastable.run.run import Run

Moment = tuple[float, str]
"""The time from which a sentence is true, until that of the next one."""


def moments(run: Run, curves: DistanceCurves) -> list[Moment]:
    """The phase of a run over time: concentrating, on the plateau, leaving, terminal, or why there are no phases."""
    phases = curves.phases
    if phases is None:
        return _without_limit(run)
    where = _limit(run)
    if math.isinf(run.theory().gap):
        return [(0.0, "No phases: no direction is preferred, so every token starts at its limit.")]
    if phases.course == "one time":
        return [(0.0, "Only one time was saved, so there are no phases to tell.")]
    if phases.concentrated is None and phases.course == "still":
        return [(0.0, "No phases: the distance to the limit law hardly changes in this run.")]
    gather = f"Concentrating: tokens move towards {where}"
    if phases.concentrated is None:
        return [(0.0, f"{gather}. The run ends before they arrive.")]
    plateau = f"On the plateau: tokens stay near {where}."
    if phases.terminal is None:
        plateau += " The run ends before they leave."
    found = [(0.0, f"{gather}.")] if phases.concentrated > 0 else []
    found.append((phases.concentrated, plateau))
    if phases.terminal is None:
        return found
    found.append((phases.terminal, f"Leaving: {_pulled(run, where)}."))
    last = phases.plateaus[-1] if phases.plateaus else None
    if last is not None and last.end > phases.terminal:
        rest = f"the distance rests at {number(last.level)}"
        found.append((max(last.start, phases.terminal), f"Terminal: tokens have left {where}; {rest}."))
        if last.end < phases.horizon:
            found.append((last.end, f"Terminal: tokens have left {where} and still move."))
    return [one for one, after in zip(found, [*found[1:], None], strict=True) if after is None or one[0] < after[0]]


def _without_limit(run: Run) -> list[Moment]:
    """Without a limit law there are no phases: how close together the tokens are, at each saved time."""
    theory = run.theory()
    turns = theory.attention is not None and theory.attention.rotates
    why = "this head turns tokens around and has no limit law" if turns else "there is no limit law here"
    seen = run.observables()
    columns = (seen[name].values.tolist() for name in ("time", "clusters", "mean_cosine", "effective_rank"))
    return [
        (t, f"No phases: {why}. {_gathered(int(clusters), cosine, rank, run.cloud.dim)}")
        for t, clusters, cosine, rank in zip(*columns, strict=True)
    ]


def _gathered(clusters: int, cosine: float, rank: float, dim: int) -> str:
    """How close together tokens are at one time."""
    groups = "the tokens are one connected group" if clusters == 1 else f"there are {clusters} clusters of tokens"
    mean = f"{cosine:.2f}".replace("-0.00", "0.00").replace("-", "−")
    return f"Now {groups}, with a mean cosine of {mean} and an effective rank of {rank:.2f} of {dim}."


def _limit(run: Run) -> str:
    """The support of the limit law, in words."""
    theory = run.theory()
    if theory.basis is None:
        return "the stable fixed points at zero temperature"
    if theory.dim == 1:
        return "the two points +e and −e"
    return f"the unit sphere of E, the dominant space of M (dimension {theory.dim})"


def _pulled(run: Run, where: str) -> str:
    """That tokens leave, and where V leads them if that is known."""
    terminal = run.theory().terminal
    if terminal is None:
        return f"tokens move away from {where}"
    if terminal.rotates:
        return f"tokens move away from {where}, and {terminal.name} turns them around"
    space = "±v" if terminal.dim == 1 else "its dominant space"
    return f"{terminal.name} pulls tokens away from {where}, towards {space}"
