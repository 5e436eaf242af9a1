"""Figures of an encoder's heads: a heat map of all of them, and their movement between two checkpoints."""

from __future__ import annotations

import copy
import html
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look

DISCRETE = {
    "narrows": look.BLUE,
    "circles": look.ORANGE,
    "spreads": look.VERMILLION,
    "neither": look.FAINT,
    "holds": look.BLUE,
    "doubtful": look.YELLOW,
    "fails": look.VERMILLION,
    "yes": look.ORANGE,
    "no": look.BLUE,
    "rotates": look.ORANGE,
    "concentrates on two points ±e": look.BLUE,
    "nowhere of its own": look.FAINT,
    "": look.FAINT,
}
"""Colours of words."""
FURTHER = (look.GREEN, look.PURPLE, look.SKY, look.YELLOW, look.VERMILLION)
"""Colours of the words that are not in `DISCRETE`, in turn."""
CELL = 30
"""Height of a cell, in pixels."""
LEGEND_HEIGHT = 64
"""Height of the colours with their names, in pixels."""
RANKED = 20
"""How many heads the bars of a comparison show."""
MEASURES = {
    "interaction_change": ("B", look.BLUE),
    "value_change": ("V", look.VERMILLION),
    "offset_change": ("score offset", look.GREEN),
    "spectral_movement": ("eigenvalues of M", look.PURPLE),
}


def heat_map(
    table: pd.DataFrame,
    column: str,
    twin: pd.DataFrame | None = None,
    *,
    meaning: str = "",
    usual: str = "",
    logarithmic: bool = False,
) -> go.Figure:
    """Layers × heads of one column; those of the twin, in the same colours, in a second panel below.

    Words and yes/no have discrete colours. Values without a place on the scale stay white, with a sign in the cell: ∞,
    – (not defined) and, on a logarithmic scale, 0 and negative numbers.

    meaning, usual : what the column means, and which values are usual
    """
    tables = {"this model": table}
    if twin is not None and column in twin:
        tables["random weights, same shape"] = twin
    rows = len(tables)
    panel = max(CELL * (int(table["layer"].max()) + 1), 90)
    scale = _Scale(column, list(tables.values()), logarithmic)
    signs = " White cells have no place on the scale: ∞, – not defined, 0 or negative." if scale.signs else ""
    how = " The scale is logarithmic." if logarithmic else ""
    beside = " The lower panel shows a model of the same shape with random weights." if rows > 1 else ""
    expected = f" Usual: {usual}." if usual else ""
    text = f"{column}: {meaning or column.replace('_', ' ')}. One cell is one head.{how}{expected}{signs}{beside}"
    frame = copy.deepcopy(_frame(tuple(tables), panel, int(table["head"].max())))
    frame["layout"]["title"]["text"] = f"{column.replace('_', ' ')} of every head"
    colours = scale.axis()
    # The colours stand above the map, under the title: a page shows the top of a figure first.
    colours["colorbar"] |= {"y": 1 - look.TITLE_HEIGHT / frame["layout"]["height"], "yanchor": "top"}
    frame["layout"] |= {"meta": {"caption": text}, "coloraxis": colours}
    figure = go.Figure(frame)
    normal = f"<br>usual: {html.escape(usual)}" if usual else ""
    for (name, shown), place in zip(tables.items(), ({}, {"xaxis": "x2", "yaxis": "y2"}), strict=False):
        figure.add_traces(_cells(shown, column, scale, name, normal, place))
    return figure


@lru_cache(maxsize=8)
def _frame(titles: tuple[str, ...], panel: int, last_head: int) -> dict[str, Any]:
    """A heat map without its cells, as data: an audit draws fifty heat maps that differ in their cells only."""
    rows = len(titles)
    figure = look.plain(
        "",
        look.TITLE_HEIGHT + rows * (panel + 84) + 70,
        "",
        rows=rows,
        cols=1,
        subplot_titles=titles,
        vertical_spacing=84 / (rows * panel + 84),
    )
    _head_axes(figure, last_head)
    figure.update_layout(margin={"t": figure.layout.margin.t + LEGEND_HEIGHT, "b": 124 - LEGEND_HEIGHT})
    found: dict[str, Any] = figure.to_dict()
    return found


def _head_axes(figure: go.Figure, last_head: int, **place: int) -> None:
    """Axes of heads and layers, in one panel or in all of them."""
    figure.update_annotations({"x": 0, "xanchor": "left"})
    figure.update_layout(margin={"t": look.TITLE_HEIGHT + 30, "l": 52}, hovermode="closest")
    figure.update_xaxes(title_text="head", dtick=1 if last_head < 16 else 2, showgrid=False, **place)
    figure.update_yaxes(title_text="layer", dtick=1, showgrid=False, autorange="reversed", **place)


