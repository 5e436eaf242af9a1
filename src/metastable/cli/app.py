"""The command line: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from metastable.cli import lab as cli_lab
from metastable.cli import monitor as cli_monitor
from metastable.cli import scale as cli_scale
from metastable.cli.endings import EXIT_FINDING, one_line_errors

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


@app.command(epilog="Example:  metastable simulate --beta 100 --until 20 --law graded --n 2000 --out demo")
def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags override what it says.")] = None,
    beta: Annotated[float | None, typer.Option(help="Inverse temperature, 0 or more; inf is hardmax.")] = None,
    until: Annotated[float | None, typer.Option(help="The time at which to stop.")] = None,
    interaction: Annotated[str | None, typer.Option(help="Spectrum of B, as 1.5,1.0,0.6.")] = None,
    value: Annotated[str | None, typer.Option(help="Spectrum of V, as 1.2,0.9,0.5.")] = None,
    head: Annotated[
        str | None,
        typer.Option(help="A .npz file with query, key and value; or MODEL:layer:head of a trained encoder."),
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="With MODEL:layer:head: start from the tokens of these texts.")
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="uniform, graded, fibonacci (d = 3), equally_spaced (d = 2), von_mises_fisher or mixture; "
            "for a trained head tokens or uniform."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the starting law.")] = None,
    tol: Annotated[
        float | None, typer.Option(help="Error a step of the adaptive method: 1e-6, above 100 000 tokens 1e-4.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="auto, dopri5, rk4, heun or euler.")] = None,
    step: Annotated[float | None, typer.Option(help="Step of the fixed-step methods.")] = None,
    save: Annotated[int | None, typer.Option(help="How many times to save.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, dense, flash or tree.")] = None,
    merge: Annotated[
        float | None, typer.Option(help="Tokens closer than this become one; the error is followed and reported.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for run.zarr, run.json and report.html.")] = Path("metastable-run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Follow a cloud of tokens under one head and report the three phases.

    The run is kept as it goes: the same command after an interruption resumes where it stopped.
    """
    flags = {"beta": beta, "until": until, "tol": tol, "method": method, "step": step, "save": save}
    flags |= {"engine": engine, "merge": merge}
    head_flags = {"interaction": interaction, "value": value, "file": head}
    cloud_flags = {"law": law, "n": n, "seed": seed}
    with one_line_errors(debug):
        from metastable.cli import commands

        if head is not None and not head.endswith(".npz"):
            found = commands.follow(config, head, texts, flags, cloud_flags, out, overwrite)
        else:
            found = commands.simulate(config, flags, head_flags, cloud_flags, out, overwrite)
        _print(found, as_json)


