"""A `Picture` of a claim, drawn: panels one under the other, so that they stay readable on a phone."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look

if TYPE_CHECKING:
    from metastable.claims.finding import Picture, Series

COLOURS = (look.BLUE, look.VERMILLION, look.GREEN, look.PURPLE, look.ORANGE, look.SKY, look.BLACK, look.GREY)
STYLES: dict[str, dict[str, Any]] = {
    "line": {"mode": "lines", "line": {"width": 2.5}},
    "dashed": {"mode": "lines", "line": {"width": 2, "dash": "dash"}},
    "dotted": {"mode": "lines", "line": {"width": 2, "dash": "dot"}},
    "points": {"mode": "markers", "marker": {"size": 8}},
}
PANEL_HEIGHT, KEY_LINE, GAP = 330, 21, 86


def picture(drawn: Picture) -> go.Figure:
    """Every series in its panel, each name with one colour throughout."""
    rows = len(drawn.panels)
    names = list(dict.fromkeys(s.name for s in drawn.series))
    key = 60 + KEY_LINE * sum(_label(name).count("<br>") + 1 for name in names)
    height = look.TITLE_HEIGHT + rows * PANEL_HEIGHT + (rows - 1) * GAP + key
    inside = rows * PANEL_HEIGHT + (rows - 1) * GAP
    titles = [look.raised(panel.title) for panel in drawn.panels]
    figure = make_subplots(
        rows=rows,
        cols=1,
        vertical_spacing=GAP / inside if rows > 1 else 0.0,
        subplot_titles=titles if any(titles) else None,
    )
    look.dress(figure, drawn.title, height, drawn.caption)
    shown: set[str] = set()
    for series in drawn.series:
        _add(figure, series, COLOURS[names.index(series.name) % len(COLOURS)], series.name not in shown)
        shown.add(series.name)
    for row, panel in enumerate(drawn.panels, start=1):
        here = [s for s in drawn.series if s.panel == row - 1]
        across = [x for s in here for x in s.x]
        up = [y for s in here for y in (*s.y, *s.low, *s.high)]
        figure.update_xaxes(title_text=look.raised(panel.x), row=row, col=1, **_axis(panel.log_x, across))
        figure.update_yaxes(title_text=look.raised(panel.y), row=row, col=1, **_axis(panel.log_y, up))
    figure.update_annotations({"font": {"size": 15}, "x": 0, "xanchor": "left"})
    figure.update_layout(
        margin={"t": look.TITLE_HEIGHT + (18 if any(titles) else 4), "b": key},
        showlegend=True,
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
    )
    return figure


def _label(name: str) -> str:
    """A name for the key, broken so that it fits a phone."""
    return "<br>".join(look.raised(part) for part in textwrap.wrap(name, 38))


def _axis(logarithmic: bool, values: list[float]) -> dict[str, Any]:
    """Powers of ten alone on an axis that spans several of them, 1, 2 and 5 on one that spans about one."""
    axis: dict[str, Any] = {"type": "log" if logarithmic else "linear", "exponentformat": "power"}
    positive = [v for v in values if v > 0]
    if logarithmic and positive and max(positive) > 8 * min(positive):
        wide = max(positive) > 100 * min(positive)
        axis |= {"dtick": 1 if wide else "D2", "minor": {"dtick": "D1", "ticks": "outside", "ticklen": 3}}
    return axis


def _add(figure: go.Figure, series: Series, colour: str, legend: bool) -> None:
    common = {"name": _label(series.name), "legendgroup": series.name, "row": series.panel + 1, "col": 1}
    if series.low:
        edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": series.x}
        figure.add_scatter(y=series.low, showlegend=False, **edge, **common)
        tint = f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},0.18)"
        band = series.style == "band"
        figure.add_scatter(y=series.high, fill="tonexty", fillcolor=tint, showlegend=legend and band, **edge, **common)
        if band:
            return
    style = STYLES[series.style]
    paint = {key: {**value, "color": colour} for key, value in style.items() if isinstance(value, dict)}
    figure.add_scatter(
        x=series.x,
        y=series.y,
        showlegend=legend,
        mode=style["mode"],
        hovertemplate="(%{x:.4g}, %{y:.4g})",
        **paint,
        **common,
    )
