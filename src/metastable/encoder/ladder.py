"""What of the theory survives in a real layer: a ladder from the model of the paper to the layer itself.

With x̂ a token before a layer and x̂' the same token at the next depth, the layer's update is u = x̂' − x̂. Every rung
predicts it by p = unit(z + Δ/ρ) − x̂, where Δ is what the rung adds to the stream and ρ the root mean square of the
stream over features. Each rung adds one thing of the real layer:

0. *sphere*: one head at zero temperature, which attends to the best point of the sphere, √d Bᵀx̂/|Bᵀx̂|: the paper
1. *best token*: the ordinary token of the text with the largest score instead of that point
2. *temperature*: the softmax over the ordinary tokens, at the real β
3. *special tokens*: the softmax over all tokens
4. *all heads*: the sum over the heads of the layer
5. *perceptron*: the output of the perceptron, as it is in the layer, added to the stream after attention
6. *the layer*: biases, gains, offsets and normalisations, and score terms that depend on positions: u itself

Heads are without biases up to rung 5. *Other texts* is rung 4 with the tokens of another text as keys and values: what
is left of the prediction if a token does not see its own text.

The share of a rung is 1 − Σ|u − p|²/Σ|u|² over the ordinary tokens of a text: 1 if the update is predicted, 0 if the
prediction is as good as no movement. `of_next` is the share of the next rung's update instead of u: a rung *fails* if
it is below HALF, because the thing that the next rung adds matters more than all before it. Up to rung 3 the numbers
are those of one head for each layer, the one whose rung 3 predicts most on the first half of the texts; all numbers
are those of the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from metastable.encoder.anatomy import AttentionLayer
from metastable.encoder.fold import fold_heads
from metastable.encoder.hooks import Depth, DepthTokens, caught, read
from metastable.encoder.length.intervals import mean_interval, named
from metastable.encoder.load import Encoder
from metastable.encoder.texts import Batch, batches

RUNGS = ("sphere", "best token", "temperature", "special tokens", "all heads", "perceptron", "the layer")
OTHER = "other texts"
ONE_HEAD = 4
"""The first rungs are of one head."""
TEXTS, LONGEST = 16, 64
"""Texts, the first ones, and the tokens that they are cut to."""
FEWEST = 4
"""A half of the texts has at least half as many."""
HALF = 0.5
REASONS = {
    "sphere": "a token attends to the best token of its text, which is far from the best point of the sphere",
    "best token": "attention is too warm to pick one token",
    "temperature": "special tokens take much of the attention",
    "special tokens": "one head is a small part of its layer",
    "all heads": "the perceptron moves tokens as much as attention does",
    "perceptron": "biases, gains and normalisations change what is left",
}
"""Why a rung fails, in words."""


@dataclass(frozen=True)
class Ladder:
    """The ladder of every layer.

    rungs : a row for each layer and rung: share, of_next (NaN for the layer itself and for other texts) and cosine, the
        mean cosine of prediction and update, with intervals of 95 % over texts; head, for the rungs of one head
    texts : the number of texts that the numbers are of
    """

    rungs: pd.DataFrame
    texts: int

    def wide(self, column: str = "share") -> pd.DataFrame:
        """One row a layer, one column a rung."""
        return self.rungs.pivot(index="layer", columns="rung", values=column)[[*RUNGS, OTHER]]

    @property
    def breaks(self) -> str | None:
        """The first rung that fails in more than half of the layers; None if none does."""
        table = self.wide("of_next")
        return next((rung for rung in RUNGS[:-1] if (table[rung] < HALF).mean() > 0.5), None)

    def sentences(self) -> list[str]:
        """What breaks the theory, in words."""
        share, rung = self.wide().median(), self.breaks
        said = "every rung of the ladder predicts most of the next one in most layers"
        if rung is not None:
            failed = int((self.wide("of_next")[rung] < HALF).sum())
            said = f"on the way from the paper's model to the real layer the step {rung!r} predicts too little first, "
            said += f"in {failed} of {len(self.wide())} layers: {REASONS[rung]}"
        parts = ", ".join(f"{name} {100 * share[name]:.0f} %" for name in RUNGS[:-1])
        alone = "if attention saw the tokens of another text, all heads together would predict "
        alone += f"{100 * share[OTHER]:.0f} % instead of {100 * share['all heads']:.0f} %"
        below = "; a share below 0 means that no movement would be a better prediction" if share.min() < 0 else ""
        return [said, f"share of the update that is predicted, median over layers: {parts}{below}", alone]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are not known are null."""
        plain = self.rungs.astype(object).where(self.rungs.notna(), None)
        return {"texts": self.texts, "rungs": plain.to_dict("records")}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ladder:
        table = pd.DataFrame(saved["rungs"])
        numbers = [name for name in table.columns if name != "rung"]
        return cls(table.assign(**{name: table[name].astype(float) for name in numbers}), int(saved["texts"]))


