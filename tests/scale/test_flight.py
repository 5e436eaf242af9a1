"""Pieces on their way: order, bounds, and workers that die."""

import os
import signal
import time

import pytest

from metastable.errors import BadInput
from metastable.scale import cluster as workers
from metastable.scale import tasks as module
from metastable.scale.tasks import Flight


@pytest.fixture(scope="module")
def client(scheduler):
    with workers.connected(scheduler) as found:
        yield found


def where(piece):
    return f"piece {piece}"


def lost():
    return "start again"


def slow_where_even(common, piece):
    time.sleep(0.05 if piece % 7 == 0 else 0)
    return common + piece


def counted(number, taken):
    for piece in range(number):
        taken.append(piece)
        yield piece, piece


def test_results_come_in_order_and_few_pieces_are_taken_ahead(client):
    taken, ahead = [], []
    for place, result in enumerate(Flight(client, slow_where_even, 100, where, lost).in_order(counted(100, taken))):
        assert result == 100 + place
        ahead.append(len(taken) - place)
    assert place == 99
    assert max(ahead) <= module.SPAN * 2 + 6


def test_results_come_as_they_are_finished(client):
    taken = []
    flight = Flight(client, slow_where_even, 0, where, lost)
    found, most = [], 0
    for number, result in flight.through(counted(60, taken)):
        assert number == result
        found.append(number)
        most = max(most, len(taken) - len(found))
    assert sorted(found) == list(range(60))
    assert found != sorted(found)
    assert most <= 2 * 2 + 1


def test_an_empty_flight(client):
    assert list(Flight(client, slow_where_even, 0, where, lost).through([])) == []


def failing(common, piece):
    if piece == 2:
        raise BadInput("two is no good")
    return piece


def test_an_error_of_a_worker_is_that_of_the_flight(client):
    with pytest.raises(BadInput, match="two is no good"):
        list(Flight(client, failing, None, where, lost).in_order((i, i) for i in range(5)))


def deadly(common, piece):
    with open(common, "a") as file:
        file.write(f"{piece}\n")
    if piece == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def test_a_piece_that_kills_its_workers_ends_the_flight_and_is_named(client, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    found = []
    with pytest.raises(BadInput, match="a worker died each time it came to piece 3: out of memory") as caught:
        found.extend(Flight(client, deadly, str(tmp_path / "tries"), where, lost).through((i, i) for i in range(6)))
    assert "\n" not in str(caught.value)
    assert (tmp_path / "tries").read_text().split().count("3") == 2


def test_three_deaths_give_a_task_up_on_workers_of_this_machine(tmp_path, monkeypatch):
    """What `connected` sets, seen on workers that it starts, which die at once and without torch in them."""
    from distributed import KilledWorker

    monkeypatch.setattr(workers, "_prepare", lambda *_: None)
    tries = tmp_path / "tries"
    program = f"import os; open({str(tries)!r}, 'a').write('x'); os._exit(1)"
    with workers.connected(workers=2) as client, pytest.raises(KilledWorker):
        client.submit(exec, program).result()
    assert tries.read_text() == "x" * workers.DEATHS == "xxx"


def test_workers_of_this_machine_keep_the_memory_that_they_need_again(monkeypatch):
    """Seen where workers would be started: what a worker inherits, other clusters of this process change too."""
    import dask
    import distributed

    found = {}

    def start(**_):
        found.update(dask.config.get("distributed.nanny.pre-spawn-environ"))
        raise RuntimeError("enough")

    monkeypatch.setattr(distributed, "LocalCluster", start)
    with pytest.raises(BadInput, match=r"the workers did not start \(enough\)"), workers.connected(workers=1):
        pass
    assert found.items() >= workers.MEMORY.items()


def test_a_cluster_that_stumbles_over_a_dying_worker_while_it_closes_is_no_error(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(workers, "_prepare", lambda *_: None)
    whole = LocalCluster.close

    def stumbling(self, timeout=None):
        whole(self, timeout)
        raise AssertionError("can only join a started process")

    monkeypatch.setattr(LocalCluster, "close", stumbling)
    with workers.connected(workers=1) as client:
        assert client.submit(sum, [1, 2]).result() == 3
