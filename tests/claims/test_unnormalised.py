"""Unnormalised attention: the claim holds, and says FAIL for another kernel, weight, speed, sign and V."""

from __future__ import annotations

import math

import pytest
import torch

from metastable import Head, claims
from metastable.attention.kernels import KERNELS
from metastable.claims import unnormalised
from metastable.flow.fields import TokenField, tangent
from tests.claims import failed


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer steps, to save time: what is broken here is far outside of every tolerance."""
    monkeypatch.setattr(unnormalised, "TOL", 1e-6)


def small(head: Head | None = None) -> claims.Finding:
    return unnormalised.check(head, seeds=(3,), dims=(3,), betas=(2.0,), tokens=6, frames=4)


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS
    assert {row["kernel"] for row in found.tables["energies"]} == {"unnormalised", "sigmoid", "softmax"}
    assert all(row["E at the end"] > row["E at t = 0"] for row in found.tables["energies"])


def test_fails_with_softmax_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "unnormalised", KERNELS["softmax"])
    names = failed(small())
    assert "error of dE/dt = mean of |x'|², unnormalised" in names
    assert "angle of two tokens, unnormalised" in names
    assert "sigmoid" not in names
    assert "softmax" not in names


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    names = failed(small())
    for kernel in ("unnormalised", "sigmoid", "softmax"):
        assert f"error of dE/dt = mean of |x'|², {kernel}" in names
    assert "angle of two tokens, sigmoid" in names


def test_fails_when_the_sign_is_flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: -tangent(x, w))
    names = failed(small())
    assert "largest relative fall of E, unnormalised" in names
    assert "angle of two tokens" in names


def test_fails_when_weights_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TokenField.__init__

    def equal(self: TokenField, block: object, log_weights: torch.Tensor, *rest: object) -> None:
        plain(self, block, torch.full_like(log_weights, -math.log(len(log_weights))), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(TokenField, "__init__", equal)
    names = failed(small())
    assert "random weights" in names
    assert "equal weights" not in names


def test_fails_when_the_energy_does_not_fall_with_another_v(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = unnormalised.own_head
    monkeypatch.setattr(unnormalised, "own_head", lambda d, seed, turned=False: plain(d, seed))
    assert "least fall of log E" in failed(small())


def test_a_given_head() -> None:
    B = Head.from_spectra([2.0, -1.0, 0.5, 0.1], [1.0, 1.0, 1.0, 1.0], seed=1).B
    found = small(Head.from_interaction(B, 3 * B))
    assert found.outcome == claims.PASS
    assert list(found.tables) == ["energies"]


@pytest.mark.parametrize(
    ("interaction", "value", "words"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]], "symmetric B"),
        ([[1.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 1.0]], "V = cB"),
        ([[1.0, 0.0], [0.0, 2.0]], [[-1.0, 0.0], [0.0, -2.0]], "c > 0"),
        ([[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]], "nothing moves"),
    ],
)
def test_says_why_it_does_not_apply(interaction: list[list[float]], value: list[list[float]], words: str) -> None:
    found = small(Head.from_interaction(torch.tensor(interaction).double(), torch.tensor(value).double()))
    assert found.outcome == claims.INCONCLUSIVE
    assert words in found.explanation
