"""One point against the same calls written out by hand."""

import math

import numpy as np
import pytest

import metastable as ms
from metastable.scale import points
from metastable.scale.plan import make

SPECTRA = {"interaction": [1.5, 0.6], "value": [1.0, 0.7], "seed": 2}


def numbers(plan, index):
    found = points.record(plan, index)
    assert found[:2] == (index, points.DONE), found.payload
    row = np.frombuffer(found.payload, dtype="<f8")
    ends = np.cumsum([count for _, count in plan.columns])
    return {name: part for (name, _), part in zip(plan.columns, np.split(row, ends[:-1]), strict=True)}


def test_a_point_is_the_simulation_that_one_would_write():
    plan = make({"beta": [5.0, 50.0], "seed": [0, 1]}, SPECTRA, {"n": 25}, {"until": 6.0}, ["distance", "phases"])
    found = numbers(plan, 3)
    cloud = ms.uniform(25, d=2, seed=plan.cloud_seed(3))
    run = ms.simulate(ms.Head.from_spectra([1.5, 0.6], [1.0, 0.7], seed=2), cloud, beta=50.0, until=6.0, progress=False)
    assert np.array_equal(found["distance"], run.distance().values)
    phases = run.phases()
    assert (found["least"][0], found["least_time"][0]) == (phases.least, phases.least_time)
    assert points.COURSES[int(found["course"][0])] == phases.course
    for name in ("concentrated", "terminal"):
        expected = getattr(phases, name)
        assert np.array_equal(found[name], [math.nan if expected is None else expected], equal_nan=True)


def test_observables_are_those_of_the_run_at_the_kept_times():
    names = ["log_energy", "mean_cosine", "effective_rank", "clusters"]
    outputs = {"distance": [0.5, 2.0], "observables": names}
    plan = make({"beta": [5.0]}, SPECTRA, {"n": 25}, {"until": 2.0}, outputs)
    found = numbers(plan, 0)
    cloud = ms.uniform(25, d=2, seed=plan.cloud_seed(0))
    run = ms.simulate(plan.problem(0).head, cloud, beta=5.0, until=2.0, t_eval=[0.5, 2.0], progress=False)
    expected = run.observables()
    for name in names:
        assert np.array_equal(found[name], expected[name].values[1:]), name


def test_times_that_a_point_does_not_reach_are_nan():
    plan = make({"until": [1.0, 2.0]}, SPECTRA, {"n": 10}, {"beta": 5.0, "t_eval": 5}, ["distance"])
    short, long = (numbers(plan, i)["distance"] for i in (0, 1))
    assert np.isnan(short).tolist() == [False, False, False, True, True]
    assert not np.isnan(long).any()
    np.testing.assert_allclose(short[:3], long[:3], atol=1e-5)


def test_phases_are_read_off_the_whole_curve_even_if_few_distances_are_kept():
    few = make({"beta": [50.0]}, SPECTRA, {"n": 25}, {"until": 6.0}, {"distance": [3.0], "phases": True})
    assert sum(count for _, count in few.columns) == 1 + 5
    run = ms.simulate(
        few.problem(0).head,
        few.problem(0).cloud,
        beta=50.0,
        until=6.0,
        progress=False,
    )
    assert numbers(few, 0)["least"][0] == pytest.approx(run.phases().least, rel=1e-4)


def reason(head, beta=5.0, **law):
    plan = make({"beta": [beta]}, head, {"n": 9, **law}, {"until": 1.0})
    found = points.record(plan, 0)
    assert (found.number, found.status) == (0, points.FAILED)
    assert b"\n" not in found.payload
    return found.payload.decode()


def test_a_member_without_a_limit_law_has_observables_and_no_distance():
    """By default a sweep of blocks keeps observables; one without them has nothing for such a member."""
    axes = {"kernel": ["softmax", "sigmoid"]}
    plan = make(axes, SPECTRA, {"n": 20}, {"beta": 5.0, "until": 1.0, "t_eval": 3})
    one, other = (numbers(plan, i) for i in (0, 1))
    assert not np.isnan(one["distance"]).any()
    for name in ("distance", "least", "course"):
        assert np.isnan(other[name]).all(), name
    cloud = ms.uniform(20, d=2, seed=plan.cloud_seed(1))
    run = ms.simulate(plan.problem(1).block, cloud, beta=5.0, until=1.0, t_eval=3, progress=False)
    np.testing.assert_array_equal(other["mean_cosine"], run.observables()["mean_cosine"].values)
    few = make(axes, SPECTRA, {"n": 20}, {"beta": 5.0, "until": 1.0, "t_eval": 3}, ["distance"])
    assert b"observables = true" in points.record(few, 1).payload


def test_points_fail_with_a_reason_in_one_line():
    assert "no limit point" in reason({"interaction": [[1, 0], [0, 1]], "value": [[0, 1], [-1, 0]]})
    assert "no step is small enough" in reason({"interaction": [1e200, 1], "value": [1e200, 1]})
    assert "must agree" in reason(SPECTRA, law="fibonacci")
    assert reason(SPECTRA, n=10**14) == "not enough memory for this many tokens"


def test_a_group_gives_the_records_of_its_points_whatever_came_before():
    plan = make({"beta": [5.0, 50.0], "seed": [0, 1]}, SPECTRA, {"n": 10}, {"until": 1.0, "t_eval": 3})
    together = points.compute(plan, (3, 0, 2))
    assert together == [points.record(plan, i) for i in (3, 0, 2)]


def test_a_mean_field_point_is_that_of_the_solver():
    fixed = {"until": 2.0, "tol": 0.01, "mean_field": True, "t_eval": 5}
    plan = make({"beta": [10.0, 20.0]}, SPECTRA, {}, fixed)
    found = numbers(plan, 1)
    run = ms.mean_field(plan.problem(1).head, "uniform", beta=20.0, until=2.0, tol=0.01, t_eval=5)
    assert np.array_equal(found["distance"], run.distance().values)
    assert (found["least"][0], found["least_time"][0]) == (run.phases().least, run.phases().least_time)


def test_a_mean_field_that_is_not_known_well_enough_fails():
    plan = make({"beta": [2.0]}, SPECTRA, {}, {"until": 0.2, "tol": 1e-12, "mean_field": True, "t_eval": 3})
    found = points.record(plan, 0)
    assert found.status == points.FAILED
    assert b"more than tol" in found.payload
