"""Lines in, records out: order, bounds, counting, and a folder that survives whatever happens to its writer."""

import hashlib
import json
import math
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable.encoder.texts import Line, blank, lines
from metastable.errors import BadInput
from metastable.monitor import stream as module
from metastable.monitor.alarm import Alarm
from metastable.monitor.records import Record
from metastable.monitor.stream import Intake, Kept, Tally, arriving, as_line, batches, judged, kind, regular, row


def numbered(count, size=1):
    return [Line(number, "x" * size) for number in range(1, count + 1)]


def different(count):
    """Lines of all kinds, no two the same."""
    kinds = [{"text": "text {}"}, {"text": "", "id": "{}"}, {"text": None, "reason": "is not JSON ({})"}]
    found = []
    for number in range(1, count + 1):
        kind = kinds[number % 3]
        found.append(Line(number, **{name: value and value.format(number) for name, value in kind.items()}))
    return found


def past(lines):
    """From the definition: what the records of these lines say of them."""
    for line in lines:
        content = line.reason if line.text is None else line.text
        yield hashlib.sha256(content.encode("utf-8")).hexdigest()[:12], line.id


def taken(intake, most, whole):
    while batch := intake.take(most, whole):
        yield [line.number for line in batch]


class Source:
    """Lines handed over one by one, when the test says so; `asked` counts how many were wanted."""

    def __init__(self):
        self.asked = 0
        self._lines = []
        self._more = threading.Semaphore(0)

    def give(self, *found):
        for line in found:
            self._lines.append(line)
            self._more.release()

    def __iter__(self):
        return self

    def __next__(self):
        self.asked += 1
        self._more.acquire()
        line = self._lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line


def until(condition):
    """Waits for another thread; a test that waits in vain fails by its assertion."""
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_whole_batches_depend_on_the_lines_alone():
    assert list(taken(Intake(numbered(10), 8), 4, whole=True)) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_a_slow_stream_is_answered_at_once_and_a_fast_one_in_batches():
    source = Source()
    intake = Intake(source, 32)
    source.give(Line(1, "one"))
    assert [line.number for line in intake.take(4, whole=False)] == [1]
    source.give(*numbered(7)[1:])
    assert until(lambda: source.asked == 8)
    assert [line.number for line in intake.take(4, whole=False)] == [2, 3, 4, 5]
    assert [line.number for line in intake.take(4, whole=False)] == [6, 7]
    source.give(StopIteration())
    assert intake.take(4, whole=False) == []
    assert intake.take(4, whole=True) == []


def test_no_more_is_read_ahead_than_allowed():
    source = Source()
    intake = Intake(source, 5)
    source.give(*numbered(20))
    assert until(lambda: source.asked == 6)
    time.sleep(0.05)
    assert source.asked == 6
    intake.take(2, whole=False)
    assert until(lambda: source.asked == 8)


def test_few_long_lines_are_as_much_as_many_short_ones(monkeypatch):
    monkeypatch.setattr(module, "CHARACTERS", 100)
    source = Source()
    intake = Intake(source, 50)
    source.give(*numbered(10, size=60), StopIteration())
    assert until(lambda: source.asked == 3)
    time.sleep(0.05)
    assert source.asked == 3
    assert list(taken(intake, 4, whole=True)) == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_an_error_of_the_source_comes_after_the_lines_before_it():
    source = Source()
    source.give(Line(1, "one"), BadInput("the disk is gone"))
    intake = Intake(source, 8)
    assert [line.number for line in intake.take(4, whole=True)] == [1]
    with pytest.raises(BadInput, match="the disk is gone"):
        intake.take(4, whole=True)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(0, 45), st.integers(1, 9))
def test_after_a_stop_lines_are_cut_where_they_were(count, done, size):
    given_lines = different(count)
    whole = [[line.number for line in batch] for batch in batches(Intake(given_lines, 8 * size), size)]
    assert [n for batch in whole for n in batch] == list(range(1, count + 1))
    again = batches(Intake(given_lines, 8 * size), size, done, past(different(done)))
    if done > count:
        with pytest.raises(BadInput, match=f"{count} lines and {done} records"):
            list(again)
    else:
        assert [[line.number for line in batch] for batch in again] == [b for b in whole if b[-1] > done]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.data(), st.integers(1, 9))
