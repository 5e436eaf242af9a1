"""Runs in threads: the same bits as `simulate`, seen as they grow, stopped within a step, and none left over."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

import metastable as ms
from metastable import figures
from metastable.figures.distance import distance_curves
from metastable.lab import runs as running
from metastable.lab.queue import UNKNOWN, Stopped, Turns, one_line
from metastable.lab.runs import COMPILING, MOST_JOBS, Runs
from metastable.lab.state import State, problem_of
from tests.encoder import models
from tests.lab.conftest import until

SMALL = State(n=60, until=2.0)
LONG = State(n=700, until=1000.0, beta=1000.0)
PLANE = State(n=400, until=1.0, interaction=(1.0, 1.0, 0.5), value=(1.0, 1.0, 0.5))
"""M's dominant eigenspace is a plane here, so that measuring takes longer than the run."""


def ended(runs, tab, key):
    until(lambda: runs.progress(tab, key).status in ("done", "failed", "stopped", "unknown"))
    return runs.progress(tab, key)


def done(runs, tab, key):
    assert ended(runs, tab, key).status == "done", runs.progress(tab, key).message
    return partial(runs, tab, key)


def partial(runs, tab, key):
    return runs.results(tab, key)[0]


def measured(runs, tab, key):
    return runs.results(tab, key)[1]


def working():
    """The number of threads that run simulations."""
    return sum(thread.name == "lab run" for thread in threading.enumerate())


def simulated(state):
    problem = problem_of(state)
    return ms.simulate(problem.head, problem.cloud, **problem.arguments)


def same(run, other):
    assert torch.equal(run.frames, other.frames)
    assert torch.equal(run.times, other.times)
    assert torch.equal(run.field_errors, other.field_errors)
    assert torch.equal(run.cloud.log_weights, other.cloud.log_weights)
    return True


@contextmanager
def lab(**settings):
    """Runs that leave no thread behind."""
    before = set(threading.enumerate())
    runs = Runs(**{"idle": 1000.0, **settings})
    try:
        yield runs
    finally:
        runs.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "state",
    [
        SMALL,
        replace(SMALL, law="graded", beta=2000.0),
        replace(SMALL, beta=math.inf, until=0.5),
        replace(SMALL, matrices="1 2\n-2 1\n\n1 0\n0 1"),
        State(d=2, interaction=(1.5, 0.6), value=(1.2, 0.5), n=2100, until=0.3),
        State(trained=f"{models.minilm()}:2:3", law="tokens", n=40, beta=50.0, until=3.0),
    ],
    ids=["uniform", "graded", "hardmax", "no limit", "tree", "trained"],
)
def test_a_job_is_simulate_bit_for_bit_and_measure_number_for_number(state):
    with lab() as runs:
        runs.start("tab", 1, [state])
        (run,) = done(runs, "tab", 1)
        wanted = simulated(state)
        assert same(run, wanted)
        assert run.configuration["engine"] == wanted.configuration["engine"]
        (found,), expected = measured(runs, "tab", 1), distance_curves(wanted)
        assert found.missing == expected.missing
        assert found.phases == expected.phases
        assert found.placed == expected.placed
        for name in ("distance", "laplace", "lyapunov", "certificate"):
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            assert one is None or np.allclose(one.values, other.values, rtol=1e-12, atol=0)


def test_the_number_of_threads_changes_no_bit_and_stays_as_it_was_elsewhere():
    wide = State(d=9, interaction=(1.5,) + (1.0,) * 8, value=(1.0,) * 9, n=4000, until=0.02)
    before, large, found = torch.get_num_threads(), problem_of(wide), []
    try:
        torch.set_num_threads(3)
        with lab() as runs:
            runs.start("tab", 1, [SMALL])
            (run,) = done(runs, "tab", 1)
            # While the lab is open, neither this thread nor a new one sees the single thread of that run.
            with ThreadPoolExecutor(1) as pool:
                assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 3
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert same(run, simulated(SMALL))
            # So large that sums over all tokens are shared between threads.
            found.append(ms.simulate(large.head, large.cloud, 100.0, 0.02, t_eval=2, engine="flash"))
    finally:
        torch.set_num_threads(before)
    assert same(*found)


