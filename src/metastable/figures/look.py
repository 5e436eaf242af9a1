"""The common look of all figures: colours, fonts, layout, numbers for people, and the changes that a web page makes."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.arrays import positive
from metastable.errors import choice

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
INK, GREY, FAINT = "#222222", "#6B6B6B", "#DDDDDD"

PHASE_TINTS = {"concentration": "#E3F0F8", "plateau": "#E0F2EA", "terminal": "#FBEBDD"}
"""Backgrounds of the three phases of a run."""
PHASE_COLOURS = {"concentration": "#8EC7EC", "plateau": GREEN, "terminal": ORANGE}
"""The phases in full colour, in the hues of their backgrounds."""
CLEAR = "rgba(0,0,0,0)"
"""No colour."""
PLATEAU, BAND, GRID = "#F6EE9C", "rgba(0,114,178,0.18)", "#C4CAD0"
"""Plateaus of a curve, the band between two bounds, and the grid of the sphere."""
CYCLE = [[i / 5, colour] for i, colour in enumerate((BLUE, GREEN, ORANGE, VERMILLION, PURPLE, BLUE))]
"""A colour scale for angles: both ends are the same blue."""

TITLE_HEIGHT = 62
"""Height of the title and the line under it, in pixels."""
LEGEND_LINE = 20
"""Height of one line of the legend, in pixels."""
COLOUR_BAR: dict[str, Any] = {"orientation": "h", "x": 0.5, "len": 1.0, "thickness": 14, "outlinewidth": 0}
COLOUR_BAR |= {"y": 0, "yref": "container", "yanchor": "bottom", "tickfont": {"size": 13}}
"""A colour bar along the bottom of the figure."""
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
"""The `config` for `figure.show` and `figure.to_html`."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(x: float | None) -> str:
    """Three significant digits: 0.123, 1230, 4.56×10⁻⁷, ∞; a dash for None and NaN.

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


def plain(title: str, height: float, caption: str, note: str = "", **grid: Any) -> go.Figure:
    """An empty figure in the common look: one panel, or a grid with these arguments of `make_subplots`."""
    figure = make_subplots(**grid) if grid else go.Figure()
    dress(figure, title, height, caption, note)
    return figure


def dress(figure: go.Figure, title: str, height: float, caption: str, note: str = "") -> None:
    """Give a figure the common look; `note` is the line under the title."""
    text: dict[str, Any] = {"text": title, "x": 0, "xref": "paper", "yref": "container", "y": 1, "yanchor": "top"}
    text |= {"pad": {"t": 12}, "font": {"size": 18}, "automargin": False}
    if note:
        text["subtitle"] = {"text": note, "font": {"size": 13, "color": GREY}}
    look: dict[str, Any] = {
        "template": "none",
        "title": text,
        "height": height,
        "font": {"family": FONT, "size": 14, "color": INK},
        "margin": {"l": 64, "r": 18, "t": TITLE_HEIGHT, "b": 48},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "meta": {"caption": caption},
    }
    axis: dict[str, Any] = {"linecolor": GREY, "gridcolor": FAINT, "ticks": "outside", "tickcolor": GREY}
    axis |= {
        "showline": True,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 13},
        "title": {"standoff": 8},
    }
    layout = figure.layout.to_plotly_json()
    look |= dict.fromkeys(["xaxis", "yaxis", *filter(re.compile(r"[xy]axis\d+$").match, layout)], axis)
    if "annotations" in layout:
        look["annotations"] = [_merged(found, {"font": {"size": 14}}) for found in layout["annotations"]]
    # One assignment is ten times as fast as plotly's update methods, which validate every entry on its own.
    figure.layout = _merged(layout, look)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the entries of `new`; dictionaries in both are merged."""
    inner = {key: _merged(old[key], value) for key, value in new.items() if isinstance(value, dict) and key in old}
    return {**old, **new, **inner}


