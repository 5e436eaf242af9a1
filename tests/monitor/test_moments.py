"""Streaming moments against all rows at once in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable.errors import BadInput
from metastable.monitor import moments as module
from metastable.monitor.moments import SHRINKAGE, Moments, blended, regression, whitening


def rows_of(count, width, seed, mean=0.0):
    """Correlated float32 rows with a mean, heavy tails in one column."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, width)) @ rng.normal(size=(width, width))
    mixed[:, 0] *= np.abs(rng.standard_cauchy(count)).clip(0, 5)
    return torch.from_numpy((mixed + mean * rng.normal(size=width)).astype(np.float32))


def streamed(rows, sizes):
    found, start = Moments(rows.shape[1]), 0
    for size in sizes:
        found.add(rows[start : start + size])
        start += size
    found.add(rows[start:])
    return found


def literal_share(rows):
    """Ledoit and Wolf's α row by row: the mean of |y yᵀ − S|² over n rows, over n, beside |S − level·I|²."""
    y = rows.double().numpy() - rows.double().numpy().mean(axis=0)
    n, d = y.shape
    scatter = sum(np.outer(row, row) for row in y) / n
    noise = sum(((np.outer(row, row) - scatter) ** 2).sum() for row in y) / n**2
    return noise / ((scatter - np.trace(scatter) / d * np.eye(d)) ** 2).sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 6), st.lists(st.integers(0, 20), max_size=4), st.integers(0, 10**6))
def test_mean_and_covariance_are_those_of_all_rows(count, width, sizes, seed):
    rows = rows_of(count, width, seed, mean=2.0)
    found, exact = streamed(rows, sizes), rows.double().numpy()
    assert found.count == count
    scale = np.abs(exact).max() ** 2
    np.testing.assert_allclose(found.mean.numpy(), exact.mean(axis=0), atol=1e-6 * scale**0.5)
    expected = np.cov(exact.T, bias=True).reshape(width, width)
    np.testing.assert_allclose(found.covariance.numpy(), expected, atol=2e-6 * scale)


def test_rows_far_from_zero_lose_nothing():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy((1000 + rng.normal(size=(5000, 4))).astype(np.float32))
    exact = np.cov(rows.double().numpy().T, bias=True)
    assert np.abs(streamed(rows, [100]).covariance.numpy() - exact).max() < 1e-6
    # About 0 in place of the first batch's mean, float32 products cannot tell a variance of 1 from rounding.
    plain = (rows.T @ rows / len(rows)).numpy() - np.outer(rows.mean(dim=0), rows.mean(dim=0))
    assert np.abs(plain - exact).max() > 1e-3


@pytest.mark.parametrize(("count", "width", "seed"), [(7, 3, 0), (40, 12, 1), (300, 5, 2), (25, 40, 3)])
def test_ledoit_and_wolf_s_share_streams(count, width, seed):
    rows = rows_of(count, width, seed, mean=3.0)
    expected = min(max(literal_share(rows), SHRINKAGE), 1.0)
    assert streamed(rows, [3, 2]).ledoit_wolf() == pytest.approx(expected, rel=1e-4)


def test_the_share_is_kept_within_its_bounds():
    one_direction = torch.outer(torch.linspace(-1, 1, 4000), torch.tensor([1.0, 2.0, 0.5]))
    assert literal_share(one_direction) < SHRINKAGE
    assert streamed(one_direction, []).ledoit_wolf() == SHRINKAGE
    round_cloud = torch.cat([torch.eye(5), -torch.eye(5)])
    assert streamed(round_cloud, []).ledoit_wolf() == 1.0


def test_blending_and_whitening():
    covariance = streamed(rows_of(100, 6, 4), []).covariance
    level = torch.trace(covariance) / 6
    mixed = blended(covariance, 0.25)
    torch.testing.assert_close(mixed, 0.75 * covariance + 0.25 * level * torch.eye(6, dtype=torch.float64))
    white = whitening(mixed)
    torch.testing.assert_close(white @ mixed @ white.T, torch.eye(6, dtype=torch.float64))
    x, mean = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    expected = (x - mean) @ torch.linalg.inv(mixed) @ (x - mean)
    torch.testing.assert_close((white @ (x - mean)).square().sum(), expected)
    assert torch.isfinite(whitening(blended(torch.zeros(3, 3, dtype=torch.float64)))).all()


def test_regression_is_ridge_regression_and_its_residuals_covariance():
    rows = rows_of(400, 7, 5).double()
    y, c = (part - part.mean(dim=0) for part in (rows[:, :2], rows[:, 2:]))
    a, rest = regression(streamed(rows.float(), [50]).covariance, 2)
    around = c.T @ c / len(c)
    ridge = 0.99 * around + 0.01 * torch.trace(around) / 5 * torch.eye(5, dtype=torch.float64)
    expected = (torch.linalg.inv(ridge) @ (c.T @ y / len(c))).T
    torch.testing.assert_close(a, expected, rtol=1e-4, atol=1e-5)
    residual = y - c @ expected.T
    torch.testing.assert_close(rest, residual.T @ residual / len(c), rtol=1e-4, atol=1e-4)


def test_long_batches_are_added_up_in_pieces(monkeypatch):
    rows = rows_of(50, 4, 6)
    whole = streamed(rows, []).covariance
    monkeypatch.setattr(module, "ROWS", 7)
    torch.testing.assert_close(streamed(rows, []).covariance, whole, rtol=1e-5, atol=1e-5)


def test_learning_goes_on_outside_of_inference_mode():
    rows = rows_of(20, 3, 7)
    found = Moments(3)
    with torch.inference_mode():
        found.add(rows[:10])
    found.add(rows[10:])
    torch.testing.assert_close(found.covariance, streamed(rows, [10]).covariance, rtol=1e-6, atol=1e-6)


def test_nothing_learned_is_said_in_one_line():
    empty = Moments(3)
    empty.add(torch.zeros(0, 3))
    for ask in (lambda: empty.mean, lambda: empty.covariance, empty.ledoit_wolf):
        with pytest.raises(BadInput, match="learned from 0 tokens"):
            ask()
