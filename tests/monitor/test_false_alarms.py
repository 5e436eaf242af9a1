"""Alarms on streams of real texts: rare on clean ones, soon after a change.

Scores are computed once; each stream deals the clean texts anew into calibration and stream. Deals are independent
given the texts, so the number of false alarms among k streams is binomial with a probability of α at most.
"""

import random

import numpy as np
import pytest
from scipy.stats import binom

from metastable.monitor.alarms import Alarm
from metastable.monitor.baseline import Baseline
from metastable.monitor.conformal import Calibration
from tests.monitor.conftest import corpus
from tests.monitor.tables import table_of

STREAMS, ALPHA = 50, 0.01
# P(Binomial(50, 0.01) > 6) is 2e-6: the share of test runs that fail by chance, were the promise only just kept.
MOST = 6


def shuffled(texts, seed=0):
    chance = random.Random(seed)
    return [" ".join(chance.sample(words, len(words))) for words in (text.split() for text in texts)]


def raised(clean, texts, length, other=None):
    """Where each stream raises its alarm: (streams,), 0 for not at all. `other` scores make its second half."""
    found = []
    for deal in range(STREAMS):
        rng = np.random.default_rng(deal)
        scores = clean[rng.permutation(len(clean))[: texts + length]]
        stream = scores[texts:]
        if other is not None:
            stream = np.concatenate([stream[: length // 2], rng.permutation(other)[: length // 2]])
        alarm = Alarm(texts, ALPHA)
        alarm.update(Calibration(scores[:texts]).p_values(stream))
        found.append(alarm.raised_at or 0)
    return np.array(found)


def test_the_bound():
    assert binom.sf(MOST, STREAMS, ALPHA) < 3e-6 < binom.sf(MOST - 1, STREAMS, ALPHA)


@pytest.mark.parametrize("setting", ["light", "full"])
def test_editorials(encoder, baseline, held, held_texts, setting):
    """Streams of 800 texts, calibrated on 600."""
    scale = baseline.settings[setting].scale
    clean = scale(held).total
    assert (raised(clean, 600, 800) > 0).sum() <= MOST
    changed = raised(clean, 600, 800, scale(table_of(encoder, baseline, shuffled(held_texts[:500]))).total)
    assert (changed > 400).sum() >= 0.9 * STREAMS
    assert np.median(changed - 400) < 100


@pytest.mark.slow
def test_movie_reviews(encoder):
    """50 streams of 2000 texts, calibrated on 4000; the detectors and scales know 2000 others."""
    texts = [text.text for text in corpus("movies")]
    random.Random(0).shuffle(texts)
    baseline = Baseline.fit(encoder, texts[:2000])
    tables = {"clean": table_of(encoder, baseline, texts[2000:])}
    tables["shuffled"] = table_of(encoder, baseline, shuffled(texts[2000:3200]))
    tables["tweets"] = table_of(encoder, baseline, [text.text for text in corpus("tweets")[:1200]])
    for setting in ("light", "full"):
        scores = {name: baseline.settings[setting].scale(table).total for name, table in tables.items()}
        assert (raised(scores["clean"], 4000, 2000) > 0).sum() <= MOST
        for name in ("shuffled", "tweets"):
            changed = raised(scores["clean"], 4000, 2000, scores[name])
            assert (changed > 1000).sum() >= 0.9 * STREAMS
            assert np.median(changed - 1000) < 100
