"""What people take home: programs that make the same runs again, to the last bit, and the numbers themselves."""

import ast
import io
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.lab.controls import call_of
from metastable.lab.scripts import data, report, script
from metastable.lab.state import Controls, State, second
from tests.encoder import models

PASTED = "[[1.4, 0.1], [0.3333333333333333, 0.7]]\n\n[[1.2, -0.2], [0.1, 0.5]]"
MIXED = Controls(law="mixture", n=40, until=0.2, d=5, interaction=(1.5, 1, 0.9, 0.8, 0.7), value=(1, 1.1, 0.9, 0.5, -1))


def simulated(controls):
    call = call_of(controls)
    return ms.simulate(call.head, call.cloud, **call.arguments)


@pytest.mark.parametrize(
    "state",
    [
        State(Controls(n=50, until=1.0, angle=100 / 3, seed=3), compare="weights", theme="dark"),
        State(Controls(n=50, until=1.0, matrices=PASTED, law="von_mises_fisher"), compare="n", other=70.0),
        State(MIXED, compare="beta", other=math.inf),
        State(Controls(trained=f"{models.minilm()}:2:3", law="tokens", n=30, beta=50.0, until=2.0)),
    ],
    ids=["weights", "matrices", "hardmax", "trained"],
)
def test_the_program_makes_the_same_runs_to_the_last_bit(state, tmp_path):
    program = tmp_path / "again.py"
    program.write_text(script(state), encoding="utf-8")
    # Sums over other numbers of threads differ in their last bits; the tests run on one.
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, program.name], cwd=tmp_path, check=True, capture_output=True, env=one_thread)
    other = second(state)
    for name, controls in (("run", state.controls), ("other", other)):
        assert (tmp_path / f"{name}.zarr").exists() == (controls is not None)
        assert (tmp_path / f"{name}.html").exists() == (controls is not None)
        if controls is not None:
            found, wanted = ms.Run.load(tmp_path / f"{name}.zarr"), simulated(controls)
            assert torch.equal(found.frames, wanted.frames)
            assert torch.equal(found.cloud.log_weights, wanted.cloud.log_weights)
            assert torch.equal(found.times, wanted.times)


def test_the_program_is_short_and_says_only_what_counts():
    found = script(State())
    assert found.splitlines()[-7:] == [
        "V = R @ np.diag([1.2, 0.9, 0.5]) @ R.T",
        "head = ms.Head.from_interaction(B, V)",
        "cloud = ms.uniform(1000, d=3, seed=0)",
        "run = ms.simulate(head, cloud, beta=100.0, until=15.0)",
        "print(run)",
        'run.save("run.zarr")',
        'run.report("run.html")',
    ]
    assert "math" not in found
    pasted = script(State(Controls(matrices=PASTED, law="graded"), compare="beta", other=math.inf))
    assert "B = [[1.4, 0.1], [0.3333333333333333, 0.7]]" in pasted
    assert "cloud = ms.graded(1000, head, seed=0)\n" in pasted
    assert pasted.count("cloud = ") == pasted.count("head = ") == 1
    assert "other = ms.simulate(head, cloud, beta=math.inf, until=15.0)" in pasted
    assert "numpy" not in pasted
    assert pasted.startswith('"""Made by the lab of metastable')


def test_two_equal_runs_are_still_two():
    assert "other = ms.simulate" in script(State(compare="beta", other=100.0))


def test_large_runs_say_how_many_frames_they_keep():
    wide = {"d": 32, "interaction": (1.0,) * 31 + (2.0,), "value": (1.0,) * 32}
    assert "until=15.0, t_eval=26)" in script(State(Controls(**wide, n=10_000)))
    assert "until=15.0, t_eval=51)" in script(State(Controls(n=5000)))
    assert "t_eval=" not in script(State(Controls(**wide, n=500)))


def test_no_text_of_the_user_becomes_code():
    address = '"\'\n__import__(\'os\').abort()\n""":0:0'
    tree = ast.parse(script(State(Controls(trained=address), model=address, column='"""')))
    assert address in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "__import__"]


def test_nothing_is_written_for_controls_that_cannot_be_used():
    for state, words in (
        (State(Controls(n=0)), "n: 0: give a whole number"),
        (State(Controls(law="x); import os #")), "law: x"),
        (State.from_query("beta=x"), "beta: the link says 'x'"),
    ):
        with pytest.raises(ms.BadInput) as caught:
            script(state)
        assert str(caught.value).startswith(words)


def test_the_numbers_are_those_of_the_runs():
    runs = [simulated(Controls(n=40, until=1.0, law="graded")), simulated(Controls(n=40, until=1.0, beta=math.inf))]
    with np.load(io.BytesIO(data(runs)), allow_pickle=False) as found:
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


def test_distances_that_are_known_are_not_measured_again_and_may_be_missing():
    run = simulated(Controls(n=40, until=1.0))
    known = run.distance() + 1
    with np.load(io.BytesIO(data([run], [known]))) as found:
        assert np.array_equal(found["distance"], known.values)
    turning = simulated(Controls(n=40, until=0.5, matrices="1 2\n-2 1\n\n1 0\n0 1"))
    with np.load(io.BytesIO(data([turning]))) as found:
        assert "distance" not in found.files
        assert len(found["frames"]) == 101


def test_the_report_is_that_of_the_run(tmp_path):
    run = simulated(Controls(n=40, until=1.0))
    assert report(run).decode() == run.report(tmp_path / "run.html").read_text(encoding="utf-8")
