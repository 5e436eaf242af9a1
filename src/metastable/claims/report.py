"""The claims as one HTML file: a first screen with every verdict, then a section a claim."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from metastable import figures
from metastable.claims import FAIL, INCONCLUSIVE, PASS, find, running
from metastable.figures.look import CONFIG, number, untitled
from metastable.report.page import pages, target_of, write_page
from metastable.run import storage as store

if TYPE_CHECKING:
    from metastable.claims.finding import Check, Finding, Table
    from metastable.claims.running import Findings

SHOWN = 14
"""Longer tables are cut here; the CSV file has all rows."""
CLASSES = {PASS: "holds", INCONCLUSIVE: "doubtful", FAIL: "fails"}
MARKS = {PASS: "✓", INCONCLUSIVE: "?", FAIL: "✗"}


def write(found: Findings, path: str | Path) -> Path:
    """Write the report of a set of findings to `path`, whole or not at all."""
    target = target_of(path)
    return write_page(target, render(found))


def render(found: Findings) -> str:
    """The report as HTML."""
    sections = [_section(name, finding, found) for name, finding in found.found.items()]
    return (
        pages()
        .get_template("claims.html.j2")
        .render(
            plotly=Markup(get_plotlyjs()),
            headline=headline(found),
            paper=[s for s in sections if not s["peer"]],
            peers=[s for s in sections if s["peer"]],
            about=_about(found),
            versions=store.versions(),
        )
    )


def headline(found: Findings) -> str:
    """How many claims passed, in one sentence."""
    outcomes = [finding.outcome for finding in found.found.values()]
    parts = [f"{outcomes.count(PASS)} of {len(outcomes)} claims pass"]
    parts += [f"{outcomes.count(o)} {w}" for o, w in ((FAIL, "fail"), (INCONCLUSIVE, "undecided")) if o in outcomes]
    return ", ".join(parts)


def _section(name: str, finding: Finding, found: Findings) -> dict[str, Any]:
    claim, outcome = find(name), finding.outcome
    return {
        "name": name,
        "title": claim.title,
        "statement": claim.statement,
        "peer": claim.peer,
        "outcome": outcome,
        "status": CLASSES[outcome],
        "mark": MARKS[outcome],
        "sentence": _capital(finding.headline),
        "explanation": finding.explanation or _unmet(finding),
        "horizon": finding.horizon,
        "seconds": finding.seconds,
        "checks": [_check(check) for check in sorted(finding.checks, key=lambda check: check.outcome == PASS)],
        "figures": [_figure(f"{name}-{i}", drawn) for i, drawn in enumerate(finding.pictures)],
        "tables": [_table(name, table) for table in finding.tables],
        "command": _command(name, found),
    }


def _command(name: str, found: Findings) -> str:
    head = "" if found.head is None else f" --head {found.origin or 'FILE'}"
    return f"metastable claims {name}" + (" --full" if found.size == "full" else "") + head


def _unmet(finding: Finding) -> str:
    """Which checks were not met, for a claim that says no more about it."""
    unmet = [f"{c.name} is {number(c.measured)}, wanted {wanted(c)}" for c in finding.checks if c.outcome == FAIL]
    return f"Not met: {'; '.join(unmet)}." if unmet else ""


def _capital(sentence: str) -> str:
    """A capital at the start of a word, none at that of a formula such as a = 0.3."""
    return sentence[:1].upper() + sentence[1:] if sentence[1:2].isalpha() else sentence


def _check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "measured": _figure_of(check.measured),
        "wanted": wanted(check),
        "outcome": check.outcome,
        "status": CLASSES[check.outcome],
        "mark": MARKS[check.outcome],
        "note": check.note,
    }


def wanted(check: Check) -> str:
    """The allowed range, in words."""
    low, high = _figure_of(check.low), _figure_of(check.high)
    if math.isinf(check.low):
        return "–" if math.isinf(check.high) else f"at most {high}"
    return f"at least {low}" if math.isinf(check.high) else f"{low} to {high}"


def _figure_of(x: float | None) -> str:
    """Three digits, or five where three would round a limit such as 0.9999 away."""
    short = number(x)
    if x is None or not 1e-3 <= abs(x) < 1e5 or float(f"{x:.3g}") == x:
        return short
    return f"{x:.5g}".replace("-", "−")


def _figure(place: str, drawn: Any) -> dict[str, Any]:
    html = untitled(figures.picture(drawn)).to_html(
        full_html=False, include_plotlyjs=False, config=CONFIG, div_id=f"figure-{place}", default_width="100%"
    )
    return {"title": drawn.title, "caption": drawn.caption, "html": Markup(html)}


def _table(name: str, table: Table) -> dict[str, Any]:
    rows = [[_cell(value) for value in row] for row in table.rows[:SHOWN]]
    file = str(running.table_file(name, table.name))
    return {
        "name": table.name,
        "columns": table.columns,
        "rows": rows,
        "left": len(table.rows) - len(rows),
        "file": file,
    }


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e7):
        return f"{int(value):,}".replace(",", " ").replace("-", "−")
    return number(value) if isinstance(value, float) else str(value)


def _about(found: Findings) -> list[tuple[str, str]]:
    head = "those of each claim" if found.head is None else repr(found.head)
    total = sum(finding.seconds for finding in found.found.values())
    rows = [("size", found.size), ("heads", head), ("work", f"{total:.0f} core seconds")]
    return [*rows, ("written", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))]
