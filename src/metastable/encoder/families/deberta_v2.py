"""DeBERTa-v2 and v3: post-norm; scores with terms between content and relative position; v2 has a convolution."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from metastable.encoder.anatomy import Anatomy, Scores
from metastable.encoder.families.stack import Parts, stack

TERMS = {"c2p": "content-to-position scores", "p2c": "position-to-content scores"}
NOTE = (
    "Scores have learned terms between a token and a relative position ({}). These terms are part of the measured "
    "scores and not of B; the scale of B, 1/√({}·width), counts them."
)
CONVOLUTION = "A convolution over neighbouring tokens follows the first layer, outside the theory like the MLP."


def deberta_v2(model: Any) -> Anatomy:
    """`DebertaV2Model`: s_ij = (⟨q_i, k_j⟩ + ⟨q_i, K_r(i−j)⟩ + ⟨k_j, Q_r(i−j)⟩)/√(terms·width)."""
    encoder, blocks = model.encoder, model.encoder.layer
    inner = blocks[0].attention.self
    # The temperature counts the terms that are named, whether or not relative attention is on.
    named = [term for term in TERMS if term in inner.pos_att_type]
    terms = named if inner.relative_attention else []
    scale = 1 / math.sqrt((1 + len(named)) * inner.attention_head_size)

    def parts(block: Any) -> Parts:
        own = block.attention.self
        convolved = block is blocks[0] and encoder.conv is not None

        def step(hidden: Tensor, mask: Tensor) -> Tensor:
            numbers = mask.long()
            after = block(
                hidden,
                encoder.get_attention_mask(numbers),
                relative_pos=encoder.get_rel_pos(hidden),
                rel_embeddings=encoder.get_rel_embedding(),
            )[0]
            # The embeddings of padding are 0, and the convolution reads them as neighbours of the last token.
            return encoder.conv(hidden * mask[..., None], after, numbers) if convolved else after

        linears = (own.query_proj, own.key_proj, own.value_proj)
        last = encoder.conv.LayerNorm if convolved else block.output.LayerNorm
        scores = _scores(encoder, own, terms, scale) if terms else None
        unfolded = tuple(TERMS[term] for term in terms)
        neurons = (block.intermediate.dense, block.output.dense)
        return Parts(own, linears, block.attention.output.dense, neurons, scale, last, None, unfolded, scores, step)

    notes = [NOTE.format(", ".join(terms), 1 + len(named))] if terms else []
    if encoder.conv is not None:
        notes.append(CONVOLUTION)
    limit = model.config.max_position_embeddings
    return stack(model, blocks, model.embeddings.LayerNorm, parts, limit=limit, notes=tuple(notes))


def _scores(encoder: Any, inner: Any, terms: list[str], scale: float) -> Scores:
    span, heads = inner.pos_ebd_size, inner.num_attention_heads
    keys, queries = inner.key_proj, inner.query_proj
    if not inner.share_att_key:
        keys, queries = getattr(inner, "pos_key_proj", None), getattr(inner, "pos_query_proj", None)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        places = encoder.get_rel_embedding().detach()[None, : 2 * span].to(q)
        relative = encoder.get_rel_pos(q)[0]
        full = q @ k.transpose(-1, -2)
        if "c2p" in terms:
            towards = q @ _at(keys, places, heads).transpose(-1, -2)
            full = full + _picked(towards, relative + span)
        if "p2c" in terms:
            # Gathered for each key over the queries, hence the transposition.
            backwards = k @ _at(queries, places, heads).transpose(-1, -2)
            full = full + _picked(backwards, span - relative).transpose(-1, -2)
        return scale * full

    return scores


def _at(linear: Any, places: Tensor, heads: int) -> Tensor:
    """(1, heads, 2·span, width): the keys or queries of the relative positions."""
    bias = None if linear.bias is None else linear.bias.detach().to(places)
    flat = torch.nn.functional.linear(places, linear.weight.detach().to(places), bias)
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def _picked(table: Tensor, index: Tensor) -> Tensor:
    """table (texts, heads, n, 2·span) at index (n, n), kept within the table."""
    return table.gather(-1, index.clamp(0, table.shape[-1] - 1).expand(*table.shape[:2], *index.shape))
