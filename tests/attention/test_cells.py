"""The tree in more than three dimensions against the formula, on the clouds that break such engines."""

import math
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from metastable.attention.cells import Cells
from metastable.attention.cells.engine import grouped
from tests.attention.test_tree import BETAS, CLOUDS, ROUNDING, dense, sphere, weights_of


def groups(rng, n, d):
    """From 2 to 60 clusters of widths between 1e-5 and 0.2 and unequal numbers of tokens."""
    k = int(rng.integers(2, 61))
    chosen = rng.choice(k, n, p=rng.dirichlet(np.full(k, 0.7)))
    x = sphere(rng, k, d)[chosen] + 10.0 ** rng.uniform(-5, -0.7) * rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def anchored(rng, n, d):
    """Clusters far from the origin, not on a sphere."""
    return groups(rng, n, d) * 0.1 + 3.0 * sphere(rng, 1, d)


KINDS = {**CLOUDS, "groups": groups, "anchored": anchored}


def exact_log_z(points, log_weights, queries):
    return logsumexp(queries @ points.T + log_weights, axis=1)


def check(points, log_weights, queries, tol, paired=False):
    """Both answers are within their bounds, and the bounds within the tolerance. Returns the work."""
    rounding = ROUNDING * (10 + np.abs(queries).max(initial=0.0) * np.abs(points).max() ** 2 * 40)
    exact = dense(points, log_weights, queries)
    cells = Cells(points, log_weights)
    found = cells.attend(queries, tol, paired)
    error, bound = np.linalg.norm(found.mean.numpy() - exact, axis=1), found.bound.numpy()
    assert np.all(bound <= tol)
    assert np.all(error <= bound + rounding), (error.max(), bound.max())
    sums = cells.sums(queries, tol, paired)
    error, bound = np.linalg.norm(sums.mean.numpy() - exact, axis=1), sums.bound.numpy()
    assert np.all(bound <= tol)
    assert np.all(error <= bound + rounding), (error.max(), bound.max())
    logs = exact_log_z(points, log_weights, queries)
    error, bound = np.abs(sums.log_z.numpy() - logs), sums.log_z_bound.numpy()
    assert np.all(bound <= tol)
    assert np.all(error <= bound + rounding + 1e-15 * np.abs(logs)), (error.max(), bound.max())
    return found.work


ANYTHING = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.sampled_from([1, 2, 17, 100, 300, 700, 2500]),
    "d": st.sampled_from([1, 2, 4, 5, 8, 9, 16, 33, 64]),
    "kind": st.sampled_from(sorted(KINDS)),
    "weights": st.sampled_from(["equal", "wide", "some dead"]),
    "beta": st.one_of(st.sampled_from(BETAS), st.floats(-3, 6).map(lambda e: 10.0**e)),
    "tol": st.floats(-9, -0.5).map(lambda e: 10.0**e),
    "head": st.sampled_from(["identity", "general", "foreign", "paired", "all"]),
    "single": st.booleans(),
}


def check_anything(seed, n, d, kind, weights, beta, tol, head, single):
    rng = np.random.default_rng(seed)
    if d == 1:
        kind = "ball"
    points = KINDS[kind](rng, n, d)
    if head == "paired":
        points = points[:700]
    if single:
        points = points.astype(np.float32).astype(np.float64)
    queries = beta * points[rng.integers(0, len(points), 200)]
    if head == "general":
        queries = queries @ rng.standard_normal((d, d)) / math.sqrt(d)
    elif head == "foreign":
        queries = beta * sphere(rng, 100, d)
    elif head == "paired":
        queries = beta * points @ rng.standard_normal((d, d)) / math.sqrt(d)
    elif head == "all":
        queries = np.concatenate([queries, beta * sphere(rng, 50, d), np.zeros((2, d))])
    check(points, weights_of(rng, len(points), weights), queries, tol, paired=head == "paired")


