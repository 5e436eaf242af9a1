"""What each command does once its arguments are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metastable import problem as configuration
from metastable.cli.summary import summarise
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head
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
