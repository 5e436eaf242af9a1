"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="A folder, a hub id, or an installed package with a folder `model`.")]
Watched = Annotated[
    str, typer.Argument(help="A folder, a hub id, an installed package with a folder `model`, or an ONNX file.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Folder of the tokenizer, if it is not beside the weights of the model.")
]
BatchSize = Annotated[int, typer.Option(help="Number of texts in a batch.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin if the model has no safetensors file.")
]
Scheduler = Annotated[str | None, typer.Option(help="Compute on the workers of this Dask scheduler, tcp://HOST:PORT.")]
Workers = Annotated[int | None, typer.Option(help="Compute on this many worker processes of this machine.")]
Alpha = Annotated[
    float,
    typer.Option(
        help="The probability that a clean stream ever raises an alarm is at most alpha. A text is strange if its "
        "p-value is at most alpha."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
