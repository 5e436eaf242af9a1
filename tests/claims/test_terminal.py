"""Terminal phase: the claim holds, says FAIL when the mathematics is broken, and says why it cannot decide."""

from __future__ import annotations

import pytest
import torch

from metastable import Head, claims
from metastable.claims import terminal
from metastable.flow.fields import tangent
from metastable.theory.spectrum import Spectrum
from tests.claims import failed


def small(head: Head | None = None) -> claims.Finding:
    return terminal.check(head, tokens=40, until=45.0, frames=121, longest=60.0)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    heads = terminal.own_heads()
    kept = {name: heads[name] for name in ("simple, V and M apart", "double", *names)}
    monkeypatch.setattr(terminal, "own_heads", lambda: kept)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS
    rows = found.tables["where tokens end"]
    assert [row["case"] for row in rows] == list(terminal.own_heads())
    together, apart = (float(row["distance of the end from E of M"]) for row in rows[:2])
    assert together < 1e-3 < 0.1 < apart


@pytest.mark.slow
def test_fails_when_the_field_transposes_v(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "complex pair")
    monkeypatch.setattr(Head, "values", lambda self, m: m @ self.value)
    names = failed(small())
    assert "single token" in names
    assert "Πx/|Πx|, simple, V and M apart" in names
    assert "frequency, complex pair" in names


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "complex pair", "negative definite")
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    names = failed(small())
    for what in ("rate at which", "frequency, complex pair", "slope, negative definite"):
        assert what in names


@pytest.mark.slow
def test_fails_when_the_projector_is_the_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def orthogonal(self: Spectrum, x: torch.Tensor) -> torch.Tensor:
        image = x @ self.basis @ self.basis.T
        return image / image.norm(dim=1, keepdim=True)

    only(monkeypatch)
    monkeypatch.setattr(Spectrum, "limit", orthogonal)
    assert "each on its side, double" in failed(small())


@pytest.mark.parametrize("d", [2, 5])
def test_a_given_head(d: int) -> None:
    head = Head.from_spectra([1.5, 1.0, 0.8, 0.7, 0.6][:d], [1.0, 0.5, 0.3, 0.2, 0.1][:d], seed=4)
    found = small(head)
    assert found.outcome == claims.PASS, [check for check in found.checks if check.outcome != claims.PASS]


@pytest.mark.parametrize(
    ("interaction", "value", "words"),
    [
        (torch.eye(2), torch.zeros(2, 2), "eigenvalue is 0"),
        (torch.eye(3), torch.eye(3), "nowhere to go"),
        (torch.eye(2), torch.tensor([[1.0, 1.0], [0.0, 1.0]]), "Jordan block"),
        (-torch.eye(2), torch.diag(torch.tensor([1.0, 0.5])), "see the opposite one"),
    ],
)
def test_says_why_it_does_not_apply(interaction: torch.Tensor, value: torch.Tensor, words: str) -> None:
    found = small(Head.from_interaction(interaction.double(), value.double()))
    assert found.outcome == claims.INCONCLUSIVE
    assert any(words in check.note for check in found.checks)
    assert words in found.explanation
