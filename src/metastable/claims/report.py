"""The claims as one HTML file: a first screen with every verdict, then one section per claim with its pictures."""

from __future__ import annotations

import math
import textwrap
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from metastable.claims import GROUPS, running
from metastable.claims.experiment import FAIL, INCONCLUSIVE, PASS, ClaimCheck, Finding, Picture, Series
from metastable.figures import look
from metastable.report.page import figure_block, render_page, target_of, write_page
from metastable.versions import versions

SHOWN = 14
"""Rows of a table in the report; the CSV file has all rows."""
CLASSES = {PASS: "holds", INCONCLUSIVE: "doubtful", FAIL: "fails"}
MARKS = {PASS: "✓", INCONCLUSIVE: "?", FAIL: "✗"}
COLOURS = (look.BLUE, look.VERMILLION, look.GREEN, look.PURPLE, look.ORANGE, look.SKY, look.BLACK, look.GREY)
STYLES: dict[str, dict[str, Any]] = {
    "line": {"mode": "lines", "line": {"width": 2.5}},
    "dashed": {"mode": "lines", "line": {"width": 2, "dash": "dash"}},
    "dotted": {"mode": "lines", "line": {"width": 2, "dash": "dot"}},
    "points": {"mode": "markers", "marker": {"size": 8}},
}
PANEL_HEIGHT, KEY_LINE, GAP = 330, 21, 86
"""Heights in pixels: of a panel, of a line of the legend, and between two panels."""


def write(found: running.Findings, path: str | Path) -> Path:
    """Write the report of a set of findings to `path`, completely or not at all."""
    return write_page(target_of(path), render(found))


def render(found: running.Findings) -> str:
    """The report as HTML."""
    sections = [_section(name, finding, found) for name, finding in found.found.items()]
    head = "those of each claim" if found.head is None else repr(found.head)
    total = sum(finding.seconds for finding in found.found.values())
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    about = {"size": found.size, "heads": head, "work": f"{total:.0f} core seconds", "written": written}
    return render_page(
        "claims.html.j2",
        headline=headline(found),
        groups={
            title: [section for section in sections if section["claim"].name in names]
            for title, names in GROUPS.items()
            if not found.found.keys().isdisjoint(names)
        },
        about=about,
        versions=versions(),
    )


def headline(found: running.Findings) -> str:
    """How many claims passed, in one sentence."""
    outcomes = [finding.outcome for finding in found.found.values()]
    parts = [f"{outcomes.count(PASS)} of {len(outcomes)} claims pass"]
    parts += [f"{outcomes.count(o)} {w}" for o, w in ((FAIL, "fail"), (INCONCLUSIVE, "undecided")) if o in outcomes]
    return ", ".join(parts)


def _section(name: str, finding: Finding, found: running.Findings) -> dict[str, Any]:
    head = "" if found.head is None else f" --head {found.origin or 'FILE'}"
    sentence = finding.headline
    return {
        "claim": running.find(name),
        "finding": finding,
        **_verdict(finding.outcome),
        # A capital at the start of a word, none at the start of a formula such as a = 0.3.
        "sentence": sentence[:1].upper() + sentence[1:] if sentence[1:2].isalpha() else sentence,
        "checks": [_check(check) for check in sorted(finding.checks, key=lambda check: check.outcome == PASS)],
        "figures": [figure_block(f"{name}-{i}", figure(drawn)) for i, drawn in enumerate(finding.pictures)],
        "tables": [_table(name, title, rows) for title, rows in finding.tables.items()],
        "command": f"metastable claims {name}" + (" --full" if found.size == "full" else "") + head,
    }


def _verdict(outcome: str) -> dict[str, str]:
    return {"outcome": outcome, "status": CLASSES[outcome], "mark": MARKS[outcome]}


def _check(check: ClaimCheck) -> dict[str, Any]:
    shown = {"name": check.name, "note": check.note, "measured": _digits(check.measured), "wanted": wanted(check)}
    return shown | _verdict(check.outcome)


def wanted(check: ClaimCheck) -> str:
    """The allowed range, in words."""
    low, high = _digits(check.low), _digits(check.high)
    if math.isinf(check.low):
        return "–" if math.isinf(check.high) else f"at most {high}"
    return f"at least {low}" if math.isinf(check.high) else f"{low} to {high}"


