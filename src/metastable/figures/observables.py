"""Four observables over time, which need no theory: how far tokens have come together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look

if TYPE_CHECKING:
    from metastable.run.run import Run

PANELS = {
    "mean_cosine": ("mean cosine", look.BLUE),
    "effective_rank": ("effective rank", look.VERMILLION),
    "clusters": ("clusters", look.GREEN),
    "log_energy": ("log energy", look.PURPLE),
}


def observables(run: Run) -> go.Figure:
    """Small multiples of mean cosine, effective rank, number of clusters and log energy."""
    seen = run.observables()
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[name for name, _ in PANELS.values()],
        vertical_spacing=0.2,
        horizontal_spacing=0.14,
    )
    for i, (key, (name, colour)) in enumerate(PANELS.items()):
        row, col = i // 2 + 1, i % 2 + 1
        values = seen[key].values
        figure.add_scatter(
            x=seen["time"].values,
            y=values,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2.5},
            hovertemplate="t = %{x:.3g}: %{y:.3g}<extra></extra>",
            row=row,
            col=col,
        )
        if not np.isfinite(values).any():
            figure.add_annotation(
                text=f"not defined<br>at β = {look.number(run.beta)}",
                x=0.5,
                y=0.5,
                xref="x domain",
                yref="y domain",
                showarrow=False,
                font={"color": look.GREY},
                row=row,
                col=col,
            )
            figure.update_yaxes(visible=False, row=row, col=col)
    sample = "" if seen.attrs["sample"] == len(run.cloud) else f", counted on {seen.attrs['sample']} of the tokens"
    caption = (
        f"Mean cosine: 1 when all tokens point the same way. Effective rank: 1 for one direction, {run.cloud.dim} when "
        "all directions are used alike. Clusters: groups of tokens linked by steps shorter than β^(−1/2)"
        f"{sample}. Log energy: never falls for B = V = I; for other heads it may."
    )
    look.dress(figure, "Observables over time", 520, caption)
    figure.update_annotations({"font": {"size": 14}})
    figure.update_layout(showlegend=False, margin={"l": 48, "t": look.TITLE_HEIGHT + 24})
    figure.update_xaxes(range=[0, run.horizon], nticks=5)
    figure.update_xaxes(title_text="time t", row=2)
    lowest = min(0.0, float(seen["mean_cosine"].min()))
    figure.update_yaxes(range=[lowest - 0.05, 1.05], row=1, col=1)
    if run.cloud.dim <= 8:
        figure.update_yaxes(range=[0.9, run.cloud.dim + 0.1], dtick=1, row=1, col=2)
    if float(seen["clusters"].max()) >= 30:
        figure.update_yaxes(type="log", dtick=1, row=2, col=1)
    return figure
