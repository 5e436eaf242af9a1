"""Merged runs against the same runs without merging, and the error they report against the one they make."""

import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.flow import merging
from metastable.flow.merging import Merging, groups
from metastable.run.run import gronwall
from tests.problems import circle_head

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
CLOUD = ms.uniform(40, d=2, seed=0)


def pair(head, cloud, beta, until, delta, tol=1e-9, t_eval=13):
    """A run, the same run with merging, and a bound of the W₂ between them: the distance of each token to itself."""
    plain = ms.simulate(head, cloud, beta, until, t_eval=t_eval, tol=tol)
    merged = ms.simulate(head, cloud, beta, until, t_eval=t_eval, tol=tol, merge=delta)
    squares = ((plain.frames - merged.frames) ** 2).sum(dim=2)
    return plain, merged, (squares @ cloud.weights).sqrt().numpy()


def clustered(n, d, width, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, d))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return ms.Cloud(centres[rng.integers(3, size=n)] + width * rng.normal(size=(n, d)), weights=rng.uniform(0.1, 1, n))


@pytest.mark.parametrize(
    ("n", "d", "width"), [(300, 2, 1e-3), (300, 3, 3e-3), (200, 5, 1e-3), (50, 3, 0.0), (1, 2, 0.0)]
)
def test_groups_are_no_wider_than_delta_and_leave_no_token_out(n, d, width):
    x, delta = clustered(n, d, width).points.numpy(), 2e-3
    leader = groups(x, delta, most=n)
    assert len(leader) == n
    for first in np.unique(leader):
        members = x[leader == first]
        assert first == np.flatnonzero(leader == first)[0]
        assert np.linalg.norm(members[:, None] - members[None], axis=2).max() <= delta
    left = x[np.unique(leader)]
    gaps = np.linalg.norm(left[:, None] - left[None], axis=2) + 9 * np.eye(len(left))
    assert gaps.min() > delta / 2, "two groups whose first tokens are close should be one"


def test_a_chain_of_close_tokens_is_not_one_group():
    angle = 1e-3 * np.arange(200)
    leader = groups(np.stack([np.cos(angle), np.sin(angle)], axis=1), 2.5e-3, most=200)
    assert len(np.unique(leader)) >= 80


def test_groups_are_given_up_when_too_many_would_be_left():
    x = clustered(300, 3, 3e-3).points.numpy()
    count = len(np.unique(groups(x, 2e-3, most=300)))
    assert 3 < count < 250
    assert groups(x, 2e-3, most=count) is not None
    assert groups(x, 2e-3, most=count - 1) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_merge_keeps_the_mass_the_mean_and_says_how_far_it_moved_the_law(dtype):
    cloud = clustered(60, 3, 1e-3).to(dtype)
    state = Merging(HEAD, cloud, 5.0, 0.02)
    x = state._merge(
        cloud.points, np.unique(groups(cloud.points.double().numpy(), 0.02, 60), return_inverse=True)[1], 0.0
    )
    weights = cloud.weights.double()
    assert len(x) == 3
    assert x.dtype == dtype
    assert int(state.counts.sum()) == 60
    small = 1e-5 if dtype == torch.float32 else 1e-14
    for i in range(3):
        inside = state.owner == i
        assert float(state.log_weights[i].exp()) == pytest.approx(float(weights[inside].sum()), rel=small)
        mean = (weights[inside].unsqueeze(1) * cloud.points[inside].double()).sum(dim=0)
        assert torch.allclose(x[i].double(), mean / mean.norm(), atol=small)
    moved = (cloud.points.double() - x[state.owner].double()).norm(dim=1)
    angle = 2 * torch.asin(moved / 2)
    assert state.jumps[0][1] == pytest.approx(float((weights * angle**2).sum().sqrt()), rel=1e-6)
    scatter = float(state.log_weights.double().exp() @ torch.from_numpy(np.trace(state.scatter, axis1=1, axis2=2)))
    assert scatter == pytest.approx(float((weights * moved**2).sum()), rel=1e-5)


