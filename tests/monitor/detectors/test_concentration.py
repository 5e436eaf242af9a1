"""Concentration and attention entropy: against loops over tokens and the model's own attentions."""

import itertools
import math

import numpy as np
import pytest
import torch

from metastable.encoder.hooks import Depth, Lens, Passage
from tests.monitor.detectors import harness, reference

TEXTS = ("The old ferry remembers a letter.", "It rains.", "Rain.", "the the the cat cat sat", harness.CLEAN[7])


def literal(units):
    """The six statistics of one cloud, (m, d), pair by pair."""
    m = len(units)
    if m == 1:
        return [1.0] * 6
    cosines = [[float(a @ b) for b in units] for a in units]
    pairs = [cosines[i][j] for i in range(m) for j in range(m) if i != j]
    nearest = [max(cosines[i][j] for j in range(m) if j != i) for i in range(m)]
    beside = [cosines[i][i + 1] for i in range(m - 1)]
    beyond = [cosines[i][i + 2] for i in range(m - 2)]
    return [
        np.mean(pairs),
        np.mean(np.square(pairs)),
        np.mean(nearest),
        np.mean(sorted(nearest)[-3:]),
        np.mean(beside),
        np.mean(beyond) if beyond else 1.0,
    ]


def test_statistics_of_pairs_and_moves_token_by_token():
    detector = harness.fitted("concentration")
    found = harness.score(harness.minilm(), detector, harness.real_texts(harness.minilm(), TEXTS)).columns.numpy()
    for row, text in enumerate(TEXTS):
        units = reference.units(text)
        expected = [value for cloud in units for value in literal(cloud)]
        moves = [
            np.mean([np.linalg.norm(b - a) for a, b in zip(x, y, strict=True)]) for x, y in itertools.pairwise(units)
        ]
        np.testing.assert_allclose(found[row], [*expected, *moves], rtol=1e-4, atol=1e-5)


def test_a_cloud_that_is_nearly_one_point_keeps_its_digits():
    """Cosines that differ from 1 by 1e-6 come with four digits of the difference, from tokens in float32."""
    generator = torch.Generator().manual_seed(0)
    around = torch.randn(1, 1, 32, generator=generator, dtype=torch.float64)
    x = torch.nn.functional.normalize(around + 2e-3 * torch.randn(1, 9, 32, generator=generator).double(), dim=-1)
    passage = Passage(*(torch.ones(1, 9, dtype=torch.bool) for _ in range(3)))
    depth = Depth(0, x.float(), Lens.of(None, 32), passage)
    detector = harness.fitted_small("concentration")
    reading = detector.open(passage)
    reading.visit(depth)
    found = reading.values().columns[0, :6].numpy()
    expected = np.array(literal(x[0].numpy()))
    assert (1 - expected < 1e-5).all()
    np.testing.assert_allclose(1 - found, 1 - expected, rtol=1e-3)


def test_repeated_words_are_near_each_other():
    """What the detector is for: repeated words raise the cosine to the nearest token."""
    detector = harness.fitted("concentration")
    found = harness.score(harness.minilm(), detector, harness.real_texts(harness.minilm(), TEXTS)).columns
    place = [(column.name, column.depth) for column in detector.columns].index(("three_nearest", 0))
    assert found[3, place] > found[0, place] + 0.1


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_count_by_their_first_tokens(side, monkeypatch):
    """Padding on either side, and a text of more tokens than are looked at: those after the last one change nothing."""
    monkeypatch.setattr("metastable.monitor.detectors.concentration.LEADING", 20)
    encoder, detector = harness.small(), harness.fitted_small("concentration")
    long = harness.Captured.of(encoder, harness.random_texts(encoder, (40, 10), seed=4))
    whole = long.score(detector).columns
    keep = torch.arange(42).repeat(2, 1)
    keep[0, 21:] = -1  # the special token at the front and 20 tokens
    keep[1, 12:] = -1
    if side == "left":
        keep = torch.stack([torch.cat([row[row < 0], row[row >= 0]]) for row in keep])
    cut = long.placed(torch.arange(2), keep, garbage=math.nan).score(detector).columns
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)
    fewer = torch.where(keep == 20, -1, keep)
    less = long.placed(torch.arange(2), fewer, garbage=math.nan).score(detector).columns
    assert not torch.isclose(less[0], whole[0], rtol=1e-5, atol=1e-6).all()


@pytest.mark.parametrize("at_once", [1, 400_000])
def test_entropies_are_those_of_the_model_s_attentions(at_once, monkeypatch):
    monkeypatch.setattr("metastable.monitor.detectors.attention_entropy.SCORES", at_once)
    encoder, detector = harness.small(), harness.fitted_small("attention-entropy")
    inputs = harness.random_texts(encoder, (5, 9, 1), seed=3)
    with torch.no_grad():
        attentions = encoder.model(**inputs, output_attentions=True).attentions
    found = harness.score(encoder, detector, inputs).columns
    heads = len(detector.columns) // 2
    for place, column in enumerate(detector.columns):
        for text, n in enumerate((7, 11, 3)):
            rows = attentions[column.depth][text, place % heads, 1 : n - 1, :n].double()
            entropy = float(-(rows * rows.log()).sum(dim=1).mean() / math.log(n))
            words = float(rows[:, 1 : n - 1].sum(dim=1).mean())
            assert found[text, place] == pytest.approx(entropy if place < heads else words, rel=1e-4)


@pytest.mark.parametrize("name", ["concentration", "attention-entropy", "place-surprise"])
def test_chosen_tokens_at_other_places_in_each_text_have_the_same_columns(name):
    """Texts whose words all start at one place take a view of them, others are gathered."""
    encoder, detector = harness.small(), harness.fitted_small(name)
    captured = harness.Captured.of(encoder, harness.random_texts(encoder, (4, 9, 1), seed=8))
    assert captured.passage.start == 1
    expected = captured.score(detector)
    columns = torch.full((3, 13), -1)
    for row, (first, n) in enumerate(((0, 6), (1, 11), (7, 3))):
        columns[row, first : first + n] = torch.arange(n)
    moved = captured.placed(torch.arange(3), columns, garbage=math.nan)
    assert moved.passage.start is None
    found = moved.score(detector)
    torch.testing.assert_close(found.columns, expected.columns, rtol=1e-5, atol=1e-6)
    if found.tokens is not None:
        for row, (first, n) in enumerate(((0, 6), (1, 11), (7, 3))):
            torch.testing.assert_close(found.tokens[row, first : first + n], expected.tokens[row, :n])
