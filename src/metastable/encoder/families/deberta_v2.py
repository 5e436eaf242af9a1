"""DeBERTa-v2 and v3: post-norm; scores with terms between content and relative position; v2 has a convolution."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from metastable.encoder.anatomy import Anatomy, Projection, Scores, Step
from metastable.encoder.families.stack import Parts, post_norm

TERMS = {"c2p": "content-to-position scores", "p2c": "position-to-content scores"}
NOTE = (
    "Scores have learned terms between a token and a relative position ({}). These terms are part of the measured "
    "scores and not of B; the scale of B, 1/√({}·width), counts them."
)
CONVOLUTION = "A convolution over neighbouring tokens follows the first layer, outside the theory like the MLP."


def deberta_v2(model: Any) -> Anatomy:
    """`DebertaV2Model`: s_ij = (⟨q_i, k_j⟩ + ⟨q_i, K_r(i−j)⟩ + ⟨k_j, Q_r(i−j)⟩)/√(terms·width)."""
    encoder = model.encoder
    blocks = encoder.layer

    def parts(block: Any) -> Parts:
        inner, terms = block.attention.self, _terms(block.attention.self)
        linears = (inner.query_proj, inner.key_proj, inner.value_proj)
        convolved = block is blocks[0] and encoder.conv is not None
        last = encoder.conv.LayerNorm if convolved else block.output.LayerNorm
        rest = {"unfolded": tuple(TERMS[term] for term in terms), "scores": _scores(encoder, inner) if terms else None}
        return Parts(inner, linears, block.attention.output.dense, _scale(inner), last, rest)

    layers, last = post_norm(blocks, model.embeddings.LayerNorm, model.config.num_attention_heads, parts)
    terms = _terms(blocks[0].attention.self)
    notes = (NOTE.format(", ".join(terms), _count(blocks[0].attention.self)),) if terms else ()
    return Anatomy(
        "deberta-v2",
        layers,
        last,
        tuple(_step(encoder, index, block) for index, block in enumerate(blocks)),
        notes=notes if encoder.conv is None else (*notes, CONVOLUTION),
        limit=model.config.max_position_embeddings,
    )


def _terms(inner: Any) -> list[str]:
    """The score terms beyond ⟨q, k⟩ that the layer computes."""
    return [term for term in TERMS if inner.relative_attention and term in inner.pos_att_type]


def _count(inner: Any) -> int:
    """Terms that the temperature counts: those named, whether or not relative attention is on."""
    return 1 + sum(term in inner.pos_att_type for term in TERMS)


def _scale(inner: Any) -> float:
    return 1 / math.sqrt(_count(inner) * inner.attention_head_size)


def _scores(encoder: Any, inner: Any) -> Scores:
    span, heads, terms = inner.pos_ebd_size, inner.num_attention_heads, _terms(inner)
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
        return _scale(inner) * full

    return scores


def _at(linear: Any, places: Tensor, heads: int) -> Tensor:
    """(1, heads, 2·span, width): the keys or queries of the relative positions."""
    projection = Projection.of(linear, heads)
    return Projection(projection.weight.to(places), projection.bias.to(places))(places)


def _picked(table: Tensor, index: Tensor) -> Tensor:
    """table (texts, heads, n, 2·span) at index (n, n), kept within the table."""
    return table.gather(-1, index.clamp(0, table.shape[-1] - 1).expand(*table.shape[:2], *index.shape))


def _step(encoder: Any, index: int, block: Any) -> Step:
    def step(hidden: Tensor, mask: Tensor) -> Tensor:
        numbers = mask.long()
        after = block(
            hidden,
            encoder.get_attention_mask(numbers),
            relative_pos=encoder.get_rel_pos(hidden),
            rel_embeddings=encoder.get_rel_embedding(),
        )[0]
        if index > 0 or encoder.conv is None:
            return after
        # The embeddings of padding are 0, and the convolution reads them as neighbours of the last token.
        return encoder.conv(hidden * mask[..., None], after, numbers)

    return step
