"""The workers: processes of this machine, or those of any Dask cluster, with one thread each for the libraries."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from metastable.arrays import whole
from metastable.attention.tree.ordered import threads
from metastable.errors import BadInput
from metastable.run import storage as store

if TYPE_CHECKING:
    from distributed import Client

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "METASTABLE_THREADS"), "1"
)
MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**28, "MALLOC_MMAP_THRESHOLD_": 2**25}
"""For glibc. Dask's own setting gives memory back after every tensor and takes it anew for the next one, a page fault
for every page of it."""
DEATHS = 3
"""So many workers may die on a task before it is given up; on a cluster that is not ours its own setting holds."""
REACH_SECONDS = 8
_told: set[str] = set()
PLUGIN = "metastable-one-thread"


@contextlib.contextmanager
def connected(
    scheduler: str | None = None, workers: int | None = None, memory: int | str | None = None
) -> Iterator[Client]:
    """A Dask client: of the scheduler at this address, or of a cluster of this machine that ends with the context.

    The cluster has `workers` processes, one a core unless given, with one thread each. `memory` is the limit of one
    worker, as 4000000000 or "4GB"; unless given the machine's memory divided by the workers. Dask puts what it holds
    on the disk at 70 % of the limit and restarts a worker at 95 %. The address of Dask's dashboard is printed.
    """
    if find_spec("distributed") is None:
        raise BadInput("this needs Dask: pip install 'metastable[scale]'")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker that reads the script again would start workers of its own, without end.
        raise BadInput('put the call under `if __name__ == "__main__":`, for workers read the script again')
    with _quiet(), contextlib.ExitStack() as stack:
        if scheduler is None:
            client = stack.enter_context(_local(workers, memory))
        else:
            if workers is not None or memory is not None:
                raise BadInput("workers and memory are of a cluster on this machine; leave them away with a scheduler")
            client = stack.enter_context(_remote(scheduler))
        _prepare(client, scheduler)
        needs = "" if find_spec("bokeh") else " (it shows its charts once bokeh is installed)"
        print(f"metastable: dashboard: {client.dashboard_link}{needs}", file=sys.stderr)
        with client.as_current():
            yield client


@contextlib.contextmanager
def _local(workers: int | None, memory: int | str | None) -> Iterator[Client]:
    import dask
    from distributed import Client, LocalCluster

    count = _how_many(workers)
    settings: dict[str, int] = {f"distributed.nanny.pre-spawn-environ.{name}": size for name, size in MEMORY.items()}
    with dask.config.set({"distributed.scheduler.allowed-failures": DEATHS - 1, **settings}):
        try:
            cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                memory_limit=_bytes(memory, count),
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                env=THREADS,
            )
        except (RuntimeError, OSError, TimeoutError) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInput(f"the workers did not start ({words}); {_guard()}") from error
        try:
            with Client(cluster, set_as_default=False) as client:
                yield client
        finally:
            # Dask stumbles over a worker that died a moment ago and is being started again just now.
            with contextlib.suppress(AssertionError):
                cluster.close()


def _guard() -> str:
    return 'in a script put the call under `if __name__ == "__main__":`; see docs/clusters.md'


@contextlib.contextmanager
def _remote(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(address, timeout=REACH_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise BadInput(
            f"cannot reach a Dask scheduler at {address}; give its address as tcp://HOST:PORT, and see that it runs"
        ) from error
    try:
        yield client
    finally:
        if client.status == "running":
            with contextlib.suppress(Exception):
                client.unregister_worker_plugin(PLUGIN)
        with contextlib.suppress(Exception):
            client.close(timeout=2)


def _how_many(workers: int | None) -> int:
    cores = threads()
    if workers is None:
        return cores
    wanted = whole(workers, "workers", 1, "one worker or more is needed")
    if wanted > cores:
        print(f"metastable: {wanted} workers wanted, but this machine has {cores} cores: {cores}", file=sys.stderr)
    return min(wanted, cores)


def _bytes(memory: int | str | None, count: int) -> int:
    from dask.utils import parse_bytes
    from distributed.system import MEMORY_LIMIT

    if memory is None:
        return int(MEMORY_LIMIT // count)
    try:
        return min(int(parse_bytes(memory)), int(MEMORY_LIMIT))
    except (ValueError, AttributeError, TypeError):
        raise BadInput(f"memory is {memory!r}; give the limit of one worker as 4GB") from None


def _prepare(client: Client, scheduler: str | None) -> None:
    """One thread a worker, also for those that join later; and the same versions everywhere, or other bits come out."""
    from distributed import WorkerPlugin

    class OneThread(WorkerPlugin):
        name = PLUGIN

        def __init__(self, versions: dict[str, str], ours: bool) -> None:
            self.versions, self.ours = versions, ours

        def setup(self, worker: Any) -> None:
            from metastable.scale import cluster

            cluster.one_thread()
            cluster.same_versions(self.versions)
            if self.ours:
                cluster.leave_ctrl_c_to_the_client()

    try:
        client.register_plugin(OneThread(store.versions(), scheduler is None))
    except BadInput:
        raise
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        where = "of this machine" if scheduler is None else f"at {scheduler}"
        raise BadInput(f"the workers {where} cannot be used ({words}); install metastable[scale] there") from error


def one_thread() -> None:
    """Give this process one thread for BLAS, OpenMP, numba, torch and the tree engine: as many workers as cores."""
    import torch

    os.environ.update(THREADS)
    torch.set_num_threads(1)
    if "numba" in sys.modules:
        import numba

        numba.set_num_threads(1)


def threads_of(client: Client) -> int:
    """How many threads the workers have; where there are none, that is said, once for each client."""
    found = sum(client.nthreads().values())
    if not found and client.id not in _told:
        _told.add(client.id)
        print("metastable: the scheduler has no workers yet: waiting for one", file=sys.stderr)
    return found


def leave_ctrl_c_to_the_client() -> None:
    """A terminal sends Ctrl-C to workers too, where it would end in tracebacks before the client has closed them."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def same_versions(expected: dict[str, str]) -> None:
    found = store.versions()
    for name, version in expected.items():
        if found.get(name) != version:
            raise BadInput(
                f"a worker has {name} {found.get(name)} and this process {version}: the same point could have other "
                "bits; install the same versions"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dask's own log says at length what the errors here say in a line."""
    logs = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
