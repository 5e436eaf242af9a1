"""The length adjustment: a known law is recovered, and what comes out has no trend in length."""

import math

import numpy as np
import pytest

from metastable.errors import BadInput
from metastable.monitor.length_adjustment import Adjustment, TailAdjustment, shaped

LOCATION = (2.0, -0.7, 0.3)
SCALE = (-1.0, 0.4)


def drawn(texts, seed, location=LOCATION, scale=SCALE):
    """s = a + bℓ + cℓ² + e^{g + hℓ} ε with ε = ±1, whose logarithm of |residual| is exactly g + hℓ."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 200, texts)
    log_n = np.log(lengths)
    mean = location[0] + location[1] * log_n + location[2] * log_n**2
    size = np.exp(scale[0] + scale[1] * log_n)
    return (mean + size * rng.choice([-1.0, 1.0], texts))[:, None], lengths, mean, size


def slope(values, lengths):
    """Of a regression on log n, in standard errors."""
    x = np.log(lengths) - np.log(lengths).mean()
    b = float(x @ values / (x @ x))
    rest = values - values.mean() - b * x
    return b / math.sqrt(float(rest @ rest) / (len(x) - 2) / float(x @ x))


def test_a_known_law_is_recovered():
    columns, lengths, mean, size = drawn(200_000, seed=0)
    found = Adjustment.of(columns, lengths)
    inside = (np.log(lengths) > found.within[0]) & (np.log(lengths) < found.within[1])
    terms = np.stack([np.ones(len(lengths)), np.log(lengths), np.log(lengths) ** 2], axis=1)
    # The standard error of the mean at any length is about 3 size/√texts.
    assert np.abs((terms @ found.location)[:, 0] - mean)[inside].max() < 0.02 * size.max()
    assert found.scale[:, 0] == pytest.approx(SCALE, abs=0.01)
    np.testing.assert_allclose(np.abs(found(columns, lengths))[inside], 1.0, atol=0.03)


def test_without_noise_the_law_is_exact():
    """±1 in pairs of the same length: least squares then meets the law itself."""
    log_n = np.log(np.repeat(np.arange(5, 105), 2))
    signs = np.tile([1.0, -1.0], 100)
    columns = (2 - 0.7 * log_n + 0.3 * log_n**2 + np.exp(-1 + 0.4 * log_n) * signs)[:, None]
    lengths = np.repeat(np.arange(5, 105), 2)
    found = Adjustment.of(columns, lengths)
    inside = (log_n >= found.within[0]) & (log_n <= found.within[1])
    # Lengths beyond the range are put to its ends in the fit too, which bends it by what these few texts differ.
    np.testing.assert_allclose(found(columns, lengths)[inside, 0], signs[inside], atol=0.02)


def test_the_formula_literally():
    columns, lengths, _, _ = drawn(300, seed=1)
    found = Adjustment.of(columns, lengths)
    (a, b, c), (g, h) = found.location[:, 0], found.scale[:, 0]
    for s, n, z in zip(columns[:, 0], lengths, found(columns, lengths)[:, 0], strict=True):
        log_n = min(max(math.log(n), found.within[0]), found.within[1])
        assert z == pytest.approx((s - a - b * log_n - c * log_n**2) / math.exp(g + h * log_n), rel=1e-12)
    assert float(np.mean(found(columns, lengths) ** 2)) == pytest.approx(1.0, rel=1e-12)


def test_no_trend_is_left_in_new_texts():
    def gaussian(seed):
        _, lengths, mean, size = drawn(20_000, seed)
        return (mean + size * np.random.default_rng(seed + 100).normal(size=20_000))[:, None], lengths

    found = Adjustment.of(*gaussian(seed=2))
    new, own = gaussian(seed=3)
    z = found(new, own)[:, 0]
    # A slope has standard error 1 here and the fit's own error as much again: 6 of √2 fail once in 1e5.
    assert abs(slope(z, own)) < 6
    assert abs(slope(np.abs(z), own)) < 6
    raw = (new[:, 0] - new.mean()) / new.std()
    # The control: 20 and more without it.
    assert abs(slope(raw, own)) > 20
    assert abs(slope(np.abs(raw - np.polyval(np.polyfit(np.log(own), raw, 2), np.log(own))), own)) > 20


def test_columns_are_adjusted_one_by_one():
    first, lengths, _, _ = drawn(500, seed=4)
    second = -3.0 * first + np.random.default_rng(5).normal(size=first.shape)
    both = Adjustment.of(np.hstack([first, second]), lengths)(np.hstack([first, second]), lengths)
    np.testing.assert_allclose(both[:, :1], Adjustment.of(first, lengths)(first, lengths), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(both[:, 1:], Adjustment.of(second, lengths)(second, lengths), rtol=1e-9, atol=1e-9)


def test_scale_and_offset_of_a_column_do_not_matter():
    columns, lengths, _, _ = drawn(400, seed=6)
    z = Adjustment.of(columns, lengths)(columns, lengths)
    other = 1e4 * columns - 7e3
    np.testing.assert_allclose(Adjustment.of(other, lengths)(other, lengths), z, rtol=1e-6, atol=1e-6)


def test_lengths_beyond_the_range_count_as_its_ends():
    columns, lengths, _, _ = drawn(5000, seed=7)
    found = Adjustment.of(columns, lengths)
    end = np.exp(found.within[1])
    assert found(columns[:1], np.array([10_000]))[0, 0] == pytest.approx(found(columns[:1], np.array([end]))[0, 0])
    assert found(columns[:1], np.array([1]))[0, 0] == pytest.approx(
        found(columns[:1], np.array([np.exp(found.within[0])]))[0, 0]
    )


# Enough texts at either end that these lengths lie within the fitted range.
SPREAD = np.concatenate([np.full(10, 5), np.arange(5, 305), np.full(10, 304)])


@pytest.mark.parametrize("column", [np.zeros(320), np.full(320, 7.5), np.log(SPREAD), np.log(SPREAD) ** 2])
def test_columns_that_length_explains_wholly_stay_small(column):
    """A constant, log n itself, its square: nothing is left, and nothing must be blown up out of rounding."""
    z = Adjustment.of(column[:, None], SPREAD)(column[:, None], SPREAD)
    assert np.abs(z).max() < 1e-9
    # The control: with noise of 1e-6 there is something left, and it has mean square 1.
    noisy = (column + 1e-6 * np.random.default_rng(0).normal(size=320))[:, None]
    assert float(np.mean(Adjustment.of(noisy, SPREAD)(noisy, SPREAD) ** 2)) == pytest.approx(1.0, rel=1e-9)


def test_texts_of_one_length():
    rng = np.random.default_rng(8)
    columns, lengths = 5 + 2 * rng.normal(size=(300, 1)), np.full(300, 12)
    z = Adjustment.of(columns, lengths)(columns, lengths)
    np.testing.assert_allclose(z[:, 0], (columns[:, 0] - columns.mean()) / columns.std(), rtol=1e-9, atol=1e-12)


def test_saved_and_restored_bit_for_bit():
    columns, lengths, _, _ = drawn(300, seed=9)
    found = Adjustment.of(columns, lengths)
    again = Adjustment.from_arrays(vars(found), 1)
    assert np.array_equal(again(columns, lengths), found(columns, lengths))
    for name in ("location", "scale", "within"):
        arrays = {key: array for key, array in vars(found).items() if key != name}
        with pytest.raises(BadInput, match=f"no {name!r}.*calibrate again"):
            Adjustment.from_arrays(arrays, 1)
    with pytest.raises(BadInput, match=r"shape \(3, 1\), not \(3, 2\)"):
        Adjustment.from_arrays(vars(found), 2)
    with pytest.raises(BadInput, match="not finite"):
        shaped({"a": np.array([1.0, np.nan])}, "a", (-1,))


def heavy(texts, seed):
    """Scores whose upper tail beyond q(ℓ) = 1 + 2ℓ is exponential with mean e^{−1 + 0.6ℓ}."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 200, texts)
    log_n = np.log(lengths)
    mean = np.exp(-1 + 0.6 * log_n)
    above = rng.random(texts) < 0.1
    excess = np.where(above, rng.exponential(mean), -3 * mean * rng.random(texts))
    return 1 + 2 * log_n + excess, lengths


