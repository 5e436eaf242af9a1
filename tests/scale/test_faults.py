"""Whatever dies or breaks during a sweep, a plain rerun ends with the bytes of an undisturbed one."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.errors import BadInput, SchedulerLost
from metastable.files import Journal, locked
from metastable.scale.plan import make
from tests.scale.conftest import files, finished, kill_a_worker, until_grown, when_grown

AXES = {"beta": [1.0, 10.0, 100.0, 300.0], "seed": list(range(16))}
HEAD = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}
RUN = {"until": 3.0, "t_eval": 6}
SWEEP = {"axes": AXES, "head": HEAD, "n": 20, "progress": False, **RUN}
PLAN = make(AXES, HEAD, {"n": 20}, RUN)
NOWHERE = "tcp://127.0.0.1:9"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TOML = f"""
until = 3.0
t_eval = 6
[axes]
beta = {AXES["beta"]}
seed = {AXES["seed"]}
[head]
interaction = [1.5, 0.6]
value = [1.0, 0.7]
[cloud]
n = 20
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, scheduler):
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    ms.sweep(out=folder, scheduler=scheduler, **SWEEP)
    assert finished(folder / "journal") == 1 + PLAN.size
    return folder


@pytest.fixture
def copied(undisturbed, tmp_path):
    """A finished sweep to be damaged."""
    return shutil.copytree(undisturbed, tmp_path / "sweep")


def command(folder, *options):
    toml = folder.with_suffix(".toml")
    toml.write_text(TOML, encoding="utf-8")
    return [sys.executable, "-m", "metastable", "sweep", str(toml), "--out", str(folder), *options]


def kept(folder):
    return len(Journal(folder / "journal", PLAN.identity).status)


def rerun(folder, scheduler, undisturbed, said):
    """A plain rerun: it says how much it computes, no more than what is missing, and ends with the same bytes."""
    before = kept(folder)
    with said() as heard:
        ms.sweep(out=folder, scheduler=scheduler, **SWEEP)
    counts = rf"(\d+) of {PLAN.size} points are damaged and (\d+) are missing: computing (\d+)"
    words = re.search(counts, heard.getvalue())
    if 0 < before < PLAN.size:
        damaged, missing, computing = map(int, words.groups())
        assert damaged + missing == computing == PLAN.size - before
    assert files(folder) == files(undisturbed)
    assert json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["schema"] == "metastable.sweep/1"
    # One record a point: nothing was counted twice.
    assert finished(folder / "journal") == 1 + PLAN.size
    return heard.getvalue()


@pytest.mark.slow
def test_workers_killed_at_random_moments(tmp_path, cluster, scheduler, undisturbed):
    folder = tmp_path / "sweep"
    moments = [2, random.Random(8).randrange(2, 50)]
    with when_grown(folder / "journal", moments, lambda: kill_a_worker(cluster)) as killed:
        data = ms.sweep(out=folder, scheduler=scheduler, **SWEEP)
    assert killed
    assert int(data["status"].sum()) == 0
    assert files(folder) == files(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [30, 2])
def test_a_client_that_is_killed(tmp_path, scheduler, undisturbed, said, moment):
    folder = tmp_path / "sweep"
    child = subprocess.Popen(command(folder, "--scheduler", scheduler), env=ENVIRONMENT, stderr=subprocess.PIPE)
    until_grown(child, folder / "journal", moment)
    child.kill()
    child.communicate()
    assert 0 < kept(folder) < PLAN.size
    assert not (folder / "manifest.json").exists()
    rerun(folder, scheduler, undisturbed, said)


