"""Every engine against the literal double loop, and against each other where the loop is too slow."""

import importlib
import math
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable.attention import Prepared, choose, engines, log_partition
from metastable.attention.engines import EITHER
from tests import reference
from tests.problems import random_matrix

DENSE, FLASH = (importlib.import_module(f"metastable.attention.{name}") for name in ("dense", "flash"))
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
TREE = 1e-12
"""The tolerance that the tree is asked for: the least that it accepts. The exact engines take no notice of it."""


def weighted_cloud(n, d, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logs = 12 * math.log(10) * torch.rand(n, generator=generator, dtype=torch.float64)
    return ms.Cloud(ms.uniform(n, d, seed).points, log_weights=logs).to(dtype)


@pytest.mark.parametrize("beta", [0.0, 0.3, 10.0, 300.0])
@pytest.mark.parametrize(("n", "d"), [(1, 2), (7, 2), (40, 3), (25, 9)])
def test_engine_equals_the_double_loop(engine, dtype, beta, n, d):
    cloud = weighted_cloud(n, d, seed=n, dtype=dtype)
    queries = beta * ms.uniform(5, d, seed=1).points.to(dtype)
    found = ms.attend(cloud, queries, engine=engine, tol=TREE)
    points, weights = cloud.points.double().tolist(), cloud.log_weights.double().exp().tolist()
    for u, m in zip(queries.double().tolist(), found, strict=True):
        expected = torch.tensor(reference.softmax_mean(u, points, weights), dtype=torch.float64)
        scale = max(1.0, beta) if dtype == torch.float32 else 1.0
        allowed = TREE if engine == "tree" else 0.0
        assert torch.allclose(m.double(), expected, atol=TOLERANCE[dtype] * scale + allowed)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 60), st.integers(2, 6), st.floats(0, 1e6), st.integers(0, 1000))
def test_engines_agree_from_hot_to_cold(n, d, beta, seed):
    cloud = weighted_cloud(n, d, seed)
    queries = beta * ms.uniform(7, d, seed + 1).points
    means = [ms.attend(cloud, queries, engine=name, tol=TREE) for name in ("dense", "direct", "tree")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DENSE, "SMALL", 0)
        means += [ms.attend(cloud, queries, engine=name, tol=TREE) for name in ("dense", "flash")]
    for m in means[1:]:
        # Scores of size β carry rounding errors of β·1e-16, and the weights inherit them.
        assert torch.allclose(m, means[0], atol=2 * TREE + 1e-15 * beta)
    assert bool((means[0].norm(dim=1) <= 1 + 1e-12).all())