def test_frames_are_there_as_soon_as_there_are_two_and_are_those_of_the_end():
    state = replace(SMALL, n=200, until=10.0)
    seen, versions = [], []
    with lab() as runs:
        runs.start("tab", "key", [state])
        while (progress := runs.progress("tab", "key")).status != "done":
            assert progress.status in ("running", "measuring")
            assert not measured(runs, "tab", "key") or runs.progress("tab", "key").status == "done"
            versions.append(progress.version)
            for part in partial(runs, "tab", "key")[:1]:
                if not seen or len(part.times) > len(seen[-1].times):
                    seen.append(part)
        (run,) = partial(runs, "tab", "key")
        assert runs.progress("tab", "key").fraction == 1
    assert versions == sorted(versions)
    assert len(set(versions)) >= len(seen) > 3
    assert 2 <= len(seen[0].times) < 101
    for part in seen:
        count = len(part.times)
        assert torch.equal(part.frames, run.frames[:count])
        assert torch.equal(part.times, run.times[:count])
        assert torch.equal(part.head.V, run.head.V)
        assert part.beta == run.beta
    figure = figures.sphere(seen[0])
    assert len(figure.frames) == min(len(seen[0].times), 40)
    assert sum(len(trace.x) for trace in figure.frames[0].data) == 200


def test_two_runs_of_a_job_come_side_by_side():
    pair = [SMALL, replace(SMALL, beta=10.0)]
    with lab() as runs:
        runs.start("tab", "long", [LONG, replace(LONG, beta=10.0)])
        until(lambda: partial(runs, "tab", "long"))
        early = partial(runs, "tab", "long")
        assert [part.beta for part in early] == [1000.0, 10.0]
        assert all(len(part.times) < 101 for part in early)
        assert 0 < runs.progress("tab", "long").fraction < 1
        runs.start("tab", "pair", pair)
        found = done(runs, "tab", "pair")
        assert all(same(run, simulated(one)) for run, one in zip(found, pair, strict=True))
        assert len(measured(runs, "tab", "pair")) == 2


def test_tabs_do_not_disturb_one_another():
    tabs = {name: replace(SMALL, seed=i, n=150 + i) for i, name in enumerate("abc")}
    with lab() as runs:
        runs.start("long", "key", [LONG])
        until(lambda: partial(runs, "long", "key"))
        for name, state in tabs.items():
            runs.start(name, "key", [state])
        for name, state in tabs.items():
            (run,) = done(runs, name, "key")
            assert same(run, simulated(state))
        # None of them had to wait for the long run, nor does that one know of them.
        assert runs.progress("long", "key").status == "running"
        runs.stop("long")
        (part,) = partial(runs, "long", "key")
        problem = problem_of(LONG)
        alone = ms.simulate(problem.head, problem.cloud, 1000.0, float(part.times[1]), t_eval=2)
        assert torch.equal(alone.final.points, part.frames[1])


def test_a_key_that_is_not_current_gets_nothing():
    with lab() as runs:
        runs.start("tab", "old", [LONG])
        until(lambda: partial(runs, "tab", "old"))
        runs.start("tab", "new", [SMALL])
        for key, tab in (("old", "tab"), ("new", "another tab"), (None, "tab")):
            assert runs.progress(tab, key) == UNKNOWN
            assert partial(runs, tab, key) == []
            assert measured(runs, tab, key) == []
        (run,) = done(runs, "tab", "new")
        assert same(run, simulated(SMALL))
        assert partial(runs, "tab", "old") == []


def test_a_new_job_ends_the_old_one_within_a_step(monkeypatch):
    asked = []
    whole = Turns.pass_on

    def counted(self, wanted):
        asked.append(wanted)
        whole(self, wanted)

    monkeypatch.setattr(Turns, "pass_on", counted)
    with lab() as runs:
        runs.start("tab", 1, [LONG])
        until(lambda: partial(runs, "tab", 1))
        former = asked[0]
        runs.start("tab", 2, [SMALL])
        before = asked.count(former)
        done(runs, "tab", 2)
        assert asked.count(former) <= before + 1


def test_a_stopped_run_shows_what_there_was_and_can_be_run_again():
    with lab() as runs:
        runs.start("tab", 1, [LONG])
        until(lambda: partial(runs, "tab", 1))
        runs.stop("tab")
        progress = runs.progress("tab", 1)
        assert progress.status == "stopped"
        assert progress.message.endswith("of 1000")
        until(lambda: not working())
        assert runs.progress("tab", 1).seconds == progress.seconds
        (part,) = partial(runs, "tab", 1)
        assert 2 <= len(part.times) < 101
        assert measured(runs, "tab", 1) == []
        runs.stop("tab")
        runs.stop("a tab that is not there")
        runs.start("tab", 1, [SMALL])
        assert runs.progress("tab", 1).version > progress.version
        done(runs, "tab", 1)


