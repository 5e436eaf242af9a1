"""Noise: the claim holds, and says FAIL when the noise, the attention or the critical strength is wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from metastable import claims
from metastable.block import Block
from metastable.claims import noise
from metastable.claims.heads import identity
from metastable.cloud import uniform
from metastable.flow.steppers import noisy_heun
from metastable.head import Head
from tests.claims import failed

SMALL: dict[str, Any] = {
    "laws": ((2, 2.0),),
    "below": (0.6,),
    "above": (1.5,),
    "tokens": 50,
    "spans": (5.0, 16.0),
    "resolution": 0.6,
    "seeds": (0,),
}


def small() -> claims.Finding:
    return noise.check(**SMALL)


def with_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Simulate with another strength of the noise than the claim asks for."""
    monkeypatch.setattr(noise, "Block", lambda head, noise, noise_seed: Block(head, noise=factor * noise))


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, found.explanation
    assert set(found.tables) == {"order below σ_c", "N·E|r|² above σ_c"}


def test_a_given_head_is_not_tried() -> None:
    assert "B = V = I only" in noise.check(identity(2)).sentence


def test_fails_when_noise_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    with_noise(monkeypatch, math.sqrt(2))
    assert "order parameter" in failed(small())


@pytest.mark.slow
def test_fails_when_noise_is_weaker(monkeypatch: pytest.MonkeyPatch) -> None:
    with_noise(monkeypatch, 0.5)
    names = failed(small())
    assert "order parameter" in names
    assert "N·E|r|²" in names


@pytest.mark.slow
def test_fails_when_attention_is_half_as_strong(monkeypatch: pytest.MonkeyPatch) -> None:
    eye = torch.eye(2, dtype=torch.float64)
    monkeypatch.setattr(noise, "identity", lambda d: Head.from_interaction(eye, 0.5 * eye))
    assert "order parameter" in failed(small())


def test_fails_with_half_the_critical_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = noise.critical_noise
    monkeypatch.setattr(noise, "critical_noise", lambda beta, d: 0.5 * plain(beta, d))
    assert "N·E|r|²" in failed(small())


def test_independent_tokens_have_fluctuations_of_one_over_n() -> None:
    assert noise.fluctuation(1e6) == pytest.approx(1)
    assert noise.fluctuation(math.sqrt(2)) == pytest.approx(2)


def test_steps_weaken_the_noise_as_derived() -> None:
    d, increment = 8, 0.1
    x = uniform(400_000, d, seed=1).points
    moves = increment * torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = noisy_heun(lambda points, t: torch.zeros_like(points), 0.0, x, torch.zeros_like(x), 1.0, moves)
    rate = -math.log(float((x * y).sum(dim=1).mean())) / ((d - 1) * increment**2 / 2)
    # κ to first order in σ²h = 0.01; the second order is about a tenth of it.
    assert 1 - rate == pytest.approx((d / 2 + 0.75) * increment**2, rel=0.15)
