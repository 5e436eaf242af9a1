"""The journal never gives a wrong record, whatever is done to its bytes."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metastable.errors import BadInput
from metastable.scale.journal import HEADER, Journal, locked, scan

MINE, OTHER = bytes(range(32)), bytes(32)
WIDTH = 24
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
outcomes = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([0, 1]), st.binary(max_size=60)),
    max_size=12,
    unique_by=lambda o: o[0],
)


def written(path, kept, identity=MINE):
    path.unlink(missing_ok=True)
    with Journal(path, identity, WIDTH) as journal:
        for record in kept:
            journal.append([record])
    return path.read_bytes()


def reading(path, identity=MINE):
    with Journal(path, identity, WIDTH) as journal:
        return {index: (status, payload) for index, status, payload in journal.payloads()}


@many
@given(kept=outcomes)
def test_what_was_appended_is_read_again(tmp_path, kept):
    written(tmp_path / "journal", kept)
    assert reading(tmp_path / "journal") == {index: (status, payload) for index, status, payload in kept}
    assert scan(tmp_path / "journal", MINE, WIDTH).damaged == 0


@many
@given(kept=outcomes, cut=st.floats(0, 1))
def test_a_cut_journal_gives_its_first_records(tmp_path, kept, cut):
    path = tmp_path / "journal"
    data = written(path, kept)
    path.write_bytes(data[: int(cut * len(data))])
    found = reading(path)
    assert list(found.items()) == [(i, (s, p)) for i, s, p in sorted(kept) if i in found]
    # No hole: whatever is there came first.
    assert set(found) == {index for index, _, _ in kept[: len(found)]}
    # And it can be written on.
    with Journal(path, MINE, WIDTH) as journal:
        journal.append(kept)
    assert len(reading(path)) == len(kept)
    assert scan(path, MINE, WIDTH).damaged == 0


@many
@given(kept=outcomes.filter(bool), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_record_and_changes_none(tmp_path, kept, place, bit):
    path = tmp_path / "journal"
    blob = bytearray(written(path, kept))
    where = int(place * len(blob))
    blob[where] ^= 1 << bit
    path.write_bytes(bytes(blob))
    found, truth = reading(path), {i: (s, p) for i, s, p in kept}
    assert found.items() <= truth.items()
    assert len(found) >= len(truth) - 1
    if where < HEADER:
        assert found == truth


@many
@given(kept=outcomes, holes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=80)), max_size=3))
def test_garbage_anywhere_never_becomes_a_record(tmp_path, kept, holes):
    path = tmp_path / "journal"
    blob = bytearray(written(path, kept))
    for place, garbage in holes:
        at = int(place * len(blob))
        blob[at : at + len(garbage)] = garbage
    path.write_bytes(bytes(blob))
    assert reading(path).items() <= {i: (s, p) for i, s, p in kept}.items()


def test_records_that_quote_the_mark_are_no_trouble(tmp_path):
    path = tmp_path / "journal"
    inner = written(path, [(1, 0, b"inner")])[HEADER:]
    blob = written(path, [(2, 0, inner), (3, 0, b"after")])
    assert set(reading(path)) == {2, 3}
    # With its wrapping damaged, what was inside is a record of this sweep too, whole and true.
    path.write_bytes(blob[:HEADER] + bytes(4) + blob[HEADER + 4 :])
    assert reading(path)[3] == (0, b"after")


def test_a_result_that_comes_twice_is_ignored(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, MINE, WIDTH) as journal:
        assert journal.append([(1, 0, b"a"), (2, 1, b"bad"), (1, 0, b"b")]) == 2
        size = path.stat().st_size
        assert journal.append([(1, 0, b"c")]) == 0
        assert journal.append([(2, 0, b"good")]) == 0
        assert path.stat().st_size == size
        # Only what failed may be replaced, and only when asked.
        assert journal.append([(1, 0, b"d"), (2, 0, b"good")], again=True) == 1
    assert reading(path) == {1: (0, b"a"), 2: (0, b"good")}


def test_a_record_of_another_sweep_does_not_count(tmp_path):
    path = tmp_path / "journal"
    written(path, [(1, 0, b"x")], identity=OTHER)
    assert scan(path, MINE, WIDTH).foreign
    assert reading(path) == {}


def test_in_order_the_bytes_do_not_tell_the_past(tmp_path):
    path, kept = tmp_path / "journal", [(2, 0, b"two"), (0, 1, b"zero"), (1, 0, b"one")]
    plain = written(path, sorted(kept))
    written(path, kept)
    with open(path, "ab") as handle:
        handle.write(b"garbage" * 30)
    with Journal(path, MINE, WIDTH) as journal:
        assert journal.scan.damaged > 0
        journal.put_in_order()
        assert journal.scan.damaged == 0
        journal.append([(3, 0, b"three")])
    assert path.read_bytes()[: len(plain)] == plain
    assert set(reading(path)) == {0, 1, 2, 3}


def test_damage_is_counted_in_records(tmp_path):
    path = tmp_path / "journal"
    blob = bytearray(written(path, [(i, 0, bytes(WIDTH)) for i in range(10)]))
    size = (len(blob) - HEADER) // 10
    for i in (2, 5, 6):
        blob[HEADER + i * size + 20] ^= 1
    path.write_bytes(bytes(blob[:-5]))
    found = scan(path, MINE, WIDTH)
    assert (sorted(found.found), found.damaged, found.torn) == ([0, 1, 3, 4, 7, 8], 3, size - 5)


def test_two_processes_cannot_hold_one_folder(tmp_path):
    program = (
        "import sys; from pathlib import Path; from metastable.scale.journal import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "sweep")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BadInput, match=rf"another process \(pid {holder.pid}\)"), locked(tmp_path / "sweep"):
            pass
        holder.kill()
    with locked(tmp_path / "sweep"):
        pass
    assert (tmp_path / "sweep" / "lock").read_text() == ""
