"""The scene that tokens move in: which directions are shown, the sphere, the dominant axes, the camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from torch import Tensor

from metastable.figures import look

if TYPE_CHECKING:
    from metastable.run.run import Run
    from metastable.theory.spectrum import Spectrum

Floats = np.ndarray[Any, np.dtype[np.float64]]
GRID = "#C4CAD0"
CAMERA = 1.36
"""Distance of the camera: the sphere just fits a phone."""


@dataclass(frozen=True)
class View:
    """The directions shown, as columns of (d, 2 or 3), and their names."""

    axes: Floats
    names: list[str]
    note: str = ""

    @property
    def flat(self) -> bool:
        return len(self.names) == 2


def view_of(run: Run) -> View:
    d = run.cloud.dim
    if d <= 3:
        return View(np.eye(d), [f"x{'₁₂₃'[i]}" for i in range(d)])
    th = run.theory
    stacked = run.frames[:: max(1, len(run.frames) // 8)].reshape(-1, d).cpu().double().numpy()
    principal = np.linalg.eigh(stacked.T @ stacked)[1][:, ::-1][:, :3]
    wanted = [
        ("e" if th.dim == 1 else "E", _numpy(th.attention.basis)),
        ("v" if th.terminal.dim == 1 else "V's dominant space", _numpy(th.terminal.basis)),
        ("the tokens' main directions", principal),
    ]
    axes = np.zeros((d, 0))
    names: list[str] = []
    for name, columns in wanted:
        for column in columns.T:
            rest = column - axes @ (axes.T @ column)
            rest -= axes @ (axes.T @ rest)
            if len(names) < 3 and np.linalg.norm(rest) > 1e-6:
                axes = np.column_stack([axes, rest / np.linalg.norm(rest)])
                names.append(name)
    return View(axes, names, f"projected from {d} to 3 dimensions, along {', '.join(dict.fromkeys(names))}")


def _numpy(t: Tensor) -> Floats:
    return np.asarray(t.detach().cpu().double().numpy())


def rounded(x: Floats) -> np.ndarray[Any, Any]:
    """Four digits are finer than a pixel, and single precision halves the file."""
    return np.asarray(x.round(4), dtype=np.float32)


def coordinates(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: x[..., i] for i, name in enumerate("xyz"[: x.shape[-1]])}


def trace_type(dimensions: int) -> Any:
    return go.Scatter3d if dimensions == 3 else go.Scatter


def draw_scene(figure: go.Figure, run: Run, view: View) -> None:
    """Everything that does not move: the sphere or circle, the dominant directions of M and V, the camera."""
    if view.flat:
        _circle(figure, np.eye(2), "", look.FAINT, width=2)
        _flat(figure)
    else:
        _globe(figure)
        _solid(figure, run, view)
    # A dominant kernel of M is where the field is undefined, not where tokens go.
    if not run.theory.no_limit or run.theory.attention.rotates:
        _space(figure, run.theory.attention, view, "e", "M", look.INK)
    _space(figure, run.theory.terminal, view, "v", "V", look.GREEN, like=run.theory.attention)


def _globe(figure: go.Figure) -> None:
    """A translucent unit sphere with a faint grid, which shows its roundness."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 49), np.linspace(0, np.pi, 25))
    ball = rounded(np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1))
    figure.add_surface(
        **coordinates(ball),
        opacity=0.12,
        colorscale=[[0, "#9AA5B1"], [1, "#9AA5B1"]],
        showscale=False,
        hoverinfo="skip",
        # Else the mouse draws dark rings on it.
        contours={axis: {"highlight": False} for axis in "xyz"},
        lighting={"ambient": 1, "diffuse": 0, "specular": 0},
        name="sphere",
        showlegend=False,
    )
    gap = np.full((1, 3), np.nan, dtype=np.float32)
    lines = [*(ball[i] for i in range(4, 24, 4)), *(ball[:, j] for j in range(0, 48, 6))]
    grid = np.concatenate([part for line in lines for part in (line, gap)])
    figure.add_scatter3d(
        **coordinates(grid),
        mode="lines",
        line={"color": GRID, "width": 1},
        hoverinfo="skip",
        name="grid",
        showlegend=False,
    )


