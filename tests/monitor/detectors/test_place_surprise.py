"""Place surprise against literal loops over tokens, and what it is for: words out of place."""

import random

import numpy as np
import pytest
import torch

from metastable.monitor.detectors.place_surprise import place_depths
from tests.monitor.detectors import harness, reference
from tests.monitor.detectors.harness import Captured

TEXTS = ("The old ferry remembers a letter.", "Rain.", "It rains.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


def around(y, i):
    """The two before, the two after, 0 beyond the ends, and the mean of all others."""
    parts = [y[i + step] if 0 <= i + step < len(y) else np.zeros(y.shape[1]) for step in (-1, -2, 1, 2)]
    others = [row for j, row in enumerate(y) if j != i]
    return np.concatenate([*parts, np.mean(others, axis=0) if others else np.zeros(y.shape[1])])


class Literal:
    """One depth, with every matrix inverted and every residual taken for itself."""

    def __init__(self, depth, rank=64):
        self.depth = depth
        clean = np.concatenate([reference.units(text)[depth] for text in harness.CLEAN])
        self.mean = clean.mean(axis=0)
        self.basis = np.linalg.svd(clean - self.mean, full_matrices=False)[2][:rank].T
        texts = [self.coordinates(text) for text in harness.CLEAN]
        y = np.concatenate(texts)
        c = np.concatenate([[around(text, i) for i in range(len(text))] for text in texts])
        self.y_mean, self.c_mean = y.mean(axis=0), c.mean(axis=0)
        cross = (y - self.y_mean).T @ (c - self.c_mean) / len(y)
        self.a = cross @ np.linalg.inv(reference.shrunk(c))
        residual = (y - self.y_mean) - (c - self.c_mean) @ self.a.T
        self.alone, self.placed = reference.shrunk(y), reference.shrunk(residual)
        self.clean = np.concatenate([self.values(text) for text in harness.CLEAN])

    def coordinates(self, text):
        return (reference.units(text)[self.depth] - self.mean) @ self.basis

    def values(self, text):
        y = self.coordinates(text)
        residual = np.array([row - self.y_mean - self.a @ (around(y, i) - self.c_mean) for i, row in enumerate(y)])
        zero = np.zeros(y.shape[1])
        return reference.distances(residual, zero, self.placed) - reference.distances(y, self.y_mean, self.alone)


def test_columns_and_tokens_of_the_real_encoder():
    encoder, detector = harness.minilm(), harness.fitted("place-surprise")
    found = harness.score(encoder, detector, harness.real_texts(encoder, TEXTS))
    literal = [Literal(depth) for depth in detector.depths]
    for place, own in enumerate(literal):
        expected = np.array([reference.mean_and_worst(own.values(text)) for text in TEXTS])
        np.testing.assert_allclose(found.columns[:, 2 * place : 2 * place + 2], expected, rtol=2e-4, atol=2e-4)
    for row, text in enumerate(TEXTS):
        strange = np.mean([(own.values(text) - own.clean.mean()) / own.clean.std() for own in literal], axis=0)
        np.testing.assert_allclose(found.tokens[row, 1 : 1 + len(strange)], strange, rtol=1e-3, atol=2e-3)
        assert (found.tokens[row, 1 + len(strange) :] == 0).all()


def test_special_tokens_between_words_are_stepped_over():
    """The same words with a [SEP] in the middle and a [CLS] after the first: neighbours stay neighbours."""
    encoder, detector = harness.minilm(), harness.fitted("place-surprise")
    captured = Captured.of(encoder, harness.real_texts(encoder, TEXTS[:1]))
    last = captured.passage.ids.shape[1] - 1
    places = torch.tensor([[0, 1, 0, 2, 3, last, *range(4, last + 1)]])
    found, expected = captured.placed(torch.tensor([0]), places).score(detector), captured.score(detector)
    torch.testing.assert_close(found.columns, expected.columns, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.tokens[0, 3:5], expected.tokens[0, 2:4], rtol=1e-4, atol=1e-4)
    # Two words that change places are no longer the same text.
    swapped = captured.placed(torch.tensor([0]), torch.tensor([[0, 2, 1, *range(3, last + 1)]])).score(detector)
    assert not torch.allclose(swapped.columns, expected.columns, rtol=1e-3)


@pytest.mark.slow
def test_shuffled_words_are_out_of_place_and_rare_words_alone_are_not():
    encoder = harness.minilm()
    texts = [text for text in harness.CLEAN if len(text.split()) > 5]
    chance = random.Random(0)
    shuffled = [" ".join(chance.sample(words, len(words))) for words in (text.split() for text in texts)]
    score = {name: [] for name in ("place-surprise", "unigram-rarity")}
    for name, found in score.items():
        for own in (texts, shuffled):
            inputs = harness.real_texts(encoder, own)
            found.append(harness.score(encoder, harness.fitted(name), inputs).columns[:, 0])
    clean, out_of_place = score["place-surprise"]
    assert (out_of_place > clean).double().mean() > 0.9
    # What only counts words cannot see their order.
    torch.testing.assert_close(*score["unigram-rarity"], rtol=1e-6, atol=0)


def test_few_dimensions_and_few_layers():
    detector = harness.fitted_small("place-surprise")
    assert detector.rank == 32
    assert [place_depths(layers) for layers in (1, 2, 3, 6, 12)] == [(0,), (1,), (1, 2), (2, 3), (4, 6)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_passes_with_fewer_tokens_than_neighbours(n):
    encoder, detector = harness.small(), harness.fitted_small("place-surprise")
    ids = torch.arange(10, 10 + n).unsqueeze(0)
    found = harness.score(encoder, detector, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    padded = torch.cat([ids, torch.zeros(1, 6, dtype=torch.long)], dim=1)
    more = harness.score(encoder, detector, {"input_ids": padded, "attention_mask": (padded > 0).long()})
    torch.testing.assert_close(found.columns, more.columns, rtol=1e-5, atol=1e-5)
