"""The tree engine against the formula, on the clouds that break such engines."""

import zlib

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable.attention.tree import Tree, compiled
from metastable.attention.tree.boxes import Ordered
from metastable.attention.tree.packs import pack, pack_error
from tests.problems import circle_head

BETAS = [0.0, 1e-3, 1.0, 30.0, 1e2, 1e3, 1e4, 1e5, 1e6]
# Agreement of two float64 evaluations: |u| times a few units in the last place.
ROUNDING = 1e-15


@numba.njit(cache=True)
def bound_of_pack(shape, scale, u, half, axes, v, ellipses):
    return pack_error(shape, scale, u, half, axes, v, ellipses)


def dense(points, log_weights, queries):
    """The formula, in float64, with the largest score taken out."""
    scores = queries @ points.T + log_weights
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ points / weights.sum(axis=1, keepdims=True)


def sphere(rng, n, d):
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def clusters(rng, n, d):
    x = sphere(rng, 4, d)[rng.integers(0, 4, n)] + 10.0 ** rng.uniform(-6, -1) * rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def arc(rng, n, d):
    angle = rng.uniform(0, rng.uniform(0.01, 3), n)
    frame, _ = np.linalg.qr(rng.standard_normal((d, 2)))
    return np.outer(np.cos(angle), frame[:, 0]) + np.outer(np.sin(angle), frame[:, 1])


