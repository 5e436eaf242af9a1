"""N tokens converge to the mean field. The claim fails when the tokens and the equation belong to different models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metastable import claims
from metastable.claims import Finding, mean_field
from metastable.flow.fields import tangent
from metastable.head import Head
from metastable.run.run import Run
from tests.claims import failed


def small(head: Head | None = None, seeds: int = 25) -> Finding:
    sizes = {"beta": 2.0, "until": 1.0, "frames": 3, "tokens": (16, 32, 64, 128), "turns": 3, "tol": 1e-4}
    return mean_field.check(head, seeds=seeds, **sizes)


def test_holds() -> None:
    found = small(seeds=100)
    assert found.outcome == claims.PASS, found.checks
    assert len(found.tables["largest error over time"]) == 4
    assert found.pictures


def test_fails_when_tokens_are_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 1.5 * tangent(x, w))
    assert "independent" in failed(small())


def test_fails_when_tokens_swap_v_and_b(monkeypatch: pytest.MonkeyPatch) -> None:
    true = mean_field.simulate

    def swapped(head: Head, *args: Any, **kwargs: Any) -> Run:
        return true(Head.from_interaction(head.V, head.B), *args, **kwargs)

    monkeypatch.setattr(mean_field, "simulate", swapped)
    assert "equally spaced" in failed(small(seeds=3))


def test_a_given_head_is_tried() -> None:
    head = Head.from_interaction(torch.diag(torch.tensor([1.4, 0.7])), torch.diag(torch.tensor([1.2, 0.5])))
    found = mean_field.check(head, beta=5.0, until=1.0, frames=3, tokens=(16, 32, 64), seeds=3, turns=2, tol=1e-3)
    assert len(found.tables["largest error over time"]) == 3


def test_a_rotating_head_is_undecided() -> None:
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    found = small(Head.from_interaction(torch.eye(2, dtype=torch.float64), turn))
    assert found.outcome == claims.INCONCLUSIVE
    assert "rotate" in found.checks[0].note
