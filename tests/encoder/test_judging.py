"""The verdict in words: planted curves and tables whose phase and outcome are known."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from metastable.encoder import verdict as judging
from metastable.encoder.exact_sums import ExactSums


def tally(means, texts=50, noise=0.001, lengths=16):
    """Texts of one length whose statistic has these means over depths."""
    found = ExactSums((len(means),))
    rng = np.random.default_rng(0)
    values = np.asarray(means) + noise * rng.standard_normal((texts, len(means)))
    found.add(values, np.full(texts, lengths))
    return found


class Measurements:
    """As much of `measuring.Measurements` as judging reads."""

    def __init__(self, cosines, noise=0.001, squares=None):
        squares = [max(c, 0.0) ** 2 for c in cosines] if squares is None else squares
        self.depths = {
            "mean_cosine": tally(cosines, noise=noise),
            "mean_square_cosine": tally(squares, noise=noise),
            "effective_rank": tally([5.0] * len(cosines)),
            "hidden_cosine": tally(cosines),
        }
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


def phases(cosines, twin=None, noise=0.001, squares=None):
    beside = None if twin is None else Measurements(twin)
    table = heads(len(cosines) - 1, (0.0,) * len(cosines))
    return [j.phase for j in judging._judgements(table, Measurements(cosines, noise, squares), beside)]


def test_two_opposite_points_are_the_theorys_limit_and_not_spread():
    """Half of the tokens at e and half at −e: the mean cosine says nothing, its square everything."""
    found = phases([0.0, 0.0, 0.0, 0.0], [0.0] * 4, squares=[0.01, 0.6, 0.98, 0.98])
    assert found == ["spread", "concentrating", "concentrating", "metastable"]
    table = heads(3, (0.0,) * 3)
    last = judging._judgements(
        table, Measurements([0.0] * 4, squares=[0.01, 0.6, 0.98, 0.98]), Measurements([0.0] * 4)
    )[-1]
    assert "about two opposite points" in last.sentence


def test_tokens_that_were_close_from_the_start_are_said_to_be():
    found = phases([0.83, 0.83, 0.83], [0.37, 0.37, 0.37])
    assert found == ["metastable"] * 3
    assert judging._course(found) == "tokens are close together from the start, and at the end"
    assert judging._course(["terminal"] * 3) == "tokens are close together from the start, and at the end"
    assert judging._course(["spread", "concentrating", "terminal"]) == "tokens end in one point"
    assert judging._course(["spread", "concentrating", "spread"]).endswith("but do not stay together")
    assert judging._course(["spread"] * 3) == "tokens stay spread out"


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
    assert judging._prediction(table, 1)[0] == outcome


def test_a_prediction_too_small_to_see_is_not_counted():
    assert judging._prediction(heads(3, (0.05,) * 3, predicted=0.001), 1)[0] == "undecided"


def test_the_twins_count_stands_in_the_headline():
    measured, twin, table = Measurements([0.1, 0.2, 0.3, 0.4]), Measurements([0.1] * 4), heads(3, (0.05, 0.0, 0.05))
    layers = judging._judgements(table, measured, twin)
    beside = judging._judgements(heads(3, (0.0, 0.0, 0.05)), twin, None)
    words = judging._headline(table, measured, twin, layers, beside)
    assert "met in 2 of the 3 layers where it can be told (random weights: 1 of 3)" in words


def test_an_encoder_like_random_weights_is_said_to_be():
    same = judging._beside(Measurements([0.1, 0.2]), Measurements([0.1, 0.2]))
    assert same.endswith("cannot be told from one with random weights")
    assert judging._beside(Measurements([0.1, 0.4]), Measurements([0.1, 0.2])) == ""


def test_there_is_no_prediction_without_heads_that_make_one():
    table = heads(3, (0.05,) * 3, applicable=False)
    assert judging._prediction(table, 0) == ("not applicable", "no head of the layer predicts two points")
    assert judging._prediction(table, 3) == ("not applicable", "after the last layer")


def test_encoder_and_twin_are_compared_at_one_length():
    """A statistic that falls with n: the twin saw shorter texts, and its number is moved to the encoder's n."""
    found = ExactSums((1,))
    lengths = np.array([4, 8, 16] * 20)
    found.add((1.0 - 0.1 * np.log2(lengths))[:, None], lengths)
    assert judging.at_length(found, 64.0)[0] == pytest.approx(1.0 - 0.6, abs=1e-6)
    assert found.mean()[0] == pytest.approx(1.0 - 0.3, abs=1e-6)
