"""The boundaries: each consequence is seen, and refuted when the flow, the field or the verdict is another one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import beyond, boundaries, holes
from metastable.claims.prescribed import clocked
from metastable.cloud import Cloud
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.theory.assumptions import Check

SMALL = boundaries.Sizes(200, 300, 2, (0.1, 0.01, 5e-4), (1e3, 1e4, 1e5))


def small(head: Head | None = None) -> claims.Finding:
    return boundaries.check(SMALL, head, lambda share: None)


def failed(*numbers: int) -> str:
    """The names of the failing checks of these experiments, in the order of `own_parts`."""
    parts = boundaries.own_parts(SMALL)
    return "; ".join(c.name for i in numbers for c in parts[i]().checks if c.outcome == claims.FAIL)


ROTATION, GAP, SINGULAR, KERNEL, HOLE, EMPTIED = range(6)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert len(found.tables[0].rows) == 6
    assert claims.Finding.from_json(found.to_json()) == found


def test_fails_one_percent_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def fast(head: Head, cloud: Cloud, times: torch.Tensor) -> torch.Tensor:
        return zero_temperature_flow(head, cloud, 1.01 * times)

    monkeypatch.setattr(beyond, "zero_temperature_flow", fast)
    assert "frequency" in failed(ROTATION)
    assert "angle on the way" in failed(KERNEL)


def test_fails_at_another_power_of_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(head: Head, cloud: Cloud, times: torch.Tensor) -> torch.Tensor:
        gap = head.theory().gap if math.isfinite(head.theory().gap) else 1.0
        return zero_temperature_flow(head, cloud, times * gap**0.1)

    monkeypatch.setattr(beyond, "zero_temperature_flow", slower)
    assert "slope of log time against log gap" in failed(GAP)


@pytest.mark.parametrize(
    ("name", "part"), [("_real", ROTATION), ("_gap", GAP), ("_interaction", SINGULAR), ("_positive", KERNEL)]
)
def test_fails_when_a_verdict_does_not_warn(monkeypatch: pytest.MonkeyPatch, name: str, part: int) -> None:
    from metastable.theory import assumptions as verdict

    honest = getattr(verdict, name)

    def silent(theory) -> Check:
        found = honest(theory)
        return Check(found.name, "holds", found.number, found.sentence)

    monkeypatch.setattr(verdict, name, silent)
    assert "verdict" in failed(part)


def test_fails_when_the_mean_goes_to_the_direction_in_spite_of_the_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(cloud: Cloud, queries: torch.Tensor, engine: str) -> torch.Tensor:
        return queries / queries.norm(dim=1, keepdim=True)

    monkeypatch.setattr(holes, "attend", blind)
    assert "hole: |m_β − û|" in failed(HOLE)


def test_fails_when_edges_of_a_hole_move_at_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = holes.widening
    monkeypatch.setattr(holes, "widening", lambda *a: 0.5 * honest(*a))
    assert "difference of departures" in failed(EMPTIED)


def test_fails_when_the_field_is_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    from metastable.flow.fields import tangent

    monkeypatch.setattr(beyond, "zero_temperature", lambda head, x: tangent(x, head.values(head.directions(x))))
    assert "jump of the field" in failed(SINGULAR)
    assert "speed at 10⁻⁶" in failed(KERNEL)


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (clocked((1.0, 0.2), (1.0, 0.7), 8), "hole"),
        (Head(np.eye(3)[:2], np.array([[1.0, 0.2, 0.3], [0.1, 0.5, -0.2]]), np.eye(3)), "singular"),
        (Head.from_interaction(np.diag([1.0, 0.8]), np.array([[1.0, -1.0], [1.5, 1.0]])), "complex"),
    ],
)
def test_a_given_head_is_tested_at_its_own_boundary(head: Head, word: str) -> None:
    found = small(head)
    assert found.outcome == claims.PASS, found.checks
    assert word in found.sentence


def test_a_head_that_meets_the_assumptions_has_no_boundary() -> None:
    found = small(clocked((1.0, 0.5, 0.1), (1.0, 0.9, 0.8), 2))
    assert found.outcome == claims.INCONCLUSIVE
    assert "none" in found.checks[0].note
