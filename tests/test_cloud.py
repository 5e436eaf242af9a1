import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import metastable as ms
from metastable.cloud import _graded_radii


def moments(cloud):
    w = cloud.weights.unsqueeze(1)
    return (w * cloud.points).sum(0), cloud.points.T @ (w * cloud.points)


@pytest.mark.parametrize("make", [
    lambda seed: ms.uniform(50, d=4, seed=seed),
    lambda seed: ms.von_mises_fisher(50, mean=[0, 0, 1.0], kappa=5, seed=seed),
    lambda seed: ms.mixture(50, means=[[0, 1.0], [1.0, 0]], kappas=[5, 50], proportions=[1, 3], seed=seed),
    lambda seed: ms.graded(50, ms.Head.from_spectra([1, 2, 3, 4.0], [1, 2, 3, 4.0]), seed=seed),
])  # fmt: skip
def test_seeds_repeat_and_differ(make):
    assert torch.equal(make(3).points, make(3).points)
    assert not torch.equal(make(3).points, make(4).points)


def test_seed_gives_the_same_points_as_ever():
    """Reproducible across runs and versions: a fingerprint of one draw."""
    expected = [0.5739808267445322, -0.10929460822021676, -0.8115421733610969]
    assert ms.uniform(1, d=3, seed=0).points[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_uniform_has_the_moments_of_the_sphere():
    mean, second = moments(ms.uniform(200_000, d=3, seed=0))
    assert float(mean.norm()) < 0.01
    assert torch.allclose(second, torch.eye(3, dtype=torch.float64) / 3, atol=0.005)


@pytest.mark.parametrize(("d", "kappa"), [(2, 3.0), (3, 0.0), (3, 10.0), (5, 100.0), (3, 1e5)])
def test_von_mises_fisher_has_the_mean_of_its_law(d, kappa):
    direction = torch.ones(d, dtype=torch.float64)
    mean, _ = moments(ms.von_mises_fisher(100_000, direction, kappa, seed=0))
    length = special.ive(d / 2, kappa) / special.ive(d / 2 - 1, kappa) if kappa else 0.0
    assert torch.allclose(mean, length * direction / direction.norm(), atol=0.006)


def test_von_mises_fisher_heights_follow_their_density():
    heights = ms.von_mises_fisher(20_000, [0, 0, 1.0], 4.0, seed=1).points[:, 2].numpy()
    cdf = lambda z: (np.exp(4 * z) - np.exp(-4)) / (np.exp(4) - np.exp(-4))  # noqa: E731
    assert stats.kstest(heights, cdf).pvalue > 1e-3


def test_mixture_keeps_its_proportions():
    cloud = ms.mixture(40_000, means=[[0, 1.0], [1.0, 0]], kappas=1000, proportions=[1, 3], seed=0)
    assert float((cloud.points[:, 0] > 0.7).double().mean()) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("cloud", [ms.fibonacci(2000), ms.equally_spaced(500)])
def test_lattices_are_uniform_far_beyond_random_ones(cloud):
    mean, second = moments(cloud)
    assert float(mean.norm()) < 1e-4
    assert torch.allclose(second, torch.eye(cloud.dim, dtype=torch.float64) / cloud.dim, atol=1e-5)


@pytest.mark.parametrize(("d", "dominant"), [(2, 1), (3, 1), (3, 2), (5, 1), (6, 3)])
def test_graded_is_a_quadrature_of_the_uniform_law(d, dominant):
    value = [2.0] * dominant + [1.0] * (d - dominant)
    head = ms.Head.from_interaction(torch.eye(d), torch.diag(torch.tensor(value)).double())
    cloud = ms.graded(4000, head, smallest=1e-6)
    assert torch.allclose(cloud.points.norm(dim=1), torch.ones(4000, dtype=torch.float64))
    mean, second = moments(cloud)
    tolerance = 0.05 if d > 3 else 0.006
    assert float(mean.norm()) < tolerance
    assert torch.allclose(second, torch.eye(d, dtype=torch.float64) / d, atol=tolerance)


def test_graded_keeps_tokens_near_the_repelling_set_with_their_exact_mass():
    """With d = 3, dim E = 1 the height r = |⟨x, e⟩| is uniform on [0, 1]: mass below h is h."""
    head = ms.Head.from_interaction(torch.eye(3), torch.diag(torch.tensor([2.0, 1.0, 0.5])).double())
    cloud = ms.graded(2000, head, smallest=1e-8)
    height = cloud.points[:, 0].abs()
    assert 0.9e-8 < float(height.min()) < 1.1e-8
    for h in (1e-6, 1e-3, 0.3):
        assert float(cloud.weights[height < h].sum()) == pytest.approx(h, rel=0.02)
    assert float((height < 1e-3).double().mean()) > 0.3


def test_graded_masses_are_exact_for_every_stratum():
    radii, masses = _graded_radii(500, 1, 3, 1e-8)
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    assert (masses > 0).all()
    assert (np.diff(radii) > 0).all()


def test_points_and_weights_are_normalised():
    cloud = ms.Cloud([[3.0, 4.0], [0.0, -2.0]], weights=[1.0, 3.0])
    assert torch.allclose(cloud.points, torch.tensor([[0.6, 0.8], [0.0, -1.0]], dtype=torch.float64))
    assert torch.allclose(cloud.weights, torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert ms.Cloud(torch.eye(2)).dtype == torch.float32


@pytest.mark.parametrize("size", [1e308, 1e-300])
def test_points_of_any_length_keep_their_direction(size):
    assert ms.Cloud([[size, size]]).points[0].tolist() == pytest.approx([0.5**0.5] * 2)


def test_log_weights_keep_masses_that_a_float_cannot_hold():
    cloud = ms.Cloud(np.eye(2), log_weights=[0.0, -5000.0])
    assert float(cloud.log_weights[1]) == -5000.0


@pytest.mark.parametrize("n", [5, 2049, 10_000, 40_000])
def test_log_weights_are_those_of_torch_whatever_the_number_of_threads(n):
    """Small vectors are computed in parts, in the calling thread."""
    weights = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    cloud = ms.Cloud(ms.uniform(n, d=2).points, weights=weights)
    assert torch.equal(cloud.log_weights, weights.log() - torch.logsumexp(weights.log(), 0))
    assert torch.equal(cloud.weights, cloud.log_weights.exp())


def test_subset_is_reproducible_and_renormalised():
    cloud = ms.Cloud(ms.uniform(100, d=3).points, weights=torch.arange(1, 101))
    part = cloud.subset(10, seed=1)
    assert len(part) == 10
    assert float(part.weights.sum()) == pytest.approx(1)
    assert torch.equal(part.points, cloud.subset(10, seed=1).points)
    assert cloud.subset(1000) is cloud


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.Cloud([[0.0, 0.0], [1.0, 0.0]]), "point 0 is the zero vector"),
        (lambda: ms.Cloud([[math.nan, 0.0]]), "points holds a number that is not finite"),
        (lambda: ms.Cloud([1.0, 0.0]), "points has shape"),
        (lambda: ms.Cloud([[1.0], [2.0]]), "the sphere needs d ≥ 2"),
        (lambda: ms.Cloud(np.eye(2), weights=[1, -1]), r"weight 1 is -1\.0"),
        (lambda: ms.Cloud(np.eye(2), weights=[1, math.inf]), "weights holds a number that is not finite"),
        (lambda: ms.Cloud(np.eye(2), weights=[0, 0]), "all weights are 0"),
        (lambda: ms.Cloud(np.eye(2), weights=[1, 1, 1]), "expected a vector of 2"),
        (lambda: ms.Cloud(np.eye(2), weights=[1, 1], log_weights=[0, 0]), "both weights and log_weights"),
        (lambda: ms.Cloud(np.eye(2), log_weights=[0, math.inf]), "log_weights must be 2 numbers"),
        (lambda: ms.uniform(0, d=3), "n is 0"),
        (lambda: ms.uniform(2.5, d=3), "n is 2.5"),
        (lambda: ms.uniform(10, d=1), "d is 1"),
        (lambda: ms.uniform(10, d=3, seed=-1), "seed is -1"),
        (lambda: ms.von_mises_fisher(10, [0.0, 0.0], 1.0), "mean is the zero vector"),
        (lambda: ms.von_mises_fisher(10, [0.0, 1.0], -1.0), "kappa is -1"),
        (lambda: ms.mixture(10, [[0.0, 1.0]], [1.0, 2.0]), "2 kappas for 1 means"),
        (lambda: ms.mixture(10, [[0.0, 1.0]], 1.0, [-1.0]), "proportions are"),
        (lambda: ms.graded(10, ms.Head.from_interaction(np.eye(2), np.eye(2))), "every eigenvalue of M is dominant"),
        (lambda: ms.graded(10, ms.Head.from_spectra([1, 2.0], [1, 2.0]), smallest=1), "smallest is 1"),
    ],
)
def test_bad_clouds_are_refused_in_one_line(make, message):
    with pytest.raises(ms.BadInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [lambda a: a[::-1][::-1], lambda a: a.astype(">f8"), np.asfortranarray])
def test_the_order_of_bytes_and_of_memory_does_not_matter(change):
    points = ms.uniform(20, d=3, seed=0).points.numpy()
    assert torch.equal(ms.Cloud(change(points)).points, ms.Cloud(points).points)
    assert torch.equal(ms.Cloud(points[::-1]).points, ms.Cloud(points).points.flip(0))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized"])
def test_tensors_that_hold_no_plain_numbers_are_refused_in_one_line(kind):
    points = torch.eye(3)
    odd = {
        "sparse": lambda: points.to_sparse(),
        "meta": lambda: points.to("meta"),
        "quantized": lambda: torch.quantize_per_tensor(points, 0.1, 0, torch.qint8),
    }[kind]()
    with pytest.raises(ms.BadInput, match=f"points is a {kind} tensor"):
        ms.Cloud(odd)
