"""Workers of this machine and of others, tasks on them, and a host program whose state stays its own."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import metastable as ms
from metastable.errors import BadInput
from metastable.scale import cluster as workers
from metastable.scale.tasks import SPAN, Tasks
from tests.scale.conftest import files

SWEEP = {
    "axes": {"beta": [1.0, 10.0]},
    "head": {"interaction": [1.5, 0.6], "value": [1.0, 0.7]},
    **{"n": 10, "until": 1.0, "t_eval": 3, "progress": False},
}


def host_state():
    import dask
    import distributed  # noqa: F401  (importing it makes its own loggers)
    import torch

    names = ("", "distributed", "tornado", "asyncio", "dask")
    return {
        "environment": dict(os.environ),
        "dask": str(dask.config.config),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
        "levels": {name: (logging.getLogger(name).level, logging.getLogger(name).handlers[:]) for name in names},
        "start method": multiprocessing.get_start_method(allow_none=True),
        "threads": torch.get_num_threads(),
        "folder": os.getcwd(),
    }


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_host_keeps_its_state_before_during_and_after_a_sweep(tmp_path, scheduler, fails, monkeypatch):
    before, seen, ended = host_state(), [], threading.Event()

    def watch():
        while not ended.wait(0.02):
            seen.append(host_state())

    def failing(*_, **__):
        raise BadInput("the disk is full")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        if fails:
            monkeypatch.setattr("metastable.files.Journal.append", failing)
            with pytest.raises(BadInput, match="the disk is full"):
                ms.sweep(out=tmp_path / "here", workers=1, **SWEEP)
        else:
            ms.sweep(out=tmp_path / "here", workers=1, **SWEEP)
    finally:
        ended.set()
        thread.join()
    assert len(seen) > 10
    assert all(state == before for state in (*seen, host_state()))
    if not fails:
        # And the workers of this machine give the bytes of any others.
        ms.sweep(out=tmp_path / "there", scheduler=scheduler, **SWEEP)
        assert files(tmp_path / "here") == files(tmp_path / "there")


@pytest.mark.slow
def test_no_process_outlives_a_host_that_is_killed():
    program = """
import os
from metastable.scale.cluster import connected
with connected(workers=1) as client:
    print(*client.run(os.getpid).values(), client.run_on_scheduler(os.getpid), flush=True)
    os.kill(os.getpid(), 9)
