"""The journal of a sweep: an append-only file of finished points, each with its own checksum.

    head     8 bytes METAJRN1, SHA-256 of the sweep's description
    record   4 bytes mark, u32 length of the payload, u64 number of the point, u8 status, payload, SHA-256

all little-endian. The SHA-256 of a record covers the sweep's identity too, so that a record of another sweep never
counts. A reader that meets damage looks for the next mark from which a whole record checks out; so a torn end, a hole
or a flipped bit costs the records that it touches and no others, and nothing wrong is ever read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import IO, Self

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

from metastable.errors import BadInput

MAGIC = b"METAJRN1"
MARK = b"\xf5PT\x1a"
FRONT = struct.Struct("<4sIQB")
CHECK = 32
HEADER = len(MAGIC) + CHECK


@dataclass(frozen=True)
class Entry:
    """Where a record's payload lies, and its status."""

    offset: int
    length: int
    status: int


@dataclass
class Scan:
    """What a journal holds: the last good record of each point, and how many records are damaged, at a guess."""

    found: dict[int, Entry] = field(default_factory=dict)
    damaged: int = 0
    torn: int = 0
    """Bytes after the last good record that are no whole record: what was being written when a process ended."""
    ordered: bool = True
    """Whether the file is exactly the head and one record a point, by number."""
    foreign: bool = False
    """Whether it is the journal of another sweep."""


