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

if TYPE_CHECKING:
    from metastable.run import Run
    from metastable.spectrum import Spectrum

MOST_TOKENS = 1500
MOST_FRAMES = 40
CAMERA = 1.36
"""Distance of the camera: the sphere just fits a phone."""
Floats = np.ndarray[Any, np.dtype[np.float64]]


def sphere(run: Run) -> go.Figure:
    """Tokens over time: a sphere for d = 3, a circle for d = 2, a projection to three dimensions for d > 3.

    At most 1500 tokens and 40 of the saved times are drawn. The axes ±e (dominant direction of M, where the
    limit law lives) and ±v (dominant direction of V, the terminal phase) are drawn through the centre; a
    dominant plane is drawn as its circle.
    """
    view = _view(run)
    keep = sample_indices(len(run.cloud), min(MOST_TOKENS, len(run.cloud)), seed=0)
    steps = np.unique(np.linspace(0, len(run.times) - 1, MOST_FRAMES).round().astype(int))
    groups = _groups(run, keep)
    figure = look.plain(_title(view), 620 if view.flat else 700, _caption(run, view, len(keep)), view.note)
    if len(view.names) == 3:
        _globe(figure)
    else:
        _circle(figure, np.eye(2), "", look.FAINT, width=2)
    marks = _landmarks(figure, run, view)
    positions = _rounded(run.frames[torch.from_numpy(steps)][:, keep].cpu().double().numpy() @ view.axes)
    sizes = _sizes(run, keep)
    for group in groups:
        figure.add_trace(_tokens(positions[0], group, sizes))
    moving = list(range(marks, marks + len(groups)))
    times = [float(run.times[i]) for i in steps]
    figure.frames = [
        go.Frame(name=str(i), data=[_moved(x, group) for group in groups], traces=moving)
        for i, x in enumerate(positions)
    ]
    _controls(figure, times)
    # A colour bar takes the place above the sphere; the legend goes into the empty corner of the scene.
    figure.update_layout(legend_yanchor="top" if groups[0].angles else "bottom")
    if groups[0].angles:
        figure.update_layout(margin_t=look.TITLE_HEIGHT + 50)
    if view.flat:
        _flat(figure)
    else:
        _solid(figure, run, view)
    return figure


@dataclass(frozen=True)
class _View:
    """The directions shown, as columns of (d, 2 or 3), and their names."""

    axes: Floats
    names: list[str]
    note: str = ""

    @property
    def flat(self) -> bool:
        return len(self.names) == 2


