"""The first calls of "auto" do not wait for a compilation, and a run does not change its engine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import metastable as ms
from metastable import files
from metastable.attention import choose, compilation
from metastable.flow.fields import EVALUATIONS
from metastable.run import simulation
from metastable.scale import points

HEAD = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)


@pytest.fixture
def compiled(monkeypatch):
    """The engines that are ready, a set that the test may change, and the tasks that were started."""
    ready: set[str] = set()
    started: list[compilation.Task] = []
    monkeypatch.setattr(compilation, "_ready", lambda task: task[0] in ready)
    monkeypatch.setattr(compilation._BESIDE, "compile", started.append)
    return ready, started


class TestChoice:
    def test_auto_takes_the_next_engine_that_is_ready(self, compiled):
        ready, started = compiled
        many = ms.uniform(60_000, d=3).log_weights
        assert choose("auto", many, 3, 60_000, 1e-6) == "flash"
        assert started == [("direct", 3, "float64"), ("tree", 0, "")]
        ready.add("direct")
        assert choose("auto", many, 3, 60_000, 1e-6) == "direct"
        ready.add("tree")
        assert choose("auto", many, 3, 60_000, 1e-6) == "tree"

    def test_small_problems_start_nothing(self, compiled):
        _, started = compiled
        few = ms.uniform(100, d=3).log_weights
        assert choose("auto", few, 3, 100, 1e-6) == "dense"
        assert not started

    def test_an_engine_that_is_named_is_not_replaced(self, compiled):
        many = ms.uniform(60_000, d=3).log_weights
        for name in ("dense", "flash", "direct", "tree"):
            assert choose(name, many, 3, 60_000, 1e-6) == name
        assert not compiled[1]

    def test_auto_waits_for_the_tree_where_other_engines_take_longer(self, compiled):
        n = 1 + int(compilation.TREE_WORTH**0.5)
        assert choose("auto", torch.zeros(n, dtype=torch.float64), 3, n, 1e-6) == "tree"
        # More than the tree is worth compiling for, and enough that it is quicker than direct.
        n = max(1 + int((compilation.TREE_WORTH / EVALUATIONS) ** 0.5), 20_000)
        solver = simulation._Solver(
            HEAD, ms.uniform(n, d=3, seed=0), 100.0, None, 1.0, "auto", None, None, None, "auto", None, 1.0
        )
        assert solver.engine == choose("auto", torch.zeros(n, dtype=torch.float64), 3, n, 1e-6, without=())


CLOUD = ms.uniform(400, d=3, seed=0)
OPTIONS = {"beta": 20.0, "until": 6.0, "t_eval": 4, "merge": 0.02, "progress": False}


class TestRuns:
    def test_a_run_keeps_its_engine_and_says_what_it_did_without(self, compiled):
        ready, _ = compiled
        first = ms.simulate(HEAD, CLOUD, **OPTIONS)
        assert first.configuration["engine"] == "flash"
        assert first.configuration["without"] == ["direct"]
        ready.add("direct")
        second = ms.simulate(HEAD, CLOUD, **OPTIONS)
        assert second.configuration["engine"] == "direct"
        assert "without" not in second.configuration
        assert torch.allclose(first.frames, second.frames, atol=1e-5)

    @pytest.mark.parametrize("stop", [20, 90])
    def test_a_killed_run_resumes_to_the_same_bits_after_the_compilation(self, compiled, tmp_path, monkeypatch, stop):
        ready, _ = compiled
        whole = ms.simulate(HEAD, CLOUD, **OPTIONS)
        assert whole.configuration["merges"] > 0
        field = simulation._Solver.field

        def interrupted(self, x, t):
            if self.evaluations >= stop:
                raise KeyboardInterrupt
            return field(self, x, t)

        asked = {**OPTIONS, "checkpoint": tmp_path / "run.zarr"}
        with monkeypatch.context() as patch:
            patch.setattr(simulation, "CHECKPOINT_SECONDS", 0.0)
            patch.setattr(simulation._Solver, "field", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ms.simulate(HEAD, CLOUD, **asked)
        ready.add("direct")
        resumed = ms.simulate(HEAD, CLOUD, **asked)
        assert torch.equal(resumed.frames, whole.frames)
        assert resumed.configuration["engine"] == "flash"
        again = ms.simulate(HEAD, CLOUD, **asked)
        assert torch.equal(again.frames, whole.frames)
        with pytest.raises(ms.BadInput, match="beta is 20"):
            ms.simulate(HEAD, CLOUD, **{**asked, "beta": 21.0})

    def test_a_run_begun_with_kernels_resumes_without_them_on_disk(self, compiled, tmp_path):
        ready, _ = compiled
        ready.add("direct")
        asked = {**OPTIONS, "checkpoint": tmp_path / "run.zarr"}
        first = ms.simulate(HEAD, CLOUD, **asked)
        ready.clear()
        assert torch.equal(ms.simulate(HEAD, CLOUD, **asked).frames, first.frames)


def test_points_of_a_sweep_wait_for_their_engines(compiled, monkeypatch):
    """Otherwise a point would depend on what was compiled when it was computed."""
    waited = []

    def compile_and_wait(*task):
        waited.append(task)
        compiled[0].add(task[0])

    monkeypatch.setattr(points, "compile_and_wait", compile_and_wait)
    spectra = {"interaction": [1.5, 1.0, 0.6], "value": [1.2, 0.9, 0.5], "seed": 0}
    for n in (100, 400):
        points._compile_engines(ms.Problem(spectra, {"law": "uniform", "n": n, "d": 3}, beta=20.0, until=1.0))
    assert waited == [("direct", 3, torch.float64)]


def test_a_point_of_a_sweep_does_not_take_another_engine_where_its_own_cannot_be_compiled(compiled, monkeypatch):
    monkeypatch.setattr(points, "compile_and_wait", lambda *task: None)
    spectra = {"interaction": [1.5, 1.0, 0.6], "value": [1.2, 0.9, 0.5], "seed": 0}
    problem = ms.Problem(spectra, {"law": "uniform", "n": 400, "d": 3}, beta=20.0, until=1.0)
    with pytest.raises(ms.BadInput, match="direct could not be compiled"):
        points._compile_engines(problem)
    points._compile_engines(problem.replace(engine="flash"))


class TestOneCompilesAtATime:
    TASK = ("direct", 3, "float64")

    def test_a_process_that_finds_the_lock_taken_ends_before_it_imports_torch(self, tmp_path):
        own = {"root": "", "folder": str(tmp_path), "lock": True, "taken": compilation.TAKEN, "task": self.TASK}
        program = compilation.PROGRAM.format(**own)
        with files.locked(tmp_path):
            done = subprocess.run([sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True)
        assert done.returncode == compilation.TAKEN
        assert "metastable.files" in done.stderr
        assert "torch" not in done.stderr

    @pytest.mark.parametrize("others", [0, 1, 3])
    def test_the_others_wait_and_do_not_compile_what_is_there(self, others, monkeypatch):
        """So many looks find the lock taken; then the other process has compiled this engine."""
        looks = []
        monkeypatch.setattr(compilation, "AGAIN", 0.0)
        monkeypatch.setattr(compilation, "_compiled", lambda task: len(looks) >= others)

        class Child:
            def __init__(self, command, **_):
                looks.append(command)

            def wait(self):
                return compilation.TAKEN

        monkeypatch.setattr("subprocess.Popen", Child)
        compilation._run(self.TASK)
        assert len(looks) == others

    def test_it_compiles_beside_the_other_one_if_that_never_ends(self, monkeypatch):
        monkeypatch.setattr(compilation, "AGAIN", 0.01)
        monkeypatch.setattr(compilation, "PATIENCE", 0.1)
        monkeypatch.setattr(compilation, "_compiled", lambda task: False)
        locks = []

        class Child:
            def __init__(self, command, **_):
                locks.append("if True:" in command[-1])

            def wait(self):
                return compilation.TAKEN if locks[-1] else 0

        monkeypatch.setattr("subprocess.Popen", Child)
        compilation._run(self.TASK)
        assert len(locks) > 2
        assert locks == [True] * (len(locks) - 1) + [False]

    def test_a_folder_that_cannot_be_written_is_not_waited_for(self, tmp_path):
        """Only a lock that is held means that another process compiles."""
        (tmp_path / "file").write_text("")
        folder = str(tmp_path / "file" / "compilation")
        own = {"root": "", "folder": folder, "lock": True, "taken": compilation.TAKEN, "task": self.TASK}
        group = Path("/proc/self/autogroup")
        before = group.read_text() if group.exists() else ""
        done = subprocess.run([sys.executable, "-c", compilation.PROGRAM.format(**own)], capture_output=True)
        # Without a session of its own it leaves the priority of this one.
        assert before == (group.read_text() if group.exists() else "")
        assert done.returncode not in (0, compilation.TAKEN)

    def test_an_error_of_one_task_does_not_stop_the_next(self, monkeypatch):
        """numba finds no folder for its cache: no traceback on the host's streams, and the thread goes on."""
        tried = []

        def run(task):
            tried.append(task)
            raise RuntimeError("no locator available")

        monkeypatch.setattr(compilation, "_run", run)
        beside = compilation._Beside()
        for d in (3, 4):
            beside.compile(("direct", d, "float64"))
            beside.wait(("direct", d, "float64"))
        assert tried == [("direct", 3, "float64"), ("direct", 4, "float64")]
        assert beside._todo == []


