"""`metastable audit`: read the heads of a trained encoder and measure them on text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.exits import EXIT_FINDING, one_line_errors
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Model, Scheduler, Tokenizer, Workers
from metastable.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.audit import Audit

MOST_SHOWN = 5
"""Unusual values, and rows that meet --fail-on, that are printed; the tables have all of them."""
IN_JSON = ("schema", "name", "family", "fingerprint", "shape", "made", "verdict")
"""The parts of an audit that --json prints; audit.json has all of them."""
PLACE = ("depth", "layer", "head")
"""The columns that name a row of a table."""


def _list_columns(wanted: bool) -> None:
    if not wanted:
        return
    with one_line_errors(debug=False):
        from metastable.encoder.columns import COLUMNS, TEXT

        for title, columns in (("from the weights", COLUMNS), ("on text", TEXT)):
            print(f"{title}:")
            print("\n".join(f"  {name:22} {meaning}; usual: {usual}" for name, (meaning, usual) in columns.items()))
    raise typer.Exit


def audit(
    model: Model,
    texts: Annotated[
        str | None, typer.Option(help="One text a line, or .jsonl with a field text; - is standard input.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, heads.csv, layers.csv, audit.json.")] = Path(
        "metastable-audit"
    ),
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 if a head (or layer) meets this: 'gap < 0.01 and not complex'.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The audit.json of another audit, for comparison.")] = None,
    loop: Annotated[int, typer.Option(help="Apply one whole layer this many times: do the tokens converge?")] = 0,
    layer: Annotated[int | None, typer.Option(help="The layer that --loop repeats, if layers are not shared.")] = None,
    special: Annotated[str, typer.Option(help="exclude or include special tokens when measuring texts.")] = "exclude",
    batch_size: BatchSize = 32,
    scheduler: Scheduler = None,
    workers: Workers = None,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    seed: Annotated[int, typer.Option(help="Seed of the twin with random weights.")] = 0,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Print what each column means and stop.", is_eager=True, callback=_list_columns),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read a trained encoder: what the theory predicts for each head, what the head does on text, where they differ.

    Without --texts only the weights are read. --fail-on compares columns of heads.csv, or of layers.csv, with numbers,
    words in quotes, true and false: < <= > >= == != and or not ( ).

    With --workers or --scheduler the same command after an interruption measures only the missing texts.
    """
    distributed = scheduler is not None or workers is not None
    with one_line_errors(debug, resumes=distributed):
        from metastable import files
        from metastable.encoder import audit as room
        from metastable.encoder.expression import parse
        from metastable.encoder.measure import Meter
        from metastable.progress import Texts

        files.folder_for(out, "audit.json")
        if fail_on is not None:
            parse(fail_on)  # report a syntax error before the model is loaded
        if texts is not None and texts != "-" and not Path(texts).is_file():
            raise BadInput(f"--texts {texts} is no file; give a file with one text a line, or - for standard input")
        spread = None
        if distributed:
            if texts is None:
                raise BadInput("--workers and --scheduler are for measuring on texts; give --texts FILE too")
            from metastable.scale import corpora

            spread = corpora.TallyOnWorkers(texts, out / "partial", scheduler, workers, allow_pickle)
        with Texts() as bar:
            found = room.audit(
                model, texts, reference=reference, loops=loop, layer=layer, special=special, batch_size=batch_size,
                allow_pickle=allow_pickle, tokenizer=tokenizer, seed=seed, fail_on=fail_on, progress=bar,
                tally=spread or Meter.tally,
            )  # fmt: skip
        places = None if fail_on is None else _places(found.findings(fail_on))
        written = {name: str(path) for name, path in found.save(out).items()}
        if spread is not None:
            spread.clear()
        if as_json:
            saved = found.to_dict()
            plain = {name: saved[name] for name in IN_JSON}
            print(files.to_json({**plain, "findings": places, "written": written}))
        else:
            print("\n".join([*_lines(found, places), f"report: {written['report']}"]))
        if places:
            raise typer.Exit(EXIT_FINDING)


def _lines(audit: Audit, places: list[dict[str, Any]] | None) -> list[str]:
    """The audit for a terminal."""
    verdict = audit.verdict
    warnings = [note for note in audit.notes if note.startswith("Warning")]
    lines = [repr(audit), *warnings, verdict.headline, *(f"  {sentence}" for sentence in verdict.sentences)]
    if len(verdict.unusual):
        lines.append(f"unusual for this model: {len(verdict.unusual)} values; the first are")
        lines += [f"  {sentence}" for sentence in verdict.unusual["sentence"].head(MOST_SHOWN)]
    if audit.loop is not None:
        lines.append(audit.loop.sentence())
    if places is not None:
        lines.append(f"--fail-on is met by {len(places)} rows")
        lines += ["  " + ", ".join(f"{key} {at}" for key, at in place.items()) for place in places[:MOST_SHOWN]]
    return lines


def _places(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Layer, head or depth of each row."""
    return [dict(row) for row in rows[[name for name in PLACE if name in rows]].to_dict("records")]
