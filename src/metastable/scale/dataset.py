"""The dataset of a sweep: one labelled Zarr group made from the journal, with a checksum of each of its files.

    sweep.json      the description of the sweep: axes, head, tokens, solver, outputs, versions
    journal         every finished point (see `files.Journal`)
    sweep.zarr      the dataset
    manifest.json   SHA-256 of the journal and of every file of sweep.zarr

Nothing in it depends on the clock, the name of the machine, the number of workers or the order of the points, so the
same sweep gives the same bytes. The manifest reveals a missing or damaged file (Zarr itself reads a missing chunk as
fill values), and the dataset is then made again from the journal.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from xarray.backends import ZarrStore
from xarray.core import indexing

from metastable import files
from metastable.errors import BadInput
from metastable.head import Head
from metastable.problem import HEAD_CHANGES, build_head
from metastable.run import storage as store
from metastable.scale.plan import Plan
from metastable.scale.points import COURSES, DONE

# Largest number of values in a chunk: half a megabyte before compression.
CHUNK = 65_536

# Meaning and unit of each axis and variable.
WORDS: dict[str, tuple[str, str]] = {
    "beta": ("inverse temperature; inf is hardmax", "1"),
    "gamma": ("beta = gamma log N for N tokens", "1"),
    "until": ("time at which the simulation ends", "time of the flow"),
    "tol": ("largest estimated error a step", "chordal distance"),
    "step": ("step of the fixed-step methods", "time of the flow"),
    "merge": ("tokens closer than this become one", "chordal distance"),
    "n": ("number of tokens", "tokens"),
    "seed": ("seed given for the tokens; see cloud_seed", "1"),
    "gap": ("spectral gap of B: its spectrum is 1, 1 - gap, ..., 1 - gap", "1"),
    "angle": ("angle between the leading eigenvectors of B and V", "degrees"),
    "kappa": ("concentration of the von Mises-Fisher law", "1"),
    "smallest": ("least distance of graded tokens from the set that they leave", "1"),
    "time": ("time of the flow", "time of the flow"),
    "distance": ("W2 distance of the tokens to the limit law", "chordal distance"),
    "log_energy": ("logarithm of the interaction energy", "1"),
    "mean_cosine": ("mean cosine between two different tokens", "1"),
    "effective_rank": ("exp of the entropy of the spectrum of the second moments", "1"),
    "clusters": ("groups of tokens linked by short steps", "groups"),
    "concentrated": ("time from which the distance is near its least; NaN: not seen", "time of the flow"),
    "terminal": ("time from which the distance leaves its least again; NaN: not seen", "time of the flow"),
    "least": ("least distance to the limit law", "chordal distance"),
    "least_time": ("time of the least distance", "time of the flow"),
    "course": ("how the curve of distances goes", "1"),
    "status": ("whether the point was computed", "1"),
    "reason": ("why the point failed; empty where it did not", "1"),
    "cloud_seed": ("seed that the law of the tokens was called with; -1 where nothing is drawn", "1"),
}


class Places:
    """The paths of a sweep. `out` is a folder, or a name that ends in .zarr, which is then the dataset."""

    def __init__(self, out: Path) -> None:
        alone = out.suffix == ".zarr"
        self.folder = out.with_name(out.name + ".kept") if alone else out
        self.dataset = out if alone else out / "sweep.zarr"
        self.journal = self.folder / "journal"
        self.description = self.folder / "sweep.json"
        self.manifest = self.folder / "manifest.json"
        self.page = self.folder / "report.html"

    def clear(self) -> None:
        """Remove a sweep."""
        for path in (self.manifest, self.journal, self.description, self.page):
            path.unlink(missing_ok=True)
        self.tidy()
        shutil.rmtree(self.dataset, ignore_errors=True)

    def tidy(self) -> None:
        """Remove temporary files of a killed process."""
        files.recover(self.dataset)
        for leftover in self.folder.glob(".*.tmp*"):
            leftover.unlink(missing_ok=True)


def assemble(plan: Plan, journal: files.Journal) -> xr.Dataset:
    """The labelled dataset of all points in the journal; points that are not there have status -1."""
    table = np.full((plan.size, sum(count for _, count in plan.columns)), math.nan)
    status = np.full(plan.size, -1, dtype=np.int8)
    reasons = np.full(plan.size, "", dtype=object)
    for index, code, payload in journal.records():
        status[index] = code
        if code == DONE:
            table[index] = np.frombuffer(payload, dtype="<f8")
        else:
            reasons[index] = payload.decode()
    seeds = [plan.cloud_seed(index) for index in range(plan.size)]
    dims = tuple(plan.axes)
    data: dict[str, Any] = {}
    start = 0
    for name, count in plan.columns:
        block = table[:, start : start + count]
        start += count
        if name not in plan.phases:
            data[name] = ((*dims, "time"), block.reshape(*plan.shape, count))
            continue
        codes = np.nan_to_num(block, nan=-1).astype(np.int8) if name == "course" else block
        data[name] = (dims, codes.reshape(plan.shape))
    data["status"] = (dims, status.reshape(plan.shape))
    data["reason"] = (dims, reasons.reshape(plan.shape))
    data["cloud_seed"] = (dims, np.array([-1 if s is None else s for s in seeds], np.int64).reshape(plan.shape))
    coords: dict[str, Any] = {name: (name, _labels(values)) for name, values in plan.axes.items()}
    if any("time" in found for found, _ in data.values()):
        coords["time"] = ("time", np.array(plan.times))
    return _described(xr.Dataset(data, coords=coords, attrs=_attributes(plan)))


def head_of(data: xr.Dataset, **at: Any) -> Head:
    """The head of a sweep, at values of the axes that make it: gap, angle, interaction, value."""
    table = json.loads(data.attrs["configuration"])["head"]
    if "dtype" in table:
        return store.head_from_json(table, getattr(torch, table["dtype"]))
    moved = {name: at.get(name, data[name].values.tolist()[0]) for name in HEAD_CHANGES if name in data.dims}
    spectra = {name: json.loads(v) if isinstance(v, str) else v for name, v in moved.items()}
    return build_head({**table, **spectra})


def _labels(values: list[Any]) -> np.ndarray:
    if isinstance(values[0], bool):
        return np.array(values, dtype=bool)
    if isinstance(values[0], (str, list)):
        return np.array([v if isinstance(v, str) else json.dumps(v) for v in values], dtype=object)
    return np.array(values, dtype=np.int64 if isinstance(values[0], int) else np.float64)


def _attributes(plan: Plan) -> dict[str, str]:
    configuration = dict(plan.description)
    schema, versions = configuration.pop("schema"), configuration.pop("versions")
    return {"schema": schema, "configuration": json.dumps(configuration), "versions": json.dumps(versions)}


def _described(data: xr.Dataset) -> xr.Dataset:
    for name, variable in data.variables.items():
        if name in WORDS:
            variable.attrs["description"], variable.attrs["units"] = WORDS[str(name)]
    flags = {"status": ("done", "failed"), "course": tuple(c.replace(" ", "_") for c in COURSES)}
    for name, meanings in flags.items():
        if name in data:
            data[name].attrs |= {"flag_values": list(range(len(meanings))), "flag_meanings": " ".join(meanings)}
    return data


def write(plan: Plan, journal: files.Journal, places: Places) -> None:
    """Make the dataset from the journal, and then its manifest."""
    with files.writing(places.dataset):
        journal.put_in_order()
        places.manifest.unlink(missing_ok=True)
    data = assemble(plan, journal)
    chunks = {str(name): {"chunks": _chunks(data[name].shape)} for name in data.data_vars}
    with files.replacing(places.dataset) as temporary:
        data.to_zarr(temporary, mode="w", zarr_format=3, consolidated=False, encoding=chunks)
        sums = _checksums(temporary)
    record = {"identity": plan.identity, "journal": _checksum(places.journal), "files": sums}
    files.write_json(places.manifest, record)


def _chunks(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Blocks of at most CHUNK numbers, whole along the last dimensions."""
    room, sizes = CHUNK, []
    for length in reversed(shape):
        sizes.append(max(1, min(length, room)))
        room //= sizes[-1]
    return tuple(reversed(sizes))


