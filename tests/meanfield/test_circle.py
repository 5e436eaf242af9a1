"""Intervals of the circle: mass, splitting, merging, quadrature, and the softmax over them."""

import numpy as np
import pytest
from scipy import integrate
from scipy.special import logsumexp

import metastable as ms
from metastable.flow.meanfield.circle import SPREAD, Intervals, softmax_means, tile
from metastable.flow.meanfield.flow import Turning
from tests.reference import softmax_mean


def log_mass_up_to(cells, angle):
    """Log-mass from the first vertex to the given one, which must be a vertex."""
    return logsumexp(cells.log_masses[: int(np.flatnonzero(cells.angles == angle)[0])])


def deep_tail(n=300, seed=0):
    """Intervals of very different lengths, with masses from 1 down to e^-2000."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(-12, 0, n))
    angles = np.concatenate([[0.0], 2 * np.pi * np.cumsum(lengths / lengths.sum())[:-1]])
    return Intervals(angles, -2000 * rng.random(n) ** 2)


@pytest.mark.parametrize("seed", range(5))
def test_splitting_and_merging_conserve_mass_everywhere(seed):
    cells = deep_tail(seed=seed)
    before = cells.copy()
    assert cells.refine(1e-3)
    assert cells.lengths.max() <= 1e-3
    assert cells.coarsen(5e-3)
    assert cells.refine(2e-3)
    assert abs(logsumexp(cells.log_masses)) < 1e-12
    kept = np.intersect1d(before.angles, cells.angles)[1:]
    assert len(kept) > 20
    for angle in kept:
        assert abs(log_mass_up_to(cells, angle) - log_mass_up_to(before, angle)) < 1e-11


def test_many_rounds_of_splitting_lose_nothing():
    cells = Intervals(np.linspace(0, 2 * np.pi, 40, endpoint=False), np.linspace(0, -800, 40))
    for _ in range(200):
        cells.refine(0.01)
        cells.coarsen(0.3)
    assert abs(logsumexp(cells.log_masses)) < 1e-12


def test_a_dense_interval_is_not_spread_over_a_thin_one():
    cells = Intervals(np.array([0.0, 0.004, 0.008, 3.0]), np.array([0.0, -50.0, -60.0, -70.0]))
    assert not cells.coarsen(0.01)
    assert cells.coarsen(1.01 * 0.008 / SPREAD)
    assert len(cells.log_masses) == 3


def test_faint_intervals_are_merged_and_not_split():
    cells = Intervals(np.linspace(0, 2 * np.pi, 64, endpoint=False), np.where(np.arange(64) < 32, 0.0, -500.0))
    assert cells.coarsen(1e-6, faintest=-400.0)
    assert len(cells.log_masses) == 33
    assert cells.refine(0.2, faintest=-400.0) is False
    assert abs(cells.log_masses.min() - (-500 + np.log(32) - np.log(32))) < 1e-9


def test_moving_the_points_keeps_the_order_of_the_angles_over_many_turns():
    cells = Intervals(np.linspace(0, 2 * np.pi, 30, endpoint=False), np.zeros(30))
    for _ in range(50):
        c, s = np.cos(0.3), np.sin(0.3)
        cells.points = cells.points @ np.array([[c, s], [-s, c]])
    assert np.allclose(cells.angles, np.linspace(0, 2 * np.pi, 30, endpoint=False) + 15.0)
    assert (np.diff(cells.angles) > 0).all()


def smooth(theta):
    return 3 * np.cos(theta) + np.sin(2 * theta)


def smooth_law(x):
    return smooth(np.arctan2(x[:, 1], x[:, 0]))


def test_starting_masses_are_integrals_of_the_density():
    cells = tile(smooth_law, np.array([0.3, 2.0]), 0.2)
    assert {0.3, 2.0} <= set(cells.angles)
    total = integrate.quad(lambda t: np.exp(smooth(t)), 0, 2 * np.pi, epsabs=1e-13)[0]
    for a, length, mass in list(zip(cells.angles, cells.lengths, cells.log_masses, strict=True))[::5]:
        exact = integrate.quad(lambda t: np.exp(smooth(t)), a, a + length, epsabs=1e-14)[0] / total
        assert abs(mass - np.log(exact)) < 1e-9


def test_a_narrow_starting_law_is_resolved():
    cells = tile(lambda x: -0.5e10 * ((x - [0.6, 0.8]) ** 2).sum(axis=1), np.array([0.0]), 0.5)
    x, w = cells.quadrature()
    mean = np.exp(w) @ x
    assert np.abs(mean - [0.6, 0.8]).max() < 1e-5, "off by more than the width of the law"


def test_split_masses_converge_at_third_order():
    """Halving all intervals against the exact masses, away from the extrema where the limiter acts."""
    errors = []
    for n in (40, 80, 160):
        cells = tile(smooth_law, np.array([0.0]), 2 * np.pi / n * 1.0001)
        fine = cells.copy()
        fine.refine(cells.lengths.max() * 0.7)
        exact = tile(smooth_law, fine.angles, 1.0)
        away = (fine.angles > 1.0) & (fine.angles < 1.8)
        errors.append(np.abs(fine.log_masses - exact.log_masses)[away].max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders.min() > 2.6


def test_quadrature_sees_integrals_at_second_order_or_better():
    exact = integrate.quad(lambda t: np.cos(5 * t) * np.exp(smooth(t)), 0, 2 * np.pi, epsabs=1e-13)[0]
    exact /= integrate.quad(lambda t: np.exp(smooth(t)), 0, 2 * np.pi, epsabs=1e-13)[0]
    errors = []
    for n in (50, 100, 200, 400):
        x, w = tile(smooth_law, np.array([0.0]), 2 * np.pi / n).quadrature()
        errors.append(abs(np.exp(w) @ np.cos(5 * np.arctan2(x[:, 1], x[:, 0])) - exact))
    assert errors[-1] < 1e-5
    assert np.log2(errors[0] / errors[-1]) / 3 > 1.9


@pytest.mark.parametrize("beta", [0.5, 30.0, 1000.0, 1e5])
def test_softmax_over_intervals_is_the_literal_one(beta):
    cells = deep_tail(120, seed=1)
    x, w = cells.quadrature()
    u = beta * cells.points[::7] @ np.array([[1.3, 0.2], [-0.4, 0.7]])
    means, spread, logs = softmax_means(u, x, w)
    assert np.abs(logs - logsumexp(u @ x.T + w, axis=1)).max() <= 1e-11 * max(1.0, beta)
    for row, mean, (xx, xy, yy) in zip(u, means, spread, strict=True):
        shares = np.exp(x @ row + w - (x @ row + w).max())
        # The reference takes plain weights: those of the scores themselves, for the query 0.
        expected = softmax_mean([0.0, 0.0], x.tolist(), shares.tolist())
        assert np.abs(mean - expected).max() < 1e-11
        around = (x - expected).T @ ((x - expected) * shares[:, None]) / shares.sum()
        assert np.abs(np.array([[xx, xy], [xy, yy]]) - around).max() < 1e-11


@pytest.mark.parametrize("beta", [30.0, 1e4])
def test_the_order_of_queries_and_points_does_not_matter(beta):
    """Queries in disorder are too far apart for a group, and points in disorder for a block."""
    cells = deep_tail(150, seed=2)
    x, w = cells.quadrature()
    u = beta * cells.points @ np.array([[1.3, 0.2], [-0.4, 0.7]])
    rng = np.random.default_rng(0)
    queries, points = rng.permutation(len(u)), rng.permutation(len(x))
    ordered, mixed = softmax_means(u, x, w), softmax_means(u[queries], x[points], w[points])
    for one, other in zip(ordered, mixed, strict=True):
        np.testing.assert_allclose(other, one[queries], atol=1e-11 * max(1.0, np.abs(one).max()))


@pytest.mark.parametrize("beta", [3.0, 200.0])
def test_angular_velocities_and_their_slopes_are_the_literal_ones(beta):
    """Against P_x V m at each vertex, and its difference quotient while the cells stay."""
    head = ms.Head.from_interaction([[1.4, 0.3], [-0.1, 0.7]], [[1.2, -0.2], [0.4, 0.5]])
    cells = deep_tail(60, seed=3)
    x, w = cells.quadrature()
    turning = Turning(head, beta, cells.copy())

    def velocity(angle):
        place = np.array([np.cos(angle), np.sin(angle)])
        scores = beta * (head.B.numpy().T @ place) @ x.T + w
        shares = np.exp(scores - scores.max())
        return head.V.numpy() @ (shares @ x / shares.sum()) @ [-place[1], place[0]]

    found = turning(cells.angles)
    np.testing.assert_allclose(found, [velocity(angle) for angle in cells.angles], atol=1e-11)
    h = 1e-5 / beta
    slopes = [(velocity(angle + h) - velocity(angle - h)) / (2 * h) for angle in cells.angles]
    np.testing.assert_allclose(turning.rates, np.minimum(slopes, 0.0), atol=1e-4 * beta)
    assert (turning.rates < -0.1).any()
