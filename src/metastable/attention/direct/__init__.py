"""The softmax mean by one loop over all pairs of queries and tokens, compiled for the dimension and the precision.

    m(u) = Σ_j w_j e^{⟨u,y_j⟩} y_j / Z(u),     Z(u) = Σ_j w_j e^{⟨u,y_j⟩}

**Method.** Scores are s_j = log2(e) ⟨u, y_j⟩ + log2(w_j / max w), so that a term is 2^{s_j}. A block of tokens is
visited twice: once for the scores and their largest value, once for the terms 2^{s_j − top}, where `top` is the largest
score so far. If a block raises `top`, the sums before it are rescaled once. Blocks whose terms are below rounding, all
together, are left out. Both loops are vector instructions without a call or a branch (`kernels`).

**Error.** 2^x has a relative error of at most 3e-7 in float32 and 7e-16 in float64. Sums of a block are formed in the
precision of the tokens and added up in float64. A score has a rounding error of about (d + 2) ε |u| |y|, as in every
engine, and a term inherits it. For |u| of order 1 the mean is exact to about 1e-6 in float32 and 1e-14 in float64,
relative to the largest |y_j|.

A query that is not finite, or whose scores leave the range of the precision, has NaN as its mean and log Z, and so has
every query if a token is not finite.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metastable.attention.flash import flash_sums
from metastable.attention.threads import run_all, threads

WIDEST = 8
"""Up to this many coordinates of a token are taken at once. More are taken in groups."""
BLOCK_BYTES = 20 * 2**10
"""Size of a block of tokens, which stays in the first cache."""
LINE = 64
"""Bytes of a cache line, and of the widest vectors."""
SERIAL = 2**22
"""A problem with up to this many multiplications (queries × tokens × d) takes about a millisecond. It is computed in
the calling thread, because starting another one takes longer."""


def direct(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d).

    With `causal`, query i sees the tokens j ≤ i only, and no weight may be 0. On a GPU "flash" computes it.
    """
    return direct_sums(points, log_weights, queries, causal)[0]


def direct_sums(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """m(u) as in `direct`, (n, d), and log Z(u) = log Σ w_j e^{⟨u,y_j⟩}, (n,), in one pass."""
    if points.device.type != "cpu":
        return flash_sums(points, log_weights, queries, causal)
    y, logs, u = (np.ascontiguousarray(a.detach().numpy()) for a in (points, log_weights, queries))
    if not compiled(y.shape[1], points.dtype):
        kind = f"d = {y.shape[1]}, {y.dtype.name}"
        print(f"metastable: compiling the direct engine for {kind}, once, for a few seconds", file=sys.stderr)
    means, log_z = np.empty_like(u), np.empty_like(u[:, 0])
    _compute(y, logs, u, causal, means, log_z)
    return torch.from_numpy(means), torch.from_numpy(log_z)


def _compute(
    y: np.ndarray, logs: np.ndarray, u: np.ndarray, causal: bool, means: np.ndarray, log_z: np.ndarray
) -> None:
    from metastable.attention.direct.kernels import TILE, arrange, sums_of

    (n, d), m = y.shape, len(u)
    width, groups = layout(d)
    rows = groups * width + 1
    size = _multiple(64, min(BLOCK_BYTES // (rows * y.itemsize), n))
    keys = aligned((-(-n // size), rows, size), y.dtype)
    widest = np.zeros(d, y.dtype)
    heaviest = float(logs.max())
    count = arrange(y, logs, heaviest, keys, widest)
    # Terms that are left out are below 2^−faint, and n of them below a quarter of the rounding of the largest term.
    faint = np.finfo(y.dtype).nmant + 3 + math.log2(n)
    sums = sums_of(width, groups > 1, y.dtype == np.float32)

    def work(first: int, last: int) -> None:
        scores, asked = aligned((size,), y.dtype), np.empty((TILE, rows - 1), y.dtype)
        running = np.empty((TILE, rows + 1))
        sums(keys, count, u, widest, heaviest, faint, first, last, causal, scores, asked, running, means, log_z)

    work_size = m * n * d
    pieces = 1 if work_size <= SERIAL else threads() * min(8, 2 + work_size // (4 * SERIAL))
    edges = [m * i // pieces for i in range(pieces + 1)]
    run_all(work, itertools.pairwise(edges))


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin with a cache line: vectors that lie across two lines take twice as long to load."""
    room = np.zeros(math.prod(shape) * dtype.itemsize + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + room.size - LINE].view(dtype).reshape(shape)


def _multiple(step: int, number: int) -> int:
    """`number` rounded up to a multiple of `step`, at least one."""
    return step * max(1, -(-number // step))


def layout(d: int) -> tuple[int, int]:
    """How d coordinates are grouped: the width of a group, and the number of groups."""
    groups = -(-d // WIDEST)
    return -(-d // groups), groups


def compiled(d: int, dtype: torch.dtype) -> bool:
    """Whether the kernel of this dimension and precision is ready, in this process or on disk."""
    from metastable.attention.compilation import on_disk

    sums = _kernel(d, dtype)
    return bool(sums.signatures) or on_disk(sums)


def compile_kernel(d: int, dtype: torch.dtype) -> None:
    """Compile the kernel of this dimension and precision, or load it from disk."""
    one = np.zeros((1, d), np.float32 if dtype == torch.float32 else np.float64)
    _compute(one, one[:, 0], one, False, one.copy(), one[:, 0].copy())


def _kernel(d: int, dtype: torch.dtype) -> Any:
    from metastable.attention.direct.kernels import sums_of

    width, groups = layout(d)
    return sums_of(width, groups > 1, dtype == torch.float32)
