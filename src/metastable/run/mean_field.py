"""`mean_field`: the continuity equation solved on cells, refined until the distance no longer changes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from metastable.arrays import positive, real
from metastable.errors import BadInput
from metastable.flow.meanfield import circle
from metastable.flow.meanfield.cells import Cells
from metastable.flow.meanfield.flow import Followed, Sizes, follow
from metastable.flow.meanfield.laws import LogDensity, log_density
from metastable.flow.meanfield.sphere import triangles
from metastable.head import Head
from metastable.progress import Progress
from metastable.run.mean_field_frames import Frames
from metastable.run.mean_field_run import MeanFieldRun, restored
from metastable.run.simulation import saved_times


class Kind(NamedTuple):
    """How the cells of one dimension are made and how they are refined.

    coarsest : length of the longest cells of the first level, in β^{−1/2}
    levels : the cells are halved at most this often less one
    merged : neighbours are merged when they are shorter than this share of the longest cells
    """

    start: Callable[[Head, LogDensity, float], Cells]
    coarsest: float
    levels: int
    merged: float


KINDS = {2: Kind(circle.start, 0.6, 6, 0.5), 3: Kind(triangles.start, 2.0, 3, 0.3)}
"""By dimension: intervals, and triangles, which are good to second order inside and may be longer."""
STEP = 3e-4
"""Largest error of a time step, in lengths of the longest cells: refinement covers the time stepping too."""


def mean_field(
    head: Head,
    law: Any,
    beta: float,
    until: float,
    tol: float = 1e-3,
    *,
    t_eval: int | Sequence[float] | None = None,
    progress: bool | None = None,
) -> MeanFieldRun:
    """Solve ∂_t μ + div(μ 𝒱_β[μ]) = 0 from the starting law, rather than follow one sample of it.

    Cells tile the sphere and move with the flow, so that each keeps its mass, exactly, as a logarithm. A cell longer
    than hβ^{−1/2} is split and tiny ones are merged. The equation is solved with h = 0.6, 0.3, … on intervals (d = 2)
    and h = 2, 1, ½ on triangles (d = 3) until halving the cells changes W₂(μ_t, ν) by at most `tol` at every saved
    time; the finest run is the answer and the last change its error.

    Parameters
    ----------
    law : "uniform", a cloud of `uniform`, `von_mises_fisher` or `mixture` (its law counts, not its sample), or a
        callable: log-density (up to a constant) at points (n, d), as (n,)
    beta : inverse temperature, 0 < β < inf
    tol : wanted error of W₂(μ_t, ν), between 0 and 1. If the last level does not reach it, a warning says so and
        `run.converged` is False. Where ν is not two atoms, the error is that of the first and second moments
    t_eval : how many equally spaced times to save, or the times themselves; 201 unless given
    progress : show a bar for each level; by default when standard error is a terminal

    In d = 3 there are about 30 β/h² triangles: β = 30 takes minutes, and β = 400 is as far as one would wait. d ≥ 4 is
    refused: use `simulate` with `graded` clouds.

    Examples
    --------
    >>> head = Head.from_interaction([[1.4, 0.1], [0.1, 0.7]], [[1.2, -0.2], [-0.2, 0.5]])
    >>> run = mean_field(head, "uniform", beta=20.0, until=2.0, tol=0.01, t_eval=5)
    >>> run.converged, bool(run.discretisation < 0.01)
    (True, True)
    """
    run = refined(head, law, beta, until, tol, t_eval=t_eval, progress=progress)
    if not run.converged:
        still = f"the distance still changed by {run.discretisation:.2g} when the cells were halved to"
        warnings.warn(f"{still} {run.configuration['cell']:.3g} β^(-1/2), more than tol = {tol:g}", stacklevel=2)
    return run


def refined(
    head: Head,
    law: Any,
    beta: float,
    until: float,
    tol: float = 1e-3,
    *,
    t_eval: int | Sequence[float] | None = None,
    progress: bool | None = None,
) -> MeanFieldRun:
    """The run of `mean_field`, without its warning: `run.converged` says whether `tol` was reached."""
    beta, until, tol = _checked(head, beta, until, tol)
    density, record = log_density(law, head.dim)
    times = saved_times(t_eval if t_eval is not None else 201, until)
    head, began = head.to(torch.float64, "cpu"), time.perf_counter()
    run: MeanFieldRun | None = None
    for level in range(KINDS[head.dim].levels):
        run = _level(KINDS[head.dim].coarsest / 2**level, head, density, record, beta, times, tol, run, progress)
        run.configuration["seconds"] = time.perf_counter() - began
        if run.converged:
            return run
    assert run is not None
    return run


def _level(
    h: float,
    head: Head,
    density: LogDensity,
    law: dict[str, Any],
    beta: float,
    times: tuple[float, ...],
    tol: float,
    coarser: MeanFieldRun | None,
    progress: bool | None,
) -> MeanFieldRun:
    """The run with cells up to hβ^{−1/2}, and its change from the coarser one."""
    longest = h * beta**-0.5
    kind = KINDS[head.dim]
    sizes = Sizes(longest, kind.merged * longest, STEP * longest)
    with Progress(times[-1], progress) as bar:
        found = follow(head, kind.start(head, density, longest), beta, times, sizes, bar)
    fine = Frames.of(found.frames)
    run = restored(
        head,
        law,
        beta,
        torch.tensor(times, dtype=torch.float64),
        (fine.points, fine.log_weights),
        (fine.points, fine.log_weights) if coarser is None else (coarser.frames, coarser.log_weights),
        _configuration(beta, times, tol, h, found),
    )
    run.configuration["discretisation"] = math.inf if coarser is None else _change(run)
    return run


def _checked(head: Head, beta: float, until: float, tol: float) -> tuple[float, float, float]:
    if head.dim not in KINDS:
        stops = f"cells stop at d = {max(KINDS)}, further on use ms.simulate with ms.graded(n, head)"
        raise BadInput(f"the head has d = {head.dim}; {stops}")
    beta = real(beta, "beta", "it must be a finite number above 0")
    if math.isinf(beta):
        raise BadInput("beta is inf; the zero-temperature flow is exact already: use ms.zero_temperature_flow")
    if not 0 < (tol := real(tol, "tol", "it must lie between 0 and 1")) < 1:
        raise BadInput(f"tol is {tol!r}; it must lie between 0 and 1: it is the wanted error of a distance")
    return positive(beta, "beta"), positive(until, "until"), tol


def _configuration(beta: float, times: tuple[float, ...], tol: float, h: float, found: Followed) -> dict[str, Any]:
    cost = {name: getattr(found, name) for name in ("steps", "rejected", "evaluations", "most_cells")}
    return {"beta": beta, "method": "cells", "tol": tol, "times": list(times), "cell": h, **cost, "engine": "cells"}


def _change(run: MeanFieldRun) -> float:
    """The largest change against the coarser run over the saved times."""
    if run.theory().no_limit or run.theory().dim > 1:
        return float(np.linalg.norm(run.fine.moments() - run.coarse.moments(), axis=1).max())
    return float(run.distance().attrs["discretisation"])
