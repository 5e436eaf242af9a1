"""Stability: the certificate holds, and the claim says FAIL when the field error or the flow is broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metastable import claims
from metastable.claims import Finding, stability
from metastable.head import Head
from metastable.run.run import Run
from metastable.theory import Theory

SMALL = {"tokens": 50, "betas": (100.0,), "laws": ("uniform", "where tokens part"), "until": 2.5}


def small(head: Head | None = None, dims: tuple[int, ...] = (2,)) -> Finding:
    return stability.check(head, frames=11, dims=dims, **SMALL)


def test_holds() -> None:
    found = small(dims=(2, 3))
    assert found.outcome == claims.PASS
    assert len(found.tables["runs"]) == 12
    assert len(found.pictures) == 2


def test_fails_with_half_of_the_field_error(monkeypatch: pytest.MonkeyPatch) -> None:
    true = stability.simulate

    def broken(*args: Any, **kwargs: Any) -> Run:
        run = true(*args, **kwargs)
        run.field_errors[:, 1] *= 0.5
        return run

    monkeypatch.setattr(stability, "simulate", broken)
    assert small().outcome == claims.FAIL


def test_fails_without_the_spreading_of_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Theory, "lipschitz", property(lambda self: -1.0))
    assert small().outcome == claims.FAIL


def test_fails_with_m_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Head.M.fget
    assert true is not None
    monkeypatch.setattr(Head, "M", property(lambda self: true(self).T))
    assert small().outcome == claims.FAIL


def test_a_rotating_head_is_admitted() -> None:
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert small(Head.from_interaction(torch.eye(2, dtype=torch.float64), turn)).outcome == claims.PASS


def test_a_singular_head_is_undecided() -> None:
    flat = Head(torch.eye(3)[:2], torch.eye(3)[:2], torch.eye(3))
    found = small(flat)
    assert found.outcome == claims.INCONCLUSIVE
    assert "singular" in found.checks[0].note


def test_fails_when_every_distance_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a distance is below any bound; the first saved time gives it away."""
    whole = Run.laplace_term
    monkeypatch.setattr(Run, "laplace_term", lambda run, *args, **options: 0.5 * whole(run, *args, **options))
    assert small().outcome == claims.FAIL