def _view(run: Run) -> _View:
    d = run.cloud.dim
    if d <= 3:
        return _View(np.eye(d), [f"x{'₁₂₃'[i]}" for i in range(d)])
    attention, terminal = run.theory.attention.basis, run.theory.terminal.basis
    stacked = run.frames[:: max(1, len(run.frames) // 8)].reshape(-1, d).cpu().double().numpy()
    principal = np.linalg.eigh(stacked.T @ stacked)[1][:, ::-1][:, :3]
    wanted = [("E", _numpy(attention)), ("V", _numpy(terminal)), ("principal direction", principal)]
    axes, names = np.zeros((d, 0)), []
    for name, columns in wanted:
        for column in columns.T:
            rest = column - axes @ (axes.T @ column)
            rest -= axes @ (axes.T @ rest)
            if len(names) < 3 and np.linalg.norm(rest) > 1e-6:
                axes = np.column_stack([axes, rest / np.linalg.norm(rest)])
                names.append(name)
    return _View(axes, names, f"projected from {d} to 3 dimensions: " + ", ".join(names))


def _numpy(t: Tensor) -> Floats:
    return np.asarray(t.detach().cpu().double().numpy())


def _title(view: _View) -> str:
    return "Tokens on the circle" if view.flat else "Tokens on the sphere"


@dataclass(frozen=True)
class _Group:
    """Tokens that are drawn alike: which of the shown ones, and in what colour."""

    name: str
    rows: np.ndarray[Any, Any]
    colour: Any
    angles: bool = False


def _groups(run: Run, keep: Tensor) -> list[_Group]:
    everyone = np.arange(len(keep))
    if run.theory.no_limit:
        x = run.cloud.points[keep].cpu().double().numpy()
        return [_Group("starting azimuth", everyone, _degrees(x[:, 0], x[:, 1]), angles=True)]
    along = (run.limit.points[keep].double() @ run.theory.basis.to(run.limit.points).double()).cpu().numpy()
    if run.theory.dim >= 2:
        return [_Group("angle of the limit in E", everyone, _degrees(along[:, 0], along[:, 1]), angles=True)]
    sides = (("sent to +e", along[:, 0] > 0, look.BLUE), ("sent to −e", along[:, 0] <= 0, look.VERMILLION))
    return [_Group(name, np.flatnonzero(mask), colour) for name, mask, colour in sides if mask.any()]


def _degrees(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.degrees(np.arctan2(y, x)).round())


def _rounded(x: Floats) -> np.ndarray[Any, Any]:
    """Four digits are finer than a pixel, and single precision halves the file."""
    return np.asarray(x.round(4), dtype=np.float32)


def _sizes(run: Run, keep: Tensor) -> Floats | float:
    """The area of a marker grows with the token's weight, from a visible least size on."""
    plain = 6.0 if run.cloud.dim == 2 else 5.0 if len(keep) <= 500 else 3.5
    if run.cloud.equal_weights:
        return plain
    w = run.cloud.weights[keep].cpu().double().numpy()
    return np.asarray((0.6 * plain + 1.2 * plain * np.sqrt(w / w.max())).round(1))


def _coordinates(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: x[..., i] for i, name in enumerate("xyz"[: x.shape[-1]])}


def _trace(dimensions: int) -> Any:
    return go.Scatter3d if dimensions == 3 else go.Scatter


def _tokens(x: np.ndarray[Any, Any], group: _Group, sizes: Floats | float) -> Any:
    marker: dict[str, Any] = {
        "color": group.colour,
        "size": sizes if isinstance(sizes, float) else sizes[group.rows],
        "opacity": 0.8 if x.shape[-1] == 3 else 0.65,
        "line": {"width": 0},
    }
    if group.angles:
        bar = {"orientation": "h", "y": 1, "yanchor": "bottom", "thickness": 10, "len": 0.7, "tickvals": [-180, -90, 0, 90, 180]}
        bar |= {"ticktext": ["−180°", "−90°", "0°", "90°", "180°"], "title": {"text": group.name, "side": "top"}, "tickfont": {"size": 13}}
        marker |= {"colorscale": look.CYCLE, "cmin": -180, "cmax": 180, "colorbar": bar}
    return _trace(x.shape[-1])(
        **_coordinates(x[group.rows]), mode="markers", name=group.name, marker=marker, showlegend=not group.angles,
        hoverinfo="skip",
    )  # fmt: skip


def _moved(x: np.ndarray[Any, Any], group: _Group) -> Any:
    return _trace(x.shape[-1])(**_coordinates(x[group.rows]))


def _globe(figure: go.Figure) -> None:
    """A translucent unit sphere with a faint grid, which shows its roundness."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 49), np.linspace(0, np.pi, 25))
    ball = _rounded(np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1))
    figure.add_surface(
        **_coordinates(ball), opacity=0.12, colorscale=[[0, "#9AA5B1"], [1, "#9AA5B1"]], showscale=False,
        hoverinfo="skip", lighting={"ambient": 1, "diffuse": 0, "specular": 0}, name="sphere", showlegend=False,
    )  # fmt: skip
    gap = np.full((1, 3), np.nan, dtype=np.float32)
    lines = [*(ball[i] for i in range(4, 24, 4)), *(ball[:, j] for j in range(0, 48, 6))]
    grid = np.concatenate([part for line in lines for part in (line, gap)])
    figure.add_scatter3d(
        **_coordinates(grid), mode="lines", line={"color": "#C4CAD0", "width": 1}, hoverinfo="skip", name="grid",
        showlegend=False,
    )  # fmt: skip


def _landmarks(figure: go.Figure, run: Run, view: _View) -> int:
    """Draw the dominant spaces of M and V; the number of traces so far comes back."""
    theory = run.theory
    kernel_only = theory.no_limit and not theory.attention.rotates
    if not kernel_only:
        _space(figure, theory.attention, view, "e", "M", look.INK)
    _space(figure, theory.terminal, view, "v", "V", look.GREEN, like=theory.attention)
    return len(figure.data)


def _space(
    figure: go.Figure, of: Spectrum, view: _View, letter: str, matrix: str, colour: str, like: Spectrum | None = None
) -> None:
    """A dominant line as an axis through the centre, a dominant plane as its circle, anything larger not at all."""
    basis = _numpy(of.basis)
    # The second is longer as an axis and thinner as a circle, so that both can be seen where they coincide.
    first = like is None
    if of.dim == 1:
        tip = _dominant(of, like)
        name = f"±{letter}, dominant direction of {matrix}"
        _axis(figure, tip @ view.axes, letter, name, colour, reach=1.15 if first else 1.28)
    elif of.dim == 2 and of.size > 2:
        _circle(figure, basis.T @ view.axes, f"dominant plane of {matrix}", colour, width=7 if first else 2.5)


def _dominant(of: Spectrum, like: Spectrum | None = None) -> Floats:
    """The dominant unit vector. An eigenvector has no sign of its own: +v is the end on +e's side."""
    tip = _numpy(of.basis)[:, 0]
    return -tip if like is not None and like.dim == 1 and tip @ _numpy(like.basis)[:, 0] < 0 else tip


def _axis(figure: go.Figure, tip: Floats, letter: str, name: str, colour: str, reach: float) -> None:
    ends = _rounded(np.stack([-reach * tip, reach * tip]))
    figure.add_trace(
        _trace(ends.shape[-1])(
            **_coordinates(ends), mode="lines+text", text=[f"−{letter}", f"+{letter}"], name=name, hoverinfo="skip",
            textposition="top center",
            textfont={"size": 17, "color": colour},
            line={"color": colour, "width": 5 if ends.shape[-1] == 3 else 2.5},
        )
    )  # fmt: skip


def _circle(figure: go.Figure, plane: Floats, name: str, colour: str, width: float) -> None:
    angle = np.linspace(0, 2 * np.pi, 121)
    ring = _rounded(np.stack([np.cos(angle), np.sin(angle)], axis=1) @ plane)
    figure.add_trace(
        _trace(ring.shape[-1])(
            **_coordinates(ring), mode="lines", name=name, showlegend=bool(name), hoverinfo="skip",
            line={"color": colour, "width": width}, opacity=0.6,
        )
    )  # fmt: skip


def _controls(figure: go.Figure, times: list[float]) -> None:
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    going = {"fromcurrent": True, "frame": {"duration": 160, "redraw": True}, "transition": {"duration": 0}}
    steps = [
        {"method": "animate", "label": look.number(t), "args": [[str(i)], still]} for i, t in enumerate(times)
    ]
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
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 13}, "itemsizing": "constant"},
    )


