"""A run of the continuity equation, with its discretisation error."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from metastable import transport
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head
from metastable.run import storage as store
from metastable.run.mean_field_frames import Frames
from metastable.run.run import Run
from metastable.theory import phases

if TYPE_CHECKING:
    import plotly.graph_objects as go

Interval = tuple[float, float]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class MeanFieldRun(Run):
    """A solution of ∂_t μ + div(μ 𝒱_β[μ]) = 0, made by `mean_field`: cells that move with the flow and keep their mass.

    Attributes
    ----------
    cloud : the quadrature of the starting law by the starting cells; its `law` says which law
    frames : (T, N, d) quadrature points of the cells at the saved times. They are no tokens: row n of one frame has
        nothing to do with row n of another
    log_weights : (T, N), −inf where a frame has fewer than N points
    coarse : the same run with cells twice as long. What differs between the two is the error that is printed
    converged : whether the change of the distance was at most `tol` (see `mean_field`)
    """

    log_weights: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    coarse: Frames = field(default_factory=lambda: Frames(torch.empty(0, 0, 0), torch.empty(0, 0)))

    @property
    def fine(self) -> Frames:
        return Frames(self.frames, self.log_weights)

    @property
    def converged(self) -> bool:
        return bool(self.configuration["discretisation"] <= self.configuration["tol"])

    @property
    def discretisation(self) -> float:
        """The largest change over the saved times when the cells were halved: of W₂ to ν, or of the moments.

        Of the moments (mean and second moments, Euclidean) when ν is not two atoms, so that no exact W₂ exists.
        """
        return float(self.configuration["discretisation"])

    def at(self, index: int) -> Cloud:
        return self.fine.cloud(index, self.cloud.law)

    def distance(self, p: float = 2, target: str | Cloud = "limit", cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t, target), as for a `Run`; `lower` and `upper` are widened by the discretisation error.

        That error, at each time, is the largest change between the two finest runs at the saved times next to it;
        the attribute `discretisation` is the largest over all times.
        """
        if (p, cost) == (2, "chordal") and isinstance(target, str) and target == "limit":
            return self._limit_distance.copy()
        return self._widened(p, target, cost)

    @cached_property
    def _limit_distance(self) -> xr.DataArray:
        return self._widened(2, "limit", "chordal")

    def _widened(self, p: float, target: str | Cloud, cost: str) -> xr.DataArray:
        fine, coarse = (self._to(frames, p, target, cost) for frames in (self.fine, self.coarse))
        curve = self._distances(f"W{p:g}", fine)
        change = np.abs(np.array([d.value for d in coarse]) - curve.values)
        padded = np.pad(change, 1, mode="edge")
        error = np.maximum(np.maximum(padded[:-2], padded[2:]), change)
        sides = {"lower": np.maximum(curve["lower"].values - error, 0), "upper": curve["upper"].values + error}
        return curve.assign_coords({side: ("time", values) for side, values in sides.items()}).assign_attrs(
            discretisation=float(error.max())
        )

    def _to(self, frames: Frames, p: float, target: str | Cloud, cost: str) -> list[transport.Distance]:
        clouds = frames.clouds(self.cloud.law)
        if isinstance(target, Cloud):
            return [transport.wasserstein(cloud, target, p, cost=cost) for cloud in clouds]
        if target == "terminal":
            end = self.theory().terminal
            return [transport.to_limit(c, end.limit(c.points), end.basis, p, cost) for c in clouds]
        if target != "limit":
            raise BadInput(f"target is {target!r}; it must be 'limit', 'terminal' or a Cloud")
        return to_limit_law(self, frames, p, cost)

    def phases(self, factor: float = 1.5) -> MeanFieldPhases:
        """Concentration, plateaus and terminal onset of the W₂ curve, times with intervals of discretisation."""
        t = self.times.numpy()
        other = [d.value for d in self._to(self.coarse, 2, "limit", "chordal")]
        fine, coarse = (phases.detect(t, d, factor=factor) for d in (self._limit_distance.values, other))
        return MeanFieldPhases(
            **vars(fine),
            concentrated_interval=_around(fine.concentrated, coarse.concentrated),
            terminal_interval=_around(fine.terminal, coarse.terminal),
        )

    def _no_tokens(self, what: str) -> BadInput:
        return BadInput(f"{what} follows single tokens, and a mean-field run has none; use ms.simulate for it")

    def laplace_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        raise self._no_tokens("the Laplace term")

    def lyapunov_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        raise self._no_tokens("the Lyapunov term")

    def certificate(self) -> xr.DataArray:
        raise self._no_tokens("the certificate")

    def noise_floor(self, p: float = 2, cost: str = "chordal", seed: int = 0) -> transport.NoiseFloor:
        raise BadInput("a mean-field run is no sample and has no noise floor; see discretisation for its error")

    def to_xarray(self) -> xr.Dataset:
        """Frames and log-weights of the finest and of the next coarser run as a labelled Dataset."""
        return store.mean_field_dataset(self)

    @staticmethod
    def load(path: str | Path) -> MeanFieldRun:
        """Read a run that `save` wrote."""
        found = Run.load(path)
        if not isinstance(found, MeanFieldRun):
            raise BadInput(f"{path} holds a run of tokens, not of the mean field; read it with ms.Run.load")
        return found

    def figure(self, kind: str = "distance") -> go.Figure:
        """A Plotly figure: "distance" (with its band of discretisation and the phases), "spectrum" or "observables"."""
        if kind == "sphere":
            raise self._no_tokens("the figure 'sphere'")
        return super().figure(kind)

    def report(self, path: str | Path) -> Path:
        raise self._no_tokens("the report")

    def __repr__(self) -> str:
        error = f"{self.discretisation:.2g}" + ("" if self.converged else ", not converged")
        return (
            f"MeanFieldRun({self.cloud.law['law']}, d={self.cloud.dim}, beta={self.beta:g}, "
            f"{len(self.times)} frames to t={self.horizon:g}, discretisation {error})"
        )


def restored(
    head: Head,
    law: dict[str, Any],
    beta: float,
    times: Tensor,
    fine: tuple[Tensor, Tensor],
    coarse: tuple[Tensor, Tensor],
    configuration: dict[str, Any],
) -> MeanFieldRun:
    """A run from the points and log-weights of its frames."""
    frames = Frames(*fine)
    return MeanFieldRun(
        head=head,
        cloud=frames.cloud(0, law),
        beta=beta,
        times=times,
        frames=frames.points,
        field_errors=torch.empty(0, 2, dtype=torch.float64),
        configuration=configuration,
        log_weights=frames.log_weights,
        coarse=Frames(*coarse),
    )


def to_limit_law(run: Run, frames: Frames, p: float, cost: str) -> list[transport.Distance]:
    """W_p to ν, exact for dim E = 1; for larger E between the frame and the pushed starting quadrature."""
    if run.theory().dim > 1:
        return [transport.wasserstein(cloud, run.limit, p, cost=cost) for cloud in frames.clouds(run.cloud.law)]
    e = run.theory().basis[:, 0].double()
    up = run.limit.points @ e > 0
    masses = [float(run.cloud.weights[side].sum()) for side in (up, ~up)]
    atoms = torch.stack([e, -e])
    return [transport.two_atoms(c.points, c.weights, atoms, masses, p, cost) for c in frames.clouds(run.cloud.law)]


def _around(fine: float | None, coarse: float | None) -> Interval | None:
    if fine is None or coarse is None:
        return None
    return fine - abs(fine - coarse), fine + abs(fine - coarse)
