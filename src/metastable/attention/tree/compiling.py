"""The first use of the tree engine: every kernel is compiled once and kept on disk.

Numba compiles in one thread. A second process therefore compiles a part of the kernels at the same time and leaves them
in the same cache, where the first process finds them. If the second process cannot be started, or is late, the first
process compiles these kernels itself.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np

from .descent import descend
from .engine import Tree
from .expansion import row_table
from .leaf import _answer
from .packs import no_packs
from .workspace import Tokens, Work, make_work


def compiling(d: int) -> None:
    """Compile every kernel, and answer a small cloud with them as a check."""
    with _beside(d):
        descend.compile(_types_of_descend(d))
        points = _few(d)
        Tree(points).attend(points, 0.1)


def compiled() -> bool:
    """Whether the kernels are ready, in this process or on disk. If not, the first call compiles for about 20 s."""
    folder = _cache()
    return bool(descend.signatures) or (folder is not None and any(folder.glob("descent.descend-*.nbc")))


def beside(d: int) -> None:
    """The part of the second process: the kernels that build a tree, then those that `descend` needs last."""
    # The collector finds nothing among millions of nodes of syntax trees. This process does nothing else.
    gc.disable()
    Tree(_few(d))._tokens(1.0, 0.1)
    _answer.compile(_types_of_answer(d))


def _few(d: int) -> np.ndarray:
    return np.eye(max(d, 2))[:, :d]


def _cache() -> Path | None:
    folder = getattr(getattr(descend, "_cache", None), "cache_path", None)
    return None if folder is None else Path(folder)


@contextmanager
def _beside(d: int) -> Iterator[None]:
    program = f"from metastable.attention.tree.compiling import beside; beside({d})"
    child = None
    if _cache() is not None:
        try:
            silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            child = subprocess.Popen([sys.executable, "-c", program], **silent)
        except OSError:
            pass
    try:
        yield
    finally:
        if child is not None:
            child.kill()
            child.wait()


def _types_of_descend(d: int) -> tuple[Any, ...]:
    """The types that `engine` calls `descend` with."""
    plane, line, whole = np.zeros((1, d)), np.zeros(1), np.zeros(1, dtype=np.int64)
    tokens = Tokens(plane, line, plane, 0, plane, line, line, no_packs(1, d))
    arguments = (tokens, plane, plane, 0, whole, 0, _work(d), 0.1, plane, line, whole, whole)
    return tuple(numba.typeof(argument) for argument in arguments)


def _types_of_answer(d: int) -> tuple[Any, ...]:
    """The types that `leaf.attend_box` calls `_answer` with."""
    plane, line = np.zeros((1, d)), np.zeros(1)
    arguments = (plane, 0, 0, _work(d), 0, 0.1, 0, 0, 0.1, 0.1, 0, 0.1, plane, line)
    return tuple(numba.typeof(argument) for argument in arguments)


def _work(d: int) -> Work:
    return make_work(1, d, 1, row_table(d))
