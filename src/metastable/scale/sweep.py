"""`sweep`: many simulations along axes, on many workers, into one labelled dataset. Finished points are never lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from metastable import files
from metastable.block import Block
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.files import Entry, Journal
from metastable.head import Head
from metastable.problem import LAW_KEYS, RUN_KEYS, read_toml
from metastable.progress import _Bar
from metastable.run.checkpoint import refuse_another
from metastable.scale import dataset
from metastable.scale.cluster import connected
from metastable.scale.dataset import Places
from metastable.scale.plan import Plan, make
from metastable.scale.points import FAILED, compute
from metastable.scale.tasks import Tasks
from metastable.versions import versions

if TYPE_CHECKING:
    from distributed import Client

# Duration of a task: long compared with Dask's cost for a task, short compared with what a dead worker loses.
TASK_SECONDS = 0.5
DIED = "its worker died each time it was computed: out of memory, or ended from outside"


class PointsBar(_Bar):
    """Progress of a sweep: call it with the number of finished points."""

    def __init__(self, total: int, show: bool | None) -> None:
        super().__init__(total, "computing", show, "{task.completed:.0f} of {task.total:.0f} points")

    def __call__(self, done: int) -> None:
        self._move(done)


def sweep(
    *,
    axes: Mapping[str, Any],
    out: str | Path,
    head: Head | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    block: Block | Mapping[str, Any] | None = None,
    cloud: Cloud | Mapping[str, Any] | None = None,
    law: str | None = None,
    n: int | None = None,
    d: int | None = None,
    seed: int | None = None,
    smallest: float | None = None,
    mean: Sequence[float] | None = None,
    kappa: float | None = None,
    means: Sequence[Sequence[float]] | None = None,
    kappas: float | Sequence[float] | None = None,
    proportions: Sequence[float] | None = None,
    beta: float | None = None,
    gamma: float | None = None,
    until: float | None = None,
    tol: float | None = None,
    t_eval: int | Sequence[float] | None = None,
    method: str | None = None,
    step: float | None = None,
    engine: str | None = None,
    merge: float | None = None,
    radius: float | None = None,
    mean_field: bool | None = None,
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    progress: bool | None = None,
) -> xr.Dataset:
    """Simulate at every combination of the axes and return one xarray Dataset, opened lazily from Zarr.

    Parameters
    ----------
    axes : {"beta": [10, 100], "seed": [0, 1]}. The names are arguments of `simulate` (not t_eval), `law` and its
        arguments, for the head `gap`, `angle`, `interaction` and `value` (see `problem.build_head`), and for the block
        `kernel`, `causal`, `norm`, `noise`, `heads`, `perceptron` and the other keys of `problem.build_block`
    out : a folder for the journal and the dataset; or a name that ends in .zarr for the dataset, with the journal in
        NAME.zarr.kept. The same call computes only the points that are missing there
    head : a Head; or a table as in TOML, {"interaction": [...], "value": [...]}, which the axes of the head need
    block : a Block, which has its heads; or a [block] table as in TOML, {"norm": "pre"}
    cloud : a Cloud, or a [cloud] table as in TOML; or else:
    law, n, d, seed, smallest, mean, kappa, means, kappas, proportions : the starting law ("uniform" by default) and
        its arguments, see `uniform`, `graded`, `von_mises_fisher`, `mixture`
    beta, gamma, until, tol, t_eval, method, step, engine, merge, radius : arguments of `simulate` that are the same
        everywhere. Either beta or gamma is an axis or a fixed value; gamma means β = γ log N with the N of each point
    mean_field : solve the continuity equation (see `mean_field`) instead of following tokens; no n is needed
    outputs : names of "distance", "phases" and "observables", or a table: {"distance": True, or a list of times;
        "phases": True, or a list of names; "observables": the same}. By default distance and
        phases; with a block also observables, since many members have no limit law and so no distance
    scheduler : address of a Dask scheduler, "tcp://HOST:PORT"; by default worker processes of this machine are started
    workers, memory : number of worker processes on this machine, and the memory limit of one of them, such as "4GB"
    overwrite : replace another sweep in the folder instead of refusing
    retry_failed : compute failed points again
    progress : show a bar; by default when standard error is a terminal

    The seed of the tokens of a point (the variable cloud_seed) depends on the given seed, on the law and on its
    arguments only. So points that differ in beta start from the same tokens, and comparisons are paired.

    A point that fails is NaN with `status` 1 and a `reason`; the other points are computed.

    Raises
    ------
    BadInput : an argument cannot be used
    SchedulerLost : the connection to the scheduler was lost; finished points are kept
    """
    given = {name: value for name, value in locals().items() if value is not None}
    tokens = {name: value for name, value in given.items() if name in LAW_KEYS}
    if cloud is not None and tokens:
        raise BadInput(f"both cloud and {next(iter(tokens))} are given; give a cloud, or a law with its arguments")
    run = {name: value for name, value in given.items() if name in (*RUN_KEYS, "mean_field")}
    plan = make(axes, head, tokens if cloud is None else cloud, run, outputs, block)
    places = Places(Path(out))
    if places.folder.exists() and not places.folder.is_dir():
        raise BadInput(f"out is {out}, which is a file; give a folder")
    with files.locked(places.folder), ExitStack() as stack:
        client = None
        if overwrite and places.description.exists() and places.description.read_bytes() != _text(plan).encode():
            # The old sweep is removed only once there are workers to compute the new one.
            client = stack.enter_context(connected(scheduler, workers, memory))
        journal = stack.enter_context(_claimed(plan, places, overwrite))
        kept = {i for i, status in journal.status.items() if not (retry_failed and status == FAILED)}
        todo = [i for i in range(plan.size) if i not in kept]
        if todo:
            _tell(plan, journal, todo)
            client = client or stack.enter_context(connected(scheduler, workers, memory))
            with PointsBar(plan.size, progress) as bar:
                compute_points(plan, todo, journal, client, bar, retry_failed)
        _publish(plan, journal, places, bool(todo))
    return dataset.load(places)


def read(path: Path) -> dict[str, Any]:
    """The arguments of `sweep` from a TOML file: [axes], [outputs], and the rest as for `simulate`."""
    tables = read_toml(path, further=("axes", "outputs", "mean_field"))
    for name in ("axes", "outputs"):
        if not isinstance(tables.get(name, {}), dict):
            raise BadInput(f"{path}: {name} must be a table, [{name}]")
    if "axes" not in tables:
        raise BadInput(f"{path} has no [axes]; give at least one axis with its values, as beta = [10, 100]")
    return {"cloud": {}, **tables}


def compute_points(
    plan: Plan, todo: Sequence[int], journal: Journal, client: Client, done: PointsBar, replace_failed: bool = False
) -> None:
    """Compute these points on the workers of the client; each result is in the journal before it counts."""
    finished = plan.size - len(todo)
    tasks = Tasks(
        client,
        compute,
        plan,
        versions=versions(),
        died=lambda index: Entry(index, FAILED, DIED.encode()),
        kept=lambda: f"{finished} of {plan.size} points are saved: start again to continue",
        task_seconds=TASK_SECONDS,
    )
    done(finished)
    for group in tasks.groups(((index, index) for index in todo), total=len(todo)):
        journal.append([record for _, record in group], replace_failed)
        finished += len(group)
        done(finished)


def _text(plan: Plan) -> str:
    return json.dumps(plan.description, indent=1) + "\n"


def _claimed(plan: Plan, places: Places, overwrite: bool) -> Journal:
    """The journal of this sweep, in a folder that holds this sweep or none; BadInput for another sweep's folder."""
    text = _text(plan)
    known = places.description.read_bytes() if places.description.exists() else None
    if overwrite and known != text.encode():
        places.clear()
    journal = Journal(places.journal, plan.identity)
    if known != text.encode() and not overwrite:
        _refuse_another(plan, places, journal, known)
    elif not journal.status and (journal.foreign or not journal.begun):
        # The folder is this sweep's, and nothing in the journal can be read.
        places.journal.unlink()
        journal = Journal(places.journal, plan.identity)
    places.tidy()
    if known != text.encode():
        files.write_text(places.description, text)
    return journal


