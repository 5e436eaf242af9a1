"""`metastable length`: what a trained encoder does as texts grow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metastable.cli.exits import EXIT_FINDING, one_line_errors
from metastable.cli.findings import met, places
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Model, Scheduler, Tokenizer, Workers
from metastable.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

IN_JSON = (
    *("schema", "name", "family", "fingerprint", "limit", "pooling", "asked", "start", "top", "last", "counts", "made"),
    *("advice", "sentences"),
)
"""The parts of a result that --json prints; length.json has all of them."""


def length(
    model: Model,
    texts: Annotated[
        str,
        typer.Option(
            help="One text a line, or .jsonl with a field text and, for retrieval, query; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.html, length.json and the CSV files.")] = Path(
        "metastable-length"
    ),
    start: Annotated[int, typer.Option("--from", help="The length in tokens that forecasts are made from.")] = 128,
    up_to: Annotated[int | None, typer.Option(help="The last length; at most the limit of the encoder.")] = None,
    pooling: Annotated[str | None, typer.Option(help="mean, cls or max; by default that of the model's files.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The length.json of another encoder, for comparison.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 if a row of a table meets this: 'loses_focus_at <= 256'.")
    ] = None,
    batch_size: BatchSize = 32,
    scheduler: Scheduler = None,
    workers: Workers = None,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure a trained encoder on longer and longer texts: attention, similarity and retrieval, and why they change.

    Forecasts are written to forecasts.csv before texts longer than --from are measured. Lengths are 32, 64, 128, …
    tokens. Without queries, passages of the texts are looked up. --fail-on asks about the first table that has all of
    its columns.
    """
    with one_line_errors(debug, resumes=False):
        from contextlib import ExitStack

        from metastable import files
        from metastable.encoder.expression import parse
        from metastable.encoder.length import study
        from metastable.encoder.length.rung import Work, run_here
        from metastable.progress import Texts

        files.folder_for(out, "length.json")
        if texts != "-" and not Path(texts).is_file():
            raise BadInput(f"--texts {texts} is no file; give a file with one text a line, or - for standard input")

        def write_forecasts(table: pd.DataFrame) -> None:
            with files.writing(out):
                out.mkdir(parents=True, exist_ok=True)
            files.write_text(out / "forecasts.csv", table.to_csv(index=False))

        with ExitStack() as stack:
            work: Work = run_here
            if scheduler is not None or workers is not None:
                from metastable.scale.corpora import JobsOnWorkers

                work = stack.enter_context(JobsOnWorkers(scheduler, workers, allow_pickle))
            bar = stack.enter_context(Texts(what="tokens"))
            found = study.length(
                model, texts, start=start, up_to=up_to, pooling=pooling, reference=reference, batch_size=batch_size,
                allow_pickle=allow_pickle, tokenizer=tokenizer, fail_on=fail_on, progress=bar,
                forecasted=write_forecasts, work=work,
            )  # fmt: skip
        rows = None if fail_on is None else places(found.findings(fail_on), parse(fail_on).columns)
        written = {name: str(path) for name, path in found.save(out).items()}
        if found.start != start:
            why = f"a forecast is scored two doublings later, and the last length is {found.last}"
            print(f"metastable: forecasts are made from {found.start} tokens, not {start}: {why}", file=sys.stderr)
        if as_json:
            saved = found.to_dict()
            plain = {name: saved[name] for name in IN_JSON}
            print(files.to_json({**plain, "findings": rows, "written": written}))
        else:
            print("\n".join([repr(found), *found.sentences(), *met(rows), f"report: {written['report']}"]))
        if rows:
            raise typer.Exit(EXIT_FINDING)
