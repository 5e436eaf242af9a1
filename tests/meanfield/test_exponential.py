"""Exponential steps: the functions φ, the order, and large rates, against exact solutions."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from metastable.flow.meanfield.exponential import phis, step


def integrated(f, slope, x, until, steps):
    """The state at `until` after equal steps; slope : the rates at a state"""
    k = f(x)
    for _ in range(steps):
        x, k, _ = step(f, x, k, slope(x), until / steps)
    return x


@pytest.mark.parametrize("z", [0.0, -1e-12, -1e-3, -0.5, -0.999, -1.0, -3.0, -50.0, -1e5])
def test_phi_functions_are_exact(z):
    exact = [Decimal(1) / math.factorial(k) for k in (1, 2, 3)]
    with localcontext(prec=60):
        if z:
            exact[0] = (Decimal(z).exp() - 1) / Decimal(z)
            exact[1] = (exact[0] - 1) / Decimal(z)
            exact[2] = (exact[1] - Decimal("0.5")) / Decimal(z)
    for found, wanted in zip(phis(np.array([z])), exact, strict=True):
        assert abs(float(found[0]) / float(wanted) - 1) < 1e-14


def coupled(x):
    """Three numbers that act on each other."""
    return np.array([-(x[0] ** 3) + np.sin(x[1]), x[2] * x[0] - 0.5 * x[1], np.cos(x[0] + x[1]) - x[2]])


def own_slopes(x):
    return np.minimum(np.array([-3 * x[0] ** 2, -0.5, -1.0]), 0.0)


def test_the_order_is_four_with_rates_and_without():
    x = np.array([1.0, 0.4, -0.3])
    exact = solve_ivp(lambda t, y: coupled(y), (0, 2), x, rtol=1e-13, atol=1e-14).y[:, -1]
    for slope in (own_slopes, lambda y: np.zeros(3)):
        errors = [np.abs(integrated(coupled, slope, x, 2.0, n) - exact).max() for n in (10, 20, 40, 80)]
        orders = np.log2(np.array(errors[:-1]) / errors[1:])
        assert orders[-1] == pytest.approx(4, abs=0.25)


def test_the_estimate_is_of_the_size_of_the_error_or_larger():
    x = np.array([1.0, 0.4, -0.3])
    for h in (0.2, 0.1):
        exact = solve_ivp(lambda t, y: coupled(y), (0, h), x, rtol=1e-13, atol=1e-15).y[:, -1]
        new, _, error = step(coupled, x, coupled(x), own_slopes(x), h)
        true = np.sqrt(np.mean((new - exact) ** 2))
        assert 0.1 * true < error < 1000 * true


def test_a_linear_decay_is_exact_for_any_step():
    rates = np.array([-1e6, -300.0, -1.0, 0.0])
    x = np.array([1.0, -2.0, 3.0, 4.0])
    new, _, error = step(lambda y: rates * (y - 1), x, rates * (x - 1), rates, 0.7)
    np.testing.assert_allclose(new, 1 + (x - 1) * np.exp(0.7 * rates), atol=1e-9)
    assert error < 1e-9


@pytest.mark.parametrize("coupling", [-0.5, 0.0, 0.7, 0.95])
def test_a_cluster_whose_vertices_move_together_is_stable_at_large_steps(coupling):
    """Every number is drawn to `coupling` times the mean, at the rate 10⁴, with steps of 0.1."""
    rate = 1e4

    def f(y):
        return rate * (coupling * y.mean() - y) + 1.0

    x = integrated(f, lambda y: np.full(5, -rate), np.linspace(-1, 1, 5) + 0.3, 40.0, 400)
    np.testing.assert_allclose(x, 1 / (rate * (1 - coupling)), rtol=1e-3)
