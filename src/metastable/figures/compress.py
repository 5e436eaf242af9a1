"""The figure of a compression: fidelity against speed."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look

HEIGHT = 420
"""In pixels."""
KINDS = {
    "baseline": ("comparison only", look.FAINT, "x"),
    "int8": ("with int8", look.VERMILLION, "diamond"),
    "merge": ("tokens merged", look.GREEN, "square"),
    "removed": ("layers, heads or neurons removed", look.BLUE, "circle"),
}
"""The kinds of options: name in the legend, colour, sign."""


def _kind(row: pd.Series) -> str:
    return "baseline" if row["baseline"] else "int8" if row["int8"] else "merge" if row["merge"] else "removed"


def fidelity_front(options: pd.DataFrame, front: pd.DataFrame, chosen: int | None = None) -> go.Figure:
    """Mean cosine to the full encoder against speed; a line joins the options that no other option beats in both.

    options : a row each, see `encoder.compress.result.COLUMNS`; front : some of its rows, from slow to fast
    chosen : the number of a row that is marked
    """
    caption = (
        "Each sign is an option. Bars: intervals of 95 % over texts, and the range of speed over pairs of timings. "
        "The line joins the options that no other option beats in both speed and fidelity."
    )
    figure = look.plain("Fidelity against speed", HEIGHT, caption)
    look.curve(figure, front["speed"], front["cosine"], "best options", look.INK, width=1, dash="dot", hoverinfo="skip")
    kinds = options.apply(_kind, axis=1)
    for kind, (name, colour, sign) in KINDS.items():
        rows = options[kinds == kind]
        if not len(rows):
            continue
        words = [row["recipe"] + (f" ({row['method']})" if row["method"] else "") for _, row in rows.iterrows()]
        bars = [
            {
                "type": "data",
                "array": rows[f"{column}_high"] - rows[column],
                "arrayminus": rows[column] - rows[f"{column}_low"],
                "color": look.tint(colour, 0.4),
                "thickness": 1,
                "width": 0,
            }
            for column in ("speed", "cosine")
        ]
        figure.add_scatter(
            x=rows["speed"],
            y=rows["cosine"],
            error_x=bars[0],
            error_y=bars[1],
            mode="markers",
            marker={"color": look.GREY if kind == "baseline" else colour, "symbol": sign, "size": 9},
            name=name,
            customdata=words,
            hovertemplate="%{customdata}<br>%{x:.2f} times as fast, cosine %{y:.3f}<extra></extra>",
        )
    if chosen is not None:
        row = options.iloc[chosen]
        figure.add_annotation(
            x=row["speed"], y=row["cosine"], text="chosen", showarrow=True, arrowhead=2, ay=-32, ax=24
        )
    lowest = min(float(options.loc[~options["baseline"].astype(bool), "cosine"].min()) - 0.02, 0.9)
    figure.update_xaxes(title={"text": "speed, full encoder = 1"})
    figure.update_yaxes(title={"text": "mean cosine"}, range=[max(lowest, -1.0), 1.005])
    figure.add_vline(x=1.0, line={"color": look.GREY, "width": 1, "dash": "dash"})
    look.legend_below(figure)
    return figure
