"""`sweep`: many simulations along axes, on many workers, into one labelled dataset; nothing finished is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from metastable import files
from metastable import problem as configuration
from metastable.cloud import Cloud
from metastable.errors import BadInput, SchedulerLost
from metastable.head import Head
from metastable.progress import _Bar
from metastable.run.checkpoint import refuse_another
from metastable.scale import dataset
from metastable.scale.cluster import connected, threads_of
from metastable.scale.dataset import Places
from metastable.scale.journal import Journal, begun, locked, scan
from metastable.scale.plan import FIXED, Plan, make
from metastable.scale.points import FAILED, compute, packed

if TYPE_CHECKING:
    from distributed import Client, Future

TASK_SECONDS = 0.5
"""About as long as a task lasts: long against what Dask spends on it, short against what a dead worker loses."""
LOOK_SECONDS = 2.0
KILLED = "its worker died each time it was computed: out of memory, or ended from outside"


class Points(_Bar):
    """Points as they are finished."""

    def __init__(self, total: int, show: bool | None) -> None:
        super().__init__(total, "computing", show, "{task.completed:.0f} of {task.total:.0f} points")

    def __call__(self, done: int) -> None:
        self._move(done)


def sweep(
    *,
    axes: Mapping[str, Any],
    out: str | Path,
    head: Head | Mapping[str, Any] | None = None,
    cloud: Cloud | Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    progress: bool | None = None,
    **arguments: Any,
) -> xr.Dataset:
    """Simulate at every combination of the axes and return one xarray Dataset, opened lazily from Zarr.

    Parameters
    ----------
    axes : {"beta": [10, 100], "seed": [0, 1]}: the names are arguments of `simulate` (not save), `law`, its arguments,
        `seed`, and of the head `gap`, `angle`, `interaction`, `value` (see `problem.build_head`)
    head : a Head; or a table as in TOML, {"interaction": [...], "value": [...]}, which the head's axes need
    cloud : a Cloud to start from everywhere, unless a law is given by `law`, `n` and its other arguments
    out : a folder, made if need be, for journal and dataset; or a name that ends in .zarr for the dataset alone, with
        the journal in NAME.zarr.kept. The same call goes on with what is missing there
    outputs : "distance" at the saved times, or {"distance": [times]}; "phases", or a list of them; "observables", or
        a list of them. Unless given distance and phases
    scheduler : address of a Dask scheduler; unless given, workers are started on this machine
    workers, memory : how many workers, and the memory limit of one; see `cluster.connected`
    overwrite : replace another sweep in `out`
    retry_failed : compute once more the points that failed
    arguments : what stays fixed, of `simulate` and of the law: beta, until, tol, save, n, seed, kappa, ...; with
        mean_field=True the equation itself is solved at each point (see `mean_field`), and no number n is needed

    The seed of a point's tokens is made of the given seed, the law and its arguments alone (the variable cloud_seed).
    So points that differ in beta start from the same tokens: comparisons are paired.

    Points that fail are NaN with a `status` of 1 and a `reason`, and the others go on.
    """
    run = {key: arguments.pop(key) for key in FIXED if key in arguments}
    if cloud is not None and arguments:
        raise BadInput(f"both cloud and {next(iter(arguments))} were given; give a cloud or a law with its arguments")
    plan = make(axes, head, arguments if cloud is None else cloud, run, outputs)
    places = Places(Path(out))
    if places.folder.exists() and not places.folder.is_dir():
        raise BadInput(f"out is {out}, which is a file; give a folder")
    with locked(places.folder), ExitStack() as stack:
        client = None
        if overwrite and places.description.exists() and places.description.read_bytes() != _text(plan).encode():
            # What is there goes once there is somebody to compute what comes in its place.
            client = stack.enter_context(connected(scheduler, workers, memory))
        _settle(plan, places, overwrite)
        with Journal(places.journal, plan.identity, 8 * plan.width) as journal:
            todo = _missing(plan, journal, retry_failed)
            if todo:
                _tell(plan, journal, todo)
                client = client or stack.enter_context(connected(scheduler, workers, memory))
                with Points(plan.size, progress) as bar:
                    _Leader(plan, journal, client, bar, retry_failed).compute(todo)
            _publish(plan, journal, places, bool(todo))
    return dataset.load(places)


def read(path: Path) -> dict[str, Any]:
    """The arguments of `sweep` from a TOML file: [axes], [outputs], and the rest as for `simulate`."""
    tables = configuration.read_toml(path, further=("axes", "outputs", "mean_field"))
    for name in ("axes", "outputs"):
        if not isinstance(tables.get(name, {}), dict):
            raise BadInput(f"{path}: {name} must be a table, [{name}]")
    if "axes" not in tables:
        raise BadInput(f"{path} has no [axes]; give at least one axis with its values, as beta = [10, 100]")
    axes, outputs = tables.pop("axes"), tables.pop("outputs", None)
    head, cloud = tables.pop("head", None), tables.pop("cloud", {})
    return {"axes": axes, "outputs": outputs, "head": head, "cloud": cloud, **tables}


def _text(plan: Plan) -> str:
    return json.dumps(plan.description, indent=1) + "\n"


def _settle(plan: Plan, places: Places, overwrite: bool) -> None:
    """See that the folder is of this sweep, or empty."""
    text = _text(plan)
    known = places.description.read_bytes() if places.description.exists() else None
    if known == text.encode():
        places.tidy()
        return
    if overwrite:
        places.clear()
    elif known is None and places.dataset.exists() and not places.journal.exists():
        raise BadInput(f"{places.dataset} is there already and no sweep of this folder; choose another or overwrite it")
    else:
        _refuse_another(plan, places, known)
    try:
        places.tidy()
        files.write_text(places.description, text)
    except OSError as error:
        raise BadInput(f"cannot write in {places.folder}: {error.strerror}; choose another place") from error


def _refuse_another(plan: Plan, places: Places, known: bytes | None) -> None:
    try:
        found = dict(json.loads(known or b""))
    except (ValueError, TypeError):
        # Missing or damaged: the journal says by itself whose it is. By reading alone, for opening a journal cuts off
        # what it cannot read.
        journal = scan(places.journal, plan.identity, 8 * plan.width)
        if journal.foreign and not journal.found:
            raise BadInput(f"{places.journal} is of another sweep; choose another folder or overwrite it") from None
        if known is None and places.journal.exists() and not begun(places.journal):
            raise BadInput(f"{places.journal} is no journal of a sweep; choose another folder") from None
    else:
        if scan(places.journal, plan.identity, 8 * plan.width).found:
            print(f"metastable: {places.description.name} is damaged and written anew", file=sys.stderr)
            return
        refuse_another(places.folder, found, json.loads(json.dumps(plan.description)))


def _missing(plan: Plan, journal: Journal, retry_failed: bool) -> list[int]:
    kept = {i for i, entry in journal.found.items() if not (retry_failed and entry.status == FAILED)}
    return [index for index in range(plan.size) if index not in kept]


def _tell(plan: Plan, journal: Journal, todo: list[int]) -> None:
    """What was found in the folder, if it was used before."""
    failed = sum(index in journal.found for index in todo)
    lost = len(todo) - failed
    damaged = min(journal.scan.damaged, lost)
    if not journal.found and not damaged:
        return
    parts = [f"{damaged} of {plan.size} points are damaged and {lost - damaged} are missing"] if lost else []
    parts += [f"{failed} failed before"] if failed else []
    print(f"metastable: {', '.join(parts)}: computing {len(todo)}", file=sys.stderr)


def _publish(plan: Plan, journal: Journal, places: Places, computed: bool) -> None:
    """Make the dataset from the journal unless it is there, whole, already."""
    if not computed:
        wrong = dataset.faults(plan, places)
        if not wrong and not journal.scan.damaged:
            return
        if wrong:
            print(f"metastable: the dataset is made again from the journal: {wrong[0]}", file=sys.stderr)
    dataset.write(plan, journal, places)


class _Leader:
    """Hands groups of points to the workers, a few tasks ahead, and keeps what comes back."""

    def __init__(self, plan: Plan, journal: Journal, client: Client, bar: Points, again: bool) -> None:
        self.plan, self.journal, self.client, self.bar, self.again = plan, journal, client, bar, again
        self.spec = packed(plan)
        self.flight: dict[Future, tuple[int, ...]] = {}
        self.seconds: float | None = None
        """What a point takes, of late."""
        self.threads, self._looked = 1, 0.0

    def compute(self, todo: list[int]) -> None:
        self.left: deque[int] = deque(todo)
        self.alone: deque[int] = deque()
        self.suspects: set[int] = set()
        self.done = self.plan.size - len(todo)
        self.bar(self.done)
        try:
            while self.left or self.alone or self.flight:
                self._fill()
                for future in self._finished():
                    self._keep(future, self.flight.pop(future))
        except (asyncio.CancelledError, concurrent.futures.CancelledError, OSError, TimeoutError) as error:
            raise self._lost() from error
        except Exception as error:
            if isinstance(error, BadInput) or self.client.status == "running":
                raise
            raise self._lost() from error

    def _lost(self) -> SchedulerLost:
        kept = f"{self.done} of {self.plan.size} points are kept"
        return SchedulerLost(f"the connection to the Dask scheduler was lost; {kept}: start again to go on")

    def _fill(self) -> None:
        """Keep two tasks for every thread under way: enough that no worker waits, few enough that memory stays flat."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self.threads, self._looked = max(1, threads_of(self.client)), time.monotonic()
        while self.left and len(self.flight) < 2 * self.threads + 1:
            self._submit(self._group())
        if self.alone and not self.flight:
            self._submit((self.alone.popleft(),))

    def _submit(self, group: tuple[int, ...]) -> None:
        self.flight[self.client.submit(compute, self.spec, group, pure=False)] = group

    def _group(self) -> tuple[int, ...]:
        """The next points: about TASK_SECONDS of them, and fewer towards the end, so that all workers end together."""
        wanted = 1 if self.seconds is None else int(TASK_SECONDS / max(self.seconds, 1e-6))
        fair = len(self.left) // (2 * self.threads)
        return tuple(self.left.popleft() for _ in range(max(1, min(wanted, fair))))

    def _finished(self) -> list[Future]:
        from distributed import wait

        try:
            return list(wait(list(self.flight), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []

    def _keep(self, future: Future, group: tuple[int, ...]) -> None:
        from distributed import KilledWorker

        try:
            outcomes, seconds = future.result()
        except KilledWorker:
            if not self.suspects.issuperset(group):
                # Dask blames all that waited on a worker that died. So each again by itself, with nothing beside it.
                self.suspects.update(group)
                self.alone.extend(group)
                return
            outcomes, seconds = [(group[0], FAILED, KILLED.encode())], None
        self.journal.append(outcomes, self.again)
        self.done += len(group)
        self.bar(self.done)
        if seconds is not None:
            each = seconds / len(group)
            self.seconds = each if self.seconds is None else 0.7 * self.seconds + 0.3 * each
