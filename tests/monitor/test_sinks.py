"""Sinks: files that survive a kill and a full disk, metrics that two monitors can share, and what stays private."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metastable.errors import BadInput
from metastable.monitor import sinks
from metastable.monitor.alarm import Alarm
from metastable.monitor.record import Record, Word
from metastable.monitor.sinks import BUCKETS, JsonLines, Prometheus

prometheus_client = pytest.importorskip("prometheus_client", reason="the optional sink needs prometheus-client")

STRANGE = Record(
    "scored",
    p_value=0.004,
    p_marginal=0.002,
    score=9.5,
    first_layer=2,
    tokens=(Word("Xylophon", 4.5), Word("‘ß’", 3.0)),
    detector="place-surprise",
    n=12,
    because="some of its words do not fit",
    shown_by="place-surprise",
    text="The secret Xylophon",
)
REJECTED = Record.rejected("is empty")


def ordinary(p):
    return Record("scored", p_value=p, p_marginal=p, score=1.0, n=5)


def lines(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def test_a_line_is_the_record(tmp_path):
    sink = JsonLines(tmp_path / "records.jsonl")
    sink.write(STRANGE)
    sink.write(REJECTED)
    # Nothing is held back: it is there before the sink is closed.
    assert lines(tmp_path / "records.jsonl") == [STRANGE.to_dict(), REJECTED.to_dict()]
    sink.close()
    assert "Xylophon" in STRANGE.to_dict()["reason"]


def test_a_closed_sink_goes_on_with_the_next_record(tmp_path):
    sink = JsonLines(tmp_path / "records.jsonl")
    sink.close()
    for p in (0.25, 0.5):
        sink.write(ordinary(p))
        sink.close()
    assert [line["p_value"] for line in lines(tmp_path / "records.jsonl")] == [0.25, 0.5]


def test_the_text_is_written_only_if_asked_for_and_words_can_be_left_out(tmp_path):
    written = {}
    for name, options in {
        "plain": {},
        "private": {"tokens": False},
        "text": {"include_text": True},
    }.items():
        sink = JsonLines(tmp_path / name, **options)
        sink.write(STRANGE)
        sink.close()
        written[name] = (tmp_path / name).read_text(encoding="utf-8")
    assert "secret" not in written["plain"]
    assert "Xylophon" in written["plain"]
    assert "secret" not in written["private"]
    assert "Xylophon" not in written["private"]
    assert "ß" not in written["private"]
    private = json.loads(written["private"])
    assert private["p_value"] == 0.004
    assert private["tokens"] == []
    assert "; some of its words do not fit; " in private["reason"]
    assert json.loads(written["text"])["text"] == "The secret Xylophon"


def test_half_a_surrogate_pair_is_written_as_utf8(tmp_path):
    sink = JsonLines(tmp_path / "records.jsonl", include_text=True)
    sink.write(Record("rejected", because="holds half a surrogate pair", text="a\ud83d"))
    sink.close()
    assert lines(tmp_path / "records.jsonl")[0]["text"] == "a?"


def whole(*numbers):
    return b"".join(json.dumps({"p_value": p}).encode() + b"\n" for p in numbers)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (whole(0.1, 0.2), whole(0.1, 0.2)),
        # The newline alone was lost.
        (whole(0.1, 0.2)[:-1], whole(0.1, 0.2)),
        # Half a record.
        (whole(0.1) + b'{"p_value": 0.', whole(0.1)),
        (whole(0.1) + b"{", whole(0.1)),
        (b'{"p_value"', b""),
        # Cut in the middle of a character.
        (whole(0.1) + '{"reason": "ß'.encode()[:-1], whole(0.1)),
        # Longer than what is read at once.
        (whole(0.1) + b'{"text": "' + b"x" * 3_000_000, whole(0.1)),
    ],
)
def test_a_torn_last_line_is_repaired(tmp_path, before, after):
    path = tmp_path / "records.jsonl"
    path.write_bytes(before)
    sink = JsonLines(path)
    sink.write(ordinary(0.5))
    sink.close()
    found = path.read_bytes()
    assert found.startswith(after)
    assert json.loads(found.removeprefix(after)) == ordinary(0.5).to_dict()
    assert found.count(b"\n") == after.count(b"\n") + 1


def test_a_file_that_is_not_ours_is_left_alone(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_bytes(b"Dear reader,\nthis is no JSON")
    sink = JsonLines(path)
    with pytest.raises(BadInput, match="does not end in JSON lines; give another file"):
        sink.write(ordinary(0.5))
    assert path.read_bytes() == b"Dear reader,\nthis is no JSON"


def test_threads_do_not_mix_their_lines(tmp_path):
    sink = JsonLines(tmp_path / "records.jsonl")
    work = [
        threading.Thread(target=lambda k=k: [sink.write(ordinary(k / 10)) for _ in range(200)]) for k in range(1, 5)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    sink.close()
    found = [line["p_value"] for line in lines(tmp_path / "records.jsonl")]
    assert {p: found.count(p) for p in set(found)} == {0.1: 200, 0.2: 200, 0.3: 200, 0.4: 200}


FILLER = """
import sys
from metastable.errors import BadInput
from metastable.files import Lines