@settings(max_examples=320, deadline=None, suppress_health_check=list(HealthCheck))
@given(**ANYTHING)
def test_any_cloud_and_head(**case):
    check_anything(**case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(**ANYTHING)
def test_five_thousand_clouds_and_heads(**case):
    check_anything(**case)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_tree_holds_every_token_once(kind):
    """Children divide the tokens of their node, leaves are small, and the sorted points are the given ones."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    for n, d in ((1, 4), (40, 4), (700, 7), (12_000, 16), (5000, 64)):
        points = KINDS[kind](rng, n, d)
        ordered, index, nodes = grouped(points)
        assert np.array_equal(ordered, points[index])
        assert np.array_equal(np.sort(index), np.arange(n))
        assert nodes[0, :2].tolist() == [0, n]
        for lo, hi, left, _ in nodes:
            assert lo < hi
            if left < 0:
                assert hi - lo <= 512
            else:
                assert (nodes[left, 0], nodes[left, 1], nodes[left + 1, 1]) == (lo, nodes[left + 1, 0], hi)


@pytest.mark.parametrize(("d", "width"), [(4, 0.05), (16, 0.05), (16, 0.01), (64, 0.05)])
def test_clusters_save_work(d, width):
    """Queries see hardly more than their own cluster of twenty."""
    rng = np.random.default_rng(d)
    points = sphere(rng, 20, d)[rng.integers(0, 20, 20_000)] + width * rng.standard_normal((20_000, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    work = check(points, np.zeros(20_000), 1e3 * points[:500], 1e-3)
    assert work["pairs_direct"] < 2 / 20 * 20_000 * 500


@pytest.mark.parametrize("d", [4, 16, 64])
def test_narrow_clusters_cost_a_few_expansions(d):
    """Where |u| times the width is small, a cluster is one or a few nodes, not its tokens."""
    rng = np.random.default_rng(d)
    points = sphere(rng, 20, d)[rng.integers(0, 20, 20_000)] + 3e-4 * rng.standard_normal((20_000, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    work = check(points, np.zeros(20_000), 1e3 * points[:500], 1e-3)
    assert work["pairs_direct"] == 0
    assert work["nodes_expanded"] <= 5 * 500


def test_float32_is_not_used_where_it_is_not_enough():
    """Scores of size 1e6 have rounding errors of 0.1 in float32."""
    rng = np.random.default_rng(0)
    points = groups(rng, 5000, 16)
    check(points, np.zeros(5000), 1e6 * points[:300], 1e-3)


def test_answers_do_not_depend_on_threads(monkeypatch):
    rng = np.random.default_rng(1)
    points = groups(rng, 9000, 8)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("METASTABLE_THREADS", threads)
        found.append(Cells(points).attend(300 * points, 1e-3, paired=True))
    for other in found[1:]:
        assert np.array_equal(found[0].mean, other.mean)
        assert np.array_equal(found[0].bound, other.bound)


def test_moved_tokens_are_a_new_cloud():
    rng = np.random.default_rng(2)
    points, weights = groups(rng, 3000, 6), weights_of(rng, 3000, "some dead")
    moved = points + 0.1 * rng.standard_normal(points.shape)
    cells = Cells(points, weights)
    cells.refit(moved)
    found = cells.attend(100 * points[:300], 1e-4).mean
    assert np.array_equal(found, Cells(moved, weights).attend(100 * points[:300], 1e-4).mean)


@pytest.mark.parametrize(("d", "beta", "tol"), [(4, 1e6, 1e-9), (4, 1e4, 1e-11), (16, 1e3, 1e-12)])
@pytest.mark.parametrize("seed", range(4))
def test_two_places_with_many_tokens_keep_the_tolerance_in_spite_of_rounding(d, beta, tol, seed):
    """m = (n₁ a + n₂ b r)/(n₁ + n₂ r), r = e^{⟨u,b−a⟩}: sums over duplicates lose no digits that |u| magnifies."""
    rng = np.random.default_rng(seed)
    a, b = sphere(rng, 2, d)
    counts = 4000, 500
    points = np.repeat([a, b], counts, axis=0)
    # A query between the two places sees both.
    across = (b - a) / np.linalg.norm(b - a)
    between = (a + b) / np.linalg.norm(a + b)
    queries = beta * (between + np.linspace(-3, 3, 7)[:, None] / beta * across)
    ratio = np.exp(queries @ (b - a))[:, None]
    exact = (counts[0] * a + counts[1] * b * ratio) / (counts[0] + counts[1] * ratio)
    found = Cells(points, np.full(len(points), -math.log(len(points)))).attend(queries, tol)
    assert np.linalg.norm(found.mean.numpy() - exact, axis=1).max() <= tol
