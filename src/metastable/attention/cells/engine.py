"""`Cells`: the softmax mean of a cloud in any dimension, with a certified error."""

from __future__ import annotations

import itertools
import math
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import torch

from metastable.attention.compilation import on_disk
from metastable.attention.direct import aligned
from metastable.attention.prepared import BoundedMean, Sums
from metastable.attention.threads import run_all, threads

from .grouping import GROUPS, LEAF, LEAST, MEANS, SAMPLED, arrange, covariance, measure, nearest, split, spread_out
from .walk import DEPTH, NOTHING, TILE, WIDTH, answers_of

# What `work` counts: (query, token) pairs in leaves, (query, node) pairs that were expanded.
COUNTS = ("pairs_direct", "nodes_expanded")
# Shares of the tolerance: what is left out, expanded nodes. The rest is for rounding in float32.
LEFT_OUT, EXPANDED = 0.4, 0.2
# Up to this relative error of a weight by rounding, the lower bounds of Z hold.
LARGEST_ROUNDING = 0.25
# One tile in so many is tried in float32 first.
PILOT = 16
# Tokens and queries of the sample that tells whether a cloud is clustered, and the largest leaf there.
SURVEYED, SURVEY_LEAF = (2048, 128), 64
# Nodes of at least so many tokens a dimension get second moments; expanding a smaller one saves little.
MANY = 2
# Size in float32 of the largest leaf, which should stay in the first cache.
LEAF_BYTES = 36 * 2**10


