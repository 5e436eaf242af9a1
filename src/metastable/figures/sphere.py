"""The tokens on their sphere, with a time slider, coloured by where the limit map sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from metastable.cloud import sample_indices
from metastable.figures import look
from metastable.run.run import Run
from metastable.theory.spectrum import Spectrum

Array = np.ndarray[Any, Any]
MOST_TOKENS = 1500
MOST_FRAMES = 40
CAMERA = 1.5
"""Distance of the camera, at which the sphere and the labels of its axes just fit a phone."""
CLOSER = 0.86
"""Factor on the camera's distance if no controls take space below the sphere."""
RIM = 1.3
"""Factor on the markers of the group drawn first: its rim stays visible where another group lies on top."""
LABEL = 0.14
"""Distance of a label from the end of its axis."""
LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 13}, "itemsizing": "constant"}
POINTS = (look.BLUE, look.VERMILLION, look.GREEN, look.PURPLE, look.ORANGE, look.INK)
"""Colours of tokens by the isolated point to which the theory sends them."""


def sphere(run: Run, *, controls: bool = True, frames: int = MOST_FRAMES) -> go.Figure:
    """Tokens over time: a sphere for d = 3, a circle for d = 2, a projection to three dimensions for d > 3.

    At most 1500 tokens and `frames` of the saved times are drawn. The axes ±e (dominant direction of M, where the
    limit law lives) and ±v (dominant direction of V, the terminal phase) go through the centre. A dominant plane is
    drawn as its circle.

    controls : a time slider and buttons in the figure. Without them a page moves the tokens, by the figure's frames;
        `layout.meta` holds their times and a note on what is not drawn, and the camera keeps its position when the
        figure is drawn anew.
    """
    axes, note = _view(run)
    flat = axes.shape[1] == 2
    title = "Tokens on the circle" if flat else "Tokens in projection" if note else "Tokens on the sphere"
    keep = sample_indices(len(run.cloud), min(MOST_TOKENS, len(run.cloud)), seed=0)
    steps = np.unique(np.linspace(0, len(run.times) - 1, frames).round().astype(int))
    groups = _groups(run, keep)
    figure = look.plain(title, 620 if flat else 700, _caption(run, note, len(keep)), note)
    figure.update_layout(margin={"l": 6, "r": 6, "b": 110, "t": look.TITLE_HEIGHT + 26}, legend=LEGEND)
    _draw_scene(figure, run, axes)
    shown = run.frames[torch.from_numpy(steps).unsqueeze(1), keep].cpu().double().numpy()
    _animate(figure, _rounded(shown @ axes), groups, _marker_sizes(run, keep))
    times = [float(run.times[i]) for i in steps]
    if controls:
        _add_controls(figure, times)
    else:
        beside = [f"{_spaced(len(keep))} of {_spaced(len(run.cloud))} tokens drawn"] * (len(keep) < len(run.cloud))
        meta = {**figure.layout.meta, "times": times, "note": "; ".join([*beside, note] if note else beside)}
        figure.update_layout(meta=meta, margin_b=6, uirevision=title)
        if not flat:
            eye = figure.layout.scene.camera.eye
            figure.update_layout(scene_camera_eye={axis: CLOSER * eye[axis] for axis in "xyz"})
    if groups[0].angles:
        # The colour bar takes the space above the sphere, so the legend goes into an empty corner of the scene.
        figure.update_layout(legend_yanchor="top", margin_t=look.TITLE_HEIGHT + 50)
        if not controls:
            figure.update_layout(legend={"y": 0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"})
    return figure


def _spaced(count: int) -> str:
    """A number with a narrow space before each group of three digits."""
    return f"{count:,}".replace(",", "\u202f")


def _view(run: Run) -> tuple[Array, str]:
    """The directions shown, as columns of (d, 2 or 3), and a note on a projection.

    For d > 3: the dominant directions of M, then those of V, then the principal directions of the tokens.
    """
    d, th = run.cloud.dim, run.theory()
    if d <= 3:
        return np.eye(d), ""
    stacked = run.frames[:: max(1, len(run.frames) // 8)].reshape(-1, d).cpu().double().numpy()
    principal = np.linalg.eigh(stacked.T @ stacked)[1][:, ::-1][:, :3]
    wanted = [("the tokens' main directions", principal)]
    if th.terminal is not None:
        wanted.insert(0, ("v" if th.terminal.dim == 1 else "V's dominant space", _numpy(th.terminal.basis)))
    if th.attention is not None:
        wanted.insert(0, ("e" if th.dim == 1 else "E", _numpy(th.attention.basis)))
    axes = np.zeros((d, 0))
    names: list[str] = []
    for name, columns in wanted:
        for column in columns.T:
            rest = column - axes @ (axes.T @ column)
            rest -= axes @ (axes.T @ rest)
            if len(names) < 3 and np.linalg.norm(rest) > 1e-6:
                axes = np.column_stack([axes, rest / np.linalg.norm(rest)])
                names.append(name)
    return axes, (f"projected from {d} to 3 dimensions, along {', '.join(dict.fromkeys(names))}")


def _numpy(t: Tensor) -> Array:
    return np.asarray(t.detach().cpu().double().numpy())


def _rounded(x: Array) -> Array:
    """Four digits are finer than a pixel, and single precision halves the file."""
    return np.asarray(x.round(4), dtype=np.float32)


def _trace(x: Array, **options: Any) -> Any:
    """A scatter trace of points (n, 2 or 3)."""
    kind = go.Scatter3d if x.shape[-1] == 3 else go.Scatter
    return kind(**_coordinates(x), **options)


def _coordinates(x: Array) -> dict[str, Array]:
    return {name: x[..., i] for i, name in enumerate("xyz"[: x.shape[-1]])}


def _draw_scene(figure: go.Figure, run: Run, axes: Array) -> None:
    """Everything that does not move: the sphere or circle, the dominant directions of M and V, the camera."""
    if axes.shape[1] == 2:
        _add_circle(figure, np.eye(2), "", look.FAINT, width=2)
        figure.update_xaxes(range=[-1.5, 1.5], visible=False, constrain="domain")
        figure.update_yaxes(range=[-1.42, 1.42], visible=False, constrain="domain", scaleanchor="x")
    else:
        _add_globe(figure)
        hidden = {"visible": False, "range": [-1.38, 1.38]}
        eye = dict(zip("xyz", _eye(run, axes).round(3).tolist(), strict=True))
        scene = {"xaxis": hidden, "yaxis": hidden, "zaxis": hidden, "aspectmode": "cube", "camera": {"eye": eye}}
        figure.update_layout(scene=scene)
    # If the dominant eigenspace of M is its kernel, the field is undefined there and no token goes there.
    th = run.theory()
    if th.attention is not None and (not th.no_limit or th.attention.rotates):
        _add_space(figure, th.attention, axes, "e", "M", look.INK)
    elif not th.no_limit:
        _add_limit_points(figure, run, axes)
    if th.terminal is not None:
        _add_space(figure, th.terminal, axes, "v", th.terminal.name, look.GREEN, like=th.attention)


def _add_limit_points(figure: go.Figure, run: Run, axes: Array) -> None:
    """The points to which the theory sends tokens, where they are isolated."""
    places = np.unique(_numpy(run.limit.points), axis=0) @ axes
    marker: dict[str, Any] = {"symbol": "cross" if axes.shape[1] == 3 else "cross-thin", "size": 9, "color": look.INK}
    marker |= {} if axes.shape[1] == 3 else {"line": {"width": 3, "color": look.INK}}
    name = "stable fixed points at zero temperature"
    figure.add_trace(_trace(_rounded(1.06 * places), mode="markers", marker=marker, name=name, hoverinfo="skip"))


def _add_globe(figure: go.Figure) -> None:
    """A translucent unit sphere with a faint grid that shows its roundness."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 49), np.linspace(0, np.pi, 25))
    ball = _rounded(np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1))
    background: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}
    figure.add_surface(
        **_coordinates(ball),
        opacity=0.12,
        colorscale=[[0, "#9AA5B1"], [1, "#9AA5B1"]],
        showscale=False,
        # Without this the mouse draws dark rings on the sphere.
        contours={axis: {"highlight": False} for axis in "xyz"},
        lighting={"ambient": 1, "diffuse": 0, "specular": 0},
        name="sphere",
        **background,
    )
    gap = np.full((1, 3), np.nan, dtype=np.float32)
    lines = [*(ball[i] for i in range(4, 24, 4)), *(ball[:, j] for j in range(0, 48, 6))]
    grid = np.concatenate([part for line in lines for part in (line, gap)])
    figure.add_trace(_trace(grid, mode="lines", line={"color": look.GRID, "width": 1}, name="grid", **background))


def _add_space(
    figure: go.Figure, of: Spectrum, axes: Array, letter: str, matrix: str, colour: str, like: Spectrum | None = None
) -> None:
    """A dominant line as an axis through the centre, a dominant plane as its circle, larger spaces not at all."""
    # The second axis is longer and the second circle is thinner, so that both are visible where they coincide.
    first = like is None
    if of.dim == 2 and of.size > 2:
        plane = _numpy(of.basis).T @ axes
        _add_circle(figure, plane, f"dominant plane of {matrix}", colour, width=7 if first else 2.5)
    if of.dim != 1:
        return
    tip, reach = _dominant(of, like) @ axes, 1.12 if first else 1.22
    ends, solid = np.stack([-tip, tip]), len(tip) == 3
    line: dict[str, Any] = {"color": colour, "width": 5 if solid else 2.5}
    name = f"±{letter}, dominant direction of {matrix}"
    figure.add_trace(_trace(_rounded(reach * ends), mode="lines", name=name, hoverinfo="skip", line=line))
    # Beyond the ends, so that neither the axis nor tokens hide the labels.
    label: dict[str, Any] = {"text": [f"−{letter}", f"+{letter}"], "textfont": {"size": 17, "color": colour}}
    label |= {"textposition": "middle center", "hoverinfo": "skip", "showlegend": False}
    figure.add_trace(_trace(_rounded((reach + LABEL) * ends), mode="text", name=f"label ±{letter}", **label))


def _dominant(of: Spectrum, like: Spectrum | None = None) -> Array:
    """The dominant unit vector, with the sign that puts +v on the side of +e."""
    tip = _numpy(of.basis)[:, 0]
    return -tip if like is not None and like.dim == 1 and tip @ _numpy(like.basis)[:, 0] < 0 else tip


def _add_circle(figure: go.Figure, plane: Array, name: str, colour: str, width: float) -> None:
    angle = np.linspace(0, 2 * np.pi, 121)
    ring = _rounded(np.stack([np.cos(angle), np.sin(angle)], axis=1) @ plane)
    style = {"line": {"color": colour, "width": width}, "opacity": 0.6, "hoverinfo": "skip"}
    figure.add_trace(_trace(ring, mode="lines", name=name, showlegend=bool(name), **style))


def _eye(run: Run, axes: Array) -> Array:
    """The camera's position. If there are axes ±e and ±v, +e and +v point to the viewer and are apart."""
    eye = np.array([0.66, 0.6, 0.46])
    th = run.theory()
    if th.dim == 1 and not th.no_limit and th.attention is not None and th.terminal is not None:
        e, v = _dominant(th.attention) @ axes, _dominant(th.terminal, th.attention) @ axes
        side = np.cross(e, v)
        side = side if np.linalg.norm(side) > 1e-3 else np.cross(e, np.eye(3)[np.abs(e).argmin()])
        side /= np.linalg.norm(side)
        eye = 0.5 * (e + v) / np.linalg.norm(e + v) + 0.86 * (side if side[2] >= 0 else -side)
        # From straight above or below, "up" is undefined and the picture would turn over.
        eye[2] = np.clip(eye[2], -0.7, 0.7)
    return np.asarray(CAMERA * eye / np.linalg.norm(eye))


@dataclass(frozen=True)
class _TokenGroup:
    """Tokens that are drawn alike: which of the shown tokens, and in what colour."""

    name: str
    rows: Array
    colour: Any
    angles: bool = False
    scale: float = 1.0


def _groups(run: Run, keep: Tensor) -> list[_TokenGroup]:
    everyone = np.arange(len(keep))
    if run.theory().no_limit:
        x = _numpy(run.cloud.points[keep])
        return [_TokenGroup("starting azimuth", everyone, _degrees(x), angles=True)]
    basis = run.theory().basis
    if basis is None:
        return _by_limit_point(_numpy(run.limit.points[keep]))
    along = _numpy(run.limit.points[keep].double() @ basis.to(run.limit.points).double())
    if run.theory().dim >= 2:
        return [_TokenGroup("angle of the limit in E", everyone, _degrees(along), angles=True)]
    plus, minus = (np.flatnonzero(mask) for mask in (along[:, 0] > 0, along[:, 0] <= 0))
    sides = [_TokenGroup("sent to +e", plus, look.BLUE, scale=RIM), _TokenGroup("sent to −e", minus, look.VERMILLION)]
    return [group for group in sides if len(group.rows)]


def _by_limit_point(places: Array) -> list[_TokenGroup]:
    """One group for each of the most frequent limit points, and one for the others."""
    _, owner, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts)
    shown = order[: len(POINTS)]
    groups = [
        _TokenGroup(f"sent to point {place + 1}", np.flatnonzero(owner == number), colour)
        for place, (number, colour) in enumerate(zip(shown, POINTS, strict=False))
    ]
    others = np.flatnonzero(np.isin(owner, order[len(POINTS) :]))
    return groups + ([_TokenGroup("sent to other points", others, look.GREY)] if len(others) else [])


def _degrees(x: Array) -> Array:
    return np.asarray(np.degrees(np.arctan2(x[:, 1], x[:, 0])).round())


def _marker_sizes(run: Run, keep: Tensor) -> Array | float:
    """The area of a marker grows with the token's weight, from a visible least size on."""
    plain = 6.0 if run.cloud.dim == 2 else 5.0 if len(keep) <= 500 else 4.0
    if run.cloud.equal_weights:
        return plain
    w = _numpy(run.cloud.weights[keep])
    return np.asarray((0.8 * plain + 1.4 * plain * np.sqrt(w / w.max())).round(1))


def _animate(figure: go.Figure, positions: Array, groups: list[_TokenGroup], sizes: Array | float) -> None:
    """Add the tokens at the first time, and a frame for each time that moves only them."""
    still = len(figure.data)
    for group in groups:
        marker: dict[str, Any] = {
            "color": group.colour,
            "size": group.scale * (sizes if isinstance(sizes, float) else sizes[group.rows]),
            "opacity": 0.8 if positions.shape[-1] == 3 else 0.65,
            "line": {"width": 0},
        }
        if group.angles:
            marker |= {"colorscale": look.CYCLE, "cmin": -180, "cmax": 180, "colorbar": _angle_bar(group.name)}
        options = {"mode": "markers", "name": group.name, "showlegend": not group.angles, "hoverinfo": "skip"}
        figure.add_trace(_trace(positions[0][group.rows], marker=marker, **options))
    moving = list(range(still, len(figure.data)))
    figure.frames = [
        go.Frame(name=str(i), data=[_trace(x[group.rows]) for group in groups], traces=moving)
        for i, x in enumerate(positions)
    ]


def _angle_bar(title: str) -> dict[str, Any]:
    """The colour bar of angles, above the sphere."""
    bar = {"orientation": "h", "y": 1, "yanchor": "bottom", "thickness": 10, "len": 0.7, "tickfont": {"size": 13}}
    bar |= {"tickvals": [-180, -90, 0, 90, 180], "ticktext": ["−180°", "−90°", "0°", "90°", "180°"]}
    return {**bar, "title": {"text": title, "side": "top"}}


def _add_controls(figure: go.Figure, times: list[float]) -> None:
    """A time slider, and buttons to play and to pause."""
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    going = {"fromcurrent": True, "frame": {"duration": 160, "redraw": True}, "transition": {"duration": 0}}
    slider: dict[str, Any] = {"active": 0, "x": 0, "len": 1, "y": 0, "pad": {"t": 44, "l": 10, "r": 10}}
    slider["steps"] = [
        {"method": "animate", "label": look.number(t), "args": [[str(i)], still]} for i, t in enumerate(times)
    ]
    slider["currentvalue"] = {
        "prefix": "time t = ",
        "suffix": f" of {look.number(times[-1])}",
        "font": {"size": 15, "color": look.INK},
        "xanchor": "right",
    }
    # Forty labels in a row are unreadable; the current time is written above the slider.
    slider |= {"font": {"color": "rgba(0,0,0,0)", "size": 1}, "ticklen": 0, "minorticklen": 0}
    buttons: dict[str, Any] = {"type": "buttons", "direction": "left", "showactive": False, "bgcolor": "#F2F4F6"}
    buttons |= {"x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "pad": {"t": 8, "l": 10}}
    buttons["buttons"] = [
        {"label": "▶ Play", "method": "animate", "args": [None, going]},
        {"label": "❚❚ Pause", "method": "animate", "args": [[None], still]},
    ]
    figure.update_layout(sliders=[slider], updatemenus=[buttons])


def _caption(run: Run, note: str, shown: int) -> str:
    sentences = [_colours(run)]
    if not run.cloud.equal_weights:
        sentences.append("Larger dots carry more weight.")
    if shown < len(run.cloud):
        sentences.append(f"{shown} of the {len(run.cloud)} tokens are drawn.")
    if note:
        sentences.append(f"{note[0].upper()}{note[1:]}. Tokens inside the ball also point in other directions.")
    return " ".join(sentences)


def _colours(run: Run) -> str:
    th = run.theory()
    later = "what comes later is not known"
    if th.terminal is not None:
        later = f"later, clusters drift to ±v, the dominant direction of {th.terminal.name}"
        if th.terminal.rotates:
            later = f"later, clusters circle in the dominant plane of {th.terminal.name}"
        elif th.terminal.dim > 1:
            later = f"later, clusters drift to the dominant space of {th.terminal.name}"
    if th.no_limit:
        return "The colour is the direction in which a token starts, because there is no limit law."
    if th.basis is None:
        where = "the stable fixed point at zero temperature in whose basin a token starts"
        return f"The colour is {where}. Move the slider: tokens first gather there; {later}."
    if th.dim == 1:
        where = "the end of the axis ±e (dominant direction of M) to which the theory sends a token"
        return f"The colour is {where}. Move the slider: tokens first gather there; {later}."
    if th.dim == run.cloud.dim:
        return (
            f"The colour is the angle at which a token starts: no direction of M is dominant. Move the slider; {later}."
        )
    where = f"the angle of a token's predicted limit inside E, the dominant space of M (dimension {th.dim})"
    return f"The colour is {where}. Move the slider: tokens first gather in E; {later}."
