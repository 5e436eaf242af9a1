"""Curves of an encoder over its depth and over loops beyond it, and the lengths of the texts behind them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.exact_sums import ExactSums
    from metastable.encoder.loop import Loop
    from metastable.encoder.measure import Measurements

PANELS = ("mean_cosine", "hidden_cosine", "effective_rank", "dispersion", "energy", "update_length")
"""What is drawn of depths unless asked otherwise."""
LOOPED = ("mean_cosine", "effective_rank", "dispersion", "clusters", "change")
WIDTHS = 4
"""At most this many classes of text lengths are drawn, those with most texts."""
PANEL_HEIGHT, GAP, KEY_LINE = 210, 74, 21
BINS = 40


def depth_curves(audit: Audit, columns: Sequence[str] = PANELS) -> go.Figure:
    """Each statistic over depth, a panel each: mean over texts with its 95 % interval, the twin and the reference.

    Thin lines are classes of texts of about one length, 2^b ≤ n < 2^{b+1}: what they differ by is dependence on n.
    """
    shown = [name for name in columns if name in audit.layers]
    sources = [("this model", audit, look.BLUE, "solid")]
    if audit.twin is not None:
        sources.append(("random weights, same shape", audit.twin, look.GREY, "dash"))
    if audit.reference is not None:
        sources.append((f"reference: {html.escape(audit.reference.name)}", audit.reference, look.ORANGE, "dot"))
    figure = _grid(shown)
    for i, column in enumerate(shown):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        if audit.measured is not None:
            _by_length(figure, audit.measured, column, place, legend=i == 0)
        for name, source, colour, dash in sources:
            if column in source.layers:
                _curve(figure, source.layers, "depth", column, name, colour, dash, place, legend=i == 0)
    text = (
        "Depth 0 is what the first layer reads, the last depth what the encoder returns. Bands are 95 % intervals of "
        "the mean over texts. Light lines are texts of about one length, the broader the longer: where they part, the "
        "statistic depends on the number of tokens n, and only texts of one length may be compared. "
        f"{_slopes(audit.layers, shown)}"
    )
    _finish(figure, "Over depth, on text", shown, text, "depth", sources_count=len(sources) + 1)
    return figure


def loop_curves(loop: Loop) -> go.Figure:
    """The statistics of the loop's tokens after each step, with intervals; a line marks the trained depth."""
    shown = [name for name in LOOPED if name in loop.curves]
    figure = _grid(shown)
    for i, column in enumerate(shown):
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        _curve(figure, loop.curves, "step", column, "looped", look.BLUE, "solid", place, legend=False)
        if loop.trained_depth is not None:
            line = {"color": look.VERMILLION, "width": 1.5, "dash": "dash"}
            figure.add_vline(x=loop.trained_depth, line=line, **place)
    if loop.trained_depth is None:
        text = f"Layer {loop.layer} applied again and again, which it was not trained for."
    else:
        text = (
            "The shared layer applied again and again. The dashed line is its trained depth, "
            f"{loop.trained_depth}; it was not trained for what lies beyond."
        )
    text += (
        f" Clusters: groups of tokens linked by angles below {loop.angle:g} degrees. Change: how far the next step "
        "moves a token. Bands are 95 % intervals of the mean over texts."
    )
    _finish(figure, "Layers in a loop", shown, text, "steps", sources_count=1)
    return figure


def lengths(measured: Measurements) -> go.Figure:
    """How many texts had n tokens, special ones included."""
    n = np.array(sorted(measured.lengths))
    counts = np.array([measured.lengths[int(i)] for i in n])
    width = max(1, math.ceil((n[-1] - n[0] + 1) / BINS))
    bins = (n - n[0]) // width
    tops = [int(counts[bins == b].sum()) for b in range(int(bins[-1]) + 1)]
    starts = [int(n[0]) + b * width for b in range(len(tops))]
    each = [f"n = {s}" if width == 1 else f"n = {s} to {s + width - 1}" for s in starts]
    middle = float(np.repeat(n, counts).mean()) if counts.sum() < 10**6 else float((n * counts).sum() / counts.sum())
    text = (
        f"{int(counts.sum())} texts of {n[0]} to {n[-1]} tokens, {look.number(middle)} on average, special tokens "
        "included. Every statistic on text depends on n: compare audits on texts of the same lengths."
    )
    figure = look.plain("How long the texts were", 300, text)
    figure.add_bar(
        x=[s + (width - 1) / 2 for s in starts],
        y=tops,
        width=0.9 * width,
        customdata=each,
        marker_color=look.BLUE,
        hovertemplate="%{customdata}: %{y} texts<extra></extra>",
        name="texts",
    )
    figure.update_xaxes(title_text="number of tokens n")
    figure.update_yaxes(title_text="texts", rangemode="tozero", dtick=1 if max(tops) <= 6 else None)
    return figure


