"""Alarms on streams of real texts: rare on clean ones, soon after a change.

Scores are computed once; each stream deals the clean texts anew into calibration and stream. Deals are independent
given the texts, so the number of false alarms among k streams is binomial with a probability of α at most.

All of that holds for any scale. That the shipped calibration is made of the texts that it should be is tested apart.
"""

import random

import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from metastable.monitor.alarm import Alarm
from metastable.monitor.baseline import Baseline
from metastable.monitor.conformal import Calibration
from metastable.monitor.scoring import Setting
from tests.benchmarks.modules import module
from tests.monitor.conftest import corpus
from tests.monitor.tables import table_of

# Statistics of thousands of texts with a real encoder. The promises on synthetic scores are tested in every run.
pytestmark = pytest.mark.slow

scorer_of = module("bench").scorer

ALPHA = 0.01
CHANGES = 50
"""Streams that change."""
STREAMS, MOST = 1000, 28
"""Clean streams, and most alarms among them. Were α only just kept, 6e-7 of test runs would fail; of those with a true
rate of 5 %, all but 4e-4."""


def shuffled(texts, seed=0):
    chance = random.Random(seed)
    return [" ".join(chance.sample(words, len(words))) for words in (text.split() for text in texts)]


def raised(clean, texts, length, other=None):
    """Where each stream raises its alarm: (streams,), 0 for not at all. `other` scores make its second half."""
    found = []
    for deal in range(STREAMS if other is None else CHANGES):
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
    assert binom.sf(MOST, STREAMS, ALPHA) < 1e-6 < binom.sf(MOST - 1, STREAMS, ALPHA)
    assert binom.cdf(MOST, STREAMS, 0.05) < 4e-4


@pytest.mark.parametrize("setting", ["light", "full"])
def test_clean_texts_rank_evenly_among_the_shipped_calibration(baseline, held, clean_tables, setting):
    """Two samples of clean texts, n of them new: their distributions differ by D or less.

    D = √(−ln(10⁻³/2)/2) √(1/n + 1/m), which chance exceeds once in a thousand times for independent texts. A detector
    finds texts that it was fitted on less strange: calibrated on these, they do differ by more.
    """
    scorer = baseline.settings[setting]
    new = scorer.scale(held).total
    bound = np.sqrt(-np.log(5e-4) / 2 * (1 / len(new) + 1 / scorer.texts))
    assert ks_2samp(new, scorer.calibration.scores).statistic < bound
    assert ks_2samp(new, scorer.scale(clean_tables["fit"]).total).statistic > bound


@pytest.mark.parametrize("setting", ["light", "full"])
def test_each_part_is_used_for_what_it_is_for(baseline, clean_tables, setting):
    """Scales and the calibration by depth, which need no spoilt copies, computed again from the texts of each part."""
    shipped = baseline.settings[setting]
    plain, own = Setting.plain(setting, shipped.setting.members), shipped.to_arrays()
    tables = clean_tables["adjust"], clean_tables["calibrate"]
    again = scorer_of(plain, baseline.detectors, tables[0], None, tables[1]).to_arrays()
    names = [name for name in again if name.startswith("member.") or "by_depth" in name]
    assert len(names) > 10
    for name in names:
        np.testing.assert_allclose(own[name], again[name], rtol=1e-3, atol=1e-3, err_msg=name)
    # The control: with the parts exchanged they are other numbers.
    swapped = scorer_of(plain, baseline.detectors, tables[1], None, tables[0]).to_arrays()["by_depth"]
    assert not np.allclose(own["by_depth"][: len(swapped)], swapped, atol=0.01)


@pytest.mark.parametrize("setting", ["light", "full"])
def test_editorials(table_once, baseline, held, held_texts, setting):
    """Streams of 800 texts, calibrated on 600."""
    scale = baseline.settings[setting].scale
    clean = scale(held).total
    assert (raised(clean, 600, 800) > 0).sum() <= MOST
    changed = raised(clean, 600, 800, scale(table_once("shuffled", shuffled(held_texts[:500]))).total)
    assert (changed > 400).sum() >= 0.9 * CHANGES
    assert np.median(changed - 400) < 100


@pytest.mark.slow
def test_movie_reviews(encoder):
    """Streams of 2000 texts, calibrated on 4000; the detectors and scales know 2000 others."""
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
            assert (changed > 1000).sum() >= 0.9 * CHANGES
            assert np.median(changed - 1000) < 100
