"""The fields against the double loop, and the limits that join them."""

import math

import pytest
import torch

import metastable as ms
from metastable.flow.fields import zero_temperature
from tests import reference
from tests.problems import random_matrix


def random_head(d, k, seed):
    Q, K = (random_matrix(d, seed + i)[:k] for i in range(2))
    return ms.Head(Q, K, random_matrix(d, seed + 2))


@pytest.mark.parametrize(("d", "k"), [(2, 2), (3, 3), (5, 2)])
@pytest.mark.parametrize("beta", [0.0, 1.0, 50.0])
def test_velocity_equals_the_double_loop(engine, d, k, beta):
    head = random_head(d, k, seed=d)
    cloud = ms.Cloud(ms.uniform(15, d, seed=0).points, weights=torch.arange(1, 16))
    parts = [a.tolist() for a in (head.query, head.key, head.value, cloud.points, cloud.weights)]
    expected = torch.tensor(reference.velocity(*parts, beta), dtype=torch.float64)
    assert torch.allclose(ms.velocity(head, cloud, beta, engine=engine), expected, atol=1e-11)


def test_velocity_is_tangent(engine):
    cloud = ms.uniform(50, d=4, seed=0)
    v = ms.velocity(random_head(4, 4, 0), cloud, 20.0, engine=engine)
    assert float((v * cloud.points).sum(dim=1).abs().max()) < 1e-13


def test_hardmax_averages_ties_by_weight():
    head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    cloud = ms.Cloud([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]], weights=[0.0, 3.0, 1.0])
    at = [[1.0, 0.0]]
    # Token 0 has weight 0, so tokens 1 and 2 tie for the query (1, 0); their mean is (0.6, 0.4).
    assert ms.velocity(head, cloud, math.inf, at=at)[0].tolist() == pytest.approx([0.0, 0.4])


def test_zero_temperature_is_the_field_of_a_dense_cloud():
    """With tokens everywhere the hardmax field approaches the zero-temperature field."""
    head = random_head(3, 3, seed=4)
    x = ms.uniform(50, d=3, seed=1).points
    fields = [ms.velocity(head, ms.fibonacci(n), math.inf, at=x) for n in (300, 30_000)]
    gaps = [float((field - zero_temperature(head, x)).norm(dim=1).max()) for field in fields]
    assert gaps[1] < gaps[0] / 5
    assert gaps[1] < 0.03 * float(torch.linalg.matrix_norm(head.V, 2))


def test_zero_temperature_is_zero_where_it_is_undefined():
    head = ms.Head.from_interaction(torch.diag(torch.tensor([1.0, 0.0])), torch.eye(2))
    assert zero_temperature(head, torch.tensor([[0.0, 1.0]])).tolist() == [[0.0, 0.0]]


def test_offset_enters_the_scores():
    offset = torch.tensor([0.0, 3.0], dtype=torch.float64)
    head = ms.Head(torch.eye(2), torch.eye(2), torch.eye(2), offset=offset)
    cloud = ms.uniform(10, d=2, seed=0)
    m = ms.attend(cloud, 2.0 * (cloud.points + offset))
    expected = m - (m * cloud.points).sum(1, keepdim=True) * cloud.points
    assert torch.allclose(ms.velocity(head, cloud, 2.0), expected)


@pytest.mark.parametrize("beta", [-1.0, math.nan, "10", True, None])
def test_bad_beta_is_refused(beta):
    head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    with pytest.raises(ms.BadInput, match=r"beta is .*must be 0 or more"):
        ms.velocity(head, ms.uniform(5, d=2), beta)


def test_dimensions_must_agree():
    with pytest.raises(ms.BadInput, match="the head has d = 2 and the cloud d = 3"):
        ms.velocity(ms.Head.from_interaction(torch.eye(2), torch.eye(2)), ms.uniform(5, d=3), 1.0)