def test_tokens_of_weight_zero_are_not_seen(engine, dtype):
    points = ms.uniform(30, d=3, seed=0).points.to(dtype)
    weights = torch.ones(30)
    weights[10:] = 0
    queries = 5 * ms.uniform(4, d=3, seed=1).points.to(dtype)
    seen = ms.attend(ms.Cloud(points[:10]), queries, engine=engine, tol=TREE)
    found = ms.attend(ms.Cloud(points, weights), queries, engine=engine, tol=TREE)
    assert torch.allclose(found, seen, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("beta", [1e4, 1e6])
def test_tokens_of_weight_zero_or_nearly_are_not_seen_at_low_temperature_either(engine, beta):
    for weights in ({"weights": [0, 1]}, {"log_weights": [-3 * beta, 0.0]}):
        cloud = ms.Cloud([[1.0, 0.0], [0.0, 1.0]], **weights)
        found = ms.attend(cloud, [[beta, 0.0]], engine=engine, tol=TREE)
        assert found[0].tolist() == pytest.approx([0, 1], abs=1e-12)


def test_a_heavier_weight_than_the_others_put_together_wins(engine):
    """Weights over 300 orders of magnitude: a token of log-weight −690 beats a score that is 700 lower."""
    cloud = ms.Cloud([[1.0, 0.0], [-1.0, 0.0]], log_weights=[-690.0, 0.0])
    assert float(ms.attend(cloud, [[350.0, 0.0]], engine=engine)[0, 0]) == pytest.approx(math.tanh(5.0), abs=1e-10)


PEAK = """
import resource
import metastable as ms
cloud = ms.uniform(8_000, d=3, seed=0)
for engine in ("dense", "flash", "direct", "tree"):
    ms.attend(cloud, cloud.points[:100], engine=engine)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ms.attend(cloud, 10 * cloud.points, engine=engine)
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
def test_memory_is_linear_in_the_number_of_tokens():
    """An N×N matrix of float64 would take 512 MB. The peak of a new process grows by less than 100 MB per engine.

    The peak never falls, so an earlier engine can hide at most 300 MB of a later one.
    """
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    grown = [int(line) for line in done.stdout.splitlines()]
    assert len(grown) == 4
    assert max(grown) < 100e6


def test_kernels_of_the_host_stay_enabled_while_flash_is_at_work():
    """The settings of torch are read in this thread during a call in another thread."""
    cloud = ms.uniform(6_000, d=3)
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(ms.attend, cloud, 10 * cloud.points, engine="flash")
        while not found.done():
            seen.add((torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()))
    assert seen == {(True, True)}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_engines_work_where_gradients_are_off(engine, mode):
    cloud, queries = ms.uniform(50, d=3), 5 * ms.uniform(4, d=3, seed=1).points
    with mode():
        found = ms.attend(cloud, queries, engine=engine)
    assert torch.equal(found, ms.attend(cloud, queries, engine=engine))


def test_flash_without_its_kernel_is_computed_by_blocks(monkeypatch):
    cloud = weighted_cloud(50, 3, seed=0)
    monkeypatch.setattr(DENSE, "SMALL", 0)
    expected = ms.attend(cloud, cloud.points, engine="dense")
    assert not torch.equal(ms.attend(cloud, cloud.points, engine="flash"), expected)
    monkeypatch.setattr(FLASH, "CPU_KERNEL", None)
    assert torch.equal(ms.attend(cloud, cloud.points, engine="flash"), expected)


def test_log_partition_is_the_logarithm_of_the_sum():
    cloud = weighted_cloud(20, 3, seed=2)
    u = random_matrix(3, 0)
    expected = torch.log((cloud.weights * (u @ cloud.points.T).exp()).sum(dim=1))
    assert torch.allclose(log_partition(cloud.points, cloud.log_weights, u), expected)


def test_auto_takes_the_engine_that_was_measured_to_be_quickest():
    def chosen(log_weights, d, queries, tol):
        return choose("auto", log_weights, d, queries, tol, without=())

    few, many = ms.uniform(1000, d=3).log_weights, ms.uniform(50_000, d=3).log_weights
    assert chosen(few, 3, 1, 1e-6) == "dense"
    assert chosen(few, 3, 1000, 1e-6) == "direct"
    assert choose("dense", few, 3, 1000, 1e-6) == "dense"
    assert chosen(many, 3, 50_000, 1e-6) == "tree"
    assert chosen(many, 3, 2, 1e-6) == "direct"  # building a tree would not pay
    assert chosen(many, 8, 50_000, 1e-6) == "direct"
    assert chosen(many, 64, 50_000, 1e-6) == "flash"
    assert chosen(many, 4, 50_000, 1e-6) == "direct"
    assert chosen(many[:5000], 3, 5000, 1e-6) == EITHER
    assert choose("auto", many[:5000], 3, 5000, 1e-6, kernel="unnormalised", without=()) == "direct"
    assert choose("auto", many[:5000], 3, 5000, 1e-6, without={"tree"}) == "direct"
    assert chosen(many, 3, 50_000, 1e-12) == "direct"  # below the rounding that the tree allows for
    with pytest.raises(ms.BadInput, match="tol is 'fine'"):
        choose("auto", many, 3, 20_000, "fine")


def test_between_direct_and_tree_the_tokens_decide():
    spread, places = ms.uniform(4000, d=3, seed=0), ms.uniform(3, d=3, seed=1).points
    near = ms.mixture(4000, places, kappas=1e4, seed=2)
    means = Prepared(spread.log_weights, EITHER, 1e-6)
    for cloud, beta, engine in ((spread, 50.0, "direct"), (near, 50.0, "tree"), (near, 1e6, "direct")):
        means.forget()
        found = means(cloud.points, beta * cloud.points, paired=True)
        alone = Prepared(cloud.log_weights, engine, 1e-6)(cloud.points, beta * cloud.points, paired=True)
        assert torch.equal(found, alone), (beta, engine)
    # Until `forget` the first decision holds.
    found = means(near.points, 50.0 * near.points, paired=True)
    assert torch.equal(found, ms.attend(near, 50.0 * near.points, "direct"))
    not_finite = torch.full_like(near.points, math.nan)
    means.forget()
    assert means(near.points, not_finite).isnan().all()


@pytest.mark.parametrize("seed", range(3))
def test_places_are_counted_by_the_share_of_their_tokens(seed):
    generator = np.random.default_rng(seed)
    cloud = ms.mixture(
        3000, ms.uniform(12, d=3, seed=seed).points, kappas=float(generator.uniform(1e2, 1e4)), seed=seed
    )
    u = float(generator.uniform(10, 1000)) * cloud.points
    side = 1 / math.sqrt(float(u.norm(dim=1).max()))
    counts = Counter(tuple(math.floor(c / side) for c in row) for row in cloud.points.tolist())
    places = 1 / sum((count / 3000) ** 2 for count in counts.values())
    # For as many queries as tokens, N·n/(N + n) = N/2; a query less or more where it decides.
    bound = engines.EITHER_FROM[3] + engines.PER_CELL * places
    queries = round(bound * 3000 / (3000 - bound)) if bound < 3000 else 0
    u = torch.cat([u] * (1 + queries // 3000))
    assert not engines.crowded(cloud.points, u[: max(1, queries - 3)])
    if queries:
        assert engines.crowded(cloud.points, u[: queries + 3])


@pytest.mark.parametrize("d", [4, 16, 64])
def test_auto_takes_the_tree_for_clusters_in_any_dimension(d, dtype):
    def chosen(cloud, tol=1e-3, **options):
        u = 1e3 * cloud.points
        return choose("auto", cloud.log_weights, d, len(u), tol, at=(cloud.points, u), **options)

    centres = ms.uniform(20, d, seed=1).points
    clusters = ms.mixture(32_000, centres, kappas=400.0, seed=2).to(dtype)
    other = "direct" if d <= 16 else "flash"
    assert chosen(clusters, without=()) == "tree"
    assert chosen(clusters, without=("tree",)) == other
    assert chosen(clusters, tol=1e-12, without=()) == other
    assert chosen(clusters, causal=True, without=()) == other
    assert chosen(ms.Cloud(clusters.points[:2000]), without=()) == other
    assert d == 4 or chosen(ms.uniform(32_000, d, seed=0).to(dtype), without=()) == other


def test_auto_answers_clusters_by_the_tree_within_its_tolerance():
    centres = ms.uniform(20, 16, seed=1).points
    cloud = ms.mixture(40_000, centres, kappas=400.0, seed=2)
    u = 1e3 * cloud.points
    found = ms.attend(cloud, u, tol=1e-3)
    assert torch.equal(found, ms.attend(cloud, u, engine="tree", tol=1e-3))
    exact = ms.attend(cloud, u[:200], engine="dense")
    assert 0 < float((found[:200] - exact).norm(dim=1).max()) <= 1e-3


def test_bad_queries_and_engines_are_refused():
    cloud = ms.uniform(5, d=3)
    with pytest.raises(ms.BadInput, match="engine is 'gpu'; choose one of auto, dense, flash, direct, tree"):
        ms.attend(cloud, np.eye(3), engine="gpu")
    with pytest.raises(ms.BadInput, match="queries have 2 coordinates and the cloud 3"):
        ms.attend(cloud, np.eye(2))
    with pytest.raises(ms.BadInput, match="queries holds a number that is not finite"):
        ms.attend(cloud, [[math.inf, 0, 0]])


@pytest.mark.parametrize("engine", ["tree", EITHER])
def test_engines_with_a_tolerance_refuse_what_is_none(engine):
    cloud = ms.uniform(300, d=3, seed=0)
    for tol in (0.0, 5.0, -1.0):
        with pytest.raises(ms.BadInput, match="tolerance between 0 and 1"):
            ms.attend(cloud, cloud.points, engine=engine, tol=tol)
    block = ms.Block([ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5])], norm="none")
    with pytest.raises(ms.BadInput, match="unit sphere"):
        ms.simulate(block, cloud, beta=5.0, until=0.1, engine=engine)