def isolated(rng, n, d):
    x = clusters(rng, n, d) * 0.0 + sphere(rng, 1, d) + 0.05 * rng.standard_normal((n, d))
    x[-1] = -x[0]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def duplicates(rng, n, d):
    return sphere(rng, max(1, n // 50), d)[rng.integers(0, max(1, n // 50), n)]


def ball(rng, n, d):
    return sphere(rng, n, d) * rng.uniform(0, 2, (n, 1))


CLOUDS = {f.__name__: f for f in (sphere, clusters, arc, isolated, duplicates, ball)}


def weights_of(rng, n, kind):
    if kind == "equal":
        return np.zeros(n)
    if kind == "wide":
        return rng.uniform(-14, 14, n) * np.log(10)
    return np.where(rng.random(n) < 0.5, -np.inf, rng.standard_normal(n)) if n > 3 else np.zeros(n)


def attended(tree, queries, tol, paired=False):
    """The tree's answer with numpy arrays."""
    found = tree.attend(queries, tol, paired)
    return found._replace(mean=found.mean.numpy(), bound=found.bound.numpy())


def check(points, log_weights, queries, tol, paired=False):
    result = attended(Tree(points, log_weights), queries, tol, paired)
    error = np.linalg.norm(result.mean - dense(points, log_weights, queries), axis=1)
    rounding = ROUNDING * (10 + np.abs(queries).max(initial=0.0) * np.abs(points).max() ** 2 * 4)
    assert np.all(result.bound <= tol)
    assert np.all(error <= result.bound + rounding), (error.max(), result.bound.max())
    return result


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("d", [2, 3, 5])
def test_families(kind, beta, d):
    rng = np.random.default_rng(zlib.crc32(f"{kind} {beta} {d}".encode()))
    points = CLOUDS[kind](rng, 400, d)
    for tol in (1e-3, 1e-6):
        check(points, np.zeros(400), beta * points, tol)
        check(points, weights_of(rng, 400, "wide"), beta * sphere(rng, 100, d), tol)


ANYTHING = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.sampled_from([1, 2, 3, 17, 100, 400, 1500, 6000]),
    "d": st.integers(1, 8),
    "kind": st.sampled_from(sorted(CLOUDS)),
    "weights": st.sampled_from(["equal", "wide", "some dead"]),
    "beta": st.one_of(st.sampled_from(BETAS), st.floats(-3, 6).map(lambda e: 10.0**e)),
    "tol": st.floats(-9, -0.5).map(lambda e: 10.0**e),
    "head": st.sampled_from(["identity", "general", "foreign", "paired"]),
}


def check_anything(seed, n, d, kind, weights, beta, tol, head):
    rng = np.random.default_rng(seed)
    if d == 1:
        kind = "ball"
    points = CLOUDS[kind](rng, n, d)
    queries = beta * points[:300]
    if head == "general":
        queries = queries @ rng.standard_normal((d, d))
    elif head == "foreign":
        queries = beta * sphere(rng, 100, d)
    elif head == "paired":
        points = points[:700]
        queries = beta * points @ rng.standard_normal((d, d))
    check(points, weights_of(rng, len(points), weights), queries, tol, paired=head == "paired")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(**ANYTHING)
def test_any_cloud_and_head(**case):
    check_anything(**case)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(**ANYTHING)
def test_ten_thousand_clouds_and_heads(**case):
    check_anything(**case)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", ["sphere", "clusters", "arc", "duplicates"])
def test_packs_change_no_more_than_their_bound(kind, d):
    """Replace the tokens of each pack by its grid. Both sums, at a random query, change by at most the bound."""
    rng = np.random.default_rng(zlib.crc32(f"{kind} {d}".encode()))
    packs_seen, n = 0, 4000 if d == 2 else 30_000
    for beta, tol in ((3.0, 1e-2), (30.0, 1e-4), (300.0, 1e-6)):
        points, log_weights = CLOUDS[kind](rng, n, d), weights_of(rng, n, "wide")
        order = Ordered(points, log_weights, 16)
        packs, columns, logs, signs = pack(order, beta, tol)[4:]
        for node in np.flatnonzero(packs.slot >= 0):
            level, which = int(node).bit_length() - 1, packs.slot[node]
            tokens = slice(((node - (1 << level)) * n) >> level, ((node + 1 - (1 << level)) * n) >> level)
            grid = slice(n + packs.first[which], n + packs.first[which + 1])
            shape = packs.shape[which]
            c, other = shape[:d], shape[:d] + 0.1 * rng.standard_normal(d)
            u = c + rng.uniform(0, 3) / np.sqrt(beta) * rng.standard_normal(d)
            u *= beta / np.linalg.norm(u)
            e_f, e_g = bound_of_pack(shape, beta, u, np.zeros(d), np.eye(d), c - other, np.zeros((d, 6)))
            sums = []
            for y, w in (
                (order.points[tokens], np.exp(order.log_weights[tokens])),
                (columns[:, grid].T, signs[grid] * np.exp(logs[grid])),
            ):
                f = w * np.exp((y - c) @ u)
                sums.append(np.append(f.sum(), f @ (y - other)) / np.exp(order.log_weights[tokens]).sum())
            change = np.abs(sums[0] - sums[1])
            assert change[0] <= e_f + 1e-12
            assert np.linalg.norm(change[1:]) <= e_g + 1e-12
            packs_seen += 1
    assert packs_seen > 10


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [0.0, 3.0, 300.0, 1e5])
@pytest.mark.parametrize("kind", sorted(CLOUDS))
def test_a_field_at_thousands_of_tokens(kind, beta, d):
    """More queries than one thread answers. The first boxes are few or many, down to one box for the whole cloud."""
    rng = np.random.default_rng(zlib.crc32(f"{kind} {beta} {d}".encode()))
    points = CLOUDS[kind](rng, 2100, d)
    turn = rng.standard_normal((d, d))
    for head in (np.eye(d), turn):
        result = attended(Tree(points), beta * points @ head, 1e-4, paired=True)
        some = rng.integers(0, len(points), 100)
        exact = dense(points, np.zeros(len(points)), beta * points[some] @ head)
        assert np.linalg.norm(result.mean[some] - exact, axis=1).max() <= 1e-4
        assert result.bound.max() <= 1e-4


