"""The command line: parse, call, print."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from typing import Annotated

import typer

from metastable.cli.audit import audit
from metastable.cli.calibrate import calibrate
from metastable.cli.claims import claims
from metastable.cli.compare import compare
from metastable.cli.compress import compress
from metastable.cli.exit import exit_layer
from metastable.cli.exits import one_line_errors, open_closed
from metastable.cli.lab import lab
from metastable.cli.length import length
from metastable.cli.recalibrate import recalibrate
from metastable.cli.serve import serve
from metastable.cli.simulate import simulate
from metastable.cli.sweep import sweep
from metastable.cli.watch import watch

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


app.command(epilog="Example:  metastable simulate --beta 100 --until 20 --law graded --n 2000 --out my-run")(simulate)
app.command(epilog="Example:  metastable claims laplace limit --full --out evidence")(claims)
app.command(epilog="Example:  metastable audit ./my-encoder --texts sentences.txt --fail-on 'gap < 0.01' --out audit")(
    audit
)
app.command(epilog="Example:  metastable length ./my-encoder --texts pairs.jsonl --up-to 512 --out length")(length)
app.command(epilog="Example:  metastable compress ./my-encoder --texts sentences.txt --target 'cosine >= 0.97'")(
    compress
)
app.command("exit", epilog="Example:  metastable exit ./my-encoder --labelled sentiment.jsonl --loss 0.01 --out exit")(
    exit_layer
)
app.command(epilog="Example:  metastable compare ./before ./after --texts sentences.txt --out moved")(compare)
app.command(epilog="Example:  metastable calibrate ./my-encoder --texts clean.txt --out baseline")(calibrate)
app.command(epilog="Example:  metastable recalibrate ./my-encoder --baseline baseline --texts reviewed.txt")(
    recalibrate
)
app.command(epilog="Example:  tail -F texts.log | metastable watch ./my-encoder --baseline baseline --out watched")(
    watch
)
app.command(epilog="Example:  metastable serve ./my-encoder --baseline baseline --out served --resume")(serve)
app.command(epilog="Example:  metastable lab --port 8051 --no-browser")(lab)
app.command(epilog="Example:  metastable sweep phase_diagram.toml --workers 4 --out diagram")(sweep)


def main() -> None:
    """The entry point of the command `metastable`."""
    open_closed()
    if sys.argv[1:2] != ["lab"]:
        # Commands print their own messages; Dask would log the traceback of a lost scheduler. The lab's server logs.
        logging.disable(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that is not UTF-8 shows ? in place of β, and the command does not fail.
            stream.reconfigure(errors="replace")
    # This process is ours: warnings and loading bars of other packages do not belong in our output.
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        # Help and version are printed outside of the commands, which report their own errors.
        with one_line_errors(debug="--debug" in sys.argv):
            code = _exit_code()
    except typer.Exit as ended:
        code = ended.exit_code
    sys.exit(code)


def _exit_code() -> int | str | None:
    try:
        app()
    except SystemExit as ended:
        return ended.code
    return 0
