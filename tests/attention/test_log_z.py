"""log Z, unnormalised and causal sums by the tree: errors are within their bounds on the clouds that break trees."""

import importlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metastable.attention import Attention, Prepared
from metastable.attention.tree import Tree
from metastable.attention.unnormalised import share
from tests.attention.test_tree import CLOUDS, ROUNDING, sphere, weights_of

CAUSAL = importlib.import_module("metastable.attention.causal")
LEAF = 40
"""Size of the masked blocks in these tests: small clouds are divided too."""

ANYTHING = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.sampled_from([1, 2, 3, 17, 100, 400]),
    "d": st.sampled_from([2, 3, 4]),
    "kind": st.sampled_from(sorted(CLOUDS)),
    "beta": st.one_of(st.just(0.0), st.floats(-3, 5).map(lambda e: 10.0**e)),
    "tol": st.floats(-9, -0.5).map(lambda e: 10.0**e),
    "turned": st.booleans(),
    "paired": st.booleans(),
}
QUICKLY = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def exact(points, log_weights, queries, causal=False):
    """(mean, log Z) by the formula, in extended precision, with the largest term taken out."""
    scores = queries.astype(np.longdouble) @ points.T.astype(np.longdouble) + log_weights
    if causal:
        scores[np.triu_indices(len(points), 1)] = -np.inf
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights @ points / total, (np.log(total) + top)[:, 0]


def rounding(points, log_weights, queries):
    """Of log Z, which is a number of this size, and of the mean."""
    seen = log_weights[np.isfinite(log_weights)]
    reach = np.abs(queries).max(initial=0.0) * max(1.0, np.abs(points).max()) ** 2
    return ROUNDING * (10 + 8 * reach + np.abs(seen).max())


def problem(seed, n, d, kind, beta, turned):
    rng = np.random.default_rng(seed)
    points = CLOUDS[kind](rng, n, d)
    queries = beta * points @ (rng.standard_normal((d, d)) if turned else np.eye(d))
    return rng, points, queries


def check_log_z(seed, n, d, kind, weights, beta, tol, turned, paired):
    rng, points, queries = problem(seed, n, d, kind, beta, turned)
    log_weights = weights_of(rng, n, weights)
    queries = queries if paired else queries[:150]
    found = Tree(points, log_weights).sums(queries, tol, paired)
    mean, log_z = exact(points, log_weights, queries)
    allowed = rounding(points, log_weights, queries)
    assert bool((found.bound <= tol).all())
    assert bool((found.log_z_bound <= tol).all())
    assert np.all(np.abs(found.log_z.numpy() - log_z) <= found.log_z_bound.numpy() + allowed)
    assert np.all(np.linalg.norm(found.mean.numpy() - mean, axis=1) <= found.bound.numpy() + allowed)


def check_unnormalised(seed, n, d, kind, weights, beta, tol, turned, causal):
    """|m̃ − m| ≤ tol · Z, with both divided by the largest Z so that nothing overflows."""
    rng, points, queries = problem(seed, n, d, kind, beta, turned)
    log_weights = weights_of(rng, n, "equal" if causal else weights)
    mean, log_z = exact(points, log_weights, queries, causal)
    level = float(log_z.max())
    log_weights -= level
    attention = Attention("unnormalised", causal, torch.from_numpy(log_weights), "tree", tol)
    found = attention(torch.from_numpy(points), torch.from_numpy(queries)).numpy()
    z = np.exp(log_z - level)
    size = max(1.0, np.linalg.norm(points, axis=1).max())
    allowed = rounding(points, log_weights, queries) * 2 * size
    error = np.linalg.norm(found - z[:, None] * mean, axis=1)
    assert np.all(error <= (tol + allowed) * z + 1e-300)


def check_causal(seed, n, d, kind, beta, tol, turned):
    _, points, queries = problem(seed, n, d, kind, beta, turned)
    causal = CAUSAL.Causal(torch.full((n,), -np.log(n), dtype=torch.float64), "tree", tol)
    found = causal.sums(torch.from_numpy(points), torch.from_numpy(queries))
    mean, log_z = exact(points, np.full(n, -np.log(n)), queries, causal=True)
    allowed = rounding(points, np.full(n, -np.log(n)), queries) * max(1.0, np.linalg.norm(points, axis=1).max())
    assert bool((found.bound <= tol * (1 + 1e-12)).all())
    assert np.all(np.abs(found.log_z.numpy() - log_z) <= found.log_z_bound.numpy() + allowed)
    assert np.all(np.linalg.norm(found.mean.numpy() - mean, axis=1) <= found.bound.numpy() + allowed)


@pytest.fixture(autouse=True)
def _small_leaves(monkeypatch):
    monkeypatch.setattr(CAUSAL, "LEAF", LEAF)


WEIGHTS = st.sampled_from(["equal", "wide", "some dead"])
UNPAIRED = {name: strategy for name, strategy in ANYTHING.items() if name != "paired"}


