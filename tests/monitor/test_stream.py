"""Lines in, records out: order, bounds, counting, and a folder that survives whatever happens to its writer."""

import hashlib
import json
import os
import random
import re
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable.encoder.texts import Line, blank, lines
from metastable.errors import BadInput
from metastable.monitor import stream as module
from metastable.monitor.record import Record, Word
from metastable.monitor.stream import Intake, arriving, batches, examined, regular, stream_folder


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
        yield Record("rejected", sha=hashlib.sha256(content.encode("utf-8")).hexdigest()[:12], id=line.id)


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


@settings(deadline=None, max_examples=30)
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


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.data(), st.integers(1, 9))
def test_after_a_stop_a_line_that_is_another_one_is_found(count, data, size):
    done = data.draw(st.integers(1, count))
    other = data.draw(st.integers(1, count))
    lines_now = different(count)
    lines_now[other - 1] = replace(lines_now[other - 1], **data.draw(st.sampled_from([{"text": "?"}, {"id": "?"}])))
    again = batches(Intake(lines_now, 8 * size), size, done, past(different(done)))
    if other <= done:
        with pytest.raises(BadInput, match=f"line {other} is not the text of its record"):
            next(again)
    else:
        assert [line for batch in again for line in batch][-1].number == count


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(0, 45), st.integers(1, 9))
def test_after_a_stop_all_that_arrives_on_a_live_stream_is_new(count, done, size):
    found = list(arriving(Intake(different(count), 8 * size), size, done))
    flat = [line for batch in found for line in batch]
    assert [line.number for line in flat] == list(range(done + 1, done + count + 1))
    assert [line.text for line in flat] == [line.text for line in different(count)]
    assert all(len(batch) <= size for batch in found)


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
    """In place of `Examiner.records`."""
    good = [Record("scored", p_value=0.5, p_marginal=0.5, score=float(len(text)), n=3) for text in texts]
    return [Record.rejected("is empty") if blank(text) else record for text, record in zip(texts, good, strict=True)]


@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("jsonl", [False, True])
def test_every_line_has_its_record_in_order(size, jsonl, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(BAD))
    found = []
    for batch in batches(Intake(lines(path, jsonl), 8 * size), size):
        found += examined(batch, fake)
    expected = past(lines(path, jsonl))
    assert [(record.sha, record.id) for record in found] == [(record.sha, record.id) for record in expected]
    assert [record.line for record in found] == list(range(1, len(BAD) + 1))
    good = {8} if jsonl else {1, 6, 7, 8, 9, 10, 11}
    assert {record.line for record in found if record.status == "scored"} == good
    assert all(bool(record.because) == (record.line not in good) for record in found)
    assert [record.id for record in found][6:8] == ([7, "a-1"] if jsonl else [None, None])
    if not jsonl:
        assert found[0].score == len("A good line.")
        assert found[-1].score == len("last line without an end")


def test_long_ids_are_cut_and_documents_are_not(tmp_path):
    ids = ["a" * 200, "a" * 201, 10**199, 10**200]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x", "id": name, "document": name}) for name in ids))
    found = list(lines(path))
    assert [line.id for line in found] == ["a" * 200, "a" * 199 + "…", 10**199, "1" + "0" * 198 + "…"]
    assert [line.document for line in found] == [str(name) for name in ids]


FACTS = {"setting": "full", "alpha": 0.01}


def row(line, p=0.5, **more):
    return Record("scored", p_value=p, p_marginal=p, cut=False, line=line, **more).to_dict()


def filled(folder, count, finish=None, **more):
    with stream_folder(folder, FACTS, **more) as kept:
        kept.write([row(line) for line in range(1, count + 1)])
        if finish is not None:
            kept.finish(finish)


def count_of(folder):
    return (folder / "records.jsonl").read_text().count("\n")


