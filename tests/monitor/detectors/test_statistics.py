"""Concentration, attention entropy and the controls: against the audit, the model's own attentions, and counting."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from metastable.encoder.measure import Meter
from metastable.encoder.statistics import CLOUD
from metastable.encoder.texts import Batch
from tests.monitor.detectors import harness, reference

TEXTS = ("The old ferry remembers a letter.", "It rains.", "qwxz zzyq, unbelievably!", harness.CLEAN[7])


@pytest.mark.parametrize("case", ["bert", "albert", "modernbert", "mpnet"])
def test_concentration_is_what_the_audit_measures(case):
    encoder, detector = harness.small(case), harness.fitted_small("concentration", case)
    inputs = harness.random_texts(encoder, (4, 11, 7), seed=1)
    mask = inputs["attention_mask"].bool()
    special = mask & torch.isin(inputs["input_ids"], torch.tensor([harness.CLS, harness.SEP]))
    depths, layers, heads = Meter(encoder).measure(Batch(inputs, mask, special, torch.arange(3)))
    found = harness.score(encoder, detector, inputs).columns.numpy()
    by_name = {(c.name, c.depth): found[:, place] for place, c in enumerate(detector.columns)}
    assert len(by_name) == found.shape[1] == 5 * 4 + 2 * 3
    for name in CLOUD:
        for depth in range(4):
            np.testing.assert_array_equal(by_name[name, depth], depths[name][:, depth])
    for layer in range(3):
        np.testing.assert_array_equal(by_name["update_length", layer], layers["update_length"][:, layer])
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
