"""What each command does once its arguments are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metastable import claims as claims_room
from metastable import configuration, store
from metastable.attention.tree.ordered import threads
from metastable.claims import running
from metastable.claims.running import Findings
from metastable.errors import BadInput
from metastable.head import Head
from metastable.progress import Shares
from metastable.report import claims as claims_report
from metastable.simulation import simulate as run_simulation
from metastable.summary import summarise

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
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; give a folder")
    if (out / "report.html").exists() and not (out / "findings").exists():
        raise BadInput(f"--out {out} holds a report of something else; give another folder")
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
