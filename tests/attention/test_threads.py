"""Threads that end with the call: every task once, results in order, errors raised."""

import _thread
import signal
import threading
import time

import pytest
import torch

import metastable as ms
from metastable.attention.threads import run_all, threads


@pytest.fixture(autouse=True)
def _torch_has_seven_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("given", [None, "1", "2", "7", "100"])
@pytest.mark.parametrize("allowed", [1, 2, 7])
def test_no_more_threads_than_torch_and_the_environment_allow(monkeypatch, given, allowed):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("METASTABLE_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("METASTABLE_THREADS", given)
    torch.set_num_threads(allowed)
    assert threads() == min(allowed, 4 if given is None else int(given))


@pytest.mark.parametrize("engine", ["direct", "tree"])
def test_a_host_with_one_thread_gets_one(monkeypatch, engine):
    """The engine starts no thread, and numba's own number of threads stays as it is."""
    import numba

    started, before = [], numba.get_num_threads()
    start = _thread.start_new_thread
    monkeypatch.setattr("metastable.attention.threads.start_new_thread", lambda *a: started.append(a) or start(*a))
    monkeypatch.setenv("METASTABLE_THREADS", "4")
    cloud = ms.uniform(3000, d=3, seed=0)
    torch.set_num_threads(1)
    alone = ms.attend(cloud, 50 * cloud.points, engine=engine, tol=1e-6)
    assert not started
    torch.set_num_threads(2)
    assert torch.equal(ms.attend(cloud, 50 * cloud.points, engine=engine, tol=1e-6), alone)
    assert started
    assert numba.get_num_threads() == before


@pytest.mark.parametrize("count", ["1", "2", "7"])
def test_results_are_in_the_order_of_the_tasks(monkeypatch, count):
    monkeypatch.setenv("METASTABLE_THREADS", count)
    assert threads() == int(count)
    before = threading.active_count()

    def work(number):
        time.sleep(0.001 * (number % 3))
        return number**2

    assert run_all(work, [(n,) for n in range(20)]) == [n**2 for n in range(20)]
    assert run_all(work, []) == []
    assert threading.active_count() == before


def test_several_threads_work_at_once(monkeypatch):
    monkeypatch.setenv("METASTABLE_THREADS", "3")
    meeting = threading.Barrier(3, timeout=30)
    run_all(lambda _: meeting.wait(), [(n,) for n in range(3)])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, IndexError])
def test_an_error_is_raised_when_all_threads_have_ended(monkeypatch, error):
    monkeypatch.setenv("METASTABLE_THREADS", "3")
    running = []

    def work(number):
        running.append(number)
        if number == 1:
            raise error
        time.sleep(0.01)
        running.remove(number)

    with pytest.raises(error):
        run_all(work, [(n,) for n in range(50)])
    assert running == [1]


def test_after_an_interruption_no_thread_is_at_work(monkeypatch):
    """Ctrl-C that arrives while the calling thread waits for the last tasks of the others."""
    monkeypatch.setenv("METASTABLE_THREADS", "3")
    main, meeting, done = threading.get_ident(), threading.Barrier(3, timeout=30), []
    first = threading.Lock()

    def work(number):
        meeting.wait()
        if threading.get_ident() != main:
            time.sleep(0.2)
            if first.acquire(blocking=False):
                signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
            done.append(number)

    def run():
        try:
            run_all(work, [(n,) for n in range(3)])
        finally:
            finished.append(len(done))

    finished: list[int] = []
    # Shells let background jobs ignore SIGINT, and their children inherit it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert finished == [2]
