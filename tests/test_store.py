"""Saving, loading, and everything that can be wrong on disk."""

import json
import math
import os
import shutil

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.run import storage as store
from tests.problems import circle_head

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))


def make_run(**options):
    arguments = {"beta": 20.0, "until": 1.0, "t_eval": 3, **options}
    return ms.simulate(HEAD, ms.graded(50, HEAD, seed=2), **arguments)


def same(a, b):
    return torch.equal(a, b) and a.dtype == b.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [20.0, math.inf])
def test_a_loaded_run_is_the_saved_one_bit_for_bit(tmp_path, dtype, beta):
    run = ms.simulate(HEAD, ms.graded(50, HEAD).to(dtype), beta=beta, until=1.0, t_eval=3)
    back = ms.Run.load(run.save(tmp_path / "run.zarr"))
    for name in ("times", "frames", "field_errors"):
        assert same(getattr(run, name), getattr(back, name))
    assert same(run.cloud.log_weights, back.cloud.log_weights)
    assert same(run.cloud.points, back.cloud.points)
    assert same(run.head.B, back.head.B)
    assert back.beta == run.beta
    assert back.configuration == run.configuration
    assert back.cloud.law == run.cloud.law
    assert np.array_equal(run.distance().values, back.distance().values)


def test_factors_and_offset_survive(tmp_path):
    head = ms.Head(np.eye(3)[:2], np.eye(3)[:2], np.ones((1, 3)), output=np.ones((3, 1)), offset=[0.1, 0.2, 0.3])
    run = ms.simulate(head, ms.uniform(10, d=3), beta=1.0, until=0.1, t_eval=2)
    back = ms.Run.load(run.save(tmp_path / "run.zarr"))
    for name in ("query", "key", "value", "output", "offset"):
        assert same(getattr(head, name), getattr(back.head, name))


def test_json_beside_it_tells_people_what_it_is(tmp_path):
    make_run().save(tmp_path / "run.zarr")
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["schema"] == "metastable.run/1"
    assert record["law"]["law"] == "graded"
    assert record["seed"] == 2
    assert record["configuration"]["method"] == "dopri5"
    assert set(record["versions"]) >= {"metastable", "torch", "numpy"}


def test_a_plain_folder_holds_both_files_and_nothing_else(tmp_path):
    make_run().save(tmp_path / "here")
    assert sorted(os.listdir(tmp_path / "here")) == ["run.json", "run.zarr"]
    assert len(ms.Run.load(tmp_path / "here").times) == 3


def test_saving_again_replaces_the_older_run(tmp_path):
    make_run().save(tmp_path / "run.zarr")
    make_run(beta=40.0).save(tmp_path / "run.zarr")
    assert ms.Run.load(tmp_path / "run.zarr").beta == 40.0
    assert sorted(os.listdir(tmp_path)) == ["run.json", "run.zarr"]


def test_killed_between_the_two_renames_the_older_run_comes_back(tmp_path):
    make_run().save(tmp_path / "run.zarr")
    os.rename(tmp_path / "run.zarr", tmp_path / ".run.zarr.old")
    assert ms.Run.load(tmp_path / "run.zarr").beta == 20.0


def test_failing_to_write_leaves_nothing_and_keeps_the_older_run(tmp_path, monkeypatch):
    make_run().save(tmp_path / "run.zarr")
    import xarray as xr

    def broken(self, path, **options):
        os.makedirs(path)
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_zarr", broken)
    with pytest.raises(ms.BadInput, match=r"cannot write .*No space left"):
        make_run(beta=40.0).save(tmp_path / "run.zarr")
    assert sorted(os.listdir(tmp_path)) == ["run.json", "run.zarr"]
    assert ms.Run.load(tmp_path / "run.zarr").beta == 20.0


def chunk_of_frames(folder):
    return next(path for path in sorted((folder / "frames").rglob("*")) if path.is_file() and path.name != "zarr.json")


def lose_a_chunk(folder):
    chunk_of_frames(folder).unlink()


def flip_a_byte(folder):
    path = chunk_of_frames(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def lose_the_step_times(folder):
    shutil.rmtree(folder / "step_time" / "c")


def lose_the_field_errors(folder):
    shutil.rmtree(folder / "field_error" / "c")


def lose_an_array(folder):
    shutil.rmtree(folder / "log_weight")


def cut_the_metadata(folder):
    path = folder / "zarr.json"
    path.write_text(path.read_text()[:100])


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "damage",
    [lose_a_chunk, flip_a_byte, lose_the_step_times, lose_the_field_errors, lose_an_array, cut_the_metadata, empty],
)
def test_a_damaged_run_is_refused_in_one_line(tmp_path, damage):
    path = make_run().save(tmp_path / "run.zarr")
    damage(path)
    with pytest.raises(ms.BadInput, match="is not a complete run") as caught:
        ms.Run.load(path)
    assert "\n" not in str(caught.value)


def test_a_run_of_another_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SCHEMA", "metastable.run/99")
    path = make_run().save(tmp_path / "run.zarr")
    monkeypatch.undo()
    with pytest.raises(ms.BadInput, match=r"has schema 'metastable\.run/99'"):
        ms.Run.load(path)


def test_a_missing_run_is_refused(tmp_path):
    with pytest.raises(ms.BadInput, match="there is no run at"):
        ms.Run.load(tmp_path / "nothing.zarr")
    with pytest.raises(ms.BadInput, match="there is no run at"):
        ms.Run.load(tmp_path / "no" / "folder")


def test_xarray_is_labelled():
    data = make_run().to_xarray()
    assert data["frames"].dims == ("time", "token", "coordinate")
    assert float(data["time"][-1]) == 1.0
    assert data["log_weight"].shape == (50,)
