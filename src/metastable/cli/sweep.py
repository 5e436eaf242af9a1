"""`metastable sweep`: many simulations along axes, one dataset and one page of phase diagrams."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.exits import EXIT_FINDING, complain, one_line_errors
from metastable.cli.options import AsJson, Debug, Scheduler, Workers

if TYPE_CHECKING:
    import xarray as xr

# At most this many reasons of failed points are printed; the dataset has all of them.
SHOWN_REASONS = 5


def sweep(
    config: Annotated[
        Path, typer.Argument(help="A TOML file as for simulate, with a table \\[axes] and optionally \\[outputs].")
    ],
    scheduler: Scheduler = None,
    workers: Workers = None,
    memory: Annotated[str | None, typer.Option(help="Memory limit of one worker on this machine, as 4GB.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for sweep.zarr, report.html and the journal of points.")] = Path(
        "metastable-sweep"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another sweep in that folder.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Compute the failed points again.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Simulate at every combination of the values in \\[axes]: a dataset (xarray, Zarr) and a page of phase diagrams.

    Axes are arguments of simulate, of the starting law, of the head and of the block: beta, until, n, law, seed, gap,
    angle, norm, kernel, causal, noise, heads, ...

    Every finished point is saved at once. The same command after any interruption computes only the points that are
    missing or damaged, and ends with the same bytes.

    Exit code: 1 if points failed, 70 if the scheduler was lost.
    """
    with one_line_errors(debug):
        from metastable.scale import sweep as room

        data = room.sweep(
            out=out, scheduler=scheduler, workers=workers, memory=memory, overwrite=overwrite,
            retry_failed=retry_failed, **room.read(config),
        )  # fmt: skip
        found = _summary(data, out)
        print(json.dumps(found, indent=1) if as_json else "\n".join(_lines(found)))
    if found["failed"]:
        raise typer.Exit(EXIT_FINDING)


def _summary(data: xr.Dataset, out: Path) -> dict[str, Any]:
    import numpy as np

    from metastable.scale.dataset import Places

    failed = data["status"].values == 1
    name = next((name for name in ("least", "distance") if name in data), None)
    distances = np.array([]) if name is None else data[name].values
    page = _report(data, Places(out).page)
    return {
        "schema": data.attrs["schema"],
        "points": int(failed.size),
        "failed": int(failed.sum()),
        "reasons": dict(Counter(str(reason) for reason in data["reason"].values[failed]).most_common()),
        "axes": {str(name): int(data.sizes[name]) for name in data["status"].dims},
        "variables": sorted(map(str, data.data_vars)),
        "least_distance": float(np.nanmin(distances)) if np.isfinite(distances).any() else None,
        "dataset": str(Places(out).dataset),
        "report": None if page is None else str(page),
    }


def _report(data: xr.Dataset, path: Path) -> Path | None:
    """Write the page of maps. A page that cannot be drawn is no failure of the sweep."""
    from metastable.scale import report

    try:
        return report.write(data, path)
    except Exception as error:
        path.unlink(missing_ok=True)
        what = "the dataset is complete, but its report could not be made"
        complain(f"{what}: {type(error).__name__}: {error}")
        return None


def _lines(found: dict[str, Any]) -> list[str]:
    """The summary for a terminal."""
    axes = " × ".join(f"{count} {name}" for name, count in found["axes"].items())
    lines = [f"{found['points']} points: {axes}"]
    if found["least_distance"] is not None:
        lines.append(f"least distance to the limit law: {found['least_distance']:.3g}")
    if found["failed"]:
        lines.append(f"{found['failed']} points failed (--retry-failed computes them again):")
        reasons = list(found["reasons"].items())
        lines += [f"  {count} × {reason}" for reason, count in reasons[:SHOWN_REASONS]]
        lines += [f"  and {len(reasons) - SHOWN_REASONS} other reasons"] if len(reasons) > SHOWN_REASONS else []
    lines.append(f"dataset: {found['dataset']}")
    return lines if found["report"] is None else [*lines, f"report: {found['report']}"]
