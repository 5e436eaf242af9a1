"""The reservoir: uniform, bounded, the same every time."""

from collections import Counter
from itertools import combinations

import numpy as np
import torch
from scipy.stats import chisquare

from metastable.encoder.statistics import Sample


def kept(seed, sizes, most):
    sample, start = Sample(most, 1, seed), 0
    for size in sizes:
        sample.add(torch.arange(start, start + size, dtype=torch.float32).unsqueeze(1))
        start += size
    return sample


def test_every_subset_is_equally_likely():
    """3 of 7 rows, in batches that end before, at and after the sample is full: 35 subsets."""
    subsets = {frozenset(map(float, s)): 0 for s in combinations(range(7), 3)}
    found = Counter(frozenset(kept(seed, (2, 3, 2), 3).rows[:, 0].tolist()) for seed in range(1750))
    assert set(found) <= set(subsets)
    assert chisquare([found[s] for s in subsets]).pvalue > 1e-3


def test_batches_do_not_matter_and_neither_does_when():
    for sizes in ((40,), (1,) * 40, (7, 0, 33), (10, 30)):
        assert torch.equal(kept(5, sizes, 10).rows, kept(5, (40,), 10).rows)
    assert not torch.equal(kept(6, (40,), 10).rows, kept(5, (40,), 10).rows)


def test_few_rows_are_all_kept_and_many_are_not():
    few = kept(0, (3, 2), 10)
    assert few.rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    many = kept(0, (1000,) * 5, 64)
    assert many.seen == 5000
    assert many.rows.shape == (64, 1)
    assert len(np.unique(many.rows)) == 64


def test_what_was_handed_out_does_not_change():
    sample = kept(0, (3,), 3)
    before = sample.rows
    sample.add(torch.full((200, 1), -1.0))
    assert before[:, 0].tolist() == [0, 1, 2]
    assert sample.rows.min() == -1
