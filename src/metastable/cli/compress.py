"""`metastable compress`: a smaller and faster encoder with a measured loss."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import EXIT_FINDING, one_line_errors
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Model, Tokenizer
from metastable.errors import BadInput

SHARE = "a share such as 25% or 0.25"


def compress(
    model: Model,
    texts: Annotated[str, typer.Option(help="One text a line, or .jsonl with a field text; - is standard input.")],
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, compress.json, options.csv and the folder model.")
    ] = Path("metastable-compress"),
    target: Annotated[
        str | None,
        typer.Option(
            help="Choose an option: the fastest that meets 'cosine >= 0.97', or the most faithful that meets 'speed >= "
            "1.5'. Columns: cosine, cosine_p10, nn_overlap, spearman, speed, megabytes; with --pairs also task and "
            "task_difference, as in 'task_difference >= -0.01'; and, or. Not together with amounts (--layers to "
            "--int8)."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Pairs of texts with a score of their similarity: .jsonl with the fields sentence1, sentence2 and "
            "score, at least 200. Layers are then chosen by Spearman's correlation with these scores."
        ),
    ] = None,
    layers: Annotated[int, typer.Option(help="Remove this many layers.")] = 0,
    heads: Annotated[str, typer.Option(help=f"Remove heads: {SHARE}.")] = "0",
    neurons: Annotated[str, typer.Option(help=f"Remove neurons of each layer: {SHARE}.")] = "0",
    merge: Annotated[str, typer.Option(help=f"Merge tokens after half of the layers: {SHARE}.")] = "0",
    int8: Annotated[bool, typer.Option("--int8", help="Quantise the linear maps of the layers.")] = False,
    length: Annotated[int, typer.Option(help="Cut texts to this many tokens.")] = 128,
    pooling: Annotated[str | None, typer.Option(help="mean, cls or max; by default that of the model's files.")] = None,
    seed: Annotated[int, typer.Option(help="Deals the texts into parts, and the pairs into halves.")] = 0,
    batch_size: BatchSize = 32,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find out which parts of a trained encoder can go, at what loss, and write the smaller encoder.

    Without amounts, all options are measured: layers, heads, neurons, merged tokens, int8 and combinations. --target
    then chooses one. With amounts only this option is measured. The chosen encoder is written to OUT/model. A study
    takes some minutes, and one that was stopped goes on where it was.

    Exit code 1: no option meets the target, or the chosen one does not meet it on the test texts.
    """
    with one_line_errors(debug):
        from metastable import files
        from metastable.encoder.compress import study
        from metastable.progress import Texts

        # torch announces the end of its quantised tensors at their first use. The pinned version has them.
        warnings.filterwarnings("ignore", message=".*quantize_per_channel", category=UserWarning)
        files.folder_for(out, "compress.json")
        if texts != "-" and not Path(texts).is_file():
            raise BadInput(f"--texts {texts} is no file; give a file with one text a line, or - for standard input")
        shares = {
            name: _share(name, value) for name, value in (("heads", heads), ("neurons", neurons), ("merge", merge))
        }
        with Texts(what="options") as bar:
            found = study.compress(
                model, texts, layers=layers, int8=int8, target=target, pairs=pairs, length=length, pooling=pooling,
                seed=seed, batch_size=batch_size, allow_pickle=allow_pickle, tokenizer=tokenizer, resume=out, **shares,
                progress=bar,
            )  # fmt: skip
        written = {name: str(path) for name, path in found.save(out).items()}
        if as_json:
            print(files.to_json({**found.to_dict(), "written": written}))
        else:
            lines = [repr(found), *found.sentences(), *(f"{name}: {path}" for name, path in written.items())]
            print("\n".join(lines))
        if target is not None and not found.met:
            raise typer.Exit(EXIT_FINDING)


def _share(name: str, value: str) -> float:
    """25% or 0.25 as 0.25."""
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise BadInput(f"--{name} {value} is no number; give {SHARE}") from None
