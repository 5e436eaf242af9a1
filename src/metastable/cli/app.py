"""The command line: parse, call, print."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from metastable.cli import monitor as cli_monitor
from metastable.cli import scale as cli_scale
from metastable.cli.audit import audit
from metastable.cli.claims import claims
from metastable.cli.compare import compare
from metastable.cli.exits import one_line_errors
from metastable.cli.lab import lab

app = typer.Typer(
    name="metastable",
    help="Token dynamics of mean-field transformers at low temperature: simulate, predict, measure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from metastable import __version__

        print(__version__)
        raise typer.Exit


@app.command(epilog="Example:  metastable simulate --beta 100 --until 20 --law graded --n 2000 --out demo")
def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags override what it says.")] = None,
    beta: Annotated[float | None, typer.Option(help="Inverse temperature, 0 or more; inf is hardmax.")] = None,
    until: Annotated[float | None, typer.Option(help="The time at which to stop.")] = None,
    interaction: Annotated[str | None, typer.Option(help="Spectrum of B, as 1.5,1.0,0.6.")] = None,
    value: Annotated[str | None, typer.Option(help="Spectrum of V, as 1.2,0.9,0.5.")] = None,
    head: Annotated[
        str | None,
        typer.Option(help="A .npz file with query, key and value; or MODEL:layer:head of a trained encoder."),
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="With MODEL:layer:head: start from the tokens of these texts.")
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="uniform, graded, fibonacci (d = 3), equally_spaced (d = 2), von_mises_fisher or mixture; "
            "for a trained head tokens or uniform."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the starting law.")] = None,
    tol: Annotated[
        float | None, typer.Option(help="Error a step of the adaptive method: 1e-6, above 100 000 tokens 1e-4.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="auto, dopri5, rk4, heun or euler.")] = None,
    step: Annotated[float | None, typer.Option(help="Step of the fixed-step methods.")] = None,
    save: Annotated[int | None, typer.Option(help="How many times to save.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, dense, flash or tree.")] = None,
    merge: Annotated[
        float | None, typer.Option(help="Tokens closer than this become one; the error is followed and reported.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for run.zarr, run.json and report.html.")] = Path("metastable-run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Follow a cloud of tokens under one head and report the three phases.

    The run is kept as it goes: the same command after an interruption resumes where it stopped.
    """
    flags = {"beta": beta, "until": until, "tol": tol, "method": method, "step": step, "save": save}
    flags |= {"engine": engine, "merge": merge}
    head_flags = {"interaction": interaction, "value": value, "file": head}
    cloud_flags = {"law": law, "n": n, "seed": seed}
    with one_line_errors(debug):
        from metastable.cli import commands

        if head is not None and not head.endswith(".npz"):
            found = commands.follow(config, head, texts, flags, cloud_flags, out, overwrite)
        else:
            found = commands.simulate(config, flags, head_flags, cloud_flags, out, overwrite)
        _print(found, as_json)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
        return
    from metastable.cli.summary import lines

    if found["loaded"]:
        print(f"finished earlier, loaded from {found['run']}")
    print("\n".join(lines(found)))
    print(f"report: {found['report']}")


app.command(epilog="Example:  metastable claims laplace limit --full --out evidence")(claims)
app.command(epilog="Example:  metastable audit ./my-encoder --texts sentences.txt --fail-on 'gap < 0.01' --out audit")(
    audit
)
app.command(epilog="Example:  metastable compare ./before ./after --texts sentences.txt --out moved")(compare)
cli_monitor.register(app)
app.command(epilog="Example:  metastable lab --port 8051 --no-browser")(lab)
cli_scale.register(app)


def main() -> None:
    """The entry point of the command `metastable`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that is not UTF-8 shows ? in place of β, and the command does not fail.
            stream.reconfigure(errors="replace")
    app()
