"""Checkpoints of a run in progress: a folder `NAME.zarr.part` that a killed process leaves behind.

    lock            held by the process at work
    identity.json   what is being computed; a resumed run must ask for exactly the same
    frame-00012.npy one saved frame
    state.npz       the state of the integrator after the last checkpoint, written after the frames it counts on

Every file is written under a temporary name, flushed to the disk and renamed, so at any moment the folder holds
one consistent state. The state includes the velocity and the step size that the integrator carries over, hence
a resumed run repeats the same floating-point operations and ends bit for bit as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import crc32

import numpy as np

from metastable.errors import BadInput
from metastable.run.storage import hold, write_text


class Checkpoint:
    """The checkpoint folder of the run that will be saved at `target` (*.zarr), locked against other processes.

    With `replace` a folder that holds another run is emptied; without, it is refused.
    """

    def __init__(self, target: Path, identity: dict[str, Any], replace: bool = False) -> None:
        self.folder = target.with_name(target.name + ".part")
        self.identity = json.loads(json.dumps(identity))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot make {self.folder}: {error.strerror}; choose another place") from error
        busy = f"another process is computing the run in {self.folder}; wait for it or end it"
        self._handle = hold(self.folder / "lock", busy)
        try:
            self._open(replace)
        except BadInput:
            self.__exit__()
            raise

    def _open(self, replace: bool) -> None:
        for leftover in self.folder.glob(".*.tmp*"):
            leftover.unlink()
        known = self.folder / "identity.json"
        if known.exists():
            found = self._read(known)
            if replace and found != self.identity:
                for old in self.folder.iterdir():
                    if old.name != "lock":
                        old.unlink()
            else:
                refuse_another(self.folder, found, self.identity)
        if not known.exists():
            write_text(known, json.dumps(self.identity, indent=1))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise BadInput(f"the checkpoint {self.folder} is damaged ({error}); delete it to start again") from error

    def save_frame(self, index: int, frame: np.ndarray) -> None:
        self._write(f"frame-{index:05d}.npy", lambda path: np.save(path, frame))

    def save_state(self, state: dict[str, Any]) -> None:
        self._write("state.npz", lambda path: np.savez(path, **state))

    def load(self) -> tuple[dict[str, np.ndarray], list[np.ndarray]] | None:
        """The last state and the frames saved before it; None when nothing was saved yet."""
        if not (self.folder / "state.npz").exists():
            return None
        try:
            with np.load(self.folder / "state.npz", allow_pickle=False) as stored:
                state = dict(stored)
            count = int(state["counts"][0])
            names = [self.folder / f"frame-{i:05d}.npy" for i in range(count)]
            frames = [np.load(name, allow_pickle=False) for name in names]
            if [crc32(frame.tobytes()) for frame in frames] != state["checksums"].tolist():
                raise ValueError("a frame does not match its checksum")
            return state, frames
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise BadInput(f"the checkpoint {self.folder} is damaged ({error}); delete it to start again") from error

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.close()

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _write(self, name: str, write: Any) -> None:
        temporary = self.folder / f".{name}.tmp{Path(name).suffix}"
        write(temporary)
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, self.folder / name)


def discard(target: Path, identity: dict[str, Any]) -> None:
    """Remove the checkpoint of a run that is finished, if one was left behind."""
    folder = target.with_name(target.name + ".part")
    known = folder / "identity.json"
    if known.exists() and json.loads(known.read_text(encoding="utf-8")) == json.loads(json.dumps(identity)):
        shutil.rmtree(folder)


def refuse_another(where: Path, found: dict[str, Any], mine: dict[str, Any]) -> None:
    """BadInput if the run at `where` is not the one asked for, naming the first thing that differs."""
    for key in {**found, **mine}:
        if found.get(key) != mine.get(key):
            raise BadInput(
                f"{where} holds another run: {key} is {_brief(found.get(key))} there and {_brief(mine.get(key))} "
                "here; choose another name, delete it or overwrite it"
            )


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
