"""One small cluster for all tests of the room, and helpers for folders, journals and workers."""

import contextlib
import io
import os
import signal
import threading
import time

import pytest

from metastable.scale.cluster import connected


@pytest.fixture(scope="package")
def cluster():
    """A client of two worker processes; each is restarted when it dies. They end with the last test of this folder."""
    with connected(workers=2) as client:
        yield client


@pytest.fixture(scope="package")
def scheduler(cluster):
    return cluster.scheduler.address


@pytest.fixture
def one_death(cluster):
    """A task is given up at the first death of its worker, instead of the third; each takes seconds."""

    def allow(failures, dask_scheduler=None):
        before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, failures
        return before

    before = cluster.run_on_scheduler(allow, 0)
    yield
    cluster.run_on_scheduler(allow, before)


def kill_a_worker(cluster):
    """End one worker process as a machine that runs out of memory does; it is started again."""
    pids: list[int] = []
    while not pids:
        # A worker that just died does not answer.
        pids = list(cluster.run(os.getpid, on_error="ignore").values())
    os.kill(pids[-1], signal.SIGKILL)


def files(folder):
    """Every file of a finished sweep by name, with its bytes; the page is the command's."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def finished(path):
    """How many whole lines a growing file has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextlib.contextmanager
def when_grown(path, sizes, act):
    """Call act() each time the file passes one of these numbers of lines; yields the list of numbers acted on."""
    acted, ended = [], threading.Event()

    def watch():
        for size in sorted(sizes):
            while finished(path) < size:
                if ended.wait(0.01):
                    return
            act()
            acted.append(size)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield acted
    finally:
        ended.set()
        thread.join()


def until_grown(process, path, size):
    """Wait until the file that another process writes has this many lines."""
    deadline = time.monotonic() + 300
    while finished(path) < size and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture
def said():
    """What is printed on standard error in a block."""

    @contextlib.contextmanager
    def listening():
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard):
            yield heard

    return listening