@app.command(epilog="Example:  metastable claims laplace limit --full --out evidence")
def claims(
    names: Annotated[list[str] | None, typer.Argument(help="Which claims; all of them unless named.")] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Hours instead of minutes; both decide alike.")] = False,
    head: Annotated[
        Path | None, typer.Option(help="A TOML file with a \\[head] table, or a .npz file: the claims about that head.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, claims.json and tables.")] = Path(
        "metastable-claims"
    ),
    jobs: Annotated[int | None, typer.Option(help="How many claims at a time; one a core unless given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat what the folder holds already.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the claims and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Check the paper's claims, each by an experiment that can fail, and write one report.

    Every finished claim is kept at once: the same command after an interruption goes on with those that are missing.
    The exit code is 1 if a claim fails, or if its experiment stops with an error; INCONCLUSIVE alone is 0.
    """
    with one_line_errors(debug):
        from metastable import claims as room

        if listing:
            print("\n".join(f"{name:15} {room.find(name).title}" for name in room.NAMES))
            return
        from metastable.cli import commands

        found, report = commands.claims(names or (), full, head, out, jobs, again)
        if as_json:
            print(json.dumps({**found.to_json(), "report": str(report)}, indent=1, ensure_ascii=False))
        else:
            for name, finding in found.found.items():
                print(f"{finding.outcome:12} {name:15} {finding.headline}")
            print(f"report: {report}")
    if found.failed or found.stopped:
        raise typer.Exit(EXIT_FINDING)


def _list_columns(wanted: bool) -> None:
    if wanted:
        from metastable.encoder.columns import TEXT
        from metastable.encoder.weights import COLUMNS

        for title, columns in (("from the weights", COLUMNS), ("on text", TEXT)):
            print(f"{title}:")
            print("\n".join(f"  {name:22} {meaning}; usual: {usual}" for name, (meaning, usual) in columns.items()))
        raise typer.Exit


@app.command(epilog="Example:  metastable audit ./my-encoder --texts sentences.txt --fail-on 'gap < 0.01' --out audit")
def audit(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or an installed package with a folder `model`.")],
    texts: Annotated[
        str | None, typer.Option(help="One text a line, or .jsonl with a field text; - is standard input.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, heads.csv, layers.csv, audit.json.")] = Path(
        "metastable-audit"
    ),
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 if a head (or layer) meets this: 'gap < 0.01 and not complex'.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The audit.json of another audit, to show beside.")] = None,
    loop: Annotated[int, typer.Option(help="Apply a whole layer so many times: do tokens come together?")] = 0,
    layer: Annotated[int | None, typer.Option(help="Which layer --loop repeats, where layers are not shared.")] = None,
    special: Annotated[str, typer.Option(help="exclude or include special tokens in the clouds of texts.")] = "exclude",
    batch_size: Annotated[int, typer.Option(help="Texts at a time.")] = 32,
    scheduler: cli_scale.OnScheduler = None,
    workers: cli_scale.OnWorkers = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin where there are no safetensors.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the twin with random weights.")] = 0,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Print what each column means and stop.", is_eager=True, callback=_list_columns),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Read a trained encoder: what the theory says of each head, what it does on text, and where the two part.

    Without --texts the weights alone are read. --fail-on compares columns of heads.csv, or of layers.csv, with numbers,
    words in quotes, true and false: < <= > >= == != and or not ( ).

    With --workers or --scheduler the same command after an interruption goes on with the texts that are missing.
    """
    with one_line_errors(debug, resumes=False, kept=scheduler is not None or workers is not None):
        from metastable.cli import commands

        found = commands.audit(
            model,
            texts,
            out,
            fail_on,
            reference,
            loop,
            layer,
            special,
            batch_size,
            allow_pickle,
            seed,
            scheduler,
            workers,
        )
        from metastable.cli.summary import audit_json, audit_lines

        print(audit_json(found) if as_json else "\n".join(audit_lines(found)))
    if found["findings"] is not None and len(found["findings"]):
        raise typer.Exit(EXIT_FINDING)


@app.command(epilog="Example:  metastable compare ./before ./after --texts sentences.txt --out moved")
def compare(
    before: Annotated[str, typer.Argument(help="A checkpoint, as for audit.")],
    after: Annotated[str, typer.Argument(help="Another checkpoint of the same shape.")],
    texts: Annotated[str | None, typer.Option(help="Compare the behaviour on these texts too.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html and moved.csv.")] = Path("metastable-compare"),
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin where there are no safetensors.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare two checkpoints of an encoder: which heads moved, in weights, spectrum and behaviour, ranked."""
    with one_line_errors(debug, resumes=False):
        from metastable.cli import commands

        found = commands.compare(before, after, texts, out, allow_pickle)
        from metastable.cli.summary import comparison_json, comparison_lines

        print(comparison_json(found) if as_json else "\n".join(comparison_lines(found)))


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False))
        return
    from metastable.cli.summary import lines

    if found["loaded"]:
        print(f"finished earlier, loaded from {found['run']}")
    print("\n".join(lines(found)))
    print(f"report: {found['report']}")


cli_monitor.register(app)
cli_lab.register(app)
cli_scale.register(app)


def main() -> None:
    app()