def curve(figure: go.Figure, x: Any, y: Any, name: str, colour: str, **more: Any) -> None:
    """Add a line. `width` (default 2) and `dash` are of the line; all other arguments are plotly's."""
    line = {"color": colour, "width": more.pop("width", 2), "dash": more.pop("dash", None)}
    figure.add_scatter(
        **{"x": x, "y": y, "name": name, "mode": "lines", "line": line, "hovertemplate": "%{y:.3g}", **more}
    )


def tint(colour: str, opacity: float) -> str:
    """A colour "#RRGGBB" with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def band(figure: go.Figure, x: Any, low: Any, high: Any, colour: str, names: tuple[str, str], **more: Any) -> None:
    """Add the area between two curves, with the names of its lower and its upper edge."""
    edge = {"x": x, "mode": "lines", "line": {"width": 0}, **more}
    figure.add_scatter(**{**edge, "y": low, "name": names[0], "showlegend": False})
    figure.add_scatter(**{**edge, "y": high, "name": names[1], "fill": "tonexty", "fillcolor": colour})


def legend_below(figure: go.Figure, height: float | None = None, columns: int = 1) -> None:
    """Put the legend under the axis, one entry a line: long entries side by side do not fit a phone.

    height : of axis title and legend, in pixels; by default as much as the traces need
    columns : how many entries share a line; their names must be short
    """
    lines = math.ceil(sum(trace.showlegend is not False for trace in figure.data) / columns)
    figure.update_layout(
        margin_b=60 + LEGEND_LINE * lines if height is None else height,
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
    )
    if columns > 1:
        figure.update_layout(
            legend={
                **{"orientation": "h", "xref": "container", "maxheight": 1},
                **{"entrywidth": 1 / columns, "entrywidthmode": "fraction"},
            }
        )


def caption(figure: go.Figure) -> str:
    """How to read the figure and what it leaves out, in one to three sentences."""
    return str(figure.layout.meta["caption"])


def wrapped(text: str, width: int) -> str:
    """Text with line breaks, which plotly does not insert."""
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


def number_colours(low: float, high: float, logarithmic: bool = False) -> dict[str, Any]:
    """A colour axis for numbers, with its bar at the bottom of the figure, which colour-blind readers can follow.

    logarithmic : the numbers are decimal logarithms, and the bar shows powers
    """
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    bar = {**COLOUR_BAR, "nticks": 6}
    if logarithmic:
        ticks = round_numbers(low, high)
        bar |= {"tickvals": [math.log10(t) for t in ticks], "ticktext": [number(t) for t in ticks]}
    return {"colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": bar}


def word_colours(colours: dict[str, str]) -> dict[str, Any]:
    """A colour axis for words: 0 is the first word, 1 the second, and so on.

    colours : the colour of each word
    """
    n = len(colours)
    steps = [[(i + side) / n, colour] for i, colour in enumerate(colours.values()) for side in (0, 1)]
    bar = {**COLOUR_BAR, "tickvals": list(range(n)), "ticktext": [wrapped(html.escape(word), 18) for word in colours]}
    return {"colorscale": steps, "cmin": -0.5, "cmax": n - 0.5, "colorbar": bar}


def cells(z: Any) -> list[list[float | None]]:
    """Rows of a heat map: five digits, and None for NaN."""
    return [[None if math.isnan(value) else round(value, 5) for value in row] for row in np.asarray(z).tolist()]


# What follows changes a figure for a page that has its own headings, time slider and colours.

BACKGROUND = "#1B1F24"
"""Background of a dark figure, and of the page around it."""
DARK = {
    "white": BACKGROUND,
    INK: "#E8EAED",
    GREY: "#A9B1B9",
    FAINT: "#3A4149",
    # The palette's blue is too dark on black; its sky blue differs as much from the other colours.
    BLUE: SKY,
    VERMILLION: "#F0803C",
    GREEN: "#2BB88D",
    PHASE_COLOURS["concentration"]: "#2F7CB0",
    PHASE_TINTS["concentration"]: "#19303F",
    PHASE_TINTS["plateau"]: "#153A2C",
    PHASE_TINTS["terminal"]: "#402B18",
    PLATEAU: "#6B6420",
    BAND: "rgba(86,180,233,0.25)",
    GRID: "#4A525A",
}
"""The dark counterparts of the colours. No two colours of one figure have the same counterpart."""


def untitled(figure: go.Figure) -> go.Figure:
    """The same figure without its title and the space for it."""
    bar = figure.layout.coloraxis.colorbar
    if bar.yanchor == "top":
        bar.y = 1
    figure.update_layout(title=None, margin_t=max(12, (figure.layout.margin.t or 0) - TITLE_HEIGHT + 12))
    return figure


def fitted(figure: go.Figure) -> go.Figure:
    """The same figure without title and height: it fills the box that the page gives it."""
    untitled(figure).update_layout(height=None, autosize=True)
    return figure


def cursor(figure: go.Figure, time: float) -> go.Figure:
    """The same figure with a vertical line at a time: the shape named "cursor", which the page moves."""
    line = {"color": INK, "width": 2}
    figure.add_shape(name="cursor", type="line", x0=time, x1=time, y0=0, y1=1, yref="paper", line=line)
    return figure


def later(figure: go.Figure) -> go.Figure:
    """The same figure with a pale cover over what comes after a time: the shape named "later", which the page moves."""
    hidden = {"x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 0}}
    figure.add_shape(name="later", type="rect", fillcolor="white", opacity=0.8, visible=False, **hidden)
    return figure


def dark(figure: go.Figure) -> go.Figure:
    """The same figure in light colours on a dark background."""
    _change(figure, lambda path, value: DARK.get(value, value) if isinstance(value, str) else value)
    figure.update_layout(hoverlabel={"bgcolor": "#2B3138", "bordercolor": "#4A525A", "font_color": "#E8EAED"})
    return figure


def enlarged(figure: go.Figure, factor: float) -> go.Figure:
    """The same figure with texts, lines, markers and margins `factor` times as large, for a projector."""
    _resize_shapes(figure, factor)
    return _change(figure, lambda path, value: np.multiply(value, factor) if _in_pixels(path) else value)


PIXELS = 96
"""CSS pixels of an inch: the unit of plotly's sizes."""
COLUMNS = {"single": 3.3, "double": 6.8}
"""Widths of a figure in a journal with two columns, in inches."""
WIDE = 5.0
"""From this width on, in inches, the entries of a legend below the figure stand side by side."""
PAPER_TEXT = 8 * PIXELS / 72
"""Size of all texts of a figure for a paper: 8 pt, in pixels."""
PAPER_SCALE = PAPER_TEXT / 14
"""Factor on margins and heights, which were made for texts of 14 pixels."""
PAPER_LINES = 0.5
"""Factor on lines and markers."""
PAPER_FONTS = {
    "sans": "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "serif": "'Times New Roman', Times, 'Liberation Serif', 'DejaVu Serif', serif",
}


