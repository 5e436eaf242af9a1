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

from metastable.attention.dense import dense, is_small

CPU_KERNEL = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def flash(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d).

    Small problems are computed by the engine "dense" in the calling thread. It also computes what torch has no kernel
    without an N×N matrix for: float64 on a GPU.
    """
    on_cpu = points.device.type == "cpu"
    has_kernel = CPU_KERNEL is not None if on_cpu else points.dtype == torch.float32
    if not has_kernel or is_small(points, queries):
        return dense(points, log_weights, queries)
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
    if on_cpu:
        found = CPU_KERNEL(asked, keys, keys, scale=1.0)[0]  # type: ignore[misc]
    else:
        found = F.scaled_dot_product_attention(asked, keys, keys, scale=1.0)
    means: Tensor = found[0, 0, :, :d]
    return means