def ladder(encoder: Encoder, texts: Sequence[str], batch_size: int = 16) -> Ladder | None:
    """The ladder on the first texts that have tokens; None if they are fewer than `FEWEST`."""
    encoder = encoder.private()
    different = list(dict.fromkeys(texts))[:TEXTS]
    found: list[list[dict[str, np.ndarray]]] = []
    for batch in batches(encoder.reads_text(), different, min(LONGEST, encoder.limit), batch_size):
        found.append(measured(encoder, batch))
    layers = [_joined([part[place] for part in found]) for place in range(len(encoder.anatomy.layers))] if found else []
    if not layers or len(layers[0]["share"]) < FEWEST:
        return None
    half = len(layers[0]["share"]) // 2
    rows = [row for place, layer in enumerate(layers) for row in _rows(place, layer, half)]
    return Ladder(pd.DataFrame(rows), len(layers[0]["share"]) - half)


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _rows(place: int, layer: dict[str, np.ndarray], half: int) -> list[dict[str, Any]]:
    """The rows of a layer, with the head that is best on the first half of the texts."""
    head = int(np.nanmean(layer["head_share"][:half, ONE_HEAD - 1], axis=0).argmax())
    rows = []
    for number, rung in enumerate([*RUNGS, OTHER]):
        values: dict[str, Any] = {}
        for name in ("share", "of_next", "cosine"):
            table = layer[f"head_{name}"][:, number, head] if number < ONE_HEAD else layer[name][:, number]
            kept = table[half:]
            kept = kept[np.isfinite(kept)]
            values |= named(name, mean_interval(kept) if len(kept) > 1 else (np.nan,) * 3)
        rows.append({"layer": place, "rung": rung, "head": float(head) if number < ONE_HEAD else np.nan, **values})
    return rows


def measured(encoder: Encoder, batch: Batch) -> list[dict[str, np.ndarray]]:
    """For each layer the statistics of each text.

    share, of_next, cosine : (texts, rungs and other texts); NaN for the rungs of one head, which are in head_share,
    head_of_next and head_cosine, (texts, ONE_HEAD, heads)
    """
    anatomy = encoder.anatomy
    before: list[DepthTokens] = []
    found: list[dict[str, np.ndarray]] = []

    def visit(depth: Depth) -> None:
        if before:
            place, mask = len(found), depth.passage.mask.unsqueeze(-1)
            block = anatomy.blocks[place]
            # Some models write NaN into padding.
            inside = [
                torch.where(mask, part, 0.0)
                for part in (seen[block.output][1], seen[block.inner][0], seen[block.outer][1])
            ]
            found.append(_statistics(anatomy.layers[place], before[0], depth, inside))
        before[:] = [depth.tokens]
        seen.clear()

    with caught(part for block in anatomy.blocks for part in (block.output, block.inner, block.outer)) as seen:
        read(encoder, batch, "exclude", range(len(anatomy.layers) + 1), visit)
    return found


def _statistics(
    layer: AttentionLayer, tokens: DepthTokens, depth: Depth, inside: Sequence[Tensor]
) -> dict[str, np.ndarray]:
    """See `measured`, for one layer.

    tokens, depth : before the layer and after it
    inside : the output of attention, the input and the output of the perceptron
    """
    updated, entered, pushed = inside
    mask, ordinary, size = depth.passage.mask, depth.passage.chosen, layer.width**0.5
    means, elsewhere, output = _of_heads(layer, tokens.z, mask, ordinary)
    unit, rho = tokens.unit, _spread(tokens.hidden)

    def moved(mean: Tensor) -> Tensor:
        delta = torch.einsum("thnr,hdr->tnd", mean, output)
        return torch.nn.functional.normalize(size * unit + delta / rho, dim=-1)

    whole = moved(means[-1])
    attended = tokens.hidden + updated if layer.pre_norm else entered
    after = size * whole + (pushed - pushed.mean(dim=-1, keepdim=True)) / _spread(attended)
    ends = [whole, torch.nn.functional.normalize(after, dim=-1), depth.tokens.unit, moved(elsewhere)]
    rest = torch.stack(ends) - unit
    update = rest[2]
    found = {
        **_one_head(means, output, unit, rho.transpose(1, 2), (update, rest[0]), ordinary),
        **_all_heads(update, rest, ordinary),
    }
    return {name: tensor.double().cpu().numpy() for name, tensor in found.items()}


def _spread(stream: Tensor) -> Tensor:
    """The root mean square over features, without their mean, (texts, n, 1)."""
    return (stream - stream.mean(dim=-1, keepdim=True)).square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)


