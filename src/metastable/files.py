"""Everything that this package does with files: whole writes, locks, JSON, lines that are appended, journals.

- A file or folder is written under a temporary name, flushed to the disk and renamed. A reader sees the old content or
  the new content, never a part of it.
- A file that grows is a sequence of lines. A process that is killed leaves whole lines and at most one torn line at
  the end, which the next writer removes.
- Every failed write is a `BadInput` that names the path.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakSet

from filelock import FileLock, Timeout

from metastable.errors import BadInput

Result = TypeVar("Result")
# Bytes that are read at once when the last line of a file is looked for.
CHUNK = 2**20
# No line is longer than this many bytes.
LONGEST_LINE = 64 * CHUNK
# Seconds without a folder after which the process that was replacing it is taken to be dead.
KILLED = 1.0


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], remedy: str = "choose another place") -> Iterator[None]:
    """Turn an OSError inside the block into a BadInput that names the path and a remedy."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space and start again" if full else remedy
        raise BadInput(f"cannot write {path}: {error.strerror or error}; {advice}") from error


def write(path: Path, make: Callable[[Path], object]) -> None:
    """Write a file completely or not at all: `make` writes it under the temporary name that it is given."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{threading.get_ident()}.tmp{path.suffix}")
    with writing(path):
        try:
            make(temporary)
            with open(temporary, "rb+") as handle:
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 completely or not at all."""
    # newline="": the text is written as it is on every system.
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def write_json(path: Path, value: Any) -> None:
    """Write `to_json(value)` completely or not at all."""
    write_text(path, to_json(value) + "\n")


def to_json(value: Any, indent: int | None = 1) -> str:
    """JSON text of nested dicts, lists and numbers. Infinities and NaN become "inf", "-inf" and "nan".

    >>> to_json({"beta": math.inf}, indent=None)
    '{"beta": "inf"}'
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def read_json(path: Path, what: str, remedy: str = "delete it to start again") -> dict[str, Any]:
    """The JSON object in a file. If the file holds no JSON object, a BadInput says that it is damaged.

    what, remedy : what the file is and what to do if it is damaged, for the message
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BadInput(f"{what} {path} is damaged ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{what} {path} is damaged (no JSON object); {remedy}")
    return found


