"""Texts given to the monitor, and the state of the stream: records, counts, alarm, sinks."""

from __future__ import annotations

import copy
import gc
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.monitor import Monitor
from metastable.monitor.record import NO_TOKEN, Record
from tests.monitor.live.helpers import Kept, boom


def test_examine_keeps_the_order_and_rejects_with_a_reason(encoder, baseline, stream):
    long = " ".join(stream[:60])
    texts = [stream[0], "", long, " \n\t", stream[1], "a\0b", "half \ud83d", "[SEP]", "Rain."]
    kept = Kept(include_text=True)
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer)
    found = monitor.examine(iter(texts))
    assert [r.status == "scored" for r in found] == [True, False, True, False, True, False, False, False, True]
    assert "is empty" in found[1].reason
    assert "only white space" in found[3].reason
    assert "NUL" in found[5].reason
    assert "surrogate" in found[6].reason
    assert NO_TOKEN in found[7].reason
    assert [r.cut for r in found if r.status == "scored"] == [False, True, False, False]
    assert [r.text for r in kept.records] == texts
    assert [r.p_value for r in kept.records] == [r.p_value for r in found] == [r.p_value for r in monitor.records]
    assert monitor.counts.texts == 9
    assert monitor.counts.scored == monitor.alarm.count == 4
    assert json.loads(json.dumps(asdict(monitor.counts)))["rejected"] == monitor.counts.rejected
    backwards = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer).examine(texts[::-1], batch_size=2)[::-1]
    both = [(a.score, b.score) for a, b in zip(found, backwards, strict=True) if a.score is not None]
    assert [a for a, _ in both] == pytest.approx([b for _, b in both], rel=1e-3)
    assert [a.reason for a in found if a.status == "rejected"] == [
        b.reason for b in backwards if b.status == "rejected"
    ]


def test_inside_a_with_examine_is_not_counted_twice(encoder, baseline, stream, batch):
    with Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer) as monitor:
        monitor.examine(stream[:10])
        encoder.model(**batch)
        monitor.examine(stream[10:15])
    assert monitor.counts.scored == 10 + 6 + 5
    # The passes of `examine` are not those of the host's model, which another monitor watches.
    with Monitor(encoder.model, baseline) as other:
        monitor.examine(stream[:3])
    assert other.counts.scored == 0


def test_examine_on_a_name_and_bad_arguments(small, encoder, baseline, baseline_folder, tmp_path, stream):
    named = Monitor(small, baseline_folder)
    live = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    assert [r.score for r in named.examine(stream[:3])] == [r.score for r in live.examine(stream[:3])]
    for wrong, words in {
        "one string": lambda: live.examine("a string"),
        "text 1 is of type int": lambda: live.examine(["a", 3]),
        "give a live model": named.__enter__,
        "pass tokenizer=": lambda: Monitor(encoder.model, baseline).examine(["a"]),
        "setting is 'fast'; choose one of light, full": lambda: Monitor(encoder.model, baseline, "fast"),
        "a sink is of type int": lambda: Monitor(encoder.model, baseline, sinks=[3]),
        "alpha is 2": lambda: Monitor(encoder.model, baseline, alpha=2),
        "keep is 0": lambda: Monitor(encoder.model, baseline, keep=0),
        "is no baseline": lambda: Monitor(encoder.model, tmp_path),
        "model is of type Linear": lambda: Monitor(nn.Linear(2, 2), baseline).__enter__(),
    }.items():
        with pytest.raises(BadInput, match=wrong) as found:
            words()
        assert "\n" not in str(found.value)