def _buffers(d: int, real: type) -> dict[str, np.ndarray]:
    padded = -(-d // WIDTH) * WIDTH
    return {
        "lists": np.zeros((DEPTH + 2, TILE), np.int64),
        "stack": np.zeros((DEPTH + 2, 2), np.int64),
        "columns": np.zeros((d, TILE)),
        "squares": np.zeros(TILE),
        "floor": np.zeros(TILE),
        "heads": np.zeros(TILE),
        "spreads": np.zeros(TILE),
        "highest": np.zeros(TILE),
        "running": np.zeros((TILE, d + 2)),
        "shifted": np.zeros(d),
        "asked": aligned((TILE, padded), np.dtype(real)),
        "scores": aligned((LEAF,), np.dtype(real)),
        "sums": aligned((padded + 1,), np.dtype(real)),
    }


class Limits(NamedTuple):
    """What may be left out, relative to Z; errors that an expanded node may add to the mean and, relatively, to Z.

    far is the largest distance of two tokens, and rounding that of `rounding`.
    """

    theta: float
    kappa: float
    kappa_z: float
    far: float
    rounding: float


Work: Any = namedtuple("Work", _buffers(1, np.float64))  # type: ignore[misc]


class Cells:
    """A cloud of tokens, points (N, d) and log-weights (N,), ready for queries. Not all log-weights may be −inf."""

    def __init__(self, points: np.ndarray, log_weights: np.ndarray | None = None, leaf: int = LEAF) -> None:
        self._leaf = leaf
        log_weights = np.zeros(len(points)) if log_weights is None else log_weights
        self._alive = np.flatnonzero(log_weights > -np.inf)
        # Total weight 1: a token may be left out where e^{score} is below a share of Z.
        top = float(log_weights[self._alive].max())
        self._offset = top + math.log(np.exp(log_weights[self._alive] - top).sum())
        self._given = log_weights[self._alive] - self._offset
        self.refit(points)

    def refit(self, points: np.ndarray) -> None:
        """Move the tokens."""
        self._points, self._index, self._nodes = grouped(points[self._alive], self._leaf)
        d = self._points.shape[1]
        self._log_weights = self._given[self._index]
        count = len(self._nodes)
        self._centres, self._sizes = np.zeros((count, d)), np.zeros((count, 8))
        measure(self._points, self._log_weights, self._nodes, count, self._centres, self._sizes, np.zeros(d))
        self._leaves = np.flatnonzero(self._nodes[:, 2] < 0)
        self._norm = math.sqrt(np.square(self._points).sum(axis=1).max())
        self._arranged: dict[bool, tuple] = {}

    def _keys(self, single: bool) -> tuple:
        if single not in self._arranged:
            d = self._points.shape[1]
            rows = -(-d // WIDTH) * WIDTH + 1
            leaves = self._nodes[self._leaves]
            sizes = rows * (-(-(leaves[:, 1] - leaves[:, 0]) // 16) * 16)
            starts, leaf_of = np.cumsum(sizes) - sizes, np.zeros(len(self._nodes), np.int64)
            leaf_of[self._leaves] = np.arange(len(leaves))
            keys = aligned((int(sizes.sum()),), np.dtype(np.float32 if single else np.float64))
            tops = np.zeros(len(leaves))
            arrange(self._points, self._log_weights, self._nodes, self._leaves, self._centres, rows, starts, keys, tops)
            self._arranged[single] = keys, rows, starts, leaf_of, tops
        return self._arranged[single]

    def attend(self, queries: np.ndarray, tol: float, paired: bool = False) -> BoundedMean:
        """The softmax mean at every query (n, d), each within 0 < tol < 1."""
        means, bounds, _, _, counts = self._answers(queries, tol, paired, log_z=False)
        return BoundedMean(torch.from_numpy(means), torch.from_numpy(bounds), dict(zip(COUNTS, counts, strict=True)))

    def sums(self, queries: np.ndarray, tol: float, paired: bool = False) -> Sums:
        """The softmax mean and log Z at every query (n, d), each within 0 < tol < 1."""
        means, bounds, logs, log_bounds, _ = self._answers(queries, tol, paired, log_z=True)
        return Sums(*(torch.from_numpy(a) for a in (means, logs + self._offset, bounds, log_bounds)))

    def _answers(self, queries: np.ndarray, tol: float, paired: bool, log_z: bool) -> tuple:
        order = self._order(queries, paired)
        asked = np.ascontiguousarray(queries[order])
        n, d = asked.shape
        means, bounds, logs, log_bounds = np.zeros((n, d)), np.full(n, np.inf), np.zeros(n), np.full(n, np.inf)
        # The term of one token is a lower bound of Z.
        least = np.full(n, NOTHING)
        if paired and len(queries) == len(self._points):
            least = self._log_weights + np.einsum("ij,ij->i", asked, self._points)
        counts = np.zeros(len(COUNTS), np.int64)
        slots, seconds = self._moments(math.sqrt(np.square(queries).sum(axis=1).max(initial=0.0)))
        answers = means, bounds, logs, log_bounds

        def answer(which: np.ndarray, single: bool) -> None:
            if not len(which):
                return
            found = self._within(asked[which], least[which], tol, log_z, single, slots, seconds, counts)
            for own, other in zip(answers, found, strict=True):
                own[which] = other

        def left() -> np.ndarray:
            return np.flatnonzero(~((bounds <= tol) & ((log_bounds <= tol) | (not log_z))))

        if self._in_single(asked, tol):
            # Float32 takes half the time. A few tiles tell whether its rounding is small enough.
            every = np.arange(n)
            some = every[every // TILE % PILOT == 0]
            answer(some, True)
            if 2 * np.isin(some, left()).sum() < len(some):
                answer(left(), True)
        answer(left(), False)
        back = np.empty(n, np.int64)
        back[order] = np.arange(n)
        return means[back], bounds[back], logs[back], log_bounds[back], counts.tolist()

    def _order(self, queries: np.ndarray, paired: bool) -> np.ndarray:
        """Queries that walk together should be close."""
        if paired and len(queries) == len(self._index):
            return self._index
        return grouped(queries)[1]

    def _in_single(self, asked: np.ndarray, tol: float) -> bool:
        """Whether float32 is likely to be enough."""
        d = asked.shape[1]
        leaf = float(np.median(self._sizes[self._leaves, 3]))
        longest = math.sqrt(np.square(asked).sum(axis=1).max(initial=0.0))
        return tol > 1e-5 and rounding(d, True) * longest * leaf <= 0.5 * LARGEST_ROUNDING

    def _moments(self, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Second moments of the nodes that may be expanded for queries of this size."""
        d = self._points.shape[1]
        tokens = self._nodes[:, 1] - self._nodes[:, 0]
        narrow = scale * (self._sizes[:, 1] + self._sizes[:, 2] ** 2) <= 2.0
        nodes = np.flatnonzero(narrow & (tokens >= MANY * d))
        slots, seconds = np.full(len(self._nodes), -1), np.zeros((len(nodes), d, d))
        slots[nodes] = np.arange(len(nodes))

        def fill(slot: int, node: int) -> None:
            lo, hi = self._nodes[node, :2]
            covariance(self._points, self._log_weights, lo, hi, self._centres[node], np.zeros(d), seconds[slot])

        run_all(fill, enumerate(nodes))
        return slots, seconds

    def _within(
        self,
        asked: np.ndarray,
        least: np.ndarray,
        tol: float,
        log_z: bool,
        single: bool,
        slots: np.ndarray,
        seconds: np.ndarray,
        counts: Any,
    ) -> tuple[np.ndarray, ...]:
        n, d = asked.shape
        widest = 2.0 * float(self._sizes[0, 3])
        far = min(widest, 2.0 * self._norm) + tol
        theta = min(LEFT_OUT * tol / max(far, 1.0 if log_z else 0.0), 0.5)
        kappa, kappa_z = EXPANDED * tol, EXPANDED * tol if log_z else 0.25
        means, facts, logs = np.zeros((n, d)), np.zeros((n, 4)), np.zeros(n)
        cells = (self._nodes, self._centres, self._sizes, *self._keys(single), slots, seconds)
        answers = answers_of(single)

        def run(first: int, last: int) -> np.ndarray:
            work, found = Work(**_buffers(d, np.float32 if single else np.float64)), np.zeros(len(COUNTS), np.int64)
            limits = Limits(theta, kappa, kappa_z, far, rounding(d, single))
            answers(cells, asked, least, first, last, limits, work, means, facts, logs, found)
            return found

        tiles = -(-n // TILE)
        pieces = min(tiles, 8 * threads())
        edges = [min(n, tiles * i // pieces * TILE) for i in range(pieces + 1)]
        counts += np.sum(run_all(run, list(itertools.pairwise(edges))), axis=0)
        # The certificate.
        left, expanded, error, radius = facts.T
        bounds = theta * left * far + expanded
        log_bounds = -np.log1p(-theta * left)
        log_bounds += -np.log1p(-np.minimum(expanded if not log_z else kappa_z * (expanded > 0), 0.5))
        if single:
            error = np.where(radius > 0, error + 3e-5, 0.0)
            relative = np.expm1(error)
            inner = np.maximum(np.linalg.norm(means, axis=1) - tol, 0.0)
            spread = np.minimum(np.sqrt(np.maximum(self._norm**2 - inner**2, 0.0)), widest) + tol
            bounds = (bounds + relative * spread + 2e-5 * radius) * (1.0 + 2.0 * relative)
            log_bounds += error
            bounds[error > LARGEST_ROUNDING] = np.inf
        return means, bounds, logs, log_bounds


def rounding(d: int, single: bool) -> float:
    """The relative error of a weight by rounding of its score, per unit of |u| |z|; in float64 it is not counted."""
    return (d + 6) * 2.0**-24 if single else 0.0


def visible_share(points: np.ndarray, log_weights: np.ndarray, queries: np.ndarray, tol: float) -> float:
    """About the share of all (query, token) pairs that `Cells` computes, from a sample in a few milliseconds."""
    tokens = np.flatnonzero(log_weights > -np.inf)
    tokens = tokens[:: -(-len(tokens) // SURVEYED[0])]
    asked = queries[:: -(-len(queries) // SURVEYED[1])]
    cells = Cells(points[tokens], log_weights[tokens], SURVEY_LEAF)
    return cells.attend(asked, tol).work["pairs_direct"] / (len(asked) * len(tokens))


def compiled() -> bool:
    """Whether the kernels are ready, in this process or on disk: if not, the first call compiles for some seconds."""
    last = answers_of(False)
    return bool(last.signatures) or on_disk(last)


def compile_kernels() -> None:
    """Compile every kernel, or load it from disk."""
    points = np.repeat(np.eye(2), 4 * LEAST, axis=0)
    _groups(points, 2)
    for tol in (0.5, 1e-6):
        Cells(points).attend(points, tol)


def grouped(points: np.ndarray, most: int = LEAF) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted points, their order, and the nodes of the tree."""
    n, d = points.shape
    leaf = min(most, max(2 * LEAST, LEAF_BYTES // (4 * d + 4) // 16 * 16))
    nodes = np.zeros((2 * (n // LEAST) + 4 * GROUPS, 4), np.int64)
    nodes[0] = 0, n, -1, 0
    count, index = 1, np.arange(n)
    if n > 16 * leaf:
        index, found = _groups(points, min(GROUPS, n // leaf))
        count = len(found)
        nodes[:count] = found
    points = np.array(points[index], dtype=np.float64, order="C")
    count = split(points, index, leaf, LEAST, nodes, count, np.zeros((5, d)), np.zeros(n))
    return points, index, nodes[:count]


def _groups(points: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """An order of the tokens and the upper nodes of a tree whose leaves are up to `most` groups of close tokens.

    The groups are those of `most` means of a sample. A hyperplane would cut clusters in two.
    """
    n, d = points.shape
    sample = np.array(points[:: max(1, n // (SAMPLED * most))], order="C")
    centres = np.zeros((most, d))
    centres = centres[: spread_out(sample, centres, np.zeros(len(sample)))]
    for _ in range(MEANS):
        labels = _labels(sample, centres)
        sizes = np.bincount(labels, minlength=len(centres))
        sums = np.stack([np.bincount(labels, sample[:, k], len(centres)) for k in range(d)], axis=1)
        centres = sums[sizes > 0] / sizes[sizes > 0, None]
    labels = _labels(points, centres)
    used, labels = np.unique(labels, return_inverse=True)
    centres = centres[used]
    nodes, order = np.zeros((2 * len(centres), 4), np.int64), np.arange(len(centres))
    nodes[0] = 0, len(centres), -1, 0
    count = split(centres.copy(), order, 1, 1, nodes, 1, np.zeros((5, d)), np.zeros(len(centres)))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ranks = place[labels]
    ends = np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=len(order)))])
    nodes = nodes[:count]
    nodes[:, :2] = ends[nodes[:, :2]]
    return np.argsort(ranks, kind="stable"), nodes


def _labels(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each point."""
    # Another memory order would be compiled once more.
    points = np.ascontiguousarray(points)
    n, labels = len(points), np.empty(len(points), np.int64)
    columns, halves = np.ascontiguousarray(centres.T), 0.5 * np.square(centres).sum(axis=1)

    def run(lo: int, hi: int) -> None:
        nearest(points, lo, hi, columns, halves, np.zeros(len(centres)), labels)

    edges = [n * i // threads() for i in range(threads() + 1)]
    run_all(run, list(itertools.pairwise(edges)))
    return labels
