"""Runs on disk: `run.zarr` (frames, times, weights) with `run.json` (everything else) beside it.

The Zarr group carries the whole of the JSON as an attribute and a checksum of the frames, so that it is complete
by itself; the JSON file is there for people and for tools that read no Zarr. Both are written under a temporary
name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head

if TYPE_CHECKING:
    from metastable.run.mean_field_run import MeanFieldRun
    from metastable.run.run import Run

SCHEMA = "metastable.run/1"
MEAN_FIELD = "metastable.mean_field/1"
MERGED = ("live", "merge_error", "largest_merge_error")
PARTS = ("query", "key", "value", "output", "offset")


def run_path(path: str | Path) -> Path:
    """The *.zarr folder that a path stands for: itself, or run.zarr inside it."""
    path = Path(path)
    return path if path.suffix == ".zarr" else path / "run.zarr"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def hold(path: Path, busy: str) -> IO[str] | None:
    """Lock a file against other processes until the handle is closed; BadInput(busy) if another one holds it.

    Where there is no flock, do without.
    """
    if fcntl is None:
        return None
    handle = open(path, "w")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise BadInput(busy) from error
    return handle


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("metastable", "torch", "numpy", "scipy")}


def head_to_json(head: Head) -> dict[str, Any]:
    return {name: None if (part := getattr(head, name)) is None else part.tolist() for name in PARTS}


def head_from_json(record: dict[str, Any], dtype: torch.dtype) -> Head:
    given = {name: None if record[name] is None else torch.tensor(record[name], dtype=dtype) for name in PARTS}
    return Head(given["query"], given["key"], given["value"], output=given["output"], offset=given["offset"])


def description(run: Run) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "schema": SCHEMA,
        "beta": "inf" if run.beta == float("inf") else run.beta,
        "head": head_to_json(run.head),
        "head_dtype": str(run.head.dtype).removeprefix("torch."),
        "law": run.cloud.law,
        "seed": run.cloud.law.get("seed"),
        "configuration": run.configuration,
        "versions": versions(),
    }


def dataset(run: Run) -> xr.Dataset:
    """The run as a labelled Dataset; its attribute `run` is the JSON description."""
    eps = run.field_errors.cpu().numpy()
    data: dict[str, Any] = {
        "frames": (("time", "token", "coordinate"), run.frames.cpu().numpy()),
        "log_weight": ("token", run.cloud.log_weights.cpu().numpy()),
        "field_error": ("step_time", eps[:, 1]),
    }
    if run.merged is not None:
        data |= {name: ("time", column) for name, column in zip(MERGED, run.merged.cpu().numpy().T, strict=True)}
    if run.jumps is not None:
        data["jump"] = (("merge", "time_and_size"), run.jumps.cpu().numpy())
    coords = {"time": run.times.cpu().numpy(), "step_time": eps[:, 0]}
    return xr.Dataset(data, coords=coords, attrs={"run": json.dumps(description(run))})


def mean_field_dataset(run: MeanFieldRun) -> xr.Dataset:
    """A mean-field run as a labelled Dataset: the finest frames and the next coarser ones."""
    data = {
        "frames": (("time", "point", "coordinate"), run.frames.numpy()),
        "log_weight": (("time", "point"), run.log_weights.numpy()),
        "coarse_frames": (("time", "coarse_point", "coordinate"), run.coarse.points.numpy()),
        "coarse_log_weight": (("time", "coarse_point"), run.coarse.log_weights.numpy()),
    }
    record = {**description(run), "schema": MEAN_FIELD}
    return xr.Dataset(data, coords={"time": run.times.numpy()}, attrs={"run": json.dumps(record)})


def save(run: Run, path: str | Path) -> Path:
    """Write the run; an older run of the same name is replaced only once the new one is complete."""
    target = run_path(path)
    temporary, old = _beside(target, "tmp"), _beside(target, "old")
    data = run.to_xarray()
    data = data.assign_attrs(crc32=_checksum(data))
    chunks = (1, min(len(run.cloud), 65_536), run.cloud.dim)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        encoding = {"frames": {"chunks": chunks}}
        data.to_zarr(temporary, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror or error}; choose another place") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    write_text(target.with_suffix(".json"), json.dumps(json.loads(data.attrs["run"]), indent=1))
    return target


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{ending}")


def recover(target: Path) -> bool:
    """Put right what a killed `save` left behind; whether there is a run at `target` afterwards."""
    if not target.exists() and _beside(target, "old").exists():
        # Killed between the two renames of a replacement: the older run is whole.
        os.rename(_beside(target, "old"), target)
    for ending in ("tmp", "old"):
        shutil.rmtree(_beside(target, ending), ignore_errors=True)
    return target.exists()


def load(path: str | Path) -> dict[str, Any]:
    """The arguments of `Run`, or of `MeanFieldRun`, as they were saved."""
    target = run_path(path)
    if not recover(target):
        raise BadInput(f"there is no run at {target}; give the path that save or --out wrote")
    try:
        with xr.open_zarr(target, chunks=None, consolidated=False) as stored:
            data = stored.load()
        record = json.loads(data.attrs["run"])
        schema = record["schema"]
        if int(data.attrs["crc32"]) != _checksum(data):
            raise ValueError("the checksum does not match")
        reader = {SCHEMA: _arguments, MEAN_FIELD: _mean_field_arguments}.get(schema)
        arguments = reader(record, data) if reader else {}
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{target} is not a complete run ({reason}); make it again") from error
    if not arguments:
        raise BadInput(f"{target} has schema {schema!r}; this version reads {SCHEMA!r}")
    return arguments


def _arguments(record: dict[str, Any], data: xr.Dataset) -> dict[str, Any]:
    points, log_weights, times = (torch.tensor(data[name].values) for name in ("frames", "log_weight", "time"))
    cloud = Cloud(points[0], log_weights=log_weights, law=record["law"])
    # Scaling to norm 1 and sum 1 once more could change the last bit; what was saved is the truth.
    cloud.points, cloud.log_weights = points[0].clone(), log_weights
    errors = np.stack([data["step_time"].values, data["field_error"].values], axis=1)
    merged = np.stack([data[name].values for name in MERGED], axis=1) if MERGED[0] in data else None
    return {
        "head": head_from_json(record["head"], getattr(torch, record["head_dtype"])),
        "cloud": cloud,
        "beta": float(record["beta"]),
        "times": times,
        "frames": points,
        "field_errors": torch.from_numpy(errors),
        "configuration": record["configuration"],
        "merged": None if merged is None else torch.from_numpy(merged),
        "jumps": torch.tensor(data["jump"].values) if "jump" in data else None,
    }


def _mean_field_arguments(record: dict[str, Any], data: xr.Dataset) -> dict[str, Any]:
    names = ("frames", "log_weight", "coarse_frames", "coarse_log_weight", "time")
    frames, log_weights, coarse, coarse_log_weights, times = (torch.tensor(data[name].values) for name in names)
    return {
        "head": head_from_json(record["head"], getattr(torch, record["head_dtype"])),
        "law": record["law"],
        "beta": float(record["beta"]),
        "times": times,
        "fine": (frames, log_weights),
        "coarse": (coarse, coarse_log_weights),
        "configuration": record["configuration"],
    }


def _checksum(data: xr.Dataset) -> int:
    """Over every array and the description: a missing Zarr chunk reads as fill values, without a word."""
    state = zlib.crc32(data.attrs["run"].encode())
    for name in sorted(map(str, data.variables)):
        state = zlib.crc32(np.ascontiguousarray(data[name].values).view(np.uint8).reshape(-1).data, state)
    return state


def digest(head: Head, cloud: Cloud) -> str:
    """A fingerprint of the head and of the starting cloud, bit for bit."""
    parts: list[Tensor] = [getattr(head, n) for n in PARTS if getattr(head, n) is not None]
    state = hashlib.sha256()
    for part in (*parts, cloud.points, cloud.log_weights):
        state.update(str((tuple(part.shape), str(part.dtype))).encode())
        state.update(np.ascontiguousarray(part.cpu().numpy()).view(np.uint8).reshape(-1).data)
    return state.hexdigest()
