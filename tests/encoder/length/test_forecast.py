"""Forecasts: exact where scores repeat, simple rules against numpy, errors and coverage on made-up numbers."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from metastable.encoder.length.dilution import STATISTICS
from metastable.encoder.length.forecast import (
    DISAGREEMENT,
    DRIFT_ERROR,
    FLOOR,
    FORECAST,
    GROWTH,
    OWN,
    UNKNOWN,
    Forecaster,
    LengthForecast,
    line,
    score,
    widening,
)
from tests.encoder.length.conftest import encoder


@pytest.fixture
def forecaster(meter, documents):
    """An encoder whose queries are 0: all scores are 0 at every length and position."""
    model = encoder("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    own, some = meter(model), documents.first(4)
    return Forecaster(own, some, 64, {n: own.measure(some.prefixes(n)) for n in (32, 64)})


@pytest.mark.parametrize("n", [128, 512])
def test_a_forecast_is_exact_where_scores_repeat(forecaster, n):
    made = forecaster.forecasts([n])[0]
    exact = {"entropy": math.log(n), "log_participation": math.log(n), "top_weight": 1 / n, "special_share": 2 / n}
    for name in STATISTICS:
        np.testing.assert_allclose(made.values[name][FORECAST], exact[name], rtol=1e-5)
        np.testing.assert_allclose(forecaster.drift(name), 0.0, atol=1e-5)


def test_simple_rules(forecaster):
    (made,) = forecaster.forecasts([128])
    values = made.values["entropy"]
    np.testing.assert_allclose(values["no change"], math.log(64), rtol=1e-6)
    np.testing.assert_allclose(values["constant H/log n"], math.log(128), rtol=1e-6)
    np.testing.assert_allclose(values["linear in log n"], math.log(128), rtol=1e-6)
    assert "constant H/log n" not in made.values["top_weight"]


def test_the_line_is_that_of_polyfit():
    draw = np.random.default_rng(0)
    values = {n: draw.normal(size=(2, 3)) for n in (32, 64, 128)}
    for place in np.ndindex(2, 3):
        slope, offset = np.polyfit(np.log([32, 64, 128]), [value[place] for value in values.values()], 1)
        assert line(values, 512)[place] == pytest.approx(offset + slope * math.log(512))


def test_several_lengths_at_once(meter, documents):
    own, some = meter("bert"), documents.first(4)
    made = Forecaster(own, some, 32, {32: own.measure(some.prefixes(32))})
    for each in made.forecasts([64, 128]):
        (alone,) = made.forecasts([each.n])
        for name in STATISTICS:
            np.testing.assert_allclose(each.values[name][FORECAST], alone.values[name][FORECAST])


def made_up(value, rule, deviation, statistic="entropy"):
    return LengthForecast(64, 256, 4, {statistic: {FORECAST: value, "no change": rule}}, {statistic: deviation})


def test_errors_and_skill():
    measured = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])  # means over documents 2 and 3
    made = made_up(np.array([[2.5, 3.0]]), np.array([[1.0, 1.0]]), np.ones((1, 2)))
    own, rule = score(made, measured, "entropy")
    assert own["error"] == pytest.approx(0.25)
    assert rule["error"] == pytest.approx(1.5)
    assert rule["skill"] == pytest.approx(1 - 0.25 / 1.5)
    assert rule["skill_low"] <= rule["skill"] <= rule["skill_high"]


def test_a_rule_without_an_error_leaves_no_skill():
    measured = np.ones((3, 1, 2))
    _, rule = score(made_up(np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2))), measured, "entropy")
    assert math.isnan(rule["skill"])


@pytest.mark.parametrize("statistic", ["entropy", "top_weight"])
def test_error_bars_cover_nine_of_ten(statistic):
    """Errors are normal, on the logarithmic scale for weights."""
    draw, shape = np.random.default_rng(0), (50, 100)
    value, deviation = draw.uniform(0.05, 0.1, shape), draw.uniform(0.1, 0.3, shape)
    value = value + 3 if statistic == "entropy" else value
    error = deviation * draw.normal(size=shape)
    measured = value + error if statistic == "entropy" else value * np.exp(error)
    made = made_up(value, value, deviation, statistic)
    low, high = made.interval(statistic)
    assert ((low <= measured) & (measured <= high)).mean() == pytest.approx(0.9, abs=0.02)
    wider = made_up(value, value, deviation / 2, statistic)
    assert widening([made], [Measured({statistic: measured[None]})], statistic) == pytest.approx(1.0, abs=0.05)
    assert widening([wider], [Measured({statistic: measured[None]})], statistic) == pytest.approx(2.0, abs=0.1)
    assert widening([], [], statistic) == 1.0


class Measured(NamedTuple):
    """The part of a rung that scoring reads."""

    heads: dict


def misses(made, measured, statistic, scale):
    """The miss for each doubling of the forecasts from half and from a quarter of 64 tokens, literally."""
    known, found = scale(measured.heads[statistic].mean(axis=0)), []
    for base, doublings in ((32, 1), (16, 2)):
        ahead = made._ahead(base, [64])[0][statistic]
        found.append((known - scale(ahead.mean(axis=(0, 1)))) / doublings)
    return found


@pytest.mark.parametrize(("statistic", "scale"), [("entropy", lambda x: x), ("top_weight", np.log)])
def test_error_bars_grow_with_drift_and_with_its_disagreement(meter, documents, statistic, scale):
    """σ² = 2σ_s² + k^g ((ρ·drift)² + (α·e)² + σ₀²), with e the root mean square difference of the two drifts."""
    own, some = meter("bert"), documents.first(6)
    rungs = {n: own.measure(some.prefixes(n)) for n in (32, 64)}
    made = Forecaster(own, some, 64, rungs)
    half, quarter = misses(made, rungs[64], statistic, scale)
    square = ((half - quarter) ** 2).mean()
    for doublings, ahead, found in zip((1, 2), made._ahead(64, [128, 256]), made.forecasts([128, 256]), strict=True):
        each = scale(ahead[statistic].mean(axis=0))
        sampling = 2 * each.var(axis=0, ddof=1) / 6
        grown = (DRIFT_ERROR * made.drift(statistic)) ** 2 + DISAGREEMENT[statistic] ** 2 * square
        grown = grown + FLOOR[statistic] ** 2
        np.testing.assert_allclose(found.deviation[statistic] ** 2, sampling + doublings**GROWTH * grown, rtol=1e-6)


def test_error_bars_are_wide_where_one_drift_is_known(meter, documents):
    own, some = meter("bert"), documents.first(4)
    made = Forecaster(own, some, 32, {32: own.measure(some.prefixes(32))})
    assert made.disagreement("entropy") == UNKNOWN["entropy"]
    (ahead,) = made.forecasts([64])
    assert (ahead.deviation["entropy"] >= DISAGREEMENT["entropy"] * UNKNOWN["entropy"]).all()


def test_probabilities_agree_with_the_error_bars():
    for statistic, value in (("entropy", np.array([[3.1, 2.2]])), ("top_weight", np.array([[0.1, 0.2]]))):
        made = made_up(value, value, np.array([[0.05, 0.3]]), statistic)
        low, high = made.interval(statistic)
        for place in (0, 1):
            assert made.probability_below(statistic, low[0, place])[0, place] == pytest.approx(0.05)
            assert made.probability_below(statistic, high[0, place])[0, place] == pytest.approx(0.95)


def test_drift_is_partly_that_of_all_heads(meter, documents):
    """OWN of a head's own miss for each doubling, and the rest of the mean over heads."""
    own, some = meter("bert"), documents.first(4)
    rungs = {n: own.measure(some.prefixes(n)) for n in (32, 64)}
    made = Forecaster(own, some, 64, rungs)
    half, quarter = misses(made, rungs[64], "entropy", lambda x: x)
    mean = (half + quarter) / 2
    np.testing.assert_allclose(made.drift("entropy"), OWN * mean + (1 - OWN) * mean.mean(), atol=1e-9)


def test_error_bars_stay_below_the_largest_entropy():
    low, high = made_up(np.array([[5.4, 0.1]]), np.ones((1, 2)), np.ones((1, 2))).interval("entropy")
    assert high[0, 0] == pytest.approx(math.log(256))
    assert low[0, 1] == 0.0


@pytest.mark.parametrize("count", [4, 16])
def test_a_forecast_as_good_as_the_rule_is_seldom_called_better(count):
    """Both are made from other documents; documents have a common effect on all 72 heads."""
    draw, better = np.random.default_rng(0), 0
    truth, bias = draw.normal(3, 1, 72), draw.normal(0, 0.2, 72)
    loading = draw.normal(1, 0.5, 72)

    def documents():
        return truth + 0.2 * draw.normal(size=(count, 1)) * loading + 0.1 * draw.normal(size=(count, 72))

    for _ in range(300):
        known = documents().mean(axis=0)
        made = made_up((known + bias)[None], (known - bias[::-1])[None], np.ones((1, 72)))
        better += score(made, documents()[:, None], "entropy")[1]["skill_low"] > 0
    assert better <= 0.05 * 300