def test_after_a_stop_a_line_that_is_another_one_is_found(count, data, size):
    done = data.draw(st.integers(1, count))
    other = data.draw(st.integers(1, count))
    lines_now = different(count)
    lines_now[other - 1] = replace(lines_now[other - 1], **data.draw(st.sampled_from([{"text": "?"}, {"id": "?"}])))
    again = batches(Intake(lines_now, 8 * size), size, done, past(different(done)))
    if other <= done:
        with pytest.raises(BadInput, match=f"line {other} is not the text that its record is of"):
            next(again)
    else:
        assert [line for batch in again for line in batch][-1].number == count


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(0, 45), st.integers(1, 9))
def test_after_a_stop_all_that_arrives_on_a_live_stream_is_new(count, done, size):
    found = list(arriving(Intake(different(count), 8 * size), size, done))
    flat = [line for batch in found for line in batch]
    assert [line.number for line in flat] == list(range(done + 1, done + count + 1))
    assert [line.text for line in flat] == [line.text for line in different(count)]
    assert all(len(batch) <= size for batch in found)


def scored(line, p, **more):
    return {"status": "scored", "line": line, "p_value": p, "p_marginal": p, "cut": False, "reason": ""} | more


def rejected(line, reason):
    return {"status": "rejected", "line": line, "reason": reason}


def test_a_tally_counts_and_the_alarm_is_that_of_the_p_values():
    rng = np.random.default_rng(3)
    p = np.concatenate([rng.integers(1, 1001, 300), rng.integers(1, 30, 100)]) / 1000
    alone, tally = Alarm(999, 0.01), Tally(Alarm(999, 0.01), 0.01)
    alone.update(p)
    line, raised, lines_of_scored = 0, [], []
    for number, value in enumerate(p.tolist()):
        if number % 50 == 7:
            line += 1
            assert not tally.take(rejected(line, "is not UTF-8 (byte 0xff at place 1); save it as UTF-8 text"))
        line += 1
        lines_of_scored.append(line)
        if tally.take(scored(line, value, cut=number % 100 == 0)):
            raised.append(line)
    found = tally.to_dict()
    assert alone.raised_at is not None
    assert found["alarm"]["text"] == alone.raised_at
    assert raised == [found["alarm"]["line"]] == [lines_of_scored[alone.raised_at - 1]]
    assert found["alarm"]["log_e"] == alone.log_e
    assert found["alarm"]["log_e_then"] >= alone.threshold
    assert found["alarm"]["peak_log_e"] == alone.peak
    assert (found["texts"], found["scored"], found["cut"]) == (408, 400, 4)
    assert found["strange"] == int((p <= 0.01).sum())
    assert found["rejected"] == {"is not UTF-8": 8}
    assert tally.code == 1
    json.dumps(found, allow_nan=False)


def test_the_words_of_the_alarm():
    tally = Tally(Alarm(999, 0.01), 0.01)
    tally.take(rejected(1, "is empty"))
    for line in range(2, 20):
        tally.take(scored(line, 0.001))
    at = tally.alarm.raised_at
    assert tally.alarm_words().startswith(
        f"alarm at text {at} (line {at + 1}): the stream is not like the clean texts (e-value "
    )
    assert tally.alarm_words().endswith("≥ 200; on clean streams this happens in at most 1 of 100)")
    words = "\n".join(tally.words())
    assert "19 texts, 18 scored, 18 strange at p ≤ 0.01" in words
    assert "1 rejected: 1 × is empty" in words
    assert "independent of each other" in words


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([], 2),
        ([scored(1, 0.5)], 0),
        ([scored(1, 0.5), rejected(2, "is empty")], 2),
        ([rejected(1, "is empty"), *(scored(line, 0.001) for line in range(2, 20))], 1),
    ],
)
def test_the_exit_code(records, code):
    tally = Tally(Alarm(999, 0.01), 0.01)
    for record in records:
        tally.take(record)
    assert tally.code == code


def test_an_empty_stream_is_one_line():
    assert len(Tally(Alarm(999, 0.01), 0.01).words()) == 1


def test_an_e_value_beyond_floats_is_still_a_number():
    tally = Tally(Alarm(math.inf, 0.01), 0.01)
    for line in range(1, 400):
        tally.take(scored(line, 1e-6))
    assert tally.alarm.log_e > 1000
    assert "inf" not in "".join(tally.words())


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("is not UTF-8 (byte 0xc3 at place 5); save it as UTF-8 text", "is not UTF-8"),
        ("holds a NUL byte, so it is binary or UTF-16; save it as UTF-8 text", "holds a NUL byte"),
        ("is empty", "is empty"),
    ],
)
def test_kinds_of_reasons(reason, what):
    assert kind(reason) == what


