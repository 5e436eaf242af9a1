"""What a box of queries is answered with: the tokens as the kernels see them, and the buffers of one thread."""

from typing import NamedTuple

import numpy as np

from .expansion import BLOCK
from .packs import Packs
from .truncation import TERMS

# What `Work.counts` counts: (query, token) pairs summed, (box, token) pairs expanded, boxes for which visible tokens
# were collected, boxes answered by expansion, boxes answered by summation, (box, token) pairs collected.
COUNTS = (
    "pairs_direct",
    "pairs_expanded",
    "boxes_opened",
    "boxes_expanded",
    "boxes_direct",
    "tokens_collected",
)


class Tokens(NamedTuple):
    """The token tree as the kernels see it.

    `points`, `log_weights` and `records` are those of the tree; `columns`, `logs` and `signs` hold the same tokens
    axis by axis and then the grids of the packs.
    """

    points: np.ndarray
    log_weights: np.ndarray
    records: np.ndarray
    depth: int
    columns: np.ndarray
    logs: np.ndarray
    signs: np.ndarray
    packs: Packs


class Work(NamedTuple):
    """Buffers of one thread. Those of length N are only touched as far as a box sees tokens."""

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
    covariances: np.ndarray  # (64, d, d): of the softmax at the last box looked at on each level, NaN if none was
    kept_above: np.ndarray  # (64,): how many tokens the last box that was cut saw on each level, inf if unknown
    widest: np.ndarray  # (1,): a box wider than this many standard deviations of the softmax is split at once
    past: np.ndarray  # (d + 2, d): axes, u0 and c of the box that filled the buffers
    past_shift: np.ndarray
    followed: np.ndarray  # (2,): how many of its tokens the next box may start from; 0 if some of them are packed
    guess: np.ndarray  # the best token of the box before: a neighbour, so a good first guess


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
