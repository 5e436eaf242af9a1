"""Threads that end with the call: every task once, results in order, errors raised."""

import threading
import time

import pytest

from metastable.attention.threads import run_all, threads


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
