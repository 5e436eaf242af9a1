"""Figures of the effects of length on an encoder: curves over n and depth, a map of heads, forecasts and causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from metastable.decimals import signed
from metastable.figures import look

WHOLE, GLUED, REFERENCE = "whole documents", "glued texts", "reference"
STYLES = {WHOLE: (look.BLUE, "solid"), GLUED: (look.VERMILLION, "dot"), REFERENCE: (look.GREY, "dash")}
"""The curves over n: colour and dash."""
FACTORS = "multiplied scores"
WAYS = {
    WHOLE: (look.BLUE, "circle", 0.0),
    "mean of chunks": (look.GREEN, "square", -0.12),
    "closest chunk": (look.VERMILLION, "diamond", 0.12),
    FACTORS: (look.PURPLE, "triangle-up", 0.0),
}
"""The colour, the sign and the sideways shift of each way of representing a document."""
LIGHT_TO_DARK = ("#8CCBF0", look.BLUE, "#00233B")
"""Colours of lengths, from short to long."""
LATE_TO_EARLY = (look.YELLOW, look.ORANGE, look.VERMILLION)
"""Colours of heads that lose their focus at a long and at a short length."""
LEVEL, RISE, FALL = "#A9B1B9", look.BLUE, look.ORANGE
"""Bars of a waterfall: values at its two ends, and parts that add and take away."""
PANEL, CELL, BAR = 140, 24, 26
"""Heights of a plot between its title and its axis, of a layer in a map and of a bar, in pixels."""
TALLEST = 360
"""The largest height of a map of heads, in pixels."""
MOST_LABELS = 6
"""Lengths on an axis that all have a label."""
AXIS = 48
"""Height of an axis with its title, in pixels."""


def shades(colours: Sequence[str], count: int) -> list[str]:
    """That many colours from the first to the last of `colours`; a single one is the last."""
    return [str(shade) for shade in sample_colorscale(list(colours), np.linspace(1, 0, count))][::-1]


def length_curves(
    title: str,
    caption: str,
    column: str,
    curves: Mapping[str, pd.DataFrame],
    limits: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    *,
    y: str,
    reach: tuple[float, float] | None = None,
) -> go.Figure:
    """A statistic over the number of tokens n, with a tick at every length of a logarithmic axis.

    curves : tables with the columns n, NAME, NAME_low and NAME_high, by a name of `STYLES`; a reference has no ends
    limits : tables with the columns n and NAME, drawn as thin dashed lines
    y : title of the other axis; reach : its ends
    """
    lengths = sorted({int(n) for table in curves.values() for n in table["n"]})
    figure = _plot(title, caption, "tokens n", y)
    for name, table in limits.items():
        look.curve(figure, table["n"], table[column], name, look.INK, width=1, dash="dash", hoverinfo="skip")
    for name, table in curves.items():
        _length_curve(figure, table, column, name)
    # Many labels do not fit a phone: every other one then, with the last.
    named = lengths[::-1][:: 1 if len(lengths) <= MOST_LABELS else 2]
    labels = [str(n) if n in named else "" for n in lengths]
    figure.update_xaxes(type="log", tickvals=lengths, ticktext=labels, tickangle=0)
    if reach is not None:
        figure.update_yaxes(range=list(reach))
    _legend(figure)
    return figure


def _length_curve(figure: go.Figure, table: pd.DataFrame, column: str, name: str) -> None:
    """One curve, with its band; a single point has error bars instead."""
    colour, dash = STYLES[name]
    hover = f"n = %{{x}}: %{{y:.3g}}<extra>{name}</extra>"
    style: dict[str, Any] = {"dash": dash, "mode": "lines+markers", "hovertemplate": hover}
    if f"{column}_low" in table:
        low, high = (table[f"{column}_{side}"] for side in ("low", "high"))
        hidden: dict[str, Any] = {"showlegend": False, "hoverinfo": "skip"}
        names = f"{name}, low", f"{name}, high"
        look.band(figure, table["n"], low, high, look.tint(colour, 0.15), names, **hidden)
        if len(table) == 1:
            style["error_y"] = _bars(table[column], low, high, colour)
    look.curve(figure, table["n"], table[column], name, colour, **style)


def way_points(title: str, caption: str, points: pd.DataFrame, x: str, reach: tuple[float, float]) -> go.Figure:
    """The mean reciprocal rank of each way of representing long documents, with intervals.

    points : a row each, with the columns way (of `WAYS`), place (the label on the axis), mrr, mrr_low and mrr_high
    x : title of the axis; reach : ends of the other one
    """
    figure = _plot(title, caption, x, "MRR")
    places = list(dict.fromkeys(points["place"]))
    for way, table in points.groupby("way", sort=False):
        colour, sign, shift = WAYS[way]
        figure.add_scatter(
            x=[places.index(place) + shift for place in table["place"]],
            y=table["mrr"],
            error_y=_bars(table["mrr"], table["mrr_low"], table["mrr_high"], colour),
            mode="markers",
            marker={"color": colour, "symbol": sign, "size": 9},
            name=way,
            customdata=table["place"],
            hovertemplate="%{customdata}: %{y:.3g}<extra>" + way + "</extra>",
        )
    labels = [place.replace("× ", "×<br>").replace("/", "/<br>") for place in places]
    figure.update_xaxes(tickvals=list(range(len(places))), ticktext=labels, tickangle=0, showgrid=False)
    figure.update_yaxes(range=list(reach))
    _legend(figure)
    return figure


def word_map(title: str, caption: str, table: pd.DataFrame, colours: Mapping[str, str]) -> go.Figure:
    """Layers × heads, a word each.

    table : a row a head, with the columns layer, head, word and hover
    colours : the colour of each word, in the order of the legend
    """
    words = list(colours)
    layers, heads = int(table["layer"].max()) + 1, int(table["head"].max()) + 1
    figure = _plot(title, caption, "head", "layer", max(PANEL, min(TALLEST, CELL * layers)))
    z, hover = np.full((layers, heads), np.nan), np.full((layers, heads), "", dtype=object)
    places = table["layer"].to_numpy(dtype=int), table["head"].to_numpy(dtype=int)
    z[places], hover[places] = [words.index(word) for word in table["word"]], table["hover"]
    template = "layer %{y}, head %{x}: %{customdata}<extra></extra>"
    figure.add_heatmap(
        z=look.cells(z),
        customdata=hover,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        showlegend=False,
        hovertemplate=template,
    )
    for word, colour in colours.items():
        sign = {"symbol": "square", "size": 12, "color": colour}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=sign, name=word)
    figure.update_xaxes(dtick=1 if heads <= 16 else 2, showgrid=False, range=[-0.5, heads - 0.5])
    figure.update_yaxes(dtick=1 if layers <= 16 else 2, showgrid=False, range=[layers - 0.5, -0.5])
    figure.update_layout(coloraxis={**look.word_colours(dict(colours)), "showscale": False})
    _legend(figure)
    return figure


def forecast_points(title: str, caption: str, table: pd.DataFrame, unit: str) -> go.Figure:
    """Forecast against measurement, a point a head. The last length is drawn; a click in the legend adds another one.

    table : the columns n, layer, head, forecast, low, high and measured
    """
    figure = _plot(title, caption, f"measured, {unit}", f"forecast, {unit}", 180)
    ends = [float(table[["measured", "low"]].min().min()), float(table[["measured", "high"]].max().max())]
    look.curve(figure, ends, ends, "forecast = measured", look.INK, width=1, dash="dash", hoverinfo="skip")
    lengths = sorted(set(table["n"]))
    for n, colour in zip(lengths, shades(LIGHT_TO_DARK, len(lengths)), strict=True):
        rows = table[table["n"] == n]
        figure.add_scatter(
            x=rows["measured"],
            y=rows["forecast"],
            error_y={**_bars(rows["forecast"], rows["low"], rows["high"], look.tint(look.GREY, 0.35)), "width": 0},
            mode="markers",
            marker={"color": colour, "size": 6},
            name=f"{n} tokens",
            visible=True if n == lengths[-1] else "legendonly",
            customdata=rows[["layer", "head"]],
            hovertemplate="layer %{customdata[0]}, head %{customdata[1]}: %{y:.3g}, measured %{x:.3g}"
            f"<extra>{n} tokens</extra>",
        )
    _legend(figure)
    return figure


def waterfall(title: str, caption: str, steps: pd.DataFrame, x: str) -> go.Figure:
    """A change as a sum of parts: the value before, each part with its interval, and the value after.

    steps : a row a bar, with the columns part, base (where the bar begins), change (its length), low and high (the
        interval of the change; NaN for the values before and after)
    x : title of the axis
    """
    figure = _plot(title, caption, x, "", BAR * len(steps))
    ends = steps["low"].isna()
    falls = steps["change"] < 0
    labels = [
        f"{row.part}  <b>{row.change:.2f}</b>" if end else f"{row.part}  <b>{signed(row.change, 2)}</b>"
        for row, end in zip(steps.itertuples(), ends, strict=True)
    ]
    figure.add_bar(
        x=steps["change"],
        base=steps["base"],
        y=labels,
        orientation="h",
        marker_color=[LEVEL if end else FALL if fall else RISE for end, fall in zip(ends, falls, strict=True)],
        error_x=_bars(steps["change"], steps["low"], steps["high"], look.INK),
        customdata=[
            "" if end else f"<br>95 %: {signed(row.low, 2)} to {signed(row.high, 2)}"
            for row, end in zip(steps.itertuples(), ends, strict=True)
        ],
        hovertemplate="%{y}%{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_layout(bargap=0.35)
    return figure


def depth_by_length(title: str, caption: str, column: str, curves: Mapping[str, tuple[pd.DataFrame, str]]) -> go.Figure:
    """A statistic over depth, a curve for each length.

    curves : a table with the columns depth and NAME, and the colour, by the name to show
    """
    figure = _plot(title, caption, "depth", "")
    for name, (table, colour) in curves.items():
        dash = "dot" if name.endswith(GLUED) else "solid"
        hover = f"depth %{{x}}: %{{y:.3g}}<extra>{name}</extra>"
        look.curve(
            figure, table["depth"], table[column], name, colour, dash=dash, hovertemplate=hover, showlegend=False
        )
    return figure


def _plot(title: str, caption: str, x: str, y: str, inside: int = PANEL) -> go.Figure:
    """An empty plot with these titles of its axes; `inside` is its height without axes and legend."""
    figure = look.plain(title, look.TITLE_HEIGHT + inside + AXIS, caption)
    figure.update_layout(margin={"l": 48, "r": 10, "b": AXIS}, hovermode="closest")
    figure.update_xaxes(title={"text": x, "font": {"size": 13}})
    figure.update_yaxes(title={"text": y, "font": {"size": 13}})
    return figure


def _legend(figure: go.Figure) -> None:
    """The legend below the axis, and the height for it. A plot with one curve needs none."""
    lines = sum(trace.showlegend is not False for trace in figure.data)
    if lines < 2:
        figure.update_layout(showlegend=False)
        return
    height = lines * look.LEGEND_LINE + 8
    look.legend_below(figure, AXIS + height)
    figure.update_layout(height=figure.layout.height + height)


def _bars(middle: Any, low: Any, high: Any, colour: str) -> dict[str, Any]:
    """Error bars from `low` to `high`."""
    up, down = (np.asarray(part, dtype=float) for part in (high - middle, middle - low))
    return {"type": "data", "array": up, "arrayminus": down, "color": colour, "thickness": 1.5, "width": 4}
