"""The detector on curves whose phases are known by construction."""

from __future__ import annotations

import doctest
import math
import re

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable.errors import BadInput
from metastable.theory import phases
from metastable.theory.phases import detect

T = np.linspace(0, 40, 401)


def valley(t, rate=1.0, level=0.01, departure=30.0, growth=2.0):
    """Falls like e^{−rate·t} to `level` and has doubled it at `departure`."""
    return np.exp(-rate * t) + level * (1 + np.exp(np.minimum(growth * (t - departure), 50)))


def stairs(t, levels, steps, width=0.3):
    """Rests at each level in turn; the step at each time takes about four widths, in the logarithm."""
    logs = np.full(t.shape, math.log(levels[0]))
    for before, after, step in zip(levels, levels[1:], steps, strict=False):
        logs += math.log(after / before) / (1 + np.exp(-(t - step) / width))
    return np.exp(logs)


def wiggle(curve, seed, size=0.01):
    return curve * np.exp(size * np.random.default_rng(seed).normal(size=curve.shape))


def test_concentration_and_departure_times_of_a_valley():
    found = detect(T, valley(T))
    assert found.concentrated == pytest.approx(math.log(2 / 0.01), abs=0.05)  # e^{−t} = level/2
    assert found.terminal == pytest.approx(30 - math.log(2) / 2, abs=0.05)  # e^{2(t − 30)} = 1/2
    assert found.least == pytest.approx(0.01, rel=1e-3)
    assert found.concentrated < found.least_time < found.terminal
    assert found.horizon == 40
    assert len(found.plateaus) == 1
    plateau = found.plateaus[0]
    assert plateau.start == pytest.approx(math.log(10 / 0.01), abs=1.0)  # e^{−t} = level/10
    assert plateau.end == pytest.approx(30 + math.log(0.1) / 2, abs=1.0)
    assert plateau.level == pytest.approx(0.01, rel=0.02)


def test_crossings_are_interpolated_in_the_logarithm():
    found = detect([0, 1, 2, 3], [1.0, 1e-2, 1e-2, 1.0], factor=10.0)
    assert found.concentrated == pytest.approx(0.5)
    assert found.terminal == pytest.approx(2.5)


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("growth", [0.3, 2.0, 20.0])
def test_a_sudden_departure_does_not_hide_a_plateau_after_a_slow_fall(rate, growth):
    t = np.linspace(0, 120, 1201)
    curve = np.minimum(valley(t, rate, departure=80, growth=growth), 0.5)  # which makes the start slow as well
    found = detect(t, curve)
    assert [p.level for p in found.plateaus] == pytest.approx([0.01, 0.5], rel=0.05)
    assert found.concentrated == pytest.approx(math.log(2 / 0.01) / rate, abs=0.2)
    assert found.terminal == pytest.approx(80 - math.log(2) / growth, abs=0.2)


def test_a_valley_without_a_floor_has_no_plateau():
    found = detect(T, np.exp(-0.5 * T) + np.exp(0.5 * (T - 40)))
    assert found.plateaus == ()
    assert found.least_time == pytest.approx(20)
    assert found.concentrated == pytest.approx(20 - math.acosh(1.5) / 0.5, abs=0.01)
    assert found.terminal == pytest.approx(20 + math.acosh(1.5) / 0.5, abs=0.01)


@pytest.mark.parametrize("seed", range(10))
def test_staircase_has_every_step_also_with_noise(seed):
    levels, steps = [1.0, 0.05, 0.176, 0.514], [4, 14, 26]
    found = detect(T, wiggle(stairs(T, levels, steps), seed, size=0.01 if seed else 0.0))
    assert [p.level for p in found.plateaus] == pytest.approx(levels, rel=0.02)
    for plateau, start, end in zip(found.plateaus, [0, *steps], [*steps, 40], strict=True):
        assert plateau.start == pytest.approx(start, abs=2)
        assert plateau.end == pytest.approx(end, abs=2)
    assert found.concentrated == pytest.approx(4, abs=1)
    assert found.terminal == pytest.approx(14, abs=1)


def test_a_rest_after_the_departure_is_told_after_it_and_is_no_plateau():
    sentences = detect(T, stairs(T, [1.0, 0.05, 0.4], [4, 20])).sentences
    assert [sentence.split(" at ")[0].split(" from ")[0] for sentence in sentences[-4:]] == [
        "plateau",
        "plateau",
        "terminal phase",
        "then",
    ]
    assert re.fullmatch(r"then at rest at distance 0\.4 from t = \d+\.?\d* to the end of the run", sentences[-1])


