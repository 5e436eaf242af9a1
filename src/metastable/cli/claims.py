"""`metastable claims`: check the paper's claims and write one report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metastable.cli.exits import EXIT_FINDING, one_line_errors
from metastable.cli.options import AsJson, Debug
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.head import Head


def claims(
    names: Annotated[list[str] | None, typer.Argument(help="Names of claims; all claims by default.")] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Larger experiments: hours instead of minutes, same criteria.")
    ] = False,
    head: Annotated[
        Path | None,
        typer.Option(help="A TOML file with a \\[head] table, or a .npz file: check the claims about that head."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, claims.json and tables.")] = Path(
        "metastable-claims"
    ),
    jobs: Annotated[int | None, typer.Option(help="Number of claims checked in parallel; default: cores.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat claims that the folder has results for.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the claims and stop.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check the paper's claims, each by an experiment that can fail, and write one report.

    Every finished claim is saved at once: after an interruption the same command computes only the missing claims.
    The exit code is 1 if a claim fails or its experiment stops with an error. An INCONCLUSIVE claim is no failure.
    """
    with one_line_errors(debug):
        from metastable import claims as room

        if listing:
            print("\n".join(f"{name:16} {room.find(name).title}" for name in room.NAMES))
            return

        from metastable import files
        from metastable.attention.threads import threads
        from metastable.claims import report, running
        from metastable.progress import Shares

        chosen = tuple(dict.fromkeys(names or ())) or room.NAMES
        for name in chosen:
            room.find(name)
        files.folder_for(out, "findings")
        about = None if head is None else _read_head(head)
        with Shares(chosen, None) as bar:
            found = running.run(chosen, full, about, out, threads() if jobs is None else jobs, bar, again)
        found = replace(found, origin=None if head is None else str(head))
        page = report.write(found, out / "report.html")
        if as_json:
            print(files.to_json({**found.to_json(), "report": str(page)}))
        else:
            for name, finding in found.found.items():
                print(f"{finding.outcome:12} {name:16} {finding.headline}")
            print(f"report: {page}")
        if found.failed:
            raise typer.Exit(EXIT_FINDING)


def _read_head(path: Path) -> Head:
    """The head in a TOML file or in a .npz file."""
    from metastable import problem

    if path.suffix == ".npz":
        return problem.build_head({"file": str(path)})
    tables = problem.read_toml(path)
    if "head" not in tables:
        raise BadInput(f"{path} has no [head] table; add one with interaction and value")
    return problem.build_head(tables["head"])