BAD = [
    b"A good line.\r\n",
    b"\n",
    b" \t\xc2\xa0\n",
    b"\xff\xfe broken\n",
    b"nul \0 byte\n",
    "mixed скрипты 文字 ★\n".encode(),
    b'{"text": "half \\ud83d", "id": 7}\n',
    b'{"text": "whole", "id": "a-1"}\n',
    b'{"text": 3}\n',
    b"{broken\n",
    b"last line without an end",
]


def fake(texts):
    """In place of `Monitor.score`."""
    good = [Record("scored", p_value=0.5, p_marginal=0.5, score=float(len(text)), n=3) for text in texts]
    return [Record.rejected("is empty") if blank(text) else record for text, record in zip(texts, good, strict=True)]


@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("jsonl", [False, True])
def test_every_line_has_its_record_in_order(size, jsonl, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(BAD))
    found = []
    tally = Tally(Alarm(999, 0.01), 0.01)
    for batch in batches(Intake(lines(path, jsonl), 8 * size), size):
        found += [row(record, sha, tally, private=False)[0] for record, sha in judged(batch, fake)]
    assert [(record["sha"], record["id"]) for record in found] == list(past(lines(path, jsonl)))
    assert [record["line"] for record in found] == list(range(1, len(BAD) + 1))
    good = {8} if jsonl else {1, 6, 7, 8, 9, 10, 11}
    assert {record["line"] for record in found if record["status"] == "scored"} == good
    for record in found:
        assert (record["status"] == "rejected") == (record["line"] not in good)
        assert bool(record["reason"]) or record["line"] in good
        json.loads(as_line(record))
    assert [record["id"] for record in found][6:8] == ([7, "a-1"] if jsonl else [None, None])
    if not jsonl:
        assert found[0]["score"] == len("A good line.")
        assert found[-1]["score"] == len("last line without an end")


def test_long_ids_are_cut_and_documents_are_not(tmp_path):
    ids = ["a" * 200, "a" * 201, 10**199, 10**200]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x", "id": name, "document": name}) for name in ids))
    found = list(lines(path))
    assert [line.id for line in found] == ["a" * 200, "a" * 199 + "…", 10**199, "1" + "0" * 198 + "…"]
    assert [line.document for line in found] == [str(name) for name in ids]


def replayed(kept):
    tally = Tally(Alarm(999, 0.01), 0.01)
    kept.replay(tally)
    return tally


FACTS = {"setting": "full", "alpha": 0.01}


def filled(folder, count, **more):
    kept = Kept(folder, FACTS, **more)
    for line in range(1, count + 1):
        kept.write(as_line(scored(line, 0.5)))
    return kept


def test_records_are_there_as_soon_as_they_are_written(tmp_path):
    kept = filled(tmp_path / "out", 2)
    assert (tmp_path / "out" / "records.jsonl").read_text().count("\n") == 2
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is False
    kept.finish({"finished": True})
    kept.close()
    assert sorted(os.listdir(tmp_path / "out")) == ["records.jsonl", "summary.json"]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is True


def test_records_are_neither_lost_nor_mixed(tmp_path):
    filled(tmp_path, 2).close()
    with pytest.raises(BadInput, match="holds records; use --resume to go on, --overwrite"):
        Kept(tmp_path, FACTS)
    with pytest.raises(BadInput, match=r"was made with alpha 0\.01, not 0\.05"):
        Kept(tmp_path, {"setting": "full", "alpha": 0.05}, resume=True)
    assert (tmp_path / "records.jsonl").read_text().count("\n") == 2
    filled(tmp_path, 1, overwrite=True).close()
    assert (tmp_path / "records.jsonl").read_text().count("\n") == 1


def test_two_writers_do_not_share_a_folder(tmp_path):
    kept = filled(tmp_path, 1)
    for more in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(BadInput, match="another process writes"):
            Kept(tmp_path, FACTS, **more)
    assert (tmp_path / "records.jsonl").read_text().count("\n") == 1
    kept.close()


