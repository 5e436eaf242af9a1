"""The dataset: labels, what its attributes say, the same bytes every time, and damage that is found."""

import json
import math
import shutil
import warnings

import numpy as np
import pytest
import xarray as xr

from metastable.errors import BadInput
from metastable.files import Journal
from metastable.scale import dataset
from metastable.scale.dataset import Places
from metastable.scale.plan import make
from metastable.scale.points import record
from tests.scale.conftest import files

PLAN = make(
    {
        "law": ["uniform", "equally_spaced", "fibonacci"],
        "beta": [5.0, 50.0, math.inf],
        "interaction": [[1.5, 0.6], [1.0, 0.2]],
    },
    {"value": [1.0, 0.7]},
    {"n": 12},
    {"until": 1.0, "t_eval": 3},
    {"distance": True, "phases": True, "observables": ["clusters"]},
)


RUN = {"until": 1.0, "beta": 1.0, "t_eval": 1001}


@pytest.fixture(scope="module")
def results():
    return [record(PLAN, index) for index in range(PLAN.size)]


def made(folder, results):
    folder.mkdir(exist_ok=True)
    places = Places(folder)
    with Journal(places.journal, PLAN.identity) as journal:
        journal.append(results)
        dataset.write(PLAN, journal, places)
    return places


def test_values_stand_at_their_labels(tmp_path, results):
    data = dataset.load(made(tmp_path / "sweep", results))
    assert data["distance"].dims == ("law", "beta", "interaction", "time")
    assert data["least"].dims == ("law", "beta", "interaction")
    assert data.sizes == {"law": 3, "beta": 3, "interaction": 2, "time": 3}
    for index, code, payload in results:
        values = PLAN.values(index)
        here = data.sel(law=values["law"], beta=values["beta"], interaction=json.dumps(values["interaction"]))
        assert int(here["status"]) == code == (values["law"] == "fibonacci")
        if code:
            assert str(here["reason"].values) == payload.decode()
            assert np.isnan(here["distance"]).all()
            assert int(here["course"]) == -1
        else:
            row = np.frombuffer(payload, dtype="<f8")
            assert np.array_equal(here["distance"].values, row[:3])
            assert np.array_equal(here["clusters"].values, row[3:6])
            assert float(here["least"]) == row[8]
            assert str(here["reason"].values) == ""
        seed = PLAN.cloud_seed(index)
        assert int(here["cloud_seed"]) == (-1 if seed is None else seed)


def test_everything_is_described(tmp_path, results):
    data = dataset.load(made(tmp_path / "sweep", results))
    for name in (*data.data_vars, "beta", "time"):
        assert data[name].attrs["description"], name
        assert data[name].attrs["units"], name
    assert data["course"].attrs["flag_meanings"] == "one_time still falling settled"
    configuration = json.loads(data.attrs["configuration"])
    assert configuration["axes"]["beta"] == [5.0, 50.0, "inf"]
    assert set(json.loads(data.attrs["versions"])) >= {"metastable", "torch"}


def test_it_is_opened_lazily_and_leaves_the_warning_filters_of_the_host(tmp_path, results):
    places = made(tmp_path / "sweep", results)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        data = dataset.load(places)
        assert warnings.filters == []
        assert not data["distance"].variable._in_memory
        assert data.identical(xr.open_zarr(places.dataset, chunks=None, consolidated=False))


def test_values_that_were_read_stay_and_can_be_changed(tmp_path, results):
    places = made(tmp_path / "sweep", results)
    data = dataset.load(places)
    before = data["least"].values.copy()
    shutil.rmtree(places.dataset)
    np.testing.assert_array_equal(data["least"].values, before)
    data["least"][0] = 7.0
    assert (data["least"].values[0] == 7.0).all()


def test_a_folder_without_a_sweep_is_said_in_one_line(tmp_path):
    with pytest.raises(BadInput, match="there is no sweep at"):
        dataset.load(Places(tmp_path))


def test_every_order_gives_the_same_bytes(tmp_path, results):
    one = made(tmp_path / "one", results)
    other = made(tmp_path / "two", results[::-1])
    assert files(one.folder) == files(other.folder)
    # No times and no names of machines hide in it.
    assert files(one.folder).keys() >= {"journal", "manifest.json", "sweep.zarr/distance/c/0/0/0/0"}


@pytest.mark.parametrize("harm", ["flip", "remove", "add", "manifest", "no manifest", "folder", "journal"])
def test_any_harm_to_the_files_is_found_and_mended_from_the_journal(tmp_path, results, harm):
    places = made(tmp_path / "sweep", results)
    good, chunk = files(places.folder), places.dataset / "distance/c/0/0/0/0"
    assert dataset.fault(PLAN, places) == ""
    if harm == "flip":
        blob = bytearray(chunk.read_bytes())
        blob[len(blob) // 2] ^= 4
        chunk.write_bytes(bytes(blob))
    elif harm == "remove":
        chunk.unlink()
        # This is why there is a manifest.
        assert np.isnan(xr.open_zarr(places.dataset, consolidated=False, chunks=None)["distance"]).all()
    elif harm == "add":
        (places.dataset / "distance/c/0/0/0/9").write_bytes(b"x")
    elif harm == "manifest":
        places.manifest.write_text("{", encoding="utf-8")
    elif harm == "no manifest":
        places.manifest.unlink()
    elif harm == "folder":
        shutil.rmtree(places.dataset)
    else:
        with open(places.journal, "ab") as handle:
            handle.write(b"x")
    assert dataset.fault(PLAN, places)
    with Journal(places.journal, PLAN.identity) as journal:
        dataset.write(PLAN, journal, places)
    assert dataset.fault(PLAN, places) == ""
    assert files(places.folder) == good


def test_a_name_that_ends_in_zarr_is_the_dataset(tmp_path, results):
    places = Places(tmp_path / "mine.zarr")
    places.folder.mkdir()
    with Journal(places.journal, PLAN.identity) as journal:
        journal.append(results)
        dataset.write(PLAN, journal, places)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.zarr", "mine.zarr.kept"]
    assert dataset.fault(PLAN, places) == ""


def test_large_arrays_are_cut_into_blocks(tmp_path):
    plan = make({"seed": list(range(70))}, {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}, {"n": 2}, RUN)
    (tmp_path / "s").mkdir()
    with Journal(tmp_path / "s" / "journal", plan.identity) as journal:
        dataset.write(plan, journal, Places(tmp_path / "s"))
    data = dataset.load(Places(tmp_path / "s"))
    assert data["distance"].encoding["chunks"] == (65, 1001)
    assert data["status"].encoding["chunks"] == (70,)