@settings(max_examples=150, **QUICKLY)
@given(**ANYTHING, weights=WEIGHTS)
def test_log_z_of_any_cloud(**case):
    check_log_z(**case)


@settings(max_examples=80, **QUICKLY)
@given(**UNPAIRED, weights=WEIGHTS, causal=st.booleans())
def test_unnormalised_sums_of_any_cloud(**case):
    check_unnormalised(**case)


@settings(max_examples=80, **QUICKLY)
@given(**UNPAIRED)
def test_causal_means_of_any_cloud(**case):
    check_causal(**case)


@pytest.mark.slow
@settings(max_examples=1_000, database=None, **QUICKLY)
@given(**ANYTHING | {"n": st.sampled_from([3, 17, 100, 400, 1500])}, weights=WEIGHTS)
def test_log_z_of_a_thousand_clouds(**case):
    check_log_z(**case)


@pytest.mark.slow
@settings(max_examples=300, database=None, **QUICKLY)
@given(**UNPAIRED | {"n": st.sampled_from([17, 100, 400, 1500])}, weights=WEIGHTS, causal=st.booleans())
def test_unnormalised_sums_of_hundreds_of_clouds(**case):
    check_unnormalised(**case)


@pytest.mark.slow
@settings(max_examples=300, database=None, **QUICKLY)
@given(**UNPAIRED | {"n": st.sampled_from([17, 100, 400, 1500])})
def test_causal_means_of_hundreds_of_clouds(**case):
    check_causal(**case)


@pytest.mark.parametrize("beta", [3.0, 30.0])
@pytest.mark.parametrize("d", [2, 3])
def test_boxes_that_are_expanded(d, beta):
    """Thousands of queries, so that boxes are expanded, packed and answered by several threads."""
    rng = np.random.default_rng(d)
    points = sphere(rng, 4000, d)
    tree = Tree(points)
    assert tree.attend(beta * points, 1e-5, paired=True).work["boxes_expanded"] > 0
    found = tree.sums(beta * points, 1e-5, paired=True)
    some = rng.integers(0, 4000, 200)
    mean, log_z = exact(points, np.zeros(4000), beta * points[some])
    assert np.all(np.abs(found.log_z.numpy()[some] - log_z) <= found.log_z_bound.numpy()[some] + 1e-11)
    assert np.all(np.linalg.norm(found.mean.numpy()[some] - mean, axis=1) <= found.bound.numpy()[some] + 1e-11)
    assert float(found.log_z_bound.max()) <= 1e-5


def test_float32_tokens_are_summed_in_float64():
    """log Z is about 300 here, and float32 would hold it to 2e-5 only."""
    points = torch.from_numpy(sphere(np.random.default_rng(0), 300, 3)).float()
    log_weights = torch.full((300,), -300.0)
    found = Attention("unnormalised", True, log_weights, "tree", 1e-6)(points, 300 * points)
    mean, log_z = exact(points.double().numpy(), np.full(300, -300.0), (300 * points).double().numpy(), causal=True)
    error = np.abs(found.double().numpy() - np.exp(log_z)[:, None] * mean).max(axis=1)
    assert np.all(error <= 2e-6 * np.exp(log_z))


@pytest.mark.parametrize("tol", [1e-9, 1e-3, 0.5, 0.999])
@pytest.mark.parametrize("radius", [0.0, 1.0, 30.0])
def test_the_share_of_the_tolerance_keeps_the_promise(tol, radius):
    """e^η e + (e^η − 1) R ≤ tol for e = η = t."""
    t = share(tol, radius)
    assert np.exp(t) * t + np.expm1(t) * radius <= tol * (1 + 1e-12)
    assert t >= 0.3 * tol / (1 + radius)


@pytest.mark.parametrize("level", [-30_000.0, -1_000.0, 1_000.0, 30_000.0])
def test_weights_of_any_size_are_taken(level):
    """A common factor e^level of all weights is beyond float64. It moves log Z by `level` and leaves the mean."""
    points = CLOUDS["duplicates"](np.random.default_rng(4), 400, 3)
    log_weights = np.full(400, level)
    found = Tree(points, log_weights).sums(-100.0 * points, 1e-6)
    mean, log_z = exact(points, log_weights, -100.0 * points)
    assert np.abs(found.log_z.numpy() - log_z).max() <= 1e-6
    assert np.linalg.norm(found.mean.numpy() - mean, axis=1).max() <= 1e-6


def test_a_tree_of_sums_is_refitted():
    rng = np.random.default_rng(3)
    points = torch.from_numpy(sphere(rng, 500, 3))
    prepared = Prepared(torch.zeros(500, dtype=torch.float64), "tree", 1e-7)
    for x in (points, points + 0.01 * torch.from_numpy(rng.standard_normal((500, 3)))):
        found = prepared.sums(x, 30 * x, paired=True)
        mean, log_z = exact(x.numpy(), np.zeros(500), 30 * x.numpy())
        assert np.abs(found.log_z.numpy() - log_z).max() <= 1e-7
        assert np.linalg.norm(found.mean.numpy() - mean, axis=1).max() <= 1e-7
