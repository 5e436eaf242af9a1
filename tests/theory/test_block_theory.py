"""What is stated about members of the family: verdicts, rates and known results."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import BadInput

HEAD = ms.Head.from_spectra([1.4, 0.9, 0.5], [1.2, 0.8, 0.6], seed=3)
OTHER = ms.Head.from_spectra([1.4, 0.9, 0.5], [1.2, 0.8, 0.6], seed=4)
IDENTITY = ms.Head.from_interaction(np.eye(2), np.eye(2))


@pytest.mark.parametrize("norm", ["ngpt", "pre", "peri"])
def test_approach_of_one_token_at_zero_temperature(norm):
    """The stated rate or power against the equation of one token, written from its formula and solved by scipy."""
    M, B = HEAD.M.numpy(), HEAD.B.numpy()
    theory = ms.Block(HEAD, norm=norm).theory()
    values, vectors = np.linalg.eig(M)
    e = np.real(vectors[:, np.argmax(values.real)])
    start = np.array([0.5, -0.6, 0.62])

    def slope(t, h):
        x = h / np.linalg.norm(h)
        f = M @ x / np.linalg.norm(B.T @ x)
        f = f if norm == "pre" else f / np.linalg.norm(f)
        return f - (f @ x) * x if norm == "ngpt" else f

    times = np.linspace(8, 14, 20) if norm == "ngpt" else np.geomspace(1e4, 1e6, 20)
    h = solve_ivp(slope, (0, times[-1]), start, "DOP853", times, rtol=1e-11, atol=1e-13).y
    x = h / np.linalg.norm(h, axis=0)
    away = np.linalg.norm(x - np.outer(e, np.sign(e @ x[:, -1]) * np.ones(len(times))), axis=0)
    clock = times if norm == "ngpt" else np.log(times)
    measured = -np.polyfit(clock, np.log(away), 1)[0]
    if norm == "ngpt":
        assert theory.power is None
        assert measured == pytest.approx(theory.rate, rel=0.02)
    else:
        assert theory.rate == 0
        assert measured == pytest.approx(theory.power, rel=0.02)


def test_what_is_not_known_is_not_a_number():
    theory = ms.Block(HEAD, causal=True).theory()
    assert math.isnan(theory.rate)
    assert math.isnan(theory.law_rate())
    assert theory.power is None
    with pytest.raises(BadInput, match=r"no limit law: .* causal mask"):
        theory.limit(torch.eye(3))


@pytest.mark.parametrize(
    ("block", "stated", "not_stated"),
    [
        (ms.Block(IDENTITY, causal=True), "converges to the first token", "energy"),
        (ms.Block(HEAD, causal=True), "first token moves by V alone", "converges to the first token"),
        (ms.Block(IDENTITY, kernel="unnormalised"), "never decreases", "unstable"),
        (ms.Block(HEAD, kernel="unnormalised"), "no limit law", "never decreases"),
        (ms.Block(IDENTITY, noise=0.2), "critical_noise(beta, d=2", "never decreases"),
        (ms.Block(HEAD, noise=0.2), "stationary law", "critical_noise"),
        (ms.Block([HEAD, OTHER]), "fixed point", "limit law"),
    ],
)
def test_known_results_are_stated_where_their_assumptions_hold(block, stated, not_stated):
    words = repr(block.theory())
    assert stated in words
    assert not_stated not in words


def test_heads_with_the_same_interaction_are_one_head():
    """Also where the limit points are not isolated: the dominant eigenspace of the sum has two dimensions."""
    B, V = torch.eye(3, dtype=torch.float64), torch.diag(torch.tensor([1.0, 1.0, 0.2], dtype=torch.float64))
    theory = ms.Block([ms.Head.from_interaction(B, V), ms.Head.from_interaction(B, 2 * V)]).theory()
    one = ms.Head.from_interaction(B, 3 * V).theory()
    x = ms.uniform(20, 3, seed=0).points
    torch.testing.assert_close(theory.limit(x), one.limit(x))
    assert theory.rate == pytest.approx(one.rate)
    assert theory.dim == 2


@pytest.mark.parametrize("norm", ["pre", "peri"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_radius_that_shrinks_ends_the_limit_law(norm, count):
    """λ₁ < 0: the radius falls to 0, and the tokens do not stay at the limit points of the sphere."""
    heads = [ms.Head.from_interaction(np.diag([1.0, s]), -np.diag([1.0, 2.0 * s])) for s in (1.0, 1.1)][:count]
    assert ms.Block(heads).theory().no_limit is None
    assert "shrinks to 0" in ms.Block(heads, norm=norm).theory().no_limit
    until = 0.8 if norm == "peri" else 0.8 / count
    run = ms.simulate(ms.Block(heads, norm=norm), ms.uniform(30, 2, seed=0), 50.0, until, tol=1e-3, t_eval=2)
    assert float(run.radii[-1].median()) < 0.5


def test_ngpt_with_a_negative_dominant_eigenvalue_has_a_rate():
    theory = ms.Block(ms.Head.from_interaction(np.eye(2), -np.diag([1.0, 2.0])), norm="ngpt").theory()
    assert theory.rate == pytest.approx(1.0)


def test_a_cluster_of_several_heads_has_no_terminal_phase_by_v_under_other_kernels():
    """A cluster moves by Σ_h Z_h V_h x, with a factor of its own for each head."""
    first = ms.Head.from_interaction(0.1 * np.eye(2), np.diag([1.0, 0.0]))
    second = ms.Head.from_interaction(2.0 * np.eye(2), np.diag([0.0, 0.9]))
    for kernel in ("unnormalised", "sigmoid"):
        block = ms.Block([first, second], kernel=kernel)
        assert block.theory().terminal is None
        run = ms.simulate(block, ms.Cloud([[0.6, 0.8]] * 3), 3.0, 5.0, t_eval=2, progress=False)
        assert run.final.points[0, 1] > 0.98
    assert ms.Block([first, second]).theory().terminal.leading == pytest.approx(1.0)
    assert ms.Block(first, noise=0.1).theory().terminal is None


def test_what_a_member_adds_is_an_assumption_that_fails():
    block = ms.Block([HEAD, HEAD], ms.Perceptron.random(3, 8), norm="pre")
    verdict = block.theory().verdict
    assert {check.name for check in verdict.checks if check.status == "fails"} >= {
        "tokens on the sphere",
        "a single head",
        "attention alone",
    }
    assert verdict["attention alone"].number == 8
    assert verdict["attention to all tokens"].status == "holds"
