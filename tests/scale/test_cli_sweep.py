"""`metastable sweep` as a person meets it."""

import json
import os
import signal
import subprocess
import sys

import pytest
import xarray as xr
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.errors import SchedulerLost
from metastable.scale import sweep as room
from tests.scale.conftest import files, finished, until_grown

TOML = """
until = 1.0
t_eval = 3
[axes]
beta = [{beta}, 10.0]
seed = [0, 1]
[head]
interaction = [1.5, 0.6]
value = [1.0, 0.7]
[cloud]
n = 10
"""
LONG = """
until = 20.0
beta = 50.0
[axes]
seed = {seeds}
[head]
interaction = [1.5, 0.6]
value = [1.0, 0.7]
[cloud]
n = 200
"""


def invoke(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


@pytest.fixture
def toml(tmp_path):
    def make(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_a_sweep_from_toml(toml, tmp_path, scheduler):
    path = toml(TOML.format(beta=1.0))
    found = invoke(path, "--scheduler", scheduler, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[0] == "4 points: 2 beta × 2 seed"
    made = [
        f"{name}: {tmp_path / 'out' / file}" for name, file in (("dataset", "sweep.zarr"), ("report", "report.html"))
    ]
    assert found.stdout.splitlines()[-2:] == made
    again = invoke(path, "--scheduler", "tcp://127.0.0.1:9", "--out", tmp_path / "out", "--json")
    record = json.loads(again.stdout, parse_constant=pytest.fail)
    assert (record["points"], record["failed"], record["axes"]) == (4, 0, {"beta": 2, "seed": 2})
    data = xr.open_zarr(record["dataset"], consolidated=False, chunks=None)
    assert record["least_distance"] == float(data["least"].min())


def test_failed_points_are_a_finding(toml, tmp_path, scheduler):
    path = toml(TOML.format(beta=5.0).replace("[cloud]", '[cloud]\nlaw = "fibonacci"').replace("seed = [0, 1]", ""))
    found = invoke(path, "--scheduler", scheduler, "--out", tmp_path / "out")
    assert found.exit_code == 1
    assert "2 points failed (--retry-failed computes them again):" in found.stdout
    assert "must agree" in found.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("until = 1.0", "has no [axes]"),
        ("axes = 3", "axes must be a table"),
        ("[axes]\nbeta = 3", "give a list of values"),
        ("[axis]\nbeta = [3]", "unknown key 'axis'; did you mean 'axes'?"),
        ("[axes]\nbeta = [", "cannot read"),
        (TOML.format(beta=-1.0), "beta is -1"),
    ],
)
def test_bad_files_are_said_in_one_line(toml, tmp_path, text, words):
    found = invoke(toml(text), "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert words in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_lost_scheduler_has_its_own_exit_code(toml, tmp_path, monkeypatch):
    def lost(*_, **__):
        raise SchedulerLost("the connection to the Dask scheduler was lost; 3 of 4 points are kept: start again")

    monkeypatch.setattr(room, "sweep", lost)
    found = invoke(toml(TOML.format(beta=5.0)), "--out", tmp_path / "out")
    assert found.exit_code == 70
    assert found.stderr.startswith("metastable: the connection to the Dask scheduler was lost; 3 of 4")


def test_the_command_line_does_not_load_dask():
    program = "import sys, metastable.cli.app; print({'dask', 'distributed', 'torch', 'zarr'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


@pytest.mark.slow
def test_ctrl_c_ends_in_one_line_with_everything_kept(toml, tmp_path):
    """The signal goes to the whole group, workers and all, as from a terminal."""
    path, folder = toml(LONG.format(seeds=list(range(200)))), tmp_path / "out"
    command = [sys.executable, "-m", "metastable", "sweep", str(path), "--out", str(folder), "--workers", "1"]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "start_new_session": True, "text": True}
    # Shells let background jobs ignore SIGINT, and their children inherit it.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as child:
        until_grown(child, folder / "journal", 2)
        os.killpg(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=300)
    assert child.returncode == 130, said
    lines = [line for line in said.splitlines() if "dashboard" not in line]
    assert len(lines) == 1
    assert "interrupted" in lines[0]
    assert files(folder).keys() == {"journal", "sweep.json", "lock"}
    assert finished(folder / "journal") >= 2
