"""`metastable exit`: the earliest layer of an encoder that is enough for a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import one_line_errors
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Model, Tokenizer
from metastable.errors import BadInput


def exit_layer(
    model: Model,
    labelled: Annotated[
        Path,
        typer.Option(help="A .jsonl file with the fields text and label, and document if texts belong to documents."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the truncated model, report.html, exit.json, layers.csv and probe.json.")
    ] = Path("metastable-exit"),
    loss: Annotated[float, typer.Option(help="How far below the best layer the score may be.")] = 0.02,
    pooling: Annotated[str | None, typer.Option(help="mean, cls or max; by default that of the model's files.")] = None,
    batch_size: BatchSize = 32,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    seed: Annotated[int, typer.Option(help="Seed of the folds and resamples.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the earliest layer whose embeddings predict labels about as well as full depth, and write the shorter model.

    Labels that are strings or whole numbers are classes, and the score is accuracy. If a label has a fraction part,
    labels are numbers, and the score is Spearman's correlation. A linear probe at each depth is judged by nested cross
    validation, with an interval for the difference to full depth. At least 40 different texts, or documents, are
    needed, and at least 5 for each class.
    """
    with one_line_errors(debug, resumes=False):
        from metastable import files
        from metastable.encoder.exit import study
        from metastable.progress import Texts

        files.folder_for(out, "exit.json")
        if not labelled.is_file():
            raise BadInput(f"--labelled {labelled} is no file; give a .jsonl file with the fields text and label")
        with Texts(what="texts and probes") as bar:
            found = study.exit_layer(
                model, labelled, loss=loss, pooling=pooling, batch_size=batch_size, allow_pickle=allow_pickle,
                tokenizer=tokenizer, seed=seed, progress=bar,
            )  # fmt: skip
        written = {name: str(path) for name, path in found.save(out).items()}
        if as_json:
            print(files.to_json({**found.to_dict(), "written": written}))
        else:
            places = [f"{name}: {written[name]}" for name in ("model", "report") if name in written]
            print("\n".join([repr(found), *found.sentences(), *places]))
