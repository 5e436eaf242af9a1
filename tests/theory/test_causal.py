"""Rényi centres against the double loop of the definition, and their expected number against simulation."""

import math

import numpy as np
import pytest

import metastable as ms
from metastable.errors import BadInput
from metastable.theory.causal import expected_renyi_centres, parking_density, renyi_centres


def literal(points, delta, strong):
    centres = []
    for j, x in enumerate(points):
        earlier = range(j) if strong else centres
        angles = [math.acos(np.clip(x @ points[i], -1, 1)) for i in earlier]
        if all(angle > delta for angle in angles):
            centres.append(j)
    return centres


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize(("d", "n", "delta"), [(2, 300, 0.1), (2, 50, 2.5), (3, 250, 0.35), (20, 200, 1.2)])
def test_centres_are_those_of_the_definition(d, n, delta, strong):
    points = ms.uniform(n, d, seed=d).points.numpy()
    assert renyi_centres(points, delta, strong).tolist() == literal(points, delta, strong)


def test_one_token_is_a_centre():
    assert renyi_centres([[0.0, 1.0]], 0.5).tolist() == [0]


def mean_count(delta, n, strong, repeats):
    """Mean number of centres over independent circles, with its standard error."""
    counts = [len(renyi_centres(ms.uniform(n, 2, seed=k).points, delta, strong)) for k in range(repeats)]
    return np.mean(counts), np.std(counts) / math.sqrt(repeats)


@pytest.mark.slow
@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize(("delta", "n"), [(0.05, 20), (0.05, 150), (0.2, 3000)])
def test_expected_number_by_simulation(delta, n, strong):
    mean, error = mean_count(delta, n, strong, 150)
    assert expected_renyi_centres(delta, n, strong) == pytest.approx(mean, abs=4 * error + 1e-9)


def test_two_tokens_exactly():
    # The second token is a centre with probability 1 − 2δ/(2π).
    for strong in (False, True):
        assert expected_renyi_centres(0.01, 2, strong) == pytest.approx(2 - 0.02 / (2 * math.pi), rel=1e-5)


def test_parking_density_solves_the_kinetic_equation_and_ends_at_renyis_constant():
    u = (np.arange(400_000) + 0.5) * (5.0 / 400_000)
    inner = np.cumsum((1 - np.exp(-u)) / u) * (u[1] - u[0]) - 0.5 * (1 - np.exp(-u)) / u * (u[1] - u[0])
    assert parking_density(5.0) == pytest.approx(np.exp(-2 * inner).sum() * (u[1] - u[0]), abs=1e-8)
    assert parking_density(9999.0) == pytest.approx(parking_density(10001.0), abs=1e-7)
    # Rényi 1958, in the form θ(∞) − θ(t) = e^{−2γ}/t.
    assert parking_density(5000.0) + math.exp(-2 * np.euler_gamma) / 5000 == pytest.approx(0.74759792025, abs=1e-9)
    assert expected_renyi_centres(0.01) == pytest.approx(0.74759792025 * 200 * math.pi, rel=1e-9)


@pytest.mark.slow
def test_a_hundred_thousand_tokens():
    points = ms.uniform(100_000, 2, seed=0).points
    delta = 0.002
    found, expected = len(renyi_centres(points, delta)), expected_renyi_centres(delta, 100_000)
    # The variance of the parked number is about 0.038 per car length.
    assert found == pytest.approx(expected, abs=5 * math.sqrt(0.038 * 2 * math.pi / delta))


def test_bad_arguments_are_named():
    with pytest.raises(BadInput, match="delta"):
        renyi_centres([[0.0, 1.0]], 4.0)
    with pytest.raises(BadInput, match="delta"):
        expected_renyi_centres(2.0)
