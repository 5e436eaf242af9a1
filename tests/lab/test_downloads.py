"""What people take home: programs that make the same runs again, to the last bit, and the numbers themselves."""

import ast
import html
import io
import json
import math
import re
import runpy

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.lab.callbacks import Backend
from metastable.lab.downloads import data, download, script
from metastable.lab.state import State, problem_of
from metastable.report.sentences import headline
from tests.encoder import models
from tests.lab.conftest import until

PASTED = "[[1.4, 0.1], [0.3333333333333333, 0.7]]\n\n[[1.2, -0.2], [0.1, 0.5]]"
MIXED = {"law": "mixture", "n": 40, "until": 0.2, "d": 5}
MIXED |= {"interaction": (1.5, 1.0, 0.9, 0.8, 0.7), "value": (1.0, 1.1, 0.9, 0.5, -1.0)}


def simulated(state):
    problem = problem_of(state)
    return ms.simulate(problem.head, problem.cloud, **problem.arguments)


@pytest.mark.parametrize(
    "state",
    [
        State(n=50, until=1.0, angle=100 / 3, seed=3, compare="weights", theme="dark"),
        State(n=50, until=1.0, matrices=PASTED, law="von_mises_fisher", compare="n", other="70"),
        State(**MIXED, compare="beta", other="inf"),
        State(trained=f"{models.minilm()}:2:3", law="tokens", n=30, beta=50.0, until=2.0),
    ],
    ids=["weights", "matrices", "hardmax", "trained"],
)
def test_the_program_makes_the_same_runs_to_the_last_bit(state, tmp_path, monkeypatch):
    if not state.trained:
        # One case draws its report; the others only say where it would be.
        monkeypatch.setattr(ms.Run, "report", lambda run, path: (tmp_path / path).write_text("a report"))
    program = tmp_path / "again.py"
    program.write_text(script(state), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(program.name, run_name="__main__")
    states = state.runs()
    assert len(list(tmp_path.glob("*.zarr"))) == len(list(tmp_path.glob("*.html"))) == len(states)
    for name, one in zip(("run", "other"), states, strict=False):
        found, wanted = ms.Run.load(tmp_path / f"{name}.zarr"), simulated(one)
        assert torch.equal(found.frames, wanted.frames)
        assert torch.equal(found.cloud.log_weights, wanted.cloud.log_weights)
        assert torch.equal(found.times, wanted.times)


def test_the_program_names_the_engines_of_the_runs(tmp_path):
    """Another engine would give other last digits: "auto" stands for the one that is compiled."""
    state = State(n=400, until=0.2, compare="beta", other="inf")
    run = problem_of(state).replace(engine="flash")
    runs = [ms.simulate(run.block, run.cloud, **run.arguments), simulated(state.runs()[1])]
    text = script(state, runs)
    assert text.count("engine='flash'") + text.count('engine="flash"') == 1
    assert text.count("engine=") == 1
    either = problem_of(state).replace(engine="direct or tree")
    run = ms.simulate(either.block, either.cloud, **either.arguments)
    assert "direct or tree" in script(state, [run, runs[1]])
    trained = State(trained=f"{models.minilm()}:2:3", law="tokens", n=30, beta=50.0, until=2.0)
    assert "engine='flash'" in script(trained, runs[:1])


def test_two_runs_share_a_head_and_equal_runs_are_still_two():
    text = script(State(matrices=PASTED, law="graded", compare="beta", other="inf"))
    assert text.count("cloud = ") == text.count("head = ") == 1
    assert text.count("ms.simulate(") == 2
    assert script(State(compare="beta", other="100")).count("ms.simulate(") == 2


def test_large_runs_say_how_many_frames_they_keep():
    wide = {"d": 32, "interaction": (1.0,) * 31 + (2.0,), "value": (1.0,) * 32}
    assert "t_eval=26, tol=1e-05)" in script(State(**wide, n=10_000))
    assert "t_eval=51, tol=1e-05)" in script(State(n=5000))
    assert "t_eval=" not in script(State(**wide, n=500))


def test_no_text_of_the_user_becomes_code():
    address = '"\'\n__import__(\'os\').abort()\n""":0:0'
    tree = ast.parse(script(State(trained=address, law="uniform", model=address, column='"""')))
    assert address in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "__import__"]


def test_nothing_is_written_for_fields_that_cannot_be_used():
    for query, field in (("n=0", "n: "), ("law=x); import os #", "law: x"), ("beta=x", "beta: x")):
        with pytest.raises(ms.BadInput) as caught:
            script(State.from_query(query))
        assert str(caught.value).startswith(field)


def test_the_numbers_are_those_of_the_runs():
    runs = [simulated(State(n=40, until=1.0, law="graded")), simulated(State(n=40, until=1.0, beta=math.inf))]
    written = data(runs, [run.distance() for run in runs])
    with np.load(io.BytesIO(written), allow_pickle=False) as found:
        for prefix, run in zip(("", "other_"), runs, strict=True):
            assert np.array_equal(found[prefix + "times"], run.times.numpy())
            assert np.array_equal(found[prefix + "frames"], run.frames.numpy())
            assert np.array_equal(found[prefix + "weights"], run.cloud.weights.numpy())
            assert np.array_equal(found[prefix + "distance"], run.distance().values)
            assert np.array_equal(found[prefix + "B"], run.head.B.numpy())
            assert np.array_equal(found[prefix + "V"], run.head.V.numpy())
            about = json.loads(str(found[prefix + "about"]))
            assert about["law"] == run.cloud.law
            assert about["beta"] == ("inf" if prefix else 100.0)
        assert len(found.files) == 14


def test_a_run_without_a_limit_has_no_distance():
    turning = simulated(State(n=40, until=0.5, matrices="1 2\n-2 1\n\n1 0\n0 1"))
    with np.load(io.BytesIO(data([turning], [None]))) as found:
        assert "distance" not in found.files
        assert len(found["frames"]) == 101


def test_two_runs_have_one_report():
    state = State(n=20, until=1.0, compare="beta", other="7")
    backend = Backend()
    try:
        backend.runs.start("tab", state.key, state.runs())
        until(lambda: backend.runs.progress("tab", state.key).status == "done")
        name, kind, page = download("report", state, "tab", backend)
        runs, distances = backend.runs.results("tab", state.key)
    finally:
        backend.close()
    assert (name.rsplit(".")[-1], kind) == ("html", "text/html")
    text = html.unescape(page.decode())
    for which, run, found in zip(("β = 100", "β = 7"), runs, distances, strict=True):
        assert f"{which}: {headline(run, found)}" in text
    assert re.search(r"inverse temperature β</th><td>100</td><td>7</td>", text)


def test_the_report_is_that_of_the_run(tmp_path):
    backend, state = Backend(), State(n=40, until=1.0)
    try:
        backend.runs.start("tab", state.key, state.runs())
        until(lambda: backend.runs.progress("tab", state.key).status == "done")
        (run,), _ = backend.runs.results("tab", state.key)
        name, _, page = download("report", state, "tab", backend)
    finally:
        backend.close()
    assert name.endswith("n40-seed0.html")
    assert page.decode() == run.report(tmp_path / "run.html").read_text(encoding="utf-8")
