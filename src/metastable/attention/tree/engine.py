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
from collections import namedtuple
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from metastable.attention.compilation import on_disk
from metastable.attention.prepared import BoundedMean, Sums
from metastable.attention.threads import run_all, threads

from .boxes import Ordered
from .descent import descend, evaluate
from .expansion import BLOCK, TERMS, row_table
from .packs import Packs, Tokens, pack

# Largest number of tokens and of queries in a leaf.
TOKEN_LEAF = 16
QUERY_LEAF = 8
# Half-width of the boxes of queries that are tried first, in standard deviations of the softmax.
COARSE = 0.35
# At most this many queries are answered by one thread.
FEW_QUERIES = 2_000
# A refit keeps the topology until the leaves have grown, on average, by this factor.
DEGRADED = 1.5
# If the largest log-weight is farther from 0 than this, it is taken out of all log-weights.
FARTHEST = 300.0
# What `Work.counts` counts: (query, token) pairs summed, (box, token) pairs expanded, boxes for which visible tokens
# were collected, boxes answered by expansion, boxes answered by summation, (box, token) pairs collected.
COUNTS = ("pairs_direct", "pairs_expanded", "boxes_opened", "boxes_expanded", "boxes_direct", "tokens_collected")


def _buffers(n: int, d: int, depth: int, table: np.ndarray) -> dict[str, np.ndarray]:
    """The buffers of one thread for n tokens in dimension d. The kernels read them as fields of `Work`."""
    rows, degree = len(table), int(table[:, 0].max()) if d > 1 else 24
    stride = degree + 5
    whole = np.int64
    return {
        # The box of queries: its centre u0, half-widths and axes; u0 in those axes; a displacement δ = u − u0.
        "u": np.zeros(d),
        "half": np.zeros(d),
        "axes": np.zeros((d, d)),
        "turned": np.zeros(d),
        "delta": np.zeros(d),
        # The reference point c, and mean and second moments of the softmax relative to c.
        "c": np.zeros(d),
        "mean": np.zeros(d),
        "second": np.zeros((d, d)),
        # Walks over the token tree: nodes to visit, visible ranges of tokens, bounds of skipped and packed tokens.
        "stack": np.zeros(4 * depth + 64, whole),
        "ranges": np.zeros(((1 << depth) + 1, 2), whole),
        "skipped": np.zeros(2),
        "ellipses": np.zeros((d, 6)),
        # Visible tokens: y − c in the axes of the box, sign of the weight, score s, spread T, e^{s + T}, importance.
        "z": np.empty((d, n)),
        "sign": np.empty(n),
        "score": np.empty(n),
        "spread": np.empty(n),
        "crest": np.empty(n),
        "faint": np.empty(n),
        "place": np.empty(n, whole),
        "bins": np.zeros(2048),
        # The expansion: its rows (`row_table`), coefficients, and blocks of tokens or queries.
        "table": table,
        "coefficients": np.zeros((rows + 1) * stride),
        "powers": np.zeros((stride, BLOCK)),
        "products": np.zeros((rows + 1, BLOCK)),
        "v": np.zeros((d, BLOCK)),
        "gradient": np.zeros((d, BLOCK)),
        "rows": np.zeros((6, BLOCK)),
        "exponents": np.empty(BLOCK),
        "sums": np.zeros((5, TERMS + 2)),
        # By level, for the last box there: covariance of the softmax (NaN if unknown), visible tokens if it was split.
        "covariances": np.full((64, d, d), np.nan),
        "kept_above": np.full(64, np.inf),
        # The box before: axes, u0 and c; shift; how many of its tokens may be used again and whether none is packed;
        # its best token.
        "past": np.zeros((d + 2, d)),
        "past_shift": np.zeros(1),
        "followed": np.zeros(2, whole),
        "guess": np.zeros(1, whole),
        "counts": np.zeros(len(COUNTS), whole),
    }


Work: Any = namedtuple("Work", _buffers(1, 1, 0, row_table(1)))  # type: ignore[misc]


