"""The softmax mean by torch's flash attention kernel. No N×N matrix is formed.

Weights enter as one more coordinate: ⟨(u, 1), (y, log w)⟩ = ⟨u, y⟩ + log w, so that no attention mask (which
would be N×N) is needed. Keys serve as values too, because the kernel needs both of one width.

The kernel is called directly. `torch.nn.attention.sdpa_kernel` would select it too, but it changes the settings of the
whole process, also for other threads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from metastable.attention.dense import dense, dense_sums, is_small

CPU_KERNEL = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def flash(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d).

    With `causal`, query i sees the tokens j ≤ i only, and no weight may be 0. Small problems are computed by the engine
    "dense" in the calling thread. It also computes what torch has no kernel without an N×N matrix for: float64 on a
    GPU.
    """
    on_cpu = points.device.type == "cpu"
    has_kernel = CPU_KERNEL is not None if on_cpu else points.dtype == torch.float32
    if not has_kernel or is_small(points, queries):
        return dense(points, log_weights, queries, causal)
    asked, keys = _padded(points, log_weights, queries)
    if on_cpu:
        found = CPU_KERNEL(asked, keys, keys, 0.0, causal, scale=1.0)[0]  # type: ignore[misc]
    else:
        found = F.scaled_dot_product_attention(asked, keys, keys, is_causal=causal, scale=1.0)
    means: Tensor = found[0, 0, :, : queries.shape[1]]
    return means


def flash_sums(points: Tensor, log_weights: Tensor, queries: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """m(u) as in `flash`, (n, d), and log Z(u) = log Σ w_j e^{⟨u,y_j⟩}, (n,), in one pass.

    On the CPU the kernel returns both. On a GPU torch's kernels for inference do not, so "dense" computes them.
    """
    if points.device.type != "cpu" or CPU_KERNEL is None or is_small(points, queries):
        return dense_sums(points, log_weights, queries, causal)
    asked, keys = _padded(points, log_weights, queries)
    found, values = CPU_KERNEL(asked, keys, keys, 0.0, causal, scale=1.0)
    return found[0, 0, :, : queries.shape[1]], values[0, 0] + log_weights.max()


def _padded(points: Tensor, log_weights: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (1, 1, n, width) and keys (1, 1, N', width) of the N' tokens whose weight is not 0."""
    n, d = queries.shape
    # A token of weight 0 has log-weight −inf, and −inf·0 in a padded product would be NaN.
    seen = log_weights > -math.inf
    if not bool(seen.all()):
        points, log_weights = points[seen], log_weights[seen]
    # float32 kernels run fastest on multiples of 16; float64 has no such preference.
    width = math.ceil((d + 1) / 16) * 16 if points.dtype == torch.float32 else d + 1
    keys = points.new_zeros(1, 1, len(points), width)
    keys[0, 0, :, :d] = points
    keys[0, 0, :, d] = log_weights - log_weights.max()
    asked = queries.new_zeros(1, 1, n, width)
    asked[0, 0, :, :d] = queries
    asked[0, 0, :, d] = 1.0
    return asked, keys