def test_records_are_there_as_soon_as_they_are_written(tmp_path):
    with stream_folder(tmp_path / "out", FACTS) as kept:
        kept.write([row(1), row(2)])
        assert count_of(tmp_path / "out") == 2
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is False
        kept.finish({"finished": True})
    assert {"records.jsonl", "summary.json"} <= set(os.listdir(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["finished"] is True


def test_records_are_neither_lost_nor_mixed(tmp_path):
    filled(tmp_path, 2)
    with pytest.raises(BadInput, match="--resume"), stream_folder(tmp_path, FACTS):
        pass
    with (
        pytest.raises(BadInput, match=r"alpha 0\.01, not 0\.05"),
        stream_folder(tmp_path, {"setting": "full", "alpha": 0.05}, resume=True),
    ):
        pass
    assert count_of(tmp_path) == 2
    filled(tmp_path, 1, overwrite=True)
    assert count_of(tmp_path) == 1


def strange(number, p, like):
    made = {"status": "scored", "p_value": p, "p_marginal": p, "score": -p, "detector": "exposure", "like": like}
    return Record(**made, sha=f"{number:012d}", text=f"text {number}", tokens=(Word("word", 3.0),))


@pytest.mark.parametrize("pieces", [1, 4, 100])
def test_an_example_of_each_likeness_is_kept_beside_the_strangest(pieces, tmp_path):
    """However the stream is cut: the 20 strangest texts, and the strangest of each of the 20 strangest likenesses."""
    stream = [strange(n, 0.001 + 1e-6 * n, "typing errors") for n in range(60)]
    stream += [strange(100 + n, 0.005 + 1e-5 * n, f"kind {n % 30}") for n in range(60)]
    random.Random(1).shuffle(stream)
    with stream_folder(tmp_path / "out", {}) as folder:
        for i in range(0, len(stream), pieces):
            folder.keep(stream[i : i + pieces])
    kept = json.loads((tmp_path / "out" / "strangest.json").read_text())["texts"]
    expected = {f"{n:012d}" for n in range(20)} | {f"{100 + n:012d}" for n in range(19)}
    assert set(kept) == expected


def test_two_writers_do_not_share_a_folder(tmp_path):
    with stream_folder(tmp_path, FACTS) as kept:
        kept.write([row(1)])
        for more in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(BadInput, match="another process"), stream_folder(tmp_path, FACTS, **more):
                pass
        assert count_of(tmp_path) == 1


@pytest.mark.parametrize("torn", [1, 2, 3, 17, 100, len(json.dumps(row(3)))])
def test_a_torn_line_is_removed_wherever_it_is_torn(torn, tmp_path):
    filled(tmp_path, 3)
    whole = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(whole[:-torn])
    with stream_folder(tmp_path, FACTS, resume=True) as kept:
        # Without its newline alone the record is complete.
        known = [record.line for record in kept.past()]
        assert known == ([1, 2, 3] if torn == 1 else [1, 2])
        kept.write([row(line) for line in range(len(known) + 1, 4)])
    assert (tmp_path / "records.jsonl").read_bytes() == whole


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name != "lock"}


def test_a_folder_is_as_it_was_until_something_new_is_written(tmp_path):
    filled(tmp_path, 2, finish={"finished": True, "texts": 2})
    before = contents(tmp_path)
    with stream_folder(tmp_path, FACTS, resume=True) as kept:
        assert [record.line for record in kept.past()] == [1, 2]
    assert contents(tmp_path) == before
    with stream_folder(tmp_path, FACTS, resume=True) as kept:
        kept.finish({"finished": True, "texts": 2})
    assert contents(tmp_path) == before


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
    with pytest.raises(BadInput, match=words), stream_folder(tmp_path, FACTS, **more):
        pass
    assert contents(tmp_path) == files


DAMAGE = [{}, [1], {"line": 4}, row(5), {**row(4), "p_marginal": None}, row(4, 7.0), {**row(4), "status": "odd"}]
DAMAGE += [{**row(4, 7.0), "status": "rejected"}]


@pytest.mark.parametrize("damage", [b"nonsense", b"\xff", *(json.dumps(d).encode() for d in DAMAGE)])
def test_a_damaged_file_of_records_is_not_continued(damage, tmp_path):
    filled(tmp_path, 3)
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(damage + b"\n")
    before = (tmp_path / "records.jsonl").read_bytes()
    with stream_folder(tmp_path, FACTS, resume=True) as kept, pytest.raises(BadInput, match="damaged: line 4"):
        list(kept.past())
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_resuming_nothing_is_a_start(tmp_path):
    with stream_folder(tmp_path / "new", FACTS, resume=True) as kept:
        assert list(kept.past()) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match=r"is a file|cannot write"), stream_folder(place, FACTS):
            pass
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_regular_file_is(tmp_path):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    assert regular(str(tmp_path / "file"))
    assert not regular(str(tmp_path / "fifo"))
    assert not regular(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("baseline", "the baseline was changed (recalibrated or made again), or is another one, since the records in"),
        ("encoder", "the weights of the encoder are others than those with which the records in"),
    ],
)
def test_a_baseline_or_an_encoder_that_was_changed_is_told_in_words_and_not_as_hashes(tmp_path, name, words):
    facts = {"encoder": "0" * 64, "baseline": "1" * 64, "setting": "full"}
    with stream_folder(tmp_path / "out", facts) as folder:
        folder.write([{"status": "rejected"}])
    with (
        pytest.raises(BadInput, match=re.escape(words)) as found,
        stream_folder(tmp_path / "out", {**facts, name: "2" * 64}, resume=True),
    ):
        pass
    message = str(found.value)
    assert "give another --out, or use --overwrite to start again" in message
    assert not re.search("[0-9a-f]{64}", message)
    assert "\n" not in message