def test_a_run_of_tight_clusters_is_the_same_by_every_engine():
    """Long after departure all tokens are in two clusters, which are far smaller than a box of queries."""
    head = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
    curves = [
        ms.simulate(head, ms.equally_spaced(500), 300.0, 14.0, t_eval=8, tol=1e-5, engine=engine).distance().values
        for engine in ("tree", "flash")
    ]
    assert np.abs(curves[0] - curves[1]).max() < 1e-3
    assert curves[0][-1] > 0.15


@pytest.mark.parametrize("tol", [1e-3, 1e-7])
@pytest.mark.parametrize("beta", [20.0, 1e3, 1e5])
def test_boxes_that_are_too_coarse_are_cut_again(beta, tol):
    """Tight clusters set the size of the first boxes. Boxes of the isolated queries must be split further."""
    rng = np.random.default_rng(8)
    points = np.concatenate([CLOUDS["clusters"](rng, 5000, 3), sphere(rng, 200, 3)])
    result = attended(Tree(points), beta * points, tol, paired=True)
    some = np.concatenate([rng.integers(0, 5000, 200), np.arange(5000, 5200)])
    exact = dense(points, np.zeros(len(points)), beta * points[some])
    assert np.linalg.norm(result.mean[some] - exact, axis=1).max() <= tol
    assert result.bound.max() <= tol


def test_opposite_clusters_are_not_packed_as_one():
    """They have similar coordinates on a tangent line, but they are not on the same half of the circle."""
    x = clusters(np.random.default_rng(17560), 400, 2)
    for beta in (0.1, 1.0):
        found = attended(Tree(x), beta * x, 0.1)
        assert np.all(np.linalg.norm(found.mean - dense(x, np.zeros(len(x)), beta * x), axis=1) <= found.bound)


def test_packing_is_used_and_saves_work():
    points = sphere(np.random.default_rng(6), 20_000, 3)
    result = check(points, np.zeros(20_000), 10.0 * points[:200], 1e-3)
    assert result.work["tokens_collected"] < 0.5 * 20_000 * result.work["boxes_opened"]


def test_threads_give_the_same_answer():
    rng = np.random.default_rng(0)
    points = sphere(rng, 21_000, 3)
    for beta in (10.0, 1e3, 1e5):
        result = attended(Tree(points), beta * points, 1e-5)
        some = rng.integers(0, 21_000, 100)
        error = np.linalg.norm(result.mean[some] - dense(points, 0.0, beta * points[some]), axis=1)
        assert np.all(error <= result.bound[some] + 1e-9)
        assert result.bound.max() <= 1e-5


def test_corners_of_a_box():
    """Bounds that hold at the centre of a box of queries must hold in its corners: 2^d queries around a centre."""
    rng = np.random.default_rng(1)
    points = sphere(rng, 2000, 3)
    corners = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
    for beta in (10.0, 100.0, 1e4):
        for size in (0.1, 1.0, 3.0, 10.0):
            queries = beta * points[0] + size * np.sqrt(beta) * np.repeat(corners, 20, axis=0)
            check(points, np.zeros(2000), queries, 1e-4)


def test_maximum_of_an_isolated_query():
    """A greedy descent misses the best token of a query far from all; β = 1e4 then overflows."""
    rng = np.random.default_rng(2)
    points = isolated(rng, 3000, 3)
    queries = 1e4 * np.concatenate([sphere(rng, 300, 3), points[-1:], -points[:50]])
    assert np.all(np.isfinite(check(points, np.zeros(3000), queries, 1e-6).mean))


def test_identical_queries_are_shared():
    points = sphere(np.random.default_rng(3), 2000, 3)
    result = check(points, np.zeros(2000), np.repeat(50 * points[:1], 2100, axis=0), 1e-6)
    # One sum per first subtree of a thread, not one per query.
    assert result.work["pairs_direct"] <= 16 * 2000


