"""The direct engine: its exponential, its sums block by block, and what it does with numbers that are not finite."""

import importlib
import math
import platform

import mpmath
import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable.attention.dense import dense_sums
from metastable.attention.direct import compile_kernel, direct, direct_sums, layout

KERNELS = importlib.import_module("metastable.attention.direct.kernels")
ENGINE = importlib.import_module("metastable.attention.direct")
DIMENSIONS = [1, 2, 3, 5, 8, 9, 16, 17]
"""Alone, in one group, and in groups with and without padding."""
ACCURACY = {torch.float32: 1e-6, torch.float64: 1e-14}
ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def tokens(n, d, seed, dtype):
    """Tokens in the unit ball with weights over several orders of magnitude."""
    draw = np.random.default_rng(seed)
    points = draw.uniform(-1, 1, (n, d)) / math.sqrt(d)
    return torch.from_numpy(points).to(dtype), torch.from_numpy(draw.normal(0, 3, n)).to(dtype)


def exact_sums(points, log_weights, queries, causal=False):
    """Means and log Z in extended precision, from the formula."""
    y, logs, u = (a.numpy().astype(np.longdouble) for a in (points, log_weights, queries))
    scores = u @ y.T + logs
    if causal:
        scores[np.triu_indices(len(scores), 1)] = -np.inf
    top = scores.max(axis=1, keepdims=True)
    terms = np.exp(scores - top)
    total = terms.sum(axis=1)
    return (terms @ y) / total[:, None], np.log(total) + top[:, 0]


def test_the_exponential_keeps_to_its_bound(dtype):
    """Two tokens e_1 and e_2 and u = −x e_2: the second coordinate of the mean is e^{−x} / (1 + e^{−x})."""
    x = torch.linspace(0, 80 if dtype == torch.float32 else 700, 4001).to(dtype)
    queries = torch.stack([torch.zeros_like(x), -x], dim=1)
    found = direct(torch.eye(2, dtype=dtype), torch.zeros(2, dtype=dtype), queries)[:, 1]
    with mpmath.workdps(40):
        for number, value in zip(x.tolist(), found.tolist(), strict=True):
            exact = mpmath.exp(-number) / (1 + mpmath.exp(-number))
            # The score x log2(e) is rounded twice.
            allowed = (3e-7 if dtype == torch.float32 else 7e-16) + 2 * ROUNDING[dtype] * (1 + 1.5 * number)
            assert abs(value / exact - 1) <= allowed


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_sums_are_exact_to_the_stated_accuracy(dtype, d, causal):
    n = 1000
    points, log_weights = tokens(n, d, seed=d, dtype=dtype)
    if causal:
        log_weights = torch.zeros_like(log_weights)
    queries, _ = tokens(n if causal else 70, d, seed=d + 50, dtype=dtype)
    mean, log_z = direct_sums(points, log_weights, queries, causal)
    exact, exact_log_z = exact_sums(points, log_weights, queries, causal)
    assert mean.dtype == log_z.dtype == dtype
    assert float(np.abs(mean.numpy() - exact).max()) <= ACCURACY[dtype]
    assert float(np.abs(log_z.numpy() - exact_log_z).max()) <= 10 * ACCURACY[dtype]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 700),
    st.sampled_from([2, 3, 9]),
    st.floats(0, 1e5),
    st.sampled_from([64 * 3 * 8, 4096, 2**20]),
    st.booleans(),
    st.sampled_from(["ascending", "descending", "random"]),
)
def test_blocks_of_any_size_and_order_give_the_same_sums(n, d, size, block_bytes, causal, order):
    """With ascending scores every block raises the largest score; with descending ones most blocks are left out."""
    points, log_weights = tokens(n, d, seed=n, dtype=torch.float64)
    queries = size * tokens(n if causal else 5, d, seed=n + 1, dtype=torch.float64)[0]
    if order != "random":
        points = points[(points @ queries[0]).argsort(descending=order == "descending")]
    if causal:
        log_weights = torch.zeros_like(log_weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINE, "BLOCK_BYTES", block_bytes)
        mean, log_z = direct_sums(points, log_weights, queries, causal)
    exact, exact_log_z = exact_sums(points, log_weights, queries, causal)
    # Scores of size |u| carry rounding errors of |u|·1e-16.
    assert float(np.abs(mean.numpy() - exact).max()) <= 1e-14 + 4e-15 * size
    assert float(np.abs(log_z.numpy() - exact_log_z).max()) <= 1e-13 + 4e-15 * size


