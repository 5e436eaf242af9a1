"""The distance to the limit law over time, with its two terms, the bound, the noise floor and the three phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look
from metastable.figures.measured import DIAMETER, Measured, measure

if TYPE_CHECKING:
    import xarray as xr

    from metastable.phases import Phases
    from metastable.run import Run

TINTS = {"concentration": "#E3F0F8", "plateau": "#E0F2EA", "terminal": "#FBEBDD"}
DECADES_BELOW = 1.5
"""The axis goes this far below the least distance; a term that falls on for ever would flatten all the rest."""
UNFINISHED = {"still": "hardly any change", "falling": "concentration, not complete"}
"""What to write above a run that saw no phase begin or end."""
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
    figure = look.plain("Distance to the limit law over time", 520, _caption(m))
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
    if m.phases is not None:
        _shade(figure, m.phases)
    figure.update_xaxes(title_text="time t", range=[0, run.horizon], showgrid=False)
    figure.update_yaxes(
        title_text="Wasserstein-2 distance (chordal)",
        type="log",
        range=[np.log10(low), np.log10(high)],
        minor={"ticks": "outside", "ticklen": 3, "tickcolor": look.GREY},
        dtick=1,
        exponentformat="power",
    )
    figure.update_layout(
        hovermode="x unified",
        margin_t=look.TITLE_HEIGHT + 34,
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}},
    )
    return figure


def phase_intervals(phases: Phases) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the phases that the run saw, from 0 to its horizon."""
    times = [0.0, phases.concentrated, phases.terminal]
    seen = [(name, t) for name, t in zip(TINTS, times, strict=True) if t is not None]
    ends = [*(t for _, t in seen[1:]), phases.horizon]
    return [(name, begin, end) for (name, begin), end in zip(seen, ends, strict=True) if end > begin]


def _positive(values: Any) -> np.ndarray:
    """A logarithmic axis has no 0: such points are left out of the line."""
    y = np.array(values, dtype=float)
    y[~(np.isfinite(y) & (y > 0))] = np.nan
    return y


def _range(m: Measured) -> tuple[float, float]:
    """Lower and upper end of the axis: all of the distance and the floor, and as much of the terms as fits."""
    main = [_positive(m.distance), _positive([m.floor.mean if m.floor else 0.0])]
    terms = [_positive(c) for c in (m.laplace, m.lyapunov) if c is not None]
    shown, everything = (np.concatenate(parts) for parts in (main, [*main, *terms]))
    everything = everything[np.isfinite(everything)]
    if len(everything) == 0:
        return 1e-3, DIAMETER
    high = min(everything.max(), DIAMETER)
    least = np.nanmin(shown) if np.isfinite(shown).any() else everything.min()
    low = max(everything.min(), least * 10**-DECADES_BELOW, high * 1e-12)
    return min(low / 1.3, high / 10), high * 1.5


def _resting(figure: go.Figure, phases: Phases) -> None:
    """The stretches in which the distance rests, as a broad pale line under the curve: a staircase has several."""
    x = [t for plateau in phases.plateaus for t in (plateau.start, plateau.end, None)]
    y = [level for plateau in phases.plateaus for level in (plateau.level, plateau.level, None)]
    if x:
        figure.add_scatter(
            x=x, y=y, name="at rest", mode="lines", line={"color": look.YELLOW, "width": 14}, hoverinfo="skip",
        )  # fmt: skip


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
        fillcolor="rgba(0,114,178,0.18)",
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


def _shade(figure: go.Figure, phases: Phases) -> None:
    intervals = phase_intervals(phases)
    taken = [0.0, 0.0]
    for name, begin, end in intervals:
        figure.add_shape(
            name=name, type="rect", x0=begin, x1=end, y0=0, y1=1, yref="y domain", layer="below", line_width=0,
            fillcolor=TINTS[name],
        )  # fmt: skip
        _label(figure, UNFINISHED.get(phases.course, name) if len(intervals) == 1 else name, begin, end, phases, taken)
    for name, t in (("concentrated", phases.concentrated), ("terminal", phases.terminal)):
        if t is not None:
            _mark(figure, name, t, phases.horizon)


def _label(figure: go.Figure, text: str, begin: float, end: float, phases: Phases, taken: list[float]) -> None:
    """Name a phase above its interval, in the second row where its neighbour takes the room of the first."""
    width = (7.5 * len(text) + 8) / NARROWEST
    left = min(max(0.5 * (begin + end) / phases.horizon - width / 2, 0.0), 1.0 - width)
    row = 0 if left >= taken[0] else 1
    taken[row] = left + width
    figure.add_annotation(
        text=text, x=left + width / 2, xref="x domain", y=1, yref="y domain", yanchor="bottom", yshift=2 + 18 * row,
        showarrow=False, font={"size": 13, "color": look.INK},
    )  # fmt: skip


def _mark(figure: go.Figure, name: str, t: float, horizon: float) -> None:
    figure.add_shape(
        name=name, type="line", x0=t, x1=t, y0=0, y1=1, yref="y domain", line={"color": look.GREY, "width": 1.5},
    )  # fmt: skip
    figure.add_annotation(
        text=f"t = {look.number(t)}", x=t, y=0, yref="y domain", yanchor="bottom", showarrow=False,
        xanchor="left" if t < 0.75 * horizon else "right", font={"size": 13, "color": look.GREY},
    )  # fmt: skip


def _caption(m: Measured) -> str:
    floor = ""
    if m.floor is not None and m.floor.mean > 0:
        floor = " Below the dotted line a distance cannot be told from sampling noise."
    text = (
        "The blue line falls while tokens gather at the limit law, stays level on the metastable plateau and rises "
        "when clusters leave for the terminal phase. By the triangle inequality it lies below the sum of the "
        f"Laplace and the Lyapunov term.{floor}"
    )
    return " ".join([text, *m.missing])


def _without_limit(run: Run) -> go.Figure:
    """Mean cosine and effective rank, under the theory's sentence on why there is no limit law."""
    reason = run.theory.no_limit or ""
    seen = run.observables()
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    panels = (("mean_cosine", "mean cosine", look.BLUE), ("effective_rank", "effective rank", look.VERMILLION))
    for row, (key, name, colour) in enumerate(panels, start=1):
        figure.add_scatter(
            x=seen["time"].values, y=seen[key].values, name=name, mode="lines", showlegend=False,
            line={"color": colour, "width": 2.5}, hovertemplate="%{y:.3g}", row=row, col=1,
        )  # fmt: skip
        figure.update_yaxes(title_text=name, row=row, col=1)
    text = (
        "There is no limit law, so there is no distance to draw; instead, the mean cosine between tokens (1: all alike) "
        f"and their effective rank (1: one direction, {run.cloud.dim}: all directions alike)."
    )
    look.dress(figure, "No limit law to measure a distance to", 520, text)
    figure.update_xaxes(title_text="time t", row=2, col=1)
    sentence = look.wrapped(f"Theory: {reason}.", 48)
    lines = sentence.count("<br>") + 1
    figure.add_annotation(
        text=sentence, name="no limit", x=0, xref="paper", y=1, yref="paper", yanchor="bottom", xanchor="left",
        align="left", yshift=8, showarrow=False, font={"size": 14},
    )  # fmt: skip
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 10 + 19 * lines, hovermode="x unified")
    return figure
