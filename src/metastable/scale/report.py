"""A sweep as one HTML file: its maps with the theory's lines, what failed and why, how it was made."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from metastable.errors import BadInput
from metastable.figures.look import number
from metastable.figures.phase_diagram import phase_diagram, regions, terminal_level
from metastable.problem import BLOCK_KEYS
from metastable.report.page import figure_block, render_page, table_rows, target_of, write_page
from metastable.scale.dataset import head_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.theory import Theory

# Number of combinations of the axes outside a map that are drawn; the dataset has the others.
SLICES = 4
# Number of failed points that are listed; the dataset has all of them.
FAILURES = 20
# Variables that are drawn over two axes of the sweep, besides the phase.
PAIRS = ("least", "concentrated", "terminal")
READING = {
    "concentrating": "the distance to the limit law still falls",
    "metastable": "the distance is within a factor 1.5 of its minimum",
    "terminal": "the distance has risen above 1.5 times its minimum again: tokens move on to the phase that V decides",
}
# Maps choose their axes in this order.
FIRST = ("beta", "gap", "angle", "n", "kappa")


def write(data: xr.Dataset, path: str | Path) -> Path:
    """Write the report of a sweep to `path`, completely or not at all."""
    return write_page(target_of(path), render(data))


def render(data: xr.Dataset) -> str:
    """The report as HTML."""
    maps, left = _maps(data)
    return render_page(
        "sweep.html.j2",
        headline=_headline(data),
        shares=_shares(data),
        figures=[
            {"where": str(figure.layout.title.subtitle.text or ""), **figure_block(f"map-{i}", figure)}
            for i, figure in enumerate(maps)
        ],
        left=left,
        reading=READING,
        axes=[_axis(data, name) for name in map(str, data["status"].dims)],
        failures=_failures(data),
        failed=int((data["status"].values == 1).sum()),
        making=_making(data),
    )


def _theory(data: xr.Dataset, at: dict[str, Any]) -> Theory | None:
    """The theory of the head at these values of the axes; None if no head can be built there: its points failed.

    Also None in a sweep of blocks: what the maps mark is known for one softmax head.
    """
    if "block" in json.loads(data.attrs["configuration"]) or any(name in data.dims for name in BLOCK_KEYS):
        return None
    try:
        return head_of(data, **at).theory()
    except BadInput:
        return None


def _headline(data: xr.Dataset) -> str:
    axes = " × ".join(f"{data.sizes[name]} {name}" for name in data["status"].dims)
    size = int(data["status"].size)
    found = f"{size} runs ({axes})" if len(data["status"].dims) > 1 else f"{axes}: {size} runs"
    if "least" in data and np.isfinite(data["least"].values).any():
        low, high = float(data["least"].min()), float(data["least"].max())
        found += f", least distance to the limit law between {number(low)} and {number(high)}"
    return found


def _shares(data: xr.Dataset) -> list[tuple[str, str]]:
    """How many runs reach each phase."""
    if not {"concentrated", "terminal"} <= set(map(str, data.data_vars)):
        return []
    done = int((data["status"].values == 0).sum())
    words = {"concentrated": "runs concentrate", "terminal": "runs leave for the terminal phase"}
    return [(f"{int(np.isfinite(data[name].values).sum())} of {done}", text) for name, text in words.items()]


def _maps(data: xr.Dataset) -> tuple[list[go.Figure], str]:
    """Maps of time and one axis, then of pairs of axes; and what was left out, in words."""
    axes = _axes(data)
    if not axes:
        return [], "There is no map: it needs an axis of at least two values besides seed."
    if not (data["status"].values == 0).any():
        return [], "There is no map, because every run failed."
    drawn: list[go.Figure] = []
    slices = _slices(data, axes[:1])
    for at in slices[:SLICES]:
        for value in _over_time(data):
            drawn.append(phase_diagram(data, value, "time", axes[0], theory=_theory(data, at), **at))
    left = len(slices) - SLICES
    for other in axes[1:]:
        for at in _slices(data, [axes[0], other])[:1]:
            drawn += _pair(data, other, axes[0], at, _levels(data))
    words = f"Maps of {left} further combinations of axes are not drawn; the dataset has them." if left > 0 else ""
    return drawn, words


def _axes(data: xr.Dataset) -> list[str]:
    found = [str(name) for name in data["status"].dims if data.sizes[name] > 1 and name != "seed"]
    return sorted(found, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def _slices(data: xr.Dataset, shown: list[str]) -> list[dict[str, Any]]:
    """Every combination of the axes that a map does not show; the last axis moves fastest."""
    rest = [name for name in map(str, data["status"].dims) if name not in (*shown, "seed") and data.sizes[name] > 1]
    return [
        dict(zip(rest, values, strict=True))
        for values in itertools.product(*(data[name].values.tolist() for name in rest))
    ]


def _over_time(data: xr.Dataset) -> list[str]:
    if "distance" not in data:
        return []
    try:
        regions(data)
    except BadInput:
        return ["distance"]
    return ["phase", "distance"]


def _levels(data: xr.Dataset) -> xr.DataArray:
    """Where the terminal phase ends, for every head of the sweep."""
    names = [name for name in ("gap", "angle", "interaction", "value") if name in data.dims]
    values = [data[name].values.tolist() for name in names]
    heads = (_theory(data, dict(zip(names, one, strict=True))) for one in itertools.product(*values))
    found = [float("nan") if theory is None else terminal_level(theory) for theory in heads]
    return xr.DataArray(np.reshape(found, [len(v) for v in values]), {name: data[name] for name in names}, names)


def _pair(data: xr.Dataset, x: str, y: str, at: dict[str, Any], level: xr.DataArray) -> list[go.Figure]:
    names = [name for name in PAIRS if name in data and np.isfinite(data[name].values).any()]
    drawn = [phase_diagram(data, name, x, y, **at) for name in names]
    if "phase" in _over_time(data):
        moment = phase_diagram(data, "phase", x, y, time=_telling_time(data), level=level, **at)
        note = moment.layout.title.subtitle
        note.text = f"{note.text}, the time at which the phases are spread most evenly over the runs"
        drawn.insert(0, moment)
    return drawn


def _telling_time(data: xr.Dataset) -> float:
    """The saved time at which the three phases are spread most evenly over the points."""
    codes = regions(data)
    counts = np.stack([(codes == code).sum([d for d in codes.dims if d != "time"]).values for code in range(3)])
    share = counts / np.maximum(counts.sum(axis=0), 1)
    entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1)), 0).sum(axis=0)
    return float(data["time"][int(entropy.argmax())])


def _axis(data: xr.Dataset, name: str) -> tuple[str, str, str]:
    values = data[name].values.tolist()
    shown = [number(float(v)) if isinstance(v, (int, float)) else str(v) for v in values]
    text = ", ".join(shown) if len(shown) <= 8 else f"{', '.join(shown[:4])}, …, {shown[-1]} ({len(shown)} values)"
    return name, str(data[name].attrs.get("description", "")), text


def _failures(data: xr.Dataset) -> list[tuple[str, str]]:
    """Where points failed, and why."""
    rows = []
    for place in np.argwhere(data["status"].values == 1)[:FAILURES]:
        here = data["reason"][tuple(int(i) for i in place)]
        values = {str(name): here[name].values.tolist() for name in data["status"].dims}
        where = ", ".join(f"{k} = {number(v) if isinstance(v, float) else v}" for k, v in values.items())
        rows.append((where, str(here.values)))
    return rows


def _making(data: xr.Dataset) -> dict[str, list[tuple[str, str]]]:
    record = json.loads(data.attrs["configuration"])
    law = {"law": "uniform", **record["cloud"]}
    if record["run"].get("mean_field"):
        law.pop("n", None)
    tables = {"Head": record["head"], "Starting law": law, "Fixed": record["run"]}
    tables["Outputs"] = {k: v for k, v in record["outputs"].items() if k != "times"}
    times = record["outputs"]["times"]
    tables["Outputs"]["times"] = f"{len(times)} from {number(times[0])} to {number(times[-1])}" if times else "none"
    tables["Versions"] = json.loads(data.attrs["versions"])
    return {name: table_rows(table) for name, table in tables.items()}
