"""Forecasts about an encoder. Every function here gets what was seen before the outcome, and nothing else.

- `over_depth`: the tokens of the second half of the layers, from those of the middle depth, by **attention alone**:
  all heads at their real temperature, without biases, positions and perceptron, as in the rung *all heads* of
  `ladder`, one layer after the other. A post-norm layer moves z to the standardised z + CΔ/ρ, with Δ the sum of the
  updates of its heads, C the map that subtracts the mean over features and ρ the root mean square of the centred hidden
  state; the hidden state at the next depth is γz + b with the γ and b of that depth. A pre-norm layer adds Δ to its
  stream.
- `of_removal`: the effect of removing a layer on the embedding, by **linear response**. With h and h' the hidden states
  before and after the layer and f the embedding as a function of h', the forecast is
  1 − cos(f, f + (f(h' − ε(h' − h)) − f)/ε), one small step ε towards removal.
- `of_loop`: the dispersion D_t in a loop from its first steps 0, …, S, by **geometric extrapolation**: every step
  changes D by r times the change of the step before. r is fitted to the last two seen steps of all texts by least
  squares, Σ d_{S−1} d_{S−2}/Σ d_{S−2}², and kept between 0 and 1; D is kept between 0 and 1.
- `of_length`: the mean cosine c of whole texts of n tokens, by **extrapolation from halves and quarters**, their
  beginnings: every doubling of n changes c by the same amount. This is the mean over texts of
  (c_half − c_quarter)/log₂(n_half/n_quarter), because the difference of a single text is mostly chance.

Simple baselines come with every forecast: no change, a straight line, or block influence, 1 − cos(h, h'), for removal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from metastable.encoder.anatomy import Anatomy, AttentionLayer
from metastable.encoder.exact_sums import Floats
from metastable.encoder.hooks import DepthTokens
from metastable.encoder.pooling import pooled
from metastable.encoder.statistics import cloud, mean_cosine

DEPTH_STATISTICS = ("hidden_cosine", "effective_rank")
STEP = 1 / 32
"""ε, the step of the linear response: its square is small, and the rounding of float32 is far smaller."""
NO_CHANGE, LINE, INFLUENCE, MEAN_INFLUENCE = "no change", "the straight line", "block influence", "mean block influence"


@dataclass(frozen=True)
class Expected:
    """A forecast of one quantity, made before the outcome.

    values : (texts, places); baselines : the same by the name of the baseline
    places : the depths, layers or steps of the columns; empty if there is one column without a place
    seen : (texts, places before), what was known of the quantity, and `seen_places`, for figures
    """

    key: str
    method: str
    values: Floats
    baselines: dict[str, Floats]
    places: tuple[int, ...] = ()
    seen: Floats = field(default_factory=lambda: np.empty((0, 0)))
    seen_places: tuple[int, ...] = ()


def joined(parts: Sequence[Expected]) -> Expected:
    """One forecast for the texts of several batches."""
    first = parts[0]
    baselines = {name: np.concatenate([part.baselines[name] for part in parts]) for name in first.baselines}
    values, seen = (np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "seen"))
    return Expected(first.key, first.method, values, baselines, first.places, seen, first.seen_places)


def depth_statistics(hidden: Tensor, unit: Tensor, chosen: Tensor) -> dict[str, Floats]:
    """`DEPTH_STATISTICS` of each text, (texts,)."""
    found = {
        "hidden_cosine": mean_cosine(torch.nn.functional.normalize(hidden, dim=-1), chosen),
        "effective_rank": cloud(unit, chosen, 0.0)["effective_rank"],
    }
    return {name: value.double().cpu().numpy() for name, value in found.items()}


def over_depth(
    anatomy: Anatomy, middle: DepthTokens, mask: Tensor, chosen: Tensor, seen: Sequence[dict[str, Floats]]
) -> list[Expected]:
    """The forecasts of `DEPTH_STATISTICS` at all depths after the middle one.

    middle : the tokens at the middle depth; seen : the statistics at depths 0, …, middle
    """
    known = range(len(seen))
    ahead = range(len(seen), len(anatomy.layers) + 1)
    clouds = attention_alone(anatomy, middle, mask, known[-1])
    guessed = [depth_statistics(hidden, unit, chosen) for hidden, unit in clouds]
    found = []
    for name in DEPTH_STATISTICS:
        before, values = (np.stack([part[name] for part in parts], axis=1) for parts in (seen, guessed))
        baselines = {NO_CHANGE: _kept(before, len(ahead)), LINE: _line(before, len(ahead))}
        found.append(Expected(name, "attention alone", values, baselines, tuple(ahead), before, tuple(known)))
    return found


def attention_alone(anatomy: Anatomy, tokens: DepthTokens, mask: Tensor, start: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states and unit tokens, (texts, n, d), after each layer from `start` on if layers were attention alone."""
    z, hidden = tokens.z, tokens.hidden
    for layer, site in zip(anatomy.layers[start:], anatomy.sites[start + 1 :], strict=True):
        norm, delta = site.norm, all_heads(layer, z, mask)
        assert norm is not None
        if anatomy.pre_norm:
            hidden = hidden + delta
            z = norm.standardise(hidden)
        else:
            centred = hidden - hidden.mean(dim=-1, keepdim=True)
            z = norm.standardise(z + delta / centred.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12))
        if not site.pre_norm:
            hidden = torch.addcmul(norm.offset.to(z), norm.gain.to(z), z)
        yield hidden, torch.nn.functional.normalize(z * norm.seen.to(z), dim=-1)