def test_merging_in_two_goes_adds_up():
    """The moments about the last places are those of all tokens, whichever way they were merged."""
    cloud = clustered(60, 3, 1e-3)
    state = Merging(HEAD, cloud, 5.0, 0.02)
    halves = np.unique(groups(cloud.points.numpy(), 1e-3, 60), return_inverse=True)[1]
    x = state._merge(cloud.points, halves, 0.0)
    x = state._merge(x, np.unique(groups(x.numpy(), 0.02, 60), return_inverse=True)[1], 0.0)
    moved, w = cloud.points - x[state.owner], cloud.weights
    for i in range(3):
        part, inside = moved[state.owner == i], w[state.owner == i] / w[state.owner == i].sum()
        assert np.allclose(state.scatter[i], (part.T @ (inside.unsqueeze(1) * part)).numpy(), atol=1e-18)
        assert np.allclose(state.shift[i], (inside @ part).numpy(), atol=1e-16)


def test_tokens_of_weight_zero_are_merged_too():
    points = torch.tensor([[1.0, 0.0], [1.0, 1e-5], [0.0, 1.0], [1e-5, 1.0]], dtype=torch.float64)
    cloud = ms.Cloud(points, weights=[1.0, 0.0, 0.0, 0.0])
    run = ms.simulate(HEAD, cloud, beta=5.0, until=1.0, merge=1e-3, t_eval=3)
    plain = ms.simulate(HEAD, cloud, beta=5.0, until=1.0, t_eval=3)
    assert run.configuration["live"] == 2
    assert torch.allclose(run.frames, plain.frames, atol=2e-5)
    assert float(run.merge_error()[-1]) == 0


def test_tokens_that_coincide_are_merged_without_error():
    cloud = ms.Cloud(CLOUD.points[:10].repeat_interleave(3, dim=0))
    _, merged, actual = pair(HEAD, cloud, 5.0, 1.0, 1e-12, tol=1e-10)
    assert merged.merge_error()["live"].values.tolist() == [30] + [10] * 12
    assert actual.max() < 1e-12
    assert float(merged.merge_error().max()) < 1e-14


def random_problem(seed):
    """Groups of 2 to 4 close tokens under a head: general, symmetric, V shifted by −I, V negative, or V rotating."""
    rng = np.random.default_rng(seed)
    d, kind = int(rng.integers(2, 5)), seed % 5
    B, V = rng.normal(size=(2, d, d))
    if kind == 1:
        B, V = (a @ a.T / d + 0.3 * np.eye(d) for a in (B, V))
    elif kind == 2:
        V = V - np.eye(d)
    elif kind == 3:
        V = -(V @ V.T / d + 0.2 * np.eye(d))
    elif kind == 4:
        V = V - V.T + 0.3 * np.eye(d)
    beta, delta = 10 ** rng.uniform(-0.5, 2.0), 10 ** rng.uniform(-3.5, -0.7)
    x = rng.normal(size=(int(rng.integers(5, 12)), d))
    x = np.repeat(x / np.linalg.norm(x, axis=1, keepdims=True), rng.integers(2, 5, len(x)), axis=0)
    x = x + 0.2 * delta / math.sqrt(d) * rng.normal(size=x.shape)
    weights = rng.exponential(size=len(x)) ** 3 if rng.random() < 0.3 else None
    until = float(rng.uniform(1, 5))
    return ms.Head.from_interaction(B, V), ms.Cloud(x, weights=weights), float(beta), until, float(delta)


SOLVER = 1e-6
"""What time stepping at tol = 1e-8 may add to the difference of two runs here."""


@pytest.fixture(scope="module", params=[range(7), pytest.param(range(7, 40), marks=pytest.mark.slow)])
def random_pairs(request):
    return {seed: pair(*random_problem(seed), tol=1e-8, t_eval=9) for seed in request.param}


def exceeded(pairs, factor):
    """The seeds whose run is further from the unmerged one, at some saved time, than `factor` times the report."""
    return [
        seed
        for seed, (_, merged, actual) in pairs.items()
        if (actual > factor * merged.merge_error().values + SOLVER).any()
    ]


def test_the_reported_error_is_never_exceeded_on_random_heads(random_pairs):
    assert exceeded(random_pairs, 1.0) == []
    merged = [run for _, run, _ in random_pairs.values() if run.configuration["merges"]]
    assert len(merged) >= 0.8 * len(random_pairs), "most of the problems must have something to merge"


