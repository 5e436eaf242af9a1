"""The forecast of the plateau against the exact zero-temperature flow, the mean field, and what it must refuse."""

import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.theory.plateau import FINENESS, _Tail
from tests.problems import circle_head, rotation

DEEP = circle_head(0.3, (1.4, 0.5), -0.9, (1.2, 0.4))
HEADS = [DEEP, circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)), circle_head(0.5, (1.5, 0.6), -0.3, (1.0, 0.7))]


def bundle(tail, way, places, t):
    """Log-density at time t, from the exact flow of pairs of tokens that start 1e-9 apart."""
    _, _, _, clock, _ = tail.ways[way]
    sign = 1.0 if way == 0 else -1.0
    starts = np.interp(np.interp(places, FINENESS, clock) - t, clock, FINENESS)
    x = np.exp(starts)[:, None] * tail.e + sign * tail.source
    angle = np.arctan2(x[:, 1], x[:, 0])
    both = np.concatenate([angle, angle + 1e-9])
    cloud = ms.Cloud(np.stack([np.cos(both), np.sin(both)], axis=1))
    moved = ms.zero_temperature_flow(tail.head, cloud, torch.tensor([t]))[0].numpy()
    a, b = moved[: len(x)], moved[len(x) :]
    apart = np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    return -math.log(2 * math.pi) + math.log(1e-9) - np.log(apart)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("way", [0, 1])
def test_the_tail_has_the_density_of_the_exact_flow(head, way):
    tail = _Tail(head.theory())
    tail.head = head
    places, t = np.array([-1.0, 0.0, 1.0]), 14.0 / tail.kappa
    expected = np.interp(places, FINENESS, tail.ways[way][2]) - tail.kappa * t
    assert np.abs(bundle(tail, way, places, t) - expected).max() < 0.02


def test_the_spread_is_the_lyapunov_term():
    tail = _Tail(DEEP.theory())
    run = ms.simulate(DEEP, ms.equally_spaced(2000), beta=1.0, until=3.0, t_eval=4, tol=1e-3)
    spread = tail.curve(1e9, run.times.numpy())
    assert np.abs(spread - run.lyapunov_term().values).max() < 2e-3


def test_the_forecast_meets_the_mean_field():
    th = DEEP.theory()
    beta = 12.0 / _Tail(th).D
    found = th.plateau(beta)
    run = ms.mean_field(DEEP, "uniform", beta=beta, until=1.25 * found.departure, tol=0.02, t_eval=101)
    seen = run.phases()
    assert found.lower <= seen.terminal <= found.upper
    assert abs(found.least - seen.least) < 0.15 * seen.least
    assert abs(found.length - (seen.terminal - seen.concentrated)) < 0.2 * found.length
    assert found.sentence.startswith("the plateau of the uniform law")


def test_the_slope_in_beta_tends_to_D_over_kappa():
    """d(κt)/dβ = D − 3/(2β) up to smaller terms."""
    th = HEADS[1].theory()
    tail = _Tail(th)
    betas = np.array([20_000.0, 40_000.0])
    times = [th.plateau(beta).departure for beta in betas]
    expected = (tail.D * betas - 1.5 * np.log(betas)) / tail.kappa
    assert math.isclose(times[1] - times[0], expected[1] - expected[0], rel_tol=2e-3)


def test_turning_the_head_changes_nothing():
    R = rotation(1.1)
    turned = ms.Head.from_interaction(R @ DEEP.B @ R.T, R @ DEEP.V @ R.T)
    assert math.isclose(turned.theory().plateau(300.0).departure, DEEP.theory().plateau(300.0).departure, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("head", "beta", "message"),
    [
        (DEEP, 1.0, "too little for a forecast"),
        (DEEP, math.inf, "beta is inf"),
        (ms.Head.from_interaction(np.eye(3), np.diag([3.0, 2.0, 1.0])), 100.0, "is for d = 2"),
        (ms.Head.from_interaction(np.eye(2), rotation(0.5)), 100.0, "complex dominant pair"),
        (ms.Head.from_interaction(np.eye(2), np.eye(2)), 100.0, "two atoms"),
        (ms.Head.from_interaction(np.eye(2), np.diag([2.0, 1.0])), 100.0, "does not end"),
        (ms.Head.from_interaction(-DEEP.B, -DEEP.V), 300.0, "the forecast needs clusters that hold together"),
        (ms.Head.from_interaction(np.diag([1.0, 0.0]), np.diag([2.0, 1.0])), 300.0, "invertible B"),
        (ms.Head(np.eye(2), DEEP.B, DEEP.V, offset=[0.1, 0.0]), 300.0, "an offset"),
    ],
)
def test_what_was_not_tested_is_refused_in_one_line(head, beta, message):
    with pytest.raises(ms.BadInput, match=message) as caught:
        head.theory().plateau(beta)
    assert "\n" not in str(caught.value)
