"""The limit law. Its claim fails when the flow, the limit map or the rate is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import limit
from metastable.claims.heads import prescribed
from metastable.head import Head
from metastable.theory.spectrum import Spectrum
from tests.claims import failed

CASES = (
    limit.Case("non-normal", (1.0, 0.4), "uniform", 1),
    limit.Case("non-normal", (1.0, 1.0, 0.4), "von Mises–Fisher", 2),
    limit.Case("non-symmetric", (1.0, 0.3, -0.2, -0.2), "mixture", 3),
)


def small(head: Head | None = None) -> claims.Finding:
    return limit.check(head, cases=CASES, tokens=400, frames=5)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert found.pictures
    assert found.tables
    assert claims.Finding.from_json(found.to_json()) == found


def test_independent_projector_is_the_one_of_the_construction() -> None:
    rng = np.random.default_rng(0)
    X = np.eye(5) + 0.5 * rng.standard_normal((5, 5))
    M = X @ np.diag([1.0, 1.0, 0.5, 0.1, -1.0]) @ np.linalg.inv(X)
    head = Head.from_interaction(torch.eye(5, dtype=torch.float64), torch.from_numpy(M))
    wanted = X[:, :2] @ np.linalg.inv(X)[:2]
    np.testing.assert_allclose(limit.projector(head), wanted, atol=1e-10)


def test_fails_when_the_flow_has_m_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "M", property(lambda self: self.B @ self.V.T))
    names = failed(small())
    assert "share of tokens" in names
    assert "W₂" in names


def test_fails_when_the_projector_is_orthogonal(monkeypatch: pytest.MonkeyPatch) -> None:
    def orthogonal(self: Spectrum, x: torch.Tensor) -> torch.Tensor:
        image = x @ self.basis @ self.basis.T
        return image / image.norm(dim=1, keepdim=True)

    monkeypatch.setattr(Spectrum, "limit", orthogonal)
    assert "limit map" in failed(small())


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "all tokens"), (0.99999, "at least 99.99 % of the tokens"), (0.995, "at least 99.5 % of the tokens")],
)
def test_only_a_share_of_one_is_all_tokens(share: float, words: str) -> None:
    assert limit.tokens_in_words(share) == words


def test_fails_when_the_rate_is_promised_three_times_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    from metastable.theory import Theory

    honest = Theory.law_rate
    monkeypatch.setattr(Theory, "law_rate", lambda self, p=2: 3 * honest(self, p))
    assert "W₂" in failed(small())


def test_a_given_head_is_followed_from_all_starts() -> None:
    found = small(prescribed("non-normal", (1.0, 0.5, 0.0, -0.3), 5))
    assert found.outcome == claims.PASS
    assert len(found.checks) == 12


@pytest.mark.parametrize(
    ("M", "word"),
    [
        ([[1.0, -1.0], [1.0, 1.0]], "rotate"),
        ([[1.0, 1.0], [0.0, 1.0]], "Jordan"),
        ([[1.0, 0.0], [0.0, 1.0]], "dominant"),
        ([[1.0, 0.0], [0.0, 0.9995]], "separated"),
    ],
)
def test_a_head_without_a_limit_is_not_decided(M: list[list[float]], word: str) -> None:
    found = small(Head.from_interaction(torch.eye(2, dtype=torch.float64), torch.tensor(M, dtype=torch.float64)))
    assert found.outcome == claims.INCONCLUSIVE
    assert word in found.checks[0].note
