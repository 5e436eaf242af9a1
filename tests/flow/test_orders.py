"""The order of each integrator, regressed from error against step, against exact solutions."""

import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.flow.fields import zero_temperature
from metastable.flow.steppers import dopri5, euler, heun, next_step, rk4, unit

STEPS = {
    "euler": lambda f, x, h: euler(f, 0.0, x, f(x), h),
    "heun": lambda f, x, h: heun(f, 0.0, x, f(x), h),
    "rk4": lambda f, x, h: rk4(f, 0.0, x, f(x), h),
    "dopri5": lambda f, x, h: dopri5(f, 0.0, x, f(x), h)[0],
}
ORDERS = {"euler": 1, "heun": 2, "rk4": 4, "dopri5": 5}


def integrate(name, f, x, until, count):
    for _ in range(count):
        x = STEPS[name](f, x, until / count)
    return x


def slope(counts, errors):
    return -np.polyfit(np.log(counts), np.log(errors), 1)[0]


@pytest.mark.parametrize("name", sorted(STEPS))
def test_order_on_the_zero_temperature_flow(name):
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, -0.9, 0.5], seed=3)
    cloud = ms.uniform(40, d=3, seed=0)
    exact = ms.zero_temperature_flow(head, cloud, torch.tensor([2.0]))[0]
    counts = {"euler": [64, 128, 256], "heun": [32, 64, 128], "rk4": [10, 20, 40], "dopri5": [8, 16, 32]}[name]
    field = lambda x, t=0.0: zero_temperature(head, x)  # noqa: E731
    errors = [float((integrate(name, field, cloud.points, 2.0, n) - exact).norm(dim=1).max()) for n in counts]
    assert slope(counts, errors) == pytest.approx(ORDERS[name], abs=0.35)
    assert errors[-1] < {"euler": 0.05, "heun": 1e-3, "rk4": 1e-5, "dopri5": 1e-6}[name]


@pytest.mark.parametrize("name", sorted(STEPS))
def test_order_on_the_interacting_system(name):
    """Two tokens, B = V = I: dφ/dt = −2 sin φ e^{βc}/(e^β + e^{βc}), from several angles, against scipy at 1e-13."""
    from scipy.integrate import solve_ivp

    beta, starts = 2.0, [0.7, 1.2, 1.7, 2.2, 2.7]
    rate = lambda _, p: -2 * np.sin(p) * np.exp(beta * np.cos(p)) / (np.exp(beta) + np.exp(beta * np.cos(p)))  # noqa: E731
    exact = solve_ivp(rate, (0, 3), starts, rtol=1e-13, atol=1e-14).y[:, -1]
    head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    counts = {"euler": [64, 128, 256], "heun": [32, 64, 128], "rk4": [8, 16, 32], "dopri5": [8, 16, 32]}[name]
    field = lambda y, t=0.0: ms.velocity(head, ms.Cloud(y), beta)  # noqa: E731

    def final_angle(start, n):
        x = torch.tensor([[1.0, 0.0], [math.cos(start), math.sin(start)]], dtype=torch.float64)
        y = integrate(name, field, x, 3.0, n)
        return 2 * math.asin(float((y[0] - y[1]).norm()) / 2)

    errors = [max(abs(final_angle(a, n) - e) for a, e in zip(starts, exact, strict=True)) for n in counts]
    assert slope(counts, errors) == pytest.approx(ORDERS[name], abs=0.4)


def test_embedded_estimate_has_order_five_in_the_local_error():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, -0.9, 0.5], seed=3)
    x = ms.uniform(40, d=3, seed=0).points
    field = lambda y, t=0.0: zero_temperature(head, y)  # noqa: E731
    steps = [0.1, 0.05, 0.025]
    errors = [dopri5(field, 0.0, x, field(x), h)[2] for h in steps]
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(5, abs=0.3)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_tokens_stay_on_the_sphere(name):
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, -0.9, 0.5], seed=3)
    y = integrate(name, lambda x, t=0.0: zero_temperature(head, x), ms.uniform(40, d=3).points, 20.0, 10)
    assert float((y.norm(dim=1) - 1).abs().max()) < 1e-14
    assert torch.allclose(unit(3 * y), y)


def test_step_control_aims_at_the_tolerance():
    assert next_step(0.1, 1e-6, 1e-6) == pytest.approx(0.09)
    assert next_step(0.1, 0.0, 1e-6) == pytest.approx(0.5)
    assert next_step(0.1, 1e3, 1e-6) == pytest.approx(0.02)
    assert next_step(0.1, 32e-6, 1e-6) == pytest.approx(0.045)