def _of_heads(layer: AttentionLayer, z: Tensor, mask: Tensor, ordinary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of values m, so that a head adds Δ = O m to the stream, and the output maps O without the mean.

    Returns m of the rungs of one head, (ONE_HEAD, texts, heads, n, r); m with other texts, (texts, heads, n, r); and O,
    (heads, d, r).
    """
    folded = fold_heads(layer)
    query, key, value, output = (
        torch.stack([getattr(head, name) for head in folded]).to(z) for name in ("query", "key", "value", "output")
    )
    q, k, v = (torch.einsum("tnd,hkd->thnk", z, rows) for rows in (layer.scale * query, key, value))
    # Bᵀz = Kᵀq up to a factor: its length and its value need small matrices only.
    aim = (q * (q @ (key @ key.transpose(1, 2)))).sum(dim=-1, keepdim=True).clamp_min(1e-30).sqrt()
    sphere = q @ (key @ value.transpose(1, 2)) / aim * layer.width**0.5
    scores = q @ k.transpose(-1, -2)
    among = scores.masked_fill(~ordinary[:, None, None, :], -torch.inf)
    best = v.gather(2, among.argmax(dim=-1, keepdim=True).expand(-1, -1, -1, v.shape[-1]))
    warm = among.softmax(dim=-1) @ v
    every = scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(dim=-1) @ v
    rolled = (q @ k.roll(1, dims=0).transpose(-1, -2)).masked_fill(~mask.roll(1, dims=0)[:, None, None, :], -torch.inf)
    # A text that is alone in its batch has no other text.
    elsewhere = rolled.softmax(dim=-1) @ v.roll(1, dims=0) if len(z) > 1 else torch.full_like(every, torch.nan)
    return torch.stack([sphere, best, warm, every]), elsewhere, output - output.mean(dim=1, keepdim=True)


def _one_head(
    means: Tensor, output: Tensor, unit: Tensor, rho: Tensor, targets: tuple[Tensor, Tensor], chosen: Tensor
) -> dict[str, Tensor]:
    """head_share, head_of_next and head_cosine, see `measured`, without a vector of length d for each head.

    With w = √d x̂ + Δ/ρ and p = w/|w| − x̂, every number is made of ⟨e, Δ⟩ = ⟨Oᵀe, m⟩ and ⟨Δ, Δ'⟩ = mᵀ(OᵀO)m'.

    rho : (texts, 1, n); targets : u, and the prediction by all heads, which is the rung above the last one
    """
    size = unit.shape[-1] ** 0.5
    turned = means @ (output.transpose(1, 2) @ output)

    def along(vector: Tensor) -> Tensor:
        """⟨vector, Δ⟩/ρ, (ONE_HEAD, texts, heads, n)."""
        return (means * torch.einsum("tnd,hdr->thnr", vector, output)).sum(dim=-1).double() / rho

    ahead = along(unit)
    length = (size**2 + 2 * size * ahead + (means * turned).sum(dim=-1).double() / rho**2).clamp_min(1e-30).sqrt()
    cosine = (size + ahead) / length
    square = (2 - 2 * cosine).clamp_min(0)

    def onto(target: Tensor) -> tuple[Tensor, Tensor]:
        """(|target|², ⟨target, p⟩)"""
        start = (target * unit).sum(dim=-1).double().unsqueeze(1)
        return _square(target).unsqueeze(1), (size * start + along(target)) / length - start

    (total, inner), (above, upper) = (onto(target) for target in targets)
    both = (means[1:] * turned[:-1]).sum(dim=-1).double() / rho**2 + size * (ahead[1:] + ahead[:-1]) + size**2
    between = both / (length[1:] * length[:-1]) - cosine[1:] - cosine[:-1] + 1
    nexts = torch.cat([square[1:], above.expand_as(square[:1])]), torch.cat([between, upper[-1:]])
    many = chosen.unsqueeze(1)
    angles = inner / (total * square).clamp_min(1e-30).sqrt()
    found = {
        "head_share": _predicted(total, inner, square, many),
        "head_of_next": _predicted(*nexts, square, many),
        "head_cosine": (angles * many).sum(dim=-1) / many.sum(dim=-1),
    }
    return {name: value.transpose(0, 1) for name, value in found.items()}


def _all_heads(update: Tensor, rest: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """share, of_next and cosine, see `measured`. rest : the rungs from "all heads" on, then other texts"""
    total, square = _square(update), _square(rest)
    inner = (update * rest).sum(dim=-1).double()
    between = (rest[:-2] * rest[1:-1]).sum(dim=-1).double()
    angles = inner / (total * square).clamp_min(1e-30).sqrt()
    unknown = torch.full((len(update), ONE_HEAD), torch.nan, dtype=torch.float64)
    found = {
        "share": _predicted(total, inner, square, chosen),
        "of_next": _predicted(square[1:-1], between, square[:-2], chosen),
        "cosine": (angles * chosen).sum(dim=-1) / chosen.sum(dim=-1),
    }
    # The layer itself and other texts have no rung above them.
    found["of_next"] = torch.cat([found["of_next"], torch.full_like(found["share"][:2], torch.nan)])
    return {name: torch.cat([unknown, value.T.cpu()], dim=1) for name, value in found.items()}


def _square(vectors: Tensor) -> Tensor:
    """|v|² in float64, without a copy of the vectors."""
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64).square()


def _predicted(total: Tensor, inner: Tensor, square: Tensor, chosen: Tensor) -> Tensor:
    """1 − Σ|t − p|²/Σ|t|² over the chosen tokens, from |t|², ⟨t, p⟩ and |p|²."""
    whole = (total * chosen).sum(dim=-1)
    return 1 - ((total - 2 * inner + square) * chosen).sum(dim=-1) / whole.clamp_min(1e-30)
