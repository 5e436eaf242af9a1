"""Threads of the engines that are written in numba: plain ones that end with the call.

The kernels release the interpreter lock, so plain threads are enough. They do not compete with torch's OpenMP pool, and
numba's number of threads, which is a setting of the whole process, stays as it is.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

import torch


def threads() -> int:
    """How many threads these engines use: as many as torch may use, at most one per core, at most METASTABLE_THREADS.

    torch's number is the one of the calling thread: a host that calls `torch.set_num_threads(1)` gets one thread.
    """
    given = os.environ.get("METASTABLE_THREADS", "")
    if given.isdecimal():
        most = int(given)
    else:
        most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(most, torch.get_num_threads()))


def run_all(work: Callable[..., object], arguments: Iterable[tuple]) -> list:
    """`work(*a)` for each a, on the calling thread and on threads that end with the call.

    Every thread takes the next task when it has finished one, which balances tasks of different length. After an
    exception, also Ctrl-C, no thread takes another task, and the exception is raised when all threads have ended.
    """
    tasks: SimpleQueue = SimpleQueue()
    for task in enumerate(arguments):
        tasks.put(task)
    found: list = [None] * tasks.qsize()
    errors: list[BaseException] = []

    def take() -> None:
        try:
            while not errors:
                place, a = tasks.get_nowait()
                found[place] = work(*a)
        except Empty:
            pass
        except BaseException as error:
            errors.append(error)

    ends: list[LockType] = []
    try:
        for _ in range(min(threads(), len(found)) - 1):
            ends.append(_start(take))
        take()
        _wait(ends)
    except BaseException as error:
        # Ctrl-C outside of a task of this thread, or no thread can be started.
        errors.append(error)
        _wait(ends)
    if errors:
        raise errors[0]
    return found


def _wait(ends: list[LockType]) -> None:
    """Wait for threads of `_start`. It may be called again after an interruption."""
    for end in ends:
        with end:
            pass


def _start(work: Callable[[], None]) -> LockType:
    """Run `work` on a thread; the lock that is returned can be acquired when it has ended.

    `threading.Thread.start` waits until the thread runs, which takes as long as a small problem.
    """
    end = allocate_lock()
    end.acquire()

    def run() -> None:
        try:
            work()
        finally:
            end.release()

    start_new_thread(run, ())
    return end
