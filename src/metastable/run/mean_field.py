"""`mean_field`: the continuity equation solved on cells, refined until the distance no longer changes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from metastable.arrays import positive, real
from metastable.block import Block, as_block
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.flow.meanfield.flow import CellSizes, follow, start
from metastable.flow.meanfield.laws import log_density
from metastable.head import Head
from metastable.progress import Progress
from metastable.run import storage
from metastable.run.run import BaseRun
from metastable.run.simulation import Stopwatch, saved_times
from metastable.theory import phases


@dataclass(frozen=True)
class Frames:
    """Weighted points at several times. Short frames are filled up with copies of their first point at weight 0.

    points : (T, N, d)
    log_weights : (T, N), −inf where filled up
    """

    points: Tensor
    log_weights: Tensor

    @classmethod
    def of(cls, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Frames:
        most, d = max(len(x) for x, _ in found), found[0][0].shape[1]
        points = torch.empty(len(found), most, d, dtype=torch.float64)
        log_weights = torch.full((len(found), most), -math.inf, dtype=torch.float64)
        for i, (x, w) in enumerate(found):
            points[i, : len(x)], points[i, len(x) :] = torch.from_numpy(x), torch.from_numpy(x[0])
            log_weights[i, : len(x)] = torch.from_numpy(w)
        return cls(points, log_weights)

    def __len__(self) -> int:
        return len(self.points)

    def cloud(self, index: int, law: dict[str, Any]) -> Cloud:
        """The frame as a cloud, without the filling."""
        seen = self.log_weights[index] > -math.inf
        return Cloud.exactly(self.points[index][seen], self.log_weights[index][seen], law)

    def clouds(self, law: dict[str, Any]) -> Iterator[Cloud]:
        return (self.cloud(i, law) for i in range(len(self)))

    def moments(self) -> np.ndarray:
        """Mean and second moments of every frame, (T, d + d²)."""
        w, x = self.log_weights.exp(), self.points
        first, second = torch.einsum("tn,tnd->td", w, x), torch.einsum("tn,tnc,tnd->tcd", w, x, x)
        return torch.cat([first, second.flatten(1)], dim=1).numpy()


Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class MeanFieldPhases(phases.Phases):
    """Phases of the finest run; each time has an interval, ± its change from the run with cells twice as long.

    An interval is None where one of the two runs did not see the event.
    """

    concentrated_interval: Interval | None = None
    terminal_interval: Interval | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        found = list(super().sentences)
        for name, interval in (("concentrated", self.concentrated_interval), ("terminal", self.terminal_interval)):
            if interval is not None:
                found.append(f"{name} between t = {interval[0]:.6g} and {interval[1]:.6g} (discretisation)")
        return tuple(found)


@dataclass(frozen=True, kw_only=True, repr=False)
class MeanFieldRun(BaseRun):
    """A solution of ∂_t μ + div(μ 𝒱_β[μ]) = 0, made by `mean_field`: cells that move with the flow and keep their mass.

    Attributes
    ----------
    cloud : the quadrature of the starting law by the starting cells; its `law` says which law
    frames : (T, N, d) quadrature points of the cells at the saved times. They are not tokens: row n of one frame and
        row n of another are not related
    log_weights : (T, N), −inf where a frame has fewer than N points
    coarse : the same run with cells twice as long. Its difference from this run is the error that is printed
    converged : whether the change of the distance was at most `tol` (see `mean_field`)
    """

    log_weights: Tensor
    coarse: Frames

    lacks: ClassVar[tuple[str, ...]] = ("sphere", "angles")

    @property
    def fine(self) -> Frames:
        return Frames(self.frames, self.log_weights)

    @property
    def converged(self) -> bool:
        return self.discretisation <= float(self.configuration["tol"])

    @property
    def discretisation(self) -> float:
        """The largest change over the saved times when the cells were halved: of W₂ to ν, or of the moments.

        Of the moments (mean and second moments, Euclidean) when ν is not two atoms, so that no exact W₂ exists.
        """
        return float(self.configuration["discretisation"])

    def at(self, index: int) -> Cloud:
        return self.fine.cloud(index, self.cloud.law)

    def to_dataset(self) -> xr.Dataset:
        return storage.mean_field_dataset(self)

    def _distance(self, p: float, target: str | Cloud, cost: str) -> xr.DataArray:
        """W_p as for a `Run`. `lower` and `upper` are widened by the discretisation error.

        That error, at each time, is the largest change between the two finest runs at the saved times next to it;
        the attribute `discretisation` is the largest over all times.
        """
        curve = super()._distance(p, target, cost)
        coarse = self._distances(self.coarse.clouds(self.cloud.law), p, target, cost)
        change = np.abs(np.array([d.value for d in coarse]) - curve.values)
        padded = np.pad(change, 1, mode="edge")
        error = np.maximum(np.maximum(padded[:-2], padded[2:]), change)
        sides = {"lower": np.maximum(curve["lower"].values - error, 0), "upper": curve["upper"].values + error}
        return curve.assign_coords({side: ("time", values) for side, values in sides.items()}).assign_attrs(
            discretisation=float(error.max())
        )

    def phases(self, factor: float = 1.5) -> MeanFieldPhases:
        """Concentration, plateaus and terminal onset of the W₂ curve, times with intervals of discretisation."""
        fine = super().phases(factor)
        other = self._distances(self.coarse.clouds(self.cloud.law), 2, "limit", "chordal")
        coarse = phases.detect(self.times.numpy(), [d.value for d in other], factor=factor)
        return MeanFieldPhases(
            **vars(fine),
            concentrated_interval=_around(fine.concentrated, coarse.concentrated),
            terminal_interval=_around(fine.terminal, coarse.terminal),
        )

    def __repr__(self) -> str:
        error = f"{self.discretisation:.2g}" + ("" if self.converged else ", not converged")
        return (
            f"MeanFieldRun({self.cloud.law['law']}, d={self.cloud.dim}, beta={self.beta:g}, "
            f"{len(self.times)} frames to t={self.horizon:g}, discretisation {error})"
        )


class CellKind(NamedTuple):
    """How the cells of one dimension are refined.

    coarsest : length of the longest cells of the first level, in β^{−1/2}
    levels : the equation is solved with at most this many sizes of cells, each half of the one before
    merged : neighbours are merged when they are shorter than this share of the longest cells
    """

    coarsest: float
    levels: int
    merged: float


KINDS = {2: CellKind(0.6, 6, 0.5), 3: CellKind(2.0, 3, 0.3)}
"""By dimension: intervals, and triangles, which are good to second order inside and may be longer."""
STEP = 3e-4
"""Largest error of a time step, in lengths of the longest cells: refinement covers the time stepping too."""


def mean_field(
    head: Head | Block,
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

    In d = 3 there are about 30 β/h² triangles: β = 30 takes minutes, and β = 400 is a practical limit. d ≥ 4 is
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
    head: Head | Block,
    law: Any,
    beta: float,
    until: float,
    tol: float,
    t_eval: Any = None,
    progress: bool | None = None,
) -> MeanFieldRun:
    """The run of `mean_field`, without its warning: `run.converged` says whether `tol` was reached."""
    block = as_block(head)
    if not block.plain:
        raise BadInput(
            f"the mean field is solved for one softmax head on the sphere; this is {block.name}: use ms.simulate"
        )
    head = block.head
    if head.dim not in KINDS:
        stops = f"cells stop at d = {max(KINDS)}, further on use ms.simulate with ms.graded(n, head)"
        raise BadInput(f"the head has d = {head.dim}; {stops}")
    if math.isinf(real(beta, "beta", "it must be a finite number above 0")):
        raise BadInput("beta is inf; the zero-temperature flow is exact already: use ms.zero_temperature_flow")
    beta = positive(beta, "beta")
    if not 0 < (tol := real(tol, "tol", "it must lie between 0 and 1")) < 1:
        raise BadInput(f"tol is {tol!r}; it must lie between 0 and 1: it is the wanted error of a distance")
    until = positive(until, "until")
    density, record = log_density(law, head.dim)
    times = saved_times(t_eval if t_eval is not None else 201, until)
    head, stopwatch, kind = head.to(torch.float64, "cpu"), Stopwatch(), KINDS[head.dim]
    coarser: Frames | None = None
    for level in range(kind.levels):
        # Cells are at most hβ^{−1/2} long.
        h = kind.coarsest / 2**level
        longest = h * beta**-0.5
        sizes = CellSizes(longest, kind.merged * longest, STEP * longest)
        with Progress(times[-1], progress) as bar:
            frames, work = follow(head, start(head, density, longest), beta, times, sizes, bar)
        fine = Frames.of(frames)
        configuration = {"beta": beta, "method": "cells", "tol": tol, "times": list(times), "cell": h, **work}
        run = MeanFieldRun(
            block=Block(head),
            cloud=fine.cloud(0, record),
            beta=beta,
            times=torch.tensor(times, dtype=torch.float64),
            frames=fine.points,
            log_weights=fine.log_weights,
            coarse=fine if coarser is None else coarser,
            configuration={**configuration, "engine": "cells"},
        )
        run.configuration["discretisation"] = math.inf if coarser is None else _change(run)
        run.configuration.update(stopwatch.read())
        if run.converged:
            break
        coarser = fine
    return run


def _change(run: MeanFieldRun) -> float:
    """The largest change against the coarser run over the saved times."""
    if run.theory().no_limit or run.theory().dim > 1:
        return float(np.linalg.norm(run.fine.moments() - run.coarse.moments(), axis=1).max())
    return float(run.distance().attrs["discretisation"])


def _around(fine: float | None, coarse: float | None) -> Interval | None:
    if fine is None or coarse is None:
        return None
    return fine - abs(fine - coarse), fine + abs(fine - coarse)
