"""Mean field: N tokens come to it, and the claim says FAIL when tokens and equation are not the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metastable import claims
from metastable.claims import mean_field
from metastable.claims.finding import Finding
from metastable.flow.fields import tangent
from metastable.head import Head
from metastable.run.run import Run

SMALL = mean_field.Sizes(5.0, 1.0, 4, (32, 64, 128, 256), 25, 3, 1e-4)


def small(head: Head | None = None) -> Finding:
    return mean_field.check(SMALL, head, lambda share: None)


def failed(found: Finding) -> str:
    return " ".join(check.name for check in found.checks if check.outcome == claims.FAIL)


def test_holds() -> None:
    found = small()
    assert found.outcome != claims.FAIL, found.checks
    passed = [check.name for check in found.checks if check.outcome == claims.PASS]
    assert len(passed) >= 2, "few seeds may leave the exponents of independent tokens undecided, nothing else"
    assert len(found.tables[0].rows) == 4
    assert found.pictures


def test_fails_when_tokens_are_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 1.5 * tangent(x, w))
    assert "independent" in failed(small())


def test_fails_when_tokens_swap_v_and_b(monkeypatch: pytest.MonkeyPatch) -> None:
    true = mean_field.simulate

    def swapped(head: Head, *args: Any, **kwargs: Any) -> Run:
        return true(Head.from_interaction(head.V, head.B), *args, **kwargs)

    monkeypatch.setattr(mean_field, "simulate", swapped)
    assert "equally spaced" in failed(small())


def test_a_given_head_is_tried() -> None:
    head = Head.from_interaction(torch.diag(torch.tensor([1.4, 0.7])), torch.diag(torch.tensor([1.2, 0.5])))
    sizes = mean_field.Sizes(5.0, 1.0, 3, (16, 32, 64), 3, 2, 1e-3)
    assert len(mean_field.check(sizes, head, lambda share: None).tables[0].rows) == 3


def test_a_rotating_head_is_undecided() -> None:
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    found = small(Head.from_interaction(torch.eye(2, dtype=torch.float64), turn))
    assert found.outcome == claims.INCONCLUSIVE
    assert "rotate" in found.checks[0].note
