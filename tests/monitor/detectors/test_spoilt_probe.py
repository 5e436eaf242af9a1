"""The probe of mean tokens: against the formula, and on texts whose words stand in another order."""

import random

import numpy as np
import pytest
import torch

from metastable.monitor.detectors.spoilt_probe import STEPS, SpoiltProbe
from metastable.monitor.exposure import CLIP, Exposure
from metastable.monitor.spoiling import CLEAN, KINDS
from tests.monitor.detectors import harness, reference

DEPTHS = (2, 3)


def mean_units(inputs):
    """x̄ at the two depths, side by side, of each text: a loop over texts, in float64."""
    encoder, found = harness.minilm(), []
    norms = [layer.output.LayerNorm for layer in encoder.model.encoder.layer]
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        ids = ids[mask.bool()]
        with torch.no_grad():
            states = encoder.model(ids[None], output_hidden_states=True).hidden_states
        row = []
        for depth in DEPTHS:
            gain, offset = (w.detach().double().numpy() for w in (norms[depth - 1].weight, norms[depth - 1].bias))
            z = (states[depth][0].double().numpy()[reference.is_word(ids.numpy())] - offset) / gain
            row.append((z / np.linalg.norm(z, axis=1, keepdims=True)).mean(axis=0))
        found.append(np.concatenate(row))
    return np.stack(found)


def test_columns_are_the_log_odds_of_a_classifier_of_mean_tokens():
    encoder, texts = harness.minilm(), harness.CLEAN
    inputs = harness.real_texts(encoder, texts)
    clean, spoilt = mean_units(inputs), mean_units(harness.backwards(inputs))
    literal = Exposure.of(clean, spoilt, np.zeros(len(texts), dtype=int), STEPS)
    new = harness.real_texts(encoder, ("It rains.", "yesterday doctor the had A letter.", "qwxz zzyq, unbelievably!"))
    found = harness.score(encoder, harness.fitted("spoilt-probe"), new).columns.numpy()
    for row, mean in zip(found, mean_units(new), strict=True):
        z = np.clip((mean - literal.centre) / literal.unit, -CLIP, CLIP)
        logits = [
            sum(w * x for w, x in zip(weights[:-1], z, strict=True)) + weights[-1] for weights in literal.weights.T
        ]
        expected = [*logits, np.log(np.exp(logits).sum())]
        # The fit stops at a few digits, and float32 rounds the rows that it starts from.
        np.testing.assert_allclose(row, expected, rtol=1e-2, atol=1e-2)


def shuffled(text, chance):
    words = text.split()
    return " ".join(chance.sample(words, len(words)))


def share_above(kinds, texts, held):
    """How often a held-out text with its words shuffled is above the same text, by the column of any kind."""
    encoder, chance = harness.minilm(), random.Random(0)
    probe = SpoiltProbe(encoder)
    batches = [harness.real_texts(encoder, own) for own in (texts, [shuffled(text, chance) for text in texts])]
    harness.show(encoder, probe, 0, batches)
    probe.teach(kinds)
    found = [
        harness.score(encoder, probe, harness.real_texts(encoder, own)).columns[:, -1]
        for own in (held, [shuffled(text, chance) for text in held])
    ]
    return float((found[1] > found[0]).double().mean())


@pytest.fixture(scope="module")
def halves():
    texts = random.Random(1).sample(harness.CLEAN, len(harness.CLEAN))
    return texts[::2], texts[1::2]


def test_it_learns_an_order_of_words_and_not_the_texts(halves):
    texts, held = halves
    kinds = np.repeat([CLEAN, 0], len(texts))
    assert share_above(kinds, texts, held) > 0.85
    # Negative control: every other text is called spoilt, in either order of its words.
    wrong = np.tile(np.where(np.arange(len(texts)) % 2, 0, CLEAN), 2)
    assert share_above(wrong, texts, held) < 0.75


def test_the_probe_names_the_kind_that_it_was_taught():
    """Copies of one kind are nearer to it than copies of another are."""
    encoder, texts = harness.minilm(), list(harness.CLEAN)
    inputs = harness.real_texts(encoder, texts)
    twice = harness.real_texts(encoder, [" ".join(word for word in text.split() for _ in (0, 1)) for text in texts])
    probe = SpoiltProbe(encoder)
    harness.show(encoder, probe, 0, [inputs, harness.backwards(inputs), twice])
    probe.teach(np.repeat([CLEAN, 0, 3], len(texts)))
    for own, kind in ((harness.backwards(inputs), 0), (twice, 3)):
        logits = harness.score(encoder, probe, own).columns[:, : len(KINDS)]
        assert (logits.argmax(dim=1) == kind).double().mean() > 0.9
