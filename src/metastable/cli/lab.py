"""`metastable lab`: open the interactive page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import one_line_errors
from metastable.cli.options import Debug
from metastable.errors import BadInput, extra


def lab(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 picks a free port.")] = 8050,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Other machines can use the page at any other address.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    watch: Annotated[
        Path | None,
        typer.Option(
            help="Show a stream while `metastable watch --out DIR` examines it: DIR, or a .jsonl file of records. "
            "It may begin later."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Open a page on this machine: change a head and see the tokens flow; look into the heads of a trained encoder.

    With --watch: the live view of a watched stream.
    """
    with one_line_errors(debug, resumes=False):
        if find_spec("dash") is None:
            raise BadInput(f"the lab needs dash; {extra('lab')}")
        if watch is not None and watch.exists() and not watch.is_dir() and watch.suffix != ".jsonl":
            raise BadInput(f"--watch {watch} is neither a folder nor a .jsonl file; give the --out folder of `watch`")
        from metastable.lab.app import serve

        serve(host, port, browser, watch)
    # Threads may still be computing in C code, which can crash the interpreter's normal exit.
    os._exit(0)
