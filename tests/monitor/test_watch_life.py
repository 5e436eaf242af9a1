"""`metastable watch` after an alarm, by slices, and on dependent texts; the same in Python."""

import json
import random
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import prometheus_client
import pytest
import torch
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.cli.watch import _after_words, _episode_lines, raised_words
from metastable.errors import BadInput
from metastable.monitor.episodes import Place
from metastable.monitor.monitor import Monitor
from metastable.monitor.record import WRITTEN, Record
from metastable.monitor.sinks import Prometheus
from metastable.monitor.slices import Slices
from tests.monitor.conftest import ODD
from tests.monitor.live.helpers import Kept
from tests.monitor.test_commands import killed_at, started


def invoke(*arguments, stdin=None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


@pytest.fixture
def watching(small, small_baseline_folder):
    return ["watch", small, "--baseline", small_baseline_folder, "--batch-size", "4"]


def odd(count, seed=0):
    rng = random.Random(seed)
    return [f"{rng.choice(ODD)} {number}" for number in range(count)]


@pytest.fixture(scope="module")
def turning(stream):
    """Clean, shifted, clean, shifted; every fifteenth line is empty."""
    found = [*stream[:40], *odd(16), *stream[40:120], *odd(16, 1), *stream[120:160]]
    for place in range(14, len(found), 15):
        found[place] = ""
    return found


def lines(texts, sources=("a", "b", "c")):
    """The texts as JSON lines; odd ones are of the source b, the others of all sources in turn; some have none."""
    rows = []
    for number, text in enumerate(texts):
        source = "b" if any(word in text for word in ("zebra", "karate", "dragon", "ghost")) else sources[number % 3]
        rows.append({"text": text} | ({} if number % 10 == 9 and source != "b" else {"source": source}))
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def path(turning, tmp_path_factory):
    found = tmp_path_factory.mktemp("life") / "texts.jsonl"
    found.write_text(lines(turning))
    return found


@pytest.mark.slow
def test_a_shift_that_comes_back_raises_two_alarms_and_resuming_gives_the_same_bytes(watching, path, tmp_path):
    watching = [*watching, path, "--reset-after-alarm", 12, "--slice", "source"]
    whole = invoke(*watching, "--out", tmp_path / "whole")
    assert whole.exit_code == 1, whole.output
    expected = {
        name: (tmp_path / "whole" / name).read_bytes() for name in ("records.jsonl", "summary.json", "strangest.json")
    }
    found, summary = [json.loads(row) for row in whole.stdout.splitlines()], json.loads(expected["summary.json"])
    raised = [row["line"] for row in found if row["alarm"]]
    alarms = summary["alarms"]
    assert [alarm["line"] for alarm in alarms] == raised
    assert len(raised) == summary["alarms_raised"] == 2
    assert 40 < raised[0] <= 56
    assert 136 < raised[1] <= 152
    assert [alarm["episode"] for alarm in alarms] == [1, 2]
    assert summary["alarm"]["episode"] == found[-1]["episode"] == 3
    assert [row["episode"] for row in found] == sorted(row["episode"] for row in found)
    for alarm in alarms:
        scored = [row for row in found if row["status"] == "scored"]
        assert scored[alarm["text"] - 1]["line"] == alarm["line"]
        after = scored[alarm["text"] : alarm["text"] + 12]
        assert {row["episode"] for row in after} == {alarm["episode"]}
        assert scored[alarm["text"] + 12]["episode"] == alarm["episode"] + 1
        assert alarm["after"]["texts"] == 12
        assert alarm["after"]["strange"] == sum(row["p_value"] <= 0.01 for row in after)
        assert whole.stderr.count(f"alarm at text {alarm['text']} (line {alarm['line']})") >= 2
    # Kill it after the first alarm, tear a line, go on.
    out, size = tmp_path / "out", sum(len(row) + 1 for row in expected["records.jsonl"].split(b"\n")[:60])
    killed_at([*watching, "--out", out], out, min(size, len(expected["records.jsonl"]) // 2))
    assert invoke(*watching, "--out", out, "--resume").exit_code == 1
    assert {name: (out / name).read_bytes() for name in expected} == expected
    # At a line in the middle of the N texts after the alarm, and at an empty line.
    for cut in (raised[0] + 3, 60, 75):
        rows = expected["records.jsonl"].split(b"\n")[:cut]
        (out / "records.jsonl").write_bytes(b"\n".join(rows) + b'\n{"line"')
        assert invoke(*watching, "--out", out, "--resume").exit_code == 1
        assert {name: (out / name).read_bytes() for name in expected} == expected
    for other in (["--reset-after-alarm", 13, "--slice", "source"], ["--reset-after-alarm", 12]):
        refused = invoke(*watching[:-4], *other, "--out", out, "--resume")
        assert refused.exit_code == 2
        assert "was made with" in refused.stderr
    # Records of a slice that is now another one are refused.
    path_of = tmp_path / "other.jsonl"
    path_of.write_text(path.read_text().replace('"source": "a"', '"source": "z"', 1))
    refused = invoke(*[path_of if one == path else one for one in watching], "--out", out, "--resume")
    assert "is not the text of its record" in refused.stderr


def test_slices_are_listed_and_the_one_that_raised_is_named(watching, path, tmp_path):
    result = invoke(*watching, path, "--slice", "source", "--out", tmp_path / "out", "--private")
    assert result.exit_code == 1, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = [json.loads(row) for row in result.stdout.splitlines()]
    assert [own["slice"] for own in summary["slices"]] == ["a", "b", "c", None]
    for own in summary["slices"]:
        mine = [row for row in found if row["status"] == "scored" and row["slice"] == own["slice"]]
        assert own["scored"] == len(mine)
        assert own["strange"] == sum(row["p_value"] <= 0.01 for row in mine)
        assert [alarm["line"] for alarm in own["alarms"]] == [row["line"] for row in mine if row["slice_alarm"]]
        assert own["log_e"] == mine[-1]["slice_log_e"]
        assert own["alarms_raised"] == (own["slice"] == "b")
    assert "slice 'b' is not like the clean texts" in result.stderr
    assert "4 slices, 1 with an alarm" in result.stderr
    assert all(row["slice_log_e"] is None for row in found if row["status"] == "rejected")


def test_an_alarm_of_a_slice_alone_is_a_finding(watching, stream, tmp_path):
    """Six odd texts of one source among many others: its own alarm is raised, and the exit code says so."""
    texts = [*stream[:60], *(text for pair in zip(odd(8), stream[60:68], strict=True) for text in pair), *stream[68:80]]
    result = invoke(*watching, "--jsonl", "--slice", "source", "--json", stdin=lines(texts))
    summary = json.loads(result.stdout.splitlines()[-1])
    assert [own["alarms_raised"] for own in summary["slices"] if own["slice"] == "b"] == [1]
    assert result.exit_code == 1
    without = invoke(*watching, "--jsonl", "--json", stdin=lines(texts))
    assert json.loads(without.stdout.splitlines()[-1])["slices"] is None


@pytest.mark.parametrize(("value", "missing"), [(None, True), (["a"], True), ("a", False)])
def test_a_field_that_no_line_has_is_warned_of(value, missing, watching, stream, tmp_path):
    rows = [{"text": text, "source": value} for text in stream[:3]]
    rows.append({"text": stream[3]})
    given = "".join(json.dumps(row) + "\n" for row in rows)
    result = invoke(*watching, "--jsonl", "--slice", "source", "--out", tmp_path / "out", stdin=given)
    assert result.exit_code == 0
    assert ("no line has the field 'source'" in result.stderr) == missing
    assert "no alarm over all texts" in result.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["slice_field_missing"] is missing


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--reset-after-alarm", "0"], "--reset-after-alarm is 0"),
        (["--slice", "source"], "give a .jsonl file or --jsonl"),
        (["--slice", "text", "--jsonl"], "is the text itself"),
    ],
)
def test_bad_options_are_one_line(more, words, watching, tmp_path):
    result = invoke(*watching, *more, "--out", tmp_path / "out", stdin="A text.\n")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def record(rank, m, line=None, slice=None):
    return Record("scored", p_value=rank / 1000, p_marginal=rank / (m + 1), line=line, slice=slice)


@pytest.fixture
def monitor_of(small_baseline):
    """A monitor that is only given records, and its m."""

    def made(**more):
        return Monitor("nowhere", small_baseline, "full", **more), small_baseline.settings["full"].texts

    return made


def test_dependent_texts_are_warned_of_and_independent_ones_are_not(monitor_of):
    rng = np.random.default_rng(0)
    for alike in (True, False):
        monitor, m = monitor_of()
        levels = np.repeat(rng.integers(1, m + 1, 200), 5) if alike else rng.integers(1, m + 1, 1000)
        monitor.take([record(int(rank), m) for rank in levels])
        found = monitor.summary()["dependence"]
        assert found["warned"] == alike
        assert (found["text"] is None) != alike


def test_the_command_says_what_to_do_about_dependent_texts(watching, stream, monkeypatch):
    """A stream in which each text comes several times in a row."""
    given = "\n".join(text for text in stream[:80] for _ in range(4))
    result = invoke(*watching, "--json", stdin=given)
    assert json.loads(result.stdout.splitlines()[-1])["dependence"]["warned"]
    assert result.stderr.count("warning: neighbouring texts are alike") == 1
    assert "documents" in result.stderr


def test_copies_are_warned_of_with_numbers_and_resuming_gives_the_same_summary(watching, stream, tmp_path):
    """A few texts over and over: p-values that are equal in a block say nothing, equal texts do."""
    given, whole, parts = tmp_path / "given.txt", tmp_path / "whole", tmp_path / "parts"
    texts = [*stream[:30], *(stream[:1] * 100)]
    given.write_text("\n".join(texts) + "\n", encoding="utf-8")
    result = invoke(*watching, given, "--private", "--out", whole)
    told = "100 of the first 130 texts are copies of earlier ones"
    assert result.stderr.count("warning: ") >= 1
    assert told in result.stderr
    found = json.loads((whole / "summary.json").read_text())
    assert found["dependence"]["warned"]
    assert found["dependence"]["copies"] == {"text": 43, "most": 100, "among": 130, "until": 130}
    assert told in (whole / "report.html").read_text(encoding="utf-8")
    for count in (64, 130):
        given.write_text("\n".join(texts[:count]) + "\n", encoding="utf-8")
        invoke(*watching, given, "--private", "--out", parts, *(["--resume"] if count > 64 else []))
    assert (parts / "records.jsonl").read_bytes() == (whole / "records.jsonl").read_bytes()
    assert json.loads((parts / "summary.json").read_text())["dependence"] == found["dependence"]


def test_the_summary_has_warnings_and_alarms_while_the_stream_goes_on(watching, stream, tmp_path):
    """Negative control: after texts that are no copies it only says that the stream is not finished."""
    child = started(*watching, "--out", tmp_path, stderr=subprocess.DEVNULL)
    summaries = []
    try:
        for texts in (stream[:30], [stream[0]] * 30, ODD * 10):
            child.stdin.write("".join(f"{text}\n" for text in texts).encode())
            child.stdin.flush()
            for _ in texts:
                assert child.stdout.readline()
            summaries.append(json.loads((tmp_path / "summary.json").read_text()))
        clean, copies, shifted = summaries
        assert clean.keys() == {"schema", "made", "about", "finished"}
        assert copies["dependence"]["copies"]["text"] is not None
        assert not copies["alarm"]["raised"]
        assert shifted["alarm"]["raised"]
        assert not any(found["finished"] for found in summaries)
    finally:
        child.kill()
        child.communicate()
    # The first summary after a restart still has what was found before.
    child = started(*watching, "--out", tmp_path, "--resume", stderr=subprocess.DEVNULL)
    child.stdin.write(f"{stream[50]}\n".encode())
    child.stdin.flush()
    assert child.stdout.readline()
    found = json.loads((tmp_path / "summary.json").read_text())
    child.kill()
    child.communicate()
    assert (found["finished"], found["alarm"]["raised"], found["texts"]) == (False, True, 101)


def test_copies_among_texts_of_a_live_model_and_in_python(small, small_baseline_folder, stream):
    monitor = Monitor(small, small_baseline_folder)
    monitor.examine([*stream[:5], *(stream[:1] * 20)])
    assert monitor.summary()["dependence"]["copies"]["most"] == 20
    encoder = monitor.examiner().encoder
    with Monitor(encoder.model, small_baseline_folder) as live, torch.inference_mode():
        for batch in (stream[:5], stream[:1] * 10, [stream[0], stream[7]] * 5):
            encoder.model(**encoder.tokenizer(batch, padding=True, return_tensors="pt"))
    # The copies are padded in the last pass, and are not in the second.
    assert live.summary()["dependence"]["copies"]["most"] == 19


def test_metrics_tell_episodes_and_count_alarms_of_slices(monitor_of):
    registry = prometheus_client.CollectorRegistry()
    monitor, m = monitor_of(reset_after=5, slices=True, sinks=[Prometheus(registry, monitor="x")])

    def value(name, **labels):
        return registry.get_sample_value(f"metastable_{name}", {"monitor": "x", **labels})

    assert (value("alarms_total", of="all"), value("alarms_total", of="slice")) == (0, 0)
    while monitor.episodes.total == 0:
        monitor.take([record(1, m, slice="de")])
    assert (value("alarm_raised"), value("alarm_episode"), value("alarms_total", of="all")) == (1, 1, 1)
    monitor.take([record(m, m, slice="en")] * 5)
    assert (value("alarm_raised"), value("alarm_episode"), value("alarms_total", of="all")) == (0, 2, 1)
    while monitor.slices.of("de").episodes.total == 0:
        monitor.take([record(1, m, slice="de")])
    assert value("alarms_total", of="slice") == 1
    assert "de" not in {label for metric in registry.collect() for s in metric.samples for label in s.labels.values()}


def test_on_alarm_is_called_at_each_alarm_and_repr_counts_them(monitor_of):
    calls, kept = [], Kept()
    monitor, m = monitor_of(reset_after=5, on_alarm=lambda one: calls.append(one.episodes.total), sinks=[kept])
    monitor.take([record(1, m, line=line) for line in range(1, 201)])
    assert len(calls) == monitor.episodes.total == sum(one.alarm for one in kept.records) > 3
    assert f"alarm at text {monitor.raised_at} and {monitor.episodes.total - 1} more" in repr(monitor)


def test_the_page_tells_alarms_whose_records_were_not_kept(monitor_of, tmp_path):
    monitor, m = monitor_of(reset_after=5, slices=True, keep=3)
    while monitor.episodes.total < 2 or not monitor.slices.of("de").episodes.total:
        monitor.take([record(1, m, slice="de")])
    monitor.take([record(m, m, slice="en")] * 3)
    page = monitor.report(tmp_path / "report.html").read_text(encoding="utf-8")
    first, second = (one.place.text for one in monitor.episodes.raised)
    assert f"2 alarms were raised, the first at text {first}." in page
    assert f"at texts {first} and {second}" in page
    assert f"‘de’ at text {monitor.slices.of('de').episodes.first.place.text}" in page


def test_slices_in_python(small, small_baseline_folder, stream):
    monitor = Monitor(small, small_baseline_folder, slices=True)
    found = monitor.examine(stream[:6], slices=["en", 7, None, "en", "en", 7])
    assert [one.slice for one in found] == ["en", 7, None, "en", "en", 7]
    assert [own["scored"] for own in monitor.summary()["slices"]] == [3, 2, 1]
    for bad, words in (
        (["en"], "1 slices and 2 texts"),
        ("en", "one string"),
        (["en", 1.5], "of type float"),
        (["en", True], "of type bool"),
    ):
        with pytest.raises(BadInput, match=words):
            monitor.examine(stream[:2], slices=bad)
    assert monitor.counts.texts == 6
    with pytest.raises(BadInput, match="slices=True"):
        Monitor(small, small_baseline_folder).examine(stream[:1], slices=["en"])
    with pytest.raises(BadInput, match="live model have no slice"):
        Monitor(monitor.examiner().encoder.model, small_baseline_folder, slices=True).__enter__()


def test_records_of_before_are_read_without_the_new_fields(monitor_of):
    from metastable.monitor.stream import _restored

    monitor, m = monitor_of()
    row = monitor.take([replace(record(5, m, line=1), cut=False)])[0].to_dict()
    new = {"episode", "slice", "slice_log_e", "slice_alarm"}
    assert new < set(WRITTEN)
    old = {name: value for name, value in row.items() if name not in new}
    assert _restored(old, 1) == _restored(row, 1)
    with pytest.raises(TypeError):
        _restored(row | {"slice": ["de"]}, 1)


def test_sentences_about_many_alarms_and_one_strange_text():
    after = {
        "texts": 30,
        "strange": 1,
        "expected_at_most": 0.3,
        "peak_log_e": 3.2,
        "threshold_log_e": 5.3,
        "log_e": -0.3,
    }
    alarms = [
        {"text": n, "line": n, "episode": n, "after": after | {"persists": False}} for n in (10, 50, 90, 130, 170, 210)
    ]
    found = {
        "alarm": {"episode": 211, "log_e": 0.1, "threshold_log_e": 5.3},
        "alarms": alarms[1:],
        "alarms_raised": len(alarms),
    }
    assert _episode_lines(found)[0] == "6 alarms, the newest at texts 50, 90, 130, 170, 210"
    assert _episode_lines(found | {"alarms": alarms[:1], "alarms_raised": 1})[0] == "1 alarm, at text 10"
    words = _after_words(alarms[0], ended=False)
    assert "no sign that the shift persists: 1 of the 30 following texts is strange" in words
    assert "e-value 0.74, at most 25 (threshold 200)" in words
    assert "no sign that the shift persisted" in _after_words(alarms[0], ended=True)


@pytest.mark.parametrize(
    ("persists", "going_on", "past"),
    [
        (True, "the shift persists: ", "the shift persisted: "),
        (False, "not certain yet whether the shift persists: ", "it is not certain that the shift persisted: "),
    ],
)
def test_evidence_between_1_and_the_threshold_is_not_no_sign(persists, going_on, past):
    after = {"texts": 13, "strange": 3, "expected_at_most": 0.13, "peak_log_e": 3.2, "threshold_log_e": 5.3}
    alarm = {"text": 9, "line": 9, "after": after | {"log_e": 3.2, "persists": persists}}
    assert _after_words(alarm, ended=False).startswith(f"after the alarm at text 9: {going_on}3 of the 13")
    assert _after_words(alarm, ended=True).startswith(f"after the alarm at text 9: {past}3 of the 13")


def test_later_alarms_of_a_slice_are_compared_with_episodes(small_baseline):
    own = small_baseline.scorer("light")
    slices = Slices(own.texts, 0.01, reset_after=5, independent=own.independent)
    p, strange = np.full(60, 1 / 1000), np.ones(60, dtype=bool)
    evidence = slices.take(p, strange, [Place(i, i) for i in range(1, 61)], ["a"] * 60)
    monitor = SimpleNamespace(slices=slices, alpha=0.01)
    told = []
    for row in sorted(evidence.rows):
        found = {"line": row + 1, "alarm": False, "slice": "a", "slice_alarm": True, "episode": 1}
        told += raised_words(found | {"slice_log_e": float(evidence.log_e[row])}, row + 1, monitor)
    assert len(told) > 2
    assert ["clean streams" in words for words in told] == [True, *[False] * (len(told) - 1)]
    assert all("clean episodes" in words for words in told[1:])
