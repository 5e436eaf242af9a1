"""The files that the page offers for download: a program that repeats the runs, their numbers, and their report."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from metastable import __version__, problem
from metastable.attention import ENGINES
from metastable.attention.engines import needed
from metastable.errors import BadInput
from metastable.lab.callbacks import Backend, names
from metastable.lab.state import State, check, common_frames, problem_of
from metastable.report import render, render_two
from metastable.run import storage
from metastable.run.run import Run


def download(kind: str, state: State, tab: str, backend: Backend) -> tuple[str, str, bytes]:
    """(name, MIME type, content) of a file: "script", "data" or "report". Two runs have one report."""
    stem = _stem(state)
    runs, distances = backend.runs.results(tab, state.key)
    if kind == "script":
        return f"{stem}.py", "text/x-python", script(state, runs).encode()
    if not distances:
        raise BadInput("this run is no longer in memory; reload the page to run it again")
    if kind == "data":
        return f"{stem}.npz", "application/octet-stream", data(runs, [one.distance for one in distances])
    page = render(runs[0]) if len(runs) == 1 else render_two(runs, names(state))
    return f"{stem}.html", "text/html", page.encode()


def _stem(state: State) -> str:
    """A file name without suffix, in ASCII, which distinguishes runs."""
    check(state)
    who = "head-{}-{}".format(*state.address[1:]) if state.trained else f"d{problem_of(state).head.dim}"
    compared = f"-compare-{state.compare}" if state.compare else ""
    return f"metastable-{who}-beta{state.beta:g}-n{state.n}-seed{state.seed}{compared}"


def data(runs: Sequence[Run], distances: Sequence[xr.DataArray | None]) -> bytes:
    """The numbers of the runs as one .npz file.

    times (T,), frames (T, N, d), weights (N,), distance (T,) (W₂ to the limit law, if it exists), radii (T, N) of
    tokens off the sphere, B, V (B0, V0, B1, … of several heads), and `about`: a JSON text that says how the run was
    made. The names of a second run start with `other_`.
    """
    arrays: dict[str, Any] = {}
    for prefix, run, distance in zip(("", "other_"), runs, distances, strict=False):
        tensors = {"times": run.times, "frames": run.frames, "weights": run.cloud.weights}
        marks = [""] if len(run.block.heads) == 1 else [str(i) for i in range(len(run.block.heads))]
        for mark, head in zip(marks, run.block.heads, strict=True):
            tensors |= {f"B{mark}": head.B, f"V{mark}": head.V}
        tensors |= {} if run.radii is None else {"radii": run.radii}
        arrays |= {prefix + name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        if distance is not None:
            arrays[f"{prefix}distance"] = distance.values
        about = {key: value for key, value in storage.description(run).items() if key != "head"}
        arrays[f"{prefix}about"] = np.array(json.dumps(about))
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


def script(state: State, runs: Sequence[Run] = ()) -> str:
    """A Python program that repeats the runs of a state, on the same machine with as many threads to the last bit.

    It writes run.zarr and run.html, and for a comparison also other.zarr and other.html.

    runs : the runs that the page has computed. The program names their engines, because "auto" stands for another one
        where other engines are compiled
    """
    check(state)
    states = state.runs()
    frames = common_frames(states)
    engines = [_engine(runs[i]) if i < len(runs) else {} for i in range(len(states))]
    about = f"Made by the lab of metastable {__version__}. The same page: ?{state.to_query()}"
    if not state.trained:
        problems = [problem_of(one, frames=frames) for one in states]
        problems = [one.replace(**engine) for one, engine in zip(problems, engines, strict=True)]
        return problem.script(problems, about)
    texts = "TEXTS" if state.law == "tokens" else "None"
    lines = [f'"""{about}"""', "", "from metastable.encoder.trained_head import follow"]
    lines += ["from metastable.lab.encoders import TEXTS"] if state.law == "tokens" else []
    for name, one, engine in zip(("run", "other"), states, engines, strict=False):
        named = "".join(f", {key}={value!r}" for key, value in engine.items())
        start = f"{state.trained!r}, {texts}, law={one.law!r}, n={one.n}, seed={one.seed}"
        beta = one.beta if math.isfinite(one.beta) else 'float("inf")'
        lines += ["", f"{name} = follow({start}, beta={beta}, until={one.until}, t_eval={frames}{named})"]
        lines += [f"print({name})", f'{name}.save("{name}.zarr")', f'{name}.report("{name}.html")']
    return "\n".join([*lines, ""])


def _engine(run: Run) -> dict[str, str]:
    """The argument of `simulate` that names the engine of a run; {} for hardmax and for a run that is not finished."""
    engine = run.configuration.get("engine", "")
    known = engine != "" and {*ENGINES, "tree"}.issuperset(needed(engine))
    return {"engine": engine} if known and math.isfinite(run.beta) else {}