def _space(
    figure: go.Figure, of: Spectrum, view: View, letter: str, matrix: str, colour: str, like: Spectrum | None = None
) -> None:
    """A dominant line as an axis through the centre, a dominant plane as its circle, anything larger not at all."""
    basis = _numpy(of.basis)
    # The second is longer as an axis and thinner as a circle, so that both can be seen where they coincide.
    first = like is None
    if of.dim == 1:
        tip = _dominant(of, like)
        name = f"±{letter}, dominant direction of {matrix}"
        _axis(figure, tip @ view.axes, letter, name, colour, reach=1.12 if first else 1.22)
    elif of.dim == 2 and of.size > 2:
        _circle(figure, basis.T @ view.axes, f"dominant plane of {matrix}", colour, width=7 if first else 2.5)


def _dominant(of: Spectrum, like: Spectrum | None = None) -> Floats:
    """The dominant unit vector. An eigenvector has no sign of its own: +v is the end on +e's side."""
    tip = _numpy(of.basis)[:, 0]
    return -tip if like is not None and like.dim == 1 and tip @ _numpy(like.basis)[:, 0] < 0 else tip


def _axis(figure: go.Figure, tip: Floats, letter: str, name: str, colour: str, reach: float) -> None:
    ends = rounded(np.stack([-reach * tip, reach * tip]))
    outward = ["middle left", "middle right"] if tip[0] >= 0 else ["middle right", "middle left"]
    figure.add_trace(
        trace_type(ends.shape[-1])(
            **coordinates(ends),
            mode="lines+text",
            text=[f"−{letter}", f"+{letter}"],
            name=name,
            hoverinfo="skip",
            textposition="top center" if len(tip) == 3 else outward,
            textfont={"size": 17, "color": colour},
            line={"color": colour, "width": 5 if ends.shape[-1] == 3 else 2.5},
        )
    )


def _circle(figure: go.Figure, plane: Floats, name: str, colour: str, width: float) -> None:
    angle = np.linspace(0, 2 * np.pi, 121)
    ring = rounded(np.stack([np.cos(angle), np.sin(angle)], axis=1) @ plane)
    figure.add_trace(
        trace_type(ring.shape[-1])(
            **coordinates(ring),
            mode="lines",
            name=name,
            showlegend=bool(name),
            hoverinfo="skip",
            line={"color": colour, "width": width},
            opacity=0.6,
        )
    )


def _solid(figure: go.Figure, run: Run, view: View) -> None:
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


def _eye(run: Run, view: View) -> Floats:
    """Where to look from: with +e and +v towards the viewer and apart from each other, if there are such axes."""
    eye = np.array([0.66, 0.6, 0.46])
    if run.theory.dim == 1 and not run.theory.no_limit:
        e = _dominant(run.theory.attention) @ view.axes
        v = _dominant(run.theory.terminal, run.theory.attention) @ view.axes
        side = np.cross(e, v)
        side = side if np.linalg.norm(side) > 1e-3 else np.cross(e, np.eye(3)[np.abs(e).argmin()])
        side /= np.linalg.norm(side)
        eye = 0.5 * (e + v) / np.linalg.norm(e + v) + 0.86 * (side if side[2] >= 0 else -side)
        # From straight above or below, "up" has no meaning and the picture would turn over.
        eye[2] = np.clip(eye[2], -0.7, 0.7)
    return np.asarray(CAMERA * eye / np.linalg.norm(eye))


def _flat(figure: go.Figure) -> None:
    figure.update_xaxes(range=[-1.5, 1.5], visible=False, constrain="domain")
    figure.update_yaxes(range=[-1.42, 1.42], visible=False, constrain="domain", scaleanchor="x")
    figure.update_layout(margin={"l": 6, "r": 6, "b": 110})
