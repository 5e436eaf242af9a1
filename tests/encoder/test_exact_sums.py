"""Tallies: exact sums, the same in any order, against plain numpy over the kept values."""

import json
import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from scipy.stats import t as student

from metastable.encoder.exact_sums import ExactSums
from metastable.errors import BadInput

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 300, size=200)
VALUES = RNG.normal(size=(200, 3, 2)) + 0.3 * np.log2(LENGTHS)[:, None, None]


def tally(values=VALUES, lengths=LENGTHS):
    made = ExactSums(np.shape(values)[1:])
    made.add(values, lengths)
    return made


def test_mean_spread_and_interval_are_those_of_the_values():
    made = tally()
    reach = student.ppf(0.975, len(VALUES) - 1) * VALUES.std(axis=0, ddof=1) / math.sqrt(len(VALUES))
    low, high = made.interval()
    np.testing.assert_allclose(made.mean(), VALUES.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(made.std(), VALUES.std(axis=0, ddof=1), atol=1e-8)
    np.testing.assert_allclose(low, VALUES.mean(axis=0) - reach, atol=1e-8)
    np.testing.assert_allclose(high, VALUES.mean(axis=0) + reach, atol=1e-8)
    assert (made.count() == 200).all()


def test_slope_and_prediction_are_those_of_the_regression():
    made, x = tally(), np.log2(LENGTHS)
    design = np.stack([np.ones_like(x), x], axis=1)
    for place in np.ndindex(3, 2):
        v = VALUES[(slice(None), *place)]
        coefficients, (rest,), *_ = np.linalg.lstsq(design, v, rcond=None)
        covariance = np.linalg.inv(design.T @ design) * rest / (len(v) - 2)
        slope, error = (part[place] for part in made.slope())
        assert slope == pytest.approx(coefficients[1], abs=1e-7)
        assert error == pytest.approx(math.sqrt(covariance[1, 1]), abs=1e-7)
        at = np.array([1.0, math.log2(37)])
        mean, around = (part[place] for part in made.at(37))
        assert mean == pytest.approx(at @ coefficients, abs=1e-7)
        assert around == pytest.approx(math.sqrt(at @ covariance @ at), abs=1e-7)


def test_an_exact_line_has_an_exact_slope():
    made = tally(np.array([1.0, 1.5, 2.0, 2.5]), [2, 4, 8, 16])
    slope, error = made.slope()
    assert float(slope) == 0.5
    assert float(error) == 0.0
    assert [float(part) for part in made.at(32)] == [3.0, 0.0]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5, 1e12])
def test_merging_is_exact_in_any_order(scale):
    parts = [tally(scale * VALUES[i : i + 7], LENGTHS[i : i + 7]) for i in range(0, 200, 7)]
    whole = tally(scale * VALUES)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(parts))
        merged = reduce(ExactSums.merge, [parts[i] for i in order])
        assert merged.to_dict() == whole.to_dict()
        assert merged.mean().tobytes() == whole.mean().tobytes()
        assert merged.slope()[1].tobytes() == whole.slope()[1].tobytes()
    assert parts[0].to_dict() != whole.to_dict()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 5e3, 1e9, 1e12, 1e30])
def test_the_sums_are_exact_integers(scale):
    """Compared with fractions, text by text: nothing is rounded, even for large values."""
    values, lengths = scale * VALUES[:20, 0, 0], LENGTHS[:20]
    unit = 2**30
    v = [Fraction(round(Fraction(float(np.rint(a * 2.0**30))))) for a in values]
    x = [Fraction(int(np.rint(np.log2(n) * 2.0**30))) for n in lengths]
    expected = sum(a * b for a, b in zip(x, v, strict=True)), sum(a * a for a in v)
    saved = tally(values, lengths).to_dict()["bins"].values()
    assert sum(sums[5] for sums in saved) == expected[0]
    assert sum(sums[2] for sums in saved) == expected[1]
    assert tally(values, lengths).mean() == pytest.approx(float(sum(v) / 20 / unit), rel=1e-15)


def test_equal_values_have_no_spread_at_all():
    made = tally(np.full(50, 0.1), LENGTHS[:50])
    assert float(made.std()) == 0.0
    assert float(made.slope()[0]) == 0.0


def test_values_that_are_not_numbers_are_not_counted():
    values = VALUES.copy()
    values[::3, 0, 0] = np.nan
    values[1, 1, 1] = np.inf
    values[2, 2, 0] = 1e308  # beyond float64 in units of 2⁻³⁰
    made = tally(values)
    kept = np.isfinite(values[:, 0, 0])
    assert made.count()[0, 0] == kept.sum()
    assert made.count()[1, 1] == made.count()[2, 0] == 199
    assert made.mean()[0, 0] == pytest.approx(values[kept, 0, 0].mean(), abs=1e-8)
    x, v = np.log2(LENGTHS[kept]), values[kept, 0, 0]
    assert made.slope()[0][0, 0] == pytest.approx(np.polyfit(x, v, 1)[0], abs=1e-7)
    assert made.mean()[2, 1] == tally().mean()[2, 1]


def test_too_few_texts_give_no_number_rather_than_a_wrong_one():
    empty, one, two = ExactSums((2,)), tally(np.ones((1, 2)), [4]), tally(np.eye(2), [4, 8])
    assert np.isnan(empty.mean()).all()
    assert np.isnan(one.interval()[0]).all()
    assert (one.mean() == 1).all()
    assert np.isnan(one.slope()[0]).all()
    assert np.isnan(two.slope()[1]).all()
    assert np.isfinite(two.slope()[0]).all()


def test_one_length_is_answered_at_that_length_only():
    made = tally(np.array([1.0, 2.0, 3.0]), [10, 10, 10])
    mean, error = made.at(10)
    assert float(mean) == 2.0
    assert float(error) == pytest.approx(1 / math.sqrt(3))
    assert np.isnan(made.at(20)[0])


def test_bins_are_powers_of_two_and_add_up():
    made = tally()
    parts = made.by_length()
    assert list(parts) == sorted(parts)
    for low, part in parts.items():
        inside = (low <= LENGTHS) & (2 * low > LENGTHS)
        assert (part.count() == inside.sum()).all()
        np.testing.assert_allclose(part.mean(), VALUES[inside].mean(axis=0), atol=1e-8)
    assert reduce(ExactSums.merge, parts.values()).to_dict() == made.to_dict()


def test_saved_and_loaded_through_json():
    made = tally(1e12 * VALUES)
    assert ExactSums.from_dict(json.loads(json.dumps(made.to_dict()))).to_dict() == made.to_dict()
    with pytest.raises(BadInput, match=r"2\^-20"):
        ExactSums.from_dict(made.to_dict() | {"bits": 20})


def test_bad_input_is_refused():
    with pytest.raises(BadInput, match="a row for each text"):
        ExactSums((2,)).add(np.ones((3, 4)), [1, 2, 3])
    with pytest.raises(BadInput, match="at least 1"):
        ExactSums(()).add([1.0], [0])
    with pytest.raises(BadInput, match="cannot be merged"):
        ExactSums((2,)).merge(ExactSums((3,)))
    with pytest.raises(BadInput, match="at least 1 token"):
        tally().at(0)
