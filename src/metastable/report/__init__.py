"""A run as one HTML file that needs no network: headline, key numbers, figures, assumptions, how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metastable import figures
from metastable.figures.look import number
from metastable.report.page import figure_block, render_page, table_rows, target_of, write_page
from metastable.report.sentences import KeyNumber, afterwards, assumptions, headline, key_numbers
from metastable.run import storage
from metastable.run.run import Run
from metastable.theory.block import BlockTheory

MOST_COORDINATES = 6
"""The coordinates of a fixed point that are shown."""
LARGEST_MATRIX = 4
"""The entries of B and V are shown up to this dimension."""


def write(run: Run, path: str | Path) -> Path:
    """Write the report of a run to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(run))


def render(run: Run) -> str:
    """The report as HTML."""
    curves, theory = figures.distance_curves(run), run.theory()
    drawn = {"distance": figures.distance(run, curves)}
    drawn |= {kind: run.figure(kind) for kind in _kinds(run) if kind not in run.without_figures}
    small = run.block.dim <= LARGEST_MATRIX
    return render_page(
        "run.html.j2",
        member="" if run.block.plain else run.block.name,
        headline=headline(run, curves),
        afterwards=afterwards(run, curves),
        assumptions=assumptions(run.theory().verdict),
        numbers=key_numbers(run, curves),
        figures={kind: figure_block(kind, figure) for kind, figure in drawn.items()},
        checks=run.theory().verdict.checks,
        known=theory.known if isinstance(theory, BlockTheory) else (),
        making=_making(run),
        fixed_points=_fixed_points(run),
        matrices=_matrices(run) if small else {},
    )


def render_two(runs: Sequence[Run], names: Sequence[str]) -> str:
    """One report of two runs of one head, as HTML. `names` distinguish them, such as "β = 10" and "β = 1000"."""
    curves = [figures.distance_curves(run) for run in runs]
    drawn = {"distance": figures.distances(runs, curves, names)}
    drawn |= {f"sphere-{i}": run.figure("sphere") for i, run in enumerate(runs)}
    said = [(name, headline(run, c), afterwards(run, c)) for run, c, name in zip(runs, curves, names, strict=True)]
    numbers = [{one.name: one for one in key_numbers(run, c)} for run, c in zip(runs, curves, strict=True)]
    rows = [_row(name, numbers, names) for name in dict.fromkeys(name for of in numbers for name in of)]
    return render_page(
        "two.html.j2",
        names=names,
        said=said,
        assumptions=assumptions(runs[0].theory().verdict),
        numbers=rows,
        figures={kind: figure_block(kind, figure) for kind, figure in drawn.items()},
        checks=runs[0].theory().verdict.checks,
        making=[_making(run) for run in runs],
    )


def _row(name: str, numbers: Sequence[dict[str, KeyNumber]], names: Sequence[str]) -> tuple[str, list[str], str]:
    """(name, values, meaning) of a number of several runs. Meanings that differ are told run by run."""
    values = [of[name].value if name in of else "–" for of in numbers]
    meanings = {run: of[name].meaning for run, of in zip(names, numbers, strict=True) if name in of}
    if len(set(meanings.values())) == 1:
        return name, values, next(iter(meanings.values()))
    return name, values, "; ".join(f"{run}: {text}" for run, text in meanings.items())


def _kinds(run: Run) -> tuple[str, ...]:
    """The figures after the distance. Angles tell more about a member without theory than a sphere at one time."""
    return ("sphere", "spectrum", "observables") if run.block.plain else ("angles", "sphere", "spectrum", "observables")


def _matrices(run: Run) -> dict[str, list[list[float]]]:
    """B and V of each head."""
    several = len(run.block.heads) > 1
    marks = [f"{i}" if several else "" for i in range(len(run.block.heads))]
    pairs = zip(marks, run.block.heads, strict=True)
    return {f"{name}{mark}": getattr(head, name).tolist() for mark, head in pairs for name in ("B", "V")}


def _fixed_points(run: Run) -> list[dict[str, str]]:
    """The fixed points of the zero-temperature field of several heads, the stable ones first; none for one head."""
    theory = run.theory()
    if not isinstance(theory, BlockTheory) or theory.no_limit or theory.one_head is not None:
        return []
    found, shares = theory.fixed_points, iter(theory.basins.share)
    return [
        {
            "kind": kind,
            "share of the sphere": f"{100 * next(shares):.1f} %" if kind == "stable" else "–",
            "largest real part": number(float(spectrum.real.max())),
            "point": ", ".join(number(float(c)) for c in point[:MOST_COORDINATES])
            + ("…" if len(point) > MOST_COORDINATES else ""),
        }
        for kind, spectrum, point in zip(found.kinds, found.eigenvalues, found.points, strict=True)
    ]


def _making(run: Run) -> dict[str, list[tuple[str, str]]]:
    """The contents of run.json as tables: starting law, configuration and versions."""
    record = storage.description(run)
    configuration = dict(record["configuration"])
    times = configuration.pop("times", run.times.tolist())
    configuration["saved"] = f"{len(times)} times from 0 to {number(run.horizon)}"
    return {
        "Head and tokens": table_rows({**_model(run), "tokens": repr(run.cloud)}),
        "Starting law": table_rows(record["law"]),
        "Configuration": table_rows(configuration),
        "Versions": table_rows(record["versions"]),
    }


def _model(run: Run) -> dict[str, str]:
    if run.block.plain:
        return {"head": repr(run.block.head)}
    perceptron = {} if run.block.perceptron is None else {"perceptron": repr(run.block.perceptron)}
    return {"block": repr(run.block), **perceptron}