def test_examine_leaves_the_hosts_tokenizer_alone(encoder, baseline, stream):
    """To cut a text a tokenizer is switched over; another thread of the host may be using it at that moment."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    calls = []
    real = tokenizer._tokenizer

    class Spied:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(real, name)

    monitor = Monitor(encoder.model, baseline, tokenizer=tokenizer)
    monitor.examine(stream[:2])
    tokenizer._tokenizer = Spied()
    found = monitor.examine([stream[0], "word " * 2000])
    assert [r.status for r in found] == ["scored"] * 2
    assert found[1].cut
    assert not [name for name in calls if "truncation" in name or "encode" in name]


def stream_of(ranks, m):
    """Records of lines with these ranks; 0 is a rejected line."""
    found = []
    for line, rank in enumerate(ranks, start=1):
        if rank:
            record = Record("scored", p_value=rank / 1000, p_marginal=rank / (m + 1), cut=line % 50 == 0)
        else:
            record = Record.rejected("is not UTF-8 (byte 0xff at place 1); save it as UTF-8 text")
        found.append(replace(record, line=line))
    return found


def unloaded(baseline, **more):
    """A monitor that is only given records: its model is never loaded."""
    return Monitor("nowhere", baseline, "full", **more)


@pytest.fixture(scope="module")
def ranks(baseline):
    rng, m = np.random.default_rng(3), baseline.settings["full"].texts
    ranks = np.concatenate([rng.integers(1, m + 2, 300), rng.integers(1, 12, 100)])
    ranks[7::50] = 0
    return ranks.tolist(), m


def test_one_record_raises_the_alarm_and_the_summary_counts(baseline, ranks):
    given, m = ranks
    calls, kept = [], Kept()
    monitor = unloaded(baseline, sinks=[kept], on_alarm=calls.append)
    alone = Alarm(m, 0.01, independent=monitor.alarm.independent)
    made = stream_of(given, m)
    found = [record for first in range(0, 400, 30) for record in monitor.take(made[first : first + 30])]
    p = [record.p_marginal for record in made if record.p_marginal is not None]
    evidence = alone.evidence(p)
    assert [record.log_e for record in found if record.p_marginal is not None] == evidence.tolist()
    # A rejected line leaves the evidence as it was.
    assert all(found[i].log_e == found[i - 1].log_e for i in range(1, 400) if found[i].p_marginal is None)
    raised = [record.line for record in found if record.alarm]
    summary = monitor.summary()
    scored = [record.line for record in made if record.p_marginal is not None]
    assert raised == [summary["alarm"]["line"]] == [scored[alone.raised_at - 1]]
    assert summary["alarm"]["text"] == monitor.raised_at == alone.raised_at
    assert summary["alarm"]["log_e"] == alone.log_e
    assert summary["alarm"]["log_e_then"] == evidence[alone.raised_at - 1] >= alone.threshold
    assert (summary["texts"], summary["scored"], summary["rejected"]) == (400, 392, {"is not UTF-8": 8})
    assert summary["strange"] == sum(record.strange for record in made)
    assert summary["cut"] == 8
    assert calls == [monitor]
    assert kept.records == found
    json.dumps(summary, allow_nan=False)
    assert f"392 scored, 8 rejected, alarm at text {alone.raised_at}" in repr(monitor)


def test_replayed_records_count_and_are_not_delivered_again(baseline, ranks):
    given, m = ranks
    made = stream_of(given, m)
    whole, kept = unloaded(baseline), Kept()
    whole.take(made)
    for cut in (0, 150, 390):
        again = unloaded(baseline, sinks=[kept], on_alarm=boom)
        again.replay(made[:cut])
        assert kept.records == []
        done = again.take(made[cut:])
        assert again.summary() == whole.summary()
        assert kept.records == done
        assert again.failures == ({"on_alarm": 1} if cut < 390 else {})
        kept.records.clear()
    assert "no alarm" in repr(unloaded(baseline))


def test_records_are_bounded_newest_last_and_of_what_went_in(encoder, baseline, batch):
    with Monitor(encoder.model, baseline) as other, torch.no_grad():
        encoder.model(**batch)
    given = {name: tensor.clone() for name, tensor in batch.items()}
    with Monitor(encoder.model, baseline, keep=8, tokenizer=encoder.tokenizer) as monitor, torch.no_grad():
        encoder.model(**given)
        encoder.model(**given)
        # A server may fill the same tensors again and again; words are made later than that.
        given["input_ids"].fill_(encoder.tokenizer.sep_token_id)
        given["attention_mask"].fill_(0)
    found = monitor.records
    assert [r.p_marginal for r in found] == [r.p_marginal for r in (*other.records[4:], *other.records)]
    words = encoder.tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    for record, text in zip(found, [*words[4:], *words], strict=True):
        assert record.tokens
        assert all(token.text in text for token in record.tokens)
    assert monitor.counts.texts == 12


def test_a_live_text_is_decoded_only_if_a_sink_asks(encoder, baseline, batch, stream):
    asks, does_not = Kept(include_text=True), Kept()
    with Monitor(encoder.model, baseline, sinks=[does_not], tokenizer=encoder.tokenizer):
        encoder.model(**batch)
    assert {r.text for r in does_not.records} == {None}
    with Monitor(encoder.model, baseline, sinks=[asks], tokenizer=encoder.tokenizer):
        encoder.model(**batch)
    letters = ["".join(filter(str.isalnum, r.text)) for r in asks.records]
    assert letters == ["".join(filter(str.isalnum, text.lower())) for text in stream[:6]]
    assert asks.closed == does_not.closed == 1


def test_records_that_are_made_let_go_of_the_pass(encoder, baseline, stream):
    """The tensors of a pass are dropped when its records are made."""
    model, tokenizer = encoder.model, encoder.tokenizer
    with Monitor(model, baseline, setting="full", tokenizer=tokenizer) as monitor:
        for text in stream[:3]:
            model(**tokenizer(text, return_tensors="pt"))
        assert len(monitor.records) == 3

        def held():
            gc.collect()
            return {id(t) for t in gc.get_objects() if isinstance(t, torch.Tensor)}

        before = held()
        for text in stream[3:9]:
            model(**tokenizer(text, return_tensors="pt"))
        assert len(monitor.records) == 9
        assert len(held() - before) == 0
