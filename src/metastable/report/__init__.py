"""A run as one HTML file that needs no network: headline, key numbers, figures, verdicts, how it was made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from metastable import figures
from metastable.figures.distance import distance_curves
from metastable.figures.look import CONFIG, caption, number, untitled
from metastable.report.page import pages, target_of, write_page
from metastable.report.sentences import afterwards, assumptions, headline, key_numbers
from metastable.run import storage as store

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.run.run import Run

LONGEST = 120
"""A value of the configuration is cut after this many characters."""
LARGEST_MATRIX = 4


def write(run: Run, path: str | Path) -> Path:
    """Write the report of a run to `path`, whole or not at all; missing folders are made."""
    target = target_of(path)
    return write_page(target, render(run))


def render(run: Run) -> str:
    """The report as HTML."""
    measured = distance_curves(run)
    drawn = {
        "distance": figures.distance(run, measured),
        "sphere": figures.sphere(run),
        "spectrum": figures.spectrum(run.theory),
        "observables": figures.observables(run),
    }
    return (
        pages()
        .get_template("run.html.j2")
        .render(
            plotly=Markup(get_plotlyjs()),
            headline=headline(run, measured),
            afterwards=afterwards(run, measured),
            assumptions=assumptions(run.theory.verdict),
            numbers=key_numbers(run, measured),
            figures={kind: _block(kind, figure) for kind, figure in drawn.items()},
            checks=run.theory.verdict.checks,
            making=_making(run),
            matrices=_matrices(run),
        )
    )


def _block(kind: str, figure: go.Figure) -> dict[str, Any]:
    """Title, caption and HTML of a figure; the script tag of plotly.js is written once, by the page."""
    title = figure.layout.title.text
    html = untitled(figure).to_html(
        full_html=False,
        include_plotlyjs=False,
        auto_play=False,
        config=CONFIG,
        div_id=f"figure-{kind}",
        default_width="100%",
    )
    return {"title": title, "caption": caption(figure), "html": Markup(html)}


def _making(run: Run) -> dict[str, list[tuple[str, str]]]:
    """What run.json holds, for people: starting law, configuration and versions."""
    record = store.description(run)
    configuration = dict(record["configuration"])
    times = configuration.pop("times", run.times.tolist())
    configuration["saved"] = f"{len(times)} times from 0 to {number(run.horizon)}"
    head = {"head": repr(run.head), "tokens": repr(run.cloud)}
    tables = {"Head and tokens": head, "Starting law": record["law"], "Configuration": configuration}
    tables["Versions"] = record["versions"]
    return {name: [(str(key), _short(value)) for key, value in table.items()] for name, table in tables.items()}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else str(value)
    text = str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def _matrices(run: Run) -> dict[str, list[list[float]]]:
    if run.head.dim > LARGEST_MATRIX:
        return {}
    return {"B": run.head.B.tolist(), "V": run.head.V.tolist()}
