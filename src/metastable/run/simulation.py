"""`simulate`: a head or a block, a cloud and an inverse temperature make a run."""

from __future__ import annotations

import functools
import math
import numbers
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metastable import files
from metastable.arrays import Array, positive, seeded, serial, vector, whole
from metastable.attention.engines import needed
from metastable.block import SPHERES, Block, as_block
from metastable.cloud import Cloud
from metastable.errors import BadInput, SimulationStopped, choice
from metastable.flow.fields import TokenField, engines_to_come, zero_temperature
from metastable.flow.merging import Merging
from metastable.flow.solve import Motion
from metastable.flow.steppers import FIXED, first_step, noisy_heun
from metastable.head import Head
from metastable.problem import resolved_beta
from metastable.progress import Watcher, watching
from metastable.run import storage
from metastable.run.checkpoint import (
    Checkpoint,
    discard,
    open_checkpoint,
    plain,
    recorded_identity,
    refuse_another,
)
from metastable.run.run import Run

METHODS = ("auto", "dopri5", *FIXED, "layers")
NOISY = ("auto", "heun")
"""The methods that a block with noise has."""
FRAME_BYTES = 256 * 2**20
"""Frames take at most this many bytes, unless `t_eval` asks for more."""
CHECKPOINT_SECONDS = 20.0
"""Between two saved times the state is written whenever this many seconds have passed."""
MANY = 100_000
"""Tokens above which the default tolerance is 1e-4."""