lines, errors = Lines(sys.argv[1]), 0
for k in range(20):
    try:
        lines.append({"score": k, "text": "x" * 80})
    except BadInput:
        errors += 1
print(errors)
"""


def test_a_full_disk_is_an_error_and_leaves_whole_lines(tmp_path):
    """The writer of `JsonLines`, in a process that may not write more."""
    path = tmp_path / "records.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        check=True,
    )
    found = [line["score"] for line in lines(path)]
    assert 0 < len(found) < 20
    assert found == list(range(len(found)))
    assert int(done.stdout) == 20 - len(found)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_device_without_room(tmp_path):
    with pytest.raises(BadInput, match="No space left"):
        JsonLines("/dev/full").write(ordinary(0.5))


def value(registry, name, **labels):
    return registry.get_sample_value(f"metastable_{name}", labels)


def test_metrics(tmp_path):
    registry = prometheus_client.CollectorRegistry()
    sink = Prometheus(registry, monitor="search")
    # Before the first text all counts are there already, at 0: a rate needs a beginning. A threshold is never 0.
    assert value(registry, "alarm_threshold_log_e", monitor="search") is None
    assert value(registry, "texts_total", monitor="search", status="scored") == 0
    for p in (0.5, 0.004, 0.3, 1.0):
        sink.write(ordinary(p))
    sink.write(REJECTED)
    alarm = Alarm(texts=1000)
    alarm.update([0.001] * 3)
    sink.state(alarm)
    sink.failed("sink")
    sink.failed("sink")
    sink.failed("unreadable")
    own = {"monitor": "search"}
    assert value(registry, "texts_total", status="scored", **own) == 4
    assert value(registry, "texts_total", status="rejected", **own) == 1
    assert value(registry, "last_p_value", **own) == 1.0
    assert value(registry, "alarm_log_e", **own) == pytest.approx(alarm.log_e)
    assert value(registry, "alarm_raised", **own) == (alarm.raised_at is not None)
    assert value(registry, "alarm_threshold_log_e", **own) == alarm.threshold == pytest.approx(math.log(200))
    assert value(registry, "failures_total", kind="sink", **own) == 2
    assert value(registry, "failures_total", kind="unreadable", **own) == 1
    for end, below in zip(BUCKETS, (0, 0, 1, 1, 1, 1, 1, 1, 3, 4), strict=True):
        assert value(registry, "p_value_bucket", le=str(end), **own) == below
    assert value(registry, "p_value_sum", **own) == pytest.approx(1.804)
    alarm.update([0.001] * 20)
    sink.state(alarm)
    assert value(registry, "alarm_raised", **own) == 1
    sink.close()
    assert value(registry, "texts_total", status="scored", **own) == 4
    assert "metastable_alarm_log_e" in prometheus_client.generate_latest(registry).decode()


def test_two_monitors_in_one_process_do_not_collide():
    registry = prometheus_client.CollectorRegistry()
    first, second, named = Prometheus(registry), Prometheus(registry), Prometheus(registry, monitor="named")
    first.write(ordinary(0.5))
    for _ in range(2):
        second.write(ordinary(0.25))
    found = [value(registry, "texts_total", monitor=s.monitor, status="scored") for s in (first, second, named)]
    assert found == [1, 2, 0]
    assert value(registry, "last_p_value", monitor=first.monitor) == 0.5
    other = Prometheus(prometheus_client.CollectorRegistry())
    other.write(ordinary(0.5))
    assert value(registry, "texts_total", monitor=first.monitor, status="scored") == 1
    elsewhere = Prometheus(registry, prefix="shop", monitor="named")
    elsewhere.write(ordinary(0.5))
    assert registry.get_sample_value("shop_texts_total", {"monitor": "named", "status": "scored"}) == 1
    assert value(registry, "texts_total", monitor="named", status="scored") == 0


def test_the_default_registry():
    sink = Prometheus(prefix="metastable_test")
    sink.write(ordinary(0.5))
    labels = {"monitor": sink.monitor, "status": "scored"}
    assert prometheus_client.REGISTRY.get_sample_value("metastable_test_texts_total", labels) == 1


def test_names_that_cannot_be_used_are_refused_and_leave_nothing_behind():
    registry = prometheus_client.CollectorRegistry()
    taken = prometheus_client.Gauge("shop_last_p_value", "of somebody else", registry=registry)
    before = prometheus_client.generate_latest(registry)
    with pytest.raises(BadInput, match="the prefix 'shop' cannot be used") as found:
        Prometheus(registry, prefix="shop")
    assert "\n" not in str(found.value)
    assert prometheus_client.generate_latest(registry) == before
    registry.unregister(taken)
    Prometheus(registry, prefix="shop")
    with pytest.raises(BadInput, match="registry is of type dict"):
        Prometheus({})


def test_without_the_package_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        BadInput, match=r"need the package prometheus-client; install it .* pip install '\.\[monitor\]'"
    ):
        Prometheus()


def test_the_package_is_imported_only_when_it_is_used(monkeypatch):
    """Without the package, the module can be imported, and only the metrics cannot be made."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    found = importlib.util.spec_from_file_location("sinks_without_the_package", sinks.__file__)
    fresh = importlib.util.module_from_spec(found)
    found.loader.exec_module(fresh)
    with pytest.raises(BadInput, match="install"):
        fresh.Prometheus()


