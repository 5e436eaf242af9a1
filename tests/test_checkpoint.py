"""Runs that are killed and resumed end bit for bit as they would have."""

import functools
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.attention import engines
from metastable.run import simulation
from metastable.run.checkpoint import open_checkpoint
from tests.problems import circle_head

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
SIXTY = ms.uniform(60, d=2, seed=0)


def start(path, interval, save, method, beyond=None):
    """A forked child that computes a run. beyond : it kills itself once its checkpoint is beyond this progress."""

    def kill():
        # A thread of the child: the parent could sleep through the rest of the run on a busy machine.
        while progress_of(path.with_name(path.name + ".part")) <= beyond:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    def compute():
        torch.set_num_threads(1)
        if beyond is not None:
            threading.Thread(target=kill, daemon=True).start()
        simulation.CHECKPOINT_SECONDS = interval
        cloud = ms.uniform(1500, d=2, seed=0)
        ms.simulate(HEAD, cloud, beta=60.0, until=2.0, t_eval=save, method=method, checkpoint=path)

    process = multiprocessing.get_context("fork").Process(target=compute)
    process.start()
    return process


def ended(process):
    process.join()
    return process.exitcode


def progress_of(part):
    """Evaluations of the field up to the last checkpoint."""
    try:
        with np.load(part / "state.npz") as state:
            return int(state["counts"][3])
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("method", "save", "interval"), [("dopri5", 3, 0.0), pytest.param("rk4", 13, 20.0, marks=pytest.mark.slow)]
)
def test_killed_again_and_again_it_ends_bit_for_bit_the_same(tmp_path, method, save, interval):
    whole, broken = tmp_path / "whole.zarr", tmp_path / "broken.zarr"
    assert ended(start(whole, interval, save, method)) == 0
    part = tmp_path / "broken.zarr.part"
    reached = [0]
    for _ in range(3):
        assert ended(start(broken, interval, save, method, beyond=reached[-1])) == -signal.SIGKILL
        reached.append(progress_of(part))
    assert reached == sorted(set(reached)), "every process went on from where the one before was killed"
    assert not broken.exists()
    assert ended(start(broken, interval, save, method)) == 0
    one, two = ms.Run.load(whole), ms.Run.load(broken)
    assert torch.equal(one.frames, two.frames)
    assert torch.equal(one.field_errors, two.field_errors)
    assert one.configuration["steps"] == two.configuration["steps"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.json", "broken.zarr", "whole.json", "whole.zarr"]


def options(tmp_path, **changed):
    return {"beta": 20.0, "until": 2.0, "t_eval": 3, "checkpoint": tmp_path / "run.zarr", **changed}


def interrupt(tmp_path, monkeypatch, overwrite=False):
    """A run of 20 tokens that is interrupted right after its first checkpoint; returns its folder."""
    with monkeypatch.context() as patch:
        patch.setattr(simulation._Solver, "_advance", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ms.simulate(HEAD, ms.uniform(20, d=2, seed=0), **options(tmp_path), overwrite=overwrite)
    return tmp_path / "run.zarr.part"


@pytest.mark.parametrize("frames_done", [1, 3, 4])
def test_interrupted_after_any_frame_it_resumes_without_repeating_work(tmp_path, monkeypatch, frames_done):
    cloud, asked = ms.graded(60, HEAD), options(tmp_path, t_eval=5)
    reference = ms.simulate(HEAD, cloud, **{**asked, "checkpoint": None})
    original = simulation._Solver._save_frame

    def stop_after(self, state):
        original(self, state)
        if state.saved == frames_done:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(simulation._Solver, "_save_frame", stop_after)
        with pytest.raises(KeyboardInterrupt):
            ms.simulate(HEAD, cloud, **asked)
    calls = 0
    field = simulation._Solver.field

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        return field(*args, **kwargs)

    monkeypatch.setattr(simulation._Solver, "field", counted)
    resumed = ms.simulate(HEAD, cloud, **asked)
    assert torch.equal(resumed.frames, reference.frames)
    assert resumed.configuration["evaluations"] == reference.configuration["evaluations"]
    assert calls < reference.configuration["evaluations"]


@functools.cache
def uninterrupted(engine, merge):
    return ms.simulate(HEAD, SIXTY, beta=20.0, until=8.0, t_eval=3, engine=engine, merge=merge)


@pytest.mark.parametrize(("engine", "merge"), [("tree", None), ("dense", 0.02), ("tree", 0.02), (engines.EITHER, None)])
@pytest.mark.parametrize("stop", [40, 150])
def test_trees_and_merged_tokens_resume_to_the_same_bits(tmp_path, monkeypatch, engine, merge, stop):
    """Interrupted in the middle of a step, a run ends with the numbers of one that was not interrupted."""
    # So that few tokens use the tree once they have met, and not before.
    monkeypatch.setattr(engines, "EITHER_FROM", {2: 10})
    monkeypatch.setattr(engines, "PER_CELL", 1)
    if engine == engines.EITHER:
        frames = uninterrupted(engine, merge).frames
        assert [engines.crowded(x, 20.0 * HEAD.directions(x)) for x in frames] == [False, True, True]
    whole = uninterrupted(engine, merge)
    asked = options(tmp_path, until=8.0, engine=engine, merge=merge)
    field = simulation._Solver.field

    def interrupted(self, x, t):
        if self.evaluations >= stop:
            raise KeyboardInterrupt
        return field(self, x, t)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(simulation._Solver, "field", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ms.simulate(HEAD, SIXTY, **asked)
    assert progress_of(tmp_path / "run.zarr.part") > stop - 10
    resumed = ms.simulate(HEAD, SIXTY, **asked)
    assert torch.equal(resumed.frames, whole.frames)
    assert torch.equal(resumed.field_errors, whole.field_errors)
    assert resumed.configuration["evaluations"] == whole.configuration["evaluations"] > stop
    if merge is not None:
        assert torch.equal(resumed.merged, whole.merged)
        assert torch.equal(resumed.jumps, whole.jumps)
        assert float(whole.jumps[0, 0]) < float(whole.times[-1])
        assert len(whole.jumps) > 1


def test_a_finished_run_is_returned_without_computing(tmp_path, monkeypatch):
    cloud = ms.graded(60, HEAD)
    first = ms.simulate(HEAD, cloud, **options(tmp_path))
    monkeypatch.setattr(simulation._Solver, "field", lambda *a, **k: pytest.fail("computed again"))
    assert torch.equal(ms.simulate(HEAD, cloud, **options(tmp_path)).frames, first.frames)


@pytest.mark.parametrize(
    ("changed", "cloud_seed", "message"),
    [
        ({"beta": 30.0}, 0, "beta"),
        ({"until": 3.0}, 0, "times"),
        ({"tol": 1e-4}, 0, "tol"),
        ({"merge": 0.1}, 0, "merge"),
        ({}, 1, "digest"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_run_under_the_same_name_is_refused(tmp_path, monkeypatch, changed, cloud_seed, message, finished):
    if finished:
        ms.simulate(HEAD, ms.uniform(20, d=2, seed=0), **options(tmp_path))
    else:
        interrupt(tmp_path, monkeypatch)
    other = ms.uniform(20, d=2, seed=cloud_seed)
    with pytest.raises(ms.BadInput, match=f"holds another run.*{message}"):
        ms.simulate(HEAD, other, **options(tmp_path, **changed))
    replaced = ms.simulate(HEAD, other, **options(tmp_path, **changed), overwrite=True)
    assert replaced.beta == changed.get("beta", 20.0)
    assert len(ms.Run.load(tmp_path / "run.zarr").times) == 3


def test_overwrite_with_bad_arguments_keeps_the_older_run(tmp_path):
    ms.simulate(HEAD, ms.uniform(20, d=2, seed=0), **options(tmp_path))
    with pytest.raises(ms.BadInput, match="until is -1"):
        ms.simulate(HEAD, ms.uniform(20, d=2, seed=0), **options(tmp_path, until=-1), overwrite=True)
    assert ms.Run.load(tmp_path / "run.zarr").beta == 20.0


def other_frame(part):
    np.save(part / "frame-00000.npy", ms.uniform(20, d=2, seed=9).points.numpy())


def rubbish_state(part):
    (part / "state.npz").write_bytes(b"rubbish")


def rubbish_identity(part):
    (part / "identity.json").write_text("{")


def missing_frame(part):
    (part / "frame-00000.npy").unlink()


@pytest.mark.parametrize("damage", [other_frame, rubbish_state, rubbish_identity, missing_frame])
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path, monkeypatch, damage):
    damage(interrupt(tmp_path, monkeypatch))
    with pytest.raises(ms.BadInput, match=r"checkpoint .*is damaged.*delete"):
        ms.simulate(HEAD, ms.uniform(20, d=2), **options(tmp_path))


def test_two_processes_do_not_share_a_checkpoint(tmp_path):
    with open_checkpoint(tmp_path / "run.zarr", {}), pytest.raises(ms.BadInput, match="another process"):
        ms.simulate(HEAD, ms.uniform(20, d=2), **options(tmp_path))


def test_overwrite_resumes_its_own_checkpoint_and_keeps_the_old_run_until_the_end(tmp_path, monkeypatch):
    ms.simulate(HEAD, ms.uniform(20, d=2), **options(tmp_path, beta=7.0))
    assert progress_of(interrupt(tmp_path, monkeypatch, overwrite=True)) == 1
    assert ms.Run.load(tmp_path / "run.zarr").beta == 7.0
    assert ms.simulate(HEAD, ms.uniform(20, d=2), **options(tmp_path), overwrite=True).beta == 20.0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.zarr"]


def test_what_a_kill_during_saving_leaves_is_put_right(tmp_path, monkeypatch):
    cloud = ms.uniform(20, d=2)
    ms.simulate(HEAD, cloud, **options(tmp_path))
    (tmp_path / "run.json").unlink()
    (tmp_path / ".run.zarr.tmp").mkdir()
    os.rename(tmp_path / "run.zarr", tmp_path / ".run.zarr.old")
    monkeypatch.setattr(simulation._Solver, "field", lambda *a, **k: pytest.fail("computed again"))
    ms.simulate(HEAD, cloud, **options(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.zarr"]
