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
            self._compare(json.loads(known.read_text(encoding="utf-8")))
        else:
            write_text(known, json.dumps(identity, indent=1))

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

    def load_state(self) -> dict[str, np.ndarray] | None:
        path = self.folder / "state.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def load_frames(self, count: int) -> list[np.ndarray]:
        return [np.load(self.folder / f"frame-{i:05d}.npy", allow_pickle=False) for i in range(count)]

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
