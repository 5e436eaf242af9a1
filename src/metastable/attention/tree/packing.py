"""`pack`: the choice of the nodes to pack, and the work of packing them shared over threads."""

from __future__ import annotations

import numpy as np

from .expansion import BLOCK
from .ordered import Ordered, run_all
from .packs import MOST, Packs, fill, mark_above, no_packs, select

# Share of the tolerance that one pack is designed for; what it really costs is bounded for each box of queries.
_QUOTA = 0.003


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
