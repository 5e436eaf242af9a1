"""The boundaries of the limit law. Their claim fails when the flow, the field or a verdict is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import boundaries
from metastable.claims.heads import clocked
from metastable.cloud import Cloud
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.theory.assumptions import AssumptionCheck
from tests.claims import failed

SMALL = {"tokens": 200, "particles": 300, "turns": 2, "gaps": (0.1, 0.01, 5e-4), "betas": (1e3, 1e4, 1e5)}


def small(head: Head | None = None) -> claims.Finding:
    return boundaries.check(head, **SMALL)


@pytest.fixture(scope="module", autouse=True)
def _simulated_once() -> Iterator[None]:
    """Runs at finite β do not depend on what the tests break."""
    simulated, known = boundaries.departure, {}

    def once(head: Head, cloud: Cloud, beta: float, until: float) -> tuple[float, np.ndarray, np.ndarray]:
        key = beta, cloud.points.numpy().tobytes()
        known[key] = known.get(key) or simulated(head, cloud, beta, until)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundaries, "departure", once)
        yield


def failed_in(part: str) -> str:
    """The failing checks of one boundary."""
    return failed(boundaries.check(parts=(part,), **SMALL))


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.checks
    assert len(found.tables["boundaries"]) == 6
    assert claims.Finding.from_json(found.to_json()) == found


def test_fails_one_percent_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def fast(head: Head, cloud: Cloud, times: torch.Tensor) -> torch.Tensor:
        return zero_temperature_flow(head, cloud, 1.01 * times)

    monkeypatch.setattr(boundaries, "zero_temperature_flow", fast)
    assert "frequency" in failed_in("rotation")
    assert "angle on the way" in failed_in("kernel")


def test_fails_at_another_power_of_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(head: Head, cloud: Cloud, times: torch.Tensor) -> torch.Tensor:
        gap = head.theory().gap if math.isfinite(head.theory().gap) else 1.0
        return zero_temperature_flow(head, cloud, times * gap**0.1)

    monkeypatch.setattr(boundaries, "zero_temperature_flow", slower)
    assert "slope of log time against log gap" in failed_in("gap")


@pytest.mark.parametrize(
    ("name", "part"), [("_real", "rotation"), ("_gap", "gap"), ("_interaction", "singular"), ("_positive", "kernel")]
)
def test_fails_when_a_verdict_does_not_warn(monkeypatch: pytest.MonkeyPatch, name: str, part: str) -> None:
    from metastable.theory import assumptions as verdict

    honest = getattr(verdict, name)

    def silent(theory) -> AssumptionCheck:
        found = honest(theory)
        return AssumptionCheck(found.name, "holds", found.number, found.sentence)

    monkeypatch.setattr(verdict, name, silent)
    assert "verdict" in failed_in(part)


def test_fails_when_the_mean_goes_to_the_direction_in_spite_of_the_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(cloud: Cloud, queries: torch.Tensor, engine: str) -> torch.Tensor:
        return queries / queries.norm(dim=1, keepdim=True)

    monkeypatch.setattr(boundaries, "attend", blind)
    assert "hole: |m_β − û|" in failed_in("hole")


def test_fails_when_edges_of_a_hole_move_at_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = boundaries.widening
    monkeypatch.setattr(boundaries, "widening", lambda *a: 0.5 * honest(*a))
    assert "difference of departures" in failed_in("flow")


def test_fails_when_the_field_is_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    from metastable.flow.fields import tangent

    monkeypatch.setattr(boundaries, "zero_temperature", lambda head, x: tangent(x, head.values(head.directions(x))))
    assert "jump of the field" in failed_in("singular")
    assert "speed at 10⁻⁶" in failed_in("kernel")


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
