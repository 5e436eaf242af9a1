"""Runs: the results of simulations, with their distances, phases, figures and reports."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from metastable import notebook, transport
from metastable.block import Block
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.run import storage
from metastable.run.observables import observe
from metastable.theory import Theory, phases
from metastable.theory.block import BlockTheory

if TYPE_CHECKING:
    import plotly.graph_objects as go


QUICK = 2_000_000
"""Tokens times frames of a run whose distance a notebook computes without being asked."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """What runs of tokens and runs of the mean field have in common.

    Attributes
    ----------
    block, cloud, beta : the member of the family, the starting cloud and the inverse temperature
    times : (T,) saved times, from 0 to the horizon
    frames : (T, N, d) positions at those times, directions where tokens have a radius
    configuration : how the run was made (method, tolerance, engine, …) and what it took (seconds, cpu_seconds)
    """

    block: Block
    cloud: Cloud
    beta: float
    times: Tensor
    frames: Tensor
    configuration: dict[str, Any] = field(default_factory=dict)

    lacks: ClassVar[tuple[str, ...]] = ()
    """The kinds of figures that this kind of run does not have."""

    @property
    def without_figures(self) -> tuple[str, ...]:
        """The kinds of figures that this run does not have."""
        spectrum = [] if self.theory().attention is not None else ["spectrum"]
        angles = [] if self.cloud.dim == 2 else ["angles"]
        return (*self.lacks, *spectrum, *angles)

    @abstractmethod
    def at(self, index: int) -> Cloud:
        """The cloud at the saved time with this index."""

    @abstractmethod
    def to_dataset(self) -> xr.Dataset:
        """The arrays that `save` writes."""

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

    def _clouds(self) -> Iterator[Cloud]:
        return (self.at(i) for i in range(len(self.times)))

    @property
    def discrete(self) -> bool:
        """Whether the run was made of discrete layers and not in continuous time."""
        return self.configuration.get("method") == "layers"

    @property
    def head(self) -> Head:
        """The head of a run with one head; BadInput if there are several."""
        return self.block.head

    def theory(self) -> Theory | BlockTheory:
        """What the theory predicts for this run: the same as `run.block.theory()`."""
        return self.block.theory()

    def _theory_of_one_head(self, what: str) -> Theory:
        """The theory of the paper; BadInput, which names `what` needs it, for other members of the family."""
        if not self.block.plain:
            raise BadInput(f"{what} is for one softmax head on the sphere; this run is of {self.block.name}")
        return self.block.head.theory()

    @cached_property
    def limit(self) -> Cloud:
        """ν = T_# μ₀: every token at the point where the theory sends it (BadInput when there is no limit).

        A token without a limit, as one with Πx₀ = 0 exactly, is put at one of the limit points.
        """
        pushed = self.theory().limit(self.cloud.points)
        lost = torch.isnan(pushed).any(dim=1)
        pushed[lost] = self.theory().somewhere.to(pushed)
        return self.cloud.moved_to(pushed)

    def _curve(self, name: str, values: Any, **attrs: Any) -> xr.DataArray:
        curve = xr.DataArray(np.asarray(values, dtype=float), coords={"time": self.times.cpu().numpy()}, dims="time")
        return curve.rename(name).assign_attrs(beta=self.beta, **attrs)

    def _distance_curve(self, name: str, found: list[transport.Distance]) -> xr.DataArray:
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
        if isinstance(target, str) and (p, target, cost) == (2, "limit", "chordal"):
            # Phases, summary and report all ask for this one.
            return self._once("distance", lambda: self._distance(2, "limit", "chordal")).copy()
        return self._distance(p, target, cost)

    def _distance(self, p: float, target: str | Cloud, cost: str) -> xr.DataArray:
        found = self._distances(self._clouds(), p, target, cost)
        return self._distance_curve(f"W{p:g}", found)

    def _distances(self, clouds: Iterable[Cloud], p: float, target: str | Cloud, cost: str) -> list[transport.Distance]:
        if isinstance(target, Cloud):
            return [transport.wasserstein(cloud, target, p, cost=cost) for cloud in clouds]
        if target == "limit":
            return self._to_limit(clouds, p, cost)
        if target != "terminal":
            raise BadInput(f"target is {target!r}; it must be 'limit', 'terminal' or a Cloud")
        end = self.theory().terminal
        if end is None:
            raise BadInput(f"there is no terminal phase to measure a distance to: this is {self.block.name}")
        return [transport.to_limit(cloud, end.limit(cloud.points), end.basis, p, cost) for cloud in clouds]

    def _to_limit(self, clouds: Iterable[Cloud], p: float, cost: str) -> list[transport.Distance]:
        pushed, weights = self.limit.points, self.cloud.weights
        basis = self.theory().basis
        if basis is None or basis.shape[1] > 1:
            return [self._to_wide_limit(cloud, p, cost) for cloud in clouds]
        up = pushed @ basis[:, 0].to(pushed) > 0
        # Both masses as sums of the weights themselves: 1 − mass would differ in the last digits and split a token.
        masses = [float(weights[side].double().sum()) for side in (up, ~up)]
        atoms = torch.stack([basis[:, 0], -basis[:, 0]])
        return [transport.two_atoms(cloud.points, cloud.weights, atoms, masses, p, cost) for cloud in clouds]

    def _to_wide_limit(self, cloud: Cloud, p: float, cost: str) -> transport.Distance:
        """W_p to a limit law in a space of two dimensions or more."""
        return transport.wasserstein(cloud, self.limit, p, cost=cost)

    def phases(self, factor: float = 1.5) -> phases.Phases:
        """Concentration, plateaus and terminal onset, read off the W₂ curve to the limit law."""
        return phases.detect(self.times.cpu().numpy(), self.distance().values, factor=factor)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of `make`, which is computed at the first call with this key.

        Not a cached_property: in Python 3.11 that holds one lock for all runs while it computes.
        """
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        return {}

    def observables(self, sample: int = 1000, seed: int = 0) -> xr.Dataset:
        """Log-energy, mean cosine, effective rank and cluster count at every saved time (see `observables`)."""

        def observed() -> xr.Dataset:
            rows = [observe(self.block, cloud, self.beta, sample, seed) for cloud in self._clouds()]
            columns = {name: self._curve(name, [row[name] for row in rows]) for name in rows[0]}
            return xr.Dataset(columns, {}, {"beta": self.beta, "sample": min(sample, len(self.cloud)), "seed": seed})

        return self._once(("observables", sample, seed), observed).copy(deep=True)

    def to_xarray(self) -> xr.Dataset:
        """The run as a labelled Dataset, with the W₂ distance to the limit law where there is one."""
        data = self.to_dataset()
        data = data.assign_coords({name: np.arange(data.sizes[name]) for name in data["frames"].dims[1:]})
        if self.theory().no_limit:
            return data
        found = self.distance()
        curves = {"distance": found, "distance_lower": found["lower"], "distance_upper": found["upper"]}
        return data.assign({name: curve.drop_vars(["lower", "upper"]) for name, curve in curves.items()})

    def save(self, path: str | Path) -> Path:
        """Write `path` (a folder, *.zarr) and the same name with .json beside it, both completely or not at all."""
        return storage.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a run that `save`, `checkpoint=` or the command line wrote."""
        from metastable.run.mean_field import MeanFieldRun

        found = storage.load(path)
        kind: type[BaseRun] = MeanFieldRun if "coarse" in found else Run
        if not issubclass(kind, cls):
            raise BadInput(f"{storage.run_path(path)} holds a {kind.__name__}; read it with ms.{kind.__name__}.load")
        return kind(**found)

    def _repr_html_(self) -> str:
        """The run in a notebook: distance and phases if they are known or quickly computed, and the last tokens."""
        rows: dict[str, object] = {"model": self.block.name, "tokens": len(self.cloud), "d": self.cloud.dim}
        rows |= {"β": f"{self.beta:g}", "times": f"{len(self.times)} from 0 to {self.horizon:g}"}
        rows |= {name: self.configuration[name] for name in ("method", "engine") if name in self.configuration}
        end = self.final.points
        keep = torch.linspace(0, len(end) - 1, min(notebook.MOST, len(end))).round().long().to(end.device)
        pictures = notebook.tokens(end[keep].detach().cpu().double().numpy(), f"tokens at t = {self.horizon:g}")
        if self.theory().no_limit:
            rows["limit"] = self.theory().no_limit
        elif "distance" in self._kept or self._quickly:
            found = self.distance()
            rows["W₂ to the limit law"] = (
                f"{notebook.number(float(found[0]))} at first, {notebook.number(float(found[-1]))} at last"
            )
            rows["phases"] = "; ".join(self.phases().sentences)
            pictures += notebook.curve(found["time"], found, "W₂ to the limit law", low=0.0)
        return notebook.table(type(self).__name__, rows, pictures)

    @property
    def _quickly(self) -> bool:
        """Whether the distance takes below about a second: W₂ to two atoms is one sort for each time."""
        basis = self.theory().basis
        two_atoms = basis is not None and basis.shape[1] == 1
        return len(self.cloud) * len(self.times) <= (QUICK if two_atoms else QUICK // 100)

    def figure(self, kind: str = "distance", style: str = "screen", width: str | float = "single") -> go.Figure:
        """A Plotly figure: "distance" with what explains it, "sphere", "spectrum", "observables" or "angles".

        Not every run has all of them: "angles" need d = 2, and "spectrum" a single head.

        style : "screen", or "paper" for print (see `figures.paper`); `figures.export` writes it to a file
        width : of a figure for a paper: "single", "double", or a number of inches
        """
        from metastable import figures

        known = [name for name in figures.OF_A_RUN if name not in self.without_figures]
        choice(style, "style", ("screen", "paper"))
        drawn = figures.OF_A_RUN[choice(kind, "figure", known)](self)
        return drawn if style == "screen" else figures.paper(drawn, width)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(BaseRun):
    """Frames of a token cloud under a head, with everything that is needed to repeat and to assess the simulation.

    The weights of the tokens are those of `cloud` in every frame.

    Attributes
    ----------
    block, cloud, beta : the member of the family, the starting cloud and the inverse temperature
    times : (T,) saved times, from 0 to the horizon
    frames : (T, N, d) positions at those times, directions where tokens have a radius
    configuration : how the run was made (method, tolerance, engine, …) and what it took (seconds, cpu_seconds)
    field_errors : (S, 2) rows (t, ε): at each accepted step the root mean square over tokens (by weight) of
        |𝒱_β[μ_t](x) − 𝒱_∞(x)|; no rows for other members of the family than one softmax head
    radii : (T, N), |h| of the tokens, or |z| for norm "none"; None for tokens on the sphere
    merged : for a run with `merge`, (T, 3) rows at the saved times: live tokens, bound of the error, largest so far
    jumps : for a run with `merge`, (J, 2) rows (t, e): how far each merge moved the law, in geodesic W₂
    """

    field_errors: Tensor
    radii: Tensor | None = None
    merged: Tensor | None = None
    jumps: Tensor | None = None

    def at(self, index: int) -> Cloud:
        return self.cloud.moved_to(self.frames[index])

    def to_dataset(self) -> xr.Dataset:
        return storage.dataset(self)

    def _to_wide_limit(self, cloud: Cloud, p: float, cost: str) -> transport.Distance:
        basis = self.theory().basis
        if basis is None:
            return transport.wasserstein(cloud, self.limit, p, cost=cost)
        return transport.to_limit(cloud, self.limit, basis, p, cost)

    @cached_property
    def zero_temperature_frames(self) -> Tensor:
        """The same starting tokens under the exact zero-temperature flow, at the saved times: (T, N, d)."""
        head = self._theory_of_one_head("the zero-temperature flow").head
        return zero_temperature_flow(head, self.cloud, self.times.to(torch.float64))

    def laplace_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t^β, μ_t^∞), bounded above by following the same tokens under both flows."""
        exact = (self.cloud.moved_to(x) for x in self.zero_temperature_frames)
        pairs = zip(self._clouds(), exact, strict=True)
        return self._distance_curve("Laplace term", [transport.coupling(a, b, p, cost) for a, b in pairs])

    def lyapunov_term(self, p: float = 2, cost: str = "chordal") -> xr.DataArray:
        """W_p(μ_t^∞, ν): how far the zero-temperature law itself still is from its limit."""
        exact = (self.cloud.moved_to(x) for x in self.zero_temperature_frames)
        return self._distance_curve("Lyapunov term", self._to_limit(exact, p, cost))

    def certificate(self) -> xr.DataArray:
        """∫₀ᵗ ε(s) e^{L(t−s)} ds, an upper bound of the geodesic (so of the chordal) W₂(μ_t^β, μ_t^∞).

        ε was measured on the run at every step and L is the head's one-sided Lipschitz constant; nothing is
        fitted. Between steps the larger of the two ends of ε is taken, and every merge adds the distance by which it
        moved the law. The attribute `vacuous_after` is the first time at which the bound exceeds π, the diameter of
        the sphere, and says nothing more; None if it never does.
        """
        theory = self._theory_of_one_head("the certificate")
        if theory.head.offset is not None:
            raise BadInput("the certificate needs linear scores, but this head has an offset")
        if not len(self.field_errors):
            raise BadInput("the certificate follows a flow in continuous time; this run was made of discrete layers")
        L = theory.lipschitz
        values = gronwall(self.field_errors, L, self.times, self.jumps)
        vacuous = self._first_time(~(values < math.pi))
        return self._curve("certificate", values, lipschitz=L, vacuous_after=vacuous, p=2, cost="geodesic")

    def _first_time(self, where: np.ndarray) -> float | None:
        found = np.flatnonzero(where)
        return float(self.times[found[0]]) if len(found) else None

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
        vacuous, delta = self._first_time(~np.isfinite(values)), self.configuration.get("merge")
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
        """W_p between two independent samples of ν, each as large as the cloud: the effect of sampling alone.

        The distance of a cloud to the limit of its own tokens carries the same masses on both sides and can be
        smaller than this.
        """
        floor: transport.NoiseFloor = self._once(
            ("noise floor", p, cost, seed), lambda: transport.noise_floor(self.limit, p=p, cost=cost, seed=seed)
        )
        return floor

    def report(self, path: str | Path) -> Path:
        """Write one HTML file with the figures, the phases and the verdicts; it needs no network."""
        from metastable import report

        return report.write(self, path)

    def __repr__(self) -> str:
        member = "" if self.block.plain else f"{self.block.name}, "
        layers = f"layers of length {self.configuration['step']:g}, " if self.discrete else ""
        return (
            f"Run({member}{layers}{len(self.cloud)} tokens, d={self.cloud.dim}, beta={self.beta:g}, "
            f"{len(self.times)} frames to t={self.horizon:g})"
        )


