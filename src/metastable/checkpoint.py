"""Checkpoints of a run in progress: a folder `NAME.zarr.part` that a killed process leaves behind.

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

import numpy as np

from metastable.errors import BadInput
from metastable.store import write_text


class Checkpoint:
    """The checkpoint folder of the run that will be saved at `target` (*.zarr)."""

    def __init__(self, target: Path, identity: dict[str, Any]) -> None:
        self.folder = target.with_name(target.name + ".part")
        self.identity = identity
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*.tmp*"):
            leftover.unlink()
        known = self.folder / "identity.json"
        if known.exists():
            self._compare(self._read(known))
        else:
            write_text(known, json.dumps(identity, indent=1))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise BadInput(f"the checkpoint {self.folder} is damaged ({error}); delete it to start again") from error

    def _compare(self, found: dict[str, Any]) -> None:
        mine = json.loads(json.dumps(self.identity))
        for key in {**found, **mine}:
            if found.get(key) != mine.get(key):
                raise BadInput(
                    f"{self.folder} holds another run: {key} is {_brief(found.get(key))} there and "
                    f"{_brief(mine.get(key))} here; choose another name or delete that folder"
                )

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
            return state, [np.load(name, allow_pickle=False) for name in names]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise BadInput(f"the checkpoint {self.folder} is damaged ({error}); delete it to start again") from error

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _write(self, name: str, write: Any) -> None:
        temporary = self.folder / f".{name}.tmp{Path(name).suffix}"
        write(temporary)
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, self.folder / name)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
