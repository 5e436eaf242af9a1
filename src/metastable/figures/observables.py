"""Four observables over time, which need no theory: how far tokens have come together."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from metastable.figures import look
from metastable.run.run import BaseRun

PANELS = {
    "mean_cosine": ("mean cosine", look.BLUE),
    "effective_rank": ("effective rank", look.VERMILLION),
    "clusters": ("clusters", look.GREEN),
    "log_energy": ("log energy", look.PURPLE),
}


def observables(run: BaseRun) -> go.Figure:
    """Small multiples of mean cosine, effective rank, number of clusters and log energy."""
    seen = run.observables()
    sample = "" if seen.attrs["sample"] == len(run.cloud) else f", counted on {seen.attrs['sample']} of the tokens"
    caption = (
        f"Mean cosine: 1 if all tokens point the same way. Effective rank: 1 for one direction, {run.cloud.dim} if all "
        f"directions are equally used. Clusters: groups of tokens linked by steps shorter than β^(−1/2){sample}. "
        "Log energy: it never decreases for B = V = I, but it may for other heads."
    )
    grid: dict[str, Any] = {"rows": 2, "cols": 2, "vertical_spacing": 0.2, "horizontal_spacing": 0.14}
    titles = [name for name, _ in PANELS.values()]
    figure = look.plain("Observables over time", 520, caption, **grid, subplot_titles=titles)
    for i, key in enumerate(PANELS):
        add_panel(figure, run, seen, key, i // 2 + 1, i % 2 + 1)
    figure.update_layout(showlegend=False, margin={"l": 48, "t": look.TITLE_HEIGHT + 24})
    figure.update_xaxes(range=[0, run.horizon], nticks=5)
    figure.update_xaxes(title_text="time t", row=2)
    return figure


def add_panel(figure: go.Figure, run: BaseRun, seen: xr.Dataset, key: str, row: int, col: int) -> None:
    """Draw one of PANELS over time into a cell of a figure."""
    name, colour = PANELS[key]
    cell = {"row": row, "col": col}
    values = seen[key].values
    hover = "t = %{x:.3g}: %{y:.3g}<extra></extra>"
    look.curve(figure, seen["time"].values, values, name, colour, width=2.5, hovertemplate=hover, **cell)
    if not np.isfinite(values).any():
        text = f"not defined<br>at β = {look.number(run.beta)}"
        middle = {"x": 0.5, "xref": "x domain", "y": 0.5, "yref": "y domain", "showarrow": False}
        figure.add_annotation(text=text, font={"color": look.GREY}, **middle, **cell)
        figure.update_yaxes(visible=False, **cell)
    elif key == "mean_cosine":
        figure.update_yaxes(range=[min(0.0, float(values.min())) - 0.05, 1.05], **cell)
    elif key == "effective_rank" and run.cloud.dim <= 8:
        figure.update_yaxes(range=[0.9, run.cloud.dim + 0.1], dtick=1, **cell)
    elif key == "clusters" and values.max() >= 30:
        figure.update_yaxes(type="log", dtick=1, **cell)