def _grid(shown: Sequence[str]) -> go.Figure:
    rows = max(1, math.ceil(len(shown) / 2))
    inside = rows * PANEL_HEIGHT + (rows - 1) * GAP
    titles = [name.replace("_", " ") for name in shown]
    spacing = GAP / inside if rows > 1 else 0.0
    return make_subplots(rows=rows, cols=2, subplot_titles=titles, vertical_spacing=spacing, horizontal_spacing=0.18)


def _finish(figure: go.Figure, title: str, shown: Sequence[str], text: str, x: str, sources_count: int) -> None:
    rows = max(1, math.ceil(len(shown) / 2))
    key = 66 + KEY_LINE * (sources_count + 1) if sources_count > 1 else 60
    look.dress(figure, title, look.TITLE_HEIGHT + rows * PANEL_HEIGHT + (rows - 1) * GAP + key + 24, text)
    figure.update_annotations({"font": {"size": 14}})
    figure.update_layout(
        margin={"l": 48, "t": look.TITLE_HEIGHT + 24, "b": key},
        showlegend=sources_count > 1,
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
        hovermode="closest",
    )
    figure.update_xaxes(nticks=6)
    for i in range(max(0, len(shown) - 2), len(shown)):
        figure.update_xaxes(title_text=x, row=i // 2 + 1, col=i % 2 + 1)


def _curve(
    figure: go.Figure,
    table: pd.DataFrame,
    x: str,
    column: str,
    name: str,
    colour: str,
    dash: str,
    place: dict[str, int],
    legend: bool,
) -> None:
    at, y = table[x].to_numpy(), table[column].to_numpy(dtype=float)
    if f"{column}_low" in table:
        low, high = (table[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high"))
        sound = np.isfinite(low) & np.isfinite(high)
        edge: dict[str, Any] = {"x": at[sound], "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        tint = f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},0.2)"
        figure.add_scatter(y=low[sound], showlegend=False, name=f"{name}, low", **edge, **place)
        figure.add_scatter(
            y=high[sound], fill="tonexty", fillcolor=tint, showlegend=False, name=f"{name}, high", **edge, **place
        )
    figure.add_scatter(
        x=at,
        y=y,
        name=name,
        legendgroup=name,
        showlegend=legend,
        mode="lines+markers" if len(at) <= 40 else "lines",
        marker={"size": 5},
        line={"color": colour, "width": 2.5, "dash": dash},
        customdata=_details(table, column),
        hovertemplate=f"{x} %{{x}}: %{{y:.4g}}%{{customdata}}<extra>{name}</extra>",
        **place,
    )


def _details(table: pd.DataFrame, column: str) -> list[str]:
    """The interval and the slope of each point, for its hover."""
    lines = []
    for _, row in table.iterrows():
        low, high, slope = (float(row.get(f"{column}_{part}", math.nan)) for part in ("low", "high", "slope"))
        line = "" if math.isnan(low) else f"<br>95 %: {look.number(low)} to {look.number(high)}"
        lines.append(line + ("" if math.isnan(slope) else f"<br>{_signed(slope)} for each doubling of n"))
    return lines


def _by_length(figure: go.Figure, measured: Measurements, column: str, place: dict[str, int], legend: bool) -> None:
    """A thin line for each class of lengths, the longest texts darkest."""
    tally: ExactSums | None = measured.depths.get(column) or measured.layers.get(column)
    if tally is None:
        return
    parts = tally.by_length()
    if len(parts) < 2:
        return
    counts = {n: int(part.count().max()) for n, part in parts.items()}
    kept = sorted(sorted(parts, key=lambda n: -counts[n])[:WIDTHS])
    for i, n in enumerate(kept):
        figure.add_scatter(
            x=np.arange(tally.shape[0]),
            y=parts[n].mean(),
            name="this model, texts of one class of lengths",
            legendgroup="lengths",
            showlegend=legend and i == 0,
            mode="lines",
            line={"color": look.SKY, "width": 1 + 0.5 * i},
            hovertemplate=f"n = {n} to {2 * n - 1} ({counts[n]} texts): %{{y:.4g}}<extra></extra>",
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
