"""Dask workers: processes of this machine, or those of any Dask cluster, each with one thread for numerical libraries.

The cluster of this machine lives in a process of its own (see `local`). So the environment, the signal handlers, the
log levels and Dask's configuration of the calling process stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from metastable.arrays import whole
from metastable.attention.threads import threads
from metastable.errors import BadInput, extra
from metastable.versions import versions

if TYPE_CHECKING:
    from distributed import Client

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "METASTABLE_THREADS"), "1"
)
# For glibc, in bytes. With Dask's own setting, memory is returned after every tensor and requested again for the next.
MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
# A task is given up after this many workers died on it; on a cluster of others, that cluster's setting holds.
DEATHS = 3
# Seconds to wait for a scheduler to answer, and for the cluster of this machine to close.
REACH_SECONDS = 8
CLOSE_SECONDS = 15
PLUGIN = "metastable-one-thread"


@contextlib.contextmanager
def connected(
    scheduler: str | None = None, workers: int | None = None, memory: int | str | None = None
) -> Iterator[Client]:
    """A Dask client of the scheduler at this address, or of a cluster of this machine that ends with the context.

    workers : processes of the cluster of this machine, each with one thread; by default one for each core
    memory : limit of one worker, as 4000000000 or "4GB"; by default the machine's memory divided by the workers.
        Dask restarts a worker that exceeds 95 % of the limit

    The address of Dask's dashboard is printed to standard error.
    """
    if find_spec("distributed") is None:
        raise BadInput(f"this needs Dask; {extra('scale')}")
    if scheduler is not None and (workers is not None or memory is not None):
        raise BadInput("workers and memory are for a cluster on this machine; leave them out with a scheduler")
    cluster = _local_cluster(workers, memory) if scheduler is None else contextlib.nullcontext(scheduler)
    with cluster as address, _client(address) as client:
        _prepare(client, "of this machine" if scheduler is None else f"at {scheduler}")
        needs = "" if find_spec("bokeh") else " (its charts need bokeh)"
        print(f"metastable: dashboard: {client.dashboard_link}{needs}", file=sys.stderr)
        with client.as_current():
            yield client


@contextlib.contextmanager
def _local_cluster(workers: int | None, memory: int | str | None) -> Iterator[str]:
    """The address of a new cluster of this machine."""
    count = _worker_count(workers)
    settings = {"workers": count, "memory": _memory_limit(memory, count), "deaths": DEATHS}
    process = subprocess.Popen(
        [sys.executable, "-m", "metastable.scale.local", json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **THREADS, **MEMORY, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        # Ctrl-C in a terminal ends this process, which then closes the cluster.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        answer = json.loads(line) if line else {"error": "their process ended at once"}
        if "error" in answer:
            raise BadInput(f"the workers did not start ({' '.join(answer['error'].split())}); try fewer workers")
        yield answer["address"]
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _client(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(address, timeout=REACH_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise BadInput(
            f"cannot reach a Dask scheduler at {address}; give its address as tcp://HOST:PORT, and check that it runs"
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            if client.status == "running":
                client.unregister_worker_plugin(PLUGIN)
        with contextlib.suppress(Exception):
            client.close(timeout=2)


def _worker_count(workers: int | None) -> int:
    cores = threads()
    if workers is None:
        return cores
    wanted = whole(workers, "workers", 1, "at least one worker is needed")
    if wanted > cores:
        print(f"metastable: {wanted} workers were requested; this machine has {cores} cores", file=sys.stderr)
    return min(wanted, cores)


def _memory_limit(memory: int | str | None, count: int) -> int:
    """Bytes of one worker."""
    from dask.utils import parse_bytes
    from distributed.system import MEMORY_LIMIT

    if memory is None:
        return int(MEMORY_LIMIT // count)
    try:
        return min(int(parse_bytes(memory)), int(MEMORY_LIMIT))
    except (ValueError, AttributeError, TypeError):
        raise BadInput(f"memory is {memory!r}; give the limit of one worker, as 4GB") from None


def _prepare(client: Client, where: str) -> None:
    """Give every worker one thread and check its versions; also of workers that join later."""
    from distributed import WorkerPlugin

    class OneThread(WorkerPlugin):
        name = PLUGIN

        def __init__(self, versions: dict[str, str]) -> None:
            self.versions = versions

        def setup(self, worker: Any) -> None:
            from metastable.scale import cluster

            self.before = cluster.one_thread()
            cluster.check_versions(self.versions)

        def teardown(self, worker: Any) -> None:
            import torch

            torch.set_num_threads(self.before)

    try:
        client.register_plugin(OneThread(versions()))
    except BadInput:
        raise
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"the workers {where} cannot be used ({words}); each needs the extra scale") from error


def one_thread() -> int:
    """Let torch, numba and the tree engine use one thread in this worker; returns torch's number of threads before.

    There are as many workers as cores, so more threads would only compete.
    """
    import torch

    before = torch.get_num_threads()
    os.environ.update(THREADS)
    torch.set_num_threads(1)
    if "numba" in sys.modules:
        import numba

        numba.set_num_threads(1)
    return before


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_versions(expected: Mapping[str, str | None]) -> None:
    """Raise BadInput if this worker has other versions than the process that sends the tasks."""
    for name, version in expected.items():
        if (found := installed(name)) != version:
            raise BadInput(
                f"a worker on {socket.gethostname()} has {name} {found} and this process {version}; install the same "
                "versions, because results could differ in their last digits"
            )
