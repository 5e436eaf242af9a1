"""Figures of the history of a training: which layers move, and statistics of each depth over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look
from metastable.figures.length import LIGHT_TO_DARK, shades

CELL, LEAST = 26, 110
"""Height of a layer in a map, and the least height of a map, in pixels."""
PANEL = 190
"""Height of a plot between its title and its axis, in pixels."""
NAMED = 4
"""At most this many depths are named in the legend of the curves."""


def movement_map(table: pd.DataFrame, columns: Mapping[str, str]) -> go.Figure:
    """Layers × steps of the change of the weights, a panel for each column.

    table : a row a step and layer, with the columns step, depth and those of `columns`
    columns : the title of each panel, by the name of its column
    """
    steps = sorted(table["step"].unique())
    layers = sorted(table["depth"].unique())
    panel, gap = max(LEAST, CELL * len(layers)), 74
    inside = len(columns) * panel + (len(columns) - 1) * gap
    figure = look.plain(
        "Which layers move",
        look.TITLE_HEIGHT + inside + 150,
        "Change of the weights of each layer since the first record, ‖W − W₀‖/‖W₀‖, in per cent. One column is one "
        "record. Lighter means that the weights moved further.",
        rows=len(columns),
        cols=1,
        subplot_titles=list(columns.values()),
        vertical_spacing=gap / inside if len(columns) > 1 else 0.0,
    )
    values = 100 * table[list(columns)].astype(float)
    top = float(values.max().max())
    for number, (column, title) in enumerate(columns.items()):
        z = values[column].groupby([table["depth"], table["step"]]).first().unstack()
        figure.add_heatmap(
            x=[str(step) for step in steps],
            y=layers,
            z=look.cells(z.loc[layers, steps].to_numpy()),
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            hovertemplate=f"step %{{x}}, layer %{{y}}: %{{z:.3g}} %<extra>{title}</extra>",
            row=number + 1,
            col=1,
        )
    figure.update_annotations({"x": 0, "xanchor": "left"})
    figure.update_xaxes(type="category", nticks=8, tickangle=0, showgrid=False)
    figure.update_xaxes(title_text="step", row=len(columns), col=1)
    figure.update_yaxes(title_text="layer", dtick=1 if len(layers) <= 12 else 2, showgrid=False)
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(
        coloraxis=look.number_colours(0.0, top if top > 0 else 1.0),
        margin={"t": look.TITLE_HEIGHT + 30, "l": 52, "b": 118},
        hovermode="closest",
    )
    return figure


def step_curves(
    table: pd.DataFrame, column: str, title: str, caption: str, warned: Sequence[int] = (), place: str = "depth"
) -> go.Figure:
    """One column over the steps, a curve for each depth, darker for deeper ones.

    warned : steps with a warning, marked by dashed lines
    place : what a depth is called
    """
    known = table[["step", "depth", column]].dropna()
    depths = sorted(known["depth"].unique())
    named = {depths[round(i * (len(depths) - 1) / (NAMED - 1))] for i in range(NAMED)} if depths else set()
    figure = look.plain(title, look.TITLE_HEIGHT + PANEL + 98, caption)
    for depth, colour in zip(depths, shades(LIGHT_TO_DARK, len(depths)), strict=True):
        part = known[known["depth"] == depth]
        figure.add_scatter(
            x=part["step"],
            y=part[column],
            name=f"{place} {depth}",
            mode="lines+markers" if len(part) <= 40 else "lines",
            line={"color": colour, "width": 2},
            marker={"size": 5},
            showlegend=depth in named,
            hovertemplate=f"step %{{x}}: %{{y:.4g}}<extra>{place} {depth}</extra>",
        )
    for step in warned:
        figure.add_vline(x=step, line={"color": look.VERMILLION, "width": 1.5, "dash": "dash"})
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}}
    figure.update_layout(legend=legend, margin={"l": 48, "r": 10, "b": 98}, hovermode="closest")
    figure.update_xaxes(title={"text": "step", "font": {"size": 13}}, nticks=6)
    return figure
