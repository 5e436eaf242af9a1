"""Detectors of whole texts against explicit inverses and a search through all neighbours."""

import numpy as np
import torch

from metastable.monitor.detectors.pooled_knn import PooledKNN
from tests.monitor.detectors import harness, reference

TEXTS = ("The old ferry remembers a letter.", "Rain.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


def gaussian(clean, new):
    covariance = reference.shrunk(clean, reference.ledoit_wolf(clean))
    return reference.distances(new, clean.mean(axis=0), covariance)


def found(name):
    encoder = harness.minilm()
    return harness.score(encoder, harness.fitted(name), harness.real_texts(encoder, TEXTS)).columns.numpy()


def test_pooled_mahalanobis_at_every_depth():
    clean, new = (np.stack([reference.units(t).mean(axis=1) for t in texts]) for texts in (harness.CLEAN, TEXTS))
    expected = np.stack([gaussian(clean[:, depth], new[:, depth]) for depth in range(7)], axis=1)
    np.testing.assert_allclose(found("pooled-mahalanobis"), expected, rtol=1e-3)


def test_layer_mean_mahalanobis():
    clean, new = (np.stack([reference.units(t).mean(axis=(0, 1)) for t in texts]) for texts in (harness.CLEAN, TEXTS))
    np.testing.assert_allclose(found("layer-mean-mahalanobis")[:, 0], gaussian(clean, new), rtol=1e-3)


def embeddings(texts):
    means = np.stack([reference.hidden(text)[0][-1].mean(axis=0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_nearest_neighbours_by_a_search_through_all():
    cosines = embeddings(TEXTS) @ embeddings(harness.CLEAN).T
    expected = [1 - np.mean(sorted(row)[-10:]) for row in cosines]
    np.testing.assert_allclose(found("pooled-knn")[:, 0], expected, atol=1e-6)


def test_known_texts_are_bounded_and_are_texts():
    encoder = harness.minilm()
    batches = [harness.real_texts(encoder, harness.CLEAN[start : start + 16]) for start in range(0, 96, 16)]
    detector = harness.learn(encoder, PooledKNN(encoder, known=20), batches)
    known = detector.to_arrays()["known"]
    assert known.shape == (20, 384)
    all_of_them = embeddings(harness.CLEAN[:96])
    nearest = (known @ all_of_them.T).argmax(axis=1)
    assert len(set(nearest)) == 20
    assert max(nearest) >= 40, "texts that came after the sample was full have their chance too"
    np.testing.assert_allclose(known, all_of_them[nearest], atol=1e-5)
    again = harness.learn(encoder, PooledKNN(encoder, known=20), batches)
    assert (again.to_arrays()["known"] == known).all()


def test_fewer_known_texts_than_neighbours():
    encoder = harness.minilm()
    detector = harness.learn(encoder, PooledKNN(encoder), [harness.real_texts(encoder, harness.CLEAN[:3])])
    values = harness.score(encoder, detector, harness.real_texts(encoder, harness.CLEAN[:1]))
    expected = 1 - (embeddings(harness.CLEAN[:1]) @ embeddings(harness.CLEAN[:3]).T).mean()
    torch.testing.assert_close(values.columns[0, 0], torch.tensor(expected), rtol=0, atol=1e-6)
