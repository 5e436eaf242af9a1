"""The monitor on a trained encoder: outputs, scores and alarms."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from metastable.monitor.alarm import Alarm
from metastable.monitor.monitor import Monitor
from tests.monitor.live.helpers import boom, same, tensors


def shuffled(text, seed):
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


@pytest.fixture(scope="module")
def batch(encoder, stream):
    """Texts of unlike lengths, padded."""
    return encoder.tokenizer(stream[:6], return_tensors="pt", padding=True)


MODES = {
    "gradients": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("setting", ["light", "full"])
@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_the_same_bit_for_bit(encoder, baseline, batch, mode, setting):
    with MODES[mode]():
        plain = tensors(encoder.model(**batch))
        with Monitor(encoder.model, baseline, setting) as monitor:
            watched = tensors(encoder.model(**batch))
            twice = tensors(encoder.model(**batch))
        after = tensors(encoder.model(**batch))
    assert same(plain, watched)
    assert same(plain, twice)
    assert same(plain, after)
    assert [t.requires_grad for t in plain] == [t.requires_grad for t in watched]
    assert monitor.counts.scored == 12
    assert monitor.failures == {}


def test_all_modes_but_autocast_give_the_same_scores_and_autocast_close_ones(encoder, baseline, batch):
    found = {}
    for name, mode in MODES.items():
        with Monitor(encoder.model, baseline) as monitor, mode():
            encoder.model(**batch)
        found[name] = np.array([record.score for record in monitor.records])
    assert np.array_equal(found["gradients"], found["no_grad"])
    assert np.array_equal(found["gradients"], found["inference_mode"])
    # The model itself computes with 8 bits there: its tokens are off by about 1 %.
    assert not np.array_equal(found["gradients"], found["autocast"])
    assert np.abs(found["gradients"] - found["autocast"]).max() < 0.1 * np.ptp(found["gradients"])


def test_a_live_pass_and_score_agree_and_padding_does_not_matter(encoder, baseline, stream):
    texts = stream[:20]
    monitor = Monitor(encoder.model, baseline, "full", tokenizer=encoder.tokenizer)
    found = monitor.examine(texts)
    with monitor:
        for text in texts:
            encoder.model(**encoder.tokenizer([text], return_tensors="pt"))
    alone = monitor.records[20:]
    assert len(alone) == 20
    assert [r.score for r in found] == pytest.approx([r.score for r in alone], rel=1e-3)
    assert [r.n for r in found] == [r.n for r in alone]
    assert [[t.text.lower() for t in r.tokens] for r in found] == [[t.text.lower() for t in r.tokens] for r in alone]
    # A p-value is a rank: rounding moves it only past a calibration score that is just as near.
    step = 1 / (baseline.settings["full"].texts + 1)
    assert [r.p_marginal for r in found] == pytest.approx([r.p_marginal for r in alone], abs=1.01 * step)


def test_examine_takes_texts_in_their_order_to_the_alarm(encoder, baseline, stream):
    texts = stream[:40] + [shuffled(text, i) for i, text in enumerate(stream[40:100])]
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    p = [record.p_marginal for record in monitor.examine(texts)]
    own = baseline.settings["light"]
    one = Alarm(own.texts, 0.01, independent=own.independent)
    for value in p:
        one.update(value)
    assert monitor.raised_at == one.raised_at
    assert monitor.raised_at is not None
    assert monitor.raised_at > 40
    assert monitor.alarm.log_e == one.log_e


@pytest.mark.slow
def test_clean_texts_do_not_raise_the_alarm(encoder, baseline, stream):
    """At α = 0.01, on texts of documents that the baseline has not seen."""
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer, on_alarm=boom)
    monitor.examine(stream[:150])
    assert monitor.raised_at is None
    assert monitor.failures == {}
