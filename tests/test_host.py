"""A good guest: no call of the library changes the state of the program that uses it.

One test for the whole public interface. Every call runs in three threads at once and in a forked child; calls with
files or threads of their own also run inside an asyncio loop. The state of the host is the same before and after.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings

import numpy as np
import pytest
import torch
import transformers
import xarray as xr

import metastable as ms
from metastable import claims
from tests.encoder.models import tiny


@pytest.fixture(scope="module")
def model():
    return tiny("bert")


@pytest.fixture(scope="module")
def head():
    return ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)


@pytest.fixture(scope="module")
def run(head):
    return ms.simulate(head, ms.uniform(60, d=3, seed=0), beta=20.0, until=2.0, t_eval=5)


@pytest.fixture(scope="module")
def baseline(model, texts, tokenizer):
    return ms.Baseline.fit(model, texts, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def audit(model, texts, tokenizer):
    return ms.audit(model, texts[:6], tokenizer=tokenizer)


@pytest.fixture(scope="module")
def long_texts(texts):
    return [" ".join(texts[i : i + 10]) for i in range(0, 80, 10)]


@pytest.fixture(scope="module")
def other():
    # Not made inside the call: torch's way to seed a model is not safe in threads.
    return tiny("bert", seed=1)


@pytest.fixture
def calls(head, run, model, other, tokenizer, texts, long_texts, baseline, audit, tmp_path):
    """Every public function that computes something, by name. `own_path` is another path for each call."""
    cloud = ms.uniform(300, d=3, seed=0)
    wide = ms.uniform(300, d=6, seed=0)
    circle = ms.Head.from_interaction([[1.34, 0.2], [0.2, 0.76]], [[1.04, -0.29], [-0.29, 0.66]])
    block = ms.Block([head, head], ms.Perceptron.random(3, 8), kernel="unnormalised", noise=0.1)
    flat = ms.Block([circle, circle], ms.Perceptron.random(2, 8))
    pairs = [(text, f"{text} w1", number % 7) for number, text in enumerate(texts[:200])]

    def own_path(ending: str):
        return tmp_path / f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}{ending}"

    def examine():
        with ms.Monitor(model, baseline, tokenizer=tokenizer) as monitor:
            monitor.examine(texts[:8])

    def monitor_pages():
        monitor = ms.Monitor(model, baseline, tokenizer=tokenizer)
        monitor.examine(texts[:8])
        return monitor.report(own_path(".html")), monitor.to_frame(), baseline.report(own_path(".html"))

    def merge():
        own = copy.deepcopy(other)
        with ms.merge_tokens(own, after=1, share=0.25), torch.inference_mode():
            own(input_ids=torch.arange(2, 22).reshape(2, 10))

    return {
        "attend dense": lambda: ms.attend(cloud, 9 * cloud.points, engine="dense"),
        "attend flash": lambda: ms.attend(cloud, 9 * cloud.points, engine="flash"),
        "attend direct": lambda: ms.attend(cloud, 9 * cloud.points, engine="direct"),
        "attend tree": lambda: ms.attend(cloud, 9 * cloud.points, engine="tree", tol=1e-3),
        "attend clusters": lambda: ms.attend(wide, 9 * wide.points, engine="tree", tol=1e-3),
        "attend_with_bound": lambda: ms.attend_with_bound(cloud, 9 * cloud.points, tol=1e-3),
        "velocity": lambda: ms.velocity(head, cloud, beta=9.0),
        "value_flow": lambda: ms.value_flow(head, cloud.points, torch.tensor([0.0, 1.0])),
        "zero_temperature_flow": lambda: ms.zero_temperature_flow(head, cloud, torch.tensor([0.0, 1.0])),
        "clouds": lambda: (ms.uniform(9, d=3), ms.graded(9, head), ms.von_mises_fisher(9, [0.0, 0.0, 1.0], 3.0)),
        "simulate": lambda: ms.simulate(head, cloud, beta=5.0, until=0.5, t_eval=3, checkpoint=own_path(".zarr")),
        "simulate hardmax": lambda: ms.simulate(head, cloud, beta=float("inf"), until=0.1, step=0.05),
        "simulate a block": lambda: (
            ms.simulate(block, cloud, beta=5.0, until=0.2, step=0.1, t_eval=2),
            ms.simulate(ms.Block([head, head], causal=True, norm="pre"), cloud, beta=5.0, until=0.1, t_eval=2),
        ),
        "theory of a block": lambda: flat.theory().limit(ms.uniform(5, d=2, seed=0).points),
        "Block.from_encoder": lambda: ms.Block.from_encoder(model, 1),
        "mean_field": lambda: ms.mean_field(circle, "uniform", beta=10.0, until=0.1, tol=0.2),
        "theory": lambda: (head.theory().lipschitz, head.theory().verdict, circle.theory().plateau(beta=900.0)),
        "wasserstein": lambda: ms.wasserstein(cloud, ms.uniform(200, d=3, seed=1)),
        "certificate": lambda: (run.certificate(), run.laplace_term(), run.lyapunov_term(), run.noise_floor()),
        "phases": lambda: (run.phases(), run.observables(), run.to_xarray()),
        "figures": lambda: [run.figure(name) for name in ("distance", "sphere", "spectrum", "observables")],
        "report": lambda: run.report(own_path(".html")),
        "save and load": lambda: ms.Run.load(run.save(own_path(".zarr"))),
        "claims": lambda: claims.check("two-tokens"),
        "audit": lambda: ms.audit(model, texts[:6], tokenizer=tokenizer),
        "audit report": lambda: audit.report(own_path(".html")),
        "compare": lambda: ms.compare(audit, ms.audit(other)),
        "length": lambda: ms.length(model, long_texts, texts[:8], tokenizer=tokenizer).save(own_path(".length")),
        "compress": lambda: ms.compress(
            model, texts[:90], tokenizer=tokenizer, layers=1, merge=0.25, length=16, pairs=pairs
        ).save_model(own_path(".compressed")),
        "merge_tokens": merge,
        "exit_layer": lambda: ms.exit_layer(model, texts[:40], [n + 0.5 for n in range(40)], tokenizer=tokenizer).save(
            own_path(".exit")
        ),
        "History": lambda: ms.History(model, texts[:4], tokenizer=tokenizer, out=own_path(".history")).report(),
        "Baseline.fit": lambda: ms.Baseline.fit(model, texts, tokenizer=tokenizer).save(own_path(".baseline")),
        "Baseline.accept": lambda: baseline.accept(model, [f"{text} w3" for text in texts[:8]], tokenizer=tokenizer),
        "Monitor": examine,
        "Monitor.report": monitor_pages,
    }


NAMES = [
    *(
        "attend dense",
        "attend flash",
        "attend direct",
        "attend tree",
        "attend clusters",
        "attend_with_bound",
        "velocity",
        "value_flow",
    ),
    *("zero_temperature_flow", "clouds", "simulate", "simulate hardmax", "mean_field", "theory", "wasserstein"),
    *("simulate a block", "theory of a block", "Block.from_encoder"),
    *("certificate", "phases", "figures", "report", "save and load", "claims", "audit", "audit report", "compare"),
    *("length", "compress", "merge_tokens", "exit_layer", "History", "Baseline.fit", "Baseline.accept", "Monitor"),
    "Monitor.report",
]


# Calls that read or write files, start threads or have locks of their own.
WITH_FILES_OR_THREADS = [
    *(
        "attend direct",
        "attend tree",
        "attend clusters",
        "simulate",
        "report",
        "save and load",
        "audit",
        "length",
        "Baseline.fit",
        "Monitor",
    ),
]
_WARM: set[str] = set()


def warm(name, call):
    """Import modules and compile kernels before the state is read: what an import does is not what a call does."""
    if name not in _WARM:
        call()
        _WARM.add(name)


def state(model, tokenizer):
    """Everything of the host that a library could change by mistake."""
    cuda = torch.backends.cuda
    loggers = [logging.getLogger(name) for name in (None, "metastable", "transformers", "distributed", "numba")]
    raw = tokenizer.backend_tokenizer
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "kernels": (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()),
        "torch generator": torch.get_rng_state().numpy().tobytes(),
        "numpy generator": repr(np.random.get_state()),
        "python generator": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy errors": np.geterr(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "logging": [(log.level, list(log.handlers), log.disabled, log.propagate) for log in loggers],
        "transformers": transformers.utils.logging.get_verbosity(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "process": (os.getcwd(), locale.setlocale(locale.LC_ALL), sys.getrecursionlimit(), sys.excepthook),
        "streams": (sys.stdout, sys.stderr),
        "mode": [module.training for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "weights": [(p.requires_grad, p.data_ptr(), p._version) for p in model.parameters()],
        "tokenizer": (raw.padding, raw.truncation, tokenizer.model_max_length, tokenizer.padding_side),
    }


def differences(before, after):
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.mark.parametrize("name", NAMES)
def test_the_host_is_as_it_was(name, calls, model, tokenizer):
    """The call runs in this thread, whose own state counts too, and in two other threads at the same time."""
    assert sorted(NAMES) == sorted(calls)
    call, errors = calls[name], []
    warm(name, call)
    before = state(model, tokenizer)

    def work():
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    call()
    for thread in threads:
        thread.join()
    assert not errors
    assert not differences(before, state(model, tokenizer))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("audit", "length", "Baseline.fit") else name
        for name in WITH_FILES_OR_THREADS
    ],
)
def test_inside_an_asyncio_loop(name, calls, model, tokenizer):
    call = calls[name]

    async def beside():
        ticks = 0
        task = asyncio.create_task(asyncio.to_thread(call))
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await task
        call()  # and in the thread of the loop itself
        return ticks

    warm(name, call)
    before = state(model, tokenizer)
    assert asyncio.run(beside()) > 0
    assert not differences(before, state(model, tokenizer))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_a_forked_child(calls):
    """Every call works in a child that was forked after the parent has used the library, as a data loader's worker."""
    for name, call in calls.items():
        warm(name, call)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # as torch's own data loader does: OpenMP's threads do not survive a fork
            for call in calls.values():
                call()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 240
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.05)
    assert ended[1] == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_under_the_hosts_gradient_mode(mode, calls):
    with mode():
        for name in ("theory", "simulate", "certificate", "report", "audit", "length", "Monitor"):
            calls[name]()


