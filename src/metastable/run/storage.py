"""Runs on disk: `run.zarr` (frames, times, weights) with `run.json` (everything else) beside it.

The Zarr group carries the whole of the JSON as an attribute and a checksum of the arrays, so that it is complete
by itself. The JSON file is for people and for tools that do not read Zarr.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
import zarr

from metastable import files
from metastable.block import Block
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import MATRICES, Head
from metastable.versions import versions

if TYPE_CHECKING:
    from metastable.run.mean_field import MeanFieldRun
    from metastable.run.run import BaseRun, Run

SCHEMA = "metastable.run/1"
MEAN_FIELD = "metastable.mean_field/1"
MERGED = ("live", "merge_error", "largest_merge_error")


def run_path(path: str | Path) -> Path:
    """The *.zarr folder that a path stands for: itself, or run.zarr inside it."""
    path = Path(path)
    return path if path.suffix == ".zarr" else path / "run.zarr"


def head_to_json(head: Head) -> dict[str, Any]:
    return {name: None if (part := getattr(head, name)) is None else part.tolist() for name in MATRICES}


def head_from_json(record: dict[str, Any], dtype: torch.dtype) -> Head:
    return Head(
        **{name: None if record[name] is None else torch.tensor(record[name], dtype=dtype) for name in MATRICES}
    )


def digest(block: Block, cloud: Cloud) -> str:
    """A fingerprint of the block and of the starting cloud, bit for bit."""
    # A plain head has the fingerprint that it had before there were blocks, so that its checkpoints can be resumed.
    state = hashlib.sha256(b"" if block.plain else json.dumps(block.member, sort_keys=True).encode())
    for part in (*block.arrays.values(), cloud.points, cloud.log_weights):
        state.update(str((tuple(part.shape), str(part.dtype))).encode())
        state.update(np.ascontiguousarray(part.cpu().numpy()).view(np.uint8).reshape(-1).data)
    return state.hexdigest()


def description(run: BaseRun, schema: str = SCHEMA) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "schema": schema,
        "beta": "inf" if math.isinf(run.beta) else run.beta,
        **({"head": head_to_json(run.head)} if run.block.plain else {"block": run.block.to_json()}),
        "head_dtype": str(run.block.dtype).removeprefix("torch."),
        "law": run.cloud.law,
        "seed": run.cloud.law.get("seed"),
        "configuration": run.configuration,
        "versions": versions(),
    }


def dataset(run: Run) -> xr.Dataset:
    """A run of tokens as a Dataset; its attribute `run` is the JSON description."""
    eps = run.field_errors.cpu().numpy()
    data: dict[str, Any] = {
        "frames": (("time", "token", "coordinate"), run.frames.cpu().numpy()),
        "log_weight": ("token", run.cloud.log_weights.cpu().numpy()),
        "field_error": ("step_time", eps[:, 1]),
    }
    if run.merged is not None:
        data |= {name: ("time", column) for name, column in zip(MERGED, run.merged.cpu().numpy().T, strict=True)}
    if run.radii is not None:
        data["radius"] = (("time", "token"), run.radii.cpu().numpy())
    if run.jumps is not None:
        data["jump"] = (("merge", "time_and_size"), run.jumps.cpu().numpy())
    coords = {"time": run.times.cpu().numpy(), "step_time": eps[:, 0]}
    return xr.Dataset(data, coords=coords, attrs={"run": files.to_json(description(run, SCHEMA), None)})


def mean_field_dataset(run: MeanFieldRun) -> xr.Dataset:
    """A mean-field run as a Dataset: the finest frames and the next coarser ones."""
    data = {
        "frames": (("time", "point", "coordinate"), run.frames.numpy()),
        "log_weight": (("time", "point"), run.log_weights.numpy()),
        "coarse_frames": (("time", "coarse_point", "coordinate"), run.coarse.points.numpy()),
        "coarse_log_weight": (("time", "coarse_point"), run.coarse.log_weights.numpy()),
    }
    attrs = {"run": files.to_json(description(run, MEAN_FIELD), None)}
    return xr.Dataset(data, coords={"time": run.times.numpy()}, attrs=attrs)


def save(run: BaseRun, path: str | Path) -> Path:
    """Write the run; an older run of the same name is replaced only once the new one is complete."""
    target = run_path(path)
    data = run.to_dataset()
    arrays = {str(name): variable.values for name, variable in data.variables.items()}
    data = data.assign_attrs(crc32=_checksum(arrays, data.attrs["run"]))
    encoding = {"frames": {"chunks": (1, min(len(run.cloud), 65_536), run.cloud.dim)}}
    with files.replacing(target) as temporary:
        data.to_zarr(temporary, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
    files.write_json(target.with_suffix(".json"), json.loads(data.attrs["run"]))
    return target


def load(path: str | Path) -> dict[str, Any]:
    """The arguments of `Run`, or of `MeanFieldRun`, as they were saved."""
    target = run_path(path)
    if not files.recover(target):
        raise BadInput(f"there is no run at {target}; give the path that save or --out wrote")
    try:
        # Not by xarray, which adds to the host's warning filters when it opens a file.
        stored = zarr.open_group(target, mode="r")
        data = {name: np.asarray(array[...]) for name, array in stored.arrays()}
        text = str(stored.attrs["run"])
        record = json.loads(text)
        schema = record["schema"]
        if stored.attrs["crc32"] != _checksum(data, text):
            raise ValueError("the checksum does not match")
        readers = {SCHEMA: _tokens, MEAN_FIELD: _mean_field}
        arguments = readers[schema](record["law"], data) if schema in readers else {}
        arguments |= {
            "block": _block(record, getattr(torch, record["head_dtype"])),
            "beta": float(record["beta"]),
            "times": torch.tensor(data["time"]),
            "configuration": record["configuration"],
        }
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{target} is not a complete run ({reason}); make it again") from error
    if schema not in readers:
        raise BadInput(f"{target} has schema {schema!r}; this version reads {SCHEMA!r}")
    return arguments


def _block(record: dict[str, Any], dtype: torch.dtype) -> Block:
    """The block of a run; the record of a plain run holds its head alone."""
    return Block(head_from_json(record["head"], dtype)) if "head" in record else Block.from_json(record["block"], dtype)


def _tokens(law: dict[str, Any], data: dict[str, np.ndarray]) -> dict[str, Any]:
    points, log_weights = (torch.tensor(data[name]) for name in ("frames", "log_weight"))
    errors = np.stack([data["step_time"], data["field_error"]], axis=1)
    merged = np.stack([data[name] for name in MERGED], axis=1) if MERGED[0] in data else None
    return {
        "cloud": Cloud.exactly(points[0].clone(), log_weights, law),
        "frames": points,
        "field_errors": torch.from_numpy(errors),
        "radii": torch.tensor(data["radius"]) if "radius" in data else None,
        "merged": None if merged is None else torch.from_numpy(merged),
        "jumps": torch.tensor(data["jump"]) if "jump" in data else None,
    }


def _mean_field(law: dict[str, Any], data: dict[str, np.ndarray]) -> dict[str, Any]:
    from metastable.run.mean_field import Frames

    names = ("frames", "log_weight", "coarse_frames", "coarse_log_weight")
    frames, log_weights, coarse, coarse_log_weights = (torch.tensor(data[name]) for name in names)
    return {
        "cloud": Frames(frames, log_weights).cloud(0, law),
        "frames": frames,
        "log_weights": log_weights,
        "coarse": Frames(coarse, coarse_log_weights),
    }


def _checksum(data: Mapping[str, np.ndarray], description: str) -> int:
    """CRC-32 of the description and of every array. A missing Zarr chunk would otherwise read as fill values."""
    state = zlib.crc32(description.encode())
    for name in sorted(data):
        state = zlib.crc32(np.ascontiguousarray(data[name]).view(np.uint8).reshape(-1).data, state)
    return state
