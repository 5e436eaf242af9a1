"""One small cluster for all tests of the room, and the bytes of a folder."""

import contextlib
import io
import logging
import threading
import time

import pytest

from metastable.scale.cluster import THREADS
from metastable.scale.journal import FRONT, HEADER, scan


@pytest.fixture(scope="session")
def cluster():
    """Two worker processes, each with a nanny that starts it again when it dies."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
        env=THREADS,
    ) as found:
        yield found


@pytest.fixture(scope="session")
def scheduler(cluster):
    return cluster.scheduler_address


def files(folder):
    """Every file of a finished sweep by name, with its bytes; the page is the command's."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def finished(journal):
    """How many records a growing journal may hold, without reading them."""
    return max(0, journal.stat().st_size - HEADER) if journal.exists() else 0


def records(folder, plan):
    """The points in the journal, each with where its record begins and ends."""
    found = scan(folder / "journal", plan.identity, 8 * plan.width).found
    return {i: (e.offset - FRONT.size, e.offset + e.length + 32) for i, e in found.items()}


@contextlib.contextmanager
def when_grown(journal, sizes, act):
    """Call act() each time the journal passes one of the sizes, from a thread; yields the list of sizes acted on."""
    acted, ended = [], threading.Event()

    def watch():
        for size in sorted(sizes):
            while finished(journal) < size:
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


def until_grown(process, journal, size):
    """Wait until the journal that another process writes has passed a size."""
    deadline = time.monotonic() + 300
    while finished(journal) < size and process.poll() is None and time.monotonic() < deadline:
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