class Stopwatch:
    """Wall time and processor time since it was made, in seconds, under their names in a run's configuration."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = self._began
        return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def simulate(
    head: Head | Block,
    cloud: Cloud,
    beta: float | None = None,
    until: float | None = None,
    *,
    gamma: float | None = None,
    method: str = "auto",
    tol: float | None = None,
    step: float | None = None,
    t_eval: int | Sequence[float] | None = None,
    engine: str = "auto",
    merge: float | None = None,
    radius: float | Array = 1.0,
    checkpoint: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | Watcher | None = None,
) -> Run:
    """Follow dx/dt = P_x V m_β[μ_t](x) for all tokens of `cloud` from 0 to `until`.

    Parameters
    ----------
    head : a head, or a block for another member of the family (see `Block`)
    beta : inverse temperature, 0 ≤ β ≤ inf; inf is hardmax
    until : the time at which the simulation ends; always needed
    gamma : β = γ log N, where N is the number of tokens of `cloud`. Give either beta or gamma
    method : "dopri5" adapts its steps to `tol`; "euler", "heun" and "rk4" take steps of at most `step`; "layers" are
        discrete layers of length `step`, as those of a transformer. "auto" is dopri5, and for β = inf, where the field
        jumps, and for blocks with noise it is heun
    tol : largest estimated error per step (RMS over tokens of the length of the error), for dopri5. The default is
        1e-6, and 1e-4 for more than 100 000 tokens: two samples of that size differ by much more
    step : longest step of the fixed-step methods, 0.01 by default; for "layers" the length of a layer, 1 by default
    t_eval : how many equally spaced times to save, or the times themselves; 0 and `until` are always saved.
        By default 101, fewer when the frames would exceed 256 MiB. For "layers" the times are those of layers
    engine : "auto", "dense", "flash", "direct" or "tree" (certified to `tol`), see `attend`. "auto" is decided once,
        at the start. For medium clouds in d = 3 it stands for "direct or tree", where the tokens decide at every
        step. Engines that were not compiled then are recorded as `without` in the configuration
    merge : δ. Tokens closer than this become one weighted token, so that long runs of clusters cost little; the frames
        show each token where its cluster is, and `Run.merge_error` bounds what merging changed (see `merging`)
    radius : |h| of the tokens at the start, a number or one for each token, for a block whose norm is "pre" or "peri"
    checkpoint : a path like "run.zarr". The run is saved there. Its state is kept beside it in "run.zarr.part", and the
        same call after an interruption continues from there and ends bit for bit the same
    overwrite : replace another run at `checkpoint` instead of refusing
    progress : show a bar with the time left; by default if standard error is a terminal. Or a `progress.Watcher`, which
        is called after every step and with every saved frame; an exception that it raises ends the run

    Raises
    ------
    BadInput : an argument cannot be used
    SimulationStopped : a number is no longer finite, or no step is small enough for `tol`
    """
    solver = _Solver(head, cloud, beta, gamma, until, method, tol, step, t_eval, engine, merge, radius)
    if checkpoint is None:
        return solver.run(watching(solver.times[-1], progress))
    target = storage.run_path(checkpoint)
    finished = _finished(target, solver, overwrite) if files.recover(target) else None
    if finished is not None:
        return finished
    solver.choose_as(recorded_identity(target))
    identity = solver.identity()
    with open_checkpoint(target, identity, replace=overwrite) as kept:
        run = solver.run(watching(solver.times[-1], progress), kept)
        run.save(target)
        kept.remove()
    return run


def _merging_distance(merge: float, beta: float, block: Block) -> float:
    if not block.plain:
        raise BadInput(
            f"merge follows its error for one softmax head on the sphere; this is {block.name}: leave it out"
        )
    delta = positive(merge, "merge")
    if delta >= 1:
        raise BadInput(f"merge is {merge!r}; it is the largest distance of tokens that become one, below 1")
    if math.isinf(beta):
        raise BadInput("merge needs a finite beta: the hardmax field jumps, so the error of merging cannot be followed")
    return delta


def _radii(radius: float | Array, cloud: Cloud, block: Block) -> Tensor | None:
    """|h| of the tokens at the start, (N, 1); None where all are 1."""
    if radius is None or isinstance(radius, (bool, str)):
        raise BadInput(f"radius is {radius!r}; it is the length of tokens, a number or one for each token")
    if isinstance(radius, Tensor) and radius.ndim == 0:
        radius = float(radius)
    given = [radius] * len(cloud) if isinstance(radius, numbers.Real) else radius
    if isinstance(radius, numbers.Real) and radius == 1:
        return None
    found = vector(given, "radius", len(cloud)).to(cloud.points)
    if not bool((found > 0).all()):
        raise BadInput(f"radius is {float(found.min()):g}; it is the length of a token and must be above 0")
    if block.norm not in ("pre", "peri"):
        raise BadInput(f"radius is for the norms pre and peri; this block has norm {block.norm!r}")
    return found.unsqueeze(1)


def _directions(state: Tensor) -> Tensor:
    """h/|h| along the last axis. A token at the origin has no direction; it is shown as (1, 0, …, 0)."""
    length = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
    first = torch.zeros_like(state)
    first[..., 0] = 1.0
    return torch.where(length > 0, state / length, first)


def _refuse_between_layers(times: Sequence[float], step: float) -> None:
    for t in times:
        if abs(t / step - round(t / step)) > 1e-9:
            raise BadInput(
                f"t_eval or until holds the time {t:g}, which is not a multiple of the layer's step {step:g}"
            )


def _at_layers(times: Sequence[float], step: float) -> tuple[float, ...]:
    """The times of layers nearest to `times`; the last one must be the time of a layer."""
    if times[-1] < 0.5 * step:
        raise BadInput(f"until is {times[-1]:g}, which is less than one layer of length {step:g}")
    _refuse_between_layers(times[-1:], step)
    return tuple(step * layer for layer in sorted({round(t / step) for t in times}))


def saved_times(t_eval: int | Sequence[float], until: float) -> tuple[float, ...]:
    """A number of equally spaced times from 0 to `until`, or the given times together with 0 and `until`."""
    if isinstance(t_eval, numbers.Integral):
        count = whole(t_eval, "t_eval", 2, "at least 2 times are saved, 0 and until")
        return tuple(float(t) for t in np.linspace(0.0, until, count))
    try:
        times = {float(t) for t in t_eval}  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise BadInput(f"t_eval is {t_eval!r}; give a whole number or a list of times") from None
    outside = [t for t in times if not 0 <= t <= until]
    if outside:
        raise BadInput(f"t_eval holds the time {outside[0]}, outside of 0 … {until}")
    return tuple(sorted(times | {0.0, until}))


def _finished(target: Path, solver: _Solver, overwrite: bool) -> Run | None:
    """The run that an earlier call completed, if it is the same one; None if another may be overwritten."""
    try:
        run = Run.load(target)
        recorded = {**run.configuration, "digest": storage.digest(run.block, run.cloud)}
        solver.choose_as(recorded)
        identity = solver.identity()
        refuse_another(target, {key: recorded.get(key) for key in identity}, identity)
    except BadInput:
        if overwrite:
            return None
        raise
    discard(target, identity)
    if not target.with_suffix(".json").exists():
        run.save(target)
    return run


@dataclass
class _State(Motion):
    """The state of the integrator, and what the run records: frames saved, field errors, merges."""

    saved: int = 0
    errors: list[tuple[float, float]] = field(default_factory=list)
    merged: list[tuple[float, ...]] = field(default_factory=list)


class _Solver:
    """The arguments of `simulate`, checked and completed, and the solution of the problem that they describe."""

    def __init__(
        self,
        head: Head | Block,
        cloud: Cloud,
        beta: float | None,
        gamma: float | None,
        until: float | None,
        method: str,
        tol: float | None,
        step: float | None,
        t_eval: int | Sequence[float] | None,
        engine: str,
        merge: float | None,
        radius: float | Array,
    ) -> None:
        block = as_block(head)
        if block.dim != cloud.dim:
            raise BadInput(f"the head has d = {block.dim} and the cloud d = {cloud.dim}; they must agree")
        self.block, self.cloud = block.to(cloud.dtype, cloud.points.device), cloud
        self.beta = resolved_beta(beta, gamma, len(cloud))
        self.gamma = None if gamma is None else float(gamma)
        until = positive(until, "until")
        self.tol = positive((1e-6 if len(cloud) <= MANY else 1e-4) if tol is None else tol, "tol")
        self.method = self._method(method)
        if self.method == "dopri5" and step is not None:
            raise BadInput("step= is for the methods euler, heun, rk4 and layers; dopri5 chooses its steps from tol=")
        self.step = (1.0 if self.method == "layers" else 0.01) if step is None else positive(step, "step")
        self.merge = None if merge is None else _merging_distance(merge, self.beta, self.block)
        self.sphere = self.block.norm in SPHERES
        self.radius = _radii(radius, cloud, self.block)
        # After a merge "auto" may stand for another engine.
        self.asked = engine
        self.merging: Merging | None = None
        self._do_without(engines_to_come(self.block, cloud.log_weights, self.beta, engine, self.tol))
        if t_eval is None:
            t_eval = max(11, min(101, FRAME_BYTES // (cloud.points.numel() * cloud.points.element_size())))
        elif self.method == "layers" and not isinstance(t_eval, numbers.Integral):
            _refuse_between_layers(saved_times(t_eval, until), self.step)
        self.times = saved_times(t_eval, until)
        if self.method == "layers":
            self.times = _at_layers(self.times, self.step)
        self.frames: list[Tensor] = []
        self.checksums: list[int] = []
        self.evaluations = 0

    def _method(self, method: str) -> str:
        method = choice(method, "method", METHODS)
        if self.block.noise and method not in NOISY:
            raise BadInput(
                f"method is {method!r}, which has no noise; a block with noise moves by heun (method='heun')"
            )
        if self.block.norm == "none" and method == "layers":
            raise BadInput("method is 'layers' and norm 'none', which is shown as z = exp(-tV)h in continuous time")
        if method != "auto":
            return method
        return "heun" if math.isinf(self.beta) or self.block.noise else "dopri5"

    def _do_without(self, engines: Collection[str]) -> None:
        """Choose the engine of the run. What "auto" stands for does not change while it runs."""
        self.without = frozenset(engines)
        self._prepare(self.asked)
        self.engine = self.moving.attention.engine

    def choose_as(self, recorded: dict[str, Any]) -> None:
        """Let "auto" do without the same engines as in the recorded run, if that is the run asked for."""
        mine = self.identity()
        same = all(recorded.get(key) == mine[key] for key in mine if key not in ("engine", "without", "tol"))
        if self.asked == "auto" and recorded and same:
            self._do_without(recorded.get("without", ()))

    def identity(self) -> dict[str, Any]:
        """What two runs must have in common to share a checkpoint, in the form in which JSON reads it."""
        return plain({**self.configuration(), "digest": storage.digest(self.block, self.cloud)})

    def configuration(self) -> dict[str, Any]:
        """What the numbers of the run depend on, besides the head and the cloud; and γ if it was given."""
        chosen = {} if self.method == "dopri5" else {"step": self.step}
        if self.method == "dopri5" or "tree" in needed(self.engine):
            chosen["tol"] = self.tol
        if self.gamma is not None:
            chosen["gamma"] = self.gamma
        return {
            "beta": "inf" if math.isinf(self.beta) else self.beta,
            "method": self.method,
            **chosen,
            "engine": self.engine,
            **({"without": sorted(self.without)} if self.without else {}),
            "merge": self.merge,
            **({} if self.radius is None else {"radius": self.radius.squeeze(1).tolist()}),
            "times": list(self.times),
        }

    def _prepare(self, engine: str) -> None:
        """Make the field of the live tokens."""
        logs = self.cloud.log_weights if self.merging is None else self.merging.log_weights
        self.moving = TokenField(self.block, logs, self.beta, engine, self.tol, self.without)

    def field(self, x: Tensor, t: float) -> Tensor:
        self._count()
        return self.moving(x, t)

    def _count(self) -> None:
        if self.stage is not None:
            self.stage()
        self.evaluations += 1

    def _directions(self, state: Tensor) -> Tensor:
        return state if self.sphere else _directions(state)

    def _shown(self, frames: Tensor) -> Tensor:
        """The directions of all frames. The first are the given tokens, bit for bit: a run is known by them."""
        found = _directions(frames)
        found[0] = self.cloud.points
        return found

    def run(self, watcher: Watcher, kept: Checkpoint | None = None) -> Run:
        stopwatch = Stopwatch()
        self.kept = kept
        self.stage: Callable[[], None] | None = getattr(watcher, "stage", None)
        if self.merge is not None:
            self.merging = Merging(self.block.head, self.cloud, self.beta, self.merge)
        self._prepare(self.engine)
        state = self._resume() or self._begin()
        with watcher:
            for t, frame in zip(self.times, self.frames, strict=False):
                watcher.frame(t, self._directions(frame))
            while state.saved < len(self.times):
                self._advance(state, self.times[state.saved], watcher)
                self._save_frame(state)
                watcher.frame(state.t, self._directions(self.frames[-1]))
        stats = {"steps": state.steps, "rejected": state.rejected, "evaluations": self.evaluations}
        if self.merging:
            stats |= {"merges": len(self.merging.jumps), "live": len(state.x)}
        frames = torch.stack(self.frames)
        return Run(
            block=self.block,
            cloud=self.cloud,
            beta=self.beta,
            times=torch.tensor(self.times, dtype=torch.float64),
            frames=frames if self.sphere else self._shown(frames),
            radii=None if self.sphere else torch.linalg.vector_norm(frames, dim=2),
            field_errors=torch.tensor(state.errors, dtype=torch.float64).reshape(-1, 2),
            merged=torch.tensor(state.merged, dtype=torch.float64) if self.merging else None,
            jumps=torch.tensor(self.merging.jumps, dtype=torch.float64).reshape(-1, 2) if self.merging else None,
            configuration={**self.configuration(), **stats, **stopwatch.read()},
        )

    def _begin(self) -> _State:
        x = self.cloud.points if self.radius is None else self.radius * self.cloud.points
        k = torch.zeros_like(x) if self.method == "layers" else self.field(x, 0.0)
        self._check_finite(k, 0.0)
        h = first_step(k, self.tol) if self.method == "dopri5" else self.step
        state = _State(t=0.0, x=x, k=k, h=h, sphere=self.sphere)
        self._note_error(state)
        self._save_frame(state)
        return state

    def _advance(self, state: _State, target: float, watcher: Watcher) -> None:
        """Take steps until t = target exactly."""
        last = time.perf_counter()
        while state.t < target:
            # A resumed run starts without the tree of earlier evaluations; so does every step.
            self.moving.forget()
            self._step(state, target)
            watcher.at(state.t)
            if self.kept and state.t < target and time.perf_counter() - last > CHECKPOINT_SECONDS:
                self._save_state(state)
                last = time.perf_counter()

    def _step(self, state: _State, target: float) -> None:
        if self.method == "dopri5":
            counts = None if self.merging is None else self.merging.counts
            try:
                trial = state.attempt(self.field, target, self.times[-1], self.tol, counts)
            except SimulationStopped as stopped:
                if self.block.kernel != "unnormalised":
                    raise
                raise SimulationStopped(f"{str(stopped).split(';')[0]}; {self._remedy()}") from None
            self._check_finite(trial.k, trial.t)
            if not state.judge(trial, self.tol):
                return
        else:
            advance = functools.partial(self._advance_by, state)
            start = self.times[state.saved - 1]
            # Layers are whole: their number must not depend on the rounding of times.
            layers = round(target / self.step) - round(start / self.step) if self.method == "layers" else None
            trial = state.equal_step(advance, start, target, self.step, layers)
            self._check_finite(trial.k, trial.t)
            state.take(trial)
        if self.merging:
            self._merge(state, self.merging)
        self._note_error(state)

    def _advance_by(self, state: _State, h: float, end: float) -> tuple[Tensor, Tensor]:
        """Points and velocities after a step of fixed length."""
        if self.method == "layers":
            self._count()
            x = self.moving.layer(state.x, self.step)
            return x, (x - state.x) / self.step
        if self.block.noise:
            x = noisy_heun(self.field, state.t, state.x, state.k, h, self._increment(state, h))
        else:
            x = FIXED[self.method](self.field, state.t, state.x, state.k, h, self.sphere)
        return x, self.field(x, end)

    def _increment(self, state: _State, h: float) -> Tensor:
        """σ times the increment of a Brownian motion over the next step, (N, d).

        Every step has a seed of its own, so that a resumed run continues with the same path.
        """
        seed = np.random.SeedSequence([self.block.noise_seed, state.steps]).generate_state(1, np.uint64)[0]
        drawn = torch.randn(state.x.shape, generator=seeded(int(seed >> np.uint64(1))), dtype=torch.float64)
        return (self.block.noise * math.sqrt(h) * drawn).to(state.x)

    def _merge(self, state: _State, merging: Merging) -> None:
        merging.follow(state.x, state.t)
        merged = merging.attempt(state.x, state.t)
        if merged is not None:
            self._prepare(self.asked)
            state.x, state.k = merged, self.field(merged, state.t)

    def _note_error(self, state: _State) -> None:
        # The certificate that these errors are for is that of one softmax head.
        if not self.block.plain or self.method == "layers":
            return
        gap = (state.k - zero_temperature(self.block.head, state.x)).double().square().sum(dim=1)
        weights = serial(self.moving.log_weights.double(), torch.exp)
        state.errors.append((state.t, math.sqrt(float((weights * gap).sum()))))

    def _check_finite(self, k: Tensor, t: float) -> None:
        if not math.isfinite(float(k.sum())):
            raise SimulationStopped(
                f"a velocity is no longer finite at t = {t:.6g} (beta = {self.beta:g}, {self.cloud.dtype}); "
                f"{self._remedy()}"
            )

    def _remedy(self) -> str:
        if self.block.kernel == "unnormalised":
            return "unnormalised weights grow like exp(beta); use a smaller beta"
        if self.block.norm == "none":
            return "tokens without normalisation grow like exp(tV); use an earlier end or a smaller V"
        return "check the head's matrices or use float64"

    def _save_frame(self, state: _State) -> None:
        shown = state.x
        if self.merging:
            shown = state.x[self.merging.owner]
            state.merged.append((len(state.x), self.merging.error, self.merging.largest))
        self.frames.append(shown)
        if self.kept:
            frame = shown.cpu().numpy()
            self.kept.save_frame(state.saved, frame)
            self.checksums.append(zlib.crc32(frame.tobytes()))
        state.saved += 1
        if self.kept:
            self._save_state(state)

    def _save_state(self, state: _State) -> None:
        assert self.kept is not None
        counts = np.array([state.saved, state.steps, state.rejected, self.evaluations])
        arrays = {"x": state.x.cpu().numpy(), "k": state.k.cpu().numpy(), "errors": np.array(state.errors)}
        arrays["checksums"] = np.array(self.checksums)
        if self.merging:
            arrays |= {"merged": np.array(state.merged), **self.merging.pack()}
        self.kept.save_state({**arrays, "clock": np.array([state.t, state.h]), "counts": counts})

    def _resume(self) -> _State | None:
        found = self.kept.load() if self.kept else None
        if found is None:
            return None
        stored, frames = found
        saved, steps, rejected, self.evaluations = (int(n) for n in stored["counts"])
        device = self.cloud.points.device
        self.frames = [torch.from_numpy(frame).to(device) for frame in frames]
        self.checksums = [int(value) for value in stored["checksums"]]
        t, h = (float(v) for v in stored["clock"])
        x, k = (torch.from_numpy(stored[name]).to(device) for name in ("x", "k"))
        errors = [(float(s), float(e)) for s, e in stored["errors"]]
        merged = [tuple(row) for row in stored["merged"].tolist()] if self.merging else []
        if self.merging:
            self.merging.unpack(stored, x, t)
            self._prepare(self.asked if self.merging.jumps else self.engine)
        return _State(t, x, k, h, steps, rejected, self.sphere, saved, errors, merged)
