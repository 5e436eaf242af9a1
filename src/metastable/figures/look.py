"""The common look of all figures: palette, fonts, layout, and numbers written for people."""

from __future__ import annotations

import html
import math
import re
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
INK, GREY, FAINT = "#222222", "#6B6B6B", "#DDDDDD"

CYCLE = [[i / 5, colour] for i, colour in enumerate((BLUE, GREEN, ORANGE, VERMILLION, PURPLE, BLUE))]
"""A colour scale for angles: both ends are the same blue."""

TITLE_HEIGHT = 62
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CONFIG: dict[str, Any] = {
    "responsive": True,
    "displaylogo": False,
    # A wheel or a finger that scrolls the page must not zoom the sphere under it.
    "scrollZoom": False,
    # plotly.js 4 would offer to upload the chart to its makers' server.
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "tableRotation", "resetCameraLastSave3d"],
}
"""What to hand to `figure.show(config=…)` or `to_html(config=…)`."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(x: float | None) -> str:
    """Three significant digits: 0.123, 1230, 4.56×10⁻⁷, ∞; a dash for what is not known.

    >>> number(0.123456), number(12345.0), number(-4.56e-7)
    ('0.123', '12300', '−4.56×10⁻⁷')
    """
    if x is None or math.isnan(x):
        return "–"
    sign = "−" if x < 0 else ""
    if math.isinf(x):
        return sign + "∞"
    size = float(f"{abs(x):.3g}")
    if size == 0 or 1e-3 <= size < 1e5:
        return sign + f"{size:.10g}"
    mantissa, exponent = f"{size:.2e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return f"{sign}{power}" if float(mantissa) == 1 else f"{sign}{float(mantissa):g}×{power}"


def raised(text: str) -> str:
    """HTML of plain text, with e^{βt}, t^q, e^(−ct) and μ_t raised and lowered.

    >>> raised("W_p < t^q e^{−ct}")
    'W<sub>p</sub> &lt; t<sup>q</sup> e<sup>−ct</sup>'
    """
    safe = re.sub(r"(?<!\w)-(?=\d)", "−", html.escape(text, quote=False))
    for sign, tag in (("\\^", "sup"), ("(?<=\\w)_", "sub")):
        for inside in (r"\{([^{}]*)\}", r"\(([^()]*)\)", r"([−+\-]?[\w∞][\w.]*(?<!\.))"):
            safe = re.sub(sign + inside, rf"<{tag}>\1</{tag}>", safe)
    return safe


def plain(title: str, height: int, caption: str, note: str = "") -> go.Figure:
    """An empty figure in the common look; `note` is the line under the title."""
    figure = go.Figure()
    dress(figure, title, height, caption, note)
    return figure


def dress(figure: go.Figure, title: str, height: int, caption: str, note: str = "") -> None:
    text: dict[str, Any] = {"text": title, "x": 0, "xref": "paper", "yref": "container", "y": 1, "yanchor": "top"}
    text |= {"pad": {"t": 12}, "font": {"size": 18}, "automargin": False}
    if note:
        text["subtitle"] = {"text": note, "font": {"size": 13, "color": GREY}}
    figure.update_layout(
        template="none",
        title=text,
        height=height,
        font={"family": FONT, "size": 14, "color": INK},
        margin={"l": 64, "r": 18, "t": TITLE_HEIGHT, "b": 48},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"font": {"family": FONT, "size": 13}},
        meta={"caption": caption},
    )
    axis: dict[str, Any] = {
        "linecolor": GREY,
        "gridcolor": FAINT,
        "ticks": "outside",
        "tickcolor": GREY,
        "zeroline": False,
    }
    axis |= {"automargin": True, "tickfont": {"size": 13}}
    figure.update_xaxes(showline=True, title_standoff=8, **axis)
    figure.update_yaxes(showline=True, title_standoff=8, **axis)


def caption(figure: go.Figure) -> str:
    """How to read the figure and what was left out of it, in one to three sentences."""
    return str(figure.layout.meta["caption"])


def untitled(figure: go.Figure) -> go.Figure:
    """The same figure for a page that has its own heading; the room of the title is given back."""
    figure.update_layout(title=None, margin_t=max(12, (figure.layout.margin.t or 0) - TITLE_HEIGHT + 12))
    return figure


def wrapped(text: str, width: int) -> str:
    """Plotly breaks no lines of its own."""
    import textwrap

    return "<br>".join(textwrap.wrap(text, width))


def round_numbers(low: float, high: float) -> list[float]:
    """At most six of 1, 2, 5, 10, … between 10^low and 10^high; the two ends where fewer than two lie there."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [float(f"{step}e{power}") for power in powers for step in steps]
        found = [t for t in found if low <= math.log10(t) <= high]
        if len(found) <= 6:
            break
    found = found[:: math.ceil(len(found) / 6)] if len(found) > 6 else found
    return found if len(found) > 1 else [10**low, 10**high]
