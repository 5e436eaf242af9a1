"""Metastability: the claim holds, says FAIL when the mathematics is broken, and says why it cannot decide."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from metastable import Head, claims
from metastable.claims import metastability
from metastable.claims.plateau_runs import FOLLOWED, numbers
from metastable.claims.prescribed import circle_head

SMALL = metastability.Sizes((18.0, 20.0, 22.0), 0.6, 61, 0, (20.0, 28.0), (), None)


def small(head: Head | None = None) -> claims.Finding:
    return metastability.check(SMALL, head, lambda share: None)


def failed(found: claims.Finding) -> str:
    return " | ".join(check.name for check in found.checks if check.outcome == claims.FAIL)


def test_holds() -> None:
    told: list[float] = []
    with_tokens = dataclasses.replace(SMALL, tokens=(200, 260, 340, 440, 570))
    found = metastability.check(with_tokens, None, told.append)
    open_ = [check.name for check in found.checks if check.outcome != claims.PASS]
    assert [name for name in open_ if "slope" not in name] == [], "few points may leave a slope undecided"
    assert found.outcome != claims.FAIL
    assert told == sorted(told)
    assert told[-1] <= 1


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Head.values
    monkeypatch.setattr(Head, "values", lambda self, m: 0.5 * plain(self, m))
    assert "slope of κt" in failed(small())


def test_fails_with_a_wrong_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metastability, "numbers", lambda head: dataclasses.replace(numbers(head), D=1.25 * numbers(head).D)
    )
    assert "slope of κt" in failed(small())


def test_fails_when_tokens_and_mean_field_are_of_different_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that move three times as fast leave in a third of the time."""
    plain = metastability.equal_tokens

    def faster(head: Head, *rest: float) -> object:
        return plain(Head.from_interaction(head.B, 3 * head.V), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(metastability, "equal_tokens", faster)
    sizes = dataclasses.replace(SMALL, tokens=(200, 250, 310, 390, 490, 610))
    assert "slope in log N" in failed(metastability.check(sizes, None, lambda share: None))


def test_a_given_head() -> None:
    found = small(circle_head(FOLLOWED[0] + 1.0, FOLLOWED[1], FOLLOWED[2] + 1.0, FOLLOWED[3]))
    assert found.outcome != claims.FAIL
    assert any(check.outcome == claims.PASS for check in found.checks)


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
