"""Causal attention: the claim holds, and says FAIL when the mask, the speed, β or the parking numbers are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metastable import claims
from metastable.block import Block
from metastable.claims import causal
from metastable.flow.fields import tangent
from metastable.head import Head
from tests.claims import failed

SMALL: dict[str, Any] = {
    "scales": (10.0,),
    "warm": (0.5,),
    "betas": (50.0, 200.0, 800.0),
    "tokens": 250,
    "seeds": (0, 1),
}
EYE = torch.eye(3, dtype=torch.float64)


def small(head: Head | None = None, **changed: Any) -> claims.Finding:
    return causal.check(head, **SMALL | changed)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.explanation
    assert set(found.tables) == {"first tokens", "clusters", "parking"}


def test_fails_without_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "Block", lambda head, causal: Block(head))
    names = failed(small())
    for what in ("error of the first", "change by later", "distance from the first", "motion of a strong centre"):
        assert what in names


@pytest.mark.slow
def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    assert "error of the first token" in failed(small(causal.random_head(3, 1)))


@pytest.mark.slow
def test_fails_when_beta_does_not_reach_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = causal.simulate
    monkeypatch.setattr(causal, "simulate", lambda block, cloud, beta, *a, **k: plain(block, cloud, 50.0, *a, **k))
    names = failed(small(warm=(0.0,)))
    assert "exponent of β" in names
    assert "motion of a strong centre" in names


@pytest.mark.slow
def test_fails_with_wrong_expected_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = causal.expected_renyi_centres
    monkeypatch.setattr(causal, "expected_renyi_centres", lambda *a, **k: 1.1 * plain(*a, **k))
    names = failed(small())
    assert "Rényi centres against the expected number" in names
    assert "strong centres against the expected number" in names


def test_tokens_that_still_move_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "WAIT", 1.0)
    found = small(Head.from_interaction(EYE, 2 * EYE))
    assert found.outcome == claims.INCONCLUSIVE
    assert "still moving" in found.explanation


def test_a_given_head_has_the_statements_that_are_about_it() -> None:
    general, multiple = small(causal.random_head(5, 3)), small(Head.from_interaction(-3 * EYE, 2 * EYE))
    assert general.outcome == multiple.outcome == claims.PASS
    assert not any("distance from the first" in check.name for check in general.checks)
    assert any("distance from the first" in check.name for check in multiple.checks)
    assert "V of this head is 0" in small(Head.from_interaction(EYE, 0 * EYE)).sentence