def test_threads_change_no_bit(dtype, monkeypatch):
    points, log_weights = tokens(900, 3, seed=0, dtype=dtype)
    one = direct(points, log_weights, 20 * points)
    monkeypatch.setattr(ENGINE, "SERIAL", 10_000)
    monkeypatch.setenv("METASTABLE_THREADS", "3")
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(direct(points, log_weights, 20 * points), one)
    finally:
        torch.set_num_threads(before)


def test_tokens_of_weight_zero_are_left_out(dtype):
    points, log_weights = tokens(300, 3, seed=0, dtype=dtype)
    log_weights[::3] = -math.inf
    alive = log_weights > -math.inf
    found = direct_sums(points, log_weights, 1e3 * points[:9])
    expected = direct_sums(points[alive], log_weights[alive], 1e3 * points[:9])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38, 1e308])
def test_a_query_that_is_not_finite_or_overflows_spoils_its_own_row_only(dtype, bad):
    points, log_weights = tokens(200, 3, seed=0, dtype=dtype)
    queries = 9 * points[:80].clone()
    queries[7, 1] = torch.tensor(bad, dtype=torch.float64).to(dtype)
    mean, log_z = direct_sums(20 * points, log_weights, queries)
    good = torch.arange(80) != 7
    assert torch.isfinite(mean[good]).all()
    assert torch.isfinite(log_z[good]).all()
    if not (dtype == torch.float64 and bad == 1e38):
        assert torch.isnan(mean[7]).all()
        assert torch.isnan(log_z[7])
    expected = direct_sums(20 * points, log_weights, queries[good])
    assert torch.equal(mean[good], expected[0])


def test_a_token_that_is_not_finite_spoils_every_row(dtype):
    points, log_weights = tokens(200, 3, seed=0, dtype=dtype)
    for bad in (math.nan, math.inf):
        spoilt = points.clone()
        spoilt[150, 2] = bad
        assert torch.isnan(direct(spoilt, log_weights, points[:5])).all()


def test_views_and_reversed_copies_are_taken_as_they_are(dtype):
    points, log_weights = tokens(200, 6, seed=0, dtype=dtype)
    wide, logs, queries = points[::2, :3], log_weights[::2], points.T[:3, 5:50].T
    assert not queries.is_contiguous()
    expected = dense_sums(wide.double(), logs.double(), queries.double())
    for a, b in zip(direct_sums(wide, logs, queries), expected, strict=True):
        assert torch.allclose(a.double(), b, atol=1e-5 if dtype == torch.float32 else 1e-13)


def test_other_devices_are_left_to_flash(monkeypatch):
    """There may be no GPU here: it is enough that flash is asked, and for the same."""
    asked = []
    monkeypatch.setattr(ENGINE, "flash_sums", lambda *arguments: asked.append(arguments) or (arguments[0], None))
    points = torch.zeros(9, 3, device="meta")
    assert direct(points, points[:, 0], points, causal=True) is points
    assert len(asked) == 1
    assert asked[0][-1] is True


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 instructions")
@pytest.mark.parametrize("d", [3, 16])
def test_the_loops_are_vector_instructions_without_calls(dtype, d, monkeypatch):
    width, groups = layout(d)
    kept = KERNELS.sums_of(width, groups > 1, dtype == torch.float32)
    # A kernel from the cache cannot be inspected.
    fresh = numba.jit(**kept.targetoptions)(kept.py_func)
    monkeypatch.setattr(KERNELS, "sums_of", lambda *_: fresh)
    compile_kernel(d, dtype)
    (code,) = fresh.inspect_asm().values()
    kind = "ps" if dtype == torch.float32 else "pd"
    wide = [line for line in code.splitlines() if "zmm" in line or "ymm" in line]
    assert sum(f"{kind}\t" in line and "fmadd" in line for line in wide) >= 2 * width
    assert any(f"max{kind}" in line for line in wide)
    assert "exp2f" not in code


def test_it_is_an_engine_of_attend():
    cloud = ms.uniform(300, d=3, seed=0)
    found = ms.attend(cloud, 10 * cloud.points, engine="direct")
    assert torch.allclose(found, ms.attend(cloud, 10 * cloud.points, engine="dense"), atol=1e-14)
