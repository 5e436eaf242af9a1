"""`ms.sweep` on real workers: the numbers of a plain loop, failed points, and a folder that knows its sweep."""

import os
import signal

import numpy as np
import pytest

import metastable as ms
from metastable.errors import BadInput
from metastable.scale import cluster as workers
from metastable.scale import sweep as room
from metastable.scale.journal import Journal
from metastable.scale.plan import make
from metastable.scale.points import compute, packed
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


def test_the_cluster_of_this_machine_gives_the_same_bytes(tmp_path, scheduler, said):
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    with said() as heard:
        ms.sweep(axes=AXES, out=tmp_path / "t", workers=1, **SMALL)
    assert "dashboard: http://127.0.0.1:" in heard.getvalue()
    assert files(tmp_path / "s") == files(tmp_path / "t")


def test_the_axes_in_another_order_are_another_sweep(tmp_path, scheduler):
    """Points are numbered by the order: those that are kept would get the labels of others."""
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    turned = dict(reversed(AXES.items()))
    with pytest.raises(BadInput, match="holds another run: order is"):
        ms.sweep(axes=turned, out=tmp_path / "s", scheduler=scheduler, **SMALL)


def test_what_is_there_goes_only_when_there_are_workers(tmp_path, scheduler):
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
    assert "sweep.json is damaged" in heard.getvalue()
    assert files(tmp_path / "s") == before


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "journal").write_text("dear diary")
    with pytest.raises(BadInput, match="no journal of a sweep"):
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert (tmp_path / "s" / "journal").read_text() == "dear diary"


def test_workers_with_other_versions_are_refused_also_when_they_come_later(monkeypatch):
    spec = packed(make(AXES, SPECTRA, {"n": 10}, {"until": 1.0}))
    monkeypatch.setattr(workers.store, "versions", lambda: {"numpy": "0.0.1"})
    with pytest.raises(BadInput, match="a worker has"):
        compute(spec, [0])


def test_a_point_that_fails_has_a_reason_and_does_not_stop_the_rest(tmp_path, scheduler, said):
    axes = {"beta": [-1.0, 10.0], "seed": [0, 1]}
    data = ms.sweep(axes=axes, out=tmp_path / "s", scheduler=scheduler, **SMALL)
    assert data["status"].values.tolist() == [[1, 1], [0, 0]]
    assert "beta is -1" in str(data["reason"].values[0, 0])
    assert np.isnan(data["distance"].values[0]).all()
    assert np.isfinite(data["distance"].values[1]).all()
    before = files(tmp_path / "s")
    # Not tried again unless asked for.
    ms.sweep(axes=axes, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    with said() as heard:
        ms.sweep(axes=axes, out=tmp_path / "s", scheduler=scheduler, retry_failed=True, **SMALL)
    assert "2 failed before: computing 2" in heard.getvalue()
    assert files(tmp_path / "s") == before


def test_a_failure_that_was_an_accident_is_mended_by_retrying(tmp_path, scheduler):
    whole = ms.sweep(axes=AXES, out=tmp_path / "whole", scheduler=scheduler, **SMALL)
    plan = make(AXES, SPECTRA, {"n": 10}, {"until": 1.0, "t_eval": 3})
    (tmp_path / "s").mkdir()
    with Journal(tmp_path / "s" / "journal", plan.identity, 8 * plan.width) as journal:
        journal.append([(4, 1, b"its worker died")])
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
    with pytest.raises(BadInput, match="is of another sweep"):
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, **other)
    # Its own journal is known without the description.
    ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, **SMALL)
    assert files(tmp_path / "s") == before
    data = ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=scheduler, overwrite=True, **other)
    assert float(data["time"][-1]) == 2.0


def test_a_dataset_that_is_no_sweep_is_left_alone(tmp_path):
    (tmp_path / "mine.zarr").mkdir()
    with pytest.raises(BadInput, match="is there already"):
        ms.sweep(axes=AXES, out=tmp_path / "mine.zarr", scheduler=NOWHERE, **SMALL)


