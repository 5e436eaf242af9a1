"""The time of least distance grows like log β. The claim fails when the clock, the rate or the limit is wrong."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import Finding, log_beta
from metastable.claims.heads import Curve, cold_curve, warm_curve
from metastable.head import Head
from metastable.theory import Theory
from tests.claims import failed

SMALL = {"depths": (12.0, 17.0, 24.0, 33.0), "frames": 25}


@functools.cache
def solved(beta: float, until: float, frames: int, tol: float) -> Curve:
    times, head = np.linspace(0, until, frames), next(iter(log_beta.own_heads().values()))
    return warm_curve(head, beta, times, tol) if beta < np.inf else cold_curve(head, times)


def once(head: Head, beta: float, times: np.ndarray, tol: float) -> Curve:
    """The same curve for tests that break something else."""
    return solved(round(beta, 9), round(float(times[-1]), 9), len(times), round(tol, 9))


@pytest.fixture
def solve_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_beta, "warm_curve", once)
    monkeypatch.setattr(log_beta, "cold_curve", lambda head, times: once(head, np.inf, times, 0.0))


def small(head: Head | None = None, **sizes: Any) -> Finding:
    return log_beta.check(head, **{**SMALL, **sizes})


@pytest.mark.slow
@pytest.mark.usefixtures("solve_once")
def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert len(found.tables["times"]) == 4
    assert found.pictures


@pytest.mark.usefixtures("solve_once")
def test_fails_when_the_clock_slows_like_a_power_of_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(head: Head, beta: float, times: np.ndarray, tol: float) -> Curve:
        found = once(head, beta, times, tol)
        return found._replace(times=found.times * (beta / 200) ** 0.7)

    monkeypatch.setattr(log_beta, "warm_curve", slow)
    assert "residual of log β" in failed(small())


@pytest.mark.slow
def test_fails_for_a_limit_that_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Theory.basis.fget
    assert true is not None

    def turned(self: Theory) -> torch.Tensor:
        e = true(self)
        return torch.linalg.qr(e + 0.1 * e.flip(0) * torch.tensor([[-1.0], [1.0]], dtype=e.dtype)).Q

    monkeypatch.setattr(Theory, "basis", property(turned))
    monkeypatch.setattr(log_beta, "warm_curve", lambda head, beta, times, tol: warm_curve(head, beta, times, 0.1))
    assert "power of β" in failed(small(depths=(12.0, 13.0, 14.0)))


@pytest.mark.usefixtures("solve_once")
def test_fails_at_half_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    true = log_beta.judge
    monkeypatch.setattr(log_beta, "judge", lambda *rest: true(*rest[:3], 0.5 * rest[3], rest[4]))
    assert "slope in log β of the time of least distance" in failed(small())


@pytest.mark.usefixtures("solve_once")
def test_a_given_head_is_tried() -> None:
    found = small(next(iter(log_beta.own_heads().values())))
    assert found.outcome == claims.PASS
    assert found.sentence.startswith("the given head")


def test_a_head_that_nobody_leaves_is_undecided() -> None:
    both = torch.diag(torch.tensor([1.4, 0.7], dtype=torch.float64))
    found = small(Head.from_interaction(both, both))
    assert found.outcome == claims.INCONCLUSIVE
    assert "does not end" in found.checks[0].note


def test_other_dimensions_are_undecided() -> None:
    found = small(Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5]))
    assert found.outcome == claims.INCONCLUSIVE
    assert "d = 3" in found.checks[0].note
