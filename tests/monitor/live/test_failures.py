"""Failures in the monitor, and passes that it cannot score, are counted and never reach the model."""

from __future__ import annotations

import logging

import pytest
import torch

from metastable.monitor import examiner, passes
from metastable.monitor import monitor as live
from metastable.monitor.alarm import Alarm
from metastable.monitor.examiner import Examiner
from metastable.monitor.monitor import REASONS, Monitor
from metastable.monitor.record import NOT_FINITE
from metastable.monitor.sinks import JsonLines
from tests.monitor.conftest import ODD
from tests.monitor.live.helpers import Kept, boom, same, tensors


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
        # `examine` runs in evaluation mode, and the host's model stays in training mode. Dropout would change scores by
        # far more than the rounding of float32.
        scores = [record.score for record in monitor.examine(["Rain."] * 2)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5)
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
            assert monitor.flush(60)
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


def test_failures_of_on_alarm_of_state_of_closing_and_of_the_log(encoder, baseline, stream, batch, monkeypatch):
    kept = Kept()
    kept.state = kept.close = boom
    handler = logging.Handler()
    handler.emit = boom
    monkeypatch.setattr(logging, "raiseExceptions", True)
    logging.getLogger("metastable.monitor").addHandler(handler)
    odd = encoder.tokenizer(ODD * 15, return_tensors="pt", padding=True)
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
def test_what_ends_a_program_passes_if_a_sink_raises_it_in_the_thread_of_the_caller(
    encoder, baseline, batch, stream, kind
):
    kept = Kept()

    def write(record):
        raise kind

    kept.write = write
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer)
    with pytest.raises(kind):
        monitor.examine(stream[:2])
    assert monitor.failures == {}
    with monitor:
        encoder.model(**batch)
        assert monitor.flush(60)
        kept.write = kept.records.append
        encoder.model(**batch)
    assert monitor.failures == {"sink": 6}
    assert len(kept.records) == 6


def test_a_failure_in_score_is_a_rejected_record(encoder, baseline, stream, monkeypatch):
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    for home, name in ((passes.DetectorPass, "visit"), (examiner, "records")):
        with monkeypatch.context() as patch:
            patch.setattr(home, name, boom)
            found = monitor.examine(stream[:3])
        assert [r.status for r in found] == ["rejected"] * 3
        assert "could not be scored (Boom: it broke badly)" in found[0].reason
    assert monitor.failures == {"scoring": 1, "records": 1}
    assert [r.status for r in monitor.examine(stream[:3])] == ["scored"] * 3


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
    # Sums over five texts and over six are rounded differently.
    assert [r.score for r in found if r.score is not None] == pytest.approx(expected, abs=1e-12)
    assert monitor.failures == {}
    assert monitor.alarm.count == 5


def test_a_sink_on_a_full_disk(encoder, baseline, batch, tmp_path):
    plain = tensors(encoder.model(**batch))
    good = JsonLines(tmp_path / "records.jsonl")
    with Monitor(encoder.model, baseline, sinks=[JsonLines("/dev/full"), good]) as monitor:
        assert same(plain, tensors(encoder.model(**batch)))
    assert monitor.failures == {"sink": 6}
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 6
