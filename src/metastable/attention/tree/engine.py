"""`Tree`: the softmax mean of a cloud with a certified error, and the compilation of the kernels.

Every kernel is compiled at the first use and kept on disk. Numba compiles in one thread, so a second process compiles
a part at the same time and leaves its kernels in the same cache, where the first process finds them. If there is no
second process, or it is late, the first compiles these kernels itself.
"""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from .boxes import Ordered, run_all, threads
from .descent import descend, evaluate
from .expansion import BLOCK, TERMS, row_table
from .packs import Packs, no_packs, pack

# Largest number of tokens and of queries in a leaf.
TOKEN_LEAF = 16
QUERY_LEAF = 8
# Largest size of a box of queries, in standard deviations of the softmax. Measured: the cost varies little around it.
WIDEST = 1.8
# Half-width of the boxes of queries that are tried first, in standard deviations of the softmax.
COARSE = 0.35
# At most this many queries are answered by one thread.
FEW_QUERIES = 2_000
# A refit keeps the topology until the leaves have grown, on average, by this factor.
DEGRADED = 1.5
# What `Work.counts` counts: (query, token) pairs summed, (box, token) pairs expanded, boxes for which visible tokens
# were collected, boxes answered by expansion, boxes answered by summation, (box, token) pairs collected.
COUNTS = ("pairs_direct", "pairs_expanded", "boxes_opened", "boxes_expanded", "boxes_direct", "tokens_collected")


class Tokens(NamedTuple):
    """The token tree as the kernels see it.

    `points`, `log_weights` and `records` are those of the tree; `columns`, `logs` and `signs` hold the same tokens
    axis by axis and then the grids of the packs.
    """

    points: np.ndarray
    log_weights: np.ndarray
    records: np.ndarray
    depth: int
    packs: Packs
    columns: np.ndarray
    logs: np.ndarray
    signs: np.ndarray


class Work(NamedTuple):
    """Buffers of one thread. Those of length N are only used up to the number of visible tokens."""

    table: np.ndarray
    stack: np.ndarray
    ranges: np.ndarray
    z: np.ndarray  # (d, N): visible tokens relative to c, in the axes of the box
    sign: np.ndarray
    score: np.ndarray
    spread: np.ndarray
    crest: np.ndarray
    faint: np.ndarray
    place: np.ndarray
    exponents: np.ndarray
    bins: np.ndarray
    coefficients: np.ndarray
    powers: np.ndarray
    products: np.ndarray
    v: np.ndarray
    gradient: np.ndarray
    rows: np.ndarray  # (6, BLOCK): short vectors
    sums: np.ndarray  # (5, TERMS + 2)
    small: np.ndarray  # (6, d): vectors of R^d: u0, c, mean, half, turned u0, δ
    axes: np.ndarray
    ellipses: np.ndarray
    second: np.ndarray
    skipped: np.ndarray
    counts: np.ndarray  # see COUNTS
    covariances: np.ndarray  # (64, d, d): of the softmax at the last box on each level, NaN if there is none
    kept_above: np.ndarray  # (64,): visible tokens of the last box that was split on each level, inf if unknown
    widest: np.ndarray  # (1,): a box wider than this many standard deviations of the softmax is split at once
    past: np.ndarray  # (d + 2, d): axes, u0 and c of the box that filled the buffers
    past_shift: np.ndarray
    followed: np.ndarray  # (2,): how many of its tokens the next box may start from; 0 if some of them are packed
    guess: np.ndarray  # the best token of the box before


