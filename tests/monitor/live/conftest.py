"""These tests run on the small encoder: nothing in them depends on what a trained model computes."""

from __future__ import annotations

import copy

import pytest

from tests.monitor.live.helpers import hooks


@pytest.fixture(scope="session")
def encoder(small_encoder):
    return small_encoder


@pytest.fixture(scope="session")
def baseline_folder(small_baseline_folder):
    return small_baseline_folder


@pytest.fixture(scope="session")
def baseline(small_baseline):
    return small_baseline


@pytest.fixture(scope="session")
def batch(encoder, stream):
    """Texts of unlike lengths, padded."""
    return encoder.tokenizer(stream[:6], return_tensors="pt", padding=True)


@pytest.fixture
def model(encoder):
    """A copy that a test may change."""
    return copy.deepcopy(encoder.model)


@pytest.fixture(autouse=True)
def _no_hooks_left(encoder):
    before = hooks(encoder.model)
    yield
    assert hooks(encoder.model) == before == 0
