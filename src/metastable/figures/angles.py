"""The angles of tokens on the circle over time: every token is a line, and clusters are where lines meet."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from metastable.errors import BadInput
from metastable.figures import look
from metastable.run.run import Run

MOST = 150
"""The tokens that are drawn."""


def angles(run: Run) -> go.Figure:
    """The angle of each token over time, d = 2. The colour is the angle at the start; a causal first token is black."""
    if run.cloud.dim != 2:
        raise BadInput(f"angles are drawn on the circle, for d = 2; this run has d = {run.cloud.dim}")
    shown = np.unique(np.linspace(0, len(run.cloud) - 1, min(MOST, len(run.cloud))).round().astype(int))
    x = run.frames[:, shown].double().cpu().numpy()
    degrees = np.degrees(np.arctan2(x[..., 1], x[..., 0]))
    times = run.times.cpu().numpy()
    some = "" if len(shown) == len(run.cloud) else f" {len(shown)} of the {len(run.cloud)} tokens are drawn."
    first = " The black line is the first token, which attends to itself alone." if run.block.causal else ""
    caption = (
        f"Each line is a token. Its colour is the angle at which it starts. Clusters are where lines meet.{first}{some}"
    )
    figure = look.plain("Angles of the tokens over time", 430, caption)
    for token in np.argsort(degrees[0]):
        leads = run.block.causal and shown[token] == 0
        colour = look.INK if leads else _colour(degrees[0, token])
        t, y = _broken(times, degrees[:, token])
        look.curve(
            figure, t, y, "", colour, width=3 if leads else 1.2, showlegend=False, hoverinfo="skip", hovertemplate=None
        )
    figure.update_xaxes(title_text="time t", range=[0, run.horizon])
    figure.update_yaxes(title_text="angle in degrees", range=[-180, 180], dtick=90)
    return figure


def _broken(times: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line that is broken where it passes ±180 degrees."""
    jumps = np.flatnonzero(np.abs(np.diff(degrees)) > 180) + 1
    return np.insert(times, jumps, np.nan), np.insert(degrees, jumps, np.nan)


def _colour(degrees: float) -> str:
    return str(sample_colorscale(look.CYCLE, [degrees / 360 + 0.5])[0])
