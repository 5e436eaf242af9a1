"""Sinks that are slow or hang never hold up the model, and every sink gets the records in order."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque

import pytest
import torch

from metastable.monitor import delivery
from metastable.monitor.monitor import Monitor
from metastable.monitor.sinks import JsonLines
from tests.monitor.conftest import ODD
from tests.monitor.live.helpers import Kept, boom


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine may stop a thread for seconds. Tests of sinks that hang choose a shorter time."""
    monkeypatch.setattr(delivery, "FLUSH", 60)


class Stuck(Kept):
    """A sink that waits in `write` or in `close` until it is released."""

    def __init__(self, place="write"):
        super().__init__()
        self.place, self.inside, self.release, self.threads = place, threading.Event(), threading.Event(), set()

    def wait(self, place):
        self.threads.add(threading.current_thread())
        if self.place == place:
            self.inside.set()
            assert self.release.wait(60)

    def write(self, record):
        self.wait("write")
        super().write(record)

    def failed(self, kind):
        self.wait("failed")
        super().failed(kind)

    def close(self):
        self.wait("close")
        super().close()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def p_values(records):
    return [record.p_marginal for record in records]


@pytest.mark.parametrize("place", ["write", "failed"])
def test_no_pass_waits_for_a_sink_that_hangs(encoder, baseline, batch, place):
    stuck, done = Stuck(place), []
    embedded = encoder.model.embeddings.word_embeddings(batch["input_ids"]).detach()

    def work():
        with torch.no_grad():
            encoder.model(**batch)
            encoder.model(inputs_embeds=embedded)
        done.append(threading.current_thread())

    with Monitor(encoder.model, baseline, sinks=[stuck]) as monitor:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert stuck.inside.wait(60)
        for thread in threads:
            thread.join(60)
        assert set(done) == set(threads)
        # The monitor can be asked meanwhile.
        assert monitor.counts.scored == 18
        assert len(monitor.records) == 18
        assert not monitor.flush(0.01)
        stuck.release.set()
        assert monitor.flush(60)
        assert p_values(stuck.records) == p_values(monitor.records)
    assert stuck.kinds == ["unreadable"] * 3
    assert stuck.closed == 1
    # One thread of the monitor's own did it all, and it has ended.
    (writer,) = stuck.threads
    assert writer not in {*threads, threading.main_thread()}
    assert not writer.is_alive()
    assert monitor.failures == {}


def test_texts_that_sinks_cannot_take_any_more_are_dropped_for_them_and_counted(
    encoder, baseline, batch, monkeypatch, caplog
):
    monkeypatch.setattr(delivery, "WAITING", 15)
    stuck, second, states = Stuck(), Kept(), []
    second.state = lambda alarm: states.append(alarm.count)
    with (
        caplog.at_level(logging.WARNING, "metastable.monitor"),
        torch.no_grad(),
        Monitor(encoder.model, baseline, sinks=[stuck, second]) as monitor,
    ):
        encoder.model(**batch)
        assert stuck.inside.wait(60)
        for _ in range(5):
            encoder.model(**batch)
        # One pass is with the sink, two wait, and three are dropped.
        assert monitor.failures == {"dropped": 18}
        assert "dropped: 18" in monitor._repr_html_()
        assert monitor.counts.scored == monitor.alarm.count == 36
        stuck.release.set()
        assert monitor.flush(60)
        encoder.model(**batch)
    assert monitor.failures == {"dropped": 18}
    assert p_values(second.records) == p_values(monitor.records[:18] + monitor.records[36:])
    assert second.kinds == ["dropped"] * 18
    # The sinks have the alarm as it was after each pass, and after the newest one when texts are dropped.
    assert states == [6, 12, 36, 42]
    (line,) = caplog.records
    assert "the sinks are too slow: 15 texts wait for them" in line.getMessage()


def test_a_pass_of_more_texts_than_may_wait_is_written(encoder, baseline, batch, monkeypatch):
    monkeypatch.setattr(delivery, "WAITING", 2)
    kept = Kept()
    with Monitor(encoder.model, baseline, sinks=[kept]) as monitor:
        encoder.model(**batch)
    assert monitor.failures == {}
    assert len(kept.records) == 6


