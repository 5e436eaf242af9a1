"""Examples by name, and the guided tour: each sets the fields of the page."""

from __future__ import annotations

from typing import NamedTuple

from metastable.lab.state import VIEW_FIELDS, State

EXAMPLES = {
    "Three phases": State(),
    "Long plateau (graded weights)": State(law="graded", beta=1000.0, until=20.0),
    "Hardmax (β = ∞)": State(n=300, beta=float("inf")),
    "Two-dimensional limit": State(n=300, interaction=(1.5, 1.5, 0.6), value=(1.2, 1.2, 0.5), angle=0.0),
    "Rotation (no limit)": State(matrices="1 0 0\n0 1 0\n0 0 1\n\n0.8 -1 0\n1 0.8 0\n0 0 0.4", beta=20.0),
    "Causal attention": State(causal="yes"),
}
"""Examples by name. The first one is the state of a page that is opened without a link."""


class Step(NamedTuple):
    """A step of the tour: what it sets, and what to look at."""

    title: str
    words: str
    state: State


TOUR = (
    Step(
        "Tokens concentrate",
        "Tokens start everywhere on the sphere. Watch them gather at the two points +e and −e: the blue curve, their "
        "distance to these two points, falls.",
        State(beta=10.0),
    ),
    Step(
        "Raise β and watch the plateau grow",
        "β is now 100 instead of 10. Attention is sharper: the curve falls lower, and it stays low for longer before "
        "tokens leave.",
        State(),
    ),
    Step(
        "Two temperatures side by side",
        "β = 100 on the left, β = 10 on the right. One time moves both. Compare the two bars at the top of the "
        "curves: the green part is the plateau.",
        State(compare="beta", other="10"),
    ),
    Step(
        "Tokens leave the plateau",
        "The clusters do not stay. V pulls them away from ±e, and the curve rises again. This is the terminal phase. "
        "Its speed depends on V: the angle between B and V is now 60 degrees.",
        State(angle=60.0, until=20.0),
    ),
    Step(
        "A head without a limit",
        "This head turns tokens around. There is no point at which they could gather, so there is no plateau, and the "
        "curves on the right show how close together the tokens are.",
        EXAMPLES["Rotation (no limit)"],
    ),
)


def fields(state: State) -> dict[str, str]:
    """The texts for the fields of a simulation, with those of a comparison."""
    kept = ("compare", "other")
    return {name: text for name, text in state.to_page().items() if name in kept or name not in VIEW_FIELDS}
