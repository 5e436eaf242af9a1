"""`metastable audit`: read the heads of a trained encoder and measure them on text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metastable.cli.exits import EXIT_FINDING, one_line_errors
from metastable.cli.findings import met, places
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Model, Scheduler, Tokenizer, Workers
from metastable.errors import BadInput, choice

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.checks import AuditCheck

IN_JSON = ("schema", "name", "family", "fingerprint", "shape", "made", "checks", "verdict")
"""The parts of an audit that --json prints; audit.json has all of them."""
MARKS = {"ok": "ok  ", "look": "look", "act": "ACT "}
"""The status of a check for a terminal."""
POLICIES = {"default": ("act",), "strict": ("look", "act")}
"""The statuses of checks that fail a policy."""


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
    policy: Annotated[
        str | None, typer.Option(help="Exit with 1 if a check says act (default), or look or act (strict).")
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
        if policy is not None:
            choice(policy, "--policy", POLICIES)
            if texts is None:
                raise BadInput("--policy judges checks that need texts; give --texts FILE too")
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
        rows = None if fail_on is None else places(found.findings(fail_on), parse(fail_on).columns)
        written = {name: str(path) for name, path in found.save(out).items()}
        if spread is not None:
            spread.clear()
        if as_json:
            saved = found.to_dict()
            plain = {name: saved[name] for name in IN_JSON}
            print(files.to_json({**plain, "findings": rows, "written": written}))
        else:
            print("\n".join([*_lines(found), *met(rows), f"report: {written['report']}"]))
        failed = [] if policy is None else [check for check in found.checks() if check.status in POLICIES[policy]]
        if failed and not as_json:
            print(f"--policy {policy}: checks that fail: {', '.join(check.name for check in failed)}")
        if rows or failed:
            raise typer.Exit(EXIT_FINDING)


def _lines(audit: Audit) -> list[str]:
    """The headline, the checks and the theory in short, for a terminal; the report has the rest."""
    from metastable.encoder.checks import summary

    verdict = audit.verdict
    warnings = [note for note in audit.notes if note.startswith("Warning")]
    checks = audit.checks()
    lines = [repr(audit), *warnings, verdict.headline, summary(checks), *map(_line, checks)]
    broken = [] if audit.ladder is None else audit.ladder.sentences()[:1]
    lines += ["theory and encoder:", *(f"  {sentence}" for sentence in (*verdict.theory[:1], *broken))]
    if audit.ledger is not None and len(audit.ledger.entries):
        counts = audit.ledger.entries["verdict"].value_counts()
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(
            f"forecasts that were made before their outcome was measured, beside the best simple baseline: {told}"
        )
    return lines if audit.loop is None else [*lines, audit.loop.sentence()]


def _line(check: AuditCheck) -> str:
    """A check; what it means and what to do only if it is not ok."""
    words = "" if check.status == "ok" else f". {check.sentence}"
    return f"  {MARKS[check.status]} {check.name}: {check.shown} ({check.rule}){words}"