def read_result(path: str | Path, command: str, schema: str, make: Callable[[dict[str, Any], Path], Result]) -> Result:
    """What `metastable COMMAND` found, from COMMAND.json or from the folder of that file.

    make : the result from the JSON object and the folder; whatever it raises is a BadInput that names the file
    """
    file = Path(path) / f"{command}.json" if Path(path).is_dir() else Path(path)
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved.get("schema") != schema:
            raise BadInput(f"{file} is not a result of `metastable {command}` ({schema}); give its {command}.json")
        return make(saved, file.parent)
    except BadInput:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise BadInput(f"cannot read {file} as a result of `metastable {command}`: {what}") from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` when the block ends without an error.

    An older folder of that name stays until the new one is complete. See `recover`.
    """
    temporary, old = _beside(target, "tmp"), _beside(target, "old")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        recover(target)
        try:
            yield temporary
            for path in temporary.rglob("*"):
                _sync(path)
            if target.exists():
                os.rename(target, old)
            os.rename(temporary, target)
            _sync(target.parent)
        finally:
            recover(target)


def recover(target: Path) -> bool:
    """Repair what a killed `replacing` left behind. Returns whether there is a folder at `target` afterwards."""
    old = _beside(target, "old")
    if not target.exists() and old.exists():
        # The process was killed between the two renames: the older folder is complete.
        os.rename(old, target)
    for leftover in (_beside(target, "tmp"), old):
        shutil.rmtree(leftover, ignore_errors=True)
    return target.exists()


def read_folder(target: Path, read: Callable[[Path], Result]) -> Result:
    """`read(target)` of a folder that another process may be `replacing` meanwhile, without disturbing that process.

    If `read` fails and the folder is then another one than before, it is read again. Between the two renames of a
    `replacing` there is no folder for an instant. If there is none for longer, the process was killed: see `recover`.
    """
    old = _beside(target.resolve(), "old")
    while True:
        end = time.monotonic() + KILLED
        while not target.exists() and old.exists():
            if time.monotonic() > end:
                remedy = f"rename {old}, its last complete content, to {target.name}"
                with writing(target, f"a process was killed while it replaced this folder; {remedy}"):
                    recover(target.resolve())
                break
            time.sleep(0.005)
        before = _identity(target)
        try:
            return read(target)
        except Exception:
            if _identity(target) == before and not (before is None and old.exists()):
                raise


def _identity(folder: Path) -> tuple[int, int] | None:
    """Another one after the folder was replaced; None without a folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{ending}")


class Taken(BadInput):
    """A folder is held by another process or thread."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes and threads; `Taken` with the holder's process id if it is taken."""
    path = folder / "lock"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            holder = path.read_text(errors="replace").strip() or "unknown"
            raise Taken(f"another process (pid {holder}) is at work in {folder}; wait for it or end it") from None
    try:
        # The process id is for people only, and the disk may be full.
        with contextlib.suppress(OSError):
            path.write_text(str(os.getpid()))
        yield
    finally:
        with contextlib.suppress(OSError):
            path.write_text("")
        lock.release()


def folder_for(path: Path, mark: str) -> None:
    """Refuse an output folder that is a file, cannot be written, or holds the report of something else.

    mark : a file that the same command writes beside report.html
    """
    if path.exists() and not path.is_dir():
        raise BadInput(f"--out {path} is a file; give a folder")
    if (path / "report.html").exists() and not (path / mark).exists():
        raise BadInput(f"--out {path} holds a report of something else; give another folder")
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise BadInput(f"--out {path} cannot be written: no permission to write in {above}; give another folder")


def sha256(*parts: Any) -> str:
    """Hexadecimal SHA-256 of the JSON text of `parts`: an identity for everything that a result depends on."""
    return hashlib.sha256(to_json(list(parts), indent=None).encode()).hexdigest()


class _Renewed(Protocol):
    def renew(self) -> None:
        """Called in a forked child, which has no other threads of the parent."""


_RENEWED: WeakSet[_Renewed] = WeakSet()


def renewed_in_children(one: _Renewed) -> None:
    """Call `one.renew()` in every forked child, as long as there is `one`."""
    _RENEWED.add(one)


def _renew() -> None:
    for one in list(_RENEWED):
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Mutex:
    """A reentrant lock between threads. In a forked child, locks that other threads of the parent held are free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renewed_in_children(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a forked child: replace the lock if another thread of the parent held it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class Lines:
    """A file that grows by whole lines. Writes go to the system at once, and threads may share it.

    When the file is opened for writing, a torn last line is repaired. In a file of JSON lines, a line that is complete
    JSON gets its newline, the beginning of a JSON object is removed, and anything else is refused, because this package
    did not write it.

    sync : whether every line is on the disk before `append` returns. Without it, a line survives the end of the
        process, but not the end of the machine.
    header : the first line of a file of other lines than JSON; it is written with the first lines of an empty file, and
        every torn line of such a file is removed
    """

    def __init__(self, path: str | os.PathLike[str], sync: bool = False, header: bytes = b"") -> None:
        self.path, self.sync, self.header = Path(path), sync, header
        self._file: int | None = None
        self._mutex = Mutex()

    def append(self, *rows: Any) -> None:
        """Append each row as JSON on a line of its own: all of them, or none and a BadInput."""
        # A lone surrogate is not UTF-8, and a rejected text may hold one.
        self.append_bytes("".join(to_json(row, indent=None) + "\n" for row in rows).encode(errors="replace"))

    def append_bytes(self, data: bytes) -> int:
        """Append whole lines: all of them, or none and a BadInput. Returns where in the file they begin."""
        with self._mutex, writing(self.path):
            if self._file is None:
                self._file = self._opened()
            before = os.fstat(self._file).st_size
            begun = self.header if before == 0 else b""
            try:
                rest = memoryview(begun + data)
                while rest:
                    rest = rest[os.write(self._file, rest) :]
                if self.sync:
                    os.fsync(self._file)
                if begun:
                    _sync(self.path.parent)
            except OSError:
                with contextlib.suppress(OSError):  # a device cannot be truncated
                    os.ftruncate(self._file, before)
                raise
            return before + len(begun)

    def read(self) -> Iterator[bytes]:
        """The whole lines of the file, without their newlines; a torn last line is left out."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def close(self) -> None:
        with self._mutex:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _opened(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            torn = _last_line(file)
            if torn and not self.header and _is_json(torn):
                os.write(file, b"\n")
            elif torn and not self.header and (len(torn) >= LONGEST_LINE or not torn.startswith(b'{"'[: len(torn)])):
                raise BadInput(f"{str(self.path)!r} does not end in JSON lines; give another file")
            elif torn:
                os.ftruncate(file, os.fstat(file).st_size - len(torn))
        except BaseException:
            os.close(file)
            raise
        return file


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _last_line(file: int) -> bytes:
    """What follows the last newline of an open file."""
    start = os.fstat(file).st_size
    pieces: list[bytes] = []
    while start and sum(map(len, pieces)) < LONGEST_LINE and not (pieces and b"\n" in pieces[-1]):
        step = min(start, CHUNK)
        start -= step
        pieces.append(os.pread(file, step, start))
    return b"".join(reversed(pieces)).rpartition(b"\n")[2]


class Entry(NamedTuple):
    """One record of a journal: its number, a status (0 is success) and its bytes."""

    number: int
    status: int
    payload: bytes


class Journal:
    """Results that are finished, on the disk while others are still being computed.

    The first line names the format and the identity of the whole computation. Every other line is one record: number,
    status, payload in base64, and a SHA-256 over the identity and the rest of the line. A torn line, a flipped bit or
    a record of another computation costs that record and no other, and nothing wrong is ever read. The file is only
    read until the first record is appended.

    identity : everything that the results depend on, as hexadecimal digits (see `sha256`)

    Attributes
    ----------
    status : the status of each record, by number
    damaged : lines that are no records
    foreign : whether the journal belongs to another computation; it is then empty and nothing can be appended
    begun : whether there is no file, or the file is a journal or the beginning of one
    """

    FORMAT = "metastable-journal-1"
    _RECORD = re.compile(rb"\d+ \d+ [A-Za-z0-9+/=]* [0-9a-f]{64}")

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self._header = f"{self.FORMAT} {identity}\n".encode()
        self._lines = Lines(path, sync=True, header=self._header)
        self._scan()

    def append(self, records: Iterable[Entry], replace_failed: bool = False) -> int:
        """Keep results; returns how many were new. They are on the disk when this returns.

        A record that is there already stays: a cluster that lost sight of a worker may deliver a result twice.

        replace_failed : records with a status other than 0 are replaced
        """
        fresh: dict[int, tuple[int, bytes]] = {}
        for record in records:
            known = fresh[record.number][0] if record.number in fresh else self.status.get(record.number)
            if known is None or (replace_failed and known):
                fresh[record.number] = record.status, self._line(record)
        if fresh:
            if self.foreign or not self.begun:
                raise BadInput(f"{self.path} belongs to another computation; choose another folder or delete it")
            start = self._lines.append_bytes(b"".join(line for _, line in fresh.values()))
            for number, (status, line) in fresh.items():
                self.status[number], self._where[number] = status, (start, len(line) - 1)
                start += len(line)
        return len(fresh)

    def records(self) -> Iterator[Entry]:
        """Every record, by number."""
        if not self._where:
            return
        with open(self.path, "rb") as handle:
            for _, (start, length) in sorted(self._where.items()):
                handle.seek(start)
                record = self._parse(handle.read(length))
                if record is not None:
                    yield record

    def put_in_order(self) -> None:
        """Sort the records by number and drop damaged lines: the same results give the same bytes."""
        if self.status:
            self.rewrite(self.records())

    def rewrite(self, records: Iterable[Entry]) -> None:
        """Replace all records by these."""

        def make(path: Path) -> None:
            with open(path, "wb") as handle:
                handle.write(self._header)
                handle.writelines(self._line(record) for record in records)

        write(self.path, make)
        self.close()
        self._scan()

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _line(self, record: Entry) -> bytes:
        body = b"%d %d %s" % (record.number, record.status, base64.b64encode(record.payload))
        return body + b" " + self._check(body) + b"\n"

    def _check(self, body: bytes) -> bytes:
        return hashlib.sha256(self.identity.encode() + body).hexdigest().encode()

    def _parse(self, line: bytes) -> Entry | None:
        body, _, check = line.rpartition(b" ")
        if check != self._check(body):
            return None
        number, status, payload = body.split(b" ")
        return Entry(int(number), int(status), base64.b64decode(payload))

    def _scan(self) -> None:
        """Find the records in the file."""
        self.status: dict[int, int] = {}
        self._where: dict[int, tuple[int, int]] = {}
        self.damaged = start = 0
        first, mark = b"", self.FORMAT.encode()
        if self.path.exists():
            with open(self.path, "rb") as handle:
                for line in handle:
                    first = first or line
                    # Without the newline of the header, the first record is part of its line.
                    header = not start and line.startswith(mark) and not self._RECORD.search(line)
                    if line.endswith(b"\n") and not header:
                        self._take(line[:-1], start)
                    start += len(line)
        other = first.startswith(mark) and first.endswith(b"\n") and first != self._header
        # Records of this computation below the header of another one: the header is damaged.
        self.foreign = other and not self.status
        self.damaged += other and not self.foreign
        self.begun = bool(self.status) or mark.startswith(first[: len(mark)])

    def _take(self, line: bytes, start: int) -> None:
        """Note the records in a line: one, or several if a newline between them is damaged."""
        good = []
        for found in self._RECORD.finditer(line):
            record = self._parse(found.group())
            if record is not None:
                good.append(found.group())
                self.status[record.number] = record.status
                self._where[record.number] = start + found.start(), len(found.group())
        self.damaged += good != [line]


def _sync(path: Path) -> None:
    """Flush a file to the disk, or a folder, so that new names in it are safe."""
    with contextlib.suppress(OSError):  # not every system can open a folder
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Tail:
    """The lines of a file that another process appends to, or may make later, or may replace.

    Attributes
    ----------
    restarted : how often the file was found to be another one than before, or shorter
    """

    HEAD = 1024
    """Bytes at the beginning of a file that tell it from another one; systems use inode numbers again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.restarted = 0
        self._offset = 0
        self._head = b""
        self._file: int | None = None

    def read(self, most: int = 64 * CHUNK) -> list[tuple[int, bytes]]:
        """The whole lines that are new, without their newlines, each with its place in the file.

        A torn last line waits for its end. [] if there is no file. After a restart, all lines are new.

        most : bytes that are read at once; call again until nothing comes
        """
        try:
            with open(self.path, "rb") as file:
                head, now = file.read(self.HEAD), os.fstat(file.fileno())
                same = now.st_ino == self._file and now.st_size >= self._offset and head.startswith(self._head)
                if self._offset and not same:
                    self._restart()
                self._file = now.st_ino
                file.seek(self._offset)
                data = file.read(most)
        except FileNotFoundError:
            if self._offset:
                self._restart()
            return []
        found = []
        for line in data.split(b"\n")[:-1]:
            found.append((self._offset, line))
            self._offset += len(line) + 1
        # Whole lines only: the next writer may remove a torn one.
        self._head = head[: self._offset]
        return found

    def _restart(self) -> None:
        self.restarted += 1
        self._offset, self._head = 0, b""

    def line(self, place: int) -> bytes:
        """The line at a place that `read` gave."""
        with open(self.path, "rb") as file:
            file.seek(place)
            return file.readline().rstrip(b"\n")
