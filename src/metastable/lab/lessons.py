"""Examples by name, and the guided tour: each sets the fields of the page."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from metastable.lab.state import VIEW_FIELDS, State

EXAMPLES = {
    "Three phases": State(),
    "Long plateau (V = 1)": State(
        interaction=(1.5, 0.5, 0.3), value=(1.0, 1.0, 1.0), angle=0.0, n=500, beta=20.0, until=30.0
    ),
    "Hardmax (β = ∞)": State(n=300, beta=float("inf")),
    "Two-dimensional limit": State(n=300, interaction=(1.5, 1.5, 0.6), value=(1.2, 1.2, 0.5), angle=0.0),
    "Rotation (no limit)": State(matrices="1 0 0\n0 1 0\n0 0 1\n\n0.8 -1 0\n1 0.8 0\n0 0 0.4", beta=20.0),
    "Causal attention": State(causal="yes"),
}
"""Examples by name. The first one is the state of a page that is opened without a link."""


CIRCLE = State(d=2, interaction=(1.5, 0.5), value=(1.2, 0.6), angle=65.0, law="graded", n=400)
"""A head on the circle whose plateau grows with β: from t = 3.6 to 5.9 at β = 20, and from 5.3 to 9.8 at β = 100."""


class TourStep(NamedTuple):
    """A step of the tour: what it sets, and what to look at."""

    title: str
    words: str
    state: State


TOUR = (
    TourStep(
        "Tokens concentrate",
        "Tokens start everywhere on the circle. Watch them gather at the two points +e and −e: the blue curve, their "
        "distance to these two points, falls.",
        replace(CIRCLE, beta=20.0),
    ),
    TourStep(
        "Raise β and watch the plateau grow",
        "β is now 100 instead of 20. Attention is sharper: the curve falls lower, and it stays low for longer before "
        "tokens leave.",
        CIRCLE,
    ),
    TourStep(
        "Two temperatures side by side",
        "The first circle is β = 100, the second is β = 20. One time moves both. Compare the two bars above the "
        "curves: the green part is the plateau.",
        replace(CIRCLE, compare="beta", other="20"),
    ),
    TourStep(
        "Tokens leave the plateau",
        "This head acts on a sphere; drag it to rotate it. Its clusters do not stay: V pulls them from ±e towards ±v, "
        "the green line, and the curve rises again. This is the terminal phase.",
        State(until=20.0),
    ),
    TourStep(
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