def _digits(x: float | None) -> str:
    """Three digits, or five where three would round a limit such as 0.9999 away."""
    if x is None or not 1e-3 <= abs(x) < 1e5 or float(f"{x:.3g}") == x:
        return look.number(x)
    return f"{x:.5g}".replace("-", "−")


def _table(claim: str, title: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    cells = [[_cell(value) for value in row.values()] for row in rows[:SHOWN]]
    file = str(running.table_file(claim, title))
    return {"name": title, "columns": list(rows[0]), "rows": cells, "left": len(rows) - len(cells), "file": file}


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e7):
        return f"{int(value):,}".replace(",", " ").replace("-", "−")
    return look.number(value) if isinstance(value, float) else str(value)


def figure(drawn: Picture, columns: int = 1) -> go.Figure:
    """Draw a picture. Panels are one below the other, so that they fit a phone; each name has one colour throughout.

    columns : panels side by side, for a page that is wider
    """
    rows = math.ceil(len(drawn.panels) / columns)
    places = [{"row": i // columns + 1, "col": i % columns + 1} for i in range(len(drawn.panels))]
    names = list(dict.fromkeys(s.name for s in drawn.series))
    key = 60 + KEY_LINE * sum(_label(name).count("<br>") + 1 for name in names)
    inside = rows * PANEL_HEIGHT + (rows - 1) * GAP
    titles = [look.raised(panel.title) for panel in drawn.panels]
    spacing = GAP / inside if rows > 1 else 0.0
    grid = {"rows": rows, "cols": columns, "vertical_spacing": spacing, "horizontal_spacing": 0.16}
    made = make_subplots(**grid, subplot_titles=titles if any(titles) else None)
    look.dress(made, drawn.title, look.TITLE_HEIGHT + inside + key, drawn.caption)
    shown: set[str] = set()
    for series in drawn.series:
        place = places[series.panel]
        _add(made, series, COLOURS[names.index(series.name) % len(COLOURS)], series.name not in shown, place)
        shown.add(series.name)
    for number, panel in enumerate(drawn.panels):
        here, place = [s for s in drawn.series if s.panel == number], places[number]
        across = [x for s in here for x in s.x]
        up = [y for s in here for y in (*s.y, *s.low, *s.high)]
        made.update_xaxes(title_text=look.raised(panel.x), nticks=6, **place, **_axis(panel.log_x, across))
        made.update_yaxes(title_text=look.raised(panel.y), **place, **_axis(panel.log_y, up))
    made.update_annotations({"font": {"size": 15}} | ({"x": 0, "xanchor": "left"} if columns == 1 else {}))
    made.update_layout(
        margin={"t": look.TITLE_HEIGHT + (18 if any(titles) else 4), "b": key},
        showlegend=True,
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 13}, "traceorder": "normal"},
    )
    return made


def _label(name: str) -> str:
    """A name for the legend, broken into lines that fit a phone."""
    return "<br>".join(look.raised(part) for part in textwrap.wrap(name, 38))


def _axis(logarithmic: bool, values: list[float]) -> dict[str, Any]:
    """Only powers of ten on an axis that spans several of them; 1, 2 and 5 on one that spans about one."""
    axis: dict[str, Any] = {"type": "log" if logarithmic else "linear", "exponentformat": "power"}
    positive = [v for v in values if v > 0]
    if logarithmic and positive and max(positive) > 8 * min(positive):
        wide = max(positive) > 100 * min(positive)
        axis |= {"dtick": 1 if wide else "D2", "minor": {"dtick": "D1", "ticks": "outside", "ticklen": 3}}
    return axis


def _add(made: go.Figure, series: Series, colour: str, legend: bool, place: dict[str, int]) -> None:
    common = {"name": _label(series.name), "legendgroup": series.name, **place}
    if series.style == "band":
        edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": series.x}
        made.add_scatter(y=series.low, showlegend=False, **edge, **common)
        tint = f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},0.18)"
        made.add_scatter(y=series.high, fill="tonexty", fillcolor=tint, showlegend=legend, **edge, **common)
        return
    style = STYLES[series.style]
    paint = {key: {**value, "color": colour} for key, value in style.items() if isinstance(value, dict)}
    hover = {"hovertemplate": "(%{x:.4g}, %{y:.4g})", "mode": style["mode"], "showlegend": legend}
    made.add_scatter(x=series.x, y=series.y, **hover, **paint, **common)