def test_a_scheduler_that_is_not_there_is_said_in_one_line(tmp_path):
    for address in (NOWHERE, "nonsense", "http://127.0.0.1:9"):
        with pytest.raises(BadInput, match="cannot reach a Dask scheduler") as caught:
            ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=address, **SMALL)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="leave them away"):
        ms.sweep(axes=AXES, out=tmp_path / "s", scheduler=NOWHERE, workers=1, **SMALL)


def test_workers_have_one_thread_for_every_library(scheduler):
    with workers.connected(scheduler) as client:
        for found in client.run(_thread_counts).values():
            assert found == {"torch": 1, "numba": 1, "tree": 1, "OMP_NUM_THREADS": "1"}


def _thread_counts():
    import os

    import numba
    import torch

    from metastable.attention.tree.ordered import threads

    counts = {"torch": torch.get_num_threads(), "numba": numba.get_num_threads(), "tree": threads()}
    return {**counts, "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}


def test_workers_with_other_versions_are_refused(scheduler, monkeypatch):
    versions = workers.store.versions()
    monkeypatch.setattr(workers.store, "versions", lambda: {**versions, "torch": "1.0"})
    with pytest.raises(BadInput, match=r"a worker has torch .* and this process 1.0"), workers.connected(scheduler):
        pass


def test_limits_of_the_machine(capsys):
    assert workers._how_many(10_000) == workers.threads()
    assert "10000 workers wanted" in capsys.readouterr().err
    assert workers._bytes(None, 2) == workers._bytes(None, 1) // 2
    assert workers._bytes("1MB", 2) == 1_000_000
    assert workers._bytes("999999GB", 1) == workers._bytes(None, 1)
    for bad in ("much", [1]):
        with pytest.raises(BadInput, match="memory is"):
            workers._bytes(bad, 1)
    with pytest.raises(BadInput, match="workers is 0"):
        workers._how_many(0)


class Slow:
    """A journal and a client for `_Leader._group` alone."""

    def nthreads(self):
        return {"a": 2}


def test_small_points_share_a_task_and_large_ones_do_not(tmp_path):
    plan = make({"seed": list(range(100))}, SPECTRA, {"n": 3}, {"until": 1.0, "beta": 1.0})
    leader = room._Leader(plan, None, Slow(), None, False)
    leader.left = room.deque(range(100))
    leader.threads = 2
    assert leader._group() == (0,)
    leader.seconds = 0.05
    assert leader._group() == tuple(range(1, 11))
    leader.seconds = 3.0
    assert leader._group() == (11,)
    leader.seconds = 0.001
    # Towards the end no worker gets all that is left.
    sizes = []
    while leader.left:
        sizes.append(len(leader._group()))
    assert sum(sizes) == 88
    assert max(sizes) == 22
    assert sizes[-4:] == [1, 1, 1, 1]


def deadly(spec, indices):
    """Point 3 ends its worker, like one that takes all memory."""
    if 3 in indices:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(spec, indices)


def test_a_point_that_kills_its_workers_is_given_up_and_the_rest_goes_on(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(room, "compute", deadly)
    # At once, instead of after three deaths, each of which takes seconds.
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    monkeypatch.setattr(room._Leader, "_group", lambda self: _pairs(self))
    data = ms.sweep(
        axes={"seed": list(range(6))}, out=tmp_path / "s", scheduler=cluster.scheduler_address, beta=5.0, **SMALL
    )
    reasons = data["reason"].values.tolist()
    assert reasons[3] == room.KILLED
    # Dask blames whatever waited on the same worker; here only the culprit is given up.
    assert int(data["status"].sum()) == 1
    monkeypatch.undo()
    again = {
        "axes": {"seed": list(range(6))},
        "out": tmp_path / "s",
        "scheduler": cluster.scheduler_address,
        "beta": 5.0,
    }
    assert int(ms.sweep(retry_failed=True, **again, **SMALL)["status"].sum()) == 0


def _pairs(leader):
    """Two points a task, so that the innocent one must be told from the other."""
    return tuple(leader.left.popleft() for _ in range(min(2, len(leader.left))))
