"""`ms.sweep` on real workers: the numbers of a plain loop, failed points, and a folder that knows its sweep."""

import inspect
import os
import signal

import numpy as np
import pytest

import metastable as ms
from metastable.errors import BadInput
from metastable.files import Entry, Journal
from metastable.scale import sweep as room
from metastable.scale.plan import make
from metastable.scale.points import compute
from tests.scale.conftest import files

SPECTRA = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}
SMALL = {"head": SPECTRA, "n": 10, "until": 1.0, "t_eval": 3, "progress": False}
AXES = {"beta": [1.0, 10.0, 100.0], "seed": [0, 1]}
NOWHERE = "tcp://127.0.0.1:9"


def test_a_sweep_has_the_numbers_of_a_plain_loop(tmp_path, scheduler):
    data = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    head = ms.Head.from_spectra(**SPECTRA)
    for i, beta in enumerate(AXES["beta"]):
        for j in range(2):
            cloud = ms.uniform(10, d=2, seed=int(data["cloud_seed"][i, j]))
            run = ms.simulate(head, cloud, beta=beta, until=1.0, t_eval=3, progress=False)
            assert np.array_equal(data["distance"].values[i, j], run.distance().values)
    # The same sweep again computes nothing: this scheduler does not exist.
    again = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert again.identical(data)


def test_the_axes_in_another_order_are_another_sweep(tmp_path, scheduler):
    """Points are numbered by the order: those that are kept would get the labels of others."""
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    turned = dict(reversed(AXES.items()))
    with pytest.raises(BadInput, match="holds another run: order is"):
        ms.sweep(axes=turned, out=tmp_path / "s", scheduler=scheduler, **SMALL)


def test_what_is_there_goes_only_when_there_are_workers(tmp_path, scheduler, monkeypatch):
    monkeypatch.setattr("metastable.scale.cluster.REACH_SECONDS", 1)
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    (tmp_path / "s" / "report.html").write_text("of the sweep that is there")
    before = files(tmp_path / "s")
    with pytest.raises(BadInput, match="cannot reach"):
        ms.sweep(axes={"beta": [2.0]}, out=tmp_path / "s", scheduler=NOWHERE, overwrite=True, **SMALL)
    assert files(tmp_path / "s") == before
    ms.sweep(axes={"beta": [2.0]}, out=tmp_path / "s", scheduler=scheduler, overwrite=True, **SMALL)
    assert not (tmp_path / "s" / "report.html").exists()


def test_a_damaged_description_does_not_lock_the_sweep_out(tmp_path, scheduler, said):
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    before = files(tmp_path / "s")
    path = tmp_path / "s" / "sweep.json"
    path.write_text(path.read_text().replace('"until": 1.0', '"until": 3.0'))
    with said() as heard:
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert "sweep.json was damaged" in heard.getvalue()
    assert files(tmp_path / "s") == before


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "journal").write_text("dear diary")
    with pytest.raises(BadInput, match="not the journal of a sweep"):
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert (tmp_path / "s" / "journal").read_text() == "dear diary"


def test_a_point_that_fails_has_a_reason_and_does_not_stop_the_rest(tmp_path, scheduler, said):
    axes = {"law": ["fibonacci", "uniform"], "seed": [0, 1]}
    small = {**SMALL, "beta": 10.0}
    data = ms.sweep(axes=axes, out=tmp_path / "s", scheduler=scheduler, **small)
    assert data["status"].values.tolist() == [[1, 1], [0, 0]]
    assert "must agree" in str(data["reason"].values[0, 0])
    assert np.isnan(data["distance"].values[0]).all()
    assert np.isfinite(data["distance"].values[1]).all()
    before = files(tmp_path / "s")
    # Not tried again unless asked for.
    ms.sweep(axes=axes, out=tmp_path / "s", scheduler=NOWHERE, **small)
    with said() as heard:
        ms.sweep(axes=axes, out=tmp_path / "s", scheduler=scheduler, retry_failed=True, **small)
    assert "2 failed before: computing 2" in heard.getvalue()
    assert files(tmp_path / "s") == before


def test_a_failure_that_was_an_accident_is_mended_by_retrying(tmp_path, scheduler):
    whole = ms.sweep(axes=AXES, out=tmp_path / "whole", scheduler=scheduler, **SMALL)
    plan = make(AXES, SPECTRA, {"n": 10}, {"until": 1.0, "t_eval": 3})
    (tmp_path / "s").mkdir()
    with Journal(tmp_path / "s" / "journal", plan.identity) as journal:
        journal.append([Entry(4, 1, b"its worker died")])
    data = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    assert int(data["status"].sum()) == 1
    assert data["reason"].values.flat[4] == "its worker died"
    data = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, retry_failed=True, **SMALL)
    assert data.identical(whole)
    assert files(tmp_path / "s") == files(tmp_path / "whole")


def test_another_sweep_in_the_folder_is_refused_and_replaced_only_when_asked(tmp_path, scheduler):
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    before = files(tmp_path / "s")
    other = {**SMALL, "until": 2.0}
    with pytest.raises(BadInput, match="holds another run") as caught:
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **other)
    assert "\n" not in str(caught.value)
    (tmp_path / "s" / "sweep.json").write_text("{", encoding="utf-8")
    with pytest.raises(BadInput, match="belongs to another sweep"):
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **other)
    # Its own journal is known without the description.
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert files(tmp_path / "s") == before
    data = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, overwrite=True, **other)
    assert float(data["time"][-1]) == 2.0


def test_a_dataset_that_is_no_sweep_is_left_alone(tmp_path):
    (tmp_path / "mine.zarr").mkdir()
    with pytest.raises(BadInput, match="exists already"):
        ms.sweep(axes=AXES, out=tmp_path / "mine.zarr", scheduler=NOWHERE, **SMALL)


def test_a_journal_with_nothing_to_read_is_begun_again(tmp_path, scheduler):
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    before = files(tmp_path / "s")
    for damage in (b"garbage\n", b"metastable-journal-1 " + b"0" * 64 + b"\n", b""):
        (tmp_path / "s" / "journal").write_bytes(damage)
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
        assert files(tmp_path / "s") == before


def test_the_signature_is_written_out():
    parameters = inspect.signature(ms.sweep).parameters
    assert {"axes", "beta", "until", "n", "d", "seed", "t_eval", "workers"} <= parameters.keys()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())


def deadly(spec, indices):
    """Point 3 ends its worker, like one that takes all memory."""
    if 3 in indices:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(spec, indices)


@pytest.mark.slow
def test_a_point_that_kills_its_workers_is_given_up_and_the_rest_goes_on(tmp_path, scheduler, one_death, monkeypatch):
    again = {"axes": {"seed": list(range(6))}, "out": tmp_path / "s", "scheduler": scheduler, "beta": 5.0, **SMALL}
    with monkeypatch.context() as patch:
        patch.setattr(room, "compute", deadly)
        data = ms.sweep(**again)
    assert data["status"].values.tolist() == [0, 0, 0, 1, 0, 0]
    assert "worker died" in str(data["reason"].values[3])
    assert int(ms.sweep(retry_failed=True, **again)["status"].sum()) == 0
