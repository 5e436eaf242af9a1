"""Everything on disk: writes that are complete or absent, locks, lines and journals that survive kill -9 and damage."""

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metastable import files
from metastable.errors import BadInput
from metastable.files import Entry, Journal, Lines

MINE, OTHER = "a" * 64, "b" * 64
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
records = st.lists(
    st.builds(Entry, st.integers(0, 50), st.sampled_from([0, 1]), st.binary(max_size=60)),
    max_size=12,
    unique_by=lambda record: record.number,
)


def python(program, *arguments, limit=None):
    """A Python process that runs a program, with a largest size of its files in bytes."""
    text = "import sys, resource; from pathlib import Path; from metastable import files\n"
    if limit is not None:
        text += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    command = [sys.executable, "-c", text + program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed_after(process, lines):
    """What a process printed until it was killed, some time after it had printed this many lines."""
    said = [process.stdout.readline() for _ in range(lines)]
    time.sleep(random.Random(lines).uniform(0, 0.02))
    process.kill()
    return [*said, *process.communicate()[0].splitlines(keepends=True)]


def written(path, kept, identity=MINE):
    path.unlink(missing_ok=True)
    with Journal(path, identity) as journal:
        journal.append(kept)
    return path.read_bytes() if path.exists() else b""


def reading(path, identity=MINE):
    return {record.number: record for record in Journal(path, identity).records()}


# --- whole files and folders


@pytest.mark.parametrize("value", [{"a": [math.inf, -math.inf, math.nan, 1.5]}, {"text": "β → ∞"}, {}])
def test_json_has_words_for_what_is_not_finite(tmp_path, value):
    files.write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found == files.read_json(tmp_path / "x.json", "the file")
    if "a" in value:
        assert found["a"] == ["inf", "-inf", "nan", 1.5]
        assert [float(x) for x in found["a"][:2]] == [math.inf, -math.inf]


@pytest.mark.parametrize("text", ["{", "[1]", "", "\x00"])
def test_json_that_is_damaged_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput, match=r"the run .*x\.json is damaged"):
        files.read_json(tmp_path / "x.json", "the run")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    files.write_text(tmp_path / "x.txt", "old")

    def half(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BadInput, match=r"x\.txt: No space left on device; free some space"):
        files.write(tmp_path / "x.txt", half)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_is_one_line_with_the_path(tmp_path):
    program = "files.write_text(Path(sys.argv[1]), 'x' * 10_000)"
    process = python(program, tmp_path / "x.txt", limit=1000)
    assert process.wait() == 1
    assert "BadInput: cannot write" in process.stderr.read().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_while_it_writes_leaves_one_whole_file(tmp_path):
    program = """
for i in range(10**6):
    files.write_text(Path(sys.argv[1]), str(i) * 20_000)
    print(i, flush=True)
"""
    said = killed_after(python(program, tmp_path / "x.txt"), 5)
    text = (tmp_path / "x.txt").read_text()
    number = text[: len(text) // 20_000]
    assert text == number * 20_000
    assert int(number) in (int(said[-1]), int(said[-1]) + 1)


def folder_with(path, word):
    with files.replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "a").write_text(word)
        (temporary / "b").write_text(word)


def contents(path):
    return {entry.name: entry.read_text() for entry in path.iterdir()}


def half_written(folder):
    folder.mkdir()
    (folder / "a").write_text("half")
    raise OSError(errno.ENOSPC, "in the way")


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder_with(tmp_path / "x", "one")
    with pytest.raises(BadInput, match="in the way"), files.replacing(tmp_path / "x") as temporary:
        half_written(temporary)
    assert contents(tmp_path / "x") == {"a": "one", "b": "one"}
    # An older folder that a killed process left beside is no obstacle.
    (tmp_path / ".x.old").mkdir()
    (tmp_path / ".x.old" / "a").write_text("older")
    folder_with(tmp_path / "x", "two")
    assert contents(tmp_path / "x") == {"a": "two", "b": "two"}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_process_killed_while_it_replaces_a_folder_leaves_one_whole_folder(tmp_path):
    program = """
target = Path(sys.argv[1])
for i in range(10**6):
    with files.replacing(target) as temporary:
        temporary.mkdir()
        for name in "abcd":
            (temporary / name).write_text(str(i))
    print(i, flush=True)
"""
    for lines in (1, 4, 9):
        said = killed_after(python(program, tmp_path / "x"), lines)
        assert files.recover(tmp_path / "x")
        found = contents(tmp_path / "x")
        assert found.keys() == set("abcd")
        assert len(set(found.values())) == 1
        # Nothing that was reported as written is lost; on a busy machine the process gets further before it dies.
        assert int(found["a"]) >= int(said[-1])
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("left", "found"),
    [({"x", ".x.tmp"}, "x"), ({".x.tmp", ".x.old"}, ".x.old"), ({"x", ".x.old"}, "x"), ({".x.tmp"}, None)],
)
def test_recovery_from_every_moment_of_a_kill(tmp_path, left, found):
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    assert files.recover(tmp_path / "x") == (found is not None)
    assert [contents(path) for path in tmp_path.iterdir()] == ([] if found is None else [{"from": found}])