FRESH = """
import os, subprocess, sys, threading, time
import torch
import metastable as ms
from metastable import files
from metastable.attention import choose, compilation
cloud = ms.uniform(1500, d=4, seed=0)
u = 10 * cloud.points
def state():
    return dict(os.environ), torch.get_num_threads(), torch.get_rng_state().tolist(), os.getpriority(os.PRIO_PROCESS, 0)
before = state()
first = ms.attend(cloud, u)
assert not compilation._ready(("direct", 4, "float64"))
assert choose("auto", cloud.log_weights, 4, 1500, 1e-6) == "flash"
children = [t for t in threading.enumerate() if t.name == "metastable compiles"]
assert len(children) == 1 and children[0].daemon
{middle}
children[0].join()
assert choose("auto", cloud.log_weights, 4, 1500, 1e-6) == {after!r}
second = ms.attend(cloud, u)
assert torch.allclose(first, second, atol=1e-13), (first - second).abs().max()
assert torch.equal(first, second) == ({after!r} == "flash")
assert state() == before
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def fresh(folder, middle="", after="direct"):
    program = [sys.executable, "-X", "dev", "-c", FRESH.format(middle=middle, after=after)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
class TestFreshInstallation:
    def test_the_engine_changes_when_it_is_compiled_and_the_result_does_not(self, tmp_path):
        done = fresh(tmp_path)
        assert (done.stdout, done.stderr, done.returncode) == ("no child is left\n", "", 0)

    def test_if_the_process_is_killed_auto_goes_on_without(self, tmp_path):
        kill = """
listing = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
while not (own := [line for line in subprocess.check_output(listing, text=True).splitlines() if "python" in line]):
    time.sleep(0.1)
os.kill(int(own[0].split()[0]), 9)
"""
        done = fresh(tmp_path, kill, "flash")
        assert (done.stdout, done.stderr, done.returncode) == ("no child is left\n", "", 0)

    def test_a_program_that_ends_early_leaves_its_kernels_to_the_next(self, tmp_path):
        program = "import metastable as ms; c = ms.uniform(1500, d=4, seed=0); ms.attend(c, c.points)"
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", program], env=environment, capture_output=True, text=True
        )
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
        # Its priority is low: on a busy machine it takes minutes.
        ends = time.monotonic() + 900
        while not any(tmp_path.rglob("kernels.sums_float64_4-*.nbc")):
            assert time.monotonic() < ends
            time.sleep(0.2)
