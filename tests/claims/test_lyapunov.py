"""The Lyapunov rates. Their claim fails when the predicted rate, the clock or the flow is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import lyapunov
from metastable.claims.heads import clocked
from metastable.cloud import Cloud
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.theory import Theory
from tests.claims import failed


def small(head: Head | None = None, cases: tuple[int, ...] = (0,)) -> claims.Finding:
    chosen = tuple(lyapunov.CASES[i] for i in cases)
    return lyapunov.check(head, cases=chosen, tokens=600, seeds=2, points=9)


def test_holds() -> None:
    found = small(cases=(0, 3))
    assert found.outcome == claims.PASS, found.checks
    assert claims.Finding.from_json(found.to_json()) == found


def test_clocked_heads_have_the_rates_they_were_made_for() -> None:
    theory = clocked((1.0, 0.4, -0.5), (1.2, 0.8, 0.5), 3).theory()
    assert theory.rate == pytest.approx(0.6 / 1.2)
    assert theory.escape_rate == pytest.approx(0.6 / 0.8)


@pytest.mark.parametrize(("power", "shift"), [(0.0, 0.0), (1.0, 3.0), (-0.25, -2.0)])
def test_the_fit_finds_the_rate_under_a_power_of_t(power: float, shift: float) -> None:
    times = np.linspace(10, 20, 12)
    distances = 3 * np.exp(-0.4 * times) * (times + shift) ** power
    assert lyapunov.fitted(times, distances, power) == pytest.approx(0.4, rel=1e-4)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_fails_at_another_rate(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    honest = Theory.law_rate
    monkeypatch.setattr(Theory, "law_rate", lambda self, p=2: factor * honest(self, p))
    names = failed(small())
    assert "rate of W₁" in names
    assert "rate of W₂" in names


def test_fails_when_the_clock_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclocked(head: Head, cloud: Cloud, times: torch.Tensor) -> torch.Tensor:
        even = Head.from_interaction(torch.eye(head.dim, dtype=torch.float64), head.M)
        return zero_temperature_flow(even, cloud, times)

    monkeypatch.setattr(lyapunov, "zero_temperature_flow", unclocked)
    names = failed(small())
    assert "rate of W₁" in names
    assert "median token's rate" in names


def test_fails_when_the_flow_has_m_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "M", property(lambda self: self.B @ self.V.T))
    names = failed(small())
    assert "rate of W₁" in names
    assert "rate of W₂" in names


def test_a_given_head_is_followed() -> None:
    found = small(clocked((1.0, 0.2), (1.0, 1.5), 7))
    assert found.outcome == claims.PASS, found.checks


def test_a_token_that_spirals_in_is_timed_over_whole_half_turns() -> None:
    M = np.array([[1.0, 0.0, 0.0], [0.0, 0.4, -1.1], [0.0, 0.5, 0.4]])
    found = small(Head.from_interaction(np.eye(3), M))
    token = next(check for check in found.checks if "median token" in check.name)
    assert token.outcome == claims.PASS, token


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (Head.from_interaction(torch.eye(2).double(), torch.tensor([[1.0, -1.0], [1.0, 1.0]]).double()), "rotate"),
        (clocked((1.0, 0.9999), (1.0, 1.0), 1), "barely"),
        (clocked((1.0, 0.3), (1.0, 0.9), 1), "nearly tie"),
        (clocked((1.0, 0.4, 0.3), (1.0, 0.5, 9.0), 1), "later eigenvector"),
    ],
)
def test_a_head_outside_the_assumptions_is_not_decided(head: Head, word: str) -> None:
    found = small(head)
    assert found.outcome == claims.INCONCLUSIVE
    assert any(word in check.note for check in found.checks)
