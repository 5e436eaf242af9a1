"""The Laplace principle: slopes and constants. The claim fails when scores, means or laws are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ive

from metastable import claims
from metastable.attention import attend
from metastable.claims import laplace
from metastable.head import Head
from tests.claims import failed


def circle_head() -> Head:
    return laplace.own_heads()[0]


def small(head: Head | None = None) -> claims.Finding:
    return laplace.check(head, betas=(10.0, 100.0, 1e3, 1e4, 1e5), angles=6, offsets=9)


def test_holds() -> None:
    found = laplace.check(angles=6)
    assert found.outcome == claims.PASS, found.checks
    assert claims.Finding.from_json(found.to_json()) == found


@pytest.mark.parametrize("kappa", [3.0, 300.0])
def test_quadrature_across_a_jump_is_that_of_scipy(kappa: float) -> None:
    angle = np.pi / 2 + 0.7 / np.sqrt(kappa)
    u = np.array([np.sin(angle), np.cos(angle)])
    ends = [(-np.pi / 2, np.pi / 2, 1.0), (np.pi / 2, 3 * np.pi / 2, laplace.JUMP_LOW)]

    def moment(g) -> float:
        return sum(
            h * quad(lambda p: g(p) * np.exp(kappa * (np.cos(p - angle) - 1)), a, b, points=[np.clip(angle, a, b)])[0]
            for a, b, h in ends
        )

    wanted = np.array([moment(np.sin), moment(np.cos)]) / moment(lambda p: 1.0)
    found = attend(laplace.quadrature("jump", u, kappa), kappa * torch.from_numpy(u)[None], engine="dense")[0]
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-8)


def test_fails_when_scores_use_b_instead_of_its_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "directions", lambda self, x: x @ self.B.T)
    assert "uniform, d = 2: slope in β" in failed(small(circle_head()))


def test_fails_at_half_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Head.directions
    monkeypatch.setattr(Head, "directions", lambda self, x: 0.5 * honest(self, x))
    found = failed(small(circle_head()))
    assert "uniform, d = 2: relative error against 1 − A_d(κ)" in found
    assert "jump, d = 2: gap over its leading order at the largest β" in found


def test_fails_when_a_constant_is_added_to_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "attend", lambda *a, **k: attend(*a, **k) + 0.01)
    found = failed(small(circle_head()))
    assert "uniform, d = 2: slope in β" in found
    assert "smooth, d = 2: slope in β" in found


def test_fails_when_the_law_falls_to_nothing_at_the_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(laplace.DENSITIES, "jump", lambda z: np.where(z > 0, 1.0, 1e-300))
    assert "jump, d = 2: gap over its leading order at the largest β" in failed(small(circle_head()))


def test_a_given_head_of_higher_dimension_is_tested_with_the_uniform_law() -> None:
    found = small(Head.from_spectra([1.5, 1.0, 0.6, 0.5, 0.2], [1.0] * 5, seed=2))
    assert found.outcome == claims.PASS, found.checks
    assert {check.name.split(",")[0] for check in found.checks} == {"uniform"}


def test_a_singular_interaction_is_not_decided() -> None:
    found = small(Head.from_interaction(torch.diag(torch.tensor([1.0, 0.0])), torch.eye(2)))
    assert found.outcome == claims.INCONCLUSIVE
    assert "singular" in found.checks[0].note


@pytest.mark.parametrize("d", [4, 16, 64])
def test_the_quadrature_resolves_high_dimensions(d: int) -> None:
    """1 − |m| of the uniform law against Bessel functions, in dimensions where the mass sits on a thin ring."""
    axis = np.eye(d)[0]
    for kappa in (10.0, 1e3, 1e6):
        law, query = laplace.quadrature("uniform", axis, kappa), torch.from_numpy(kappa * axis)[None]
        mean = attend(law, query, engine="dense")[0]
        exact = 1 - ive(d / 2, kappa) / ive(d / 2 - 1, kappa)
        assert abs((1 - float(mean[0])) / exact - 1) < 1e-7
