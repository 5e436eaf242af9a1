"""The course of the tokens in words: planted curves whose course is known, and features that own a cosine."""

from collections import Counter

import numpy as np
import pytest
import torch

from metastable.encoder import course
from metastable.encoder.anatomy import Norm
from metastable.encoder.statistics import largest_feature, mean_cosine
from tests.encoder.test_judging import Measurements, tally

MORE, LESS = (f", and end {way} alike than at the input" for way in ("more", "less"))


def words(mean, reach=0.005):
    mean = np.array(mean)
    return course.course(mean, mean - reach, mean + reach)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([0.10, 0.10, 0.11], "stay about as alike as they are at the input"),
        ([0.10, 0.20, 0.40], "become more alike"),
        ([0.10, 0.244, 0.225], "become more alike"),
        (
            [0.10, 0.30, 0.225],
            "become more alike up to depth 1 and less alike after it" + MORE,
        ),
        (
            [0.20, 0.10, 0.40],
            "become less alike up to depth 1 and more alike after it" + MORE,
        ),
        ([0.40, 0.30, 0.20], "become less alike"),
        (
            [0.40, 0.60, 0.20],
            "become more alike up to depth 1 and less alike after it" + LESS,
        ),
        (
            [0.40, 0.20, 0.30],
            "become less alike up to depth 1 and more alike after it" + LESS,
        ),
        (
            [0.20, 0.50, 0.20],
            "become more alike up to depth 1 and less alike after it, but end about as alike as at the input",
        ),
        # A fine-tuned BERT of reactions, and the same encoder before.
        (
            [0.12, 0.225, 0.317, 0.272, 0.252, 0.182, 0.201, 0.186, 0.195, 0.235, 0.226, 0.349, 0.539],
            "become more alike up to depth 2, less alike up to depth 5 and more alike after it" + MORE,
        ),
        (
            [0.16, 0.351, 0.2, 0.255],
            "become more alike up to depth 1, less alike up to depth 2 and more alike after it" + MORE,
        ),
        ([0.15, 0.14, 0.16], "stay about as alike as they are at the input"),
        ([0.15, 0.14, 0.165], "become more alike after depth 1"),
        ([0.15, 0.14, 0.165, 0.20], "become more alike"),
        (
            [0.1, 0.3, 0.1, 0.3, 0.1, 0.4],
            "become more and less alike by turns, most alike at depth 5 and least at depth 0" + MORE,
        ),
    ],
)
def test_every_course(curve, expected):
    assert words(curve) == expected


def test_a_change_within_the_intervals_is_not_told():
    assert words([0.10, 0.20, 0.40], reach=0.2) == "stay about as alike as they are at the input"
    assert words([0.10, 0.30, 0.225], reach=0.05) == "become more alike"
    # A wide interval at the top does not hide a fall that is seen from the depth before it.
    assert words([0.10, 0.30, 0.32, 0.20], np.array([0.005, 0.005, 0.13, 0.005])).startswith(
        "become more alike up to depth 1 and less alike after it"
    )


def turns_by_definition(mean, least):
    """All depths where the course turns, by brute force: the longest zigzag whose legs are all at least `least`."""
    best = 1
    reach = {(i, up): 1 for i in range(len(mean)) for up in (True, False)}
    for i in range(len(mean)):
        for j in range(i):
            for up in (True, False):
                if (mean[i] - mean[j] if up else mean[j] - mean[i]) >= least:
                    reach[i, up] = max(reach[i, up], reach[j, not up] + 1)
        best = max(best, reach[i, True], reach[i, False])
    return best - 1


@pytest.mark.parametrize("seed", range(20))
def test_no_turn_is_left_out_and_none_is_invented(seed):
    """The number of legs equals that of the longest zigzag, whatever the curve."""
    mean = np.random.default_rng(seed).uniform(0, 0.1, size=3 + seed % 12).round(3)
    legs = turns_by_definition(mean, course.CHANGE)
    start, rising, turns = course._turns(mean, mean, lambda a, b: mean[a] - mean[b] >= course.CHANGE)
    assert legs == (0 if rising is None else len(turns) + 1)
    places = [start, *turns]
    steps = np.diff(mean[places]) * np.where(np.arange(len(turns)) % 2 == (0 if rising else 1), 1, -1)
    assert (steps >= course.CHANGE).all()


