"""Progress where nobody watches: a line every ten seconds on standard error, and nothing for short work."""

import io
import re
import sys

import pytest

from metastable import progress
from metastable.progress import FileTexts, Progress, Shares, Texts


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test moves."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_line_every_ten_seconds_and_never_more(clock, capsys):
    with Texts(what="texts") as bar:
        for done in range(1, 360):
            clock.now += 0.1
            bar(done, 1000)
    found = lines(capsys)
    assert len(found) == 3
    numbers = [list(map(int, re.findall(r"\d+", line))) for line in found]
    # Done, of all, elapsed, left: ten texts a second.
    for (done, total, elapsed, left), at in zip((n[:4] for n in numbers), (10, 20, 30), strict=True):
        assert total == 1000
        assert (done, elapsed) == (pytest.approx(10 * at, abs=2), at)
        seconds = 100 - at
        assert left == (seconds // 60 if seconds >= 60 else pytest.approx(seconds, abs=1))


def test_short_work_says_nothing(clock, capsys):
    with Texts() as bar:
        for done in range(99):
            clock.now += 0.1
            bar(done)
    assert lines(capsys) == []


def test_an_unknown_total_has_no_time_left(clock, capsys):
    with Texts(what="tokens") as bar:
        clock.now = 11.0
        bar(500)
    (line,) = lines(capsys)
    assert "500 tokens" in line
    assert "left" not in line


def test_texts_of_a_file_that_were_done_before_do_not_shorten_the_time_left(clock, capsys):
    with FileTexts(before=400) as bar:
        for done in (420, 440, 460, 480, 500, 520):
            clock.now += 2.0
            bar(done, 1000.2)
    (line,) = lines(capsys)
    assert line == "examining: 500 of about 1000 texts, 10 s elapsed, about 50 s left"


def test_a_terminal_has_no_lines_for_the_texts_of_a_file(clock, capsys, monkeypatch):
    """`watch` counts on its own last line there."""
    monkeypatch.setattr(progress, "_terminal", lambda: True)
    with FileTexts() as bar:
        clock.now = 60.0
        bar(5, 10)
    assert lines(capsys) == []


def test_several_tasks(clock, capsys):
    with Shares(["one", "two"], None) as bar:
        clock.now = 20.0
        bar({"one": 1.0, "two": 0.5})
    (line,) = lines(capsys)
    assert "1 of 2 claims" in line
    assert "75%" in line
    assert "7 s left" in line


def test_a_library_call_writes_nothing_into_the_log_of_its_host(clock, capsys):
    with Progress(10.0, None) as bar:
        clock.now = 60.0
        bar.at(5.0)
    with Texts(show=False) as bar:
        clock.now = 120.0
        bar(5)
    assert lines(capsys) == []


@pytest.mark.parametrize("error", [None, io.StringIO()], ids=["none", "closed"])
def test_standard_error_that_is_gone_does_not_stop_the_work(error, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", error)
    with Texts() as bar:
        if error is not None:
            error.close()
        clock.now = 60.0
        bar(5)
    assert clock.now == 60.0
