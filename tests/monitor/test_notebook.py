"""What a notebook shows: tables with everything escaped, and records as a data frame."""

import re

import metastable as ms
from metastable.monitor.record import Record, Word
from tests.monitor.conftest import ODD

EVIL = "<img src=x onerror=alert(1)>"


def cells(html):
    return dict(re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td></tr>", html))


def test_a_record_is_escaped():
    record = Record("scored", 0.004, 0.003, 5.0, 2, (Word(EVIL, 3.0),), "place-surprise", 7, False, because=EVIL)
    html = record._repr_html_()
    assert "<img" not in html
    assert cells(html)["p-value"] == "0.004"
    assert "&lt;img" in cells(html)["words"]
    rejected = Record.rejected(EVIL)._repr_html_()
    assert "<img" not in rejected
    assert cells(rejected)["reason"].startswith("&lt;img")


def test_baseline_and_monitor_as_tables_and_records_as_a_frame(small_encoder, small_baseline, stream, tmp_path):
    html = small_baseline._repr_html_()
    parts = small_baseline.facts["parts"]
    assert all(f"{count} to {part}" in cells(html)["clean texts"] for part, count in parts.items())
    monitor = ms.Monitor(small_encoder, small_baseline, "full", tokenizer=small_encoder.tokenizer)
    made = monitor.examine([*stream[:6], "", *ODD])
    frame = monitor.to_frame()
    assert frame["p_value"].tolist()[:6] == [record.p_value for record in made[:6]]
    assert frame["strange"].tolist() == [record.strange for record in made]
    assert frame["tokens"][7] == [word.text for word in made[7].tokens]
    assert cells(monitor._repr_html_())["texts"] == "10 scored, 1 rejected"
    for shown in (html, monitor._repr_html_(), made[0]._repr_html_()):
        assert shown.count("<svg") == 1
        assert len(shown) < 60_000
    page = monitor.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "is empty" in page
    assert "zebra" in page
    assert "zebra" not in monitor.report(tmp_path / "private.html", words=False).read_text(encoding="utf-8")


def test_an_empty_monitor_has_an_empty_frame(small_encoder, small_baseline, tmp_path):
    monitor = ms.Monitor(small_encoder, small_baseline, keep=2)
    assert len(monitor.to_frame()) == 0
    assert {"p_value", "reason", "strange"} <= set(monitor.to_frame().columns)
    assert "stream is empty" in monitor.report(tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_report_of_a_monitor_that_forgot_says_so(small_encoder, small_baseline, stream, tmp_path):
    monitor = ms.Monitor(small_encoder, small_baseline, keep=4, tokenizer=small_encoder.tokenizer)
    monitor.examine([*(ODD * 5), *stream[:4]])
    assert monitor.raised_at is not None
    page = monitor.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "20 earlier texts" in page
    assert f"alarm was raised at text {monitor.raised_at}" in page