def test_the_same_key_goes_on_as_it_is():
    with lab() as runs:
        runs.start("tab", 1, [LONG])
        until(lambda: partial(runs, "tab", 1))
        version = runs.progress("tab", 1).version
        runs.start("tab", 1, [LONG])
        assert partial(runs, "tab", 1)
        assert runs.progress("tab", 1).version >= version
        runs.start("other", 1, [SMALL])
        (run,) = done(runs, "other", 1)
        runs.start("other", 1, [SMALL])
        assert partial(runs, "other", 1)[0] is run
        runs.stop("other")
        assert runs.progress("other", 1).status == "done"


def test_measuring_can_be_stopped_too():
    with lab() as runs:
        runs.start("tab", 1, [PLANE])
        until(lambda: runs.progress("tab", 1).status == "measuring")
        assert "measuring" in runs.progress("tab", 1).message
        runs.stop("tab")
        until(lambda: not working())
        assert runs.progress("tab", 1).status == "stopped"
        assert measured(runs, "tab", 1) == []
        assert len(partial(runs, "tab", 1)[0].times) == 101


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ms.SimulationStopped("a velocity is\nno longer finite"), "a velocity is no longer finite"),
        (ms.BadInput("n is wrong; take another"), "n is wrong; take another"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] can't allocate memory:\n tried 9"), "not enough memory"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_run_that_raises_has_failed_with_one_line_and_others_go_on(monkeypatch, error, words):
    def fails(head, cloud, **arguments):
        if len(cloud) == 61:
            raise error
        return ms.simulate(head, cloud, **arguments)

    monkeypatch.setattr(running, "simulate", fails)
    with lab() as runs:
        runs.start("bad", 1, [LONG, replace(SMALL, n=61)])
        runs.start("good", 1, [SMALL])
        progress = ended(runs, "bad", 1)
        assert progress.status == "failed"
        assert progress.message.startswith(words)
        assert "\n" not in progress.message
        assert measured(runs, "bad", 1) == []
        assert len(done(runs, "good", 1)) == 1
        # The other run of the job that failed has ended with it.
        until(lambda: not working())
        after = runs.progress("bad", 1)
        assert (after.status, after.message) == (progress.status, progress.message)


def test_state_that_cannot_be_used_fail_with_the_field():
    with lab() as runs:
        runs.start("tab", 1, [replace(SMALL, law="equally_spaced")])
        assert ended(runs, "tab", 1).message.startswith("law: ")
        runs.start("tab", 2, [State(trained="/nowhere/at/all:0:0")])
        assert "/nowhere/at/all" in ended(runs, "tab", 2).message


def test_a_run_of_tiny_steps_is_stopped_before_its_second_frame():
    state = replace(SMALL, matrices="[[1000, 0], [0, -1000]]\n\n[[1e-300, 1000], [-1000, 1000]]", beta=1e6)
    with lab() as runs:
        runs.start("tab", 1, [state])
        until(lambda: runs.progress("tab", 1).message == "t = 0.00 of 2")
        runs.stop("tab")
        until(lambda: not working())
        assert runs.progress("tab", 1).status == "stopped"
        assert partial(runs, "tab", 1) == []


@pytest.mark.slow
def test_at_most_so_many_jobs_run_and_the_next_waits_and_says_so():
    with lab() as runs:
        for tab in range(MOST_JOBS):
            runs.start(tab, "key", [LONG])
        runs.start("late", "key", [SMALL])
        runs.start("later", "key", [SMALL])
        until(lambda: all(partial(runs, tab, "key") for tab in range(MOST_JOBS)))
        progress = runs.progress("late", "key")
        assert (progress.status, progress.fraction) == ("waiting", 0.0)
        assert str(MOST_JOBS) in progress.message
        assert partial(runs, "late", "key") == []
        runs.stop("late")
        assert runs.progress("late", "key").status == "stopped"
        assert runs.progress("later", "key").status == "waiting"
        runs.stop(0)
        done(runs, "later", "key")
        assert runs.progress("late", "key").status == "stopped"
        assert partial(runs, "late", "key") == []


def test_a_tab_that_nobody_asks_for_is_stopped_and_forgotten():
    with lab(idle=2.0) as runs:
        for tab, state in {"finished": SMALL, "gone": LONG, "touched": LONG}.items():
            runs.start(tab, "key", [state])

        def alone():
            runs.touch("touched")
            return working() == 1

        # The run of the silent tab ends by itself, while the touched one continues.
        until(alone)
        assert runs.progress("touched", "key").status == "running"
        assert runs.progress("gone", "key") == runs.progress("finished", "key") == UNKNOWN


def test_a_run_that_nobody_asks_for_ends_by_itself():
    with lab(idle=0.2) as runs:
        runs.start("gone", "key", [LONG])
        until(lambda: working() == 1)
        until(lambda: not working())
        assert runs.progress("gone", "key") == UNKNOWN


