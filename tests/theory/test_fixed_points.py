"""Fixed points of several heads against one head's eigenvectors, arcs of the circle and an independent root finder."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

import metastable as ms
from metastable.errors import BadInput
from metastable.theory.fixed_points import fixed_points
from metastable.theory.several_heads import SeveralHeads
from tests.problems import random_matrix

I3 = torch.eye(3, dtype=torch.float64)


def random_head(d, seed):
    return ms.Head.from_interaction(random_matrix(d, seed), random_matrix(d, seed + 1000))


def axis_heads(strength=10.0):
    """Three heads on the 2-sphere, each with one strong axis in B and a value matrix close to I.

    û_h is close to ±(axis h), so G is close to a corner of a cube: 8 stable points, 6 sources and 12 saddles.
    """
    heads = []
    for k in range(3):
        B = torch.eye(3, dtype=torch.float64)
        B[k, k] = strength
        V = torch.eye(3, dtype=torch.float64) + 0.05 * (random_matrix(3, k) + random_matrix(3, k).T)
        heads.append(ms.Head.from_interaction(B, V))
    return heads


def literal(heads, x):
    """P_x Σ V Bᵀx/|Bᵀx| at one numpy point, from the formula."""
    total = np.zeros_like(x)
    for head in heads:
        u = head.B.numpy().T @ x + (0.0 if head.offset is None else head.offset.numpy())
        total = total + head.V.numpy() @ u / np.linalg.norm(u)
    return total - (total @ x) * x


def differenced(F, x):
    """Eigenvalues of the derivative of F(y/|y|) at y = x on the tangent space, by central differences."""
    d, h = len(x), 1e-6
    extended = lambda y: F(y / np.linalg.norm(y))  # noqa: E731
    J = np.stack([(extended(x + h * e) - extended(x - h * e)) / (2 * h) for e in np.eye(d)], axis=1)
    frame = np.linalg.qr(np.column_stack([x, np.random.default_rng(0).normal(size=(d, d - 1))]))[0][:, 1:]
    return np.sort_complex(np.linalg.eigvals(frame.T @ J @ frame))


@pytest.mark.parametrize(("d", "seed"), [(2, 4), (3, 6), (5, 3), (12, 2)])
def test_fixed_points_of_one_head_are_its_real_eigenvectors(d, seed):
    head = random_head(d, seed)
    values, vectors = torch.linalg.eig(head.M)
    real = vectors[:, values.imag.abs() < 1e-10].real.T
    expected = torch.cat([real, -real])
    found = fixed_points([head], starts=64)
    assert len(found) == len(expected)
    assert float(torch.cdist(expected, found.points).min(dim=1).values.max()) < 1e-8
    assert float(found.residuals.max()) < 1e-12
    assert found.complete is True


@pytest.mark.parametrize("d", [2, 3, 6])
def test_stable_points_and_rate_are_those_of_the_theory(d):
    spectra = [2.0, 1.3, 1.0, 0.8, 0.5, 0.4][:d]
    head = ms.Head.from_spectra(spectra, spectra, seed=1)
    found, theory = fixed_points([head], starts=64), head.theory()
    assert found.count("stable") == 2
    assert found.count("unstable") == 2
    assert torch.allclose(found.stable[0].abs(), theory.basis[:, 0].abs(), atol=1e-10)
    assert torch.allclose(found.stable[0], -found.stable[1], atol=1e-12)
    assert float(found.rates[0]) == pytest.approx(theory.rate, rel=1e-9)
    assert len(found) == 2 * d


def test_two_heads_with_one_interaction_add_their_values():
    B, V1, V2 = (random_matrix(4, seed) for seed in (5, 6, 8))
    two = fixed_points([ms.Head.from_interaction(B, V1), ms.Head.from_interaction(B, V2)], starts=64)
    one = fixed_points([ms.Head.from_interaction(B, V1 + V2)], starts=64)
    assert len(two) == len(one) > 0
    assert torch.allclose(two.points, one.points, atol=1e-10)
    assert torch.allclose(two.eigenvalues, one.eigenvalues, atol=1e-10)
    assert two.kinds == one.kinds


def test_cube_of_attractors_by_an_independent_root_finder():
    heads = axis_heads()
    found = fixed_points(heads)
    roots = []
    for start in ms.fibonacci(600).points.numpy():
        # F + (|y|² − 1)y has the fixed points as its only zeros near the sphere.
        equation = lambda y: literal(heads, y / np.linalg.norm(y)) + (y @ y - 1) * y  # noqa: E731
        y, _, status, _ = optimize.fsolve(equation, start, full_output=True, xtol=1e-13)
        if status == 1 and not any(np.linalg.norm(y - z) < 1e-6 for z in roots):
            roots.append(y)
    assert len(found) == len(roots) == 26
    assert [found.count(kind) for kind in ("stable", "saddle", "unstable")] == [8, 12, 6]
    distances = (
        torch.cdist(torch.from_numpy(np.array(roots)), found.points, compute_mode="donot_use_mm_for_euclid_dist")
        .min(dim=1)
        .values
    )
    assert float(distances.max()) < 1e-9
    assert found.complete is True
    assert found.index_sum == 2
    for point, kind in zip(found.points.numpy(), found.kinds, strict=True):
        parts = differenced(lambda y: literal(heads, y), point).real
        expected = "stable" if (parts < 0).all() else "unstable" if (parts > 0).all() else "saddle"
        assert kind == expected


def test_every_fixed_point_of_the_circle_is_found():
    heads = [random_head(2, 6), random_head(2, 7), random_head(2, 8)]
    angles = np.linspace(0, 2 * np.pi, 100_001) + 1e-6
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    total = sum((u := x @ h.B.numpy()) / np.linalg.norm(u, axis=1, keepdims=True) @ h.V.numpy().T for h in heads)
    f = (total * np.stack([-x[:, 1], x[:, 0]], axis=1)).sum(axis=1)
    found = fixed_points(heads)
    assert len(found) == int((f[:-1] * f[1:] < 0).sum())
    assert found.count("stable") == found.count("unstable") > 0
    assert found.complete is True


def test_basins_of_the_circle_are_arcs_between_unstable_points():
    rotated = ms.Head(torch.eye(2), torch.eye(2), torch.diag(torch.tensor([1.0, -0.6])), offset=[0.1, 0.35])
    heads = [rotated.to(torch.float64), ms.Head.from_spectra([1.3, 0.4], [1.0, 0.2], seed=2)]
    found = fixed_points(heads)
    unstable = found.points[[kind == "unstable" for kind in found.kinds]]
    edges = np.sort(np.arctan2(*unstable.numpy().T[::-1]))
    basins = found.basins(4000, seed=1)
    for point, low, high in zip(found.stable, basins.low, basins.high, strict=True):
        place = np.searchsorted(edges, math.atan2(point[1], point[0])) % len(edges)
        arc = (edges[place] - edges[place - 1]) % (2 * np.pi)
        assert low <= arc / (2 * np.pi) <= high
    assert basins.nowhere == 0
    assert basins.share.sum() == pytest.approx(1)


def test_limit_is_the_limit_map_of_one_head():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=1)
    x = ms.uniform(100, d=3, seed=0).points
    assert torch.allclose(fixed_points([head], starts=32).limit(x), head.theory().limit(x), atol=1e-9)


def test_a_circle_of_fixed_points_is_degenerate_and_tokens_rest_on_it():
    V = torch.diag(torch.tensor([2.0, 2.0, 0.5], dtype=torch.float64))
    head = ms.Head.from_interaction(I3, V)
    found = fixed_points([head], starts=32)
    assert found.complete is None
    assert found.count("stable") == 0
    assert found.count("unstable") == 2
    x = ms.uniform(50, d=3, seed=0).points
    assert torch.allclose(found.limit(x), head.theory().limit(x), atol=1e-4)


def test_every_point_is_degenerate_when_nothing_moves():
    found = fixed_points([ms.Head.from_interaction(I3, I3)], starts=8)
    assert set(found.kinds) == {"degenerate"}
    assert found.complete is None


def test_rotating_tokens_have_no_limit():
    turn = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.3]], dtype=torch.float64)
    found = fixed_points([ms.Head.from_interaction(I3, turn)], starts=32)
    assert found.kinds == ("unstable", "unstable")
    assert bool(torch.isnan(found.limit(ms.uniform(5, d=3, seed=0).points, horizon=20)).all())
    assert found.basins(20, horizon=20).nowhere == 1


def test_a_constant_field_draws_tokens_to_its_direction():
    c = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)
    still = ms.Head.from_interaction(I3, torch.zeros(3, 3, dtype=torch.float64))
    found = fixed_points([still], lambda x: c.expand(len(x), 3), starts=16)
    assert torch.allclose(found.points, torch.tensor([[0.0, 0, 1], [0, 0, -1]], dtype=torch.float64), atol=1e-10)
    assert found.kinds == ("stable", "unstable")
    assert torch.allclose(found.rates, torch.tensor([2.0, -2.0], dtype=torch.float64), atol=1e-9)


def test_eigenvalues_with_offsets_and_a_field_by_differences():
    generator = torch.Generator().manual_seed(3)
    W = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    perceptron = lambda x: torch.tanh(x @ W.T) @ W  # noqa: E731
    heads = [
        ms.Head(random_matrix(4, 1), random_matrix(4, 2), random_matrix(4, 3), offset=random_matrix(4, 4)[0]),
        random_head(4, 7),
    ]
    found = fixed_points(heads, perceptron, starts=64)
    assert len(found) > 0

    def total(y):
        g = perceptron(torch.from_numpy(y)[None])[0].numpy()
        return literal(heads, y) + g - (g @ y) * y

    for point, values in zip(found.points.numpy(), found.eigenvalues.numpy(), strict=True):
        assert np.linalg.norm(total(point)) < 1e-9
        assert np.allclose(differenced(total, point), np.sort_complex(values), atol=1e-6)


def test_factored_heads_are_undefined_somewhere():
    Q, K = random_matrix(4, 1)[:2], random_matrix(4, 2)[:2]
    factored = ms.Head(Q, K, random_matrix(4, 3))
    assert SeveralHeads([factored]).undefined_somewhere()
    assert fixed_points([factored], starts=16).complete is None
    # B = I and a = (0, 0, 2): the only zero of x + a is outside the sphere; with |a| = 1 it is on it.
    for length, expected in ((2.0, False), (1.0, True)):
        moved = ms.Head(I3, I3, I3, offset=[0.0, 0.0, length])
        assert SeveralHeads([moved]).undefined_somewhere() is expected


def test_heads_of_different_dimensions_are_refused():
    with pytest.raises(BadInput, match="must agree"):
        fixed_points([random_head(3, 1), random_head(4, 1)])
    with pytest.raises(BadInput, match="coordinates"):
        fixed_points([random_head(3, 1)], starts=2).limit(torch.eye(4))


@pytest.mark.slow
def test_a_wide_layer_of_factored_heads():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64) / 8  # noqa: E731
    heads = [ms.Head(draw(16, 64), draw(16, 64), draw(16, 64), output=draw(64, 16)) for _ in range(4)]
    found = fixed_points(heads, starts=64)
    assert float(found.residuals.max()) < 1e-10 * found.scale
    # The field is odd: with a point its antipode is fixed too.
    assert float(torch.cdist(-found.points, found.points).min(dim=1).values.max()) < 1e-6