def _solid(figure: go.Figure, run: Run, view: _View) -> None:
    hidden = {"visible": False, "range": [-1.38, 1.38]}
    figure.update_layout(
        scene={
            "xaxis": hidden,
            "yaxis": hidden,
            "zaxis": hidden,
            "aspectmode": "cube",
            "camera": {"eye": dict(zip("xyz", _eye(run, view).round(3).tolist(), strict=True))},
        },
        margin={"l": 6, "r": 6, "b": 110},
    )


def _eye(run: Run, view: _View) -> Floats:
    """Where to look from: with +e and +v turned towards the viewer and apart from each other, if there are such axes."""
    eye = np.array([0.66, 0.6, 0.46])
    if run.theory.dim == 1 and not run.theory.no_limit:
        e = _dominant(run.theory.attention) @ view.axes
        v = _dominant(run.theory.terminal, run.theory.attention) @ view.axes
        side = np.cross(e, v)
        side = side if np.linalg.norm(side) > 1e-3 else np.cross(e, np.eye(3)[np.abs(e).argmin()])
        side /= np.linalg.norm(side)
        eye = 0.8 * (e + v) / np.linalg.norm(e + v) + 0.6 * (side if side[2] >= 0 else -side)
        # From straight above or below, "up" has no meaning and the picture would turn over.
        eye[2] = np.clip(eye[2], -0.7, 0.7)
    return np.asarray(CAMERA * eye / np.linalg.norm(eye))


def _flat(figure: go.Figure) -> None:
    figure.update_xaxes(range=[-1.5, 1.5], visible=False, constrain="domain")
    figure.update_yaxes(range=[-1.42, 1.42], visible=False, constrain="domain", scaleanchor="x")
    figure.update_layout(margin={"l": 6, "r": 6, "b": 110})


def _caption(run: Run, view: _View, shown: int) -> str:
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
