"""Texts as single vectors: means over their tokens, and Gaussians fitted on them."""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.encoder.hooks import Lens, Passage
from metastable.monitor.moments import Moments, blended, whitening


def mean_over(x: Tensor, members: Tensor) -> Tensor:
    """The mean of x (texts, n, d) over the members (texts, n) of bool, (texts, d); 0 where there are none.

    A product with weights reads x once and makes no copy of it. If what it weighs with 0 is not finite, it is done
    again with care.
    """
    share = members.to(x.dtype) / members.sum(dim=1, keepdim=True).clamp_min(1)
    found = torch.bmm(share.unsqueeze(1), x).squeeze(1)
    if not bool(found.isfinite().all()):
        found = torch.bmm(share.unsqueeze(1), torch.where(members.unsqueeze(-1), x, 0.0)).squeeze(1)
    return found


def gaussian(moments: Moments) -> tuple[Tensor, Tensor]:
    """U, u with |Ux̂ + u|² = |W(x̂ − μ)|²/d, the covariance shrunk as Ledoit and Wolf estimate: (d, d) and (d,)."""
    white = whitening(blended(moments.covariance, moments.ledoit_wolf())) / len(moments.centre) ** 0.5
    return white, -white @ moments.mean


def folded(white: Tensor, offset: Tensor, lens: Lens) -> tuple[Tensor, Tensor]:
    """The same with v in place of x̂."""
    return white * lens.scale, offset + white @ lens.shift.double()


def squares(white: Tensor, offset: Tensor, rows: Tensor, passage: Passage) -> Tensor:
    """|U row + u|² of each text, (texts,); 0 for texts without a chosen token."""
    y = torch.addmm(offset, rows, white.T)
    return torch.where(passage.counts > 0, torch.linalg.vecdot(y, y), 0.0)
