"""Checkpoints of a run in progress: a folder `NAME.zarr.part` that a killed process leaves behind.

    lock            held by the process at work
    identity.json   what is being computed; a resumed run must ask for exactly the same
    frame-00012.npy one saved frame
    state.npz       the state of the integrator after the last checkpoint, written after the frames it counts on

Every file is written completely or not at all, so at any moment the folder holds one consistent state. The state
includes the velocity and the step size that the integrator carries over. A resumed run therefore repeats the same
floating-point operations and ends bit for bit as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import crc32

import numpy as np

from metastable import files
from metastable.errors import BadInput


@contextlib.contextmanager
def open_checkpoint(target: Path, identity: dict[str, Any], replace: bool = False) -> Iterator[Checkpoint]:
    """The checkpoint of the run that will be saved at `target` (*.zarr), locked against other processes.

    With `replace` a folder that holds another run is emptied; without, it is refused.
    """
    folder = folder_of(target)
    known, mine = folder / "identity.json", plain(identity)
    with files.locked(folder):
        for leftover in folder.glob(".*.tmp*"):
            leftover.unlink()
        if known.exists():
            found = files.read_json(known, "the checkpoint")
            if not replace:
                refuse_another(folder, found, mine)
            elif found != mine:
                for old in folder.iterdir():
                    if old.name != "lock":
                        old.unlink()
        if not known.exists():
            files.write_json(known, mine)
        yield Checkpoint(folder)


class Checkpoint:
    """The files of a checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_frame(self, index: int, frame: np.ndarray) -> None:
        files.write(self._frame(index), lambda path: np.save(path, frame))

    def save_state(self, state: dict[str, Any]) -> None:
        files.write(self.folder / "state.npz", lambda path: np.savez(path, **state))

    def load(self) -> tuple[dict[str, np.ndarray], list[np.ndarray]] | None:
        """The last state and the frames saved before it; None when nothing was saved yet."""
        if not (self.folder / "state.npz").exists():
            return None
        try:
            with np.load(self.folder / "state.npz", allow_pickle=False) as stored:
                state = dict(stored)
            frames = [np.load(self._frame(i), allow_pickle=False) for i in range(int(state["counts"][0]))]
            if [crc32(frame.tobytes()) for frame in frames] != state["checksums"].tolist():
                raise ValueError("a frame does not match its checksum")
            return state, frames
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise BadInput(f"the checkpoint {self.folder} is damaged ({error}); delete it to start again") from error

    def _frame(self, index: int) -> Path:
        return self.folder / f"frame-{index:05d}.npy"

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def folder_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def recorded_identity(target: Path) -> dict[str, Any]:
    """The identity of the run whose checkpoint is beside `target`, empty if there is none."""
    known = folder_of(target) / "identity.json"
    return files.read_json(known, "the checkpoint") if known.exists() else {}


def discard(target: Path, identity: dict[str, Any]) -> None:
    """Remove the checkpoint of a run that is finished, if one was left behind."""
    known = folder_of(target) / "identity.json"
    if known.exists() and files.read_json(known, "the checkpoint") == plain(identity):
        shutil.rmtree(folder_of(target))


def plain(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity as it is read from a file."""
    found: dict[str, Any] = json.loads(files.to_json(identity))
    return found


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