def whole(folder):
    """What four files of one folder hold, if they all hold the same; they are read one after another."""
    found = {(folder / name).read_text() for name in "abcd"}
    if len(found) > 1:
        raise ValueError("of two folders")
    return found.pop()


def test_a_folder_is_read_while_it_is_replaced_again_and_again(tmp_path):
    """Readers see the old folder or the new one, and never disturb the writer."""
    target, problems = tmp_path / "x", []

    def replace(number):
        with files.replacing(target) as temporary:
            temporary.mkdir()
            for name in "abcd":
                (temporary / name).write_text(str(number))

    def write():
        try:
            for number in range(1, 200):
                replace(number)
        except Exception as error:
            problems.append(error)

    replace(0)
    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(int(files.read_folder(target, whole)))
    writer.join()
    assert problems == []
    assert seen == sorted(seen)
    assert files.read_folder(target, whole) == "199"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("left", "found", "after"),
    [({"x", ".x.old"}, "x", {"x", ".x.old"}), ({".x.tmp", ".x.old"}, ".x.old", {"x"}), ({".x.old"}, ".x.old", {"x"})],
)
def test_reading_after_a_kill_restores_the_folder(tmp_path, left, found, after):
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    assert files.read_folder(tmp_path / "x", lambda folder: (folder / "from").read_text()) == found
    assert {path.name for path in tmp_path.iterdir()} == after


def test_a_reader_that_may_not_restore_the_folder_gets_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / ".x.old").mkdir()
    monkeypatch.setattr(files, "KILLED", 0.0)
    monkeypatch.setattr("os.rename", refuse)
    with pytest.raises(BadInput, match=r"killed.*\.x\.old") as caught:
        files.read_folder(tmp_path / "x", whole)
    assert str(tmp_path / "x") in str(caught.value)


def test_a_folder_that_is_damaged_or_not_there_is_an_error(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("x", "y"):
        with pytest.raises(FileNotFoundError):
            files.read_folder(tmp_path / name, whole)


# --- locks


def test_a_lock_is_for_one_process_and_names_it(tmp_path):
    program = "with files.locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    folder = tmp_path / "work"
    holder = python(program, folder)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BadInput, match=rf"another process \(pid {holder.pid}\)"), files.locked(folder):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with files.locked(folder), pytest.raises(BadInput, match=f"pid {os.getpid()}"), files.locked(folder):
        pass
    with files.locked(folder):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"), files.locked(tmp_path / "file" / "inside"):
        pass


@pytest.mark.parametrize("here", ["file", "report", "mine", "new"])
def test_output_folders(tmp_path, here):
    out = tmp_path / "out"
    if here == "file":
        out.write_text("")
    elif here != "new":
        out.mkdir()
        (out / "report.html").write_text("")
    if here == "mine":
        (out / "mine.json").write_text("")
    if here in ("file", "report"):
        with pytest.raises(BadInput, match="--out"):
            files.folder_for(out, "mine.json")
    else:
        files.folder_for(out, "mine.json")


# --- lines


