"""What `metastable sweep` does once its arguments are parsed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from metastable.errors import BadInput
from metastable.scale import report
from metastable.scale import sweep as room
from metastable.scale.dataset import Places, head_of
from metastable.scale.points import FAILED
from metastable.theory import Theory

SHOWN = 5
"""So many reasons of failed points are printed; the dataset has all."""


def sweep(config: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Make (or go on with) the sweep of a TOML file in the folder `out`; what there is to say about it."""
    data = room.sweep(out=out, **room.read(config), **options)
    page = _drawn(data, Places(out).page)
    failed = data["status"].values == FAILED
    reasons = Counter(str(words) for words in data["reason"].values[failed])
    return {
        "schema": data.attrs["schema"],
        "points": int(failed.size),
        "failed": int(failed.sum()),
        "reasons": dict(reasons.most_common()),
        "axes": {str(name): int(data.sizes[name]) for name in data["status"].dims},
        "variables": sorted(map(str, data.data_vars)),
        "least_distance": _least(data),
        "dataset": str(Places(out).dataset),
        "report": None if page is None else str(page),
    }


def _drawn(data: xr.Dataset, path: Path) -> Path | None:
    """The page of maps. What goes wrong with a picture must not look as if the sweep had failed."""
    try:
        return report.write(data, path, lambda at: _theory(data, at))
    except Exception as error:
        path.unlink(missing_ok=True)
        words = " ".join(str(error).split())
        what = "the dataset is complete, but its report could not be made"
        print(f"metastable: {what}: {type(error).__name__}: {words}", file=sys.stderr)
        return None


def _theory(data: xr.Dataset, at: dict[str, Any]) -> Theory | None:
    """Of the head at these values; None where no head can be made, which the points there say too."""
    try:
        return head_of(data, **at).theory()
    except BadInput:
        return None


def _least(data: xr.Dataset) -> float | None:
    """The least distance to the limit law at any point and time."""
    name = next((name for name in ("least", "distance") if name in data), None)
    values = np.array([]) if name is None else data[name].values
    return float(np.nanmin(values)) if np.isfinite(values).any() else None


def swept(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    axes = " × ".join(f"{count} {name}" for name, count in found["axes"].items())
    lines = [f"{found['points']} points: {axes}"]
    if found["least_distance"] is not None:
        lines.append(f"least distance to the limit law: {found['least_distance']:.3g}")
    if found["failed"]:
        lines.append(f"{found['failed']} points failed (--retry-failed computes them again):")
        reasons = list(found["reasons"].items())
        lines += [f"  {count} × {words}" for words, count in reasons[:SHOWN]]
        lines += [f"  and {len(reasons) - SHOWN} other reasons"] if len(reasons) > SHOWN else []
    lines.append(f"dataset: {found['dataset']}")
    return lines if found["report"] is None else [*lines, f"report: {found['report']}"]