def fault(plan: Plan, places: Places) -> str:
    """What is wrong with the dataset on the disk; empty if its files are exactly those that were written."""
    try:
        record = json.loads(places.manifest.read_text(encoding="utf-8"))
        identity, journal, expected = record["identity"], record["journal"], dict(record["files"])
    except FileNotFoundError:
        return "it was not completed"
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is damaged"
    if identity != plan.identity or journal != _checksum(places.journal):
        return "it does not belong to the journal"
    if not places.dataset.is_dir():
        return f"{places.dataset.name} is missing"
    found = _checksums(places.dataset)
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            how = "does not belong there" if name not in expected else "is damaged" if name in found else "is missing"
            return f"{name} {how}"
    return ""


def load(places: Places) -> xr.Dataset:
    """The dataset, opened lazily: values are read when they are first used, and then kept."""
    try:
        # Not by xr.open_zarr, which adds to the host's warning filters. What follows is what it does besides.
        variables, attributes = ZarrStore.open_group(places.dataset, mode="r", consolidated=False).load()
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"there is no sweep at {places.dataset}; make it with sweep") from error
    for variable in variables.values():
        if "_FillValue" in variable.attrs:
            variable.encoding["_FillValue"] = variable.attrs.pop("_FillValue")
        variable.data = indexing.MemoryCachedArray(indexing.CopyOnWriteArray(variable._data))
    return xr.Dataset(variables, attrs=attributes)


def _checksums(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in paths}


def _checksum(path: Path) -> str:
    if not path.exists():
        return ""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
