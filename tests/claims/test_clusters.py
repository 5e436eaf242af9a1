"""Number of clusters: the claim holds, and says FAIL when the field, β or the dispersion relation is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metastable import claims
from metastable.claims import clusters
from metastable.flow.fields import tangent
from tests.claims import failed

SMALL = {"waves": (16.0,), "spaced": 128, "betas": (12.5, 50.0, 200.0), "tokens": 250, "seeds": 2}


def small() -> claims.Finding:
    return clusters.check(**SMALL)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, [check for check in found.checks if check.outcome != claims.PASS]


def test_fastest_mode_is_the_root_of_two_beta() -> None:
    assert clusters.fastest(1e4) == pytest.approx(np.sqrt(2e4), rel=1e-3)


def test_counts_across_the_cut_of_the_circle() -> None:
    theta = torch.tensor([3.1, 3.14, -3.14, -3.1, 0.0, 0.01, -0.01, 1.5], dtype=torch.float64)
    assert clusters.count(torch.stack([theta.cos(), theta.sin()], dim=1), beta=25.0) == 2


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    assert "growth rate" in failed(small())


def test_fails_when_beta_does_not_reach_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = clusters.simulate
    monkeypatch.setattr(
        clusters, "simulate", lambda head, cloud, beta, *rest, **more: plain(head, cloud, 16.0, *rest, **more)
    )
    assert "exponent of β" in failed(small())


def test_fails_with_a_wrong_dispersion_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = clusters.growth
    monkeypatch.setattr(clusters, "growth", lambda k, beta: plain(k, beta) / np.maximum(k, 1))
    assert "growth rate" in failed(small())
