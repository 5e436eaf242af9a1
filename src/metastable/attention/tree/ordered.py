"""`Ordered`: points sorted into a balanced tree, with their boxes. Both the tokens and the queries use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .boxes import fit_below, sort_below

# With fewer points, one thread is faster than several.
SERIAL = 20_000


def threads() -> int:
    """How many threads the engine uses: METASTABLE_THREADS, or the cores that this process may run on."""
    given = os.environ.get("METASTABLE_THREADS", "")
    if given.isdecimal():
        return max(1, int(given))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def run_all(work: Callable[..., object], arguments: Iterable[tuple]) -> list:
    """`work(*a)` for each a, on threads that end with the call.

    The kernels release the interpreter lock, so plain threads are enough. They do not compete with the OpenMP threads
    of torch, and the queue of the executor balances uneven tasks.
    """
    arguments = list(arguments)
    if len(arguments) < 2 or threads() < 2:
        return [work(*a) for a in arguments]
    with ThreadPoolExecutor(threads()) as pool:
        return list(pool.map(lambda a: work(*a), arguments))


class Ordered:
    """Points (n, d) in tree order with a record for every node (see `boxes`).

    `points` and `log_weights` are sorted copies, `index` says where each row came from, `depth` is the level of
    the leaves, which hold at most `leaf` points each. With `like` the order of another tree over as many points is
    taken over and only the levels below its leaves are sorted.
    """

    def __init__(self, points: np.ndarray, log_weights: np.ndarray, leaf: int, like: Ordered | None = None) -> None:
        n, d = points.shape
        self.depth = 0
        while n > leaf << self.depth:
            self.depth += 1
        self._split = min(4, self.depth) if n > SERIAL else 0
        if like is None:
            self.points, self.index = np.array(points, dtype=np.float64, order="C"), np.arange(n)
            self._sort()
        else:
            self.points, self.index = np.ascontiguousarray(points[like.index]), like.index.copy()
            self._sort_subtrees(like.depth)
        self.log_weights = np.ascontiguousarray(log_weights[self.index], dtype=np.float64)
        nodes = 2 << self.depth
        self.records = np.zeros((nodes, d * d + 3 * d + 3))
        self._means, self._scatters = np.zeros((nodes, d)), np.zeros((nodes, d, d))
        self.fit()

    def _sort(self) -> None:
        """Sort from the root; the first levels by one thread, the subtrees by all."""
        for level in range(self._split):
            nodes = range(1 << level, 2 << level)
            run_all(sort_below, [(self.points, self.index, i, level, level, level + 1) for i in nodes])
        self._sort_subtrees(self._split)

    def _sort_subtrees(self, from_level: int) -> None:
        tops = range(1 << self._split, 2 << self._split)
        run_all(sort_below, [(self.points, self.index, i, self._split, from_level, self.depth) for i in tops])

    def fit(self) -> None:
        """Boxes, weights and radii of every node, from the leaves up."""
        split = self._split
        common = (self.points, self.log_weights, self.records, self._means, self._scatters)
        d = self.points.shape[1]

        def fit(top: int, level: int, from_level: int) -> None:
            fit_below(*common, top, level, from_level, self.depth, np.empty((2 * d + 2, d)))

        run_all(fit, [(i, split, self.depth) for i in range(1 << split, 2 << split)])
        if split:
            fit(1, 0, split - 1)

    @property
    def round(self) -> bool:
        """Whether all points lie on the unit sphere, up to rounding."""
        return bool(np.abs(np.einsum("ij,ij->i", self.points, self.points) - 1.0).max() < 1e-14)

    def leaf_radius(self) -> float:
        """Mean radius of the leaves: how tight the boxes are."""
        return float(self.records[1 << self.depth :, -3 - self.points.shape[1]].mean())

    def radii(self) -> list[float]:
        """Mean radius of the nodes of each level, from the root on."""
        at = -3 - self.points.shape[1]
        return [float(self.records[1 << level : 2 << level, at].mean()) for level in range(self.depth + 1)]