class Answers(NamedTuple):
    """What the kernels write for n queries: means (n, d), bounds (n,), log_z (n,) and log_z_bounds (n,).

    The last two are empty if log Z is not asked for.
    """

    means: np.ndarray
    bounds: np.ndarray
    log_z: np.ndarray
    log_z_bounds: np.ndarray

    @classmethod
    def empty(cls, n: int, d: int, log_z: bool) -> Answers:
        """Room for the answers to n queries."""
        m = n if log_z else 0
        return cls(np.zeros((n, d)), np.zeros(n), np.zeros(m), np.zeros(m))

    def put(self, rows: np.ndarray, found: Answers) -> None:
        """Write `found` to these rows."""
        for own, other in zip(self, found, strict=True):
            if len(own):
                own[rows] = other


class Tree:
    """A cloud of tokens, points (N, d) and log-weights (N,), ready for queries. Not all log-weights may be −inf."""

    def __init__(self, points: np.ndarray, log_weights: np.ndarray | None = None) -> None:
        log_weights = np.zeros(len(points)) if log_weights is None else log_weights
        self._alive = np.flatnonzero(log_weights > -np.inf)
        # The kernels form e^{log w} of whole nodes. Normalised weights are far inside the range of float64 and stay as
        # they are, bit for bit.
        top = float(log_weights[self._alive].max())
        self._offset = top if abs(top) > FARTHEST else 0.0
        self._log_weights = log_weights[self._alive] - self._offset
        self._table = row_table(points.shape[1])
        self._works: list[Any] = []
        self._build(points[self._alive])

    def _build(self, points: np.ndarray) -> None:
        self._ordered = Ordered(points, self._log_weights, TOKEN_LEAF)
        self._tight = self._ordered.radius(self._ordered.depth)

    def refit(self, points: np.ndarray) -> None:
        """Move the tokens: fit new boxes to the same topology, or build a new tree if the boxes have grown too much."""
        points = points[self._alive]
        self._ordered.points[:] = points[self._ordered.index]
        self._ordered.fit()
        if self._ordered.radius(self._ordered.depth) > DEGRADED * self._tight:
            self._build(points)

    def attend(self, queries: np.ndarray, tol: float, paired: bool = False) -> BoundedMean:
        """The softmax mean at every query (n, d), each within 0 < tol < 1.

        `paired` says that query i is a smooth function of token i, as in a field at the tokens. Then the queries need
        no sorting of their own. It changes the cost, not the certificate.
        """
        found = self._answers(queries, tol, paired, log_z=False)
        counts = np.sum([work.counts for work in self._works], axis=0).tolist()
        mean, bound = torch.from_numpy(found.means), torch.from_numpy(found.bounds)
        return BoundedMean(mean, bound, dict(zip(COUNTS, counts, strict=True)))

    def sums(self, queries: np.ndarray, tol: float, paired: bool = False) -> Sums:
        """The softmax mean and log Z at every query (n, d), each within 0 < tol < 1."""
        found = self._answers(queries, tol, paired, log_z=True)
        log_z = found.log_z + self._offset
        return Sums(*(torch.from_numpy(a) for a in (found.means, log_z, found.bounds, found.log_z_bounds)))

    def _answers(self, queries: np.ndarray, tol: float, paired: bool, log_z: bool) -> Answers:
        n, d = queries.shape
        scale = float(np.sqrt(np.square(queries).sum(axis=1).max()))
        tokens = pack(self._ordered, scale, tol)
        while len(self._works) < (threads() if n > FEW_QUERIES else 1):
            self._works.append(Work(**_buffers(len(self._alive), d, self._ordered.depth, self._table)))
        for work in self._works:
            work.counts[:] = 0
        answers = Answers.empty(n, d, log_z)
        left = np.arange(n)
        if paired and n == len(self._ordered.index):
            leaf = self._box_of_queries(scale)
            order = Ordered(queries, np.zeros(n), leaf, like=self._ordered)
            left = _answer(tokens, order, tol, self._works, answers, last=leaf == QUERY_LEAF)
        if len(left):
            some = Answers.empty(len(left), d, log_z)
            order = Ordered(queries[left], np.zeros(len(left)), QUERY_LEAF)
            _answer(tokens, order, tol, self._works, some, last=True)
            answers.put(left, some)
        return answers

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