"""
    # There is no `if __name__ == "__main__"`: workers do not read the script.
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL
    pids = list(map(int, ended.stdout.split()))
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_worker_that_dies_as_the_cluster_closes_is_no_error():
    with workers.connected(workers=1) as client:
        client.submit(os._exit, 1)


def test_workers_have_one_thread_for_every_library_and_keep_their_memory(cluster):
    for found in cluster.run(_settings).values():
        assert found["threads"] == {"torch": 1, "numba": 1, "tree": 1}
        assert found["environment"].items() >= {**workers.THREADS, **workers.MEMORY}.items()


def _settings():
    import numba
    import torch

    from metastable.attention.threads import threads

    counts = {"torch": torch.get_num_threads(), "numba": numba.get_num_threads(), "tree": threads()}
    return {"threads": counts, "environment": dict(os.environ)}


def test_workers_with_other_versions_are_refused(scheduler, monkeypatch):
    versions = workers.versions()
    monkeypatch.setattr(workers, "versions", lambda: {**versions, "torch": "1.0"})
    with pytest.raises(BadInput, match=r"a worker on .* has torch .* and this process 1.0"):
        workers.connected(scheduler).__enter__()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"memory": "much"}, "memory is 'much'"),
        ({"memory": [1]}, "memory is"),
        ({"scheduler": "tcp://127.0.0.1:9"}, "cannot reach"),
        ({"scheduler": "nonsense"}, "cannot reach"),
        ({"scheduler": "http://127.0.0.1:9"}, "cannot reach"),
        ({"scheduler": "tcp://127.0.0.1:9", "workers": 1}, "leave them out"),
    ],
)
def test_workers_that_cannot_be_had_are_said_in_one_line(options, word, monkeypatch):
    monkeypatch.setattr(workers, "REACH_SECONDS", 1)
    with pytest.raises(BadInput, match=word) as caught, workers.connected(**options):
        pass
    assert "\n" not in str(caught.value)


# --- tasks


def tasks(cluster, function, common=None, **options):
    def died(item):
        raise BadInput(f"a worker died on item {item}")

    usual = {"versions": {}, "died": died, "kept": lambda: "start again"}
    return Tasks(cluster, function, common, **{**usual, **options})


def slow_at_sevens(common, items):
    time.sleep(sum(0.05 for item in items if item % 7 == 0))
    return [common + item for item in items]


def counted(number, taken):
    for item in range(number):
        taken.append(item)
        yield item, item


def test_results_come_in_order_and_few_items_are_taken_ahead(cluster):
    taken, ahead = [], []
    for place, result in enumerate(tasks(cluster, slow_at_sevens, 100).in_order(counted(100, taken))):
        assert result == 100 + place
        ahead.append(len(taken) - place)
    assert place == 99
    assert max(ahead) <= SPAN * 2 + 6


def test_results_come_as_they_are_finished(cluster):
    taken, found, most = [], [], 0
    for [(number, result)] in tasks(cluster, slow_at_sevens, 0).groups(counted(60, taken)):
        assert number == result
        found.append(number)
        most = max(most, len(taken) - len(found))
    assert sorted(found) == list(range(60))
    assert found != sorted(found)
    assert most <= 2 * 2 + 1
    assert list(tasks(cluster, slow_at_sevens, 0).groups([])) == []


def test_quick_items_share_a_task_and_slow_ones_do_not(cluster):
    quick = tasks(cluster, slow_at_sevens, 0, task_seconds=0.5)
    items = [(i, 7 * i + 1) for i in range(300)]
    sizes = [len(group) for group in quick.groups(items, total=300)]
    assert sum(sizes) == 300
    assert max(sizes) > 10
    # Towards the end no worker gets everything that is left.
    assert sizes[-1] <= 2
    slow = tasks(cluster, slow_at_sevens, 0, task_seconds=0.04)
    assert {len(group) for group in slow.groups([(i, 7 * i) for i in range(12)], total=12)} == {1}


def failing(common, items):
    if 2 in items:
        raise BadInput("two is no good")
    return items


def missing(common, items):
    raise FileNotFoundError(2, "No such file", "model")


def test_workers_with_other_versions_are_refused_also_when_they_come_later(cluster):
    for versions in ({"numpy": "0.0.1"}, {"no-such-package": "1.0"}):
        with pytest.raises(BadInput, match=r"a worker on .* has (numpy|no-such-package) .* and this process"):
            list(tasks(cluster, failing, versions=versions).groups([(0, 0)]))
    assert list(tasks(cluster, failing, versions={"no-such-package": None}).groups([(0, 0)])) == [[(0, 0)]]


def test_an_error_of_a_worker_ends_the_tasks(cluster):
    with pytest.raises(BadInput, match="two is no good"):
        list(tasks(cluster, failing).in_order((i, i) for i in range(5)))
    with pytest.raises(BadInput, match=r"a worker on .*No such file"):
        list(tasks(cluster, missing).in_order([(0, 0)]))


def deadly(common, items):
    with open(common, "a") as file:
        file.writelines(f"{item}\n" for item in items)
    if 3 in items:
        os.kill(os.getpid(), signal.SIGKILL)
    return items


@pytest.mark.slow
def test_an_item_that_kills_its_workers_is_tried_alone_and_then_given_up(cluster, one_death, tmp_path):
    """Dask blames every task that waited on the same worker."""
    tries = tmp_path / "tries"
    given_up = []
    chosen = tasks(cluster, deadly, str(tries), died=lambda item: given_up.append(item) or -1, task_seconds=0.1)
    found = dict(pair for group in chosen.groups([(i, i) for i in range(6)], total=6) for pair in group)
    assert found == {0: 0, 1: 1, 2: 2, 3: -1, 4: 4, 5: 5}
    assert given_up == [3]
    assert tries.read_text().split().count("3") == 2
    with pytest.raises(BadInput, match="died on item 3"):
        list(tasks(cluster, deadly, str(tries)).groups([(3, 3)]))


@pytest.mark.slow
def test_a_task_is_given_up_after_three_deaths(cluster, tmp_path):
    from distributed import KilledWorker

    tries = tmp_path / "tries"
    program = f"import os; open({str(tries)!r}, 'a').write('x'); os._exit(1)"
    future = cluster.submit(exec, program)
    with pytest.raises(KilledWorker):
        future.result()
    assert tries.read_text() == "x" * workers.DEATHS == "xxx"
