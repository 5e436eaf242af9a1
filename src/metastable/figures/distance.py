"""The distance to the limit law over time, with its two terms, the bound, the noise floor and the three phases."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look
from metastable.figures.measured import DIAMETER, Measured, measure

if TYPE_CHECKING:
    import xarray as xr

    from metastable.run.run import Run
    from metastable.theory.phases import Phases

TINTS = {"concentration": "#E3F0F8", "plateau": "#E0F2EA", "terminal": "#FBEBDD"}
REST, BAND = "#F6EE9C", "rgba(0,114,178,0.18)"
DECADES_BELOW = 1.5
"""The axis goes this far below the least distance; a term that falls on for ever would flatten all the rest."""
NOTHING = {"still": "hardly any change", "one time": "only one time saved"}
"""What to write above a run without phases."""
ROUNDING = 1e-9
"""Smaller distances count as 0, as they do for the phases."""
KEY_LINE = 20
NARROWEST = 290
"""Width in pixels of the plotting area on a small phone, for which the labels are laid out."""


def distance(run: Run, measured: Measured | None = None) -> go.Figure:
    """W₂ from the tokens to the limit law, on a logarithmic axis.

    `measured` spares the computation when the caller has it already. For a head without a limit law the figure
    says so and shows mean cosine and effective rank instead.
    """
    m = measured or measure(run)
    if m.distance is None:
        return _without_limit(run)
    figure = look.plain("Distance to the limit law over time", 600, _caption(m))
    low, high = _range(m)
    if m.phases is not None:
        _resting(figure, m.phases)
    _band(figure, m.distance, low)
    _curve(figure, m.distance, "W₂ to the limit law", look.BLUE, width=3.5)
    if m.laplace is not None:
        _curve(figure, m.laplace, "Laplace term: β against zero temperature", look.VERMILLION)
    if m.lyapunov is not None:
        _curve(figure, m.lyapunov, "Lyapunov term: zero temperature to limit", look.GREEN)
    _bound(figure, m)
    _floor(figure, m, run.horizon)
    rows = _shade(figure, m.phases) if m.phases is not None else 0
    figure.update_xaxes(title_text="time t", range=[0, run.horizon], showgrid=False)
    figure.update_xaxes(unifiedhovertitle_text="t = %{x:.4g}")
    figure.update_yaxes(
        title_text="Wasserstein-2 distance (chordal)",
        type="log",
        range=[np.log10(low), np.log10(high)],
        minor={"ticks": "outside", "ticklen": 3, "tickcolor": look.GREY},
        dtick=1,
        exponentformat="none" if low > 1e-4 else "power",
    )
    figure.update_layout(
        hovermode="x unified",
        height=470 + KEY_LINE * len(figure.data),
        margin={"t": look.TITLE_HEIGHT + 4 + 17 * rows, "b": 60 + KEY_LINE * len(figure.data)},
        # One entry a line under the axis: side by side they would not fit a phone.
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
    )
    return figure


def phase_intervals(phases: Phases) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the phases that the run saw, from 0 to its horizon; none if nothing happened."""
    if phases.concentrated is None and phases.course in NOTHING:
        return []
    times = [0.0, phases.concentrated, phases.terminal]
    seen = [(name, t) for name, t in zip(TINTS, times, strict=True) if t is not None]
    ends = [*(t for _, t in seen[1:]), phases.horizon]
    return [(name, begin, end) for (name, begin), end in zip(seen, ends, strict=True) if end > begin]


def _positive(values: Any) -> np.ndarray:
    """A logarithmic axis has no 0: such points, with their rounding errors, are left out of the line."""
    y = np.array(values, dtype=float)
    y[~(np.isfinite(y) & (y >= ROUNDING))] = np.nan
    return y


def _range(m: Measured) -> tuple[float, float]:
    """Lower and upper end of the axis: all of the distance and the floor, and as much of the terms as fits."""
    main = [_positive(m.distance), _positive([m.floor.mean if m.floor else 0.0])]
    terms = [_positive(c) for c in (m.laplace, m.lyapunov) if c is not None]
    shown, everything = (np.concatenate(parts) for parts in (main, [*main, *terms]))
    shown, everything = (part[np.isfinite(part)] for part in (shown, everything))
    if len(everything) == 0:
        return 1e-3, 1.1 * DIAMETER
    least = shown.min() if len(shown) else everything.min()
    low = max(everything.min(), least * 10**-DECADES_BELOW)
    return min(low / 1.3, 0.1), 1.1 * DIAMETER