def test_lines_are_whole_after_a_kill(tmp_path):
    program = """
lines = files.Lines(sys.argv[1])
for i in range(10**6):
    lines.append({"i": i, "text": "x" * 3000})
    print(i, flush=True)
"""
    path = tmp_path / "lines"
    count = 0
    for lines in (1, 20, 60):
        said = killed_after(python(program, path), lines)
        found = [json.loads(line)["i"] for line in Lines(path).read()][count:]
        assert found == list(range(len(found)))
        assert len(found) >= int(said[-1]) + 1
        with Lines(path) as again:
            again.append({"i": -1})
        count += len(found) + 1
        assert json.loads(list(Lines(path).read())[-1]) == {"i": -1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a": 1}\n{"a"', b'{"a": 1}\n{"b": 2}\n'),
        (b'{"a": 1}\n{"a": 2}', b'{"a": 1}\n{"a": 2}\n{"b": 2}\n'),
        (b"{", b'{"b": 2}\n'),
        (b"", b'{"b": 2}\n'),
    ],
)
def test_a_torn_last_line_is_repaired(tmp_path, before, after):
    path = tmp_path / "lines"
    path.write_bytes(before)
    with Lines(path) as lines:
        lines.append({"b": 2})
    assert path.read_bytes() == after


def test_a_last_line_of_a_thousand_brackets_is_refused_in_one_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"[" * 100_000)
    with Lines(path) as lines, pytest.raises(BadInput, match="JSON lines"):
        lines.append({"a": 1})


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "diary"
    path.write_text("dear diary")
    with Lines(path) as lines:
        for _ in range(2):
            with pytest.raises(BadInput, match="give another file"):
                lines.append({"a": 1})
    assert path.read_text() == "dear diary"


def test_lines_that_do_not_fit_leave_those_before_them(tmp_path):
    program = """
lines = files.Lines(sys.argv[1])
for i in range(100):
    lines.append({"i": i, "text": "x" * 50}, {"i": i})
"""
    process = python(program, tmp_path / "lines", limit=1000)
    assert process.wait() == 1
    assert "BadInput: cannot write" in process.stderr.read().splitlines()[-1]
    found = [json.loads(line)["i"] for line in (tmp_path / "lines").read_bytes().splitlines()]
    assert 0 < len(found) < 40
    assert found == [i // 2 for i in range(len(found))]
    assert (tmp_path / "lines").read_bytes().endswith(b"\n")


def test_a_lone_surrogate_is_no_error(tmp_path):
    with Lines(tmp_path / "lines") as lines:
        lines.append({"text": "half \ud83d"})
    assert json.loads((tmp_path / "lines").read_text(encoding="utf-8"))["text"].startswith("half")


# --- journals


@many
@given(kept=records)
def test_what_was_appended_is_read_again(tmp_path, kept):
    written(tmp_path / "journal", kept)
    assert reading(tmp_path / "journal") == {record.number: record for record in kept}
    assert Journal(tmp_path / "journal", MINE).damaged == 0


@many
@given(kept=records, cut=st.floats(0, 1))
def test_a_cut_journal_gives_its_first_records(tmp_path, kept, cut):
    path = tmp_path / "journal"
    data = written(path, kept)
    path.write_bytes(data[: int(cut * len(data))])
    found = reading(path)
    # Nothing is missing before the cut.
    assert found == {record.number: record for record in kept[: len(found)]}
    with Journal(path, MINE) as journal:
        journal.append(kept)
        journal.put_in_order()
    assert path.read_bytes() == written(path, sorted(kept)) or not kept


def test_a_header_without_its_newline_costs_nothing(tmp_path):
    path, kept = tmp_path / "journal", [Entry(0, 0, b"")]
    blob = bytearray(written(path, kept))
    blob[blob.index(b"\n")] ^= 1
    path.write_bytes(bytes(blob))
    assert reading(path) == {0: kept[0]}
    with Journal(path, MINE) as journal:
        assert not journal.foreign


@many
@given(kept=records.filter(bool), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_record_and_changes_none(tmp_path, kept, place, bit):
    path = tmp_path / "journal"
    blob = bytearray(written(path, kept))
    where = int(place * len(blob))
    header = blob.index(b"\n")
    blob[where] ^= 1 << bit
    path.write_bytes(bytes(blob))
    found, truth = reading(path), {record.number: record for record in kept}
    assert found.items() <= truth.items()
    assert len(found) >= len(truth) - 1
    if where < header:
        assert found == truth
    with Journal(path, MINE) as journal:
        journal.append(kept)
        journal.put_in_order()
    assert path.read_bytes() == written(path, sorted(kept))


@many
@given(kept=records, holes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=80)), max_size=3))
def test_garbage_anywhere_never_becomes_a_record(tmp_path, kept, holes):
    path = tmp_path / "journal"
    blob = bytearray(written(path, kept))
    for place, garbage in holes:
        at = int(place * len(blob))
        blob[at : at + len(garbage)] = garbage
    path.write_bytes(bytes(blob))
    assert reading(path).items() <= {record.number: record for record in kept}.items()


