"""The command line of the monitor: `calibrate` and `watch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import one_line_errors
from metastable.cli.options import AllowPickle, BatchSize, Debug, Model, Scheduler, Workers


def register(app: typer.Typer) -> None:
    app.command(epilog="Example:  metastable calibrate ./my-encoder --texts clean.txt --out baseline")(calibrate)
    app.command(epilog="Example:  tail -F texts.log | metastable watch ./my-encoder --baseline baseline --out watched")(
        watch
    )


def calibrate(
    model: Model,
    texts: Annotated[
        str,
        typer.Option(
            help="Clean texts: one a line, or .jsonl with a field text and perhaps document; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the baseline.")] = Path("metastable-baseline"),
    seed: Annotated[int, typer.Option(help="Seed of the split into texts to fit on and texts to compare with.")] = 0,
    batch_size: BatchSize = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another baseline in that folder.")] = False,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was learned as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Learn what an encoder does on clean texts, as the baseline that `watch` compares with.

    The texts must be like those of the clean stream, and independent of each other. Where several come from one
    document, give its name in the field document of .jsonl: documents are then never cut apart.
    """
    with one_line_errors(debug, resumes=False):
        from metastable.cli import commands_monitor

        found = commands_monitor.calibrate(model, texts, out, seed, batch_size, overwrite, allow_pickle)
        if as_json:
            print(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
        else:
            print("\n".join(commands_monitor.calibrated(found)))


def watch(
    model: Model,
    baseline: Annotated[Path, typer.Option(help="The folder that `calibrate` wrote, of the same encoder.")],
    texts: Annotated[str, typer.Argument(help="One text a line, or .jsonl; - is standard input.")] = "-",
    setting: Annotated[str, typer.Option(help="full, or light: cheaper, and made for live models.")] = "full",
    alpha: Annotated[
        float, typer.Option(help="A text is strange at p ≤ this; a clean stream ever raises the alarm with at most it.")
    ] = 0.01,
    out: Annotated[Path | None, typer.Option(help="Folder for records.jsonl and summary.json.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Lines are JSON objects with a field text.")] = False,
    batch_size: BatchSize = 32,
    prometheus: Annotated[
        str | None,
        typer.Option(help="Serve metrics for Prometheus: PORT to this machine only, HOST:PORT where HOST is reached."),
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Records quote no words of the texts. Ids stay, and a short hash by which a guess is confirmed.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on after the last record in --out. Lines of a file that have a record are passed over, and must "
            "be the same. Of a pipe nothing is: all that comes is new, and line numbers go on.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin again in --out.")] = False,
    scheduler: Scheduler = None,
    workers: Workers = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Records as JSON on a terminal too, and the summary as the last line.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Say of each text, and of the stream, how surprising it is: a record a line, as JSON in a pipe.

    A line that cannot be used gets a record with the reason, and the stream goes on. After the stream, or Ctrl-C, a
    summary follows on standard error.

    The alarm assumes texts independent of each other and a calibration set drawn like the clean stream.

    Exit code: 1 if the alarm was raised; else 2 if lines were rejected, or there were none; else 0.
    But 130 after Ctrl-C, 143 after SIGTERM, 141 if the reader of standard output went away, with or without an alarm:
    the summary tells (after 141 none is printed), and summary.json in --out.
    """
    with one_line_errors(debug, resumes=False):
        from metastable.cli import commands_monitor

        code = commands_monitor.watch(
            model, baseline, texts, setting=setting, alpha=alpha, out=out, jsonl=jsonl, batch_size=batch_size,
            prometheus=prometheus, private=private, resume=resume, overwrite=overwrite, allow_pickle=allow_pickle,
            as_json=as_json, scheduler=scheduler, workers=workers,
        )  # fmt: skip
    raise typer.Exit(code)
