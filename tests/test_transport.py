"""Distances against a linear program, closed forms and the laws that every distance obeys."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog

from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.transport import (
    Distance,
    bounds,
    coupling,
    noise_floor,
    simplex,
    sliced,
    to_limit,
    two_atoms,
    wasserstein,
)

ORDERS = [1, 2]
COSTS = ["chordal", "geodesic"]
few = settings(max_examples=25, deadline=None)


def ground(x, y, p, cost):
    """c(x, y)^p of two tokens, from the definition."""
    if cost == "chordal":
        return math.dist(x, y) ** p
    # Not by acos, which is wrong by 1e-8 where the angle is small or nearly π.
    if sum(a * b for a, b in zip(x, y, strict=True)) >= 0:
        return (2 * math.asin(min(1.0, math.dist(x, y) / 2))) ** p
    return (math.pi - 2 * math.asin(min(1.0, math.dist(x, [-b for b in y]) / 2))) ** p


def literal(x, a, y, b, p, cost):
    """W_p^p as a linear program: minimise Σ γ_ij c_ij with row sums a and column sums b."""
    n, m = len(x), len(y)
    costs = [ground(x[i], y[j], p, cost) for i in range(n) for j in range(m)]
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    # One constraint follows from the others; with rounded sums it would contradict them.
    sums, totals = np.vstack([rows, columns[1:]]), np.concatenate([a, b[1:]])
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(costs, A_eq=sums, b_eq=totals, method="highs", options=tight)
    assert found.success, found.message
    return max(found.fun, 0.0)


def close(total):
    """Up to the tolerance of the linear program, which holds for the p-th power."""
    return pytest.approx(total, rel=1e-7, abs=1e-8)


def of(cloud):
    return cloud.points.numpy(), cloud.weights.numpy()


def between(a, b, p, cost):
    return literal(*of(a), *of(b), p, cost)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def random_cloud(rng, n, d):
    """Spread or bunched points; equal, uneven or very uneven weights (not more so than the linear program takes)."""
    points = unit(rng.normal(size=(n, d)) + rng.choice([0.0, 2.0]) * rng.normal(size=d))
    kind = rng.integers(3)
    weights = [np.full(n, 1.0), rng.random(n) + 0.05, np.exp(-rng.uniform(0, 8, n))][kind]
    return Cloud(points, weights=weights)


@st.composite
def clouds(draw, count=2, largest=9):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(2, 5))
    return [random_cloud(rng, draw(st.integers(1, largest)), d) for _ in range(count)]


# --- the exact distance


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1, 2, 3.5])
@given(pair=clouds())
@few
def test_exact_distance_is_the_linear_program(p, cost, pair):
    found = wasserstein(*pair, p=p, cost=cost, method="exact")
    assert found.exact
    assert found.value**p == close(between(*pair, p, cost))


@pytest.mark.parametrize("p", ORDERS)
def test_exact_distance_with_equal_weights_is_the_assignment_problem(p):
    rng = np.random.default_rng(5)
    x, y = unit(rng.normal(size=(120, 4))), unit(rng.normal(size=(120, 4)))
    costs = np.array([[ground(u, v, p, "chordal") for v in y] for u in x])
    best = costs[linear_sum_assignment(costs)].mean() ** (1 / p)
    found = wasserstein(Cloud(x), Cloud(y), p=p)
    assert found.method == "network simplex"
    assert found.value == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("angle", [0.0, 1e-10, 1e-3, 1.0, math.pi / 2, 3.0, math.pi - 1e-10, math.pi])
@pytest.mark.parametrize("p", [1, 2, 5])
def test_dirac_to_dirac(angle, p):
    a, b = Cloud([[1.0, 0.0]]), Cloud([[math.cos(angle), math.sin(angle)]])
    assert wasserstein(a, b, p, "chordal").value == pytest.approx(2 * math.sin(angle / 2), rel=1e-9, abs=1e-16)
    assert wasserstein(a, b, p, "geodesic").value == pytest.approx(angle, rel=1e-9, abs=1e-16)


def test_two_diracs_that_exchange_mass():
    atoms = [[1.0, 0.0], [0.0, 1.0]]
    found = wasserstein(Cloud(atoms, weights=[0.8, 0.2]), Cloud(atoms, weights=[0.5, 0.5]), p=2)
    assert found.value == pytest.approx(math.sqrt(0.3 * 2.0), rel=1e-12)


@pytest.mark.parametrize("n", [3, 7, 40])
@pytest.mark.parametrize("p", ORDERS)
def test_turned_polygon_moves_each_token_by_the_angle(n, p):
    turn = 0.9 * math.pi / n  # less than half a side: the nearest token is the right one
    angles = 2 * math.pi * np.arange(n) / n
    a, b = (Cloud(np.stack([np.cos(s), np.sin(s)], axis=1)) for s in (angles, angles[::-1] + turn))
    assert wasserstein(a, b, p, "geodesic").value == pytest.approx(turn, rel=1e-9)
    assert wasserstein(a, b, p, "chordal").value == pytest.approx(2 * math.sin(turn / 2), rel=1e-9)


@pytest.mark.parametrize("cost", COSTS)
@given(triple=clouds(count=3), p=st.sampled_from(ORDERS))
@few
def test_distance_is_a_metric(cost, triple, p):
    a, b, c = triple

    def w(one, other):
        return wasserstein(one, other, p, cost).value

    assert w(a, b) == pytest.approx(w(b, a), rel=1e-9, abs=1e-9)
    assert w(a, c) <= w(a, b) + w(b, c) + 1e-9
    assert w(a, a) < 1e-7


@given(pair=clouds(), seed=st.integers(0, 100))
@few
def test_order_of_tokens_and_rotations_do_not_matter(pair, seed):
    a, b = pair
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(a))
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(a.dim, a.dim)))[0])
    same = Cloud(a.points[shuffled] @ turn.T, log_weights=a.log_weights[shuffled])
    found = wasserstein(same, Cloud(b.points @ turn.T, log_weights=b.log_weights)).value
    assert found == pytest.approx(wasserstein(a, b).value, rel=1e-8, abs=1e-8)


@given(pair=clouds(), p=st.sampled_from(ORDERS))
@few
def test_a_token_of_weight_2w_is_two_of_weight_w_and_weight_0_is_nothing(pair, p):
    a, b = pair
    w = a.weights.clone()
    w[0] /= 2
    split = Cloud(torch.cat([a.points, a.points[:1], -b.points[:1]]), weights=torch.cat([w, w[:1], torch.zeros(1)]))
    for method in ("exact", "bounds"):
        found = wasserstein(split, b, p, method=method)
        assert found.lower - 1e-8 <= wasserstein(a, b, p).value <= found.upper + 1e-8
    assert wasserstein(split, b, p).value == pytest.approx(wasserstein(a, b, p).value, rel=1e-8, abs=1e-8)


def test_simplex_sees_distances_of_1e_minus_9_inside_a_cluster():
    rng = np.random.default_rng(0)
    shifts = 1e-9 * rng.normal(size=(2, 60, 2))
    a, b = (Cloud(np.concatenate([s, np.ones((60, 1))], axis=1)) for s in shifts)
    scaled = ((shifts[0][:, None] - shifts[1][None]) ** 2).sum(-1) * 1e18
    best = 1e-9 * math.sqrt(scaled[linear_sum_assignment(scaled)].mean())
    assert wasserstein(a, b).value == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_simplex_loses_no_mass_between_clusters(seed):
    rng, n = np.random.default_rng(seed), 300
    side, w, order = rng.choice([-1.0, 1.0], size=n), rng.dirichlet(np.ones(n)), rng.permutation(n)
    a, b = (Cloud(np.c_[1e-9 * rng.normal(size=(n, 2)), side], weights=w) for _ in range(2))
    found = wasserstein(a, Cloud(b.points[order], log_weights=b.log_weights[order]))
    assert found.method == "network simplex"
    assert found.value < 2 * coupling(a, b).value < 5e-9  # 1e-16 of mass astray would be 2e-8


def test_a_token_of_weight_0_is_not_an_atom():
    a = Cloud([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], weights=[1, 1, 0])
    b = Cloud(np.random.default_rng(0).normal(size=(20, 2)))
    assert wasserstein(a, b).method == wasserstein(b, a).method == "two atoms"
    with np.errstate(all="raise"):
        assert math.isfinite(wasserstein(a, b, method="bounds").lower)


def test_a_solver_that_gives_up_leaves_bounds(monkeypatch):
    rng = np.random.default_rng(2)
    a, b = Cloud(rng.normal(size=(40, 3))), Cloud(rng.normal(size=(50, 3)))
    truth = wasserstein(a, b).value
    monkeypatch.setattr(simplex, "ITERATIONS", 1)
    found = wasserstein(a, b, method="exact")
    assert not found.exact
    assert "bounds" in found.method
    assert found.lower <= truth <= found.upper


def test_the_solver_leaves_the_warning_filters_of_the_host_alone(monkeypatch):
    """`catch_warnings` changes the filters of the whole process. The solver neither uses it nor warns."""
    monkeypatch.setattr(warnings, "catch_warnings", None)
    monkeypatch.setattr(warnings, "warn", None)
    rng = np.random.default_rng(2)
    a, b = Cloud(rng.normal(size=(40, 3))), Cloud(rng.normal(size=(50, 3)))
    assert wasserstein(a, b).exact
    monkeypatch.setattr(simplex, "ITERATIONS", 1)
    assert "bounds" in wasserstein(a, b).method


def test_too_many_pairs_become_bounds_or_a_clear_refusal(monkeypatch):
    rng = np.random.default_rng(3)
    a, b = Cloud(rng.normal(size=(40, 3))), Cloud(rng.normal(size=(50, 3)))
    monkeypatch.setattr(simplex, "PAIRS", 1999)
    assert "bounds" in wasserstein(a, b).method
    with pytest.raises(BadInput, match="method='bounds'"):
        wasserstein(a, b, method="exact")
    monkeypatch.setattr(simplex, "PAIRS", 2000)
    assert wasserstein(a, b).exact
    monkeypatch.setattr(simplex, "_free_memory", lambda: 1000.0)
    assert "bounds" in wasserstein(a, b).method


# --- two atoms


def fill(costs, w, masses, p):
    """Two atoms by sorting all tokens and filling the first atom, one token after the other.

    costs : c(x, a)^p of each token and both atoms
    """
    left, total = masses[0] / sum(masses) * math.fsum(w), []
    for i in sorted(range(len(costs)), key=lambda i: costs[i][0] - costs[i][1]):
        first = min(w[i], left)
        left -= first
        total += [first * costs[i][0], (w[i] - first) * costs[i][1]]
    return (math.fsum(total) / math.fsum(w)) ** (1 / p)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", ORDERS)
@given(pair=clouds(), share=st.floats(0, 1))
@few
def test_two_atoms_is_the_linear_program_and_the_simplex(p, cost, pair, share):
    x, w = of(pair[0])
    rng = np.random.default_rng(len(x))
    atoms, masses = unit(rng.normal(size=(2, x.shape[1]))), np.array([share, 1 - share])
    found = two_atoms(x, w, atoms, masses, p, cost)
    assert found.exact
    assert found.value**p == close(literal(x, w, atoms, masses, p, cost))
    third = Cloud(np.vstack([atoms, -atoms[:1]]), weights=[share, 1 - share, 1e-13])  # too many atoms for the shortcut
    general = simplex.simplex(*bounds.two_measures(pair[0], third), float(p), cost)
    assert found.value**p == close(general.value**p)


@pytest.mark.parametrize("shape", ["spread", "clusters", "three keys", "one point", "sorted"])
def test_selection_finds_what_sorting_finds(shape):
    rng = np.random.default_rng(7)
    x = unit(rng.normal(size=(12_000, 2)))
    if shape == "clusters":
        x = unit(np.stack([1e-3 * x[:, 0], np.sign(x[:, 1])], axis=1))
    elif shape == "three keys":
        x = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]])[rng.choice(3, p=[0.05, 0.05, 0.9], size=12_000)]
    elif shape == "one point":
        x[:] = x[0]
    elif shape == "sorted":
        x = x[np.argsort(x[:, 1])]
    atoms = [[0.0, 1.0], [0.6, -0.8]]
    costs = [[ground(token, atom, 2, "chordal") for atom in atoms] for token in x.tolist()]
    weights = (np.full(len(x), 1 / len(x)), rng.random(len(x)), np.exp(-rng.uniform(0, 60, len(x))))
    for w, share in itertools.product(weights, [0.0, 0.1234, 0.5, 1.0]):
        masses = [share, 1 - share]
        found = two_atoms(x, w, atoms, masses).value
        assert found == pytest.approx(fill(costs, w.tolist(), masses, 2), rel=1e-9)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("kind", ["equal", "uneven", "graded"])
def test_two_atoms_is_accurate_at_distance_1e_minus_9(cost, p, kind):
    rng, n = np.random.default_rng(11), 100_000
    side = rng.choice([-1.0, 1.0], size=n)
    offset = 1e-9 * rng.normal(size=(n, 2))
    weights = {"equal": np.full(n, 1 / n), "uneven": rng.random(n), "graded": np.exp(-rng.uniform(0, 200, n))}[kind]
    weights /= weights.sum()
    # Summed by another routine and in another order than the code does.
    masses = [math.fsum(weights[side > 0][::-1]), math.fsum(weights[side < 0])]
    x = np.concatenate([offset, side[:, None]], axis=1)
    found = two_atoms(x, weights, [[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], masses, p, cost)
    expected = (weights @ np.linalg.norm(offset, axis=1) ** p) ** (1 / p)
    assert found.value == pytest.approx(expected, rel=1e-6)


# --- bounds, couplings, slices


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", [1, 2, 3])
@given(pair=clouds(largest=40), same=st.booleans(), levels=st.integers(0, 4))
@few
def test_bounds_enclose_the_exact_distance(p, cost, pair, same, levels):
    a, b = pair
    b = Cloud(-a.points.flip(1), log_weights=a.log_weights) if same else b
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "LEVELS", levels)  # few blocks, so that the bounds have something to lose
        found = wasserstein(a, b, p, cost, method="bounds")
    truth = wasserstein(a, b, p, cost, method="exact").value
    assert found.lower <= truth * (1 + 1e-9) + 1e-8
    assert truth <= found.upper * (1 + 1e-9) + 1e-8
    assert found.value == found.upper


@pytest.mark.parametrize(("p", "cost"), [(1, "chordal"), (2, "chordal"), (2, "geodesic")])
def test_bounds_are_worth_having(p, cost):
    rng = np.random.default_rng(13)
    a = Cloud(rng.normal(size=(1500, 3)))
    b = Cloud(rng.normal(size=(1200, 3)) + np.eye(3)[0], weights=rng.random(1200) + 0.1)
    truth, found = wasserstein(a, b, p, cost).value, wasserstein(a, b, p, cost, method="bounds")
    assert 0.8 * truth < found.lower <= truth <= found.upper < 1.05 * truth


def test_bounds_of_a_cloud_with_itself_are_zero():
    a = Cloud(np.random.default_rng(0).normal(size=(500, 3)))
    found = wasserstein(a, a, method="bounds")
    assert (found.lower, found.upper) == (0.0, 0.0)


@given(pair=clouds())
@few
def test_block_plan_is_a_coupling(pair):
    mu, nu = (m.positive() for m in bounds.two_measures(*pair))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "LEVELS", 2)
        i, j, mass, _ = bounds._block_plan(mu, nu, 2.0)
    for index, m in ((i, mu), (j, nu)):
        np.testing.assert_allclose(np.bincount(index, mass, len(m.weights)), m.weights, atol=1e-14)


@pytest.mark.parametrize("cost", COSTS)
@given(pair=clouds(), p=st.sampled_from([1, 2, 3]))
@few
def test_coupling_is_an_upper_bound(cost, pair, p):
    a = pair[0]
    b = Cloud(a.points.roll(1, dims=0) + 0.3 * pair[1].points[0], log_weights=a.log_weights)
    found, truth = coupling(a, b, p, cost), wasserstein(a, b, p, cost).value
    x, w = of(a)
    total = math.fsum(w[i] * ground(x[i], b.points[i].tolist(), p, cost) for i in range(len(a)))
    assert found.upper == pytest.approx(total ** (1 / p), rel=1e-6, abs=1e-7)
    assert found.lower - 1e-8 <= truth <= found.upper + 1e-8


def test_coupling_of_the_same_cloud_in_both_precisions():
    a = Cloud(np.random.default_rng(0).normal(size=(50, 3)), weights=np.random.default_rng(1).random(50))
    assert coupling(a, a.to(dtype=torch.float32)).upper < 1e-6


@given(pair=clouds(), p=st.sampled_from([1, 2, 3]))
@few
def test_a_slice_is_the_linear_program_on_the_line(pair, p):
    mu, nu = bounds.two_measures(*pair)
    thetas = bounds.random_directions(3, mu.points.shape[1], seed=1)
    found = bounds.slice_totals(mu, nu, thetas, float(p))
    for theta, total in zip(thetas, found, strict=True):
        flat = [m.points @ theta[:, None] for m in (mu, nu)]
        assert total == close(literal(flat[0], mu.weights, flat[1], nu.weights, p, "chordal"))


@given(pair=clouds(), p=st.sampled_from(ORDERS))
@few
def test_sliced_distance_is_below_the_distance(pair, p):
    found = sliced(*pair, p=p, directions=32)
    assert found.value == found.lower <= wasserstein(*pair, p=p).value + 1e-8
    assert found.upper == math.inf
    assert wasserstein(*pair, p=p, method="sliced", directions=32) == found


@pytest.mark.parametrize("d", [2, 3, 6])
def test_sliced_distance_of_two_diracs(d):
    x, y = np.eye(d)[:1], -np.eye(d)[:1]
    found = sliced(Cloud(x), Cloud(y), directions=20_000, seed=3)  # the mean of ⟨θ, x − y⟩² is |x − y|²/d
    assert found.value == pytest.approx(2 / math.sqrt(d), rel=0.02)


def test_merge_lines_up_masses_that_differ_by_rounding():
    rng = np.random.default_rng(0)
    w = rng.dirichlet(np.ones(1000))
    i, j, mass = bounds.merge(w, 3.7 * w)
    assert (i == np.arange(1000)).all()
    assert (j == i).all()
    np.testing.assert_allclose(mass, w, atol=1e-15)


# --- the limit law


def limit_problem(rng, n, d, m):
    """A weighted cloud, its limit points in a random subspace, and an orthonormal basis of it."""
    cloud = random_cloud(rng, n, d)
    E = np.linalg.qr(rng.normal(size=(d, m)))[0]
    oblique = E @ (E.T + 0.2 * rng.normal(size=(m, d)))
    return cloud, unit(cloud.points.numpy() @ oblique.T), E


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("m", [1, 2, 3])
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), extra=st.integers(0, 3))
@few
def test_distance_to_the_limit_is_the_linear_program(p, cost, m, seed, n, extra):
    cloud, limit, E = limit_problem(np.random.default_rng(seed), n, max(2, m + extra), m)
    found = to_limit(cloud, limit, E, p, cost)
    assert found.exact
    x, w = of(cloud)
    assert found.value**p == close(literal(x, w, limit, w, p, cost))


@pytest.mark.parametrize(("p", "cost"), [(2, "chordal"), (1, "chordal"), (2, "geodesic")])
@pytest.mark.parametrize("m", [2, 3])
def test_beyond_the_exact_size_the_limit_distance_is_a_coupling_with_a_lower_bound(p, cost, m):
    cloud, limit, E = limit_problem(np.random.default_rng(m), 200, 4, m)
    truth = to_limit(cloud, limit, E, p, cost)
    found = to_limit(cloud, Cloud(limit), E, p, cost, exact_up_to=199)
    assert found.method == "coupling (upper bound)"
    moved = coupling(cloud, cloud.moved_to(torch.from_numpy(limit)), p, cost)
    assert found.value == found.upper == pytest.approx(moved.upper, rel=1e-12)
    assert 0 < found.lower <= truth.value <= found.upper
    assert truth.exact
    assert not found.exact


def test_reduced_lower_bound_beats_the_one_in_full_dimension():
    cloud, limit, E = limit_problem(np.random.default_rng(3), 300, 8, 2)
    full = bounds.lower(*bounds.two_measures(cloud, Cloud(limit, log_weights=cloud.log_weights)), 2.0, 8, 0)
    assert to_limit(cloud, limit, E, exact_up_to=0).lower > full


@pytest.mark.parametrize("m", [1, 2])
def test_limit_distance_is_accurate_at_1e_minus_9(m):
    rng = np.random.default_rng(m)
    frame = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    E, rest = frame[:, :m], frame[:, m:]
    limit = unit(rng.normal(size=(300, m))) @ E.T
    offset = 1e-9 * rng.normal(size=(300, 4 - m)) @ rest.T
    found = to_limit(Cloud(limit + offset), limit, E)
    assert found.value == pytest.approx(np.sqrt((offset**2).sum(1).mean()), rel=1e-4)


def test_single_precision_clouds_are_measured_in_double():
    rng = np.random.default_rng(0)
    cloud, limit, E = limit_problem(rng, 30, 3, 1)
    found = to_limit(cloud.to(dtype=torch.float32), limit.astype(np.float32), E.astype(np.float32))
    assert found.value == pytest.approx(to_limit(cloud, limit, E).value, rel=1e-5)
    assert wasserstein(cloud, cloud.to(dtype=torch.float32)).value < 1e-6


# --- the noise floor


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_noise_floor_of_two_atoms_is_binomial(share):
    n = 1_000_000
    law = Cloud([[1.0, 0.0], [-1.0, 0.0], [1.0, 1e-14]], weights=[share / 2, 1 - share, share / 2])
    found = noise_floor(law, p=1, size=n, repeats=4000)
    # k − k' is nearly normal with variance 2n·share(1 − share), and each unit of it moves 2/n.
    assert found.mean == pytest.approx(2 * math.sqrt(4 * share * (1 - share) / (math.pi * n)), rel=0.05)
    assert (found.size, found.tokens, found.repeats) == (n, n, 4000)
    farther = noise_floor(law, p=1, cost="geodesic", size=n, repeats=4000)
    assert farther.mean == pytest.approx(found.mean * math.pi / 2, rel=1e-9)


@pytest.mark.parametrize("p", ORDERS)
def test_noise_floor_by_samples_agrees_with_the_binomial_one(p):
    atoms = Cloud([[1.0, 0.0], [-1.0, 0.0]], weights=[0.7, 0.3])
    nearly = Cloud([[1.0, 0.0], [-1.0, 0.0], [1.0, 1e-6]], weights=[0.35, 0.3, 0.35])
    one = noise_floor(atoms, p=p, size=80, repeats=2000)
    other = noise_floor(nearly, p=p, size=80, repeats=150, seed=1)
    assert other.mean == pytest.approx(one.mean, abs=4 * one.std / math.sqrt(150))


def test_noise_floor_says_which_size_it_used():
    rng = np.random.default_rng(0)
    found = noise_floor(Cloud(rng.normal(size=(2000, 3))), repeats=3)
    assert (found.size, found.tokens) == (500, 2000)
    assert "500 tokens" in str(found)
    assert "lower at the 2000" in str(found)
    small = noise_floor(Cloud(rng.normal(size=(4, 3)), weights=[1, 1, 1, 0]), repeats=3)
    assert (small.size, small.tokens) == (3, 3)
    assert noise_floor(Cloud(rng.normal(size=(2000, 3))), repeats=3, size=50).mean > found.mean
    assert noise_floor(Cloud([[1.0, 0.0]])).mean == 0.0


# --- what is refused, and in which words


A, B3 = Cloud([[1.0, 0.0], [0.0, 1.0]]), Cloud([[1.0, 0.0, 0.0]])
UP = [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wasserstein(A, A, p=0.5), "p is 0.5"),
        (lambda: wasserstein(A, A, p=math.nan), "p is nan"),
        (lambda: wasserstein(A, A, p=math.inf), "p is inf"),
        (lambda: wasserstein(A, A, p="2"), "p is '2'"),
        (lambda: wasserstein(A, A, cost="euclid"), "cost is 'euclid'"),
        (lambda: wasserstein(A, A, method="sinkhorn"), "method is 'sinkhorn'"),
        (lambda: wasserstein(A, A, cost="geodesic", method="sliced"), "chordal"),
        (lambda: wasserstein(A, B3), "d = 2 and d = 3"),
        (lambda: wasserstein(A, A.points), "expected a Cloud"),
        (lambda: wasserstein(A, A.moved_to(A.points * math.nan)), "not finite"),
        (lambda: wasserstein(A, A, directions=0), "directions is 0"),
        (lambda: sliced(A, A, directions=2.5), "directions is 2.5"),
        (lambda: sliced(A, A, seed=-1), "seed is -1"),
        (lambda: coupling(A, A.subset(1)), "2 and 1 tokens"),
        (lambda: coupling(A, Cloud(A.points, weights=[1, 2])), "same weights"),
        (lambda: two_atoms(A.points, [1, 1], [[1, 0]], [1, 0]), "atoms have shape"),
        (lambda: two_atoms(A.points, [1, 1, 1], A.points, [1, 0]), "weights has shape"),
        (lambda: two_atoms(A.points, [1, -1], A.points, [1, 0]), "weights have minimum -1"),
        (lambda: two_atoms(A.points, [1, 1], A.points, [0, 0]), "masses have minimum 0"),
        (lambda: to_limit(A, A.points[:1], UP), "limit has shape"),
        (lambda: to_limit(A, A.points, UP), "same theory"),
        (lambda: to_limit(A, A.points, [[0.0], [2.0]]), "orthonormal"),
        (lambda: to_limit(A, A.points, np.eye(3)), "basis is 3×3"),
        (lambda: noise_floor(A, repeats=1), "repeats is 1"),
        (lambda: noise_floor(A, size=0), "size is 0"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_distance_reads_well():
    assert str(Distance(0.5, 0.5, 0.5, "two atoms")) == "W2 = 0.5 (chordal, two atoms)"
    assert str(Distance(0.5, 0.25, 0.5, "m", 1.0, "geodesic")) == "0.25 ≤ W1 ≤ 0.5 (geodesic, m)"
    assert str(Distance(0.5, 0.5, math.inf, "m")) == "0.5 ≤ W2 (chordal, m)"
    assert float(Distance(0.5, 0.5, 0.5, "m")) == 0.5


@pytest.mark.parametrize("name", ["atoms", "bounds", "distances", "measure"])
def test_examples_in_the_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"metastable.transport.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
