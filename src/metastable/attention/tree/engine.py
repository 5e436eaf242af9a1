"""`Tree`: the softmax mean of a cloud with a certified error. The proof is in the docstring of the package."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .descent import descend
from .expansion import BLOCK, row_table
from .ordered import Ordered, run_all, threads
from .packs import MOST, Packs, fill, mark_above, no_packs, select
from .workspace import COUNTS, Tokens, Work, make_work

TOKEN_LEAF = 16
QUERY_LEAF = 8
# Largest size of a box of queries, in standard deviations of the softmax. Measured: the cost is flat around it.
WIDEST = 1.8
# Half-width of the boxes of queries that are tried first, in standard deviations of the softmax.
COARSE = 0.35
# Up to this many queries are answered by one thread.
FEW_QUERIES = 2_000
# A refit keeps the topology until the leaves have grown, on average, by this factor.
DEGRADED = 1.5

# Share of the tolerance that one pack is designed for; what it really costs is bounded for each box of queries.
_QUOTA = 0.003


class TreeResult(NamedTuple):
    """mean (n, d), bound (n,) ≥ |mean − exact|, and counts of the work done."""

    mean: np.ndarray
    bound: np.ndarray
    work: dict[str, int]


class Tree:
    """A cloud of tokens, points (N, d) and log-weights (N,), ready for queries."""

    def __init__(self, points: np.ndarray, log_weights: np.ndarray | None = None) -> None:
        points = np.asarray(points, dtype=np.float64)
        if log_weights is None:
            log_weights = np.zeros(len(points))
        log_weights = np.asarray(log_weights, dtype=np.float64)
        self._alive = np.flatnonzero(log_weights > -np.inf)
        if not len(self._alive):
            raise ValueError("every log-weight is -inf: there is no token to attend to")
        self._log_weights = log_weights[self._alive]
        self._table = row_table(points.shape[1])
        self._works: list[Work] = []
        self._build(points[self._alive])

    def _build(self, points: np.ndarray) -> None:
        self._ordered = Ordered(points, self._log_weights, TOKEN_LEAF)
        self._tight = self._ordered.leaf_radius()

    def _tokens(self, scale: float, tol: float) -> Tokens:
        """The tokens as the kernels want them, with packs for queries of this length."""
        o = self._ordered
        packs, columns, logs, signs = pack(o, scale, tol)
        return Tokens(o.points, o.log_weights, o.records, o.depth, columns, logs, signs, packs)

    def refit(self, points: np.ndarray) -> None:
        """The same tokens, moved: same topology with new boxes, or a new tree once the boxes have grown too much."""
        points = np.asarray(points, dtype=np.float64)[self._alive]
        self._ordered.points[:] = points[self._ordered.index]
        self._ordered.fit()
        if self._ordered.leaf_radius() > DEGRADED * self._tight:
            self._build(points)

    def _buffers(self, how_many: int) -> list[Work]:
        n, d = self._ordered.points.shape
        while len(self._works) < how_many:
            self._works.append(make_work(n, d, self._ordered.depth, self._table))
        for work in self._works:
            work.counts[:] = 0
        return self._works[:how_many]

    def attend(self, queries: np.ndarray, tol: float, paired: bool = False) -> TreeResult:
        """The softmax mean at every query (n, d), each within tol.

        `paired` says that query i is a smooth function of token i, as in a field at the tokens: queries then need no
        sorting of their own. It changes the cost, not the certificate.
        """
        if not 0.0 < tol < 1.0:
            raise ValueError(f"tol is {tol}: it must lie between 0 and 1")
        queries = np.asarray(queries, dtype=np.float64)
        n, d = queries.shape
        if not n:
            return TreeResult(np.zeros((0, d)), np.zeros(0), {})
        scale = float(np.sqrt(np.square(queries).sum(axis=1).max()))
        tokens = self._tokens(scale, tol)
        works = self._buffers(threads() if n > FEW_QUERIES else 1)
        for work in works:
            work.widest[0] = WIDEST
        mean, bound = np.empty((n, d)), np.empty(n)
        left = np.arange(n)
        if paired and n == len(self._ordered.index):
            leaf = self._box_of_queries(scale)
            order = Ordered(queries, np.zeros(n), leaf, like=self._ordered)
            left = _answer(tokens, order, tol, works, mean, bound, last=leaf == QUERY_LEAF)
        if len(left):
            some, edges = np.empty((len(left), d)), np.empty(len(left))
            _answer(tokens, Ordered(queries[left], np.zeros(len(left)), QUERY_LEAF), tol, works, some, edges, last=True)
            mean[left], bound[left] = some, edges
        counts = np.sum([work.counts for work in self._works], axis=0)
        return TreeResult(mean, bound, {name: int(count) for name, count in zip(COUNTS, counts, strict=True)})

    def _box_of_queries(self, scale: float) -> int:
        """How many queries the smallest boxes should hold at first: as many as fit half the width that is never split.

        On the unit sphere the softmax has a standard deviation of about |u|^{−1/2}; boxes that turn out too wide are
        cut further by a tree of their own.
        """
        leaf = len(self._ordered.points)
        for radius in self._ordered.radii():
            if radius * math.sqrt(scale) <= COARSE:
                break
            leaf = (leaf + 1) // 2
        return max(leaf, QUERY_LEAF)


def _answer(
    tokens: Tokens, order: Ordered, tol: float, works: list[Work], mean: np.ndarray, bound: np.ndarray, last: bool
) -> np.ndarray:
    """Answer the queries of a tree, all of them if this is the `last` tree; returns which are left (their numbers)."""
    n, d = order.points.shape
    means, bounds = np.zeros((n, d)), np.zeros(n)
    end = 62 if last else order.depth

    def run(nodes: np.ndarray, stop: int) -> np.ndarray:
        work = works.pop()
        later = np.zeros(1 << min(stop, order.depth), dtype=np.int64)
        stack = np.zeros(128 + len(nodes), dtype=np.int64)
        left = descend(
            tokens, order.points, order.records, order.depth, nodes, stop, work, tol, means, bounds, stack, later
        )
        works.append(work)
        return later[:left]

    top = min(4, order.depth)
    if n > FEW_QUERIES and top:
        nodes = np.concatenate(run_all(run, [(np.array([i]), min(8, end)) for i in range(1 << top, 2 << top)]))
        chunks = np.array_split(nodes, min(64, len(nodes) or 1))
        nodes = np.concatenate(run_all(run, [(chunk, end) for chunk in chunks]))
    else:
        nodes = run(np.array([1]), end)
    mean[order.index], bound[order.index] = means, bounds
    levels = np.frexp(nodes)[1].astype(np.int64) - 1
    firsts = ((nodes - (1 << levels)) * n) >> levels
    ends = ((nodes + 1 - (1 << levels)) * n) >> levels
    return np.concatenate([order.index[i:j] for i, j in zip(firsts, ends, strict=True)] or [np.arange(0)])


def pack(ordered: Ordered, scale: float, tol: float) -> tuple[Packs, np.ndarray, np.ndarray, np.ndarray]:
    """Packs for queries of length `scale`, and columns, log-weights and signs of the tokens followed by the grids.

    Only on the unit circle and sphere: in higher dimension a grid has as many points as a node has tokens.
    """
    n, d = ordered.points.shape
    packs = no_packs(len(ordered.records), d)
    if d in (2, 3) and scale > 0.0 and ordered.round:
        packs = _select(ordered, scale, tol)
    size = n + int(packs.first[-1])
    columns, logs, signs = np.empty((d, size)), np.empty(size), np.ones(size)
    columns[:, :n], logs[:n] = ordered.points.T, ordered.log_weights
    nodes = np.flatnonzero(packs.slot >= 0)
    if len(nodes):
        levels = np.frexp(nodes)[1].astype(np.int64) - 1

        def work(part: np.ndarray) -> None:
            buffers = np.zeros((3, MOST + 4, BLOCK)), np.zeros((MOST, MOST + 4))
            tree = (ordered.points, ordered.log_weights, ordered.records)
            fill(*tree, nodes[part], levels[part], packs, n, columns, logs, signs, *buffers)

        run_all(work, [(part,) for part in np.array_split(np.arange(len(nodes)), min(16, len(nodes)))])
    return packs, columns, logs, signs


def _select(ordered: Ordered, scale: float, tol: float) -> Packs:
    n, d = ordered.points.shape
    nodes = len(ordered.records)
    packs = Packs(
        scale, np.full(nodes, -1), np.zeros((n // 4 + 2, d * d + 2 * d - 2)), np.zeros(n // 4 + 3, dtype=np.int64)
    )
    stack = np.zeros(4 * ordered.depth + 64, dtype=np.int64)
    count = select(n, ordered.records, ordered.depth, d, scale, _QUOTA * tol, *packs[1:], stack)
    mark_above(packs.slot, ordered.depth)
    return Packs(scale, packs.slot, packs.shape[:count].copy(), packs.first[: count + 1].copy())
