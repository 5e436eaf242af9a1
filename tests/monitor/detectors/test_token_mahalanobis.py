"""Per-token Mahalanobis distances against explicit inverses, in all dimensions and in subspaces."""

import numpy as np
import pytest
import torch

from metastable.monitor.detectors.token_mahalanobis import TokenMahalanobis, token_depths
from tests.monitor.detectors import harness, reference

TEXTS = ("The old ferry remembers a letter.", "Rain.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


def expected(depth, basis=None):
    """Columns of TEXTS at a depth, the values of their tokens, and those of all clean tokens."""
    clean = np.concatenate([reference.units(text)[depth] for text in harness.CLEAN])
    of_texts = [reference.units(text)[depth] for text in TEXTS]
    if basis is not None:
        clean, of_texts = clean @ basis, [rows @ basis for rows in of_texts]
    mean, covariance = clean.mean(axis=0), reference.shrunk(clean)
    values = [reference.distances(rows, mean, covariance) for rows in of_texts]
    columns = np.array([reference.mean_and_worst(v) for v in values])
    return columns, values, reference.distances(clean, mean, covariance)


def test_columns_and_tokens_of_the_real_encoder():
    """Depth 6 too, where three features of MiniLM are erased by their gain."""
    detector = harness.fitted("token-mahalanobis")
    found = harness.score(harness.minilm(), detector, harness.real_texts(harness.minilm(), TEXTS))
    strange = [np.zeros(reference.units(text).shape[1]) for text in TEXTS]
    for place, depth in enumerate(detector.depths):
        columns, values, clean = expected(depth)
        np.testing.assert_allclose(found.columns[:, 2 * place : 2 * place + 2], columns, rtol=2e-4)
        for own, of_tokens in zip(strange, values, strict=True):
            own += (of_tokens - clean.mean()) / clean.std() / len(detector.depths)
    for row, own in enumerate(strange):
        # The first token is [CLS].
        np.testing.assert_allclose(found.tokens[row, 1 : 1 + len(own)], own, rtol=1e-3, atol=2e-3)
        assert (found.tokens[row, 1 + len(own) :] == 0).all()
    assert (found.tokens[:, 0] == 0).all()


def test_subspaces():
    encoder, depth = harness.minilm(), 3
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(384, 5)))[0]
    bases = {depth: torch.from_numpy(basis).float()}
    detector = TokenMahalanobis(encoder, depths=(depth,), bases=bases)
    harness.learn(encoder, detector, [harness.real_texts(encoder, harness.CLEAN)])
    inputs = harness.real_texts(encoder, TEXTS)
    found = harness.score(encoder, detector, inputs)
    np.testing.assert_allclose(found.columns, expected(depth, basis)[0], rtol=2e-4)
    again = TokenMahalanobis(encoder, depths=(depth,), bases=bases)
    again.restore(detector.to_arrays())
    assert torch.equal(harness.score(encoder, again, inputs).columns, found.columns)


def test_the_mean_distance_of_clean_tokens_is_a_trace_and_others_are_farther():
    """tr(C^{-1} S)/d with C the shrunk S: 1 but for the shrinkage, which counts where clean tokens leave room."""
    detector, encoder = harness.fitted("token-mahalanobis"), harness.minilm()
    inputs = harness.real_texts(encoder, harness.CLEAN)
    clean = harness.score(encoder, detector, inputs).columns.numpy()
    other = harness.score(encoder, detector, harness.real_texts(encoder, ["Der Zug fährt morgen nicht nach Wien."]))
    lengths = inputs["attention_mask"].sum(dim=1).numpy() - 2
    for place, depth in enumerate(detector.depths):
        rows = np.concatenate([reference.units(text)[depth] for text in harness.CLEAN])
        expected = np.trace(np.linalg.inv(reference.shrunk(rows)) @ np.cov(rows.T, bias=True)) / 384
        assert np.average(clean[:, 2 * place], weights=lengths) == pytest.approx(expected, rel=1e-4)
        assert other.columns[0, 2 * place] > clean[:, 2 * place].max()


def test_the_most_strange_token_is_the_one_that_is_out_of_domain():
    encoder, detector = harness.minilm(), harness.fitted("token-mahalanobis")
    inputs = harness.real_texts(encoder, ["My neighbour cannot find the electroencephalograph."])
    words = encoder.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    strangest = int(harness.score(encoder, detector, inputs).tokens[0].argmax())
    assert words[strangest] in encoder.tokenizer.tokenize("electroencephalograph")


@pytest.mark.parametrize(
    ("layers", "depths"), [(1, (0, 1)), (2, (0, 1, 2)), (3, (0, 1, 2, 3)), (6, (0, 2, 4, 6)), (12, (0, 4, 8, 12))]
)
def test_depths(layers, depths):
    assert token_depths(layers) == depths
