"""Compilation of the engines that are written in numba, and what "auto" does until it is done.

Machine code is kept on disk, in numba's cache, so that it is compiled once for an installation. An engine that is asked
for by name is compiled at its first use, while the caller waits. "auto" does not wait. It takes the next engine that is
ready, and a process of low priority compiles the better one into the cache, where later calls find it. numba holds the
interpreter lock for long stretches, so a thread of this process would slow down the caller.

One process compiles for a cache at a time; the others wait for it.

The process may outlive its parent by some seconds: a short program would otherwise never get its kernels. If it fails
or is killed, "auto" goes on without the engine.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

TREE_WORTH = 2e10
"""(query, token) pairs in all calls that are expected, from which "auto" waits for the tree: other engines would take
longer than its compilation, twenty seconds."""

PATIENCE = 120.0
"""Seconds that a process waits for another one that compiles for the same cache."""

AGAIN = 2.0
"""Seconds after which it looks again whether the other one has ended."""

TAKEN = 75
"""Exit code of a process that found another one compiling for the same cache."""

CELLS_FROM = 4
"""The dimension from which the engine "tree" may need the kernels of "cells"."""

Task = tuple[str, int, str]
"""What can be compiled: an engine, the dimension and the dtype. One compilation of "tree", and of "cells", which stands
for the tree in high dimension, serves all of them."""


def missing(best: str, d: int, dtype: torch.dtype, pairs: float) -> frozenset[str]:
    """The engines that "auto" does without, because they are not compiled, where `best` would be the quickest.

    Their compilation is started. `pairs` is the number of (query, token) pairs in all calls that are expected.
    """
    wanted: tuple[str, ...] = (
        () if best in ("dense", "flash") else ("direct",) if best == "direct" else ("direct", "tree")
    )
    if "tree" in wanted and d >= CELLS_FROM:
        wanted = (*wanted, "cells")
    absent = [name for name in wanted if not _ready(_task(name, d, dtype))]
    found = frozenset("tree" if name == "cells" else name for name in absent)
    if best == "tree" and "tree" in found and pairs > TREE_WORTH:
        return found - {"tree"}
    for name in absent:
        _BESIDE.compile(_task(name, d, dtype))
    return found


def _task(engine: str, d: int, dtype: torch.dtype) -> Task:
    if engine in ("tree", "cells"):
        return engine, 0, ""
    from metastable.attention.direct import layout

    # Dimensions above 8 share kernels.
    width, groups = layout(d)
    return engine, width * groups, "float32" if dtype == torch.float32 else "float64"


def _ready(task: Task) -> bool:
    """Whether the kernels can be used without compiling. Kernels on disk are complete when their process has ended."""
    return not (_BESIDE.at_work(task) or _never_compiled(task[0])) and _compiled(task)


def _compiled(task: Task) -> bool:
    engine, d, dtype = task
    # numba raises a RuntimeError where it finds no folder for its cache.
    with suppress(ImportError, RuntimeError):
        if engine in ("tree", "cells"):
            return importlib.import_module(f"metastable.attention.{engine}").compiled()
        from metastable.attention import direct

        return direct.compiled(d, getattr(torch, dtype))
    return False


def _never_compiled(engine: str) -> bool:
    """Whether numba's cache holds no kernel of this engine at all, found out without half a second to import numba."""
    folder = None if "numba" in sys.modules else _known_cache(engine)
    if folder is None:
        return False
    return not any(folder.glob(f"{engine}_*/*.nbi" if os.environ.get("NUMBA_CACHE_DIR") else "*.nbi"))


def _known_cache(engine: str) -> Path | None:
    """The folder of numba's cache, None where only numba knows: where the package cannot be written."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given)
    folder = Path(__file__).parent / engine
    return folder / "__pycache__" if os.access(folder, os.W_OK) else None


def on_disk(kernel: Any) -> bool:
    """Whether numba's cache holds machine code of a kernel for the present source, numba and processor."""
    with suppress(AttributeError, OSError):
        machine = kernel.targetctx.codegen().magic_tuple()
        return any(machine in key for key in kernel._cache._cache_file._load_index())
    return False


def compile_and_wait(engine: str, d: int, dtype: torch.dtype) -> None:
    """Let a process compile an engine that is not ready, and wait for it."""
    task = _task(engine, d, dtype)
    if not _ready(task):
        _BESIDE.compile(task)
    _BESIDE.wait(task)


