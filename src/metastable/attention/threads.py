"""Threads of the engines that are written in numba: plain ones that end with the call.

The kernels release the interpreter lock, so plain threads are enough. They do not compete with torch's OpenMP pool, and
numba's number of threads, which is a setting of the whole process, stays as it is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


def threads() -> int:
    """How many threads these engines use: METASTABLE_THREADS, or the cores that this process may run on."""
    given = os.environ.get("METASTABLE_THREADS", "")
    if given.isdecimal():
        return max(1, int(given))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def run_all(work: Callable[..., object], arguments: Iterable[tuple]) -> list:
    """`work(*a)` for each a, on the calling thread and on threads that end with the call.

    Every thread takes the next task when it has finished one, which balances tasks of different length.
    """
    tasks = list(enumerate(arguments))
    found: list = [None] * len(tasks)
    todo = deque(tasks)

    def take() -> None:
        while todo:
            try:
                place, a = todo.popleft()
            except IndexError:
                return
            found[place] = work(*a)

    helpers = min(threads(), len(tasks)) - 1
    if helpers < 1:
        take()
        return found
    with ThreadPoolExecutor(helpers) as pool:
        others = [pool.submit(take) for _ in range(helpers)]
        take()
        for other in others:
            other.result()
    return found
