"""Means of moving tokens: what is kept between calls may change the cost and the last digits, nothing else."""

import pytest
import torch

import metastable as ms
from metastable.attention import ENGINES, Prepared

TOL = 1e-6


def moving_clouds(d, n=300):
    """Tokens on their way from the uniform law to a narrow cluster."""
    start = ms.uniform(n, d=d, seed=1)
    for pull in (0.0, 0.3, 1.0, 10.0, 1e3):
        x = start.points + pull * torch.eye(d, dtype=torch.float64)[0]
        yield ms.Cloud(x, weights=torch.arange(1.0, n + 1))


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", ["dense", "flash", "direct", "tree"])
def test_every_call_gives_the_mean_of_the_points_it_was_given(kind, d):
    clouds = list(moving_clouds(d))
    mean = Prepared(clouds[0].log_weights, kind, TOL)
    for cloud in [*clouds, *reversed(clouds)]:
        u = 40.0 * cloud.points
        exact = ENGINES["dense"](cloud.points, cloud.log_weights, u)
        bound = TOL if kind == "tree" else 1e-12
        assert float((mean(cloud.points, u) - exact).norm(dim=1).max()) <= bound


def test_the_tree_is_kept_between_calls_and_forgotten_on_demand():
    first, *others = moving_clouds(3)
    mean = Prepared(first.log_weights, "tree", TOL)
    mean(first.points, first.points)
    kept = mean._tree
    for cloud in others:
        mean(cloud.points, cloud.points)
        assert mean._tree is kept
    mean.forget()
    last = others[-1]
    fresh = Prepared(last.log_weights, "tree", TOL)(last.points, last.points)
    assert torch.equal(mean(last.points, last.points), fresh)


def test_a_bad_tolerance_is_refused_at_once():
    with pytest.raises(ms.BadInput, match="tol is 2; the tree needs a tolerance between 0 and 1"):
        Prepared(torch.zeros(3), "tree", 2)
