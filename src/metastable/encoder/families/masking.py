"""Masks in the form in which the layers of transformers take them, and layers as steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metastable.encoder.anatomy import Step


def additive(mask: Tensor, hidden: Tensor) -> Tensor:
    """(texts, n) of bool → (texts, 1, 1, n) with 0 for tokens and the most negative number for padding."""
    return blocked(mask[:, None, None, :], hidden)


def blocked(allowed: Tensor, like: Tensor) -> Tensor:
    """0 where allowed and the most negative number elsewhere, in the type of `like`.

    Not −inf: where a row of padding sees padding only, −inf would make NaN, which then spreads over the text. Nor the
    most negative float64: some families take their softmax in float32, where it is −inf again.
    """
    lowest = max(torch.finfo(like.dtype).min, torch.finfo(torch.float32).min)
    return like.new_zeros(allowed.shape).masked_fill(~allowed, lowest)


def step_of(block: Any) -> Step:
    """A layer that needs only the hidden state and the mask of the padding."""

    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        return block(hidden, additive(mask, hidden))

    return step
