"""Two tokens: the claim holds, and says FAIL when the field is broken."""

from __future__ import annotations

import pytest

from metastable import claims
from metastable.claims import two_tokens
from metastable.flow.fields import tangent

SMALL = {"betas": (1.0, 5.0), "until": 3.0, "frames": 7}


def small() -> claims.Finding:
    return two_tokens.check(**SMALL)


def test_holds() -> None:
    assert small().outcome == claims.PASS


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    assert small().outcome == claims.FAIL
