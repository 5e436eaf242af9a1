"""The benchmark's own detectors: against literal versions, the audit, the model's own attentions, and counting."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from metastable.encoder.measure import Meter
from metastable.encoder.statistics import CLOUD
from metastable.encoder.texts import Batch
from tests.benchmarks.modules import module
from tests.monitor.detectors import harness, reference
from tests.monitor.detectors import test_detectors as every
from tests.monitor.detectors.test_pooled import TEXTS as POOLED
from tests.monitor.detectors.test_pooled import found as columns_of
from tests.monitor.detectors.test_pooled import gaussian

# Code of the benchmark programs only; what the product uses of it is tested with the monitor.
pytestmark = pytest.mark.slow

PooledKNN = module("detectors").PooledKNN
UNFITTED = ("concentration", "attention-entropy", "token-count")
FITTED = ("layer-mean-mahalanobis", "pooled-knn", "unigram-rarity")
TEXTS = ("The old ferry remembers a letter.", "It rains.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


@pytest.mark.parametrize("case", ["bert", "albert", "modernbert", "mpnet"])
def test_concentration_is_what_the_audit_measures(case):
    encoder, detector = harness.small(case), harness.fitted_small("concentration", case)
    inputs = harness.random_texts(encoder, (4, 11, 7), seed=1)
    mask = inputs["attention_mask"].bool()
    special = mask & torch.isin(inputs["input_ids"], torch.tensor([harness.CLS, harness.SEP]))
    depths, layers, heads, *_ = Meter(encoder).measure(Batch(inputs, mask, special, torch.arange(3)))
    found = harness.score(encoder, detector, inputs).columns.numpy()
    by_name = {(c.name, c.depth): found[:, place] for place, c in enumerate(detector.columns)}
    assert len(by_name) == found.shape[1] == 5 * 4 + 2 * 3
    for name in CLOUD:
        for depth in range(4):
            np.testing.assert_array_equal(by_name[name, depth], depths[name][:, depth])
    for layer in range(3):
        # The audit reads the update that the model computed; the detector computes it again.
        updates = layers["update_length"][:, layer]
        np.testing.assert_allclose(by_name["update_length", layer], updates, rtol=1e-6)
        gap = heads["logit_gap"][:, layer].mean(axis=1)
        np.testing.assert_allclose(by_name["logit_gap", layer], gap, rtol=1e-6)


def test_one_token_is_a_cloud_in_one_point():
    encoder, detector = harness.small(), harness.fitted_small("concentration")
    found = harness.score(encoder, detector, harness.random_texts(encoder, (1, 6), seed=2)).columns[0]
    one = {"mean_cosine": 1, "mean_square_cosine": 1, "effective_rank": 1, "dispersion": 0, "energy": 0}
    for place, column in enumerate(detector.columns):
        if column.name in one:
            assert found[place] == one[column.name]
        else:
            assert found[place] > 0


def test_entropies_are_those_of_the_model_s_attentions():
    encoder, detector = harness.small(), harness.fitted_small("attention-entropy")
    inputs = harness.random_texts(encoder, (5, 9), seed=3)
    with torch.no_grad():
        attentions = encoder.model(**inputs, output_attentions=True).attentions
    found = harness.score(encoder, detector, inputs).columns
    for place, column in enumerate(detector.columns):
        head = int(column.name.removeprefix("head "))
        for text, n in enumerate((7, 11)):
            rows = attentions[column.depth][text, head, 1 : n - 1, :n].double()
            expected = float(-(rows * rows.log()).sum(dim=1).mean() / math.log(n))
            assert found[text, place] == pytest.approx(expected, rel=1e-4)


def test_token_count_is_the_logarithm_of_the_number_of_words():
    encoder = harness.small()
    found = harness.score(
        encoder, harness.fitted_small("token-count"), harness.random_texts(encoder, (1, 8, 0), seed=4)
    )
    assert found.columns[:, 0].tolist() == pytest.approx([0, math.log(8), 0])


def test_rarity_by_counting():
    encoder, detector = harness.minilm(), harness.fitted("unigram-rarity")
    seen = Counter()
    for text in harness.CLEAN:
        ids = reference.hidden(text)[1]
        seen.update(ids[reference.is_word(ids)].tolist())
    total, size = sum(seen.values()), encoder.model.config.vocab_size
    clean = np.array([-math.log((seen[t] + 1) / (total + size)) for t in seen.elements()])
    found = harness.score(encoder, detector, harness.real_texts(encoder, TEXTS))
    for row, text in enumerate(TEXTS):
        ids = reference.hidden(text)[1]
        values = np.array([-math.log((seen[int(t)] + 1) / (total + size)) for t in ids[reference.is_word(ids)]])
        assert found.columns[row].tolist() == pytest.approx(reference.mean_and_worst(values), rel=1e-6)
        strange = (values - clean.mean()) / clean.std()
        np.testing.assert_allclose(found.tokens[row, 1 : 1 + len(values)], strange, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*FITTED, *UNFITTED])
def test_what_holds_for_every_detector(name):
    every.test_shapes(name)
    every.test_what_is_saved_scores_the_same_bit_by_bit(name)
    every.test_scores_do_not_depend_on_the_batch(name)
    every.test_padding_on_either_side_with_anything_in_it(name, math.nan)
    every.test_the_tokens_themselves_matter(name)
    every.test_texts_with_few_tokens_or_none_have_finite_columns(name, "bert")
    every.test_depths_may_be_left_out(name)


@pytest.mark.parametrize("name", FITTED)
def test_what_holds_for_every_fitted_detector(name):
    every.test_damaged_arrays_are_refused_and_blank_detectors_do_not_score(name)
    every.test_only_passes_that_come_to_their_end_are_learned_from(name)
    every.test_nothing_learned_is_said_in_one_line(name)


@pytest.mark.parametrize("name", UNFITTED)
def test_detectors_without_stages_learn_nothing(name):
    detector = harness.fitted(name)
    assert detector.to_arrays() == {}
    for call in (lambda: detector.learn(0, None), lambda: detector.settle(0)):
        with pytest.raises(RuntimeError, match="nothing to learn"):
            call()


def test_layer_mean_mahalanobis():
    clean, new = (np.stack([reference.units(t).mean(axis=(0, 1)) for t in texts]) for texts in (harness.CLEAN, POOLED))
    np.testing.assert_allclose(columns_of("layer-mean-mahalanobis")[:, 0], gaussian(clean, new), rtol=1e-3)


def embeddings(texts):
    means = np.stack([reference.hidden(text)[0][-1].mean(axis=0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_nearest_neighbours_by_a_search_through_all():
    cosines = embeddings(POOLED) @ embeddings(harness.CLEAN).T
    expected = [1 - np.mean(sorted(row)[-10:]) for row in cosines]
    np.testing.assert_allclose(columns_of("pooled-knn")[:, 0], expected, atol=1e-6)


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
