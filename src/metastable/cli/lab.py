"""The command line of the page: `lab`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Annotated

import typer

from metastable.cli.endings import one_line_errors
from metastable.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command(epilog="Example:  metastable lab --port 8051 --no-browser")(lab)


def lab(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free one.")] = 8050,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than this machine's own can then use it.")
    ] = ("127.0.0.1"),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Open a page on this machine: change a head and see the tokens flow; look into the heads of a trained encoder."""
    with one_line_errors(debug, resumes=False):
        if find_spec("dash") is None:
            raise BadInput("the lab needs dash; install it with: pip install 'metastable[lab]'")
        from metastable.lab.app import serve

        serve(host, port, browser)
    # Threads may still be computing in C; Python would stumble over them on its way out.
    os._exit(0)