def test_leaving_does_not_wait_for_a_sink_that_hangs_in_write(encoder, baseline, batch, monkeypatch, caplog):
    monkeypatch.setattr(delivery, "FLUSH", 0.2)
    stuck, second = Stuck(), Kept()
    monitor = Monitor(encoder.model, baseline, sinks=[second, stuck])
    with caplog.at_level(logging.WARNING, "metastable.monitor"), torch.no_grad():
        with monitor:
            encoder.model(**batch)
            encoder.model(**batch)
            assert stuck.inside.wait(60)
        assert monitor.failures == {"dropped": 12}
        (line,) = caplog.records
        assert "did not take 12 texts within 0.2 s" in line.getMessage()
        assert (len(second.records), second.closed) == (1, 0)
        # When the sink returns, the rest is left out, and the sinks are closed.
        stuck.release.set()
        wait_for(lambda: stuck.closed)
        assert (len(stuck.records), len(second.records), second.closed) == (1, 1, 1)
        # And the monitor can be used again.
        monkeypatch.setattr(delivery, "FLUSH", 60)
        with monitor:
            encoder.model(**batch)
    assert p_values(second.records[1:]) == p_values(monitor.records[12:])
    assert monitor.failures == {"dropped": 12}
    assert second.closed == stuck.closed == 2
    assert second.kinds == ["dropped"] * 12


def test_leaving_does_not_wait_for_a_sink_that_hangs_in_close(encoder, baseline, batch, monkeypatch, caplog):
    monkeypatch.setattr(delivery, "FLUSH", 0.2)
    stuck = Stuck("close")
    with caplog.at_level(logging.WARNING, "metastable.monitor"), Monitor(encoder.model, baseline, sinks=[stuck]) as one:
        encoder.model(**batch)
        assert one.flush(60)
    assert one.failures == {"sink": 1}
    assert len(stuck.records) == 6
    (line,) = caplog.records
    assert "the sinks were not closed within 0.2 s" in line.getMessage()
    stuck.release.set()
    wait_for(lambda: stuck.closed)


def test_examine_does_not_wait_for_ever_for_a_sink_that_hung_when_the_monitor_was_left(
    encoder, baseline, batch, stream, monkeypatch
):
    monkeypatch.setattr(delivery, "FLUSH", 0.2)
    stuck, done = Stuck(), []
    monitor = Monitor(encoder.model, baseline, sinks=[stuck], tokenizer=encoder.tokenizer)
    with monitor:
        encoder.model(**batch)
        assert stuck.inside.wait(60)
    assert monitor.failures == {"dropped": 6}
    thread = threading.Thread(target=lambda: done.append(monitor.examine(stream[:3])), daemon=True)
    thread.start()
    thread.join(60)
    assert len(*done) == 3
    # The thread in which the model was called does not wait for its own texts either.
    monitor.examine(stream[:4])
    assert monitor.failures == {"dropped": 6 + 3 + 4}
    assert monitor.counts.scored == 6 + 3 + 4
    # When the sink returns, it gets later texts.
    stuck.release.set()
    wait_for(lambda: stuck.closed)
    monitor.examine(stream[:2])
    assert p_values(stuck.records[1:]) == p_values(monitor.records[-2:])
    assert stuck.kinds == ["dropped"] * 13


def test_flush_waits_for_earlier_records_alone(encoder, baseline, batch):
    """The queue of this monitor is never empty: the model is called while each pass is written."""
    kept, stop = Kept(), threading.Event()

    def write(record):
        kept.records.append(record)
        if len(kept.records) % 6 == 1 and not stop.is_set():
            encoder.model(**batch)

    kept.write = write
    with torch.no_grad(), Monitor(encoder.model, baseline, sinks=[kept]) as monitor:
        encoder.model(**batch)
        wait_for(lambda: len(kept.records) > 6)
        before = monitor.counts.texts
        assert monitor.flush(20)
        assert len(kept.records) >= before
        assert monitor.failures == {}
        stop.set()


def test_flush_returns_once_the_records_that_it_waits_for_are_dropped(encoder, baseline, batch, monkeypatch):
    monkeypatch.setattr(delivery, "FLUSH", 0.2)
    stuck, found = Stuck(), []
    with torch.no_grad(), Monitor(encoder.model, baseline, sinks=[stuck]) as monitor:
        encoder.model(**batch)
        assert stuck.inside.wait(60)
        encoder.model(**batch)
        thread = threading.Thread(target=lambda: found.append(monitor.flush(600)))
        thread.start()
    thread.join(60)
    assert found == [False]
    stuck.release.set()
    wait_for(lambda: stuck.closed)


