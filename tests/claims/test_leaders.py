"""Leaders: the claim holds, and says FAIL for other tokens, other attention and an attraction of the wrong sign."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.block import Block
from metastable.claims import leaders
from metastable.head import Head
from tests.claims import failed

SMALL: dict[str, Any] = {"dims": (2, 3), "tokens": 30, "seeds": (0,)}
EYE = torch.eye(3, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "METHODS", {"euler": 0.5, "heun": 0.4})


def small(head: Head | None = None) -> claims.Finding:
    return leaders.check(head, **SMALL)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.explanation
    for row in found.tables["leaders"]:
        assert 1 <= row["leaders at t = 0"] <= row["leaders"] < SMALL["tokens"]
        assert row["hull, t = 0"] > 0.01


def test_distance_from_a_triangle() -> None:
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    points = np.array([[0.2, 0.3], [1.0, 1.0], [-3.0, -4.0], [0.5, -0.25], [0.0, 1.0]])
    assert leaders.hull_distance(points, corners) == pytest.approx([0, np.sqrt(0.5), 5, 0.25, 0], abs=1e-6)


def test_fails_for_the_hull_of_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = leaders.leads
    monkeypatch.setattr(leaders, "leads", lambda z, B: ~plain(z, B))
    names = failed(small())
    assert "motion of a leader" in names


@pytest.mark.slow
def test_fails_when_one_leader_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = leaders.leads

    def all_but_the_first(z: np.ndarray, B: np.ndarray) -> np.ndarray:
        found = plain(z, B)
        found[found.argmax()] = False
        return found

    monkeypatch.setattr(leaders, "leads", all_but_the_first)
    assert "distance from the hull of the leaders" in failed(small())


@pytest.mark.slow
def test_fails_when_attention_is_soft(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = leaders.simulate
    monkeypatch.setattr(leaders, "simulate", lambda block, cloud, beta, *a, **k: plain(block, cloud, 1.0, *a, **k))
    assert "motion of a leader" in failed(small())


@pytest.mark.slow
def test_fails_when_tokens_attend_to_the_farthest(monkeypatch: pytest.MonkeyPatch) -> None:
    def repelled(head: Head, norm: str) -> Block:
        return Block(Head.from_interaction(-head.B, head.V), norm=norm)

    monkeypatch.setattr(leaders, "Block", repelled)
    assert "motion of a leader" in failed(small())


def test_tokens_that_still_move_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "UNTIL", 4.0)
    found = small()
    assert found.outcome == claims.INCONCLUSIVE
    assert "still move at t = 4" in found.explanation


def test_a_given_head_must_be_one_of_the_theorem() -> None:
    B = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64))
    assert small(Head.from_interaction(B, EYE)).outcome == claims.PASS
    assert "every token is a leader" in small(Head.from_interaction(EYE, EYE)).sentence
    assert "V = I" in small(Head.from_interaction(B, 2 * EYE)).sentence
    for other in (-B, B + torch.triu(torch.ones_like(B), 1), B @ torch.diag(torch.tensor([1.0, 1.0, 0.0]).double())):
        assert "symmetric positive definite" in small(Head.from_interaction(other, EYE)).sentence
