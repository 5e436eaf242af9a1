"""log β: the time of least distance follows it, and the claim says FAIL when clock, rate or limit are broken."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import Finding, heads, log_beta
from metastable.claims.heads import Curve, warm_curve
from metastable.head import Head
from metastable.run.mean_field import MeanFieldRun, refined
from metastable.theory import Theory
from tests.claims import failed


@functools.cache
def solved(beta: float, until: float, frames: int, tol: float) -> MeanFieldRun:
    head = next(iter(log_beta.own_heads().values()))
    return refined(head, "uniform", beta, until, tol, t_eval=np.linspace(0, until, frames).tolist(), progress=False)


@pytest.fixture(autouse=True)
def solve_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean field is solved once for all tests."""

    def once(head: Head, law: str, beta: float, until: float, tol: float, **options: Any) -> MeanFieldRun:
        # A new object has no cached distances.
        return replace(solved(round(beta, 9), round(until, 9), len(options["t_eval"]), round(tol, 9)))

    monkeypatch.setattr(heads, "refined", once)


def small(head: Head | None = None) -> Finding:
    return log_beta.check(head, depths=(12.0, 17.0, 24.0, 33.0), frames=25)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert len(found.tables["times"]) == 4
    assert found.pictures


def test_fails_when_the_clock_slows_like_a_power_of_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(head: Head, beta: float, times: np.ndarray, tol: float) -> Curve:
        found = warm_curve(head, beta, times, tol)
        return found._replace(times=found.times * (beta / 200) ** 0.7)

    monkeypatch.setattr(log_beta, "warm_curve", slow)
    assert "residual of log β" in failed(small())


def test_fails_for_a_limit_that_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Theory.basis.fget
    assert true is not None

    def turned(self: Theory) -> torch.Tensor:
        e = true(self)
        return torch.linalg.qr(e + 0.1 * e.flip(0) * torch.tensor([[-1.0], [1.0]], dtype=e.dtype)).Q

    def to_another_limit(*arguments: Any) -> Curve:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Theory, "basis", property(turned))
            return warm_curve(*arguments)

    monkeypatch.setattr(log_beta, "warm_curve", to_another_limit)
    assert "power of β" in failed(small())


def test_fails_at_half_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    true = log_beta.judge
    monkeypatch.setattr(log_beta, "judge", lambda *rest: true(*rest[:3], 0.5 * rest[3], rest[4]))
    assert "slope in log β of the time of least distance" in failed(small())


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