def paper(figure: go.Figure, width: str | float = "single", font: str = "sans") -> go.Figure:
    """The same figure for a paper: as wide as a column, all texts of 8 pt, thin lines, no title and no background.

    A figure that moves shows its last frame. The title and `caption(figure)` belong into the text of the paper.

    width : "single" (3.3 inches), "double" (6.8 inches), or a number of inches
    font : "sans" or "serif"
    """
    inches = COLUMNS[choice(width, "width", COLUMNS)] if isinstance(width, str) else positive(width, "width")
    family = PAPER_FONTS[choice(font, "font", PAPER_FONTS)]
    still(figure)
    untitled(figure)
    _resize_shapes(figure, PAPER_SCALE)
    _change(figure, lambda path, value: _on_paper(path, value) if _in_pixels(path) else value)
    axis: dict[str, Any] = {"linecolor": INK, "linewidth": 0.6, "gridwidth": 0.4, "tickwidth": 0.6, "ticklen": 3}
    axis |= {"title_font_size": PAPER_TEXT, "tickfont_size": PAPER_TEXT, "title_standoff": 4}
    figure.update_xaxes(**axis).update_yaxes(**axis)
    # plotly enlarges powers of ten on logarithmic axes by this factor.
    powers = {"type": "log", "exponentformat": "power", "dtick": 1}
    figure.update_xaxes(tickfont_size=PAPER_TEXT / 1.25, selector=powers)
    figure.update_yaxes(tickfont_size=PAPER_TEXT / 1.25, selector=powers)
    figure.update_coloraxes(colorbar_title_font_size=PAPER_TEXT, colorbar_tickfont_size=PAPER_TEXT)
    figure.update_layout(
        width=inches * PIXELS,
        height=PAPER_SCALE * (figure.layout.height or 450),
        font={"family": family, "size": PAPER_TEXT, "color": INK},
        legend={"font": {"size": PAPER_TEXT}, "bgcolor": CLEAR},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
    )
    if figure.layout.legend.yref == "container" and inches >= WIDE:
        _flatten_legend(figure)
    return figure


