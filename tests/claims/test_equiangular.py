"""Equiangular tokens: the claim holds, and says FAIL when the field or the weights are broken."""

from __future__ import annotations

import pytest

from metastable import claims
from metastable.claims import equiangular
from metastable.flow.fields import tangent

SMALL = {"cases": ((3, 0.0, 1.0), (8, -0.1, 4.0)), "until": 4.0, "frames": 9}


def small() -> claims.Finding:
    return equiangular.check(**SMALL)


def test_holds() -> None:
    assert small().outcome == claims.PASS


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    assert small().outcome == claims.FAIL


def test_fails_when_beta_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = equiangular.simulate
    monkeypatch.setattr(
        equiangular, "simulate", lambda head, cloud, beta, *rest, **more: plain(head, cloud, 0.5 * beta, *rest, **more)
    )
    assert small().outcome == claims.FAIL
