"""ModernBERT: pre-norm, fused projections, rotary positions, and in most layers a sliding window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Projection, Scores, Step
from metastable.encoder.families.stack import blocked

NOTE = (
    "Queries and keys are rotated by an angle that grows with the position (rotary positions). B is their interaction "
    "at distance 0; the measured scores include the rotation."
)
LOCAL = "In these layers a token sees only tokens up to half a window away: {}."


def modernbert(model: Any) -> Anatomy:
    """`ModernBertModel`: s_ij = ⟨R_i q_i, R_j k_j⟩/√width, R a rotation by the position; −inf outside the window.

    The first layer has no normalisation of its own: it reads what that of the embeddings wrote, and adds to it.
    """
    local = [index for index, block in enumerate(model.layers) if block.attention_type == "sliding_attention"]
    notes = (NOTE, LOCAL.format(", ".join(map(str, local)))) if local else (NOTE,)
    return Anatomy(
        "modernbert",
        tuple(_layer(model, index, block) for index, block in enumerate(model.layers)),
        model.final_norm,
        tuple(_step(model, block) for block in model.layers),
        notes=notes,
        pre_norm=True,
        limit=model.config.max_position_embeddings,
    )


def _layer(model: Any, index: int, block: Any) -> AttentionLayer:
    inner, heads = block.attn, model.config.num_attention_heads
    first = isinstance(block.attn_norm, nn.Identity)
    norm = model.embeddings.norm if first else block.attn_norm
    weights = inner.Wqkv.weight.chunk(3)
    biases = (None,) * 3 if inner.Wqkv.bias is None else inner.Wqkv.bias.chunk(3)
    projections = [Projection.cut(w, b, heads) for w, b in zip(weights, biases, strict=True)]
    window = ("sliding window",) if block.attention_type == "sliding_attention" else ()
    rest = {"pre_norm": not first, "unfolded": ("rotary positions", *window), "scores": _scores(model, block)}
    return AttentionLayer.of(index, norm, inner, projections, inner.Wo, inner.head_dim**-0.5, **rest)


def _scores(model: Any, block: Any) -> Scores:
    def scores(q: Tensor, k: Tensor) -> Tensor:
        cos, sin = _rotation(model, block, q)
        full = block.attn.head_dim**-0.5 * _turned(q, cos, sin) @ _turned(k, cos, sin).transpose(-1, -2)
        return full.masked_fill(~_seen(model, block, q), float("-inf"))

    return scores


def _rotation(model: Any, block: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles, each (1, n, width), for positions 0, …, n − 1."""
    positions = torch.arange(like.shape[-2], device=like.device)[None]
    return model.rotary_emb(like, positions, block.attention_type)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Feature i and feature i + width/2 turned as a plane."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _seen(model: Any, block: Any, like: Tensor) -> Tensor:
    """(n, n) of bool: which tokens a token sees in this layer."""
    positions = torch.arange(like.shape[-2], device=like.device)
    distance = (positions[:, None] - positions[None, :]).abs()
    if block.attention_type == "sliding_attention":
        return distance <= model.config.sliding_window
    return distance >= 0


def _step(model: Any, block: Any) -> Step:
    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        allowed = mask[:, None, None, :] & _seen(model, block, hidden)
        rotation = _rotation(model, block, hidden)
        return block(hidden, attention_mask=blocked(allowed, hidden), position_embeddings=rotation)

    return step