def test_refit_is_a_rebuild():
    rng = np.random.default_rng(4)
    points = sphere(rng, 3000, 3)
    weights = weights_of(rng, 3000, "some dead")
    tree = Tree(points, weights)
    for move in (0.0, 1e-3, 0.1, 3.0):  # the last one scrambles the cloud and forces a new tree
        moved = points + move * rng.standard_normal(points.shape)
        tree.refit(moved)
        result = attended(tree, 100 * points[:300], 1e-6)
        error = np.linalg.norm(result.mean - dense(moved, weights, 100 * points[:300]), axis=1)
        assert np.all(error <= np.minimum(result.bound, 1e-6) + 1e-12)


def test_kernels_are_compiled_after_the_first_use():
    points = sphere(np.random.default_rng(5), 10, 2)
    Tree(points).attend(points, 0.5)
    assert compiled()


class TestThroughAttend:
    """The engine as users meet it."""

    def test_attend_keeps_its_tolerance(self):
        cloud = ms.Cloud(ms.uniform(3000, d=3, seed=0).points, weights=torch.arange(1, 3001))
        u = 200.0 * cloud.points
        for tol in (1e-3, 1e-8):
            gap = (ms.attend(cloud, u, engine="tree", tol=tol) - ms.attend(cloud, u, engine="dense")).norm(dim=1)
            assert float(gap.max()) <= tol
        found = ms.attend_with_bound(cloud, u, tol=1e-3)
        assert float(found.bound.max()) <= 1e-3
        assert sum(found.work.values()) > 0

    def test_float32_clouds_get_float32_answers(self):
        cloud = ms.uniform(500, d=3, seed=0).to(torch.float32)
        found = ms.attend(cloud, 10 * cloud.points, engine="tree")
        assert found.dtype == torch.float32
        assert torch.allclose(found, ms.attend(cloud, 10 * cloud.points, engine="flash"), atol=1e-5)

    def test_a_run_by_the_tree_is_the_run_by_flash(self):
        head = ms.Head.from_spectra([1.5, 0.9, 0.6], [1.2, 0.7, 0.4], seed=4)
        cloud = ms.graded(600, head)
        ends = [ms.simulate(head, cloud, 100.0, 1.0, t_eval=2, engine=e).final.points for e in ("tree", "flash")]
        assert float((ends[0] - ends[1]).norm(dim=1).max()) < 1e-4

    @pytest.mark.parametrize("tol", [0, 1, -1e-3, float("nan"), "fine"])
    def test_bad_tolerances_are_refused(self, tol):
        with pytest.raises(ms.BadInput, match="the tree needs a tolerance between 0 and 1"):
            ms.attend(ms.uniform(5, d=3), [[1.0, 0, 0]], engine="tree", tol=tol)


def test_certified_is_float64_and_refuses_what_float64_cannot():
    cloud = ms.uniform(500, 3, seed=0).to(torch.float32)
    found = ms.attend_with_bound(cloud, 30 * cloud.points, tol=1e-9)
    # A float32 cloud is put back on the sphere when it becomes float64.
    points = cloud.to(torch.float64).points.numpy()
    exact = dense(points, np.zeros(500), (30 * cloud.points).double().numpy())
    assert found.mean.dtype == torch.float64
    assert np.linalg.norm(found.mean.numpy() - exact, axis=1).max() <= 1e-9
    with pytest.raises(ms.BadInput, match="tol is 1e-15; float64 can be certified to 1e-12"):
        ms.attend_with_bound(cloud, cloud.points, tol=1e-15)


def test_equal_queries_are_answered_once():
    """A few heavy tokens among light ones, and all queries 0: one sum over the heavy tokens answers all queries."""
    angle = np.linspace(0, 2 * np.pi, 3000, endpoint=False)
    points, log_weights = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(3000, -27.6)
    log_weights[[10, 700, 1900]] = 0.0
    found = attended(Tree(points, log_weights), np.zeros((3000, 2)), 1e-2, paired=True)
    weights = np.exp(log_weights)
    exact = weights @ points / weights.sum()
    assert np.abs(found.mean - exact).max() <= 1e-2
    assert (found.mean == found.mean[0]).all()
    assert found.work["pairs_direct"] <= 10 * 3000