def _answer(tokens: Tokens, order: Ordered, tol: float, works: list[Any], answers: Answers, last: bool) -> np.ndarray:
    """Answer the queries of a tree, all of them if this is the `last` tree; returns which are left (their numbers)."""
    n, d = order.points.shape
    found = Answers.empty(n, d, log_z=len(answers.log_z) > 0)
    end = 62 if last else order.depth

    def run(nodes: np.ndarray, stop: int) -> np.ndarray:
        work = works.pop()
        later = np.zeros(1 << min(stop, order.depth), dtype=np.int64)
        stack = np.zeros(128 + len(nodes), dtype=np.int64)
        left = descend(tokens, order.points, order.records, order.depth, nodes, stop, work, tol, found, stack, later)
        works.append(work)
        return later[:left]

    top = min(4, order.depth)
    if n > FEW_QUERIES and top:
        nodes = np.concatenate(run_all(run, [(np.array([i]), min(8, end)) for i in range(1 << top, 2 << top)]))
        chunks = np.array_split(nodes, min(64, len(nodes) or 1))
        nodes = np.concatenate(run_all(run, [(chunk, end) for chunk in chunks]))
    else:
        nodes = run(np.array([1]), end)
    answers.put(order.index, found)
    levels = np.frexp(nodes)[1].astype(np.int64) - 1
    firsts = ((nodes - (1 << levels)) * n) >> levels
    ends = ((nodes + 1 - (1 << levels)) * n) >> levels
    return np.concatenate([order.index[i:j] for i, j in zip(firsts, ends, strict=True)] or [np.arange(0)])


def compiled() -> bool:
    """Whether the kernels are ready, in this process or on disk: if not, the first call compiles for some seconds."""
    return bool(descend.signatures) or on_disk(descend)


def cache_folder() -> Path | None:
    """Where numba keeps the kernels, None if nowhere."""
    folder = getattr(getattr(descend, "_cache", None), "cache_path", None)
    return None if folder is None else Path(folder)


def compile_kernels() -> None:
    """Compile every kernel: `descend` first, while a second process compiles the building of a tree."""
    program = "from metastable.attention.tree.engine import compile_beside; compile_beside()"
    child = None
    if cache_folder() is not None:
        with suppress(OSError):
            silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            child = subprocess.Popen([sys.executable, "-P", "-c", program], **silent)
    try:
        plane, line, whole = np.zeros((1, 1)), np.zeros(1), np.zeros(1, dtype=np.int64)
        tokens = Tokens(plane, line, plane, 0, Packs(0.1, whole, plane, whole), plane, line, line)
        answers = Answers.empty(1, 1, log_z=True)
        _compile(descend, tokens, plane, plane, 0, whole, 0, _least_work(), 0.1, answers, whole, whole)
        Tree(np.eye(2)).attend(np.eye(2), 0.1)
    finally:
        if child is not None:
            child.kill()
            child.wait()


def compile_beside() -> None:
    """What the second process compiles: the building of a tree, then `evaluate`, which `descend` needs last."""
    # Garbage collection finds nothing among millions of nodes of syntax trees. This process does nothing else.
    gc.disable()
    pack(Ordered(np.eye(2), np.zeros(2), TOKEN_LEAF), 1.0, 0.1)
    plane, answers = np.zeros((1, 1)), Answers.empty(1, 1, log_z=True)
    _compile(evaluate, plane, 0, 0, _least_work(), 0, 0.1, 0.1, 0, 0, 0.1, 0.1, 0.1, answers)


def _least_work() -> Any:
    return Work(**_buffers(1, 1, 1, row_table(1)))


def _compile(kernel: Any, *arguments: Any) -> None:
    """Compile a kernel for the types of these arguments. The types do not depend on the dimension."""
    kernel.compile(tuple(numba.typeof(argument) for argument in arguments))