def _flatten_legend(figure: go.Figure) -> None:
    """Put the entries of a legend below the figure side by side, and take back the height that they do not need."""
    shown = [trace.name or "" for trace in figure.data if trace.showlegend is not False]
    names = [re.sub("<.*?>", "", name.replace("<br>", " ")) for name in dict.fromkeys(shown)]
    if not names:
        return
    # A letter is about half as wide as it is high; 40 pixels are for the line before the name.
    entry = 0.52 * PAPER_TEXT * max(map(len, names)) + 40
    lines = math.ceil(len(names) / max(1, int((figure.layout.width - figure.layout.margin.l) / entry)))
    spare = (sum(name.count("<br>") + 1 for name in dict.fromkeys(shown)) - lines) * LEGEND_LINE * PAPER_SCALE
    figure.update_layout(
        legend={"orientation": "h", "entrywidth": entry - 40},
        height=figure.layout.height - spare,
        margin_b=figure.layout.margin.b - spare,
    )
    for trace in figure.data:
        if trace.name:
            trace.name = trace.name.replace("<br>", " ")


def still(figure: go.Figure) -> go.Figure:
    """The same figure at its last frame, with the time and without controls, if it moves."""
    if figure.frames:
        last = figure.frames[-1]
        for place, trace in zip(last.traces, last.data, strict=True):
            figure.data[place].update(trace.to_plotly_json())
        figure.frames = ()
    if figure.layout.sliders:
        place = {"x": 1, "xref": "paper", "xanchor": "right", "y": 0, "yref": "paper", "yanchor": "bottom"}
        figure.add_annotation(text=f"t = {figure.layout.sliders[0].steps[-1].label}", showarrow=False, **place)
        spare = (figure.layout.margin.b or 0) - 6
        figure.update_layout(margin_b=6, height=(figure.layout.height or spare) - spare)
        figure.layout.sliders = figure.layout.updatemenus = ()
    return figure


def _on_paper(path: tuple[str, ...], value: Any) -> Any:
    """A size in pixels, as it is on paper."""
    above, key = path[-2:] if len(path) > 1 else ("", *path)
    if key == "size" and above.endswith("font"):
        return PAPER_TEXT
    thin = key == "width" or above == "marker"
    return np.multiply(value, PAPER_LINES if thin else PAPER_SCALE)


def _in_pixels(path: tuple[str, ...]) -> bool:
    """Whether the entry of a figure at the end of this path is a size in pixels."""
    above, key = path[-2:] if len(path) > 1 else ("", *path)
    if key == "size":
        return above.endswith("font") or above == "marker"
    return (above, key) == ("line", "width") or above == "margin" or key in ("xshift", "yshift", "thickness")


def _resize_shapes(figure: go.Figure, factor: float) -> None:
    """Make the shapes whose height is in pixels `factor` times as high."""
    for shape in figure.layout.shapes:
        if shape.ysizemode == "pixel":
            shape.y0, shape.y1 = factor * shape.y0, factor * shape.y1


def _change(figure: go.Figure, change: Callable[[tuple[str, ...], Any], Any]) -> go.Figure:
    """Replace every entry of a figure's layout and traces by change(path, entry). Lists are no part of the path."""

    def changed(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {key: changed(value, (*path, key)) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [changed(value, path) for value in node]
        return change(path, node)

    for part in (figure.layout, *figure.data):
        part.update(changed(part.to_plotly_json(), ()), overwrite=True)
    return figure
