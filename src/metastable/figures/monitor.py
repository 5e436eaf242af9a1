"""Figures of a watched stream and of a baseline: p-values and evidence over the texts, depths, lengths."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from metastable.figures import look

PANELS = (210, 150)
"""Heights of the two panels of a timeline in pixels: p-values and evidence."""
DRAWN = 1500
"""At most this many texts are drawn one by one; more are put into bins."""
BINS = 300
"""The number of bins: a plot has not many more pixels than three times that."""
MARKED = 300
"""At most this many strange texts are marked."""
LEAST = 10
"""The least number of texts that the axis has room for."""
LEGEND: dict[str, Any] = {"orientation": "h", "traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"}
LEGEND |= {"x": 0, "font": {"size": 13}}
"""A legend along the bottom of the figure."""
LINES = 100
"""At most this many vertical lines of one kind."""
HOVER = 60
"""Characters in a line of a hover text."""


@dataclass(frozen=True)
class Timeline:
    """What a timeline draws: one entry for each scored text, in the order of the stream.

    numbers : (n,), the number of each text in the stream
    p : (n,), p-values
    log_e : (n,), natural logarithm of the evidence after each text; NaN where it is not known
    strange : (n,) of bool
    alpha : the level below which a text is strange
    threshold : the logarithm at which the alarm is raised; None if it is not known
    alarms : numbers of the texts that raised an alarm
    change : the number at which the stream changed, with the ends of its interval; None without a change
    end : the same for the end of the change
    slice_alarms : numbers of the texts that raised the alarm of a slice
    restarts : numbers of the texts with which the evidence starts again
    """

    numbers: np.ndarray
    p: np.ndarray
    log_e: np.ndarray
    strange: np.ndarray
    alpha: float
    threshold: float | None = None
    alarms: Sequence[int] = ()
    change: tuple[int, int, int] | None = None
    end: tuple[int, int, int] | None = None
    slice_alarms: Sequence[int] = ()
    restarts: Sequence[int] = ()

    @property
    def binned(self) -> bool:
        return len(self.p) > DRAWN

    @property
    def marked(self) -> np.ndarray:
        """Places of the strange texts that are marked: all, or `MARKED` of them at even distances."""
        places = np.flatnonzero(self.strange)
        if len(places) <= MARKED:
            return places
        return places[np.linspace(0, len(places) - 1, MARKED).round().astype(int)]


def timeline(given: Timeline, words: Sequence[str] = ()) -> go.Figure:
    """P-values of the texts, with small ones at the top, and below them the evidence of the alarm.

    words : the reason of each text in `given.marked`, for the hover text
    """
    gap, height = 44, sum(PANELS)
    figure = look.plain(
        "The stream, text by text",
        look.TITLE_HEIGHT + height + gap + 116,
        _caption(given),
        rows=2,
        cols=1,
        shared_xaxes=True,
        row_heights=list(PANELS),
        vertical_spacing=gap / (height + gap),
    )
    edges = _edges(len(given.p)) if given.binned else None
    if edges is None:
        _points(figure, given)
    else:
        _bands(figure, given, edges)
    _marks(figure, given, words)
    _evidence(figure, given, edges)
    for low, middle, high, name in _changes(given):
        # At least one text wide, so that it is visible.
        band = {"x0": low - 0.5, "x1": high + 0.5, "fillcolor": look.PLATEAU, "opacity": 0.75, "layer": "below"}
        figure.add_vrect(**band, line_width=0, row="all", col=1)
        figure.add_vline(x=middle, line={"color": look.GREY, "width": 1.5, "dash": "dot"}, row="all", col=1)
        figure.add_scatter(
            x=[None], y=[None], name=name, mode="lines", line={"color": look.PLATEAU, "width": 8}, row=1, col=1
        )
    _lines(figure, given.alarms, "alarm", {"color": look.VERMILLION, "width": 2}, 2)
    _lines(figure, given.restarts, "E starts again", {"color": look.GREY, "width": 1.5, "dash": "dot"}, 2)
    _lines(figure, given.slice_alarms, "alarm of a slice", {"color": look.VERMILLION, "width": 1.5, "dash": "dash"}, 1)
    least = min(given.p.min(initial=1.0), given.alpha)
    figure.add_hline(y=given.alpha, line={"color": look.GREY, "width": 1, "dash": "dash"}, row=1, col=1)
    # Plotly takes the ends of a logarithmic axis as powers of ten.
    powers = list(range(0, math.floor(math.log10(least)) - 1, -1))
    axis = {"type": "log", "range": [0.08, math.log10(least) - 0.25]}
    axis |= {"tickvals": [10.0**power for power in powers], "ticktext": [look.number(10.0**power) for power in powers]}
    figure.update_yaxes(title_text="p-value", **axis, row=1, col=1)
    figure.update_yaxes(
        title_text="evidence E", tickprefix="10<sup>", ticksuffix="</sup>", tickformat="d", row=2, col=1
    )
    most = max([*given.numbers[-1:], LEAST])
    figure.update_xaxes(range=[0, 1.02 * most])
    figure.update_xaxes(title_text="text", row=2, col=1)
    figure.update_layout(legend=LEGEND, margin={"b": 116, "l": 62, "r": 12}, hovermode="closest")
    return figure


def _lines(figure: go.Figure, numbers: Sequence[int], name: str, line: dict[str, Any], row: int) -> None:
    """Vertical lines at the texts of these numbers, at most `LINES`, with one entry in the legend."""
    for number in numbers[:LINES]:
        figure.add_vline(x=number, line=line, row=row, col=1)
    if numbers:
        figure.add_scatter(x=[None], y=[None], name=name, mode="lines", line=line, row=row, col=1)


def _caption(given: Timeline) -> str:
    told = "Above: the p-value of each text. Small p-values are at the top; texts above the dashed line are strange. "
    if given.binned:
        told = (
            f"Above: p-values of {len(given.p)} texts in {len(_edges(len(given.p))) - 1} bins: the line is the median, "
            "the band holds 80 % of the texts of a bin. Small p-values are at the top. "
        )
        if int(given.strange.sum()) > MARKED:
            told += f"{MARKED} of the {int(given.strange.sum())} strange texts are marked, at even distances. "
    told += "Below: the evidence E of the alarm, on a logarithmic scale."
    if given.change is not None:
        which = "first change" if len(given.alarms) > 1 else "change"
        told += f" The yellow band is the 95 % interval of the place of the {which}."
    if given.restarts:
        told += " At the dotted lines a new episode begins after an alarm: E starts again from 1."
    if given.slice_alarms:
        told += " Dashed lines above: texts that raised the alarm of their slice. E is that of all texts together."
    if max(map(len, (given.alarms, given.restarts, given.slice_alarms))) > LINES:
        told += f" The first {LINES} lines of each kind are drawn."
    return told


def _edges(n: int) -> np.ndarray:
    return np.linspace(0, n, min(BINS, n) + 1).round().astype(int)


def _points(figure: go.Figure, given: Timeline) -> None:
    usual = ~given.strange
    figure.add_scatter(
        x=given.numbers[usual],
        y=given.p[usual],
        name="ordinary text",
        mode="markers",
        marker={"size": 5, "color": look.BLUE, "opacity": 0.55},
        hovertemplate="text %{x}: p = %{y:.3g}<extra></extra>",
        row=1,
        col=1,
    )


def _bands(figure: go.Figure, given: Timeline, edges: np.ndarray) -> None:
    parts = [given.p[a:b] for a, b in pairwise(edges)]
    low, middle, high = np.array([np.quantile(part, (0.1, 0.5, 0.9)) for part in parts]).T
    x = given.numbers[(edges[:-1] + edges[1:] - 1) // 2]
    more: dict[str, Any] = {"row": 1, "col": 1, "hoverinfo": "skip"}
    look.band(figure, x, low, high, look.BAND, ("", "80 % of the texts"), **more)
    template = "texts around %{x}: median p = %{y:.3g}<extra></extra>"
    look.curve(figure, x, middle, "median", look.BLUE, hovertemplate=template, row=1, col=1)


def _marks(figure: go.Figure, given: Timeline, words: Sequence[str]) -> None:
    places = given.marked
    told = [look.wrapped(html.escape(text, quote=False), HOVER) for text in words] or [""] * len(places)
    figure.add_scatter(
        x=given.numbers[places],
        y=given.p[places],
        name=f"strange text, p ≤ {given.alpha:g}",
        mode="markers",
        marker={"size": 8, "color": look.VERMILLION, "symbol": "diamond"},
        text=told,
        hovertemplate="<b>text %{x}</b><br>%{text}<extra></extra>",
        row=1,
        col=1,
    )


def _evidence(figure: go.Figure, given: Timeline, edges: np.ndarray | None) -> None:
    x, y = given.numbers, given.log_e / math.log(10)
    if edges is not None:
        last = edges[1:] - 1
        x, y = x[last], y[last]
    look.curve(
        figure,
        x,
        y,
        "evidence",
        look.INK,
        hovertemplate="text %{x}: E = 10<sup>%{y:.2f}</sup><extra></extra>",
        row=2,
        col=1,
    )
    known = y[np.isfinite(y)]
    top = float(known.max()) if len(known) else 0.0
    bottom = float(known.min()) if len(known) else 0.0
    if given.threshold is not None:
        level = given.threshold / math.log(10)
        line = {"color": look.VERMILLION, "width": 1, "dash": "dash"}
        figure.add_hline(y=level, line=line, row=2, col=1)
        note = {"text": f"alarm at E = {math.exp(given.threshold):.3g}", "showarrow": False, "xanchor": "left"}
        note |= {"x": 0, "xref": "x2 domain", "y": level, "yref": "y2", "yanchor": "bottom"}
        figure.add_annotation(**note, font={"size": 12, "color": look.GREY})
        top = max(top, level)
    room = 0.08 * max(top - bottom, 1.0)
    steps = (float(f"{digit}e{power}") for power in range(300) for digit in (1, 2, 5))
    step = next(step for step in steps if 5 * step >= top - bottom)
    figure.update_yaxes(range=[bottom - room, top + 2 * room], dtick=step, tick0=0, row=2, col=1)


def _changes(given: Timeline) -> list[tuple[int, int, int, str]]:
    found = []
    for change, name in ((given.change, "change, 95 % interval"), (given.end, "its end, 95 % interval")):
        if change is not None:
            middle, low, high = change
            found.append((low, middle, high, name))
    return found


def p_by_depth(parts: Mapping[str, Mapping[int, float]], alpha: float) -> go.Figure:
    """Where texts become unusual: the median p-value of texts at each depth, a line for each part of the stream.

    parts : by the name of a part, the median p-value of its texts by depth
    """
    figure = look.plain(
        "Where texts become unusual",
        look.TITLE_HEIGHT + 210 + 110,
        "The median p-value of the texts of each part at each depth, corrected for the number of depths. Small "
        "p-values are at the top. Depth 0 is the input of the first layer. Below the dashed line, the median text is "
        "not strange at that depth alone; it may still be strange over all depths together.",
    )
    least = min([alpha, *(p for part in parts.values() for p in part.values() if p > 0)])
    for (name, part), colour in zip(parts.items(), (look.SKY, look.VERMILLION, look.GREEN, look.GREY), strict=False):
        figure.add_scatter(
            x=list(part),
            y=list(part.values()),
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": "dot" if name == "strange texts" else "solid"},
            hovertemplate=f"depth %{{x}}: median p = %{{y:.2g}}<extra>{name}</extra>",
        )
    figure.add_hline(y=alpha, line={"color": look.GREY, "width": 1, "dash": "dash"})
    powers = list(range(0, math.floor(math.log10(least)) - 1, -1))
    ticks = {"tickvals": [10.0**power for power in powers], "ticktext": [look.number(10.0**power) for power in powers]}
    figure.update_yaxes(title_text="median p-value", type="log", range=[0.08, math.log10(least) - 0.15], **ticks)
    figure.update_xaxes(title_text="depth", dtick=1 if max(map(len, parts.values())) < 16 else None)
    figure.update_layout(legend=LEGEND, margin={"b": 110})
    return figure


def length_histogram(edges: Sequence[int], counts: Sequence[int]) -> go.Figure:
    """Lengths of clean texts in tokens: `counts[i]` texts have edges[i] ≤ n < edges[i + 1]."""
    figure = look.plain(
        "Lengths of the clean texts",
        look.TITLE_HEIGHT + 190 + 60,
        "Tokens of a text, without special tokens, of the texts that scales and p-values come from. Texts that were "
        "accepted later are not counted. A text of another length is compared with the nearest lengths.",
    )
    spans = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in pairwise(edges)]
    figure.add_bar(
        x=[(a + b) / 2 - 0.5 for a, b in pairwise(edges)],
        y=list(counts),
        width=[0.94 * (b - a) for a, b in pairwise(edges)],
        text=spans,
        textposition="none",
        marker_color=look.BLUE,
        hovertemplate="%{text} tokens: %{y} texts<extra></extra>",
    )
    figure.update_xaxes(title_text="tokens", rangemode="tozero")
    figure.update_yaxes(title_text="texts")
    figure.update_layout(showlegend=False, margin={"b": 56})
    return figure