def test_a_replayed_tally_is_the_tally(tmp_path):
    p = np.random.default_rng(0).integers(1, 400, 200) / 1000
    kept, tally = Kept(tmp_path, FACTS), Tally(Alarm(999, 0.01), 0.01)
    for line, value in enumerate(p.tolist(), start=1):
        record = rejected(line, "is empty") if line % 9 == 0 else scored(line, value, cut=line % 7 == 0)
        tally.take(record)
        kept.write(as_line(record))
    again = replayed(kept)
    assert again.to_dict() == tally.to_dict()
    assert again.alarm.to_dict() == tally.alarm.to_dict()
    assert tally.alarm.raised_at is not None
    kept.close()


@pytest.mark.parametrize("torn", range(1, len(as_line(scored(3, 0.5)))))
def test_a_torn_line_is_removed_wherever_it_is_torn(torn, tmp_path):
    filled(tmp_path, 3).close()
    whole = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(whole[:-torn])
    kept = Kept(tmp_path, FACTS, resume=True)
    assert replayed(kept).lines == 2
    kept.write(as_line(scored(3, 0.5)))
    assert (tmp_path / "records.jsonl").read_bytes() == whole
    kept.close()


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_a_folder_is_as_it_was_until_something_new_is_written(tmp_path):
    kept = filled(tmp_path, 2)
    kept.finish({"finished": True, "texts": 2})
    kept.close()
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b'{"line": 3, "sta')
    before = contents(tmp_path)
    kept = Kept(tmp_path, FACTS, resume=True)
    assert replayed(kept).lines == 2
    assert list(kept.past()) == [(None, None)] * 2
    kept.close()
    assert contents(tmp_path) == before
    kept = Kept(tmp_path, FACTS, resume=True)
    replayed(kept)
    kept.finish({"finished": True, "texts": 2})
    kept.close()
    assert (tmp_path / "records.jsonl").read_bytes() == as_line(scored(1, 0.5)) + as_line(scored(2, 0.5))
    assert (tmp_path / "summary.json").read_bytes() == before["summary.json"]


STRANGERS = {
    "a baseline": ({"baseline.json": b"{}"}, "holds a baseline"),
    "records of others": ({"records.jsonl": b"mine\n"}, r"has no summary\.json of watch"),
    "a summary of others": ({"summary.json": b'{"schema": "other/1", "made": {}}'}, "is no summary of watch"),
    "a summary of no kind": ({"summary.json": b"[1]", "records.jsonl": b"mine\n"}, "is no summary of watch"),
    "a summary that is not UTF-8": ({"summary.json": b"\xff"}, "is no summary of watch"),
}


@pytest.mark.parametrize("more", [{}, {"resume": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize("name", STRANGERS)
def test_files_of_others_are_left_alone(name, more, tmp_path):
    files, words = STRANGERS[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadInput, match=words):
        Kept(tmp_path, FACTS, **more)
    assert contents(tmp_path) == files


def test_json_for_a_terminal_holds_nothing_that_it_would_obey():
    record = {"id": "\x1b[31m\x7f\x9b2J\u202e‘é"}
    shown = as_line(record, ascii=True)
    assert all(0x20 <= byte < 0x7F for byte in shown[:-1])
    assert json.loads(shown) == json.loads(as_line(record)) == record
    assert "\x9b".encode() in as_line(record)


BROKEN = [as_line({"line": 4}), as_line({**scored(4, 0.5), "p_marginal": None}), as_line(scored(4, 7.0))]


@pytest.mark.parametrize("damage", [b"{}\n", b"[1]\n", b"nonsense\n", b"\xff\n", as_line(scored(5, 0.5)), *BROKEN])
def test_a_damaged_file_of_records_is_not_continued(damage, tmp_path):
    filled(tmp_path, 3).close()
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(damage)
    before = (tmp_path / "records.jsonl").read_bytes()
    kept = Kept(tmp_path, FACTS, resume=True)
    with pytest.raises(BadInput, match="its line 4 is not the record of line 4"):
        replayed(kept)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_resuming_nothing_is_a_start(tmp_path):
    kept = Kept(tmp_path / "new", FACTS, resume=True)
    assert replayed(kept).lines == 0
    kept.close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match=r"is a file|cannot be written"):
            Kept(place, FACTS)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_regular_file_is(tmp_path):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    assert regular(str(tmp_path / "file"))
    assert not regular(str(tmp_path / "fifo"))
    assert not regular(str(tmp_path / "missing"))