def _resting(figure: go.Figure, phases: Phases) -> None:
    """The stretches in which the distance rests, as a broad pale line under the curve: a staircase has several."""
    x = [t for plateau in phases.plateaus for t in (plateau.start, plateau.end, None)]
    y = [level for plateau in phases.plateaus for level in (plateau.level, plateau.level, None)]
    if x:
        figure.add_scatter(
            x=x,
            y=y,
            name="at rest",
            mode="lines",
            line={"color": REST, "width": 13},
            hoverinfo="skip",
            zorder=-1,
            legendrank=2000,
        )


def _curve(figure: go.Figure, curve: xr.DataArray, name: str, colour: str, width: float = 2) -> None:
    figure.add_scatter(
        x=curve["time"].values,
        y=_positive(curve.values),
        name=name,
        mode="lines",
        line={"color": colour, "width": width},
        hovertemplate="%{y:.3g}",
    )


def _band(figure: go.Figure, curve: xr.DataArray, low: float) -> None:
    """Between the lower and the upper bound, where the distance was not found exactly."""
    lower, upper = (np.clip(curve[side].values, low, DIAMETER) for side in ("lower", "upper"))
    if np.allclose(curve["lower"], curve["upper"], rtol=1e-9, atol=1e-15):
        return
    edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hovertemplate": "%{y:.3g}"}
    figure.add_scatter(x=curve["time"].values, y=lower, name="lower bound of W₂", showlegend=False, **edge)
    figure.add_scatter(
        x=curve["time"].values,
        y=upper,
        name="W₂ lies in here (not exact)",
        fill="tonexty",
        fillcolor=BAND,
        **edge,
    )


def _bound(figure: go.Figure, m: Measured) -> None:
    """min(bound, 2) up to the time where it becomes vacuous: min(bound, 2) is itself a true bound."""
    if m.bound is None or m.certificate is None:
        return
    times, y = m.certificate["time"].values, np.minimum(m.bound, DIAMETER)
    name = "bound, nothing fitted"
    if m.vacuous_from is not None:
        y = np.where(times > m.vacuous_from, np.nan, y)
        name += f"; vacuous from t = {look.number(m.vacuous_from)}"
    figure.add_scatter(
        x=times,
        y=_positive(y),
        name=name,
        mode="lines",
        line={"color": look.INK, "width": 2, "dash": "dash"},
        hovertemplate="%{y:.3g}",
    )


def _floor(figure: go.Figure, m: Measured, horizon: float) -> None:
    if m.floor is None or not m.floor.mean > 0:
        return
    figure.add_scatter(
        x=[0, horizon],
        y=[m.floor.mean] * 2,
        name=f"noise floor {look.number(m.floor.mean)}: two samples of the limit",
        mode="lines",
        line={"color": look.GREY, "width": 2, "dash": "dot"},
        hovertemplate="%{y:.3g}",
    )


def _shade(figure: go.Figure, phases: Phases) -> int:
    """Shade and name the phases; how many rows their names take comes back."""
    taken = [-math.inf] * 3
    intervals = phase_intervals(phases)
    for name, begin, end in intervals:
        figure.add_shape(
            name=name,
            type="rect",
            x0=begin,
            x1=end,
            y0=0,
            y1=1,
            yref="y domain",
            layer="below",
            line_width=0,
            fillcolor=TINTS[name],
        )
        if end - begin > 0.01 * phases.horizon:
            _label(figure, name if len(intervals) > 1 else "concentration, not complete", begin, end, phases, taken)
    if not intervals:
        _label(figure, NOTHING[phases.course], 0.0, phases.horizon, phases, taken)
    _marks(figure, phases)
    return sum(edge > -math.inf for edge in taken)


