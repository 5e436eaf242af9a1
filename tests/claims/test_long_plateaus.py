"""Exponentially long plateaus: the claim holds, and says FAIL when clusters meet at another time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from metastable import claims
from metastable.claims import long_plateaus
from metastable.flow.fields import tangent
from tests.claims import failed

SMALL = {"angles": (1.4,), "depths": (9.0, 9.5, 10.0, 10.5)}


def small(**sizes: Any) -> claims.Finding:
    return long_plateaus.check(**{**SMALL, **sizes})


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, [check for check in found.checks if check.outcome != claims.PASS]


def test_the_integral_has_the_derived_constant() -> None:
    p, q = (n / sum(long_plateaus.SHARES) for n in long_plateaus.SHARES)
    beta = 400.0
    leading = math.exp(beta * (1 - math.cos(1.2))) / ((p / q + q / p) * beta * math.sin(1.2) ** 2)
    assert long_plateaus.closed_form(1.2, beta) == pytest.approx(leading, rel=5e-3)


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    assert "meeting time" in failed(small(depths=(9.0, 9.5, 10.0)))


@pytest.mark.slow
def test_fails_when_clusters_see_each_other_better(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = long_plateaus.simulate
    monkeypatch.setattr(
        long_plateaus,
        "simulate",
        lambda head, cloud, beta, *rest, **more: plain(head, cloud, 0.8 * beta, *rest, **more),
    )
    names = failed(small())
    assert "meeting time" in names
    assert "slope" in names