def test_two_plateaus_on_the_way_down():
    found = detect(T, stairs(T, [1.0, 0.3, 0.02], [3, 20]))
    assert [p.level for p in found.plateaus[-2:]] == pytest.approx([0.3, 0.02], rel=0.02)
    assert found.concentrated == pytest.approx(20, abs=1)
    assert found.terminal is None
    assert found.sentences[-1] == "terminal phase not seen up to t = 40"


def test_a_step_smaller_than_the_factor_is_no_step():
    found = detect(T, stairs(T, [1.0, 0.1, 0.13], [5, 20]))
    assert len(found.plateaus) == 2
    assert found.plateaus[1].end == 40
    assert found.terminal is None


def test_a_bump_smaller_than_the_factor_does_not_cut_a_plateau_in_two():
    bump = 1 + 0.3 * np.exp(-(((T - 18) / 0.3) ** 2))
    assert len(detect(T, valley(T) * bump).plateaus) == 1
    assert len(detect(T, valley(T) * bump**3).plateaus) == 2


@pytest.mark.parametrize(
    "curve",
    [
        np.exp(-0.5 * T),
        np.sqrt(T + 0.1) * np.exp(-0.3 * T),
        np.exp(-5 * T) + 0.3 * np.exp(-0.2 * T),  # fast at first, then slower, but never at rest
        np.exp(-0.2 * T) + np.exp(-8.0),  # would come to rest later
        np.exp(-0.05 * T) * 0.7,
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_curve_that_still_falls_has_not_concentrated(curve, noise):
    found = detect(T, wiggle(curve, 3, noise))
    assert found.concentrated is None
    assert found.terminal is None
    assert found.course == "falling"
    assert "not complete up to t = 40" in found.sentences[0]


@pytest.mark.parametrize("seed", range(10))
def test_one_percent_of_noise_moves_the_times_little(seed):
    found, clean = detect(T, wiggle(valley(T), seed)), detect(T, valley(T))
    assert found.concentrated == pytest.approx(clean.concentrated, abs=0.2)
    assert found.terminal == pytest.approx(clean.terminal, abs=0.2)
    assert len(found.plateaus) == 1
    assert found.plateaus[0].start == pytest.approx(clean.plateaus[0].start, abs=1.5)
    assert found.plateaus[0].end == pytest.approx(clean.plateaus[0].end, abs=1.5)


def test_coarse_and_uneven_times():
    t = np.array([0, 0.5, 1, 2, 3, 4, 6, 8, 11, 15, 20, 25, 28, 29, 30, 31, 32])
    found = detect(t, valley(t))
    assert found.concentrated == pytest.approx(math.log(2 / 0.01), abs=0.7)
    assert found.terminal == pytest.approx(30 - math.log(2) / 2, abs=0.3)
    assert [p.level for p in found.plateaus] == pytest.approx([0.01], rel=0.05)


@given(stretch=st.floats(0.01, 100), scale=st.floats(1e-3, 1e3), shift=st.floats(-50, 50))
@settings(max_examples=30, deadline=None)
def test_units_of_time_and_distance_do_not_matter(stretch, scale, shift):
    plain = detect(T, valley(T))
    found = detect(shift + stretch * T, scale * valley(T), floor=1e-9 * scale)
    assert found.concentrated == pytest.approx(shift + stretch * plain.concentrated, abs=1e-6 * stretch)
    assert found.terminal == pytest.approx(shift + stretch * plain.terminal, abs=1e-6 * stretch)
    assert found.least == pytest.approx(scale * plain.least)
    # 1/f may fall on a saved time, where rounding decides between it and the next one.
    assert found.plateaus[0].start == pytest.approx(shift + stretch * plain.plateaus[0].start, abs=0.15 * stretch)


# --- curves on which nothing, or not much, happens


def test_nothing_moves():
    found = detect(T, np.full(T.shape, 0.5))
    assert (found.concentrated, found.terminal) == (None, None)
    assert [(p.start, p.end, p.level) for p in found.plateaus] == [(0.0, 40.0, 0.5)]
    assert found.sentences[0] == "the distance stays within a factor 1.5 of 0.5 up to t = 40"


def test_at_the_limit_from_the_start():
    found = detect(T, np.zeros(T.shape))
    assert found.concentrated == 0.0
    assert found.terminal is None
    assert found.least == 1e-9


def test_a_curve_that_only_rises_starts_at_its_least():
    found = detect(T, 0.01 * np.exp(T / 8))
    assert found.concentrated == 0.0
    assert found.terminal == pytest.approx(8 * math.log(1.5), abs=0.01)


def test_distances_below_the_floor_are_not_told_apart():
    curve = np.exp(-T)
    curve[T > 30] = 0.0
    rounding = np.abs(np.random.default_rng(0).normal(size=T.shape)) * 1e-12
    found = detect(T, curve + rounding)
    assert found.least == 1e-9
    assert found.concentrated == pytest.approx(-math.log(1.5e-9), abs=0.05)
    assert found.terminal is None
    noisy = detect(T, valley(T), floor=0.1)  # the departure happens below the noise floor until it reaches 0.15
    assert noisy.terminal == pytest.approx(30 + math.log(14) / 2, abs=0.05)


def test_an_exact_zero_is_the_least_distance_without_a_floor():
    found = detect([0, 1, 2, 3, 4], [1.0, 0.0, 0.0, 0.0, 1.0], floor=0.0)
    assert (found.least_time, len(found.plateaus)) == (1.0, 1)
    assert 0 < found.concentrated <= 1
    assert 3 <= found.terminal < 4


def test_one_saved_time_is_no_curve():
    found = detect([3.0], [0.2])
    assert (found.concentrated, found.terminal, found.plateaus) == (None, None, ())
    assert (found.horizon, found.least, found.least_time) == (3.0, 0.2, 3.0)
    assert len(found.sentences) == 1


def test_two_saved_times():
    assert detect([0, 1], [1.0, 0.1]).course == "falling"
    assert detect([0, 1], [0.1, 1.0]).terminal == pytest.approx(math.log(1.5) / math.log(10))


def test_sentences_of_a_whole_story():
    found = detect(T, stairs(T, [1.0, 0.05, 0.5], [4, 26]))
    assert found.sentences[0].startswith("concentrated from t = ")
    assert found.sentences[1].startswith("least distance 0.05 at t = ")
    assert found.sentences[-2].startswith("terminal phase from t = 2")
    assert found.sentences[-1].startswith("then at rest at distance 0.5 from t = ")
    assert found.sentences[-1].endswith("to the end of the run")


def test_tensors_and_labelled_arrays_are_read():
    plain = detect(T, valley(T))
    assert detect(torch.from_numpy(T), torch.from_numpy(valley(T))) == plain
    assert detect(T.tolist(), xr.DataArray(valley(T), dims="time")) == plain


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: detect([0, 1], [1.0, math.nan]), "distance holds a number that is not finite (nan at [1])"),
        (lambda: detect([0, 1], [1.0, -0.5]), "distance is -0.5 at t = 1"),
        (lambda: detect([0, 1], [math.inf, 1.0]), "distance holds a number that is not finite (inf at [0])"),
        (lambda: detect([0, 1, 1], [1.0, 1.0, 1.0]), "times go from 1 to 1"),
        (lambda: detect([1, 0], [1.0, 1.0]), "times go from 1 to 0"),
        (lambda: detect([0, math.nan], [1.0, 1.0]), "times holds a number that is not finite (nan at [1])"),
        (lambda: detect([0, 1], [1.0]), "shape"),
        (lambda: detect([], []), "shape"),
        (lambda: detect(["a"], [1.0]), "array of numbers"),
        (lambda: detect([0, 1], [1.0, 1.0], factor=1.0), "factor is 1.0"),
        (lambda: detect([0, 1], [1.0, 1.0], floor=-1.0), "floor is -1.0"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(BadInput) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_examples_in_the_docstrings_run():
    result = doctest.testmod(phases)
    assert result.attempted > 0
    assert result.failed == 0


def test_numbers_are_printed_with_few_digits():
    found = detect(np.linspace(0, 20, 201), np.exp(-np.linspace(0, 20, 201)) + 1 / 3)
    assert f"least={found.least:.6g}" in repr(found)
    assert len(max(re.findall(r"[0-9]+", repr(found)), key=len)) <= 6
