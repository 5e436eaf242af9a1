"""The benchmark's own detectors: against literal versions and counting."""

import math
from collections import Counter

import numpy as np
import pytest

from tests.monitor.detectors import harness, reference
from tests.monitor.detectors import test_detectors as every
from tests.monitor.detectors.test_pooled import TEXTS as POOLED
from tests.monitor.detectors.test_pooled import found as columns_of
from tests.monitor.detectors.test_pooled import gaussian

# Code of the benchmark programs only; what the product uses of it is tested with the monitor.
pytestmark = pytest.mark.slow

UNFITTED = ("token-count",)
FITTED = ("layer-mean-mahalanobis", "unigram-rarity")
TEXTS = ("The old ferry remembers a letter.", "It rains.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


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
    every.test_detectors_without_stages_learn_nothing(name)


def test_layer_mean_mahalanobis():
    clean, new = (np.stack([reference.units(t).mean(axis=(0, 1)) for t in texts]) for texts in (harness.CLEAN, POOLED))
    np.testing.assert_allclose(columns_of("layer-mean-mahalanobis")[:, 0], gaussian(clean, new), rtol=1e-3)