class Journal:
    """The journal of the sweep with this identity, open for appending. `width` is the length of a usual payload."""

    def __init__(self, path: Path, identity: bytes, width: int) -> None:
        self.path, self.identity, self.width = path, identity, width
        self.scan = scan(path, identity, width)
        self._handle = self._opened()
        if self.scan.torn:
            self._handle.truncate(self._handle.tell() - self.scan.torn)
            self._handle.seek(0, os.SEEK_END)
        if self._handle.tell() == 0:
            self._write(MAGIC + identity)
            _sync_folder(path.parent)

    @property
    def found(self) -> dict[int, Entry]:
        return self.scan.found

    def append(self, outcomes: Iterable[tuple[int, int, bytes]], again: bool = False) -> int:
        """Keep finished points; how many were new. They are on the disk when this returns.

        A point that is kept already is left alone: the same result may come twice from a cluster that lost sight of a
        worker. With `again` points that failed are replaced.
        """
        blob = bytearray()
        fresh: dict[int, Entry] = {}
        start = self._handle.tell()
        for index, status, payload in outcomes:
            earlier = fresh.get(index) or self.found.get(index)
            if earlier is not None and not (again and earlier.status):
                continue
            fresh[index] = Entry(start + len(blob) + FRONT.size, len(payload), status)
            blob += _record(self.identity, index, status, payload)
        if blob:
            self._write(bytes(blob))
            self.found.update(fresh)
            self.scan.ordered = False
        return len(fresh)

    def payloads(self) -> Iterator[tuple[int, int, bytes]]:
        """Every kept point, by number."""
        with open(self.path, "rb") as handle:
            for index in sorted(self.found):
                entry = self.found[index]
                handle.seek(entry.offset)
                yield index, entry.status, handle.read(entry.length)

    def put_in_order(self) -> None:
        """Rewrite the journal by number of the point, without damage: the same sweep, the same bytes."""
        if self.scan.ordered and not self.scan.damaged:
            return
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with open(temporary, "wb") as handle:
                handle.write(MAGIC + self.identity)
                for index, status, payload in self.payloads():
                    handle.write(_record(self.identity, index, status, payload))
                handle.flush()
                os.fsync(handle.fileno())
            self._handle.close()
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(self.path.parent)
        self.scan = scan(self.path, self.identity, self.width)
        self._handle = self._opened()

    def _opened(self) -> FileIO:
        # Without a buffer: what could not be written must not be tried again on closing.
        return open(self.path, "ab", buffering=0)

    def _write(self, blob: bytes) -> None:
        start, rest = self._handle.tell(), memoryview(blob)
        try:
            while rest:
                rest = rest[self._handle.write(rest) :]
            os.fsync(self._handle.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._handle.truncate(start)
            raise disk_trouble(self.path, error) from error

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def disk_trouble(path: Path, error: OSError) -> BadInput:
    """One line for a write that failed."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "make room" if full else "put that right"
    words = error.strerror or str(error)
    return BadInput(f"cannot write {path}: {words}; {what} and start again: what was finished until now is kept")


def begun(path: Path) -> bool:
    """Whether the file is a journal, or the empty beginning of one."""
    with open(path, "rb") as handle:
        return MAGIC.startswith(handle.read(len(MAGIC)))


def scan(path: Path, identity: bytes, width: int) -> Scan:
    """Read a journal, whatever state it is in."""
    found = Scan()
    if not path.exists() or path.stat().st_size == 0:
        return found
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        head = data[:HEADER]
        found.foreign = head[: len(MAGIC)] == MAGIC and len(head) == HEADER and head[len(MAGIC) :] != identity
        good = head == MAGIC + identity
        _read_records(data, identity, width, HEADER if good else 0, found)
        found.ordered &= good
    return found


def _read_records(data: mmap.mmap, identity: bytes, width: int, start: int, found: Scan) -> None:
    usual = FRONT.size + width + CHECK
    here, last = start, -1
    while here < len(data):
        at, record = _next_record(data, identity, here)
        gap = at - here
        if record is None:
            whole = 0 if _unfinished(data, here) else gap // usual
            found.damaged, found.torn = found.damaged + whole, gap - whole * usual
        elif gap:
            found.damaged += max(1, round(gap / usual))
        if gap:
            found.ordered = False
        if record is None:
            return
        index, entry = record
        found.ordered &= index > last
        found.found[index] = entry
        last, here = index, entry.offset + entry.length + CHECK


def _next_record(data: mmap.mmap, identity: bytes, start: int) -> tuple[int, tuple[int, Entry] | None]:
    """The first whole record from `start` on and where it begins; the end of the file if there is none."""
    at = data.find(MARK, start)
    while at >= 0:
        record = _checked(data, identity, at)
        if record is not None:
            return at, record
        at = data.find(MARK, at + 1)
    return len(data), None


def _unfinished(data: mmap.mmap, at: int) -> bool:
    """Whether a record begins here that says of itself that it goes on beyond the end of the file."""
    body = at + FRONT.size
    if data[at : at + len(MARK)] != MARK or body > len(data):
        return False
    return body + FRONT.unpack(data[at:body])[1] + CHECK > len(data)


def _checked(data: mmap.mmap, identity: bytes, at: int) -> tuple[int, Entry] | None:
    body = at + FRONT.size
    if body > len(data):
        return None
    _, length, index, status = FRONT.unpack(data[at:body])
    if body + length + CHECK > len(data):
        return None
    state = hashlib.sha256(identity)
    state.update(memoryview(data[at : body + length]))
    if state.digest() != data[body + length : body + length + CHECK]:
        return None
    return index, Entry(body, length, status)


def _record(identity: bytes, index: int, status: int, payload: bytes) -> bytes:
    body = FRONT.pack(MARK, len(payload), index, status) + payload
    return body + hashlib.sha256(identity + body).digest()


def _sync_folder(folder: Path) -> None:
    """A new or renamed file is safe once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes, or BadInput with the number of the process that has it."""
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle: IO[str] = open(path, "a+")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"cannot write in {folder}: {error.strerror}; choose another place") from error
    with handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                handle.seek(0)
                holder = handle.read().strip() or "unknown"
                words = f"another process (pid {holder}) is at work in {folder}; wait for it or end it"
                raise BadInput(words) from error
        # The disk may be full, and the number is for people only.
        with contextlib.suppress(OSError):
            _note(handle, str(os.getpid()))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                _note(handle, "")


def _note(handle: IO[str], words: str) -> None:
    handle.truncate(0)
    handle.write(words)
    handle.flush()