def test_a_tab_that_says_goodbye_is_forgotten_at_once():
    with lab() as runs:
        runs.start("tab", "key", [LONG])
        until(lambda: partial(runs, "tab", "key"))
        runs.forget("tab")
        runs.forget("tab")
        assert runs.progress("tab", "key") == UNKNOWN
        assert partial(runs, "tab", "key") == []
        until(lambda: not working())


def test_of_too_many_tabs_the_one_longest_away_is_forgotten(monkeypatch):
    monkeypatch.setattr(running, "MOST_TABS", 2)
    with lab() as runs:
        runs.start("a", 1, [SMALL])
        runs.start("b", 1, [SMALL])
        done(runs, "b", 1)
        done(runs, "a", 1)
        runs.start("c", 1, [SMALL])
        assert [runs.progress(tab, 1).status for tab in "ab"] == ["done", "unknown"]
        done(runs, "c", 1)


def test_close_ends_every_thread_and_nothing_starts_after_it():
    before = set(threading.enumerate())
    runs = Runs()
    assert set(threading.enumerate()) == before
    for tab in range(6):
        runs.start(tab, "key", [LONG, replace(LONG, beta=10.0)])
    until(lambda: partial(runs, 0, "key"))
    assert len(set(threading.enumerate()) - before) == 12
    runs.close()
    assert set(threading.enumerate()) <= before
    assert runs.progress(0, "key") == UNKNOWN
    runs.start(0, "key", [SMALL])
    assert runs.progress(0, "key") == UNKNOWN
    assert set(threading.enumerate()) <= before
    runs.close()


def test_the_first_use_of_the_tree_says_that_it_compiles(monkeypatch):
    go, many = threading.Event(), State(n=20_000, until=0.1)

    def waits(*arguments, **settings):
        go.wait()
        return simulated(SMALL)

    monkeypatch.setattr(running, "simulate", waits)
    monkeypatch.setattr(running, "compiled", lambda: False)
    with lab() as runs:
        try:
            runs.start("tab", 1, [many])
            runs.start("few", 1, [SMALL])
            until(lambda: runs.progress("tab", 1).message == COMPILING)
            until(lambda: runs.progress("few", 1).message == "starting")
        finally:
            go.set()


def test_messages_say_where_a_run_is():
    with lab() as runs:
        runs.start("tab", 1, [LONG])
        until(lambda: partial(runs, "tab", 1))
        progress = runs.progress("tab", 1)
        assert progress.message.startswith("t = ")
        assert progress.message.endswith(" of 1000")
        assert 0 < progress.fraction < 1
        assert progress.seconds > 0


def test_errors_are_short():
    assert len(one_line(RuntimeError("long " * 1000))) <= 300


def test_no_more_runs_than_places_have_a_turn_and_all_come_to_an_end():
    changed = threading.Condition()
    turns, asked, busy, most, order = Turns(changed, 3), set(), [], [], []

    def work(name):
        def wanted():
            asked.add(name)
            return True

        with turns.turn(wanted):
            for _ in range(30):
                with changed:
                    busy.append(name)
                    most.append(len(busy))
                    order.append(name)
                time.sleep(0.001)
                with changed:
                    busy.remove(name)
                turns.pass_on(wanted)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(turns.turn(lambda: True))
        for thread in threads:
            thread.start()
        # All of them wait before the first one begins.
        until(lambda: len(asked) == 6)
        assert order == []
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert max(most) == 3
    assert len(order) == 180
    assert set(order[:90]) == set(range(6))
    # Nobody is left behind: while all are at work, each comes again before long.
    middle = order[40:120]
    for name in range(6):
        places = [i for i, found in enumerate(middle) if found == name]
        assert max(np.diff(places)) <= 24


def test_a_small_run_goes_on_beside_a_step_of_a_large_one():
    with lab() as runs, runs.many_threads.turn(lambda: True):
        runs.start("tab", 1, [SMALL])
        done(runs, "tab", 1)


def test_a_turn_that_is_no_longer_wanted_is_not_waited_for():
    changed = threading.Condition()
    turns, wanted, asked, found = Turns(changed, 1), [True], [], []

    def waits():
        try:
            with turns.turn(lambda: asked.append(1) or wanted[0]):
                found.append("a turn")
        except Stopped:
            found.append("stopped")

    with turns.turn(lambda: True):
        thread = threading.Thread(target=waits)
        thread.start()
        until(lambda: asked)
        with changed:
            wanted[0] = False
            changed.notify_all()
        thread.join(60)
        assert found == ["stopped"]
    with turns.turn(lambda: True):
        pass
