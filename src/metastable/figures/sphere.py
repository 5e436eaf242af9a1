"""The tokens on their sphere, with a time slider, coloured by where the limit map sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from metastable.cloud import sample_indices
from metastable.figures import look
from metastable.figures.scene import Floats, View, coordinates, draw_scene, rounded, trace_type, view_of

if TYPE_CHECKING:
    from metastable.run.run import Run

MOST_TOKENS = 1500
MOST_FRAMES = 40
CLOSER = 0.86
"""Without controls below it there is more room for the sphere than the camera's usual distance allows for."""
RIM = 1.3
LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 13}, "itemsizing": "constant"}


def sphere(run: Run, *, controls: bool = True, frames: int = MOST_FRAMES) -> go.Figure:
    """Tokens over time: a sphere for d = 3, a circle for d = 2, a projection to three dimensions for d > 3.

    At most 1500 tokens and `frames` of the saved times are drawn. The axes ±e (dominant direction of M, where the
    limit law lives) and ±v (dominant direction of V, the terminal phase) are drawn through the centre; a
    dominant plane is drawn as its circle.

    controls : a time slider and buttons in the figure. Without them the page moves the tokens, by the figure's frames;
        `layout.meta` holds their times, and the camera stays as it was turned when the figure is drawn anew.
    """
    view = view_of(run)
    keep = sample_indices(len(run.cloud), min(MOST_TOKENS, len(run.cloud)), seed=0)
    steps = np.unique(np.linspace(0, len(run.times) - 1, frames).round().astype(int))
    groups = _groups(run, keep)
    figure = look.plain(_title(view), 620 if view.flat else 700, _caption(run, view, len(keep)), view.note)
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 26)
    draw_scene(figure, run, view)
    shown = run.frames[torch.from_numpy(steps).unsqueeze(1), keep].cpu().double().numpy()
    _animate(figure, rounded(shown @ view.axes), groups, _sizes(run, keep))
    times = [float(run.times[i]) for i in steps]
    figure.update_layout(legend=LEGEND)
    if controls:
        _controls(figure, times)
    else:
        _for_a_page(figure, times, view)
    if groups[0].angles:
        # The colour bar takes the place above the sphere; the legend goes into the empty corner of the scene.
        figure.update_layout(legend_yanchor="top", margin_t=look.TITLE_HEIGHT + 50)
        if not controls:
            figure.update_layout(legend={"y": 0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"})
    return figure


def _for_a_page(figure: go.Figure, times: list[float], view: View) -> None:
    """Leave the room of the controls to the sphere, and say at which time each frame is."""
    figure.update_layout(meta={**figure.layout.meta, "times": times}, margin_b=6, uirevision=_title(view))
    if not view.flat:
        eye = figure.layout.scene.camera.eye
        figure.update_layout(scene_camera_eye={axis: CLOSER * eye[axis] for axis in "xyz"})


def _animate(figure: go.Figure, positions: np.ndarray[Any, Any], groups: list[_Group], sizes: Floats | float) -> None:
    """The tokens at the first time, and a frame for each time that moves them and nothing else."""
    moving = list(range(len(figure.data), len(figure.data) + len(groups)))
    for group in groups:
        figure.add_trace(_tokens(positions[0], group, sizes))
    figure.frames = [
        go.Frame(name=str(i), data=[_moved(x, group) for group in groups], traces=moving)
        for i, x in enumerate(positions)
    ]


def _title(view: View) -> str:
    return "Tokens on the circle" if view.flat else "Tokens in projection" if view.note else "Tokens on the sphere"


@dataclass(frozen=True)
class _Group:
    """Tokens that are drawn alike: which of the shown ones, and in what colour."""

    name: str
    rows: np.ndarray[Any, Any]
    colour: Any
    angles: bool = False
    scale: float = 1.0


def _groups(run: Run, keep: Tensor) -> list[_Group]:
    everyone = np.arange(len(keep))
    if run.theory.no_limit:
        x = run.cloud.points[keep].cpu().double().numpy()
        return [_Group("starting azimuth", everyone, _degrees(x[:, 0], x[:, 1]), angles=True)]
    along = (run.limit.points[keep].double() @ run.theory.basis.to(run.limit.points).double()).cpu().numpy()
    if run.theory.dim >= 2:
        return [_Group("angle of the limit in E", everyone, _degrees(along[:, 0], along[:, 1]), angles=True)]
    sides = (("sent to +e", along[:, 0] > 0, look.BLUE), ("sent to −e", along[:, 0] <= 0, look.VERMILLION))
    # Those that are drawn first are larger: a rim of their colour is seen where the others lie on top of them.
    rims = {"sent to +e": RIM}
    return [_Group(n, np.flatnonzero(mask), c, scale=rims.get(n, 1.0)) for n, mask, c in sides if mask.any()]


def _degrees(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.degrees(np.arctan2(y, x)).round())


def _sizes(run: Run, keep: Tensor) -> Floats | float:
    """The area of a marker grows with the token's weight, from a visible least size on."""
    plain = 6.0 if run.cloud.dim == 2 else 5.0 if len(keep) <= 500 else 4.0
    if run.cloud.equal_weights:
        return plain
    w = run.cloud.weights[keep].cpu().double().numpy()
    return np.asarray((0.8 * plain + 1.4 * plain * np.sqrt(w / w.max())).round(1))


def _tokens(x: np.ndarray[Any, Any], group: _Group, sizes: Floats | float) -> Any:
    marker: dict[str, Any] = {
        "color": group.colour,
        "size": group.scale * (sizes if isinstance(sizes, float) else sizes[group.rows]),
        "opacity": 0.8 if x.shape[-1] == 3 else 0.65,
        "line": {"width": 0},
    }
    if group.angles:
        bar = {
            "orientation": "h",
            "y": 1,
            "yanchor": "bottom",
            "thickness": 10,
            "len": 0.7,
            "tickvals": [-180, -90, 0, 90, 180],
            "ticktext": ["−180°", "−90°", "0°", "90°", "180°"],
            "tickfont": {"size": 13},
            "title": {"text": group.name, "side": "top"},
        }
        marker |= {"colorscale": look.CYCLE, "cmin": -180, "cmax": 180, "colorbar": bar}
    return trace_type(x.shape[-1])(
        **coordinates(x[group.rows]),
        mode="markers",
        name=group.name,
        marker=marker,
        showlegend=not group.angles,
        hoverinfo="skip",
    )


def _moved(x: np.ndarray[Any, Any], group: _Group) -> Any:
    return trace_type(x.shape[-1])(**coordinates(x[group.rows]))


def _controls(figure: go.Figure, times: list[float]) -> None:
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    going = {"fromcurrent": True, "frame": {"duration": 160, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"method": "animate", "label": look.number(t), "args": [[str(i)], still]} for i, t in enumerate(times)]
    figure.update_layout(
        sliders=[
            {
                "steps": steps,
                "active": 0,
                "x": 0,
                "len": 1,
                "y": 0,
                "pad": {"t": 44, "l": 10, "r": 10},
                "currentvalue": {
                    "prefix": "time t = ",
                    "suffix": f" of {look.number(times[-1])}",
                    "font": {"size": 15, "color": look.INK},
                    "xanchor": "right",
                },
                # Forty labels in a row cannot be read; the current one is written above.
                "font": {"color": "rgba(0,0,0,0)", "size": 1},
                "ticklen": 0,
                "minorticklen": 0,
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "direction": "left",
                "showactive": False,
                "x": 0,
                "xanchor": "left",
                "y": 0,
                "yanchor": "top",
                "pad": {"t": 8, "l": 10},
                "bgcolor": "#F2F4F6",
                "buttons": [
                    {"label": "▶ Play", "method": "animate", "args": [None, going]},
                    {"label": "❚❚ Pause", "method": "animate", "args": [[None], still]},
                ],
            }
        ],
    )


def _caption(run: Run, view: View, shown: int) -> str:
    parts = [f"{_colours(run)} Larger dots carry more weight." if not run.cloud.equal_weights else _colours(run)]
    if shown < len(run.cloud):
        parts.append(f"{shown} of the {len(run.cloud)} tokens are drawn.")
    if view.note:
        parts.append(f"{view.note[0].upper()}{view.note[1:]}. Tokens inside the ball point partly in other directions.")
    return " ".join(parts)


def _colours(run: Run) -> str:
    th = run.theory
    later = "later, clusters drift to ±v, the dominant direction of V"
    if th.terminal.rotates:
        later = "later, clusters circle in the dominant plane of V"
    elif th.terminal.dim > 1:
        later = "later, clusters drift to the dominant space of V"
    if th.no_limit:
        return "Colour is the direction in which a token starts, because this head has no limit law. Move the slider."
    if th.dim == 1:
        where = "the end of the axis ±e (dominant direction of M) to which the theory sends a token"
        return f"Colour is {where}. Move the slider: tokens gather there first; {later}."
    if th.dim == run.cloud.dim:
        return f"Colour is the angle at which a token starts: no direction of M is dominant. Move the slider; {later}."
    where = f"the angle at which the theory puts a token inside E, the dominant space of M (dimension {th.dim})"
    return f"Colour is {where}. Move the slider: tokens gather in E first; {later}."