def all_heads(layer: AttentionLayer, z: Tensor, mask: Tensor) -> Tensor:
    """What the heads of a layer add to the stream if there are no biases and no positions, (texts, n, d).

    z : (texts, n, d), standardised tokens, of mean 0 over features
    """
    x = z if layer.norm is None else z * layer.norm.gain.to(z)
    q, k, v = (
        torch.nn.functional.linear(x, rows.weight.flatten(0, 1)).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
        for rows in (layer.query, layer.key, layer.value)
    )
    seen = mask[:, None, None, :]
    mean = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=layer.scale)
    return torch.nn.functional.linear(mean.transpose(1, 2).flatten(2), layer.output.transpose(0, 1).flatten(1))


def embedding(anatomy: Anatomy, stream: Tensor, mask: Tensor, start: int) -> Tensor:
    """The mean last hidden state of each text, (texts, d), from the stream before layer `start`."""
    for step in anatomy.steps[start:]:
        stream = step(stream, mask)
    return pooled(anatomy.last_hidden(stream), mask, "mean")


def apart(one: Tensor, other: Tensor) -> Floats:
    """1 − cos between the embeddings of each text."""
    cosine = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1)
    return np.asarray((1 - cosine).cpu().numpy())


def of_removal(anatomy: Anatomy, streams: Sequence[Tensor], mask: Tensor, layers: Sequence[int]) -> Expected:
    """The forecast of the effect of removing each of some layers. streams : before each layer, and after the last"""
    real = embedding(anatomy, streams[-1], mask, len(anatomy.layers))
    values, influence = [], []
    for layer in layers:
        before, after = streams[layer], streams[layer + 1]
        moved = embedding(anatomy, after + STEP * (before - after), mask, layer + 1)
        values.append(apart(real, real + (moved - real) / STEP))
        cosine = torch.nn.functional.cosine_similarity(before, after, dim=-1)
        influence.append((1 - torch.where(mask, cosine, 0.0).sum(dim=1) / mask.sum(dim=1)).double().cpu().numpy())
    table = np.stack(influence, axis=1)
    baselines = {INFLUENCE: table, MEAN_INFLUENCE: np.broadcast_to(table.mean(axis=1, keepdims=True), table.shape)}
    return Expected("removal", "linear response", np.stack(values, axis=1), baselines, tuple(layers))


def of_loop(seen: Floats, last: int) -> Expected:
    """The forecast of the dispersion up to step `last`. seen : (texts, S + 1), the first steps"""
    before, step = np.diff(seen, axis=1)[:, -2:].T
    square = float(np.nansum(before**2))
    ratio = min(max(float(np.nansum(before * step)) / square, 0.0), 1.0) if square > 0 else 0.0
    ahead = range(seen.shape[1], last + 1)
    grown = np.cumsum(ratio ** np.arange(1, len(ahead) + 1))
    values = np.clip(seen[:, -1:] + step[:, None] * grown, 0.0, 1.0)
    baselines = {NO_CHANGE: _kept(seen, len(ahead)), LINE: _line(seen, len(ahead))}
    return Expected(
        "loop", "geometric extrapolation", values, baselines, tuple(ahead), seen, tuple(range(seen.shape[1]))
    )


def of_length(quarter: Floats, half: Floats, tokens: Floats) -> Expected:
    """The forecast of a statistic of whole texts from parts of them, each (texts,); NaN for texts without one.

    tokens : (3, texts), the number of tokens of quarters, halves and whole texts
    """
    first, second = np.diff(np.log2(tokens), axis=0)
    known = np.isfinite(quarter) & np.isfinite(half)
    slope = ((half - quarter)[known] / first[known]).mean() if known.any() else 0.0
    values, kept = (half + slope * second)[:, None], half[:, None]
    return Expected("length", "extrapolation from halves and quarters", values, {NO_CHANGE: kept})


def _kept(seen: Floats, count: int) -> Floats:
    return np.repeat(seen[:, -1:], count, axis=1)


def _line(seen: Floats, count: int) -> Floats:
    """The least-squares line through the seen values of each text, at the next `count` places."""
    x = np.arange(seen.shape[1] + count, dtype=float) - (seen.shape[1] - 1) / 2
    known = x[: seen.shape[1]]
    slope = (seen @ known) / (known @ known)
    return np.asarray(seen.mean(axis=1, keepdims=True) + slope[:, None] * x[seen.shape[1] :])
