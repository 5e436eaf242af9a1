"""Unnormalised self-attention, USA (Geshkovski, Letrouit, Polyanskiy, Rigollet, arXiv 2312.10794).

    m(u) = Σ_j w_j e^{⟨u, y_j⟩} y_j = Z(u) · softmax mean(u),     Z(u) = Σ_j w_j e^{⟨u, y_j⟩}

*Error.* Let |m̃ − m| ≤ e for the softmax mean m and |log Z̃ − log Z| ≤ η, and |y_j| ≤ R, hence |m| ≤ R. Then

    |Z̃ m̃ − Z m| ≤ Z̃ |m̃ − m| + |Z̃ − Z| |m| ≤ Z ( e^η e + (e^η − 1) R ).                                          (1)

For e = η = t the bracket is at most t e^t (1 + R). With s = tol / (1 + R) and t = s / (1 + s) it is at most tol,
because e^t ≤ 1 / (1 − t) = 1 + s. So the error is at most tol · Z(u), relative to the sum of the weights e^{⟨u, y_j⟩}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metastable.arrays import serial


def times_partition(mean: Tensor, log_z: Tensor) -> Tensor:
    """Z · mean for means (n, d) and log Z (n,): (n, d).

    Rows with a Z beyond the range of the dtype are infinite, also where the mean is 0: nothing finite is known there.
    """
    z = serial(log_z, torch.exp).unsqueeze(1)
    return torch.where(z == math.inf, torch.copysign(torch.full_like(mean, math.inf), mean), z * mean)


def share(tol: float, radius: float) -> float:
    """The tolerance t of the mean and of log Z with which |Z̃ m̃ − Z m| ≤ tol · Z for tokens of norm up to `radius`."""
    s = tol / (1.0 + radius)
    return s / (1.0 + s)
