"""Curves of an encoder over its depth and over loops beyond it, and the lengths of the texts behind them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look

Classes = Mapping[int, tuple[int, np.ndarray]]
"""Classes of texts of about one length, by the least length n: the number of texts with n to 2n − 1 tokens, and the
mean of a statistic at each depth."""
PANELS = ("mean_cosine", "hidden_cosine", "effective_rank", "dispersion", "energy", "update_length")
"""The statistics that are drawn over depth by default."""
LOOPED = ("mean_cosine", "effective_rank", "dispersion", "clusters", "change")
WIDTHS = 4
"""At most this many classes of text lengths are drawn, those with most texts."""
PANEL_HEIGHT, GAP, KEY_LINE = 210, 74, 21
"""Heights of a panel, of the gap between two panels and of a line of the legend, in pixels."""
BINS = 40
"""At most this many bars of text lengths."""


def depth_curves(
    layers: pd.DataFrame,
    columns: Sequence[str] = PANELS,
    others: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    by_length: Mapping[str, Classes] = MappingProxyType({}),
    title: str = "Over depth, on text",
) -> go.Figure:
    """Each statistic over depth, one panel each: the mean over texts with its 95 % interval.

    layers : one row a depth; a statistic NAME may have the columns NAME_low, NAME_high and NAME_slope
    others : tables of other models, by the name to show
    by_length : for some statistics, `Classes` of texts; they are drawn as thin lines
    """
    shown = [name for name in columns if name in layers]
    colours = ((look.GREY, "dash"), (look.ORANGE, "dot"))
    sources = [("this model", layers, look.BLUE, "solid")]
    for (name, table), style in zip(others.items(), colours, strict=False):
        sources.append((html.escape(name), table, *style))
    text = (
        "Depth 0 is the input of the first layer, and the last depth is the output of the encoder. Bands are 95 % "
        "intervals of the mean over texts. Thin lines are texts of about one length; broader lines are longer texts. "
        "Where the thin lines differ, the statistic depends on the number of tokens n, and only texts of one length "
        f"can be compared. {_slopes(layers, shown)}"
    )
    figure = _panels(title, text, shown, "depth", legend=66 + KEY_LINE * (len(sources) + 2))
    for i, column in enumerate(shown):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        _by_length(figure, by_length.get(column, {}), place, legend=i == 0)
        for name, table, colour, dash in sources:
            if column in table:
                line = {"color": colour, "width": 2.5, "dash": dash}
                _curve(figure, table, "depth", column, name, line, showlegend=i == 0, **place)
    return figure


def loop_curves(curves: pd.DataFrame, layer: int, trained_depth: int | None, angle: float) -> go.Figure:
    """The statistics of the tokens after each step of a loop, with intervals; a line marks the trained depth.

    layer : the layer that is repeated; angle : degrees, the largest angle between linked tokens of one cluster
    trained_depth : the number of layers of an encoder whose layers are shared, else None
    """
    if trained_depth is None:
        text = f"Layer {layer} is applied again and again. It was not trained for that."
    else:
        text = (
            f"The shared layer is applied again and again. The dashed line is its trained depth, {trained_depth}; the "
            "layer was not trained for more steps."
        )
    text += (
        f" Clusters: groups of tokens linked by angles below {angle:g} degrees. Change: how far the next step moves a "
        "token. Bands are 95 % intervals of the mean over texts."
    )
    shown = [name for name in LOOPED if name in curves]
    figure = _panels("Layers in a loop", text, shown, "steps")
    for i, column in enumerate(shown):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        _curve(figure, curves, "step", column, "looped", {"color": look.BLUE, "width": 2.5}, **place)
        if trained_depth is not None:
            figure.add_vline(x=trained_depth, line={"color": look.VERMILLION, "width": 1.5, "dash": "dash"}, **place)
    return figure


def ledger_curves(curves: pd.DataFrame, titles: Mapping[str, str], axes: Mapping[str, str]) -> go.Figure:
    """Forecast, best baseline and outcome of the entries of a ledger, one panel each.

    curves : see `Ledger.curves`; titles, axes : the title and the x axis of each panel, by the key of the entry
    """
    shown = [key for key in titles if (curves["key"] == key).any()]
    text = "Means over texts. The forecast was made from what comes before it, without the measured values after it."
    figure = _panels("Forecast and outcome", text, [titles[key] for key in shown], "", legend=66 + KEY_LINE * 3)
    styles = {"measured": (look.BLUE, "solid"), "forecast": (look.VERMILLION, "solid")}
    styles["best baseline"] = (look.GREY, "dash")
    for i, key in enumerate(shown):
        place, rows = {"row": i // 2 + 1, "col": i % 2 + 1}, curves[curves["key"] == key]
        for name, (colour, dash) in styles.items():
            # What was seen is measured too.
            series = rows[rows["series"].isin(["seen", name] if name == "measured" else [name])]
            table = series.rename(columns={"place": axes[key]})
            line = {"color": colour, "width": 2.5, "dash": dash}
            _curve(figure, table, axes[key], "value", name, line, showlegend=i == 0, **place)
        figure.update_xaxes(title_text=axes[key], **place)
    return figure


def lengths(texts: Mapping[int, int]) -> go.Figure:
    """How many texts have n tokens, special tokens included. texts : the number of texts by n."""
    n, counts = np.array(sorted(texts.items())).T
    width = max(1, math.ceil((n[-1] - n[0] + 1) / BINS))
    starts = range(int(n[0]), int(n[-1]) + 1, width)
    tops = np.histogram(n, [*starts, starts[-1] + width], weights=counts)[0].astype(int)
    each = [f"n = {s}" if width == 1 else f"n = {s} to {s + width - 1}" for s in starts]
    middle = float(np.average(n, weights=counts))
    text = (
        f"{int(counts.sum())} texts of {n[0]} to {n[-1]} tokens, {look.number(middle)} on average, special tokens "
        "included. Every statistic on text depends on n: compare audits on texts of the same lengths."
    )
    figure = look.plain("How long the texts were", 300, text)
    figure.add_bar(
        x=[s + (width - 1) / 2 for s in starts],
        y=tops.tolist(),
        width=0.9 * width,
        customdata=each,
        marker_color=look.BLUE,
        hovertemplate="%{customdata}: %{y} texts<extra></extra>",
        name="texts",
    )
    figure.update_xaxes(title_text="number of tokens n")
    figure.update_yaxes(title_text="texts", rangemode="tozero", dtick=1 if tops.max() <= 6 else None)
    return figure


def _panels(title: str, caption: str, shown: Sequence[str], x: str, legend: int = 0) -> go.Figure:
    """An empty figure with a panel for each statistic, two in a row.

    x : title of the x axes; legend : height of the legend in pixels, 0 for none
    """
    rows = max(1, math.ceil(len(shown) / 2))
    inside, below = rows * PANEL_HEIGHT + (rows - 1) * GAP, legend or 60
    grid: dict[str, Any] = {"rows": rows, "cols": 2, "horizontal_spacing": 0.18}
    grid |= {"vertical_spacing": GAP / inside if rows > 1 else 0.0}
    grid |= {"subplot_titles": [name.replace("_", " ") for name in shown]}
    figure = look.plain(title, look.TITLE_HEIGHT + inside + below + 24, caption, **grid)
    look.legend_below(figure, below)
    figure.update_layout(margin={"l": 48, "t": look.TITLE_HEIGHT + 24}, showlegend=legend > 0, hovermode="closest")
    figure.update_xaxes(nticks=6)
    for i in range(max(0, len(shown) - 2), len(shown)):
        figure.update_xaxes(title_text=x, row=i // 2 + 1, col=i % 2 + 1)
    return figure


def _curve(
    figure: go.Figure, table: pd.DataFrame, x: str, column: str, name: str, line: dict[str, Any], **more: Any
) -> None:
    """A column over the column x, with its 95 % interval. Other arguments are plotly's."""
    at, y = table[x].to_numpy(), table[column].to_numpy(dtype=float)
    if f"{column}_low" in table:
        low, high = (table[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high"))
        sound = np.isfinite(low) & np.isfinite(high)
        names, quiet = (f"{name}, low", f"{name}, high"), {**more, "showlegend": False, "hoverinfo": "skip"}
        look.band(figure, at[sound], low[sound], high[sound], look.tint(line["color"], 0.2), names, **quiet)
    figure.add_scatter(
        x=at,
        y=y,
        name=name,
        legendgroup=name,
        mode="lines+markers" if len(at) <= 40 else "lines",
        marker={"size": 5},
        line=line,
        customdata=_details(table, column),
        hovertemplate=f"{x} %{{x}}: %{{y:.4g}}%{{customdata}}<extra>{name}</extra>",
        **more,
    )


def _details(table: pd.DataFrame, column: str) -> list[str]:
    """The interval and the slope of each point, for its hover."""
    lines = []
    for _, row in table.iterrows():
        low, high, slope = (float(row.get(f"{column}_{part}", math.nan)) for part in ("low", "high", "slope"))
        line = "" if math.isnan(low) else f"<br>95 %: {look.number(low)} to {look.number(high)}"
        lines.append(line + ("" if math.isnan(slope) else f"<br>{_signed(slope)} for each doubling of n"))
    return lines


def _by_length(figure: go.Figure, classes: Classes, place: dict[str, int], legend: bool) -> None:
    """A thin line for each class of lengths, the longest texts broadest."""
    if len(classes) < 2:
        return
    kept = sorted(sorted(classes, key=lambda n: -classes[n][0])[:WIDTHS])
    for i, n in enumerate(kept):
        count, means = classes[n]
        figure.add_scatter(
            x=np.arange(len(means)),
            y=means,
            name="this model, texts of one class of lengths",
            legendgroup="lengths",
            showlegend=legend and i == 0,
            mode="lines",
            line={"color": look.SKY, "width": 1 + 0.5 * i},
            hovertemplate=f"n = {n} to {2 * n - 1} ({count} texts): %{{y:.4g}}<extra></extra>",
            **place,
        )


def _slopes(layers: pd.DataFrame, shown: Sequence[str]) -> str:
    """The change for each doubling of n at the last depth that has one, statistic by statistic."""
    said = []
    for column in shown:
        if f"{column}_slope" in layers:
            known = layers[["depth", f"{column}_slope"]].dropna()
            if len(known):
                depth, slope = known.iloc[-1]
                said.append(f"{column.replace('_', ' ')} {_signed(slope)} (depth {int(depth)})")
    return f"Change for each doubling of n: {'; '.join(said)}." if said else "All texts have one length."


def _signed(x: float) -> str:
    return f"+{look.number(x)}" if x >= 0 else look.number(x)
