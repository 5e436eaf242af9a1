"""The eigenvalues of M = V Bᵀ and of V in the complex plane: of a theory, or of one head of a trained encoder."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from metastable.figures import look
from metastable.theory import Theory
from metastable.theory.spectrum import Spectrum

Values = np.ndarray[Any, Any]
COLOURS = {"M = V Bᵀ": look.BLUE, "V": look.VERMILLION}
"""The two matrices. M governs the plateau, V the terminal phase."""
DOMINANT = {"size": 15, "line": {"width": 2, "color": look.INK}}
REST = {"opacity": 0.55}
KERNEL = {"size": 11, "color": look.GREY, "symbol": "x-thin", "line": {"width": 2, "color": look.GREY}}
"""Markers of the dominant eigenvalues, of the others, and of the directions that a factored head does not see."""


def spectrum(theory: Theory) -> go.Figure:
    """Two panels with equal axes: M = V Bᵀ, which governs the plateau, and V, which governs the terminal phase."""
    both = (theory.attention, theory.terminal)
    caption = (
        "The eigenvalue with the largest real part (large marker) attracts the tokens: that of M on the plateau, that "
        "of V in the terminal phase. A wider gap to the next eigenvalue means faster convergence. A dominant complex "
        "pair means rotation without a limit. The dotted line is real part 0."
    )
    headings = [_heading(s, name) for s, name in zip(both, COLOURS, strict=True)]
    figure = _planes("Eigenvalues of M and V", caption, headings, "real part")
    for row, (s, name) in enumerate(zip(both, COLOURS, strict=True), start=1):
        values = s.eigenvalues.numpy()
        small = {**REST, "size": 9 if len(values) <= 40 else 5}
        _dots(figure, row, values[s.multiplicity :], s.tolerance, f"eigenvalues of {name}", small)
        _dots(figure, row, values[: s.multiplicity], s.tolerance, f"dominant of {name}", DOMINANT)
        # The bar of the gap needs space above the eigenvalues.
        _finish(figure, row, *_ranges(values, above=1.7))
        if math.isfinite(s.gap):
            _gap(figure, s, row)
    return figure


def eigenvalues(m: np.ndarray, v: np.ndarray, title: str, dim: int | None = None) -> go.Figure:
    """The eigenvalues of one head's M (k,) and V (r,) in the complex plane, axes equal, dominant ones marked.

    dim : d, the width of the model, where known: a matrix with fewer eigenvalues here has 0 besides, d − k times.
    """
    panels = spectrum_panels(m, v, dim)
    caption = (
        "The eigenvalue furthest to the right (large marker) dominates: that of M when attention is sharp, that of V "
        "later, inside clusters. A dominant eigenvalue off the real axis means rotation. The cross at 0 stands for the "
        "directions that the head does not see; if it is marked, the head does not concentrate tokens. The dotted line "
        "is real part 0."
    )
    figure = _planes(html.escape(title), caption, [panel["heading"] for panel in panels], "real part, per layer")
    for row, (panel, name) in enumerate(zip(panels, COLOURS, strict=True), start=1):
        for part, marker in (("kernel", KERNEL), ("rest", {**REST, "size": 7}), ("first", DOMINANT)):
            x, y = panel[part]
            hover = f"%{{x:.4g}} + %{{y:.4g}}i<extra>{part.replace('first', 'dominant')} of {name[0]}</extra>"
            marker = {"color": COLOURS[name], **marker}
            figure.add_scatter(x=x, y=y, mode="markers", marker=marker, name=part, hovertemplate=hover, row=row, col=1)
        _finish(figure, row, panel["x"], panel["y"])
    return figure


def spectrum_panels(m: np.ndarray, v: np.ndarray, dim: int | None = None) -> list[dict[str, Any]]:
    """What `eigenvalues` draws of M and of V: heading, (x, y) of the rest, the dominant ones and 0, ranges of axes."""
    return [_panel(np.asarray(values), name, dim) for values, name in zip((m, v), COLOURS, strict=True)]


def _panel(values: Values, name: str, dim: int | None) -> dict[str, Any]:
    size = float(np.abs(values).max(initial=0.0))
    kernel = dim is not None and len(values) < dim
    top = float(values.real.max(initial=0.0 if kernel else -math.inf))
    leads = (values.real >= top - 1e-9 * (size or 1.0)) & ~(kernel & (np.abs(values) <= 1e-12 * (size or 1.0)))
    first, rest = values[leads], values[~leads]
    zero = np.zeros(1 if kernel else 0, dtype=complex)
    if not len(first):
        first, zero = zero, zero[:0]
        label = "λ₁ = 0, the directions it does not see"
    else:
        turn = float(np.abs(first.imag).max())
        label = f"λ₁ = {look.number(top)}" + (f" ± {look.number(turn)}i" if turn > 1e-9 * size else "")
    parts = {"rest": rest, "first": first, "kernel": zero}
    points = {part: [_digits(found.real), _digits(found.imag)] for part, found in parts.items()}
    edges = zip("xy", map(_digits, _ranges(values, above=1.25)), strict=True)
    return {"heading": f"<b>{name}</b>: {label}", **points, **dict(edges)}


def _digits(values: Any) -> list[float]:
    """Five significant digits: more cannot be seen, and a page holds hundreds of spectra."""
    return [float(f"{value:.5g}") for value in values]


def _ranges(values: Values, above: float) -> tuple[list[float], list[float]]:
    """Ranges of both axes around 0 and all eigenvalues, up to `above` times the largest imaginary part."""
    left, right = (float(edge) for edge in (values.real.min(initial=0.0), values.real.max(initial=0.0)))
    width = right - left or 1.0
    height = max(above * float(np.abs(values.imag).max(initial=0.0)), 0.15 * width)
    return [left - 0.1 * width, right + 0.1 * width], [-height, height]


def _planes(title: str, caption: str, headings: list[str], real_part: str) -> go.Figure:
    """An empty figure with a complex plane for M and one for V."""
    figure = look.plain(title, 700, caption, rows=2, cols=1, vertical_spacing=0.2, subplot_titles=headings)
    figure.update_yaxes(title_text="imaginary part")
    figure.update_xaxes(title_text=real_part, row=2, col=1)
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 34, showlegend=False, hovermode="closest")
    return figure


def _finish(figure: go.Figure, row: int, x_range: list[float], y_range: list[float]) -> None:
    """Give a plane that has its eigenvalues equal axes and a line at real part 0."""
    line = {"color": look.INK, "width": 1.5, "dash": "dot"}
    figure.add_vline(x=0, line=line, layer="below", name="Re λ = 0", row=row, col=1)
    figure.update_xaxes(range=x_range, row=row, col=1)
    figure.update_yaxes(range=y_range, scaleanchor="x" if row == 1 else f"x{row}", scaleratio=1, row=row, col=1)


def _heading(s: Spectrum, name: str) -> str:
    first = f"{look.number(s.leading)} ± {look.number(s.frequency)}i" if s.rotates else look.number(s.leading)
    times = f" ({s.multiplicity} times)" if s.multiplicity > 1 and not s.rotates else ""
    gap = "no other" if math.isinf(s.gap) else f"gap {look.number(s.gap)}"
    return f"<b>{name}</b>: λ₁ = {first}{times}, {gap}"


def _dots(figure: go.Figure, row: int, values: Values, tolerance: float, name: str, marker: dict[str, Any]) -> None:
    """Equal eigenvalues as one point with a count: a factored head has the eigenvalue 0 hundreds of times."""
    groups: dict[tuple[int, int], list[complex]] = {}
    grain = max(tolerance, 1e-300)
    for value in values:
        groups.setdefault((round(value.real / grain), round(value.imag / grain)), []).append(complex(value))
    firsts = [members[0] for members in groups.values()]
    counts = [f", {len(members)} times" if len(members) > 1 else "" for members in groups.values()]
    figure.add_scatter(
        x=[value.real for value in firsts],
        y=[value.imag for value in firsts],
        text=[_written(value) + count for value, count in zip(firsts, counts, strict=True)],
        name=name,
        mode="markers",
        marker={"color": list(COLOURS.values())[row - 1], **marker},
        hovertemplate="%{text}<extra>" + name + "</extra>",
        row=row,
        col=1,
    )


def _written(value: complex) -> str:
    if value.imag == 0:
        return f"λ = {look.number(value.real)}"
    sign = "+" if value.imag > 0 else "−"
    return f"λ = {look.number(value.real)} {sign} {look.number(abs(value.imag))}i, |λ| = {look.number(abs(value))}"


def _gap(figure: go.Figure, s: Spectrum, row: int) -> None:
    """A bar between Re λ₂ and Re λ₁ near the top of the panel, with lines down to both."""
    left, right, height = s.leading - s.gap, s.leading, 0.88
    place = {"yref": "y domain", "row": row, "col": 1}
    thin, thick = {"color": look.GREY, "width": 1, "dash": "dash"}, {"color": look.INK, "width": 3}
    for x in (left, right):
        figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=height, line=thin, **place)
    figure.add_shape(name="gap", type="line", x0=left, x1=right, y0=height, y1=height, line=thick, **place)
    figure.add_annotation(text="gap", showarrow=False, x=right, y=height, xanchor="right", yanchor="bottom", **place)
