"""A run as one HTML file that needs no network: headline, key numbers, figures, assumptions, how it was made."""

from __future__ import annotations

from pathlib import Path

from metastable import figures
from metastable.figures.look import number
from metastable.report.page import figure_block, render_page, table_rows, target_of, write_page
from metastable.report.sentences import afterwards, assumptions, headline, key_numbers
from metastable.run import storage
from metastable.run.run import Run

LARGEST_MATRIX = 4
"""The entries of B and V are shown up to this dimension."""


def write(run: Run, path: str | Path) -> Path:
    """Write the report of a run to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(run))


def render(run: Run) -> str:
    """The report as HTML."""
    curves = figures.distance_curves(run)
    drawn = {
        "distance": figures.distance(run, curves),
        "sphere": figures.sphere(run),
        "spectrum": figures.spectrum(run.theory()),
        "observables": figures.observables(run),
    }
    small = run.head.dim <= LARGEST_MATRIX
    return render_page(
        "run.html.j2",
        headline=headline(run, curves),
        afterwards=afterwards(run, curves),
        assumptions=assumptions(run.theory().verdict),
        numbers=key_numbers(run, curves),
        figures={kind: figure_block(kind, figure) for kind, figure in drawn.items()},
        checks=run.theory().verdict.checks,
        making=_making(run),
        matrices={"B": run.head.B.tolist(), "V": run.head.V.tolist()} if small else {},
    )


def _making(run: Run) -> dict[str, list[tuple[str, str]]]:
    """The contents of run.json as tables: starting law, configuration and versions."""
    record = storage.description(run)
    configuration = dict(record["configuration"])
    times = configuration.pop("times", run.times.tolist())
    configuration["saved"] = f"{len(times)} times from 0 to {number(run.horizon)}"
    return {
        "Head and tokens": table_rows({"head": repr(run.head), "tokens": repr(run.cloud)}),
        "Starting law": table_rows(record["law"]),
        "Configuration": table_rows(configuration),
        "Versions": table_rows(record["versions"]),
    }