def test_under_another_default_dtype(calls):
    try:
        torch.set_default_dtype(torch.float64)
        for name in ("theory", "simulate", "certificate", "attend flash", "audit", "length", "Baseline.fit"):
            calls[name]()
    finally:
        torch.set_default_dtype(torch.float32)


# tests/scale/test_cluster.py checks the same in make test, before, during and after a sweep.
@pytest.mark.slow
def test_a_sweep_leaves_the_environment_and_the_rest(tmp_path, model, tokenizer):
    """A sweep on workers starts a cluster."""
    dask = pytest.importorskip("dask", reason="sweeps need dask")
    importlib.import_module("distributed")
    # xarray adds a warning filter when it first opens a file.
    xr.Dataset().to_zarr(tmp_path / "empty.zarr", consolidated=False)
    xr.open_zarr(tmp_path / "empty.zarr", consolidated=False)
    settings, before = copy.deepcopy(dask.config.config), state(model, tokenizer)
    head = {"interaction": [1.5, 0.9], "value": [1.2, 0.6], "seed": 0}
    ms.sweep(head=head, axes={"beta": [1.0, 2.0]}, n=20, d=2, until=0.5, workers=1, out=tmp_path / "sweep")
    assert not differences(before, state(model, tokenizer))
    assert dask.config.config == settings
