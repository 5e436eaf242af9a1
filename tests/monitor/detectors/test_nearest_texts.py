"""Nearest texts: against a search through all clean texts."""

import numpy as np
import torch

from metastable.monitor.detectors.nearest_texts import NearestTexts
from tests.monitor.detectors import harness, reference
from tests.monitor.detectors.test_pooled import TEXTS, found


def embeddings(texts):
    means = np.stack([reference.hidden(text)[0][-1].mean(axis=0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_nearest_neighbours_by_a_search_through_all():
    cosines = embeddings(TEXTS) @ embeddings(harness.CLEAN).T
    expected = [1 - np.mean(sorted(row)[-10:]) for row in cosines]
    np.testing.assert_allclose(found("nearest-texts")[:, 0], expected, atol=1e-6)


def test_known_texts_are_bounded_and_are_texts():
    encoder = harness.minilm()
    batches = [harness.real_texts(encoder, harness.CLEAN[start : start + 16]) for start in range(0, 96, 16)]
    detector = harness.learn(encoder, NearestTexts(encoder, known=20), batches)
    known = detector.to_arrays()["known"]
    assert known.shape == (20, 384)
    all_of_them = embeddings(harness.CLEAN[:96])
    nearest = (known @ all_of_them.T).argmax(axis=1)
    assert len(set(nearest)) == 20
    assert max(nearest) >= 40, "texts that came after the sample was full have their chance too"
    np.testing.assert_allclose(known, all_of_them[nearest], atol=1e-5)


def test_fewer_known_texts_than_neighbours():
    encoder = harness.minilm()
    detector = harness.learn(encoder, NearestTexts(encoder), [harness.real_texts(encoder, harness.CLEAN[:3])])
    values = harness.score(encoder, detector, harness.real_texts(encoder, harness.CLEAN[:1]))
    expected = 1 - (embeddings(harness.CLEAN[:1]) @ embeddings(harness.CLEAN[:3]).T).mean()
    torch.testing.assert_close(values.columns[0, 0], torch.tensor(expected), rtol=0, atol=1e-6)
