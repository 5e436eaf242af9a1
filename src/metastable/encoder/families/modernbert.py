"""ModernBERT: pre-norm, fused projections, rotary positions, and in most layers a sliding window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.stack import Parts, blocked, stack

NOTE = (
    "Queries and keys are rotated by an angle that grows with the position (rotary positions). B is their interaction "
    "at distance 0; the measured scores include the rotation."
)
LOCAL = "In these layers a token sees only tokens up to half a window away: {}."


def modernbert(model: Any) -> Anatomy:
    """`ModernBertModel`: s_ij = ⟨R_i q_i, R_j k_j⟩/√width, R a rotation by the position; −inf outside the window.

    The first layer has no normalisation of its own. It reads the output of the normalisation of the embeddings, and
    its update is added to that.
    """

    def parts(block: Any) -> Parts:
        inner, before = block.attn, block.attn_norm
        scale = inner.head_dim**-0.5

        def scores(q: Tensor, k: Tensor) -> Tensor:
            cos, sin = _rotation(model, block, q)
            full = scale * _turned(q, cos, sin) @ _turned(k, cos, sin).transpose(-1, -2)
            return full.masked_fill(~_seen(model, block, q), float("-inf"))

        def step(hidden: Tensor, mask: Tensor) -> Tensor:
            allowed = mask[:, None, None, :] & _seen(model, block, hidden)
            rotation = _rotation(model, block, hidden)
            return block(hidden, attention_mask=blocked(allowed, hidden), position_embeddings=rotation)

        own = None if isinstance(before, nn.Identity) else before
        unfolded = ("rotary positions", "sliding window") if _slides(block) else ("rotary positions",)
        neurons = (block.mlp.Wi, block.mlp.Wo)
        return Parts(inner, (inner.Wqkv,), inner.Wo, neurons, scale, None, own, unfolded, scores, step)

    local = [str(index) for index, block in enumerate(model.layers) if _slides(block)]
    notes = (NOTE, LOCAL.format(", ".join(local))) if local else (NOTE,)
    limit = model.config.max_position_embeddings
    return stack(model, model.layers, model.embeddings.norm, parts, final=model.final_norm, limit=limit, notes=notes)


def _slides(block: Any) -> bool:
    """Whether a token sees only the tokens in a window around it."""
    return block.attention_type == "sliding_attention"


def _rotation(model: Any, block: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles, each (1, n, width), for positions 0, …, n − 1."""
    positions = torch.arange(like.shape[-2], device=like.device)[None]
    return model.rotary_emb(like, positions, block.attention_type)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Features i and i + width/2, rotated in their plane."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _seen(model: Any, block: Any, like: Tensor) -> Tensor:
    """(n, n) of bool: which tokens a token sees in this layer."""
    positions = torch.arange(like.shape[-2], device=like.device)
    distance = (positions[:, None] - positions[None, :]).abs()
    return distance <= (model.config.sliding_window if _slides(block) else len(positions))
