"""The eigenvalues of M and of V in the complex plane, with the dominant ones and the gap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.figures import look
from metastable.theory import Theory
from metastable.theory.spectrum import Spectrum


def spectrum(theory: Theory) -> go.Figure:
    """Two panels with equal axes: M = V Bᵀ, which governs the plateau, and V, which governs the terminal phase."""
    both = [(theory.attention, "M = V Bᵀ", look.BLUE), (theory.terminal, "V", look.VERMILLION)]
    figure = make_subplots(
        rows=2, cols=1, vertical_spacing=0.2, subplot_titles=[_heading(s, name) for s, name, _ in both]
    )
    for row, (s, name, colour) in enumerate(both, start=1):
        _panel(figure, s, name, colour, row)
    caption = (
        "The eigenvalue with the largest real part (large marker) attracts the tokens: that of M on the plateau, that "
        "of V in the terminal phase. A wider gap to the next eigenvalue means faster convergence. A dominant complex "
        "pair means rotation without a limit. The dotted line is real part 0."
    )
    look.dress(figure, "Eigenvalues of M and V", 700, caption)
    for row in (1, 2):
        figure.update_yaxes(title_text="imaginary part", row=row, col=1)
    figure.update_xaxes(title_text="real part", row=2, col=1)
    figure.update_annotations({"font": {"size": 14}})
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 34, showlegend=False, hovermode="closest")
    return figure


def _heading(s: Spectrum, name: str) -> str:
    first = f"{look.number(s.leading)} ± {look.number(s.frequency)}i" if s.rotates else look.number(s.leading)
    times = f" ({s.multiplicity} times)" if s.multiplicity > 1 and not s.rotates else ""
    gap = "no other" if math.isinf(s.gap) else f"gap {look.number(s.gap)}"
    return f"<b>{name}</b>: λ₁ = {first}{times}, {gap}"


def _panel(figure: go.Figure, s: Spectrum, name: str, colour: str, row: int) -> None:
    values = s.eigenvalues.numpy()
    x_range, y_range = _ranges(values)
    axis = "" if row == 1 else "2"
    refs = {"xref": f"x{axis}", "yref": f"y{axis} domain"}
    imaginary_axis = {"color": look.INK, "width": 1.5, "dash": "dot"}
    _vertical(figure, 0, 1, imaginary_axis, name="Re λ = 0", layer="below", **refs)
    if math.isfinite(s.gap):
        _gap(figure, s, refs)
    size = 9 if len(values) <= 40 else 5
    rest, first = _merged(values[s.multiplicity :], s.tolerance), _merged(values[: s.multiplicity], s.tolerance)
    _dots(figure, rest, f"eigenvalues of {name}", {"size": size, "color": colour, "opacity": 0.55}, row)
    ring = {"width": 2, "color": look.INK}
    _dots(figure, first, f"dominant of {name}", {"size": 15, "color": colour, "line": ring}, row)
    figure.update_xaxes(range=x_range, row=row, col=1)
    figure.update_yaxes(range=y_range, scaleanchor=f"x{axis}", scaleratio=1, row=row, col=1)


def _merged(values: np.ndarray[Any, Any], tolerance: float) -> list[tuple[complex, int]]:
    """Equal eigenvalues as one value with a count: a factored head has the eigenvalue 0 hundreds of times."""
    groups: dict[tuple[int, int], list[complex]] = {}
    grain = max(tolerance, 1e-300)
    for value in values:
        groups.setdefault((round(value.real / grain), round(value.imag / grain)), []).append(complex(value))
    return [(members[0], len(members)) for members in groups.values()]


def _ranges(values: np.ndarray[Any, Any]) -> tuple[list[float], list[float]]:
    left, right = min(0.0, values.real.min()), max(0.0, values.real.max())
    width = right - left or 1.0
    height = max(1.7 * float(np.abs(values.imag).max()), 0.15 * width)
    return [left - 0.1 * width, right + 0.1 * width], [-height, height]


def _dots(figure: go.Figure, values: list[tuple[complex, int]], name: str, marker: dict[str, Any], row: int) -> None:
    text = [_written(value) + (f", {count} times" if count > 1 else "") for value, count in values]
    figure.add_scatter(
        x=[value.real for value, _ in values],
        y=[value.imag for value, _ in values],
        text=text,
        name=name,
        mode="markers",
        marker=marker,
        hovertemplate="%{text}<extra>" + name + "</extra>",
        row=row,
        col=1,
    )


def _written(value: complex) -> str:
    if value.imag == 0:
        return f"λ = {look.number(value.real)}"
    sign = "+" if value.imag > 0 else "−"
    return f"λ = {look.number(value.real)} {sign} {look.number(abs(value.imag))}i, |λ| = {look.number(abs(value))}"


def _vertical(figure: go.Figure, x: float, top: float, line: dict[str, Any], **options: Any) -> None:
    figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=top, line=line, **options)


def _gap(figure: go.Figure, s: Spectrum, refs: dict[str, str]) -> None:
    """A bar between Re λ₂ and Re λ₁ near the top of the panel, with lines down to both."""
    left, right, height = s.leading - s.gap, s.leading, 0.88
    for x in (left, right):
        _vertical(figure, x, height, {"color": look.GREY, "width": 1, "dash": "dash"}, **refs)
    bar = {"x0": left, "x1": right, "y0": height, "y1": height, "line": {"color": look.INK, "width": 3}}
    figure.add_shape(name="gap", type="line", **bar, **refs)
    place = {"x": right, "y": height, "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(text="gap", showarrow=False, **place, **refs)