class _Scale:
    """The map from the values of a column to colours, the same for all tables."""

    def __init__(self, column: str, tables: Sequence[pd.DataFrame], logarithmic: bool = False) -> None:
        values = pd.concat([table[column] for table in tables])
        self.words = not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)
        self.logarithmic = logarithmic
        self.names: list[str] = []
        if self.words:
            found = {written(value) for value in values}
            self.names = [w for w in DISCRETE if w in found] + sorted(found - set(DISCRETE))
        z = self.colour(values).ravel()
        self.signs = bool(not self.words and np.isnan(z).any())
        finite = z[np.isfinite(z)]
        self.low, self.high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)

    def colour(self, values: Any) -> np.ndarray[Any, Any]:
        """The number that is coloured; NaN for what has no place on the scale."""
        if self.words:
            return np.array([self.names.index(written(value)) for value in values], dtype=float)
        x = np.asarray(values, dtype=float)
        if not self.logarithmic:
            return np.where(np.isfinite(x), x, np.nan)
        good = np.isfinite(x) & (x > 0)
        return np.where(good, np.log10(np.where(good, x, 1.0)), np.nan)

    def axis(self) -> dict[str, Any]:
        if self.words:
            spare = iter([*FURTHER] * len(self.names))
            return look.word_colours({name or "none": DISCRETE.get(name) or next(spare) for name in self.names})
        if self.low < 0 < self.high and not self.logarithmic:
            reach = max(-self.low, self.high)
            # Colour-blind readers can tell blue from orange; white is 0.
            scale = [[0, look.BLUE], [0.5, "#F4F4F4"], [1, look.VERMILLION]]
            return {**look.number_colours(-reach, reach), "colorscale": scale}
        return look.number_colours(self.low, self.high, self.logarithmic)


def written(value: Any) -> str:
    """A value of a table as people read it: yes and no, three digits, words as they are."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return look.number(float(value))
    return "–" if value is None else str(value)


def median_of(values: pd.Series, positive: bool = False) -> str:
    """The median over the heads that have a number, or the most common word with its share.

    positive : whether 0 means "none", so that heads with 0 are left out
    """
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        x = values.to_numpy(dtype=float)
        known = x[np.isfinite(x) & ((x > 0) | (not positive))]
        some = f" ({len(known)} of {len(x)} heads)" if len(known) < len(x) else ""
        if not len(known):
            return "0" if (x == 0).all() else "–"
        return look.number(float(np.median(known))) + some
    words = values.map(written).value_counts()
    return f"{words.index[0] or 'none'} ({100 * words.iloc[0] / len(values):.0f} %)"


def _cells(
    table: pd.DataFrame, column: str, scale: _Scale, name: str, normal: str, place: dict[str, str]
) -> list[dict[str, Any]]:
    """One panel: the coloured cells, and signs where there is no colour. place : the axes of the panel"""
    places = table["layer"].to_numpy(dtype=int), table["head"].to_numpy(dtype=int)
    shape = tuple(place.max() + 1 for place in places)
    z, texts = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    z[places] = scale.colour(table[column])
    texts[places] = [html.escape(written(value)) for value in table[column]]
    median = html.escape(median_of(table[column], scale.logarithmic))
    coloured = dict(
        type="heatmap",
        z=look.cells(z),
        customdata=texts.tolist(),
        name=name,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hoverongaps=True,
        hovertemplate="layer %{y}, head %{x}: <b>%{customdata}</b>"
        f"<br>{'most common' if scale.words else 'median'} of all heads: {median}{normal}<extra>{name}</extra>",
        **place,
    )
    missing = [(h, v, texts[v, h]) for v, h in zip(*places, strict=True) if math.isnan(z[v, h])]
    signs = dict(
        type="scatter",
        x=[int(h) for h, _, _ in missing],
        y=[int(v) for _, v, _ in missing],
        text=[t if len(t) <= 2 else "<0" if t.startswith("−") else t for _, _, t in missing],
        mode="text",
        textfont={"size": 12, "color": look.GREY},
        hoverinfo="skip",
        showlegend=False,
        name=f"{name}, not on the scale",
        **place,
    )
    return [coloured, signs] if missing else [coloured]


def comparison(table: pd.DataFrame) -> go.Figure:
    """How far each head moved between two checkpoints: a heat map of M's eigenvalues, and the first heads in rank.

    table : one row a head by rank, with the columns layer, head and those of `MEASURES`
    """
    first = table.head(RANKED)
    above, below = max(CELL * (int(table["layer"].max()) + 1), 120), 30 * len(first) + 40
    text = (
        "Above: the distance between the eigenvalues of M before and after, optimally matched, relative to their size. "
        f"Below: the relative changes of B, V, the score offset and the eigenvalues of M, for the first {len(first)} "
        "heads in rank. 0 means no change; 1 means a change as large as the quantity itself."
    )
    figure = look.plain(
        "Which heads moved",
        look.TITLE_HEIGHT + above + below + 300,
        text,
        rows=2,
        cols=1,
        row_heights=[above, below],
        vertical_spacing=150 / (above + below + 150),
        subplot_titles=["movement of M's eigenvalues", "the heads that moved most"],
    )
    scale = _Scale("spectral_movement", [table])
    figure.add_traces(_cells(table, "spectral_movement", scale, "movement", "<br>0: no movement", {}))
    labels = [f"layer {row.layer}, head {row.head}" for row in first.itertuples()]
    for column, (name, colour) in MEASURES.items():
        changes = [value if math.isfinite(value) else None for value in first[column].astype(float)]
        hover = "%{y}: %{x:.3g}<extra>" + name + "</extra>"
        bar = {"x": changes, "y": labels, "orientation": "h", "marker_color": colour, "hovertemplate": hover}
        figure.add_bar(name=name, **bar, row=2, col=1)
    axis = scale.axis()
    axis["colorbar"] |= {"yref": "paper", "y": (below + 42) / (above + below + 150), "yanchor": "bottom"}
    look.legend_below(figure, 120)
    figure.update_layout(coloraxis=axis, legend={"orientation": "h", "font": {"size": 14}}, barmode="group")
    _head_axes(figure, int(table["head"].max()), row=1, col=1)
    figure.update_xaxes(title_text="relative change", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(autorange="reversed", row=2, col=1)
    return figure
