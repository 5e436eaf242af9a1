"""The moving triangulation: a valid surface, exact mass, no leaks, and the exact transport of known flows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.special import ive

import metastable as ms
from metastable.errors import BadInput
from metastable.flow.exact import zero_temperature_flow
from metastable.flow.meanfield.sphere.triangles import Triangles
from metastable.transport import two_atoms

from .driver import Driver, circle_of, side_masses, to_atoms


def uniform(x):
    return np.zeros(len(x))


def assert_whole(cells):
    """A closed surface with the topology of the sphere, every triangle the right way up, covering it once."""
    points, corners, across = cells.vertices, cells.corners, cells.across
    edges = np.sort(np.stack([np.roll(corners, -1, axis=1), np.roll(corners, -2, axis=1)], axis=2), axis=2)
    kinds, times = np.unique(edges.reshape(-1, 2), axis=0, return_counts=True)
    assert (times == 2).all()
    assert len(points) - len(kinds) + len(corners) == 2
    assert np.array_equal(np.unique(corners), np.arange(len(points)))
    for i in range(3):
        back = across[across[:, i]] == np.arange(len(corners))[:, None]
        assert np.array_equal(edges[across[:, i]][back], edges[:, i])
    a, b, c = (points[corners[:, i]] for i in range(3))
    volume = np.einsum("ij,ij->i", a, np.cross(b, c))
    angle = 2 * np.arctan2(volume, 1 + (a * b).sum(axis=1) + (b * c).sum(axis=1) + (c * a).sum(axis=1))
    assert volume.min() > 0
    assert angle.sum() == pytest.approx(4 * math.pi, abs=1e-9)
    assert np.allclose(np.linalg.norm(points, axis=1), 1, atol=1e-12)
    assert np.isfinite(cells.log_masses).all()


def total(cells):
    return np.logaddexp.reduce(cells.log_masses)


def lengths(cells):
    places = cells.points[cells.corners]
    return np.linalg.norm(places - np.roll(places, 1, axis=1), axis=2)


def mean_of(cells):
    points, logs = cells.quadrature()
    return np.exp(logs) @ points


def softmax_means(cells, queries):
    points, logs = cells.quadrature()
    scores = queries @ points.T + logs
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ points / weights.sum(axis=1, keepdims=True)


def vmf_mean(u):
    k = np.linalg.norm(u, axis=-1, keepdims=True)
    return (1 / np.tanh(k) - 1 / k) * u / k


def moved(cells, matrix):
    """The vertices under x → Ax/|Ax|."""
    points = cells.points @ matrix.T
    cells.points = points / np.linalg.norm(points, axis=1, keepdims=True)


def test_first_triangulation_has_the_masses_of_its_density():
    axis, kappa = np.array([2.0, -1.0, 2.0]) / 3, 6.0
    cells = Triangles.of(lambda x: kappa * x @ axis, 0.2, circle=axis)
    assert_whole(cells)
    assert lengths(cells).max() <= 0.2
    assert abs(total(cells)) < 1e-12
    assert side_masses(cells)[0] == pytest.approx(math.expm1(kappa) / (math.exp(kappa) - math.exp(-kappa)), abs=1e-10)
    heights = cells.points[cells.corners] @ axis
    assert (heights * cells.labels[:, None]).min() > -1e-15
    assert mean_of(cells) == pytest.approx(vmf_mean(kappa * axis), abs=1e-5)


def test_steep_density_is_integrated_by_smaller_pieces():
    axis, kappa = np.array([0.0, 0.6, 0.8]), 100.0
    cells = Triangles.of(lambda x: kappa * x @ axis, 0.3)
    points, logs = cells.quadrature()
    height = 1 - np.exp(logs) @ points @ axis
    assert height == pytest.approx(1 / kappa, abs=2e-3)


@pytest.mark.parametrize("mu", [np.zeros(3), np.array([2.0, -4.0, 4.0])], ids=["uniform", "von Mises–Fisher"])
def test_quadrature_has_order_four(mu):
    beta = 30.0
    x = np.random.default_rng(0).standard_normal((40, 3))
    u = beta * x / np.linalg.norm(x, axis=1, keepdims=True)
    sizes, errors = [], []
    for h in (1.2, 0.8, 0.5, 0.35):
        cells = Triangles.of(lambda y: y @ mu, h / math.sqrt(beta))
        sizes.append(len(cells.corners) ** -0.5)
        errors.append(np.abs(softmax_means(cells, u) - vmf_mean(u + mu)).max())
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope > 3.5
    assert errors[0] < 1e-4


@pytest.mark.parametrize(
    ("kappa", "longest", "fewer"), [(20.0, 0.06, 2_500), pytest.param(200.0, 0.03, 10_000, marks=pytest.mark.slow)]
)
def test_splits_and_merges_conserve_mass_and_centre(kappa, longest, fewer):
    axis = np.array([0.6, 0.0, 0.8])
    cells = Triangles.of(lambda x: kappa * (x @ axis - 1), 0.2, circle=np.array([0.0, 1.0, 0.0]))
    start, centre = side_masses(cells), mean_of(cells)
    assert cells.refine(longest)
    assert lengths(cells).max() <= longest
    assert_whole(cells)
    assert abs(total(cells)) < 1e-12
    assert mean_of(cells) == pytest.approx(centre, abs=3e-4)
    many, centre = len(cells.corners), mean_of(cells)
    cells.longest = 1.0
    assert cells.coarsen(2 * longest)
    assert_whole(cells)
    assert len(cells.corners) < many - fewer
    assert abs(total(cells)) < 1e-12
    assert side_masses(cells) == pytest.approx(start, abs=1e-12)
    assert mean_of(cells) == pytest.approx(centre, abs=3e-4)
    assert not cells.refine(2.0)


def test_constant_density_stays_constant():
    cells = Triangles.of(uniform, 0.12)
    cells.refine(0.06)
    cells.longest = 1.0
    cells.coarsen(0.05)
    a, b, c = (cells.points[cells.corners[:, i]] for i in range(3))
    volume = np.einsum("ij,ij->i", a, np.cross(b, c))
    areas = 2 * np.arctan2(volume, 1 + (a * b).sum(axis=1) + (b * c).sum(axis=1) + (c * a).sum(axis=1))
    assert np.abs(cells.log_masses - np.log(areas / (4 * math.pi))).max() < 0.03


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.5, 4.0]))
def test_random_flows_leave_a_valid_surface(seed, strength):
    rng = np.random.default_rng(seed)
    direction, pole = rng.standard_normal(3), rng.standard_normal(3)
    cells = Triangles.of(lambda x: 30 * x @ direction, 0.3, circle=pole)
    start, steps = side_masses(cells), 12
    for _ in range(steps):
        matrix = expm(strength / steps * rng.standard_normal((3, 3)))
        moved(cells, matrix)
        cells.refine(0.3)
        cells.coarsen(0.1)
        assert_whole(cells)
    assert lengths(cells).max() <= 0.3
    assert len(cells.corners) < 4 * math.pi / (0.43 * 0.1**2)
    assert abs(total(cells)) < 1e-12
    assert side_masses(cells) == pytest.approx(start, abs=1e-12)


def test_tail_of_a_saddle_is_exact_and_nothing_leaks_into_it():
    """Under x → e^{tA}x/|e^{tA}x|, A = diag(0, −1/2, 1), the mass left in |x₃| < 1/2 is known and falls like e^{-t}.

    x₃² e^{2t} < (x₁² + x₂² e^{-t})/3 at the start; for a uniform law, with φ the longitude and
    q = (cos²φ + sin²φ e^{-t}) e^{-2t}/3, that is the mean of √(q/(1 + q)) over φ. While cells resolve the ridge that
    forms on x₂ = 0 the mass is right to a few per cent; its passing from areas to segments costs some tens of per
    cent, once. A leak from the clusters at ±e₃ would be a factor e^{t}.
    """
    cells = Triangles.of(uniform, 0.15, circle=np.array([0.0, 0.0, 1.0]))
    step, phi = expm(0.25 * np.diag([0.0, -0.5, 1.0])), np.linspace(0, 2 * math.pi, 4001)[:-1]
    counts = []
    for k in range(1, 101):
        moved(cells, step)
        cells.refine(0.15)
        cells.coarsen(0.045)
        counts.append(len(cells.corners))
        if k % 20 == 0:
            t = 0.25 * k
            q = (np.cos(phi) ** 2 + np.sin(phi) ** 2 * math.exp(-t)) * math.exp(-2 * t) / 3
            points, logs = cells.quadrature()
            left = np.logaddexp.reduce(logs[np.abs(points[:, 2]) < 0.5])
            assert left == pytest.approx(math.log(np.sqrt(q / (1 + q)).mean()), abs=0.02 if k == 20 else 0.5)
    assert_whole(cells)
    assert abs(total(cells)) < 1e-12
    assert side_masses(cells) == pytest.approx([0.5, 0.5], abs=1e-12)
    assert max(counts[40:]) < 1.3 * min(counts[40:])


def test_zero_temperature_transport_agrees_with_a_large_cloud():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.0, 0.8, 0.6], seed=3)
    axis = np.array([0.3, -0.5, 0.8])
    cells = Triangles.of(lambda x: 2 * x @ axis, 0.12, circle=circle_of(head))
    masses = side_masses(cells)
    grid = ms.fibonacci(100_000)
    weights = torch.exp(2 * grid.points @ torch.tensor(axis))
    cloud = ms.Cloud(grid.points, weights / weights.sum())
    times = torch.arange(1, 6) * 0.75
    frames = zero_temperature_flow(head, cloud, times)
    up = (cloud.points.numpy() @ circle_of(head)) > 0
    assert masses[0] == pytest.approx(float(cloud.weights[up].sum()), abs=1e-4)
    e = head.theory().basis[:, 0].numpy()
    for frame in frames:
        for _ in range(3):
            here = ms.Cloud(torch.from_numpy(cells.points))
            cells.points = zero_temperature_flow(head, here, torch.tensor([0.25]))[0].numpy()
            cells.refine(0.12)
            cells.coarsen(0.036)
        exact = two_atoms(frame, cloud.weights, np.stack([e, -e]), masses).value
        assert to_atoms(cells, head, masses) == pytest.approx(exact, rel=2e-3)
    assert side_masses(cells) == pytest.approx(masses, abs=1e-12)
    assert_whole(cells)


def rings(head, beta, until, n=300, step=0.05):
    """The same flow for a law that is symmetric about the first axis, by rings: W₂ to ±e₁.

    Rings at polar angles θ with masses; on the ring of x the score of the ring of y is
    β(b₁ cos θ cos θ' + b₂ sin θ sin θ' cos φ), and the mean over φ gives Bessel functions.
    """
    (b1, b2), (v1, v2) = (np.diag(m.numpy())[:2] for m in (head.B, head.V))
    edges = np.linspace(0, math.pi, n + 1)
    masses, theta = -0.5 * np.diff(np.cos(edges)), 0.5 * (edges[1:] + edges[:-1])

    def rate(theta):
        z, r = np.cos(theta), np.sin(theta)
        across = beta * b2 * np.outer(r, r)
        scores = beta * b1 * np.outer(z, z) + across
        weights = np.exp(scores - scores.max(axis=1, keepdims=True)) * masses
        even, odd = weights * ive(0, across), weights * ive(1, across)
        return (-np.sin(theta) * v1 * (even @ z) + np.cos(theta) * v2 * (odd @ r)) / even.sum(axis=1)

    for _ in range(round(until / step)):
        k1 = rate(theta)
        theta = theta + step * rate(theta + 0.5 * step * k1)
    return math.sqrt(masses @ (2 - 2 * np.abs(np.cos(theta))))


def test_symmetric_problem_agrees_with_rings():
    beta, until = 10.0, 0.75
    head = ms.Head.from_interaction(np.diag([1.5, 0.8, 0.8]), np.diag([1.2, 0.7, 0.7]))
    cells = Triangles.of(uniform, 0.8 / math.sqrt(beta), circle=np.array([1.0, 0.0, 0.0]))
    driver = Driver(head, beta, cells, h=0.8, tol=1e-4)
    assert list(driver.steps(until))[-1] == pytest.approx(until)
    assert to_atoms(cells, head, np.array([0.5, 0.5])) == pytest.approx(rings(head, beta, until), rel=2e-3)
    assert_whole(cells)


def test_flat_triangles_are_cut_without_losing_mass():
    cells = Triangles.of(uniform, 0.4)
    moved(cells, np.diag([1.0, 1.0, 1e-13]))
    assert cells.refine(0.1)
    assert abs(total(cells)) < 1e-12
    assert np.isfinite(cells.quadrature()[0]).all()


def test_an_empty_half_stays_empty():
    axis = np.array([1.0, 1.0, 0.0])
    with np.errstate(divide="ignore"):
        cells = Triangles.of(lambda x: np.log(x @ axis > 0), 0.3, circle=axis)
    assert np.array_equal(cells.log_masses == -np.inf, cells.labels < 0)
    for _ in range(10):
        moved(cells, np.diag([1.0, 1.5, 1.2]))
        cells.refine(0.3)
        cells.coarsen(0.1)
    assert np.array_equal(cells.log_masses == -np.inf, cells.labels < 0)
    assert abs(total(cells)) < 1e-12
    points, logs = cells.quadrature()
    assert np.isfinite(points).all()
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-12)


def test_long_run_of_changing_flows():
    """Some ten thousand splits and merges, masses that come to differ by a factor e^100 and more."""
    rng = np.random.default_rng(5)
    cells = Triangles.of(lambda x: 100 * x @ np.array([0.0, 0.6, 0.8]), 0.2, circle=rng.standard_normal(3))
    start, changed = side_masses(cells), 0
    for k in range(80):
        if k % 20 == 0:
            flow = expm(0.1 * rng.standard_normal((3, 3)))
        moved(cells, flow)
        before = len(cells.corners)
        cells.refine(0.2)
        between = len(cells.corners)
        cells.coarsen(0.06)
        changed += 2 * between - before - len(cells.corners)
        assert cells.folded == 0
    assert_whole(cells)
    assert changed > 10_000
    assert np.ptp(cells.log_masses) > 100
    assert abs(total(cells)) < 1e-12
    assert side_masses(cells) == pytest.approx(start, abs=1e-12)


def test_copy_shares_nothing():
    cells = Triangles.of(uniform, 0.5)
    other = cells.copy()
    other.refine(0.2)
    moved(other, np.diag([1.0, 2.0, 3.0]))
    assert len(cells.corners) < len(other.corners)
    assert_whole(cells)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Triangles.of(uniform, 1e-6), "longest is 1e-06: that takes more than"),
        (lambda: Triangles.of(lambda x: np.full(len(x), np.inf), 0.3), "log_density is infinite or not a number"),
        (lambda: Triangles.of(lambda x: np.full(len(x), -np.inf), 0.3), "log_density must be finite somewhere"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(BadInput) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