def test_a_single_text_has_no_interval_but_a_course():
    mean = np.array([0.1, 0.4])
    assert course.course(mean, np.full(2, np.nan), np.full(2, np.nan)) == "become more alike"


def measured(hidden, without=None, share=None):
    found = Measurements([0.1] * len(hidden))
    found.depths["hidden_cosine"] = tally(hidden)
    found.depths["hidden_cosine_without"] = tally(hidden if without is None else without)
    if share is not None:
        found.depths["hidden_largest_share"] = tally(share)
    return found


def test_the_headline_is_one_sentence_about_hidden_states():
    found = course.headline(measured([0.10, 0.24, 0.22]))
    assert found == (
        "over 2 layers the tokens of a text become more alike: the mean cosine of their hidden states goes from 0.10 "
        "to 0.22; they do not collapse to one point"
    )
    assert "with 0.50 at depth 1" in course.headline(measured([0.10, 0.50, 0.225]))


def test_a_collapse_is_named_and_one_feature_is_no_collapse():
    assert course.headline(measured([0.2, 0.6, 0.97])).endswith("the tokens of a text are nearly one point at depth 2")
    assert course.headline(measured([0.2, 0.96, 0.97])).endswith("at depths 1, 2")
    alone = measured([0.2, 0.97], without=[0.2, 0.4], share=[0.01, 0.9])
    assert course.headline(alone).endswith("one feature alone makes them look equal")
    alone.largest["hidden"][1] = Counter({33: 40, 2: 10})
    assert any("feature 33 decides the cosine of hidden states at depth 1" in s for s in course.sentences(alone))


def test_where_two_cosines_disagree_the_feature_is_named():
    found = measured([0.04, 0.30])
    found.depths["mean_cosine"] = tally([0.62, 0.31])
    found.depths["cosine_without"] = tally([0.11, 0.31])
    found.depths["largest_share"] = tally([0.58, 0.01])
    found.largest["tokens"][0] = Counter({11: 50})
    (said,) = course.sentences(found)
    assert said.startswith("at depth 0")
    assert all(part in said for part in ("feature 11", "58 %", "0.11"))
    found.depths["cosine_without"] = tally([0.60, 0.31])
    (said,) = course.sentences(found)
    assert said.endswith("the gains and offsets of the normalisation make the difference")


def test_the_largest_feature_by_hand():
    rows = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    rows[:, :, 2] += 4
    unit = torch.nn.functional.normalize(rows, dim=-1)
    chosen = torch.ones(3, 6, dtype=torch.bool)
    chosen[1, 4:] = False
    feature, share, without = largest_feature(unit, chosen)
    assert feature.tolist() == [2, 2, 2]
    for i in range(3):
        own = unit[i][chosen[i]].double()
        assert share[i] == pytest.approx(float((own[:, 2] ** 2).mean()), abs=1e-6)
        rest = own[:, [0, 1, 3, 4]]
        rest = rest / rest.norm(dim=1, keepdim=True)
        gram = rest @ rest.T
        m = len(rest)
        assert without[i] == pytest.approx(float((gram.sum() - m) / (m * (m - 1))), abs=1e-5)
        assert without[i] < mean_cosine(unit, chosen)[i] - 0.1


@pytest.mark.parametrize(
    ("faint", "erased"),
    [
        ([5.3e-5, 6.6e-5, 1.4e-4], 3),
        ([7e-33, 9e-33, 2e-9], 3),
        ([0.0], 1),
        ([0.13, 0.25], 0),
        ([0.004, 0.02, 0.1, 0.3], 0),
        ([1e-5, 1e-3, 0.02, 0.3], 3),
        ([], 0),
    ],
)
def test_erased_features_end_at_a_gap_and_not_at_a_cut(faint, erased):
    gain = torch.cat([torch.tensor(faint), torch.linspace(0.4, 1.6, 60)])
    norm = Norm(gain[torch.randperm(len(gain), generator=torch.Generator().manual_seed(0))], torch.zeros(()), 1e-12)
    assert int((~norm.seen).sum()) == erased
    assert (norm.gain[~norm.seen].max() if erased else 0) <= max(faint, default=0)
