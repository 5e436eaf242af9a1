"""Several heads: the claim holds, and says FAIL when heads do not add or when fixed points are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from metastable import Head, claims
from metastable.claims import multi_head
from metastable.flow.fields import TokenField, tangent
from metastable.theory.block import BlockTheory
from metastable.theory.fixed_points import Basins, FixedPoints
from tests.claims import failed


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer steps, to save time: what is broken here is far outside of every tolerance."""
    monkeypatch.setattr(multi_head, "TOL", 1e-8)


def small(head: Head | None = None) -> claims.Finding:
    return multi_head.check(head, seeds=(3,), dims=(2,), betas=(3.0,), tokens=50, cold=(600.0, 1200.0), spaced=400)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS
    assert found.tables["fixed points"][0]["stable points"] == 4


def test_fails_when_only_the_first_head_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: TokenField, x: Tensor) -> Tensor:
        head = self.block.heads[0]
        return head.values(self._mean(x, head.directions(x)))

    monkeypatch.setattr(TokenField, "attended", first)
    names = failed(small())
    for what in ("two heads from one", "coinciding tokens", "narrow cluster", "exponent of β"):
        assert what in names


def test_fails_when_heads_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TokenField.attended
    monkeypatch.setattr(TokenField, "attended", lambda self, x: plain(self, x) / len(self.block.heads))
    names = failed(small())
    for what in ("two heads from one", "coinciding tokens", "narrow cluster", "exponent of β"):
        assert what in names


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    names = failed(small())
    for what in ("coinciding tokens", "narrow cluster", "exponent of β"):
        assert what in names


def test_fails_when_heads_look_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Head.directions
    monkeypatch.setattr(Head, "directions", lambda self, x: -plain(self, x))
    assert "exponent of β" in failed(small())


def test_fails_when_tokens_are_sent_to_the_wrong_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = BlockTheory.limit
    monkeypatch.setattr(BlockTheory, "limit", lambda self, x: -plain(self, x))
    assert "share of tokens at their fixed points" in failed(small())


def test_fails_when_the_shares_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(self: FixedPoints, n: int) -> Basins:
        share = np.eye(len(self.stable))[0]
        return Basins(share, share, share, 0.0, n)

    monkeypatch.setattr(FixedPoints, "basins", first_only)
    assert "largest error of a share" in failed(small())


def test_says_why_it_cannot_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockTheory, "no_limit", "the search failed")
    found = small()
    assert found.outcome == claims.INCONCLUSIVE
    assert "the search failed" in found.explanation


EYE, ZERO = torch.eye(3).double(), torch.zeros(3, 3).double()
GENERATOR = torch.Generator().manual_seed(0)
Q, K, V = torch.randn(3, 2, 6, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize(
    "head",
    [
        Head.from_interaction(EYE, EYE),
        Head.from_interaction(ZERO, EYE),
        Head.from_interaction(EYE, ZERO),
        Head(30 * Q, K, 0.01 * V, output=Q.T),
    ],
    ids=["identity", "B = 0", "V = 0", "factored"],
)
def test_a_given_head(head: Head) -> None:
    found = small(head)
    assert found.outcome == claims.PASS
    assert list(found.tables) == ["largest distances"]
