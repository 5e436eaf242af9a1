"""Threads, coroutines and forked processes share a monitor."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading

import numpy as np
import torch

from metastable.monitor.alarm import Alarm
from metastable.monitor.monitor import Monitor
from tests.monitor.conftest import ODD
from tests.monitor.live.helpers import Kept, scored


def test_threads_do_not_disturb_each_other(encoder, baseline, stream):
    """4 threads × 20 passes of the same model: every text counted, with the p-value that it has alone."""
    passes = [
        encoder.tokenizer(stream[3 * k : 3 * k + 3], return_tensors="pt", padding=True, truncation=True, max_length=12)
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


def test_examine_in_several_threads_beside_passes_of_the_host(encoder, baseline, stream, batch):
    monitor = Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer)
    parts = [stream[10 * k : 10 * k + 10] for k in range(3)]
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


def test_the_alarm_calls_once_in_the_thread_of_the_pass(encoder, baseline, stream):
    calls = []

    def on_alarm(monitor):
        calls.append((threading.get_ident(), monitor.raised_at))
        # Running the model in here is allowed.
        monitor.examine(stream[:2])

    given = encoder.tokenizer(ODD * 15, return_tensors="pt", padding=True)
    monitor = Monitor(encoder.model, baseline, on_alarm=on_alarm, tokenizer=encoder.tokenizer)
    with monitor, torch.no_grad():
        thread = threading.Thread(target=lambda: encoder.model(**given))
        thread.start()
        thread.join()
        encoder.model(**given)
    assert monitor.raised_at is not None
    assert calls == [(thread.ident, monitor.raised_at)]
    own = baseline.settings["light"]
    one = Alarm(own.texts, 0.01, independent=own.independent)
    one.update([r.p_marginal for r in monitor.records[:60]])
    assert one.raised_at == monitor.raised_at
    assert monitor.counts.scored == 122


def test_a_forked_child_can_use_the_model_while_a_thread_is_in_the_monitor(encoder, baseline, batch):
    """The child has no thread that would ever release a lock, or write to a sink."""
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
            written = monitor.flush(60) and len(kept.records) == 6
            os._exit(0 if shape == expected and written and monitor.counts.scored >= 6 else 1)
        leave.set()
        thread.join()
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_coroutines_and_their_threads_share_a_monitor(encoder, baseline, stream, batch):
    handlers = list(logging.getLogger().handlers), list(logging.getLogger("metastable.monitor").handlers)

    async def serve(monitor):
        await asyncio.gather(
            *(asyncio.to_thread(encoder.model, **batch) for _ in range(3)),
            *(asyncio.to_thread(monitor.examine, stream[:4]) for _ in range(2)),
        )

    with Monitor(encoder.model, baseline, tokenizer=encoder.tokenizer) as monitor:
        asyncio.run(serve(monitor))
    assert monitor.counts.scored == 3 * 6 + 2 * 4
    assert monitor.failures == {}
    assert handlers == (list(logging.getLogger().handlers), list(logging.getLogger("metastable.monitor").handlers))