def test_a_damaged_newline_costs_no_record(tmp_path):
    path = tmp_path / "journal"
    blob = bytearray(written(path, [Entry(i, 0, b"JJJJ" * i) for i in range(4)]))
    newline = blob.index(b"\n", blob.index(b"\n") + 1)
    for damage in (0x0B, 0x4A, 0x1A):
        blob[newline] = damage
        path.write_bytes(bytes(blob))
        assert reading(path).keys() == {0, 1, 2, 3}
        assert Journal(path, MINE).damaged == 1


def test_records_below_a_damaged_header_are_kept(tmp_path):
    path = tmp_path / "journal"
    blob = bytearray(written(path, [Entry(i, 0, b"x") for i in range(3)]))
    blob[blob.index(MINE.encode())] ^= 1
    path.write_bytes(bytes(blob))
    journal = Journal(path, MINE)
    assert not journal.foreign
    assert journal.damaged == 1
    assert reading(path).keys() == {0, 1, 2}
    journal.append([Entry(3, 0, b"y")])
    assert reading(path).keys() == {0, 1, 2, 3}


def test_a_disk_that_is_full_at_the_header_loses_nothing_that_comes_later(tmp_path, monkeypatch):
    path, write, room = tmp_path / "journal", os.write, [30]

    def short(file, data):
        if room[0] is not None:
            if not room[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            data, room[0] = bytes(data[: room[0]]), 0
        return write(file, data)

    monkeypatch.setattr(os, "write", short)
    with Journal(path, MINE) as journal:
        with pytest.raises(BadInput, match="cannot write"):
            journal.append([Entry(0, 0, b"x")])
        room[0] = None
        assert journal.append([Entry(0, 0, b"x"), Entry(1, 0, b"y")]) == 2
        assert list(journal.records()) == [Entry(0, 0, b"x"), Entry(1, 0, b"y")]
    assert reading(path).keys() == {0, 1}
    assert Journal(path, MINE).damaged == 0


def test_a_result_that_comes_twice_is_ignored(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, MINE) as journal:
        assert journal.append([Entry(1, 0, b"a"), Entry(2, 1, b"bad"), Entry(1, 0, b"b")]) == 2
        size = path.stat().st_size
        assert journal.append([Entry(1, 0, b"c"), Entry(2, 0, b"good")]) == 0
        assert path.stat().st_size == size
        # Only a failure may be replaced, and only when asked.
        assert journal.append([Entry(1, 0, b"d"), Entry(2, 0, b"good")], replace_failed=True) == 1
    assert reading(path) == {1: Entry(1, 0, b"a"), 2: Entry(2, 0, b"good")}


def test_the_journal_of_another_computation_is_left_alone(tmp_path):
    path = tmp_path / "journal"
    before = written(path, [Entry(1, 0, b"x")], identity=OTHER)
    mine = Journal(path, MINE)
    assert mine.foreign
    assert mine.begun
    assert reading(path) == {}
    with pytest.raises(BadInput, match="another computation"):
        mine.append([Entry(1, 0, b"y")])
    assert path.read_bytes() == before


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    path = tmp_path / "journal"
    path.write_text("dear diary\ntoday")
    mine = Journal(path, MINE)
    assert not mine.begun
    with pytest.raises(BadInput, match="another computation"):
        mine.append([Entry(1, 0, b"y")])
    assert path.read_text() == "dear diary\ntoday"


def test_reading_a_journal_does_not_change_it(tmp_path):
    path = tmp_path / "journal"
    torn = written(path, [Entry(1, 0, b"x"), Entry(2, 0, b"y")])[:-3]
    path.write_bytes(torn)
    assert list(reading(path)) == [1]
    assert path.read_bytes() == torn
    assert list(Journal(tmp_path / "none", MINE).records()) == []
    assert not (tmp_path / "none").exists()


def test_in_order_the_bytes_do_not_depend_on_the_past(tmp_path):
    path, kept = tmp_path / "journal", [Entry(2, 0, b"two"), Entry(0, 1, b"zero"), Entry(1, 0, b"one")]
    plain = written(path, sorted(kept))
    written(path, kept)
    with open(path, "ab") as handle:
        handle.write(b"garbage\n" * 30)
    with Journal(path, MINE) as journal:
        assert journal.damaged == 30
        journal.put_in_order()
        assert journal.damaged == 0
        journal.append([Entry(3, 0, b"three")])
    assert path.read_bytes()[: len(plain)] == plain
    assert set(reading(path)) == {0, 1, 2, 3}


def test_rewriting_replaces_all_records(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, MINE) as journal:
        journal.append([Entry(i, 0, bytes([i])) for i in range(5)])
        journal.rewrite([Entry(7, 0, b"sum")])
        journal.append([Entry(8, 0, b"next")])
    assert reading(path) == {7: Entry(7, 0, b"sum"), 8: Entry(8, 0, b"next")}


APPENDING = """
journal = files.Journal(Path(sys.argv[1]), "a" * 64)
first = max(journal.status, default=-1) + 1
for i in range(first, 10**6):
    journal.append([files.Entry(i, 0, str(i).encode() * 500)])
    if i % 7 == 0:
        journal.rewrite(list(journal.records()))
    print(i, flush=True)
"""


def test_a_journal_keeps_every_acknowledged_record_of_a_killed_process(tmp_path):
    path = tmp_path / "journal"
    for lines in (1, 5, 12, 20):
        said = killed_after(python(APPENDING, path), lines)
        found = reading(path)
        assert list(found) == list(range(len(found)))
        assert len(found) >= int(said[-1]) + 1
        assert all(record.payload == str(i).encode() * 500 for i, record in found.items())


def test_a_full_disk_keeps_the_records_before_it(tmp_path):
    path = tmp_path / "journal"
    process = python(APPENDING, path, limit=10_000)
    said = process.communicate()
    assert "BadInput: cannot write" in said[1].splitlines()[-1]
    assert list(reading(path)) == [int(line) for line in said[0].split()]
    with Journal(path, MINE) as journal:
        journal.append([Entry(100, 0, b"after the disk was made larger")])
    assert reading(path)[100].payload.startswith(b"after")


def test_an_identity_depends_on_every_part_and_on_order():
    assert files.sha256({"a": 1, "b": 2}) != files.sha256({"b": 2, "a": 1})
    assert files.sha256(1.0, "x") == files.sha256(1.0, "x")
    assert len({files.sha256(x) for x in (1, "1", [1], {"a": 1}, math.inf, None)}) == 6


# --- files that others append to


def test_a_tail_gives_each_whole_line_once_and_its_place(tmp_path):
    path = tmp_path / "lines"
    tail = files.Tail(path)
    assert tail.read() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.read() == [(0, b"one"), (4, b"two")]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b"ee\n\nfour\n")
    assert tail.read() == [(8, b"three"), (14, b""), (15, b"four")]
    assert [tail.line(place) for place in (0, 4, 8, 14, 15)] == [b"one", b"two", b"three", b"", b"four"]
    assert tail.restarted == 0


def test_a_tail_takes_as_many_bytes_as_it_may(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%06d\n" % i for i in range(100)))
    tail, found = files.Tail(path), []
    while lines := tail.read(most=50):
        assert len(lines) <= 7
        found += lines
    assert [int(line) for _, line in found] == list(range(100))


@pytest.mark.parametrize("new", [b"a\n", b"other\nand\nlonger than before\n"], ids=["shorter", "longer"])
@pytest.mark.parametrize("how", ["written over", "replaced", "removed first"])
def test_a_tail_begins_again_with_another_file(how, new, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    tail = files.Tail(path)
    assert len(tail.read()) == 2
    if how == "removed first":
        path.unlink()
        assert tail.read() == []
    if how == "replaced":
        (tmp_path / "new").write_bytes(new)
        (tmp_path / "new").rename(path)
    else:
        path.write_bytes(new)
    assert [line for _, line in tail.read()] == new.splitlines()
    assert tail.restarted == 1
