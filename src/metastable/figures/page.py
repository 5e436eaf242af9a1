"""Figures for a page that has its own headings, time slider and colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from metastable.figures import look
from metastable.figures.distance import BAND, REST, TINTS
from metastable.figures.scene import GRID

BACKGROUND = "#1B1F24"
"""Of a dark figure, and of the page around it."""
DARK = {
    "white": BACKGROUND,
    look.INK: "#E8EAED",
    look.GREY: "#A9B1B9",
    look.FAINT: "#3A4149",
    # The palette's blue is too dark on black; its sky blue stands as far from the other colours.
    look.BLUE: look.SKY,
    look.VERMILLION: "#F0803C",
    look.GREEN: "#2BB88D",
    TINTS["concentration"]: "#19303F",
    TINTS["plateau"]: "#153A2C",
    TINTS["terminal"]: "#402B18",
    REST: "#6B6420",
    BAND: "rgba(86,180,233,0.25)",
    GRID: "#4A525A",
}
"""The colours of the common look on a dark ground. None of them is that of another light one in the same figure."""


def fitted(figure: go.Figure) -> go.Figure:
    """The same figure without a title and a height of its own: it fills the box that the page gives it."""
    look.untitled(figure).update_layout(height=None, autosize=True)
    return figure


def dark(figure: go.Figure) -> go.Figure:
    """The same figure in light colours on a dark ground."""
    for part in (figure.layout, *figure.data):
        for path, colour in _colours(part.to_plotly_json()):
            if "colorscale" in path:
                # A colour scale is one value, which cannot be changed in parts.
                scale = path[: path.index("colorscale") + 1]
                part[scale] = [[place, DARK.get(c, c)] for place, c in part[scale]]
            else:
                part[path] = DARK[colour]
    figure.update_layout(hoverlabel={"bgcolor": "#2B3138", "bordercolor": "#4A525A", "font_color": "#E8EAED"})
    return figure


def cursor(figure: go.Figure, time: float) -> go.Figure:
    """The same figure with an upright line at a time, the shape named "cursor", for the page to move."""
    line = {"color": look.INK, "width": 2}
    figure.add_shape(name="cursor", type="line", x0=time, x1=time, y0=0, y1=1, yref="paper", line=line)
    return figure


def enlarged(figure: go.Figure, factor: float) -> go.Figure:
    """The same figure with texts, lines, marks and margins so many times as large, for a wall."""
    for part in (figure.layout, *figure.data):
        for path, size in _sizes(part.to_plotly_json()):
            part[path] = np.asarray(size) * factor if np.ndim(size) else size * factor
    return figure


def _sizes(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(where, how much) of all that is measured in pixels."""
    if isinstance(node, dict):
        for key, value in node.items():
            above = str(path[-1]) if path else ""
            text = key == "size" and (above.endswith("font") or above == "marker")
            if (
                text
                or (above, key) == ("line", "width")
                or above == "margin"
                or key in ("xshift", "yshift", "thickness")
            ):
                yield (*path, key), value
            else:
                yield from _sizes(value, (*path, key))
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _sizes(value, (*path, i))


def _colours(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """(where, which) of every colour that has a dark counterpart."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _colours(value, (*path, key))
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _colours(value, (*path, i))
    elif isinstance(node, str) and node in DARK:
        yield path, node
