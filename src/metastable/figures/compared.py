"""Two runs in one figure: their distances to the limit law, or, without one, how alike their tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from metastable.figures import look
from metastable.figures.distance import KEY_LINE, ROUNDING, _positive
from metastable.figures.measured import DIAMETER, Measured

if TYPE_CHECKING:
    from metastable.run.run import Run

LINES = ((look.BLUE, "solid"), (look.VERMILLION, "dash"))
"""Colour and dash of the first and the second run, which differ in both."""


def distances(runs: Sequence[Run], measured: Sequence[Measured], names: Sequence[str]) -> go.Figure:
    """W₂ to the limit law of two runs of one head over time, with the times at which their phases begin.

    names : what tells the runs apart, such as "β = 10" and "β = 1000".
    """
    if any(m.distance is None for m in measured):
        return _cosines(runs, names)
    text = (
        "W₂ of each run to the limit law of its own tokens. A circle marks where tokens have concentrated, a diamond "
        "where the terminal phase begins. Dotted: the distance between two random samples of the limit law."
    )
    figure = look.plain("Distance to the limit law", 560, text)
    for m, name, (colour, dash) in zip(measured, names, LINES, strict=True):
        assert m.distance is not None
        _line(figure, m.distance["time"].values, _positive(m.distance.values), f"W₂, {name}", colour, dash)
        _begins(figure, m, name, colour)
    _floors(figure, measured, names, max(run.horizon for run in runs))
    low = _least(measured)
    figure.update_yaxes(
        title_text="Wasserstein-2 distance (chordal)",
        type="log",
        range=[np.log10(low), np.log10(1.1 * DIAMETER)],
        minor={"ticks": "outside", "ticklen": 3, "tickcolor": look.GREY},
        dtick=1,
        exponentformat="none" if low > 1e-4 else "power",
    )
    return _finished(figure, runs)


def _least(measured: Sequence[Measured]) -> float:
    """The lower end of the axis, a little below everything that is drawn."""
    drawn = [_positive(m.distance) for m in measured]
    drawn += [_positive([m.floor.mean]) for m in measured if m.floor is not None]
    every = np.concatenate(drawn)
    every = every[np.isfinite(every)]
    return min(float(every.min()) / 1.5, 0.1) if len(every) else 1e-3


def _floors(figure: go.Figure, measured: Sequence[Measured], names: Sequence[str], horizon: float) -> None:
    """A dotted line for each noise floor, or one where there is no difference to be seen."""
    floors = [0.0 if m.floor is None else m.floor.mean for m in measured]
    drawn = [(floor, f", {name}", colour) for floor, name, (colour, _) in zip(floors, names, LINES, strict=True)]
    if max(floors) < 1.05 * min(floors):
        drawn = [(floors[0], "", look.GREY)]
    for floor, of, colour in drawn:
        if floor > 0:
            words = f"noise floor {look.number(floor)}{of}"
            _line(figure, [0, horizon], [floor] * 2, words, colour, "dot", width=1.5)


def _begins(figure: go.Figure, m: Measured, name: str, colour: str) -> None:
    """Where the run's phases begin, as marks on its line."""
    assert m.phases is not None
    level = max(m.phases.factor * m.phases.least, ROUNDING)
    marks = (("concentrated", m.phases.concentrated, "circle"), ("terminal", m.phases.terminal, "diamond"))
    seen = [(t, f"{what} from t = {look.number(t)}", symbol) for what, t, symbol in marks if t]
    if seen:
        times, words, symbols = zip(*seen, strict=True)
        figure.add_scatter(
            x=times,
            y=[level] * len(times),
            text=words,
            name=f"phases, {name}",
            mode="markers",
            marker={"size": 11, "symbol": symbols, "color": colour, "line": {"width": 2, "color": look.INK}},
            hovertemplate="%{text}<extra>" + name + "</extra>",
            showlegend=False,
        )


def _cosines(runs: Sequence[Run], names: Sequence[str]) -> go.Figure:
    text = (
        f"There is no limit law to measure a distance to: {runs[0].theory.no_limit}. Mean cosine 1: all tokens alike."
    )
    figure = look.plain("Mean cosine between tokens", 520, text)
    for run, name, (colour, dash) in zip(runs, names, LINES, strict=True):
        seen = run.observables()
        _line(figure, seen["time"].values, seen["mean_cosine"].values, name, colour, dash)
    figure.update_yaxes(title_text="mean cosine between tokens")
    return _finished(figure, runs)


def _line(figure: go.Figure, x: Any, y: Any, name: str, colour: str, dash: str, width: float = 3) -> None:
    line = {"color": colour, "width": width, "dash": dash}
    figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, hovertemplate="%{y:.3g}")


def _finished(figure: go.Figure, runs: Sequence[Run]) -> go.Figure:
    figure.update_xaxes(title_text="time t", range=[0, max(run.horizon for run in runs)], showgrid=False)
    figure.update_layout(
        hovermode="x unified",
        margin_b=60 + KEY_LINE * sum(trace.showlegend is not False for trace in figure.data),
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
    )
    return figure