def test_the_dashboard_asks_for_metrics_that_there_are():
    registry = prometheus_client.CollectorRegistry()
    sink = Prometheus(registry, monitor="search")
    sink.write(ordinary(0.5))
    sink.failed("sink")
    sink.state(Alarm(texts=1000))
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    there = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    folder = Path(__file__).parents[2] / "examples" / "grafana"
    board = json.loads((folder / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    used = {name for expression in asked for name in re.findall(r"metastable_\w+", expression)}
    assert used <= there
    # The buckets that it reads exist, and every metric of the sink is on it.
    assert {float(end) for expression in asked for end in re.findall(r'le="([\d.]+)"', expression)} <= set(BUCKETS)
    plain = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in there}
    assert {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in used} >= {
        name for name in plain if not name.endswith(("texts", "failures", "alarms"))
    }
    named = set(re.findall(r"`(metastable_\w+)`", (folder / "README.md").read_text(encoding="utf-8")))
    assert named == {name for name in plain if f"{name}_total" not in plain}
    # The line of the threshold is that of the alarm, and not that of one alpha.
    (evidence,) = [panel for panel in board["panels"] if "alarm_log_e" in str(panel["targets"])]
    assert "alarm_threshold_log_e" in str(evidence["targets"])
    assert "thresholds" not in evidence["fieldConfig"]["defaults"]
