"""The command line of `sweep`, and the options of other commands that go through workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import EXIT_FINDING, EXIT_INTERNAL, complain, one_line_errors
from metastable.errors import SchedulerLost

Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, tcp://HOST:PORT; else this machine's cores work.")
]
Workers = Annotated[int | None, typer.Option(help="Worker processes on this machine; one a core unless given.")]
Memory = Annotated[str | None, typer.Option(help="Memory limit of one worker on this machine, as 4GB.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example:  metastable sweep phase_diagram.toml --workers 4 --out diagram")(sweep)


def sweep(
    config: Annotated[
        Path, typer.Argument(help="A TOML file as for simulate, with a table \\[axes] and perhaps \\[outputs].")
    ],
    scheduler: Scheduler = None,
    workers: Workers = None,
    memory: Memory = None,
    out: Annotated[Path, typer.Option(help="Folder for sweep.zarr, report.html and the journal of points.")] = Path(
        "metastable-sweep"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another sweep in that folder.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute once more the points that failed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Simulate at every combination of the values in \\[axes]: a dataset (xarray, Zarr) and a page of phase diagrams.

    Axes are arguments of simulate, of the starting law and of the head: beta, until, n, law, seed, gap, angle, ...

    Every finished point is on the disk before it counts: the same command after an interruption, of whatever kind, goes
    on with what is missing or damaged and ends with the same bytes.

    Exit code: 1 if points failed, 70 if the scheduler was lost.
    """
    code = 0
    with one_line_errors(debug):
        from metastable.cli import commands_scale

        try:
            found = commands_scale.sweep(
                config, out, scheduler=scheduler, workers=workers, memory=memory, overwrite=overwrite,
                retry_failed=retry_failed,
            )  # fmt: skip
        except SchedulerLost as error:
            if debug:
                raise
            complain(str(error))
            code = EXIT_INTERNAL
        else:
            print(json.dumps(found, indent=1) if as_json else "\n".join(commands_scale.swept(found)))
            code = EXIT_FINDING if found["failed"] else 0
    raise typer.Exit(code)
