"""The figure of a compression: fidelity against speed."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look

HEIGHT = 460
"""In pixels."""
LINES_ABOVE = 2
"""Lines above the axes, for buttons and the legend. On a phone plotly makes room for more lines of the legend."""
KINDS = {
    "baseline": ("for comparison", look.GREY, "x"),
    "int8": ("with int8", look.VERMILLION, "diamond"),
    "merge": ("tokens merged", look.GREEN, "square"),
    "removed": ("parts removed", look.BLUE, "circle"),
}
"""The kinds of options: name in the legend, colour, sign."""
CAPTION = (
    "To the right is faster, up is closer to the full encoder. Bars up and down are intervals of 95 % over texts; bars "
    "to the sides are the lowest and the highest speed that was timed."
)
OVERLAP = (
    "The dotted line joins the best measured options: no other one was both faster and closer. Where bars overlap, "
    "another run can change which options these are."
)
FEW = 3
"""At most this many options for comparison are left out of the picture, and the caption names them."""


def fidelity_front(options: pd.DataFrame, front: pd.DataFrame, chosen: int | None = None) -> go.Figure:
    """Mean cosine to the full encoder against speed. A line joins the options that no other option exceeds in both.

    Every option is inside the axes, but for a few for comparison that would squeeze the others. The caption names them.

    options : a row each, see `encoder.compress.result.COLUMNS`; front : some of its rows, from slow to fast
    chosen : the number of a row that is marked
    """
    far = _far(options)
    said = [CAPTION, *([OVERLAP] if len(front) > 1 else []), *_left_out(options[far])]
    figure = look.plain("Fidelity against speed", HEIGHT, " ".join(said))
    if len(front) > 1:
        line = {"width": 1.5, "dash": "dot", "hoverinfo": "skip"}
        look.curve(figure, front["speed"], front["cosine"], "best measured", look.INK, **line)
    shown = options[~far]
    kinds = shown.apply(_kind, axis=1)
    for kind in KINDS:
        if (kinds == kind).any():
            _points(figure, shown[kinds == kind], *KINDS[kind])
    speeds, cosines = _reach(shown, "speed"), _reach(shown, "cosine")
    if chosen is not None:
        _mark(figure, options.iloc[chosen], speeds, cosines)
    figure.add_vline(x=1.0, line={"color": look.GREY, "width": 1, "dash": "dash"})
    figure.update_xaxes(title={"text": "speed, full encoder = 1"}, range=speeds, ticksuffix="×")
    figure.update_yaxes(title={"text": "mean cosine, equal = 1"}, range=cosines)
    figure.update_layout(
        margin_t=look.TITLE_HEIGHT + look.LEGEND_LINE * LINES_ABOVE,
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "entrywidth": 88, "font": {"size": 12}},
    )
    return figure


def _kind(row: pd.Series) -> str:
    return "baseline" if row["baseline"] else "int8" if row["int8"] else "merge" if row["merge"] else "removed"


def _far(options: pd.DataFrame) -> pd.Series:
    """Which options for comparison are so low that an axis with them would be twice as long, if they are few."""
    baseline = options["baseline"].astype(bool)
    lowest = options.loc[~baseline, "cosine_low"].min()
    far = baseline & (options["cosine_low"] < 2 * lowest - 1)
    return far if far.sum() <= FEW else far & False


def _words(row: pd.Series) -> str:
    return str(row["recipe"]) + (f" ({row['method']})" if row["method"] else "")


def _left_out(far: pd.DataFrame) -> list[str]:
    """The sentence about options below the axis, if there are any."""
    if not len(far):
        return []
    places = [f"{_words(row)} at {row['speed']:.2f}× and {row['cosine']:.3f}" for _, row in far.iterrows()]
    return [f"Below the picture, for comparison only: {'; '.join(places)}."]


def _reach(options: pd.DataFrame, column: str) -> list[float]:
    """Ends of an axis that holds every value, every bar and 1, the value of the full encoder."""
    low = min(float(options[f"{column}_low"].min()), float(options[column].min()), 1.0)
    high = max(float(options[f"{column}_high"].max()), float(options[column].max()), 1.0)
    space = 0.04 * max(high - low, 0.02)
    return [low - space, high + space]


def _bar(rows: pd.DataFrame, column: str, colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "array": rows[f"{column}_high"] - rows[column],
        "arrayminus": rows[column] - rows[f"{column}_low"],
        "color": look.tint(colour, 0.6),
        "thickness": 1.5,
        "width": 0,
    }


def _points(figure: go.Figure, rows: pd.DataFrame, name: str, colour: str, sign: str) -> None:
    """Add the options of one kind with their bars."""
    figure.add_scatter(
        x=rows["speed"],
        y=rows["cosine"],
        error_x=_bar(rows, "speed", colour),
        error_y=_bar(rows, "cosine", colour),
        mode="markers",
        marker={"color": colour, "symbol": sign, "size": 9},
        name=name,
        customdata=[_words(row) for _, row in rows.iterrows()],
        hovertemplate="%{customdata}<br>%{x:.2f} times as fast, mean cosine %{y:.3f}<extra></extra>",
    )


def _mark(figure: go.Figure, row: pd.Series, speeds: list[float], cosines: list[float]) -> None:
    """Put a ring around the chosen option, and the word above it on the right, or where the axes leave room."""
    ring = {"symbol": "circle-open", "size": 19, "color": look.INK, "line": {"width": 2}}
    at = {"x": [row["speed"]], "y": [row["cosine"]]}
    figure.add_scatter(**at, mode="markers", marker=ring, name="chosen", showlegend=False, hoverinfo="skip")
    right, top = (
        (row[name] - low) / (high - low) > 0.8 for name, (low, high) in (("speed", speeds), ("cosine", cosines))
    )
    place = {"ax": -40 if right else 40, "ay": 40 if top else -40}
    figure.add_annotation(x=row["speed"], y=row["cosine"], text="<b>chosen</b>", arrowhead=2, standoff=9, **place)
