"""Shared fixtures: every engine in both precisions, a tokenizer and texts for small models, a real browser.

Also which worker of a test run gets which tests.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import shutil
from contextlib import contextmanager

import pytest
import torch

# As the command line does: transformers reads these when it is imported.
os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # WebGL without a graphics card.
    "--enable-unsafe-swiftshader",
]

WITH_SERVERS = ("tests/scale/", "tests/lab/test_page_")
"""Tests of these paths share a cluster or a browser with an open page, which take some ten seconds to start."""

TOGETHER = (*WITH_SERVERS, "tests/encoder/compress/", "tests/encoder/length/")
"""Tests of these paths share what is costly to make."""

FIRST = (*WITH_SERVERS, "tests/monitor/test_baseline.py", "tests/test_host.py")
"""The longest, and the one that makes the baseline for which other workers would have to wait."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests of a file, and all that are TOGETHER, go to one worker, so that what they share is made once.

    Where files are named on the command line, xdist spreads their tests as usual.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next(filter(nodeid.startswith, TOGETHER), nodeid.split("::")[0])

    if config.getvalue("dist") != "load" or any(".py" in argument for argument in config.args):
        return None
    # xdist would start with the files that have the most tests.
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Modules and tests live until the end, so the garbage collector need not look at them, now or during the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.fixture(params=["dense", "flash", "direct", "tree"])
def engine(request, monkeypatch):
    """Every engine. Pass it with tol=1e-12 where the exact engines are held to rounding.

    "flash" would leave small problems to "dense"; here its own kernel computes them too.
    """
    if request.param == "flash":
        monkeypatch.setattr(importlib.import_module("metastable.attention.dense"), "SMALL", 0)
    return request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Two test workers on two cores; more threads only get in each other's way."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _nothing_compiles_beside_the_tests():
    """Kernels are compiled before the tests, see kernels.py. Tests of the compilation itself ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metastable.attention.compilation._BESIDE.compile", lambda task: None)
        yield


WORDS = [f"w{i}" for i in range(80)]


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer of 80 words, for the small models of tests/encoder/models.py."""
    import tokenizers
    import transformers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, mask_token="[MASK]", **names)


@pytest.fixture(scope="session")
def texts():
    """As many texts of these words as a baseline needs."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(1300)]


def chromium():
    named = os.environ.get("METASTABLE_CHROMIUM")
    if named:
        return named
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def launched_browser():
    path = chromium()
    if path is None:
        words = "no Chromium found: install one or set METASTABLE_CHROMIUM to its path"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser
