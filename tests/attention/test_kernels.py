"""Every kernel, plain and causal, against the literal double loop, exact cases and the other kernels."""

import importlib
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import special

import metastable as ms
from metastable.attention import KERNELS, Attention, Prepared, argmax_mean, choose
from tests import reference

CAUSAL = importlib.import_module("metastable.attention.causal")
EXPONENTIAL = ["softmax", "unnormalised"]
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-14}
TREE = 1e-11
"""The tolerance that the tree is asked for."""


@pytest.fixture(autouse=True)
def _small_leaves(monkeypatch):
    """Small clouds are divided too."""
    monkeypatch.setattr(CAUSAL, "LEAF", 8)


def serves(kernel, engine):
    return kernel in EXPONENTIAL or engine == "dense"


def tokens(n, d, dtype, causal, seed=0):
    """Points, log-weights and queries. Without a mask the weights cover 12 orders of magnitude, and one is 0."""
    cloud = ms.uniform(n, d, seed)
    logs = 12 * math.log(10) * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if n > 2 and not causal:
        logs[n // 2] = -math.inf
    points = cloud.points.to(dtype)
    log_weights = cloud.log_weights if causal else torch.log_softmax(logs, dim=0)
    turn = torch.randn(d, d, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    return points, log_weights.to(dtype), points @ turn


def literal(kernel, causal, points, log_weights, queries):
    lists = (a.double().tolist() for a in (points, log_weights.double().exp(), queries))
    return torch.tensor(reference.attention(kernel, causal, *lists), dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_equals_the_double_loop(kernel, causal, engine, dtype):
    if not serves(kernel, engine):
        return
    for n, d, beta in ((1, 2, 1.0), (2, 3, 0.0), (7, 2, 30.0), (41, 3, 5.0), (25, 6, 15.0)):
        points, log_weights, u = tokens(n, d, dtype, causal, seed=n)
        found = Attention(kernel, causal, log_weights, engine, TREE)(points, beta * u).double()
        expected = literal(kernel, causal, points, log_weights, beta * u)
        size = 1.0
        if kernel == "unnormalised":  # errors are relative to Z
            softmax = literal("softmax", causal, points, log_weights, beta * u)
            size = (expected.norm(dim=1) / softmax.norm(dim=1)).unsqueeze(1)
        reached = float((beta * u).norm(dim=1).max())
        assert bool(((found - expected).abs() <= (ROUNDING[dtype] * (4 + reached) + TREE) * size).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_and_chunks_join(kernel, dtype, monkeypatch):
    """Enough tokens for several blocks and chunks, against one masked matrix."""
    monkeypatch.setattr(importlib.import_module("metastable.attention.linear"), "CHUNK", 50)
    points, log_weights, u = tokens(700, 3, dtype, causal=True)
    found = Attention(kernel, True, log_weights, "dense", 1e-6)(points, u)
    last = literal(kernel, False, points, log_weights, u[-1:])
    assert torch.allclose(found[-1:].double(), last, atol=50 * ROUNDING[dtype])
    for i in (0, 49, 50, 333):
        expected = literal(kernel, False, points[: i + 1], log_weights[: i + 1], u[i : i + 1])
        assert torch.allclose(found[i : i + 1].double(), expected, atol=50 * ROUNDING[dtype])


@pytest.mark.parametrize("kernel", KERNELS)
def test_later_tokens_change_nothing(kernel, engine):
    if not serves(kernel, engine):
        return
    tol = 1e-6
    points, log_weights, u = tokens(60, 3, torch.float64, causal=True)
    other = points.clone()
    other[31:] = ms.uniform(29, 3, seed=9).points
    attention = Attention(kernel, True, log_weights, engine, tol)
    first, second = attention(points, u)[:31], attention(other, torch.cat([u[:31], 3 * other[31:]]))[:31]
    if engine == "tree":
        z = reference_z(points, log_weights, u)[:31] if kernel == "unnormalised" else 1.0
        assert bool(((first - second).norm(dim=1) <= 2 * tol * z).all())
    else:
        assert torch.equal(first, second)


def reference_z(points, log_weights, queries):
    """Z_i = Σ_{j≤i} w_j e^{⟨u_i,y_j⟩}."""
    return ((queries @ points.T + log_weights).exp().tril()).sum(dim=1)


def test_softmax_is_what_it_was(engine, dtype):
    points, log_weights, u = tokens(300, 3, dtype, causal=False)
    before = Prepared(log_weights, choose(engine, log_weights, 3, 300, 1e-6), 1e-6)
    now = Attention("softmax", False, log_weights, engine, 1e-6)
    for x in (points, points.flip(0)):
        assert torch.equal(now(x, 20 * u), before(x, 20 * u, paired=True))
    now.forget()
    before.forget()
    assert torch.equal(now(points, u), before(points, u, paired=True))
    assert torch.equal(now(points, u, hard=True), argmax_mean(points, log_weights, u))


def test_sums_keep_the_mean_of_the_exact_engines(engine, dtype):
    points, log_weights, u = tokens(300, 3, dtype, causal=False)
    prepared = Prepared(log_weights, engine, 1e-9)
    sums = prepared.sums(points, 20 * u, paired=True)
    lists = [a.double().tolist() for a in (points, log_weights.double().exp(), 20 * u)]
    expected = [reference.log_partition(q, *lists[:2]) for q in lists[2][:20]]
    assert sums.log_z[:20].tolist() == pytest.approx(expected, abs=300 * ROUNDING[dtype] + 1e-9)
    assert float((sums.mean - prepared(points, 20 * u, paired=True)).abs().max()) <= 2e-9
    if engine != "tree":
        assert torch.equal(sums.mean, prepared(points, 20 * u))
        assert not sums.bound.any()
        assert not sums.log_z_bound.any()


class TestHardmax:
    def test_causal_hardmax_is_the_best_token_so_far(self, dtype):
        points, log_weights, u = tokens(50, 3, dtype, causal=True)
        found = Attention("softmax", True, log_weights, "auto", 1e-6)(points, u, hard=True)
        for i in range(50):
            assert torch.allclose(found[i], points[: i + 1][(points[: i + 1] @ u[i]).argmax()])

    def test_ties_are_averaged_once_they_are_seen(self):
        points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [0.6, 0.8]], dtype=torch.float64)
        u = torch.tensor([[-1.0, 0.0]] * 4, dtype=torch.float64)
        found = Attention("softmax", True, torch.zeros(4, dtype=torch.float64), "auto", 1e-6)(points, u, hard=True)
        expected = [[1.0, 0.0], [0.6, 0.8], [0.6, 0.0], [0.6, 0.8 / 3]]
        assert found.flatten().tolist() == pytest.approx(np.ravel(expected).tolist(), abs=1e-15)

    @pytest.mark.parametrize("kernel", ["unnormalised", "sigmoid", "linear"])
    def test_it_belongs_to_softmax(self, kernel):
        points, log_weights, u = tokens(5, 2, torch.float64, causal=True)
        with pytest.raises(ms.BadInput, match="only softmax attention has a hardmax limit"):
            Attention(kernel, False, log_weights, "auto", 1e-6)(points, u, hard=True)


class TestExactCases:
    def test_two_tokens(self, engine):
        """Tokens ±e₁ with weights ½: softmax tanh(b), USA sinh(b), sigmoid tanh(b/2)/2, linear b, at u = b e₁."""
        b = 1.5
        points = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        values = {"softmax": math.tanh(b), "unnormalised": math.sinh(b), "sigmoid": math.tanh(b / 2) / 2, "linear": b}
        for kernel, value in values.items():
            if serves(kernel, engine):
                found = Attention(kernel, False, torch.tensor([0.5, 0.5], dtype=torch.float64).log(), engine, TREE)(
                    points, b * points
                )
                assert found[:, 0].tolist() == pytest.approx([value, -value], abs=1e-10)

    @pytest.mark.parametrize("causal", [False, True])
    def test_equal_tokens(self, engine, causal):
        """n tokens at y: softmax and linear give y, USA e^b y and sigmoid σ(b) y, times the share i/n that is seen."""
        n, b = 30, 3.0
        points = ms.uniform(1, 3, seed=2).points.repeat(n, 1)
        log_weights = torch.full((n,), -math.log(n), dtype=torch.float64)
        seen = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(1) / n if causal else torch.ones(n, 1).double()
        factors = {
            "softmax": 1.0,
            "linear": 1.0,
            "unnormalised": math.exp(b) * seen,
            "sigmoid": seen / (1 + math.exp(-b)),
        }
        for kernel, factor in factors.items():
            if serves(kernel, engine):
                found = Attention(kernel, causal, log_weights, engine, TREE)(points, b * points)
                assert torch.allclose(found, factor * points, atol=1e-9)

    @pytest.mark.parametrize("beta", [0.5, 10.0, 200.0])
    def test_uniform_law_on_the_circle(self, engine, beta):
        """Z = I₀(β) and softmax mean = I₁(β)/I₀(β) x. 300 equally spaced tokens integrate both to rounding."""
        cloud = ms.equally_spaced(300)
        sums = Prepared(cloud.log_weights, engine, 1e-9).sums(cloud.points, beta * cloud.points, paired=True)
        log_z = math.log(special.ive(0, beta)) + beta
        assert sums.log_z.tolist() == pytest.approx([log_z] * 300, abs=2e-9)
        mean = special.ive(1, beta) / special.ive(0, beta)
        assert torch.allclose(sums.mean, mean * cloud.points, atol=2e-9)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_softmax_minus_linear_is_of_second_order(causal):
    points, log_weights, u = tokens(60, 3, torch.float64, causal)
    steps = torch.logspace(-4, -2, 5, dtype=torch.float64)
    softmax, linear = (Attention(kernel, causal, log_weights, "dense", 1e-6) for kernel in ("softmax", "linear"))
    errors = [float((softmax(points, h * u) - linear(points, h * u)).norm(dim=1).max()) for h in steps]
    order = np.polyfit(np.log(steps.numpy()), np.log(errors), 1)[0]
    assert order == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_sum_beyond_the_range_is_infinite_without_a_warning(engine, dtype, causal):
    points, log_weights, _ = tokens(20, 2, dtype, causal=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention = Attention("unnormalised", causal, log_weights, engine, 1e-6)
        assert torch.isinf(attention(points, 1e4 * points)).all()
        assert not attention(points[:1].repeat(20, 1), -1e4 * points[:1].repeat(20, 1)).any()
        for kernel in KERNELS:
            if kernel != "unnormalised" and serves(kernel, engine):
                assert torch.isfinite(Attention(kernel, causal, log_weights, engine, 1e-6)(points, 1e4 * points)).all()


def test_queries_that_are_not_finite_give_no_finite_answer(engine):
    points, log_weights, u = tokens(20, 3, torch.float64, causal=True)
    u[7] = math.nan
    for causal in (False, True):
        for kernel in EXPONENTIAL:
            assert not torch.isfinite(Attention(kernel, causal, log_weights, engine, 1e-6)(points, u)[7]).any()


class TestChoice:
    @pytest.mark.parametrize("kernel", ["sigmoid", "linear"])
    def test_engines_for_exponentials_are_refused(self, kernel):
        log_weights = torch.zeros(5)
        for name in ("tree", "flash", "direct"):
            with pytest.raises(ms.BadInput, match="computes sums of exponentials only"):
                Attention(kernel, False, log_weights, name, 1e-6)
        attention = Attention(kernel, False, log_weights, "auto", 1e-6)
        attention(torch.eye(5), torch.eye(5))
        assert attention.engine == "dense"

    def test_bad_names_are_refused(self):
        with pytest.raises(ms.BadInput, match="did you mean 'softmax'"):
            Attention("softmx", False, torch.zeros(5), "auto", 1e-6)
        with pytest.raises(ms.BadInput, match="engine is 'gpu'"):
            Attention("softmax", True, torch.zeros(5), "gpu", 1e-6)
        with pytest.raises(ms.BadInput, match="tolerance between 0 and 1"):
            Attention("softmax", True, torch.zeros(5), "tree", 2)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_a_mask_needs_equal_weights(self, kernel):
        with pytest.raises(ms.BadInput, match="use equal weights"):
            Attention(kernel, True, torch.arange(5.0), "auto", 1e-6)

    def test_auto_takes_the_tree_where_it_pays(self):
        few, many = (torch.zeros(n, dtype=torch.float64) for n in (1000, 50_000))
        for kernel in EXPONENTIAL:
            assert choose("auto", few, 3, 1000, 1e-6, kernel, causal=True, without=()) == "direct"
            assert choose("auto", many, 3, 50_000, 1e-6, kernel, causal=True, without=()) == "tree"
            assert choose("auto", many, 5, 50_000, 1e-6, kernel, causal=True, without=()) == "direct"
            assert choose("auto", many, 3, 50_000, 1e-6, kernel, without=()) == "tree"

    def test_the_engine_of_auto_is_known_after_the_first_call(self):
        points, log_weights, u = tokens(30, 3, torch.float64, causal=True)
        attention = Attention("softmax", True, log_weights, "auto", 1e-6)
        assert attention.engine == "auto"
        attention(points, u)
        assert attention.engine == "dense"
