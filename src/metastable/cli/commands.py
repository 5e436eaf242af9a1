"""What each command does once its arguments are parsed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metastable import claims as claims_room
from metastable import problem as configuration
from metastable.attention.tree.ordered import threads
from metastable.claims import report as claims_report
from metastable.claims import running
from metastable.claims.running import Findings
from metastable.cli.summary import summarise
from metastable.cloud import Cloud
from metastable.encoder.expression import parse
from metastable.errors import BadInput
from metastable.head import Head
from metastable.progress import Shares, Texts
from metastable.run import storage as store
from metastable.run.run import Run
from metastable.run.simulation import simulate as run_simulation

DEFAULT_HEAD = {"interaction": [1.5, 1.0, 0.6], "value": [1.2, 0.9, 0.5], "seed": 0}
DEFAULT_CLOUD = {"law": "uniform", "n": 1000}


def simulate(
    config: Path | None,
    flags: dict[str, Any],
    head_flags: dict[str, Any],
    cloud_flags: dict[str, Any],
    out: Path,
    overwrite: bool,
) -> dict[str, Any]:
    """Run (or resume) a simulation in the folder `out`, write its report, and return its findings."""
    head, cloud, arguments = configuration.build(_tables(config, flags, head_flags, cloud_flags))
    return _run(head, cloud, arguments, out, overwrite)


def follow(
    config: Path | None,
    address: str,
    texts: str | None,
    flags: dict[str, Any],
    cloud_flags: dict[str, Any],
    out: Path,
    overwrite: bool,
) -> dict[str, Any]:
    """The same for a head of a trained encoder, MODEL:layer:head, on its own clock: a unit of time is a layer."""
    from metastable.encoder import trained_head as following
    from metastable.encoder.texts import read_texts

    if config is not None:
        raise BadInput(f"--head {address} is of a trained encoder and takes flags; leave {config} away")
    given = {key: value for key, value in {**flags, **cloud_flags}.items() if value is not None}
    chosen = {key: given.pop(key) for key in ("beta", "until", "law", "n", "seed") if key in given}
    ready = following.prepare(address, None if texts is None else list(read_texts(texts)), **chosen)
    arguments = {**given, "beta": ready.beta, "until": ready.until}
    found = _run(ready.head, ready.cloud, arguments, out, overwrite)
    return {**found, "followed": following.sentence(Run.load(found["run"]))}


def _run(head: Head, cloud: Cloud, arguments: dict[str, Any], out: Path, overwrite: bool) -> dict[str, Any]:
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; give a folder")
    target = store.run_path(out)
    earlier = target.exists()
    run = run_simulation(head, cloud, checkpoint=target, overwrite=overwrite, **arguments)
    found = summarise(run)
    report = run.report(out / "report.html")
    return {**found, "loaded": earlier and not overwrite, "run": str(target), "report": str(report)}


def claims(
    names: Sequence[str], full: bool, head: Path | None, out: Path, jobs: int | None, again: bool
) -> tuple[Findings, Path]:
    """Check the named claims, all of them if there are no names, and write their report into the folder `out`."""
    chosen = tuple(dict.fromkeys(names)) or claims_room.NAMES
    for name in chosen:
        claims_room.find(name)
    _own_folder(out, "findings")
    about = None if head is None else _head_of(head)
    with Shares(chosen, None) as bar:
        found = running.run(chosen, full, about, out, threads() if jobs is None else jobs, bar, again)
    found = replace(found, origin=None if head is None else str(head))
    return found, claims_report.write(found, out / "report.html")


def _head_of(path: Path) -> Head:
    """The head of a TOML file or of a .npz file."""
    if path.suffix == ".npz":
        return configuration.build_head({"file": str(path)})
    tables = configuration.read(path)
    if "head" not in tables:
        raise BadInput(f"{path} has no [head] table")
    return configuration.build_head(tables["head"])


def _tables(
    config: Path | None, flags: dict[str, Any], head_flags: dict[str, Any], cloud_flags: dict[str, Any]
) -> dict[str, Any]:
    """The TOML file, if any, with the flags written over it."""
    tables = configuration.read(config) if config else {}
    tables |= {key: value for key, value in flags.items() if value is not None}
    given = {key: _spectrum(key, value) for key, value in head_flags.items() if value is not None}
    if "file" in given:
        tables["head"] = given
    else:
        tables["head"] = {**(tables.get("head") or DEFAULT_HEAD), **given}
    law = {key: value for key, value in cloud_flags.items() if value is not None}
    tables["cloud"] = {**(tables.get("cloud") or DEFAULT_CLOUD), **law}
    return tables


def _spectrum(key: str, value: Any) -> Any:
    if key == "file":
        return str(value)
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise BadInput(f"--{key} is {value!r}; give numbers with commas, as 1.5,1.0,0.6") from None


def audit(
    model: str,
    texts: str | None,
    out: Path,
    fail_on: str | None,
    reference: Path | None,
    loops: int,
    layer: int | None,
    special: str,
    batch_size: int,
    allow_pickle: bool,
    seed: int,
    scheduler: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Audit an encoder into the folder `out`; returns what to print, with the rows that meet `fail_on`."""
    from metastable.encoder import audit as room
    from metastable.encoder.measure import measure

    _own_folder(out, "audit.json")
    if fail_on is not None:
        parse(fail_on)  # a slip of the pen is found before the model is loaded
    if texts is not None and texts != "-" and (not Path(texts).exists() or Path(texts).is_dir()):
        raise BadInput(f"--texts {texts} is no file; give a file with one text a line, or - for standard input")
    spread = None
    if scheduler is not None or workers is not None:
        if texts is None:
            raise BadInput("--workers and --scheduler are for measuring on texts; give --texts FILE too")
        from metastable.scale import corpora

        spread = corpora.Audit(texts, out / "partial", scheduler, workers, allow_pickle)
    with Texts() as bar:
        found = room.audit(
            model, texts, reference=reference, loops=loops, layer=layer, special=special, batch_size=batch_size,
            allow_pickle=allow_pickle, seed=seed, fail_on=fail_on, progress=bar, measuring=spread or measure,
        )  # fmt: skip
    rows = None if fail_on is None else found.findings(fail_on)
    written = found.save(out)
    if spread is not None:
        spread.clear()
    return {"audit": found, "findings": rows, "written": {name: str(path) for name, path in written.items()}}


def compare(a: str, b: str, texts: str | None, out: Path, allow_pickle: bool) -> dict[str, Any]:
    """Compare two checkpoints into the folder `out`: report.html, moved.csv."""
    from metastable.encoder import audit as room
    from metastable.encoder.report import write_comparison
    from metastable.encoder.texts import read_texts

    _own_folder(out, "moved.csv")
    read = None if texts is None else list(read_texts(texts))  # once: standard input comes but once
    with Texts() as bar:
        before, after = (
            room.audit(model, read, allow_pickle=allow_pickle, beside_random=False, progress=bar) for model in (a, b)
        )
    found = room.compare(before, after)
    out.mkdir(parents=True, exist_ok=True)
    store.write_text(out / "moved.csv", found.heads.to_csv(index=False))
    report = write_comparison(found, (a, b), out / "report.html")
    return {"comparison": found, "written": {"report": str(report), "moved": str(out / "moved.csv")}}


def _own_folder(out: Path, mark: str) -> None:
    """Refuse a file, and a folder whose report is of something else."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; give a folder")
    if (out / "report.html").exists() and not (out / mark).exists():
        raise BadInput(f"--out {out} holds a report of something else; give another folder")
    above = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise BadInput(f"--out {out} cannot be written: {above} is no folder that lets you write; give another folder")