@pytest.fixture
def outer(tmp_path):
    """A scheduler and a worker as other processes, as on a cluster."""
    address = tmp_path / "scheduler.json"
    quiet = {"env": ENVIRONMENT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    module = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    started = [subprocess.Popen([*module, "--no-dashboard", "--scheduler-file", str(address)], **quiet)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    worker += ["--scheduler-file", str(address), "--local-directory", str(tmp_path / "scratch")]
    started.append(subprocess.Popen(worker, **quiet))
    until_grown(started[0], address, 1)
    yield started[0], lambda: json.loads(address.read_text(encoding="utf-8"))["address"]
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_scheduler_killed(tmp_path, outer, scheduler, undisturbed, said):
    process, address = outer
    folder = tmp_path / "sweep"
    lost = pytest.raises(SchedulerLost, match="the connection to the Dask scheduler was lost")
    with when_grown(folder / "journal", [20], process.kill) as killed, lost as caught:
        ms.sweep(out=folder, scheduler=address(), **SWEEP)
    assert killed
    assert "\n" not in str(caught.value)
    assert int(re.search(rf"(\d+) of {PLAN.size}", str(caught.value))[1]) == kept(folder) >= 19
    rerun(folder, scheduler, undisturbed, said)


def test_a_chunk_overwritten_with_garbage_is_made_again_without_computing(copied, undisturbed, said):
    chunk = copied / "sweep.zarr/distance/c/0/0/0"
    chunk.write_bytes(random.Random(0).randbytes(chunk.stat().st_size))
    assert "made again from the journal: distance/c/0/0/0 is damaged" in rerun(copied, NOWHERE, undisturbed, said)


def test_a_damaged_record_is_computed_again_and_nothing_else(copied, scheduler, undisturbed, said):
    lines = (copied / "journal").read_bytes().splitlines(keepends=True)
    lines[17] = lines[17].replace(b"A", b"B", 1)
    (copied / "journal").write_bytes(b"".join(lines))
    heard = rerun(copied, scheduler, undisturbed, said)
    assert f"1 of {PLAN.size} points are damaged and 0 are missing: computing 1" in heard


@pytest.mark.parametrize("cut", [30, 3000])
def test_a_journal_cut_anywhere(copied, scheduler, undisturbed, said, cut):
    journal = copied / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-cut])
    assert kept(copied) == whole[:-cut].count(b"\n") - 1
    rerun(copied, scheduler, undisturbed, said)


@contextlib.contextmanager
def largest_file(size):
    """A disk on which this process cannot write more than so many bytes into a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk(tmp_path, scheduler, undisturbed, said):
    folder = tmp_path / "sweep"
    run = command(folder, "--scheduler", scheduler)[3:]
    with largest_file((undisturbed / "journal").stat().st_size // 3):
        ended = CliRunner().invoke(app, run)
    assert ended.exit_code == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert re.match(r"metastable: cannot write .*journal: File too large; free some space", last)
    assert "Traceback" not in ended.stderr
    assert 0 < kept(folder) <= PLAN.size // 3
    rerun(folder, scheduler, undisturbed, said)


def test_a_disk_that_fills_while_the_dataset_is_written(copied, undisturbed, said):
    """The journal is safe, so the next start has nothing to compute."""
    shutil.rmtree(copied / "sweep.zarr")
    with largest_file(1000), pytest.raises(BadInput, match="free some space and start again"):
        ms.sweep(out=copied, scheduler=NOWHERE, **SWEEP)
    assert not (copied / "sweep.zarr").exists()
    rerun(copied, NOWHERE, undisturbed, said)


def test_a_sweep_refuses_a_folder_in_which_another_is_at_work(tmp_path):
    with locked(tmp_path), pytest.raises(BadInput, match=rf"another process \(pid {os.getpid()}\) is at work in"):
        ms.sweep(out=tmp_path, scheduler=NOWHERE, **SWEEP)


@pytest.mark.slow
def test_the_second_of_two_processes_refuses(tmp_path, scheduler, undisturbed, said):
    folder = tmp_path / "sweep"
    with subprocess.Popen(
        command(folder, "--scheduler", scheduler), env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as first:
        until_grown(first, folder / "journal", 2)
        first.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(BadInput, match=rf"another process \(pid {first.pid}\) is at work in") as caught:
                ms.sweep(out=folder, scheduler=scheduler, **SWEEP)
        finally:
            first.send_signal(signal.SIGCONT)
        assert "\n" not in str(caught.value)
    assert first.returncode == 0
    rerun(folder, NOWHERE, undisturbed, said)
