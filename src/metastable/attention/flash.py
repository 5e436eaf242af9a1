"""The softmax mean by torch's scaled dot product attention: never an N×N matrix, on any device.

Weights enter as one more coordinate: ⟨(u, 1), (y, log w)⟩ = ⟨u, y⟩ + log w, so that no attention mask (which
would be N×N) is needed. Keys serve as values too, because the kernel wants both of one width.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def flash(points: Tensor, log_weights: Tensor, queries: Tensor) -> Tensor:
    """m(u) = Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for each row u of (n, d): (n, d)."""
    n, d = queries.shape
    # A token of weight 0 has log-weight −inf, and −inf·0 in a padded product would be NaN.
    seen = log_weights > -math.inf
    if not bool(seen.all()):
        points, log_weights = points[seen], log_weights[seen]
    width = _padded(d + 1, points.dtype)
    keys = points.new_zeros(1, 1, len(points), width)
    keys[0, 0, :, :d] = points
    keys[0, 0, :, d] = log_weights - log_weights.max()
    asked = queries.new_zeros(1, 1, n, width)
    asked[0, 0, :, :d] = queries
    asked[0, 0, :, d] = 1.0
    with _without_quadratic_memory(points.device):
        return F.scaled_dot_product_attention(asked, keys, keys, scale=1.0)[0, 0, :, :d]


def _padded(width: int, dtype: torch.dtype) -> int:
    """float32 kernels run fastest on multiples of 16; float64 has no such preference."""
    return math.ceil(width / 16) * 16 if dtype == torch.float32 else width


@contextlib.contextmanager
def _without_quadratic_memory(device: torch.device) -> Iterator[None]:
    """On the CPU insist on the flash kernel; elsewhere allow every kernel that needs no N×N matrix."""
    kernels = [SDPBackend.FLASH_ATTENTION]
    if device.type != "cpu":
        kernels.append(SDPBackend.EFFICIENT_ATTENTION)
    with sdpa_kernel(kernels):
        yield
