"""How objects look in a notebook: a small table in HTML with everything escaped, and a thumbnail as inline SVG.

Thumbnails are drawn from plain numbers, without a browser and without plotly. They have a white background of their
own, so that they look the same in light and dark notebooks. Points that are not finite are left out.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

STYLE = "text-align:left;vertical-align:top"
SIDE = 150
"""Height of a thumbnail in pixels; squares are as wide, curves twice as wide."""
EDGE = 12
"""Free space around the drawing, in pixels."""
MOST = 300
"""At most this many points are drawn."""
LONGEST = 400
"""A longer value in a table is cut after this many characters."""
# Okabe and Ito's blue and vermillion, which colour-blind readers can tell apart, and a grey for axes.
BLUE, RED, GREY, PALE = "#0072B2", "#D55E00", "#999999", "#E8EEF2"


def table(title: str, rows: Mapping[str, object], picture: str = "") -> str:
    """A title and a table of names and values, with a thumbnail below them.

    >>> table("a <b>", {"p": 0.5})
    '<table><caption style="text-align:left;vertical-align:top"><b>a &lt;b&gt;</b></caption><tr><th \
style="text-align:left;vertical-align:top">p</th><td style="text-align:left;vertical-align:top">0.5</td></tr></table>'
    """
    cells = "".join(
        f'<tr><th style="{STYLE}">{html.escape(name)}</th><td style="{STYLE}">{html.escape(_cut(str(value)))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="{STYLE}"><b>{html.escape(_cut(title))}</b></caption>{cells}</table>{picture}'


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def number(x: float | None) -> str:
    """Four significant digits; a dash for None and NaN.

    >>> number(0.123456), number(-2.0), number(float("inf")), number(None)
    ('0.1235', '-2', 'inf', '–')
    """
    return "–" if x is None or math.isnan(x) else f"{x:.4g}"


def picture(parts: Sequence[str], label: str, width: float = SIDE, height: float = SIDE) -> str:
    """The SVG of a thumbnail; `label` is for readers who cannot see it."""
    size = f'width="{width:g}" height="{height:g}"'
    inside = f"<title>{html.escape(_cut(label))}</title>{''.join(parts)}"
    back = f'<rect {size} rx="6" fill="#FFFFFF"/>'
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {box}>{back}{inside}</svg>'


def tokens(points: Any, label: str = "tokens on the circle") -> str:
    """Points (n, d) in their first two principal directions, or as they are for d = 2, inside the unit circle."""
    x = np.asarray(points, dtype=float)
    x = x[np.isfinite(x).all(axis=1)]
    x = x[np.unique(np.linspace(0, max(len(x) - 1, 0), min(MOST, len(x))).round().astype(int))] if len(x) else x
    if x.shape[1] > 2 and len(x):
        x = x @ np.linalg.svd(x, full_matrices=False)[2][:2].T
    middle, radius = SIDE / 2, SIDE / 2 - EDGE
    parts = [f'<circle cx="{middle:g}" cy="{middle:g}" r="{radius:g}" fill="none" stroke="{GREY}"/>']
    for row in x:
        across, up = (*row, 0.0)[:2]
        place = f'cx="{middle + radius * across:.1f}" cy="{middle - radius * up:.1f}"'
        parts.append(f'<circle {place} r="2.5" fill="{BLUE}" fill-opacity="0.5"/>')
    return picture(parts, label)


def curve(x: Any, y: Any, label: str, level: float | None = None, low: float | None = None, ends: bool = True) -> str:
    """A line through the points (x, y), with a dashed line at `level`.

    low : the lower end of the axis; by default the smallest y
    ends : write the first and the last y beside the label
    """
    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    fine = np.isfinite(across) & np.isfinite(up)
    across, up = across[fine], up[fine]
    keep = np.unique(np.linspace(0, max(len(up) - 1, 0), min(MOST, len(up))).round().astype(int))
    across, up = (across[keep], up[keep]) if len(up) else (across, up)
    width = 2 * SIDE
    values = [*up.tolist(), *([] if level is None else [level]), *([] if low is None else [low])]
    if not len(up):
        return picture([_text(width / 2, SIDE / 2, "nothing to draw", "middle")], label, width)
    bottom, top = min(values), max(values)
    place = _scale(across.min(), across.max(), EDGE, width - EDGE), _scale(bottom, top, SIDE - 2 * EDGE, 2 * EDGE)
    points = " ".join(f"{place[0](a):.1f},{place[1](b):.1f}" for a, b in zip(across, up, strict=True))
    parts = [f'<path d="M{EDGE} {SIDE - EDGE}H{width - EDGE}" stroke="{GREY}"/>']
    if level is not None:
        parts.append(f'<path d="M{EDGE} {place[1](level):.1f}H{width - EDGE}" stroke="{RED}" stroke-dasharray="5 4"/>')
    parts.append(f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="2"/>')
    words = f"{label}: {number(up[0])} → {number(up[-1])}" if ends else label
    parts.append(_text(EDGE, EDGE + 2, words, "start"))
    return picture(parts, label, width)


def plane(values: Any, leading: int, label: str = "eigenvalues in the complex plane") -> str:
    """Complex numbers in their plane; the first `leading` ones are large."""
    z = np.asarray(values, dtype=complex)
    z = z[np.isfinite(z)][:MOST]
    reach = float(max(np.abs(z.real).max(initial=0.0), np.abs(z.imag).max(initial=0.0))) or 1.0
    place = _scale(-reach, reach, EDGE, SIDE - EDGE)
    parts = [f'<path d="M{EDGE} {SIDE / 2}H{SIDE - EDGE}M{SIDE / 2} {EDGE}V{SIDE - EDGE}" stroke="{GREY}"/>']
    for i, value in reversed(list(enumerate(z))):
        look = f'r="5" fill="{RED}"' if i < leading else f'r="3" fill="{BLUE}" fill-opacity="0.6"'
        parts.append(f'<circle cx="{place(value.real):.1f}" cy="{place(-value.imag):.1f}" {look}/>')
    return picture(parts, label)


def grid(values: Any, label: str) -> str:
    """A table of numbers as squares, from pale (smallest) to blue (largest); cells without a number are white."""
    z = np.atleast_2d(np.asarray(values, dtype=float))[:64, :64]
    fine = z[np.isfinite(z)]
    low, high = (float(fine.min()), float(fine.max())) if len(fine) else (0.0, 0.0)
    share = _scale(low, high, 0.1, 1.0)
    width, rows, columns = 2 * SIDE, *z.shape
    wide, tall = (width - 2 * EDGE) / max(columns, 1), (SIDE - 3 * EDGE) / max(rows, 1)
    parts = [_text(EDGE, EDGE + 2, f"{label}: {number(low)} to {number(high)}", "start")]
    for i, j in np.argwhere(np.isfinite(z)):
        size = f'width="{0.94 * wide:.1f}" height="{0.94 * tall:.1f}"'
        where = f'x="{EDGE + j * wide:.1f}" y="{2 * EDGE + i * tall:.1f}"'
        parts.append(f'<rect {where} {size} fill="{BLUE}" fill-opacity="{share(z[i, j]):.2f}"/>')
    return picture(parts, label, width)


def lights(states: Mapping[str, str], label: str) -> str:
    """One square a state: blue if it holds, pale if it is doubtful, vermillion with a cross if it fails."""
    parts = []
    for i, state in enumerate(states.values()):
        x = EDGE + 22 * i
        fill = {"holds": BLUE, "doubtful": PALE, "fails": RED}[state]
        parts.append(f'<rect x="{x}" y="26" width="18" height="18" rx="3" fill="{fill}" stroke="{GREY}"/>')
        if state == "fails":
            parts.append(f'<path d="M{x + 4} 30l10 10m0 -10l-10 10" stroke="#FFFFFF" stroke-width="2"/>')
    parts.append(_text(EDGE, 17, label, "start"))
    return picture(parts, label, max(2 * SIDE, 2 * EDGE + 22 * len(states)), 54)


def gauge(p: float, alpha: float) -> str:
    """A p-value on a logarithmic axis from 1 (left) to 10⁻⁵, with a dashed line at the threshold `alpha`."""
    width = 2 * SIDE
    place = _scale(0.0, 5.0, EDGE, width - EDGE)
    at, line = (place(min(max(-math.log10(x), 0.0), 5.0)) if x > 0 else place(5.0) for x in (p, alpha))
    colour = RED if p <= alpha else BLUE
    parts = [
        f'<rect x="{EDGE}" y="28" width="{width - 2 * EDGE}" height="18" fill="{PALE}"/>',
        f'<rect x="{EDGE}" y="28" width="{max(at - EDGE, 1):.1f}" height="18" fill="{colour}"/>',
        f'<path d="M{line:.1f} 22V52" stroke="#333333" stroke-dasharray="4 3"/>',
        _text(EDGE, 17, f"p-value (bar) and threshold {number(alpha)} (dashed)", "start"),
        _text(EDGE, 62, "1", "start"),
        _text(width - EDGE, 62, "0.00001", "end"),
    ]
    return picture(parts, f"p-value {number(p)} beside the threshold {number(alpha)}", width, 70)


def _scale(low: float, high: float, begin: float, end: float) -> Any:
    """The map that takes low to begin and high to end; everything to the middle if low = high."""
    if not high > low:
        return lambda value: (begin + end) / 2
    return lambda value: begin + (end - begin) * ((value - low) / (high - low))


def _text(x: float, y: float, words: str, anchor: str) -> str:
    font = 'font-family="sans-serif" font-size="11" fill="#333333"'
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {font}>{html.escape(words)}</text>'