def gronwall(field_errors: Tensor, L: float, times: Tensor, jumps: Tensor | None = None) -> np.ndarray:
    """∫₀ᵗ ε(s)e^{L(t−s)}ds at each of `times`, with ε on each step replaced by the larger of its two ends.

    Follow the same starting tokens under both flows, x under β and y under zero temperature. With ε(t) the root mean
    square over tokens of |𝒱_β[μ_t](x) − 𝒱_∞(x)|, measured on the β-run, and L the one-sided Lipschitz constant of 𝒱_∞,
    Grönwall's inequality gives

        W₂(μ_t^β, μ_t^∞) ≤ ∫₀ᵗ ε(s) e^{L(t−s)} ds      (geodesic; the chordal distance is smaller).

    `jumps` (J, 2) are rows (s, e) at times of `field_errors`: where the run itself jumps at a time s, by e in geodesic
    W₂ (merged tokens), e·e^{L(t−s)} is added.
    """
    s, eps = field_errors.cpu().double().numpy().T
    jump = np.zeros(len(s))
    if jumps is not None:
        when, size = jumps.cpu().double().numpy().T
        np.add.at(jump, np.searchsorted(s, when), size)
    bound = np.zeros(len(s))
    for i in range(1, len(s)):
        h = s[i] - s[i - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(L * h)
            inner = np.expm1(L * h) / L if L != 0 else h
            bound[i] = bound[i - 1] * growth + max(eps[i], eps[i - 1]) * inner + jump[i]
        if not math.isfinite(bound[i]):
            bound[i:] = math.inf
            break
    return bound[np.searchsorted(s, times.cpu().double().numpy())]
