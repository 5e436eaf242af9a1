"""The figure of the ladder: how much of the update of each layer every rung predicts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from metastable.figures import look

CELL = 26
"""Height of a row, in pixels."""
CAPTION = (
    "Share of the real update of the tokens that a rung predicts, in per cent: 100 if it predicts all of it, 0 if no "
    "movement were as good a prediction; less than 0 is worse. Every rung adds one thing of the real layer. The first "
    "four are one head, the one of the layer that predicts most."
)


def ladder_map(table: pd.DataFrame, twin: pd.DataFrame | None = None) -> go.Figure:
    """Layers × rungs of the share, with its number in each cell; that of the twin in a second panel below.

    table, twin : a row a layer, a column a rung
    """
    panels = {"this model": table} | ({} if twin is None else {"random weights, same shape": twin})
    height = CELL * len(table) * len(panels) + 130 + 60 * len(panels)
    grid: dict[str, Any] = {"rows": len(panels), "cols": 1, "shared_xaxes": True, "subplot_titles": list(panels)}
    figure = look.plain("What breaks the theory", height, CAPTION, vertical_spacing=0.14, **grid)
    for number, part in enumerate(panels.values()):
        percent = 100 * part
        figure.add_heatmap(
            z=percent.clip(lower=-100).to_numpy(),
            x=list(part.columns),
            y=[f"layer {layer}" for layer in part.index],
            text=[[f"{value:.0f}" for value in row] for row in percent.to_numpy()],
            texttemplate="%{text}",
            colorscale="RdBu",
            zmin=-100,
            zmax=100,
            showscale=False,
            hovertemplate="%{y}, %{x}: %{text} %<extra></extra>",
            row=number + 1,
            col=1,
        )
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 40)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(tickangle=-25, showgrid=False)
    return figure