def test_an_interrupt_before_records_are_written_does_not_block_the_monitor(encoder, baseline, stream):
    class Interrupted(deque):
        def popleft(self):
            monitor._delivery._jobs = deque(self)
            raise KeyboardInterrupt

    kept = Kept()
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer)
    monitor._delivery._jobs = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        monitor.examine(stream[:3])
    thread = threading.Thread(target=monitor.examine, args=(stream[3:5],), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert p_values(kept.records) == p_values(monitor.records)
    assert len(kept.records) == 5


def test_sinks_are_told_at_once_of_a_callback_that_fails_in_examine(encoder, baseline):
    kept = Kept()
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer, on_alarm=boom)
    monitor.examine(ODD * 15)
    assert monitor.failures == {"on_alarm": 1}
    assert kept.kinds == ["on_alarm"]


def test_without_a_thread_for_the_sinks_texts_are_dropped_and_the_message_says_why(
    encoder, baseline, batch, monkeypatch, caplog
):
    start, kept = threading.Thread.start, Kept()

    def refused(thread):
        if thread.name == "metastable sinks":
            raise RuntimeError("can't start new thread")
        start(thread)

    with caplog.at_level(logging.WARNING, "metastable.monitor"), Monitor(encoder.model, baseline, sinks=[kept]) as one:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            encoder.model(**batch)
        assert one.failures == {"dropped": 6}
        (line,) = caplog.records
        assert "no thread can be started that writes to the sinks, and 6 texts are not written" in line.getMessage()
        # Later there is room for a thread.
        encoder.model(**batch)
    assert p_values(kept.records) == p_values(one.records[6:])
    assert kept.kinds == ["dropped"] * 6


def test_examine_writes_in_the_thread_of_the_caller_and_without_the_lock(encoder, baseline, stream):
    stuck = Stuck()
    monitor = Monitor(encoder.model, baseline, sinks=[stuck], tokenizer=encoder.tokenizer)
    made = monitor.examiner().records(stream[:3])
    threads = [threading.Thread(target=monitor.take, args=([record],)) for record in made]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        assert stuck.inside.wait(60)
        # Texts of other threads are counted while the first is with the sink, and their threads wait for their turn.
        wait_for(lambda number=number: monitor.counts.scored == number)
    assert stuck.threads == {threads[0]}
    assert all(thread.is_alive() for thread in threads)
    stuck.release.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert p_values(stuck.records) == p_values(monitor.records) == p_values(made)
    assert stuck.threads <= set(threads)
    assert monitor.failures == {}


@pytest.mark.parametrize("live", [True, False])
def test_a_sink_may_run_the_model_and_ask_the_monitor(encoder, baseline, stream, batch, live):
    kept = Kept()
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer)

    def write(record):
        kept.records.append(record)
        if len(kept.records) in (1, 5):
            encoder.model(**batch)
            monitor.examine(stream[:2])
            assert monitor.counts.scored > 0
            assert not monitor.flush(60)

    kept.write = write
    if live:
        with monitor:
            encoder.model(**batch)
            assert monitor.flush(60)
        assert len(kept.records) == 6 + 2 * (6 + 2)
    else:
        monitor.examine(stream[:6])
        assert len(kept.records) == 6 + 2 * 2
    assert p_values(kept.records) == p_values(monitor.records)
    assert monitor.failures == {}


def test_a_callback_that_waits_holds_up_no_other_pass(encoder, baseline, batch):
    inside, release = threading.Event(), threading.Event()

    def on_alarm(monitor):
        inside.set()
        assert release.wait(60)

    odd = encoder.tokenizer(ODD * 15, return_tensors="pt", padding=True)
    kept = Kept()
    with torch.no_grad(), Monitor(encoder.model, baseline, sinks=[kept], on_alarm=on_alarm) as monitor:
        thread = threading.Thread(target=lambda: encoder.model(**odd))
        thread.start()
        assert inside.wait(60)
        encoder.model(**batch)
        assert monitor.counts.scored == 66
        assert monitor.flush(60)
        assert len(kept.records) == 66
        release.set()
        thread.join(60)
    assert monitor.failures == {}


