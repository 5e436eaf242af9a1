"""Shared fixtures: every attention test runs on every engine, in both precisions."""

from __future__ import annotations

import pytest
import torch

from metastable.attention import ENGINES


@pytest.fixture(params=sorted(ENGINES))
def engine(request):
    return request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Two test workers on two cores; more threads only get in each other's way."""
    torch.set_num_threads(1)
