"""The verdict in words: planted curves and tables whose phase and outcome are known."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from metastable.encoder import verdict as judging
from metastable.encoder.exact_sums import ExactSums
from metastable.encoder.weights import LINEAR, LOGARITHMIC


def tally(means, texts=50, noise=0.001, lengths=16):
    """Texts of one length whose statistic has these means over depths."""
    found = ExactSums((len(means),))
    rng = np.random.default_rng(0)
    values = np.asarray(means) + noise * rng.standard_normal((texts, len(means)))
    found.add(values, np.full(texts, lengths))
    return found


class Measurements:
    """The part of `measure.Measurements` that the verdict reads."""

    def __init__(self, cosines, noise=0.001, squares=None):
        squares = [max(c, 0.0) ** 2 for c in cosines] if squares is None else squares
        self.depths = {
            "mean_cosine": tally(cosines, noise=noise),
            "mean_square_cosine": tally(squares, noise=noise),
            "effective_rank": tally([5.0] * len(cosines)),
            "hidden_cosine": tally(cosines),
            "cosine_without": tally(cosines, noise=noise),
            "hidden_cosine_without": tally(cosines),
            "largest_share": tally([0.01] * len(cosines)),
            "hidden_largest_share": tally([0.01] * len(cosines)),
        }
        self.largest = {name: [Counter({7: 50})] * len(cosines) for name in ("tokens", "hidden")}
        self.layers = {"update_length": tally([0.4] * (len(cosines) - 1))}
        self.heads = {"special_share": tally([0.3])}
        self.lengths = Counter({16: 50})


def heads(layers=3, approach=(0.05,) * 3, half_width=0.01, predicted=0.05, applicable=True):
    rows = []
    for layer in range(layers):
        for head in range(2):
            a = approach[layer]
            rows.append(
                {
                    "layer": layer, "head": head, "applicable": applicable, "rate": 0.1, "distance_before": 1.2,
                    "approach": a, "approach_low": a - half_width, "approach_high": a + half_width,
                    "predicted_approach": predicted, "prediction": "concentrates on two points ±e",
                    "layers_to_concentrate": 30.0, "maximiser_angle": 80.0, "share_in_E": 0.01, "random_share": 0.01,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def verdict(table, measured, twin=None, beside=()):
    unused = {*LOGARITHMIC, *LINEAR, *judging.BEHAVIOUR} - set(table)
    table = table.assign(**dict.fromkeys(sorted(unused), math.nan))
    return judging.judge(table, measured, twin, beside)


def outcome_of(table, layer):
    """The outcome of a layer, and its sentence."""
    layers = table["layer"].nunique()
    found = verdict(table, Measurements([0.1] * (layers + 1))).layers[layer]
    return found.prediction, found.sentence


def phases(cosines, twin=None, noise=0.001, squares=None):
    beside = None if twin is None else Measurements(twin)
    table = heads(len(cosines) - 1, (0.0,) * len(cosines))
    return [j.phase for j in verdict(table, Measurements(cosines, noise, squares), beside).layers]


def test_two_opposite_points_are_the_theorys_limit_and_not_spread():
    """Half of the tokens at e and half at −e: the mean cosine says nothing, its square everything."""
    found = phases([0.0, 0.0, 0.0, 0.0], [0.0] * 4, squares=[0.01, 0.6, 0.98, 0.98])
    assert found == ["spread", "concentrating", "concentrating", "metastable"]
    table = heads(3, (0.0,) * 3)
    own = Measurements([0.0] * 4, squares=[0.01, 0.6, 0.98, 0.98])
    assert "two opposite points" in verdict(table, own, Measurements([0.0] * 4)).layers[-1].sentence


def test_tokens_that_were_close_from_the_start_are_metastable():
    assert phases([0.83, 0.83, 0.83], [0.37, 0.37, 0.37]) == ["metastable"] * 3


def test_one_feature_does_not_make_a_phase():
    """Depth 0 of a Chinese BERT: a mean cosine of 0.62, of 0.11 without one feature."""
    own = Measurements([0.62, 0.32, 0.53])
    own.depths["cosine_without"] = tally([0.11, 0.17, 0.32])
    found = verdict(heads(2, (0.0,) * 9), own, Measurements([0.3] * 3))
    assert [judgement.phase for judgement in found.layers] == ["spread", "concentrating", "concentrating"]


def test_a_curve_goes_through_all_four_phases():
    cosines = [0.1, 0.4, 0.7, 0.7, 0.71, 0.9, 0.97]
    twin = [0.1] * 7
    expected = ["spread", "concentrating", "concentrating", "metastable", "metastable", "concentrating", "terminal"]
    assert phases(cosines, twin) == expected


def test_tokens_that_are_as_near_as_random_weights_make_them_are_spread():
    assert phases([0.7, 0.7, 0.7], [0.7, 0.7, 0.7]) == ["spread"] * 3


def test_what_rises_from_a_plateau_is_spread_again():
    assert phases([0.1, 0.7, 0.7, 0.3], [0.1] * 4)[-1] == "spread"


def test_a_change_within_the_noise_is_no_change():
    quiet, noisy = ([0.1, 0.16], [0.1, 0.1]), 0.5
    assert phases(*quiet)[1] == "concentrating"
    assert phases(*quiet, noise=noisy)[1] == "spread"


@pytest.mark.parametrize(
    ("approach", "half_width", "outcome"),
    [
        (0.05, 0.01, "met"),
        (0.036, 0.01, "met"),
        (0.0, 0.01, "missed"),
        (-0.2, 0.01, "missed"),
        (0.03, 0.02, "undecided"),  # the interval holds half of what was predicted: texts do not tell
    ],
)
def test_a_prediction_is_met_missed_or_not_told(approach, half_width, outcome):
    table = heads(3, (approach,) * 3, half_width)
    assert outcome_of(table, 1)[0] == outcome


def test_a_prediction_too_small_to_see_is_not_counted():
    assert outcome_of(heads(3, (0.05,) * 3, predicted=0.001), 1)[0] == "undecided"


def test_the_twins_count_stands_beside_that_of_the_encoder():
    measured, twin, table = Measurements([0.1, 0.2, 0.3, 0.4]), Measurements([0.1] * 4), heads(3, (0.05, 0.0, 0.05))
    beside = verdict(heads(3, (0.0, 0.0, 0.05)), twin).layers
    words = verdict(table, measured, twin, beside).theory[0]
    assert "met in 2 of the 3 layers" in words
    assert "random weights, in 1 of 3" in words


def test_an_encoder_like_random_weights_is_said_to_be():
    table = heads(1, (0.0,))
    said = [verdict(table, Measurements([0.1, c]), Measurements([0.1, 0.2])).sentences for c in (0.2, 0.4)]
    assert [any("do not distinguish" in sentence for sentence in found) for found in said] == [True, False]


def test_there_is_no_prediction_without_heads_that_make_one():
    table = heads(3, (0.05,) * 3, applicable=False)
    for layer, words in ((0, "no head"), (3, "after the last layer")):
        outcome, sentence = outcome_of(table, layer)
        assert outcome == "not applicable"
        assert words in sentence


def test_encoder_and_twin_are_compared_at_one_length():
    """A statistic that falls with n: the twin saw shorter texts, and its number is moved to the encoder's n."""
    found = ExactSums((1,))
    lengths = np.array([4, 8, 16] * 20)
    found.add((1.0 - 0.1 * np.log2(lengths))[:, None], lengths)
    assert judging.at_length(found, 64.0)[0] == pytest.approx(1.0 - 0.6, abs=1e-6)
    assert found.mean()[0] == pytest.approx(1.0 - 0.3, abs=1e-6)