def _label(figure: go.Figure, text: str, begin: float, end: float, phases: Phases, taken: list[float]) -> None:
    """Name a phase above its interval, in a higher row where its neighbour takes the room on a phone."""
    width, centre = 6.8 * len(text) + 10, 0.5 * (begin + end) / phases.horizon * NARROWEST
    outside = centre + width / 2 > NARROWEST + 10
    left = NARROWEST - width if outside else centre - width / 2
    row = next(i for i, edge in enumerate(taken) if left >= edge)
    taken[row] = left + width
    figure.add_annotation(
        text=text,
        x=end if outside else 0.5 * (begin + end),
        xanchor="right" if outside else "center",
        y=1,
        yref="y domain",
        yanchor="bottom",
        yshift=2 + 17 * row,
        showarrow=False,
        font={"size": 13, "color": look.INK},
    )


def _marks(figure: go.Figure, phases: Phases) -> None:
    """A line and the time at which a phase begins, written to its outer side where there is room."""
    left_of, right_of = phases.concentrated, phases.terminal
    room = 0.22 * phases.horizon
    sides = {
        "concentrated": (left_of, "right" if left_of is not None and left_of > room else "left"),
        "terminal": (right_of, "left" if right_of is not None and right_of < phases.horizon - room else "right"),
    }
    crowded = left_of is not None and right_of is not None and right_of - left_of < room
    crowded = crowded and sides["concentrated"][1] == sides["terminal"][1]
    for name, (t, side) in sides.items():
        if t is None:
            continue
        figure.add_shape(
            name=f"{name} at",
            type="line",
            x0=t,
            x1=t,
            y0=0,
            y1=1,
            yref="y domain",
            line={"color": look.GREY, "width": 1.5},
        )
        if t < 0.01 * phases.horizon:
            continue
        figure.add_annotation(
            text=f"t = {look.number(t)}",
            x=t,
            y=0,
            yref="y domain",
            yanchor="bottom",
            xanchor=side,
            showarrow=False,
            font={"size": 13, "color": look.GREY},
            yshift=18 if crowded and name == "terminal" else 0,
        )


def _caption(m: Measured) -> str:
    text = (
        "The blue line falls while tokens gather at the limit law, stays low on the metastable plateau and rises when "
        "clusters leave; it lies below the sum of the Laplace and the Lyapunov term."
    )
    floor = ""
    if m.floor is not None and m.floor.mean > 0:
        so = "these tokens are a quadrature and no random sample, so lower distances mean something too"
        floor = f"Dotted: the distance between two random samples of the limit law, {m.floor.size} tokens each; "
        own = "another sample would change the distance by about as much; its own limit a cloud may be nearer to"
        floor += f"{so if m.quadrature else own}."
    return " ".join([text, floor, *m.missing])


def _without_limit(run: Run) -> go.Figure:
    """Mean cosine and effective rank, under the theory's sentence on why there is no limit law."""
    reason = run.theory.no_limit or ""
    seen = run.observables()
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    panels = (("mean_cosine", "mean cosine", look.BLUE), ("effective_rank", "effective rank", look.VERMILLION))
    for row, (key, name, colour) in enumerate(panels, start=1):
        figure.add_scatter(
            x=seen["time"].values,
            y=seen[key].values,
            name=name,
            mode="lines",
            showlegend=False,
            line={"color": colour, "width": 2.5},
            hovertemplate="%{y:.3g}",
            row=row,
            col=1,
        )
        figure.update_yaxes(title_text=name, row=row, col=1)
    text = (
        "There is no limit law, so there is no distance to draw. Instead: the mean cosine between tokens (1: all "
        f"alike) and their effective rank (1: one direction, {run.cloud.dim}: all directions alike)."
    )
    look.dress(figure, "No limit law to measure a distance to", 520, text)
    figure.update_xaxes(title_text="time t", row=2, col=1)
    figure.update_yaxes(range=[min(0.0, float(seen["mean_cosine"].min())) - 0.05, 1.05], row=1, col=1)
    sentence = look.wrapped(f"Theory: {reason}.", 46)
    lines = sentence.count("<br>") + 1
    figure.add_annotation(
        text=sentence,
        name="no limit",
        x=0,
        xref="paper",
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="left",
        align="left",
        yshift=8,
        xshift=-52,
        showarrow=False,
        font={"size": 13},
    )
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 10 + 19 * lines, hovermode="x unified")
    return figure