def test_a_token_pushed_across_a_watershed_is_not_reported_as_close():
    """Two tokens start so close to a basin boundary that merging moves them across it: the true error is large."""
    _, merged, actual = pair(*random_problem(26), tol=1e-8, t_eval=9)
    error = merged.merge_error()
    assert actual[-1] > 0.5
    assert np.all(actual <= error.values)
    assert float(error[1]) < 0.01
    assert error.attrs["vacuous_after"] is not None


def test_a_report_ten_times_too_small_would_be_caught(random_pairs):
    merged = [run for _, run, _ in random_pairs.values() if run.configuration["merges"]]
    followed = [run for run in merged if float(run.merge_error()[-1]) < 1]
    assert len(exceeded(random_pairs, 0.1)) >= 0.8 * len(followed) > 0


def test_exact_wasserstein_distance_is_below_the_report(random_pairs):
    compared = 0
    for plain, merged, _ in random_pairs.values():
        i = len(plain.times) // 2
        report = float(merged.merge_error()[i])
        if 10 * SOLVER < report < 1:
            assert ms.wasserstein(plain.at(i), merged.at(i)).value <= report
            compared += 1
    assert compared >= 0.3 * len(random_pairs)


def test_the_error_followed_is_the_error_made_to_leading_order():
    """Without its factor 2(1 + ρ), the report is the distance up to the √2 of adding its two parts instead of squares.

    That holds while the spread inside clusters dominates (order δ) and later, when their places do (order δ²).
    """
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
    _, merged, actual = pair(head, ms.uniform(40, d=3, seed=0), 30.0, 24.0, 3e-3, tol=1e-11)
    report = merged.merge_error().values / merging.SAFETY
    seen = report > 1e-8
    ratio = actual[seen] / report[seen]
    assert ratio.max() < 1.01
    assert ratio.min() > 0.95 / math.sqrt(2)
    assert report[seen].max() > 1e-4
    assert report[seen].min() < 1e-5
    assert np.median(ratio) > 0.95


def test_a_cluster_that_would_come_apart_is_reported_as_such():
    """V negative definite: differences in a narrow cluster grow like e^{t}, which a merged cluster cannot show."""
    head = ms.Head.from_interaction(np.eye(3), -np.eye(3))
    cloud = ms.von_mises_fisher(50, [0.0, 0.0, 1.0], kappa=1e9, seed=0)
    _, merged, actual = pair(head, cloud, 20.0, 12.0, 1e-3, t_eval=25)
    error = merged.merge_error()
    assert merged.configuration["live"] == 1
    # To first order the spread grows like e^t exactly, so the report is 2(1 + ρ) times the distance.
    early = slice(1, 10)
    assert np.all(actual[early] <= error.values[early])
    assert np.all(error.values[early] < 3 * actual[early])
    growth = np.diff(np.log(error.values[early])) / np.diff(error["time"].values[early])
    assert growth == pytest.approx(np.ones(8), abs=0.1)
    lost = error.attrs["vacuous_after"]
    assert lost is not None
    assert np.all(np.isinf(error.values[error["time"].values >= lost]))
    assert actual[-1] > 0.5
    assert f"its error is not known from t = {lost:g} on" in merged.merge_sentence()


def test_a_cluster_that_circles_is_followed():
    """V with a complex pair: one cluster circles with the flow of V, merged or not."""
    V = torch.tensor([[0.6, -1.0], [1.0, 0.6]], dtype=torch.float64)
    head = ms.Head.from_interaction(torch.eye(2, dtype=torch.float64), V)
    cloud = ms.von_mises_fisher(40, [1.0, 0.0], kappa=1e4, seed=0)
    _, merged, actual = pair(head, cloud, 20.0, 10.0, 1e-2)
    assert merged.configuration["live"] == 1
    assert np.all(actual <= merged.merge_error().values + 1e-7)
    first = int(np.flatnonzero(merged.merge_error()["live"].values == 1)[0])
    left = (merged.times[-1] - merged.times[first]).reshape(1)
    exact = ms.value_flow(head, merged.frames[first][:1], left)
    assert torch.allclose(merged.final.points[:1], exact.reshape(1, 2), atol=1e-6)


