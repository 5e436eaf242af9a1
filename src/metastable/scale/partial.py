"""Sums over texts that are finished, on the disk while the others are being computed.

Each piece of the texts is a record of a `journal`. As sums merge exactly, every FOLD records become one, so that the
journal stays small however long the texts are.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from metastable.encoder.measure import Measurements
from metastable.scale.journal import Journal, disk_trouble, locked, scan

FOLD = 32
USUAL = 2**17
"""Bytes of a record, at a guess: only for telling how many are damaged."""
SUMS = ("depths", "layers", "heads", "lengths", "counts")
"""What of `Measurements` depends on the texts."""


def packed(measured: Measurements) -> bytes:
    """The sums, exactly, in as few bytes as will do."""
    found = measured.to_dict()
    return zlib.compress(json.dumps({name: found[name] for name in SUMS}).encode(), level=1)


class Partial:
    """The sums of finished pieces, merged, and which pieces those are.

    They are kept in the folder where there is an identity of what they depend on; sums of another one are removed.

    empty : the sums of no text
    """

    def __init__(self, folder: Path, identity: bytes | None, empty: Measurements) -> None:
        self.folder, self.identity, self.measured = folder, identity, empty
        self.done: set[int] = set()
        self._blank = empty.to_dict()
        self._stack = ExitStack()
        self._journal: Journal | None = None
        self._next = 0

    @property
    def kept(self) -> bool:
        return self._journal is not None

    @property
    def _path(self) -> Path:
        return self.folder / "journal"

    def __enter__(self) -> Self:
        if self.identity is None:
            return self
        # Made here if need be, and removed with the folder if nothing comes to be kept.
        self._fresh = not self.folder.parent.exists()
        with ExitStack() as stack:
            stack.enter_context(locked(self.folder))
            self._read(self.identity)
            self._stack = stack.pop_all()
        return self

    def _read(self, identity: bytes) -> None:
        known = scan(self._path, identity, USUAL)
        if known.damaged or (known.foreign and known.found):
            print("metastable: some of what was kept is damaged and computed again", file=sys.stderr)
        if known.foreign and not known.found:
            print("metastable: what was kept is of other texts, settings or versions: beginning again", file=sys.stderr)
            self._path.unlink()
        try:
            self._journal = Journal(self._path, identity, USUAL)
        except OSError as error:
            raise disk_trouble(self._path, error) from error
        for index, _, payload in self._journal.payloads():
            head, _, blob = payload.partition(b"\n")
            self._take({n for first, last in json.loads(head) for n in range(first, last + 1)}, blob)
            self._next = index + 1

    def add(self, number: int, blob: bytes) -> None:
        """Take the packed sums of a piece; where they are kept, they are on the disk before they count."""
        if self._journal is not None:
            self._journal.append([(self._next, 0, _headed({number}, blob))])
            self._next += 1
        self._take({number}, blob)
        if self._journal is not None and len(self._journal.found) >= FOLD:
            self._fold()

    def _take(self, numbers: set[int], blob: bytes) -> None:
        found: dict[str, Any] = json.loads(zlib.decompress(blob))
        self.measured = self.measured.merge(Measurements.from_dict(self._blank | found))
        self.done |= numbers

    def _fold(self) -> None:
        """One record in the place of all."""
        assert self._journal is not None
        assert self.identity is not None
        new = self._path.with_name("journal.new")
        try:
            new.unlink(missing_ok=True)
            with Journal(new, self.identity, USUAL) as journal:
                journal.append([(self._next, 0, _headed(self.done, packed(self.measured)))])
            self._journal.close()
            os.replace(new, self._path)
            self._journal = Journal(self._path, self.identity, USUAL)
        except OSError as error:
            raise disk_trouble(self._path, error) from error
        self._next += 1

    def __exit__(self, *exc: object) -> None:
        if self._journal is not None:
            self._journal.close()
            if not self.done:
                self.remove(self.folder)
                if self._fresh:
                    with suppress(OSError):
                        self.folder.parent.rmdir()
        self._stack.close()

    @staticmethod
    def remove(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


def _headed(numbers: set[int], blob: bytes) -> bytes:
    """Which pieces, as ranges from first to last, and their sums."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return json.dumps(ranges).encode() + b"\n" + blob
