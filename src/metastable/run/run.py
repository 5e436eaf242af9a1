"""A run: what a simulation returns, what it can say about itself, and how it is kept."""

from __future__ import annotations

import math
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
from metastable.errors import BadInput, choice
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.run import storage as store
from metastable.run.certificate import gronwall
from metastable.run.observables import observe
from metastable.theory import Theory, phases

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Run:
    """Frames of a token cloud under a head, with everything needed to repeat and to judge them.

    Attributes
    ----------
    head, cloud, beta : the head, the starting cloud and the inverse temperature
    times : (T,) saved times, from 0 to the horizon
    frames : (T, N, d) positions at those times; the weights are those of `cloud`
    field_errors : (S, 2) rows (t, ε): at each accepted step the root mean square over tokens (by weight) of
        |𝒱_β[μ_t](x) − 𝒱_∞(x)|
    configuration : how the run was made (method, tolerance, engine, …)
    merged : for a run with `merge`, (T, 3) rows at the saved times: live tokens, bound of the error, largest so far
    jumps : for a run with `merge`, (J, 2) rows (t, e): how far each merge moved the law, in geodesic W₂
    """

    head: Head
    cloud: Cloud
    beta: float
    times: Tensor
    frames: Tensor
    field_errors: Tensor
    configuration: dict[str, Any] = field(default_factory=dict)
    merged: Tensor | None = None
    jumps: Tensor | None = None

    @property
    def initial(self) -> Cloud:
        return self.cloud

    @property
    def final(self) -> Cloud:
        """The cloud at the last saved time."""
        return self.at(-1)

    @property
    def horizon(self) -> float:
        return float(self.times[-1])

    def at(self, index: int) -> Cloud:
        """The cloud at the saved time with this index."""
        return self.cloud.moved_to(self.frames[index])

    def theory(self) -> Theory:
        """What the theory predicts for the head of this run: the same as `run.head.theory()`."""
        return self.head.theory()

    @cached_property
    def limit(self) -> Cloud:
        """ν = T_# μ₀: every token at the point where the theory sends it (BadInput when there is no limit).

        A token with Πx₀ = 0 exactly has no limit; it is put at the first basis vector of E.
        """
        pushed = self.theory().limit(self.cloud.points)
        lost = torch.isnan(pushed).any(dim=1)
        pushed[lost] = self.theory().basis[:, 0].to(pushed)
        return self.cloud.moved_to(pushed)

    @cached_property
    def zero_temperature_frames(self) -> Tensor:
        """The same starting tokens under the exact zero-temperature flow, at the saved times: (T, N, d)."""
        return zero_temperature_flow(self.head, self.cloud, self.times.to(torch.float64))

    def _curve(self, name: str, values: Any, **attrs: Any) -> xr.DataArray:
        curve = xr.DataArray(np.asarray(values, dtype=float), coords={"time": self.times.cpu().numpy()}, dims="time")
        return curve.rename(name).assign_attrs(beta=self.beta, **attrs)

    def _distances(self, name: str, found: list[transport.Distance]) -> xr.DataArray:
        first = found[0]
        methods = sorted({d.method for d in found})
        curve = self._curve(name, [d.value for d in found], p=first.p, cost=first.cost, method="; ".join(methods))
        bounds = {side: ("time", [getattr(d, side) for d in found]) for side in ("lower", "upper")}
        return curve.assign_coords(bounds)

    def distance(self, p: float = 2, target: str | Cloud = "limit", cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t, target) at every saved time, with `lower` and `upper` as coordinates.

        target : "limit", the law ν = T_# μ₀ (exact for dim E = 1 at any N, see `transport`); "terminal", the
            push-forward of μ_t itself to V's dominant eigenspace; or any Cloud.
        """
        name, steps = f"W{p:g}", range(len(self.times))
        if isinstance(target, Cloud):
            return self._distances(name, [transport.wasserstein(self.at(i), target, p, cost=cost) for i in steps])
        if isinstance(target, str) and (p, target, cost) == (2, "limit", "chordal"):
            return self._limit_distance.copy()
        if target == "limit":
            return self._distances(name, self._to_limit(self.frames, p, cost))
        if target != "terminal":
            raise BadInput(f"target is {target!r}; it must be 'limit', 'terminal' or a Cloud")
        end = self.theory().terminal
        found = [transport.to_limit(self.at(i), end.limit(self.frames[i]), end.basis, p, cost) for i in steps]
        return self._distances(name, found)

    @cached_property
    def _limit_distance(self) -> xr.DataArray:
        """W₂ to the limit law, which phases, summary and report all ask for."""
        return self._distances("W2", self._to_limit(self.frames, 2, "chordal"))

    def _to_limit(self, frames: Tensor, p: float, cost: str) -> list[transport.Distance]:
        pushed, basis, weights = self.limit.points, self.theory().basis, self.cloud.weights
        if self.theory().dim > 1:
            return [transport.to_limit(self.cloud.moved_to(x), pushed, basis, p, cost) for x in frames]
        up = pushed @ basis[:, 0].to(pushed) > 0
        # Both masses as sums of the weights themselves: 1 − mass would differ in the last digits and split a token.
        masses = [float(weights[side].double().sum()) for side in (up, ~up)]
        atoms = torch.stack([basis[:, 0], -basis[:, 0]])
        return [transport.two_atoms(x, weights, atoms, masses, p, cost) for x in frames]

    def laplace_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t^β, μ_t^∞), bounded above by following the same tokens under both flows."""
        exact = self.zero_temperature_frames
        pairs = (transport.coupling(self.at(i), self.cloud.moved_to(exact[i]), p, cost) for i in range(len(exact)))
        return self._distances("Laplace term", list(pairs))

    def lyapunov_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t^∞, ν): how far the zero-temperature law itself still is from its limit."""
        frames = self.zero_temperature_frames
        return self._distances("Lyapunov term", self._to_limit(frames, p, cost))

    def certificate(self) -> xr.DataArray:
        """∫₀ᵗ ε(s) e^{L(t−s)} ds, an upper bound of the geodesic (so of the chordal) W₂(μ_t^β, μ_t^∞).

        ε was measured on the run at every step and L is the head's one-sided Lipschitz constant; nothing is
        fitted. Between steps the larger of the two ends of ε is taken, and merges add the way that they moved the law.
        The attribute `vacuous_after` is the time
        from which the bound exceeds π, the diameter of the sphere, and says nothing more; None if it never does.
        """
        if self.head.offset is not None:
            raise BadInput("the certificate needs linear scores, but this head has an offset")
        L = self.theory().lipschitz
        values = gronwall(self.field_errors, L, self.times, self.jumps)
        above = np.flatnonzero(~(values < math.pi))
        vacuous = float(self.times[above[0]]) if len(above) else None
        return self._curve("certificate", values, lipschitz=L, vacuous_after=vacuous, p=2, cost="geodesic")

    def merge_error(self) -> xr.DataArray:
        """A bound of W₂(μ_t, μ_t without merging) at every saved time, for a run with `merge` (see `merging`).

        It follows the displacements of all merges along the run, to second order in δ. The coordinate `live` is the
        number of tokens that the solver still moved, `largest` the largest bound at any step so far. Where the
        expansion no longer holds (merged tokens would come apart) the bound is inf; the attribute `vacuous_after` is
        the first such time, None if there is none.
        """
        if self.merged is None:
            raise BadInput("this run was made without merging; give merge= to simulate")
        live, values, largest = self.merged.cpu().numpy().T
        above = np.flatnonzero(~np.isfinite(values))
        vacuous = float(self.times[above[0]]) if len(above) else None
        delta = self.configuration.get("merge")
        curve = self._curve("merge error", values, delta=delta, vacuous_after=vacuous, p=2, cost="chordal")
        return curve.assign_coords(live=("time", live.astype(int)), largest=("time", largest))

    def merge_sentence(self) -> str:
        """What merging did, in one sentence."""
        error = self.merge_error()
        live, delta, lost = int(error["live"][-1]), error.attrs["delta"], error.attrs["vacuous_after"]
        if live == len(self.cloud):
            return f"merging at distance {delta:g} found nothing to merge"
        became = f"merging at distance {delta:g} left {live} of {len(self.cloud)} tokens to move"
        if lost is not None:
            return f"{became}; its error is not known from t = {lost:g} on: try a smaller distance"
        least = np.finfo(np.float64).eps
        now, most = (f"{max(float(e), least):.1e}" for e in (error[-1], error["largest"][-1]))
        return f"{became} and changed the law by at most {most} in W2, {now} at the end, time stepping aside"

    def noise_floor(self, p: float = 2, cost: str = "chordal", seed: int = 0) -> transport.NoiseFloor:
        """W_p between two independent samples of ν as large as the cloud: what another sample would change.

        The distance of a cloud to the limit of its own tokens carries the same masses on both sides and can be
        smaller than this.
        """
        return transport.noise_floor(self.limit, p=p, cost=cost, seed=seed)

    def phases(self, factor: float = 1.5) -> phases.Phases:
        """Concentration, plateaus and terminal onset, read off the W₂ curve to the limit law."""
        return phases.detect(self.times.cpu().numpy(), self._limit_distance.values, factor=factor)

    def observables(self, sample: int = 1000, seed: int = 0) -> xr.Dataset:
        """Log-energy, mean cosine, effective rank and cluster count at every saved time (see `observables`)."""
        rows = [observe(self.head, self.at(i), self.beta, sample, seed) for i in range(len(self.times))]
        columns = {name: self._curve(name, [row[name] for row in rows]) for name in rows[0]}
        return xr.Dataset(columns, attrs={"beta": self.beta, "sample": min(sample, len(self.cloud)), "seed": seed})

    def to_xarray(self) -> xr.Dataset:
        """Frames, weights and the per-step field errors as a labelled Dataset."""
        return store.dataset(self)

    def save(self, path: str | Path) -> Path:
        """Write `path` (a folder, *.zarr) and the same name with .json beside it, both whole or not at all."""
        return store.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Run:
        """Read a run that `save`, `checkpoint=` or the command line wrote."""
        found = store.load(path)
        if "fine" in found:
            from metastable.run.mean_field_run import restored

            return restored(**found)
        return Run(**found)

    def figure(self, kind: str = "distance") -> go.Figure:
        """A Plotly figure: "distance" (with terms, bound, noise floor and phases), "sphere" or "spectrum"."""
        from metastable import figures

        return figures.OF_A_RUN[choice(kind, "figure", figures.OF_A_RUN)](self)

    def report(self, path: str | Path) -> Path:
        """Write one HTML file with the figures, the phases and the verdicts; it needs no network."""
        from metastable import report

        return report.write(self, path)

    def __repr__(self) -> str:
        return (
            f"Run({len(self.cloud)} tokens, d={self.cloud.dim}, beta={self.beta:g}, "
            f"{len(self.times)} frames to t={self.horizon:g})"
        )