def test_the_tail_of_a_known_law_is_recovered():
    scores, lengths = heavy(3000, seed=0)
    found = TailAdjustment.of(scores, lengths)
    terms = np.stack([np.ones(3000), np.log(lengths), np.log(lengths) ** 2], axis=1)
    # The density at the quantile is 0.1/mean, so its standard error is about 0.3/√3000 · mean/0.1 = 0.05 mean.
    mean = np.exp(-1 + 0.6 * np.log(lengths))
    assert np.median(np.abs(terms @ found.location - (1 + 2 * np.log(lengths))) / mean) < 0.1
    # 300 excesses: their mean has a standard error of 6 %.
    assert np.median(np.exp(terms[:, :2] @ found.scale) / mean) == pytest.approx(1, abs=0.2)
    assert found.scale[1] == pytest.approx(0.6, abs=0.25)


def test_the_quantile_is_the_minimum_of_the_pinball_loss():
    scores, lengths = heavy(400, seed=1)
    found = TailAdjustment.of(scores, lengths)
    kept = np.clip(np.log(lengths), *found.within)
    terms = np.stack([np.ones(400), kept, kept**2], axis=1)

    def loss(location):
        rest = scores - terms @ location
        return float(np.sum(np.where(rest > 0, 0.9 * rest, -0.1 * rest)))

    least = loss(found.location)
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(100):
            assert loss(found.location + size * rng.normal(size=3)) >= least - 1e-9 * least
    # Three texts lie on the quantile, and a tenth of the others above it.
    assert np.sum(scores - terms @ found.location > 1e-9) == pytest.approx(40, abs=3)


def test_tails_of_all_lengths_are_alike_and_without_the_adjustment_they_are_not():
    scores, lengths = heavy(3000, seed=2)
    new, others = heavy(200_000, seed=3)
    adjusted = TailAdjustment.of(scores, lengths)(new, others)
    cut = {"adjusted": np.quantile(adjusted, 0.99), "plain": np.quantile(new, 0.99)}
    short = others < 20
    rates = {key: np.mean((adjusted if key == "adjusted" else new)[short] > value) for key, value in cut.items()}
    assert rates["adjusted"] == pytest.approx(0.01, rel=0.5)
    assert rates["plain"] < 1e-4


def test_a_score_that_is_constant_has_a_finite_tail():
    lengths = np.arange(5, 205)
    found = TailAdjustment.of(np.ones(200), lengths)
    assert np.isfinite(found(np.array([0.0, 1.0, 2.0]), np.array([1, 50, 10_000]))).all()
