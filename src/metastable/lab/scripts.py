"""What people take home from the page: a program that makes the runs again, their numbers, and a report."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from metastable import __version__
from metastable.errors import BadInput
from metastable.lab.controls import Controls, arguments, common_frames, head_of, law_arguments
from metastable.lab.matrices import Matrix, parse_matrices
from metastable.lab.state import State, problems, second
from metastable.report import render
from metastable.run import storage as store
from metastable.run.run import Run

WIDEST = 110
NAMES = ("run", "other")
"""What the program calls the first run and the second."""


def script(state: State) -> str:
    """A Python program that makes the runs of a state again; on the same machine and as many threads to the last bit.

    It leaves run.zarr and run.html, of a comparison also other.zarr and other.html.
    """
    for field, line in problems(state).items():
        raise BadInput(f"{field}: {line}")
    other = second(state)
    shown = [state.controls] if other is None else [state.controls, other]
    most = common_frames(shown)
    made = [_followed(one, most) if one.trained else _simulated(one, most) for one in shown]
    lines = list(made[0])
    if other is not None:
        # The head is the same; what differs is the cloud, or β alone.
        *start, call = made[1]
        lines += [*(line for line in start if line not in lines), call.replace("run = ", "other = ", 1)]
    names = NAMES[: len(shown)]
    lines += [f"print({', '.join(names)})"]
    lines += [f'{name}.save("{name}.zarr")' for name in names]
    lines += [f'{name}.report("{name}.html")' for name in names]
    about = f'"""Made by the lab of metastable {__version__}. The same page: ?{state.to_query()}"""'
    body = "\n".join(lines)
    return "\n".join([about, "", *_imports(body, state.controls), "", body, ""])


def _imports(body: str, controls: Controls) -> list[str]:
    found = ["import math", ""] if "math." in body else []
    if "np." in body:
        found += ["import numpy as np", ""]
    if controls.trained:
        own = ["from metastable.lab.trained import TEXTS"] if controls.law == "tokens" else []
        return [*found, "from metastable.encoder.trained_head import follow", *own]
    return [*found, "import metastable as ms"]


def _simulated(controls: Controls, most: int) -> list[str]:
    dim = head_of(controls).dim
    settings = _settings(arguments(controls, dim, most))
    return [*_head(controls), f"cloud = {_cloud(controls, dim)}", f"run = ms.simulate(head, cloud, {settings})"]


def _head(controls: Controls) -> list[str]:
    if controls.matrices:
        B, V = parse_matrices(controls.matrices)
        return [f"B = {_rows(B)}", f"V = {_rows(V)}", "head = ms.Head.from_interaction(B, V)"]
    b, v = ([float(x) for x in part] for part in (controls.interaction, controls.value))
    return [
        f"B, angle, R = np.diag({b}), np.radians({float(controls.angle)!r}), np.eye({controls.d})",
        "R[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]",
        f"V = R @ np.diag({v}) @ R.T",
        "head = ms.Head.from_interaction(B, V)",
    ]


def _rows(matrix: Matrix) -> str:
    if len(repr(matrix)) <= WIDEST:
        return repr(matrix)
    return "\n".join(["[", *(f"    {row!r}," for row in matrix), "]"])


def _cloud(controls: Controls, dim: int) -> str:
    given = law_arguments(controls, dim)
    filled = {"graded": "head, ", "uniform": f"d={dim}, "}.get(controls.law, "")
    rest = ", ".join(f"{name}={_value(value)}" for name, value in given.items() if name != "n")
    return f"ms.{controls.law}({given['n']}, {filled}{rest})".replace(", )", ")")


def _followed(controls: Controls, most: int) -> list[str]:
    texts = "TEXTS, " if controls.law == "tokens" else ""
    start = f"{texts}law={controls.law!r}, n={controls.n}, seed={controls.seed}"
    return [f"run = follow({controls.trained!r}, {start}, {_settings(arguments(controls, None, most))})"]


def _settings(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "math.inf"
    if isinstance(value, list) and len(value) > 3 and len(set(map(str, value))) == 1:
        return f"[{value[0]!r}] * {len(value)}"
    return repr(value)


def data(runs: Sequence[Run], distances: Sequence[xr.DataArray | None] = ()) -> bytes:
    """The numbers of the runs as one .npz file, which numpy alone can open, with nothing to unpack first.

    times (T,), frames (T, N, d), weights (N,), distance (T,) (W₂ to the limit law, where there is one), B, V, and in
    `about`, as JSON, how the run was made. Those of a second run have the names with `other_` in front.

    distances : those that are known already
    """
    arrays: dict[str, np.ndarray] = {}
    for i, run in enumerate(runs):
        prefix = f"{NAMES[i]}_" if i else ""
        arrays |= {prefix + name: array for name, array in _arrays(run, distances[i] if distances else None).items()}
    written = io.BytesIO()
    np.savez(written, **arrays)  # type: ignore[arg-type]
    return written.getvalue()


def _arrays(run: Run, distance: xr.DataArray | None) -> dict[str, np.ndarray]:
    tensors = {"times": run.times, "frames": run.frames, "weights": run.cloud.weights, "B": run.head.B, "V": run.head.V}
    found = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    if distance is None and not run.theory().no_limit:
        distance = run.distance()
    if distance is not None:
        found["distance"] = distance.values
    about = {key: value for key, value in store.description(run).items() if key != "head"}
    return {**found, "about": np.array(json.dumps(about))}


def report(run: Run) -> bytes:
    """The report of a run as one HTML file, that of `run.report`."""
    return render(run).encode()
