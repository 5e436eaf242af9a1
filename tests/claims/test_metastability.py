"""Metastability: the claim holds, says FAIL when the mathematics is broken, and says why it cannot decide."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from metastable import Head, claims
from metastable.claims import metastability
from metastable.claims.heads import circle_head
from metastable.claims.metastability import FOLLOWED, Stay, mean_field, numbers
from metastable.flow.meanfield.flow import Turning
from tests.claims import failed

TOKENS = (50, 100, 200, 400, 800, 1600)


@functools.cache
def solved(*sizes: Any) -> Stay:
    return mean_field(circle_head(*FOLLOWED), *sizes)


def small(head: Head | None = None, **sizes: Any) -> claims.Finding:
    return metastability.check(head, **{"depths": (18.0, 21.0, 24.0), "heads": 0, "tokens": (), **sizes})


@pytest.fixture
def solve_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean field of the claim's own head, for tests that break something else."""
    monkeypatch.setattr(metastability, "mean_field", lambda head, *sizes: solved(*sizes))


@pytest.mark.usefixtures("solve_once")
def test_holds() -> None:
    told: list[float] = []
    found = small(tokens=TOKENS, tell=told.append)
    assert found.outcome == claims.PASS, found.checks
    assert len(found.checks) == 5
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Turning.__call__

    def half(self: Turning, angles: np.ndarray) -> np.ndarray:
        found = 0.5 * plain(self, angles)
        self.rates = 0.5 * self.rates
        return found

    monkeypatch.setattr(Turning, "__call__", half)
    assert "slope of κt" in failed(small(depths=(18.0, 19.0, 20.0)))


@pytest.mark.slow
def test_fails_with_a_wrong_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastability, "numbers", lambda head: numbers(head)._replace(D=1.25 * numbers(head).D))
    assert "slope of κt" in failed(small(depths=(23.0, 25.0, 27.0)))


@pytest.mark.usefixtures("solve_once")
@pytest.mark.slow
def test_fails_when_tokens_and_mean_field_are_of_different_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that move three times as fast leave in a third of the time."""
    plain = metastability.equal_tokens

    def faster(head: Head, n: int, beta: float, until: float, *rest: Any) -> Stay:
        return plain(Head.from_interaction(head.B, 3 * head.V), n, beta, until / 2, *rest)

    monkeypatch.setattr(metastability, "equal_tokens", faster)
    assert "slope in log N" in failed(small(tokens=TOKENS[:5]))


@pytest.mark.slow
def test_a_given_head() -> None:
    found = small(circle_head(FOLLOWED[0] + 1.0, FOLLOWED[1], FOLLOWED[2] + 1.0, FOLLOWED[3]))
    assert found.outcome == claims.PASS, found.checks


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (Head.from_spectra([1.5, 1.0, 0.5], [1.0, 0.6, 0.2]), "d = 3"),
        (Head.from_interaction(torch.eye(2), torch.tensor([[1.0, -1.0], [1.0, 1.0]])), "complex dominant pair"),
        (Head.from_interaction(torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([1.0, 0.5]))), "D is"),
        (Head.from_interaction(torch.eye(2), torch.eye(2)), "two atoms"),
    ],
)
def test_says_why_it_does_not_apply(head: Head, words: str) -> None:
    found = small(head)
    assert found.outcome == claims.INCONCLUSIVE
    assert words in found.checks[0].note
