"""The bound holds at β's that were not fitted. The claim fails for a wrong power of β, rate or limit."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import Finding, bound, heads
from metastable.head import Head
from metastable.theory import Theory
from tests.claims import failed

SMALL = {"betas": (10.0, 16.0, 25.0, 40.0, 64.0), "until": 5.0, "frames": 21}


@pytest.fixture(scope="module", autouse=True)
def _solved_once() -> Iterator[None]:
    """The mean-field curves do not depend on what the tests break."""
    head = next(iter(heads.circle_heads().values()))

    @functools.cache
    def solved(beta: float) -> heads.Curve:
        return heads.warm_curve(head, beta, np.linspace(0, 5.0, 21), 0.02)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "warm_curve", lambda head, beta, times, tol: solved(beta))
        yield


@pytest.fixture
def cold_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zero-temperature curves, for tests that do not break the theory of a head."""
    monkeypatch.setattr(bound, "cold_curve", lambda head, times: frozen(float(times[-1]), len(times)))


@functools.cache
def frozen(until: float, frames: int) -> heads.Curve:
    return heads.cold_curve(next(iter(heads.circle_heads().values())), np.linspace(0, until, frames))


def small(head: Head | None = None) -> Finding:
    return bound.check(head, **SMALL)


@pytest.mark.usefixtures("cold_once")
def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert "t ≤ 5: A = " in found.headline
    assert len(found.tables["curves"]) == 6
    assert found.pictures


@pytest.mark.usefixtures("cold_once")
def test_fails_for_another_power_of_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "first_term", lambda beta: beta**-1.5)
    assert "power" in failed(small())


def test_fails_at_twice_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Theory.law_rate
    monkeypatch.setattr(Theory, "law_rate", lambda self, p=2: 2 * true(self, p))
    assert "zero temperature" in failed(small())


def test_fails_for_a_limit_that_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Theory.basis.fget
    assert true is not None

    def turned(self: Theory) -> torch.Tensor:
        e = true(self)
        return torch.linalg.qr(e + 0.05 * e.flip(0) * torch.tensor([[-1.0], [1.0]], dtype=e.dtype)).Q

    monkeypatch.setattr(Theory, "basis", property(turned))
    assert "zero temperature" in failed(small())


def test_a_given_head_is_tried() -> None:
    found = small(next(iter(heads.circle_heads().values())).to(torch.float32))
    assert found.outcome == claims.PASS
    assert found.sentence.startswith("the given head")


def test_other_dimensions_are_undecided() -> None:
    found = small(Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5]))
    assert found.outcome == claims.INCONCLUSIVE
    assert "d = 3" in found.checks[0].note


def test_a_rotating_head_is_undecided() -> None:
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    found = small(Head.from_interaction(torch.eye(2, dtype=torch.float64), turn))
    assert found.outcome == claims.INCONCLUSIVE
    assert "rotate" in found.checks[0].note
