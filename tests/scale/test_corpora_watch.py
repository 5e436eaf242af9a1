"""`watch` on workers: the bytes of one process, whatever dies."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.encoder.load import load
from metastable.encoder.texts import Line
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.scale import corpora
from tests.scale.conftest import kill_a_worker, when_grown
from tests.scale.corpus import save_small, sentences, write

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
GIBBERISH = ["qxz vkk jjw pqz wvx", "zzgh kqj xxv wqp lkk", "vvw qqz jxk pww zzk"]


@pytest.fixture(scope="module")
def watching(tmp_path_factory):
    """The command's beginning, with a baseline of the small encoder."""
    folder = tmp_path_factory.mktemp("watched")
    small = save_small(folder / "encoder")
    Baseline.fit(str(small), sentences(1500, longest=12)).save(folder / "baseline")
    return ["watch", str(small), "--baseline", str(folder / "baseline")]


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Clean lines, lines that cannot be used, and at the end gibberish for the alarm."""
    path = tmp_path_factory.mktemp("stream") / "texts.txt"
    write(path, sentences(900, seed=2, longest=12))
    with path.open("ab") as file:
        file.write(b"the sen\xc3(ate\nthe sen\0ate\n" + "\n".join(GIBBERISH * 30).encode())
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.fixture(scope="module")
def alone(watching, stream, tmp_path_factory):
    """The folder that one process writes, and what it printed."""
    out = tmp_path_factory.mktemp("alone") / "out"
    result = invoke(*watching, stream, "--out", out)
    assert result.exit_code == 1, result.output
    assert len(result.stdout.splitlines()) == 992
    return out, result


def test_records_are_those_of_one_process_to_the_byte(watching, stream, scheduler, alone, tmp_path):
    result = invoke(*watching, stream, "--out", tmp_path / "out", "--scheduler", scheduler)
    folder, one = alone
    assert contents(tmp_path / "out") == contents(folder)
    assert result.stdout == one.stdout
    assert result.exit_code == one.exit_code
    # Only the folder of the page is another one, and a slow start has a line of progress.
    other = ("page: ", "examining: ")
    told, expected = (
        [line for line in found.stderr.splitlines() if "dashboard" not in line and not line.startswith(other)]
        for found in (result, one)
    )
    assert told == expected


@pytest.mark.slow
def test_a_worker_killed_in_mid_stream(watching, stream, cluster, scheduler, alone, tmp_path):
    out = tmp_path / "out"
    with when_grown(out / "records.jsonl", [1], lambda: kill_a_worker(cluster)) as killed:
        invoke(*watching, stream, "--out", out, "--scheduler", scheduler)
    assert killed
    assert contents(out) == contents(alone[0])


@pytest.mark.slow
def test_a_client_killed_in_mid_stream_goes_on_with_workers(watching, stream, scheduler, alone, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "metastable", *watching, str(stream), "--out", str(out), "--workers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, env=ENVIRONMENT, **pipes)
    child.stdout.readline()
    child.kill()
    child.communicate()
    whole = (alone[0] / "records.jsonl").read_bytes()
    kept = (out / "records.jsonl").read_bytes()
    assert whole.startswith(kept)
    assert 0 < len(kept) < len(whole)
    # As if it had been killed while it wrote.
    (out / "records.jsonl").write_bytes(kept[: len(kept) - 9])
    again = invoke(*watching, stream, "--out", out, "--scheduler", scheduler, "--resume")
    assert again.exit_code == 1, again.output
    assert contents(out) == contents(alone[0])
    assert len(again.stdout.splitlines()) == whole.count(b"\n") - kept.count(b"\n") + 1
    # All is there: no worker is needed, and so no scheduler.
    last = invoke(*watching, stream, "--out", out, "--scheduler", "tcp://127.0.0.1:9", "--resume")
    assert last.exit_code == 1, last.output
    assert contents(out) == contents(alone[0])


def test_a_stream_is_not_for_workers(watching, tmp_path):
    result = CliRunner().invoke(app, [*watching, "--workers", "2"], input="A text.\n")
    assert result.exit_code == 2
    assert "--workers" in result.stderr
    assert result.stderr.count("\n") == 1


def test_workers_must_find_the_same_baseline(watching, scheduler):
    folder = watching[3]
    encoder = load(watching[1])
    source = corpora.Source.of(encoder, False)
    watched = corpora.WatchTask(source, folder, "0" * 64, "full", 0.01, 32)
    for case, words in (
        (watched, "finds another baseline in"),
        (replace(watched, baseline="/nowhere"), "cannot load the baseline, which every worker must find"),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            list(corpora.records_on_workers(case, [[Line(1, "A text.")]], scheduler, None, True))
        assert "\n" not in str(caught.value)


def test_an_empty_file_needs_no_worker(watching, tmp_path):
    path = write(tmp_path / "texts.txt", [])
    result = invoke(*watching, path, "--out", tmp_path / "out", "--scheduler", "tcp://127.0.0.1:9")
    assert result.exit_code == 2
    assert "the stream is empty" in result.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"]