def test_what_waits_during_a_fork_is_written_by_the_parent_alone(encoder, baseline, batch, tmp_path):
    stuck, path = Stuck(), tmp_path / "records.jsonl"
    with torch.no_grad(), Monitor(encoder.model, baseline, sinks=[stuck, JsonLines(path)]) as monitor:
        encoder.model(**batch)
        encoder.model(**batch)
        assert stuck.inside.wait(60)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            signal.alarm(60)
            stuck.place = None
            encoder.model(**batch)
            monitor.__exit__(None, None, None)
            os._exit(0 if len(stuck.records) == 6 and stuck.closed == 1 and monitor.failures == {} else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert path.read_bytes().count(b"\n") == 6
        stuck.release.set()
    assert len(stuck.records) == 12
    assert path.read_bytes().count(b"\n") == 6 + 12


def forked(work):
    """The exit code of a forked child: 0 if `work` returns something true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            signal.alarm(60)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_until_locks_inside_sinks_are_free(encoder, baseline, batch, monkeypatch):
    """It waits for the pass that is being written, and not for the passes that wait."""
    monkeypatch.setattr(delivery, "FORK", 60)
    lock, inside, quick, kept = threading.Lock(), threading.Event(), threading.Event(), Kept()

    def write(record):
        with lock:
            inside.set()
            quick.wait(0.02)
            kept.records.append(record)

    kept.write = write
    with torch.no_grad(), Monitor(encoder.model, baseline, sinks=[kept]) as monitor:
        for _ in range(100):
            encoder.model(**batch)
        assert inside.wait(60)

        def child():
            before = len(kept.records)
            encoder.model(**batch)
            return before < 600 and monitor.flush(30) and len(kept.records) == before + 6

        assert forked(child) == 0
        quick.set()
        assert monitor.flush(60)
        assert len(kept.records) == 600
        # And it waits for `examine` in another thread.
    quick.clear()
    inside.clear()
    thread = threading.Thread(target=monitor.take, args=(monitor.records[:6],))
    thread.start()
    assert inside.wait(60)
    assert forked(lambda: monitor.take(monitor.records[:2])) == 0
    thread.join(60)
    assert len(kept.records) == 606
    assert monitor.failures == {}


def test_a_fork_waits_for_a_limited_time(encoder, baseline, batch, monkeypatch):
    monkeypatch.setattr(delivery, "FORK", 0.1)
    stuck = Stuck()
    with Monitor(encoder.model, baseline, sinks=[stuck]) as monitor:
        encoder.model(**batch)
        assert stuck.inside.wait(60)
        assert forked(lambda: True) == 0
        # The next fork knows that the sink hangs.
        monkeypatch.setattr(delivery, "FORK", 90)
        began = time.monotonic()
        assert forked(lambda: True) == 0
        assert time.monotonic() - began < 60
        stuck.release.set()
        assert monitor.flush(60)
    assert len(stuck.records) == 6


@pytest.mark.parametrize("live", [True, False])
def test_a_sink_may_fork(encoder, baseline, stream, batch, live, monkeypatch):
    monkeypatch.setattr(delivery, "FORK", 90)
    kept, codes, seconds = Kept(), [], []

    def write(record):
        kept.records.append(record)
        if not codes:
            began = time.monotonic()
            codes.append(forked(lambda: True))
            seconds.append(time.monotonic() - began)

    kept.write = write
    monitor = Monitor(encoder.model, baseline, sinks=[kept], tokenizer=encoder.tokenizer)
    if live:
        with monitor:
            encoder.model(**batch)
    else:
        monitor.examine(stream[:6])
    assert codes == [0]
    # It has not waited for itself.
    assert seconds[0] < 60
    assert p_values(kept.records) == p_values(monitor.records)
    assert monitor.failures == {}


PROGRAM = """
import sys, threading, torch
from metastable.encoder.load import load
from metastable.monitor.monitor import Monitor

class Sink:
    def write(self, record):
        print("written", flush=True)
        if sys.argv[3] == "hangs":
            threading.Event().wait()
    def close(self):
        pass

encoder = load(sys.argv[1])
monitor = Monitor(encoder.model, sys.argv[2], sinks=[Sink()]).__enter__()
with torch.no_grad():
    for _ in range(3):
        encoder.model(**encoder.tokenizer(["The ferry leaves at nine."] * 4, return_tensors="pt"))
print("done", flush=True)
"""


@pytest.mark.parametrize(("how", "written", "logged"), [("works", 12, 0), ("hangs", 1, 1)])
def test_a_program_that_never_leaves_the_monitor_ends_and_its_records_are_written(
    small, baseline_folder, how, written, logged
):
    arguments = [sys.executable, "-c", PROGRAM, str(small), str(baseline_folder), how]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.count("written") == written
    assert "done" in found.stdout
    assert found.stderr.count("did not take 12 texts within 5 s") == logged
    assert "Traceback" not in found.stderr