def test_a_long_horizon_ends_at_the_eigenvector_of_v():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
    run = ms.simulate(head, ms.uniform(150, d=3, seed=0), beta=100.0, until=1e3, merge=1e-4, t_eval=5)
    _, vectors = torch.linalg.eigh(head.V)
    along = (run.final.points @ vectors[:, -1]).abs()
    assert float(along.min()) > 1 - 1e-10
    assert run.merge_error()["live"].values[-1] <= 2
    # At rest a step is bounded by the stability of the method, not by tol: 3.3 over the fastest rate, here 1.2 − 0.5.
    assert run.configuration["steps"] < 1.2 * 1e3 / (3.3 / 0.7) + 150
    assert 1e-9 < float(run.merge_error()["largest"][-1]) < 1e-3
    assert "left 2 of 150 tokens to move" in run.merge_sentence()


def test_merging_waits_until_the_error_can_be_followed(monkeypatch):
    monkeypatch.setattr(merging, "FOLLOWED", 8)
    run = ms.simulate(HEAD, CLOUD, beta=20.0, until=12.0, merge=1e-2, t_eval=60)
    live = run.merge_error()["live"].values
    assert live[0] == 40
    assert live[-1] == 2
    assert set(live[live < 40]) <= set(range(1, 9))


def test_a_merged_run_is_a_run_like_any_other(tmp_path):
    plain, merged, actual = pair(HEAD, CLOUD, 20.0, 12.0, 1e-3, tol=1e-6)
    assert merged.frames.shape == plain.frames.shape
    assert torch.equal(merged.cloud.log_weights, plain.cloud.log_weights)
    assert np.all(np.abs(merged.distance().values - plain.distance().values) <= actual + 1e-12)
    assert merged.phases().least == pytest.approx(plain.phases().least, abs=actual.max())
    back = ms.Run.load(merged.save(tmp_path / "run.zarr"))
    assert torch.equal(back.merged, merged.merged)
    assert torch.equal(back.jumps, merged.jumps)
    assert back.configuration["merge"] == 1e-3
    assert back.merge_sentence() == merged.merge_sentence()
    assert ms.Run.load(plain.save(tmp_path / "plain.zarr")).merged is None


def test_the_certificate_counts_the_jumps_of_the_law():
    merged = ms.simulate(HEAD, CLOUD, 20.0, 12.0, t_eval=13, merge=3e-2)
    coupled = merged.laplace_term(cost="geodesic").values
    assert np.all(coupled[1:] <= merged.certificate().values[1:])
    eps = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    found = gronwall(eps, 0.5, torch.tensor([0.0, 1.0, 3.0]), torch.tensor([[1.0, 0.25], [1.0, 0.25]]))
    assert found == pytest.approx([0.0, 0.5, 0.5 * math.e])


def test_single_precision_merges_too():
    single = ms.simulate(HEAD, CLOUD.to(torch.float32), beta=20.0, until=12.0, merge=1e-2, tol=1e-5)
    double = ms.simulate(HEAD, CLOUD, beta=20.0, until=12.0, merge=1e-2, tol=1e-5)
    assert single.frames.dtype == torch.float32
    assert single.configuration["live"] == double.configuration["live"] == 2
    # A token may be merged one step earlier or later, within δ of where it was.
    assert torch.allclose(single.final.points.double(), double.final.points, atol=2e-3)


def test_nothing_to_merge_and_no_merging_asked_for():
    run = ms.simulate(HEAD, CLOUD, beta=5.0, until=0.1, merge=1e-6, t_eval=3)
    assert run.merge_error().values.tolist() == [0, 0, 0]
    assert run.merge_sentence() == "merging at distance 1e-06 found nothing to merge"
    with pytest.raises(ms.BadInput, match="made without merging; give merge= to simulate"):
        ms.simulate(HEAD, CLOUD, beta=5.0, until=0.1, t_eval=3).merge_error()


@pytest.mark.parametrize(("method", "step"), [("euler", 0.05), ("rk4", 0.1)])
def test_fixed_steps_merge_as_well(method, step):
    run = ms.simulate(HEAD, CLOUD, beta=20.0, until=12.0, method=method, step=step, merge=1e-2, t_eval=5)
    plain = ms.simulate(HEAD, CLOUD, beta=20.0, until=12.0, method=method, step=step, t_eval=5)
    assert run.configuration["live"] == 2
    actual = (((run.frames - plain.frames) ** 2).sum(dim=2) @ CLOUD.weights).sqrt().numpy()
    assert np.all(actual <= run.merge_error().values + 1e-12)