def make_work(n: int, d: int, depth: int, table: np.ndarray) -> Work:
    """Buffers for N tokens in dimension d."""
    rows, degree = len(table), int(table[:, 0].max()) if d > 1 else 24
    stride = degree + 5
    return Work(
        table=table,
        stack=np.zeros(4 * depth + 64, dtype=np.int64),
        ranges=np.zeros(((1 << depth) + 1, 2), dtype=np.int64),
        z=np.empty((d, n)),
        sign=np.empty(n),
        score=np.empty(n),
        spread=np.empty(n),
        crest=np.empty(n),
        faint=np.empty(n),
        place=np.empty(n, dtype=np.int64),
        exponents=np.empty(BLOCK),
        bins=np.zeros(2048),
        coefficients=np.zeros((rows + 1) * stride),
        powers=np.zeros((stride, BLOCK)),
        products=np.zeros((rows + 1, BLOCK)),
        v=np.zeros((d, BLOCK)),
        gradient=np.zeros((d, BLOCK)),
        rows=np.zeros((6, BLOCK)),
        sums=np.zeros((5, TERMS + 2)),
        small=np.zeros((6, d)),
        axes=np.zeros((d, d)),
        ellipses=np.zeros((d, 6)),
        second=np.zeros((d, d)),
        skipped=np.zeros(2),
        counts=np.zeros(6, dtype=np.int64),
        covariances=np.full((64, d, d), np.nan),
        kept_above=np.full(64, np.inf),
        widest=np.ones(1),
        past=np.zeros((d + 2, d)),
        past_shift=np.zeros(1),
        followed=np.zeros(2, dtype=np.int64),
        guess=np.zeros(1, dtype=np.int64),
    )


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
        self._tight = self._ordered.radius(self._ordered.depth)

    def _tokens(self, scale: float, tol: float) -> Tokens:
        """The tokens as the kernels take them, with packs for queries of this length."""
        o = self._ordered
        return Tokens(o.points, o.log_weights, o.records, o.depth, *pack(o, scale, tol))

    def refit(self, points: np.ndarray) -> None:
        """Move the tokens: fit new boxes to the same topology, or build a new tree if the boxes have grown too much."""
        points = np.asarray(points, dtype=np.float64)[self._alive]
        self._ordered.points[:] = points[self._ordered.index]
        self._ordered.fit()
        if self._ordered.radius(self._ordered.depth) > DEGRADED * self._tight:
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

        `paired` says that query i is a smooth function of token i, as in a field at the tokens. Then the queries need
        no sorting of their own. It changes the cost, not the certificate.
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
        """How many queries the smallest boxes should hold at first.

        On the unit sphere the softmax has a standard deviation of about |u|^{−1/2}. Boxes that turn out too wide are
        split further by a tree of their own.
        """
        leaf = len(self._ordered.points)
        for level in range(self._ordered.depth + 1):
            if self._ordered.radius(level) * math.sqrt(scale) <= COARSE:
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


def compile_kernels(d: int) -> None:
    """Compile every kernel, and attend to a small cloud with them."""
    with _beside(d):
        descend.compile(_types_of_descend(d))
        points = _few(d)
        Tree(points).attend(points, 0.1)


def compiled() -> bool:
    """Whether the kernels are ready, in this process or on disk: if not, the first call compiles for some seconds."""
    folder = _cache()
    return bool(descend.signatures) or (folder is not None and any(folder.glob("descent.descend-*.nbc")))


def beside(d: int) -> None:
    """What the second process compiles: the building of a tree, then what `descend` needs last."""
    # Garbage collection finds nothing among millions of nodes of syntax trees. This process does nothing else.
    gc.disable()
    Tree(_few(d))._tokens(1.0, 0.1)
    evaluate.compile(_types_of_evaluate(d))


def _few(d: int) -> np.ndarray:
    return np.eye(max(d, 2))[:, :d]


def _cache() -> Path | None:
    folder = getattr(getattr(descend, "_cache", None), "cache_path", None)
    return None if folder is None else Path(folder)


@contextmanager
def _beside(d: int) -> Iterator[None]:
    program = f"from metastable.attention.tree.engine import beside; beside({d})"
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
    """The types that `Tree.attend` calls `descend` with."""
    plane, line, whole = np.zeros((1, d)), np.zeros(1), np.zeros(1, dtype=np.int64)
    tokens = Tokens(plane, line, plane, 0, no_packs(1, d), plane, line, line)
    arguments = (tokens, plane, plane, 0, whole, 0, _work(d), 0.1, plane, line, whole, whole)
    return tuple(numba.typeof(argument) for argument in arguments)


def _types_of_evaluate(d: int) -> tuple[Any, ...]:
    """The types that `descend` calls `evaluate` with."""
    plane, line = np.zeros((1, d)), np.zeros(1)
    arguments = (plane, 0, 0, _work(d), 0, 0.1, 0, 0, 0.1, 0.1, 0.1, plane, line)
    return tuple(numba.typeof(argument) for argument in arguments)


def _work(d: int) -> Work:
    return make_work(1, d, 1, row_table(d))
