"""Pooled Mahalanobis distances against explicit inverses."""

import numpy as np

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
