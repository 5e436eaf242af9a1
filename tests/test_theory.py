"""The theory of a head against matrices built with a known answer."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable import transport
from metastable.theory.spectrum import Spectrum
from tests.problems import circle_head, head_with_generator, prescribed, random_matrix

I3 = torch.eye(3, dtype=torch.float64)


def theory_of(M, seed=0):
    return head_with_generator(torch.as_tensor(M, dtype=torch.float64), seed).theory()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-2, 1), min_size=1, max_size=5),
    st.integers(1, 3),
    st.floats(1.3, 3),
    st.integers(0, 10_000),
)
def test_prescribed_eigenspace_gap_and_projector_are_found(rest, dominant, leading, seed):
    values = [leading] * dominant + rest
    M, projector = prescribed(values, dominant, seed)
    cond = float(torch.linalg.cond(torch.linalg.eig(M)[1]))
    if cond > 1e4:
        return
    th = theory_of(M, seed)
    assert th.dim == dominant
    assert th.gap == pytest.approx(leading - max(rest), abs=1e-6)
    assert torch.allclose(th.projector, projector, atol=1e-7 * cond**2)
    x = random_matrix(len(values), seed + 1)
    pushed = x @ projector.T
    assert torch.allclose(th.limit(x), pushed / pushed.norm(dim=1, keepdim=True), atol=1e-6 * cond**2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(5, 8), st.booleans())
def test_factored_spectrum_equals_the_dense_one(seed, k, d, with_output):
    generator = torch.Generator().manual_seed(seed)
    Q, K = (torch.randn(k, d, generator=generator, dtype=torch.float64) for _ in range(2))
    V, outer = torch.randn(d, d, generator=generator, dtype=torch.float64), None
    if with_output:
        V, outer = V[:k], torch.randn(d, k, generator=generator, dtype=torch.float64)
    head = ms.Head(Q, K, V, output=outer)
    th, dense = head.theory(), Spectrum(head.M)
    order = lambda z: sorted(z.tolist(), key=lambda v: (round(-v.real, 6), round(v.imag, 6)))  # noqa: E731
    assert np.allclose(order(th.eigenvalues), order(torch.linalg.eigvals(head.M)), atol=1e-7)
    assert th.attention._small.shape == (k, k)
    if th.attention.leading > 1e-3 and not th.attention.rotates:
        assert torch.allclose(th.projector, dense.projector, atol=1e-7)
        assert th.attention.projector_norm == pytest.approx(float(torch.linalg.matrix_norm(th.projector, 2)), rel=1e-6)
        x = random_matrix(d, seed)
        assert torch.allclose(th.limit(x), dense.limit(x), atol=1e-6)
    terminal = Spectrum(head.V)
    assert th.terminal.gap == pytest.approx(terminal.gap, abs=1e-6)
    assert torch.allclose(th.terminal.projector, terminal.projector, atol=1e-6)


def test_limit_map_is_where_the_exact_flow_ends():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=1)
    cloud = ms.uniform(200, d=3, seed=0)
    end = ms.zero_temperature_flow(head, cloud, torch.tensor([80.0]))[0]
    assert torch.allclose(end, head.theory().limit(cloud.points), atol=1e-7)


def test_token_rate_is_the_rate_of_the_exact_flow():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
    th = head.theory()
    frames = ms.zero_temperature_flow(head, ms.uniform(200, d=3, seed=0), torch.tensor([0.0, 20.0, 25.0]))
    distance = (frames[1:] - th.limit(frames[0])).norm(dim=2)
    rates = (distance[0] / distance[1]).log() / 5.0
    assert float(rates.median()) == pytest.approx(th.rate, rel=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_law_rate_is_the_decay_of_the_exact_law(seed):
    """On a graded cloud W_p(μ_t^∞, ν) must fall at min(c, κ dim E/p); with clocks that differ, κ ≠ c."""
    head = circle_head(0.3, (1.4, 0.35), -0.1 * seed, (1.2, 0.9))
    th = head.theory()
    cloud = ms.graded(1_500, head, smallest=1e-30)
    times = torch.tensor([0.0, 12.0, 16.0])
    pushed = th.limit(cloud.points)
    frames = ms.zero_temperature_flow(head, cloud, times)
    for p in (1, 2):
        first, last = (transport.to_limit(cloud.moved_to(x), pushed, th.basis, p, "chordal").value for x in frames[1:])
        assert math.log(first / last) / 4.0 == pytest.approx(th.law_rate(p), rel=0.03)


def test_law_rate_may_be_decided_by_a_later_eigenvector():
    """M = diag(1, ½, 0.4) with a slow clock at e₃: Σ(λ_j − λ₃)/(2|Bᵀe₃|) = 0.07, far below c and κ/2 = ½·½/0.2."""
    B, V = (torch.diag(torch.tensor(v, dtype=torch.float64)) for v in ([1, 0.2, 5], [1, 2.5, 0.08]))
    head = ms.Head.from_interaction(B, V)
    th = head.theory()
    assert th.law_rate() == pytest.approx(0.07)
    cloud = ms.fibonacci(10_000)
    frames = ms.zero_temperature_flow(head, cloud, torch.tensor([25.0, 35.0]))
    pushed = th.limit(cloud.points)
    first, last = (transport.to_limit(cloud.moved_to(x), pushed, th.basis, 2, "chordal").value for x in frames)
    assert math.log(first / last) / 10 == pytest.approx(0.07, rel=0.08)


def test_escape_rate_is_the_speed_of_leaving_the_repelling_point():
    head = circle_head(0.3, (1.4, 0.35), -0.2, (1.2, 0.9))
    th = head.theory()
    repelling = torch.linalg.eig(head.M)[1].real[:, int(torch.linalg.eigvals(head.M).real.argmin())]
    start = ms.Cloud((repelling + 1e-9 * th.basis[:, 0])[None])
    frames = ms.zero_temperature_flow(head, start, torch.tensor([0.0, 2.0, 4.0]))
    height = (frames @ th.co_basis).abs().squeeze()
    assert math.log(height[2] / height[1]) / 2 == pytest.approx(th.escape_rate, rel=1e-3)


def test_escape_from_a_rotating_plane_averages_the_clock_over_a_turn():
    M = torch.tensor([[1.0, 0, 0], [0, 0.4, -2.0], [0, 2.0, 0.4]], dtype=torch.float64)
    head = head_with_generator(M, seed=5)
    th = head.theory()
    turns = 6 * math.pi / 2.0
    start = ms.Cloud([[1e-12, 1.0, 0.0]])
    period = turns / 6 * 0.6 / th.escape_rate
    frames = ms.zero_temperature_flow(head, start, torch.tensor([0.0, period, 5 * period]))
    grown = math.log(float(frames[2, 0, 0] / frames[1, 0, 0])) / (4 * period)
    assert grown == pytest.approx(th.escape_rate, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_lipschitz_constant_equals_a_fine_grid_of_finite_differences(seed):
    """Independent of the formula for A(x): differentiate the field along geodesics on a grid of the circle."""
    from metastable.flow.fields import zero_temperature

    head = circle_head(0.2 + 0.3 * seed, (1.4, 0.6), -0.3, (1.2, 0.5 - 0.3 * seed))
    angles = torch.linspace(0, 2 * math.pi, 40_001, dtype=torch.float64)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    tangents = torch.stack([-angles.sin(), angles.cos()], dim=1)
    speed = (zero_temperature(head, points) * tangents).sum(dim=1)
    slope = (speed[2:] - speed[:-2]) / (angles[2:] - angles[:-2])
    assert head.theory().lipschitz == pytest.approx(float(slope.max()), rel=1e-5)


def test_two_flows_separate_at_most_at_the_lipschitz_rate():
    head = ms.Head.from_spectra([1.5, 0.8, 0.5], [1.2, -0.4, 0.5], seed=2)
    L = head.theory().lipschitz
    x = ms.uniform(4000, d=3, seed=1).points
    step = 1e-5 * ms.uniform(4000, d=3, seed=2).points
    times = torch.tensor([0.0, 0.02])
    one, two = (ms.zero_temperature_flow(head, ms.Cloud(y), times) for y in (x, x + step))
    gaps = (one - two).norm(dim=2)
    growth = (gaps[1] / gaps[0]).log() / 0.02
    assert float(growth.max()) <= L * 1.02
    assert float(growth.max()) >= L * 0.8


def test_complex_dominant_pair_has_no_limit():
    th = theory_of([[0.5, -1, 0], [1, 0.5, 0], [0, 0, -1]])
    assert th.verdict["λ₁ real"].status == "fails"
    assert th.verdict["λ₁ real"].number == pytest.approx(1.0)
    assert th.dim == 2
    assert th.rate == 0 == th.law_rate()
    with pytest.raises(ms.BadInput, match=r"complex dominant pair 0\.5 ± 1i.*rotate"):
        th.limit(I3)


@pytest.mark.parametrize("size", [2, 3])
def test_jordan_block_is_seen_and_its_limit_is_the_last_vector_standing(size):
    X = random_matrix(size + 1, 7)
    J = torch.diag(torch.tensor([1.0] * size + [0.2], dtype=torch.float64))
    for i in range(size - 1):
        J[i, i + 1] = 0.7
    M = X @ J @ torch.linalg.inv(X)
    th = theory_of(M)
    assert th.verdict["λ₁ semisimple"].status == "fails"
    assert "Jordan" in th.verdict["λ₁ semisimple"].sentence
    assert th.attention.multiplicity == size
    assert th.dim == 1
    assert th.rate == 0.0
    eigenvector = X[:, 0] / X[:, 0].norm()
    x = random_matrix(size + 1, 8)
    assert torch.allclose(th.limit(x) @ eigenvector, torch.linalg.solve(X, x.T)[size - 1].sign(), atol=1e-4)


@pytest.mark.parametrize(
    ("M", "sentence"), [(I3, "every eigenvalue is dominant"), (0 * I3, "M = 0")], ids=["identity", "zero"]
)
def test_no_gap_has_its_own_sentence(M, sentence):
    th = ms.Head.from_interaction(I3, M).theory()
    assert th.verdict["gap > 0"].status == "fails"
    assert sentence in th.verdict["gap > 0"].sentence
    assert th.dim == 3
    assert math.isinf(th.rate)
    assert torch.allclose(th.limit(I3), I3)


def test_tiny_gap_is_doubtful():
    th = ms.Head.from_interaction(I3, torch.diag(torch.tensor([1.0, 0.9999, 0.1], dtype=torch.float64))).theory()
    assert th.verdict["gap > 0"].status == "doubtful"
    assert th.dim == 1


def test_singular_interaction_is_named_and_the_theory_still_applies_when_positive():
    B = torch.diag(torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    th = ms.Head.from_interaction(B, I3).theory()
    assert th.verdict["B invertible"].status == "fails"
    assert th.verdict["Re λ₁ > 0 if B is singular"].status == "holds"
    assert math.isinf(th.lipschitz)
    assert torch.allclose(th.limit(torch.ones(1, 3, dtype=torch.float64)), I3[:1])
    negative = ms.Head.from_interaction(B, -I3).theory()
    assert negative.verdict["Re λ₁ > 0 if B is singular"].status == "fails"
    with pytest.raises(ms.BadInput, match="does not concentrate tokens anywhere of its own"):
        negative.limit(I3)


def test_zero_interaction_has_its_own_sentence():
    assert "B = 0" in ms.Head.from_interaction(0 * I3, I3).theory().verdict["B invertible"].sentence


def test_factored_head_without_positive_eigenvalue_is_ruled_by_the_kernel():
    Q = random_matrix(6, 0)[:2]
    th = ms.Head(Q, Q, -torch.eye(6, dtype=torch.float64)).theory()
    assert th.attention.from_kernel
    assert th.attention.multiplicity == th.dim == 4
    assert "kernel" in th.verdict["Re λ₁ > 0 if B is singular"].sentence
    assert torch.allclose(th.projector, Spectrum(th.head.M).projector, atol=1e-8)
    assert th.rate == 0.0


def test_factored_rotation_on_the_imaginary_axis_shares_its_place_with_the_kernel():
    Q = torch.eye(5, dtype=torch.float64)[:3]
    V = torch.zeros(5, 5, dtype=torch.float64)
    V[:3, :3] = torch.tensor([[0, -2.0, 0], [2.0, 0, 0], [0, 0, -1.0]])
    th = ms.Head(Q, Q, V).theory()
    assert "rotate" in th.no_limit
    assert th.dim == th.attention.multiplicity == 4
    assert torch.allclose(th.projector, torch.diag(torch.tensor([1.0, 1, 0, 1, 1], dtype=torch.float64)))
    assert str(th.verdict)


def test_strong_shear_is_not_mistaken_for_a_jordan_block():
    M = torch.tensor([[1.0, 1e6], [0.0, 0.5]], dtype=torch.float64)
    th = ms.Head.from_interaction(torch.eye(2), M).theory()
    assert th.gap == pytest.approx(0.5)
    assert th.dim == 1
    assert th.verdict["λ₁ semisimple"].status == "holds"


def test_rank_deficient_factors_are_counted():
    Q = random_matrix(6, 0)[:3].clone()
    Q[2] = Q[0] + Q[1]
    th = ms.Head(Q, random_matrix(6, 1)[:3], random_matrix(6, 2)).theory()
    assert "rank 2 (its factors would allow 3)" in th.verdict["B invertible"].sentence
    assert str(th.verdict)


@pytest.mark.parametrize(
    ("V", "status", "word"),
    [
        (I3, "holds", "narrow"),
        (-I3, "fails", "come apart"),
        (0 * I3, "doubtful", "neither"),
        ([[0.3, -1, 0], [1, 0.3, 0], [0, 0, 0.1]], "fails", "circle"),
    ],
)
def test_terminal_phase_has_a_sentence_for_each_kind_of_value_matrix(V, status, word):
    head = ms.Head.from_interaction(I3, torch.as_tensor(V, dtype=torch.float64))
    check = head.theory().verdict["terminal phase of V"]
    assert check.status == status
    assert word in check.sentence


def test_offset_is_reported_relative_to_the_interaction():
    head = ms.Head(I3, I3, I3, offset=[0.0, 0.5, 0.0])
    check = head.theory().verdict["scores linear"]
    assert check.status == "fails"
    assert check.number == pytest.approx(0.5)


def test_overall_status_is_the_worst_and_unknown_names_are_refused():
    good = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0).theory().verdict
    assert good.status == "holds"
    with pytest.raises(KeyError, match="no check named"):
        good["nonsense"]


def test_ill_conditioned_eigenbasis_and_oblique_projector_are_doubtful():
    M = torch.tensor([[1.0, 1e4, 0], [0, 0.5, 0], [0, 0, 0.1]], dtype=torch.float64)
    th = ms.Head.from_interaction(I3, M).theory()
    assert th.verdict["eigenbasis conditioned"].status == "doubtful"
    assert th.verdict["M near normal"].status == "doubtful"
    assert th.attention.projector_norm == pytest.approx(math.hypot(1, 2e4), rel=1e-6)


def test_best_time_grows_like_log_beta():
    th = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0).theory()
    assert th.best_time(1e4) == pytest.approx(2 * th.best_time(1e2))
    with pytest.raises(ms.BadInput, match="beta is 1"):
        th.best_time(1)
    with pytest.raises(ms.BadInput, match=r"p is 0\.5"):
        th.law_rate(0.5)
