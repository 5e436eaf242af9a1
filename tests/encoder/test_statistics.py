"""Statistics of padded clouds: planted clouds with exact answers, and the network simplex."""

import math

import numpy as np
import pytest
import torch

from metastable.encoder.statistics import CLOUD, cloud, two_atom_distance
from tests.encoder.measuring_reference import transported


@pytest.mark.parametrize(("n", "d"), [(5, 8), (8, 5)])
def test_planted_clouds(n, d):
    """All tokens equal, and tokens that are orthogonal; rows that are not chosen hold something else."""
    chosen = torch.tensor([[True] * 4 + [False] * (n - 4)] * 2)
    unit = torch.randn(2, n, d)
    unit[0, :4] = torch.nn.functional.normalize(torch.ones(d), dim=0)
    unit[1, :4] = torch.eye(d)[:4]
    found = cloud(unit, chosen, beta=3.0)
    far = math.log((4 + 12 * math.exp(-3)) / 16) / 3
    expected = {"mean_cosine": [1, 0], "effective_rank": [1, 4], "dispersion": [0, 3 / 4], "energy": [0, far]}
    for name, values in expected.items():
        assert found[name].tolist() == pytest.approx(values, abs=1e-5), name


def test_two_clusters_are_two_directions():
    unit = torch.eye(6)[[0, 0, 1, 1]].unsqueeze(0)
    found = cloud(unit, torch.ones(1, 4, dtype=torch.bool), beta=500.0)
    assert found["effective_rank"].item() == pytest.approx(2, abs=1e-5)
    assert found["mean_cosine"].item() == pytest.approx(1 / 3)
    assert found["energy"].item() == pytest.approx(-math.log(2) / 500, abs=1e-7)


def test_a_cloud_that_is_not_finite_is_no_number():
    unit = torch.full((2, 3, 4), 0.5)
    unit[0, 1, 1] = torch.nan
    found = cloud(unit, torch.ones(2, 3, dtype=torch.bool), beta=1.0)
    for name in CLOUD:
        assert found[name].isnan().tolist() == [True, False], name


@pytest.mark.parametrize("seed", range(5))
def test_the_two_atom_distance_is_the_network_simplex(seed):
    rng = np.random.default_rng(seed)
    m, n, heads = 7, 10, 3
    e = rng.normal(size=(heads, 4))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    x = rng.normal(size=(n, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    sides = rng.normal(size=(heads, m))
    chosen = torch.tensor([[True] * m + [False] * (n - m)])
    up = torch.from_numpy((sides > 0).sum(axis=1))[None]
    found = two_atom_distance(torch.from_numpy(e @ x.T)[None], up, chosen)[0]
    for head in range(heads):
        assert found[head].item() == pytest.approx(transported(x[:m], e[head], sides[head]), abs=1e-9)


def test_tokens_at_their_limits_are_at_no_distance():
    along = torch.tensor([[[1.0, -1.0, 1.0, 0.3]]])
    chosen = torch.tensor([[True, True, True, False]])
    assert two_atom_distance(along, torch.tensor([[2]]), chosen).item() == 0
    assert two_atom_distance(along, torch.tensor([[1]]), chosen).item() == pytest.approx(math.sqrt(4 / 3))