def wait_for(engine: str) -> None:
    """Wait while a process of ours compiles "tree" or "cells"."""
    _BESIDE.wait((engine, 0, ""))


def cells_ready() -> bool:
    """Whether "cells" is compiled. If not, its compilation is started."""
    task = _task("cells", 0, torch.float64)
    if not _ready(task):
        _BESIDE.compile(task)
        return False
    return True


def compile_into_cache(engine: str, d: int, dtype: str) -> None:
    """What the process does: compile, unless another one has done so meanwhile."""
    if _compiled((engine, d, dtype)):
        return
    if engine in ("tree", "cells"):
        importlib.import_module(f"metastable.attention.{engine}").compile_kernels()
    else:
        from metastable.attention import direct

        direct.compile_kernel(d, getattr(torch, dtype))


class _Beside:
    """Tasks that processes of low priority compile, one after the other. Every task is tried once."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._tried: set[Task] = set()
        self._todo: list[Task] = []
        self._thread: threading.Thread | None = None

    def at_work(self, task: Task) -> bool:
        return self._pid == os.getpid() and task in self._todo

    def compile(self, task: Task) -> None:
        if self._pid != os.getpid():
            # A forked process has neither the thread nor its child, and perhaps a lock that nobody will release.
            self._begin()
        with self._lock:
            if task in self._tried:
                return
            self._tried.add(task)
            self._todo.append(task)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="metastable compiles", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # No thread can be started, so nothing is compiled beside.
                    self._todo.clear()
                else:
                    self._thread = thread

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._thread = None
                    return
                task = self._todo[0]
            # What cannot be compiled here is compiled by the caller, who then gets the error.
            with suppress(OSError, RuntimeError):
                _run(task)
            with self._lock:
                self._todo.remove(task)

    def wait(self, task: Task) -> None:
        """Wait while a process compiles for this task."""
        while self.at_work(task) and (thread := self._thread) is not None and thread.is_alive():
            time.sleep(0.05)


_BESIDE = _Beside()


PROGRAM = """
import os, sys
from contextlib import ExitStack, suppress
if hasattr(os, "nice"):
    os.nice(10)
    if os.getsid(0) == os.getpid():
        with suppress(OSError), open("/proc/self/autogroup", "w") as group:
            group.write("10")
from pathlib import Path
sys.path.append({root!r})
from metastable import files
with ExitStack() as held:
    if {lock}:
        try:
            held.enter_context(files.locked(Path({folder!r})))
        except files.Taken:
            sys.exit({taken})
    from metastable.attention.compilation import compile_into_cache
    compile_into_cache(*{task!r})
"""
"""The process takes the lock of the cache before it imports torch, so one that finds the lock taken costs little. Its
priority is low from its first line on: importing torch would take a core from the caller's first answer. Linux may give
every session the same share of the cores, whatever the priority of its processes; then the priority of the session
counts, which is changed only if it is the process's own."""


def _run(task: Task) -> None:
    """Compile in a process of its own that uses neither the streams of the host nor the signals of its terminal.

    While another process compiles for the same cache, wait for it. It may compile something else, so try again. After
    `PATIENCE` compile beside it, which costs time and nothing else.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        # There is no interpreter to start; `sys.executable` is perhaps the host program.
        return
    folder = _known_cache(task[0])
    if folder is None:
        from metastable.attention.tree import cache_folder

        folder = cache_folder()
    if folder is None:
        return
    root = Path(__file__).resolve().parents[2]
    silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    ends = time.monotonic() + PATIENCE
    code = TAKEN
    # Importing numba takes half a second, in which a short program would end.
    while code == TAKEN and (_never_compiled(task[0]) or not _compiled(task)):
        lock = time.monotonic() < ends
        program = PROGRAM.format(root=str(root), folder=str(folder / "compilation"), lock=lock, taken=TAKEN, task=task)
        # The local name lives as long as this thread, also when the interpreter exits: no warning about a process that
        # still runs.
        # -P: modules of the working directory are not imported.
        child = subprocess.Popen([sys.executable, "-P", "-c", program], start_new_session=True, **silent)
        code = child.wait()
        if code == TAKEN:
            time.sleep(AGAIN)