def _refuse_another(plan: Plan, places: Places, journal: Journal, known: bytes | None) -> None:
    if journal.status:
        # The journal has points of this sweep, so the description is damaged or was removed.
        print(f"metastable: {places.description.name} was damaged and is written again", file=sys.stderr)
        return
    try:
        found = dict(json.loads(known or b""))
    except (ValueError, TypeError):
        found = {}
    if found:
        refuse_another(places.folder, found, json.loads(json.dumps(plan.description)))
    if journal.foreign:
        raise BadInput(f"{places.journal} belongs to another sweep; choose another folder or overwrite it")
    if not journal.begun:
        raise BadInput(f"{places.journal} is not the journal of a sweep; choose another folder")
    if known is None and places.dataset.exists() and not places.journal.exists():
        raise BadInput(f"{places.dataset} exists already and is not of this sweep; choose another name or overwrite it")


def _tell(plan: Plan, journal: Journal, todo: list[int]) -> None:
    """Print what was found in a folder that was used before."""
    failed = sum(index in journal.status for index in todo)
    lost = len(todo) - failed
    damaged = min(journal.damaged, lost)
    if not journal.status and not damaged:
        return
    parts = [f"{damaged} of {plan.size} points are damaged and {lost - damaged} are missing"] if lost else []
    parts += [f"{failed} failed before"] if failed else []
    print(f"metastable: {', '.join(parts)}: computing {len(todo)}", file=sys.stderr)


def _publish(plan: Plan, journal: Journal, places: Places, computed: bool) -> None:
    """Make the dataset from the journal, unless it is complete already."""
    if not computed:
        wrong = dataset.fault(plan, places)
        if not wrong and not journal.damaged:
            return
        if wrong:
            print(f"metastable: the dataset is made again from the journal: {wrong}", file=sys.stderr)
    dataset.write(plan, journal, places)
