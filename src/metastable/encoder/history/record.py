"""One record of a training: the layers of an encoder as they are now, one row a depth.

Nothing here touches the model that is trained. The statistics on text run on a private copy of its modules that shares
the weights and is in eval mode, without gradients and without random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, LayerModules
from metastable.encoder.hooks import Depth, read
from metastable.encoder.load import Encoder
from metastable.encoder.measure import Meter
from metastable.encoder.statistics import embeddings, mean_cosine
from metastable.encoder.texts import TextCounts, batches, blank, read_texts, strings, tokenized
from metastable.encoder.weights import layer_table, theories, weigh
from metastable.errors import BadInput

TEXTS, LONGEST = 16, 128
"""The largest number of texts, and of tokens of a text: the cost of a record must not depend on the user's corpus."""
SAMPLE = 2**14
"""The number of weights of each part of a layer whose change is followed. The relative change is then exact to about
1 %, and to √(k/SAMPLE) where the changes have the kurtosis k."""
PARTS = ("attention", "perceptron")
"""The parts of a layer whose weights are followed."""
FEWEST = 4
"""The smallest number of different texts: an interval of their cosine leaves each of them out in turn."""
MATRICES, EMBEDDINGS, REST = "weight matrices of the layers", "embeddings", "biases, gains and other weights"
"""All weights of an encoder. The pooler follows the encoder and is left out."""
ON_TEXT = ("hidden_cosine", "effective_rank")
"""Statistics of the tokens of a text, each with the ends NAME_low and NAME_high of its 95 % interval over texts."""
OF_HEADS = ("gap", "value_norm", "value_rank")
"""Columns of heads whose median over the heads of a layer is recorded, besides beta, rate and entropy."""
CHANGES = tuple(f"{part}_change" for part in PARTS)
COLUMNS: dict[str, str] = {
    "step": "the number of training steps so far",
    "depth": "the input of this layer, counted from 0; the last depth is the output of the encoder",
    "beta": "effective inverse temperature, median over the heads of the layer",
    "gap": "spectral gap of M per layer, median over heads",
    "rate": "rate of concentration per layer, median over the heads that have one; 0 if none has one",
    "value_norm": "‖V‖₂, median over heads",
    "value_rank": "effective rank of V, median over heads",
    "entropy": "attention entropy over log n on the fixed texts, median over heads: 1 if all tokens get the same",
    "hidden_cosine": "mean cosine of two hidden states of a text at this depth, mean over texts",
    "effective_rank": "effective number of directions of the tokens of a text at this depth, mean over texts",
    "text_cosine": "mean cosine of two texts, each the mean of its hidden states at this depth",
    "attention_change": "‖W − W₀‖/‖W₀‖ of query, key, value and output weights since the first record",
    "perceptron_change": "‖W − W₀‖/‖W₀‖ of the weights of the perceptron since the first record",
}
"""The columns of `History.table` without the ends of intervals. Statistics of layers are NaN at the last depth."""


def fixed_texts(texts: str | Path | Iterable[str]) -> list[str]:
    """The first `TEXTS` different texts with a word. texts : a list, or a file with one text a line"""
    given = read_texts(texts) if isinstance(texts, (str, Path)) else strings(texts)
    found: list[str] = []
    for text in given:
        if not blank(text) and text not in found:
            found.append(text)
        if len(found) == TEXTS:
            break
    if len(found) < FEWEST:
        raise BadInput(f"there are {len(found)} different texts with a word; give at least {FEWEST}, better {TEXTS}")
    return found


def distinct(encoder: Encoder, texts: list[str]) -> list[str]:
    """The texts that the encoder can tell apart: those with a token, each sequence of tokens once."""
    found: dict[tuple[int, ...], str] = {}
    for row in tokenized(encoder.reads_text(), texts, min(encoder.limit, LONGEST), TextCounts()):
        found.setdefault(tuple(row.inputs["input_ids"]), texts[row.number])
    if len(found) < FEWEST:
        what = f"of {len(texts)} texts, the tokenizer makes {len(found)} different sequences of tokens"
        raise BadInput(f"{what}; give at least {FEWEST} different texts in the language of the encoder")
    return list(found.values())


def rows(encoder: Encoder, texts: list[str], first: np.ndarray) -> pd.DataFrame:
    """The columns of `COLUMNS` without the step, one row a depth. first : `sample` of the first record"""
    check_linear(encoder.anatomy)
    with torch.no_grad(), torch.autocast(encoder.device.type, enabled=False):
        known = theories(encoder.anatomy)
        meter = Meter(encoder, known=known)
        meter.limit = min(meter.limit, LONGEST)
        measured = meter.tally(texts)
        measured.counts.check()
        alike = _text_cosines(meter, texts)
    residuals = None
    if any(layer.pre_norm for layer in encoder.anatomy.layers):
        residuals = measured.layers["residual"].mean().tolist()
    heads = weigh(encoder.anatomy, residuals, known).heads
    totals, medians = layer_table(heads), heads.groupby("layer")[list(OF_HEADS)].median()
    of_layers = pd.DataFrame({"beta": totals["beta_median"], "rate": totals["rate_median"], **medians})
    of_layers["entropy"] = measured.head_table().groupby("layer")["entropy"].median()
    for column, change in zip(CHANGES, _changes(sample(encoder.anatomy), first), strict=True):
        of_layers[column] = change
    depths = measured.depth_table().set_index("depth")
    depths = depths[[name + end for name in ON_TEXT for end in ("", "_low", "_high")]]
    table = depths.join(of_layers).assign(**alike).reset_index()
    ends = [name for name in table.columns if name not in COLUMNS]
    return table[[*(name for name in COLUMNS if name in table), *ends]]


def _text_cosines(meter: Meter, texts: list[str]) -> dict[str, np.ndarray]:
    """The mean cosine of two texts at each depth and its 95 % interval (jackknife over texts), (L + 1,) each."""
    depths = range(len(meter.lenses) + 1)
    pooled: list[list[Tensor]] = [[] for _ in depths]

    def visit(depth: Depth) -> None:
        hidden, chosen = depth.tokens.hidden, depth.passage.chosen
        pooled[depth.index].append(embeddings(hidden, chosen))

    for batch in batches(meter.encoder.reads_text(), texts, meter.limit, len(texts)):
        read(meter.encoder, batch, meter.special, depths, visit)
    means = torch.stack([torch.cat(part) for part in pooled])
    count = means.shape[1]
    everyone = torch.ones(len(means), count, dtype=torch.bool, device=means.device)
    whole = mean_cosine(means, everyone).cpu().numpy()
    # One text is left out in turn, at every depth.
    others = ~torch.eye(count, dtype=torch.bool, device=means.device)
    parts = np.stack([mean_cosine(depth.expand(count, -1, -1), others).cpu().numpy() for depth in means])
    spread = ((parts - parts.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    reach = student.ppf(0.975, count - 1) * np.sqrt((count - 1) / count * spread)
    ends = {"low": np.maximum(whole - reach, -1.0), "high": np.minimum(whole + reach, 1.0)}
    return {"text_cosine": whole, **{f"text_cosine_{end}": value for end, value in ends.items()}}


def check_linear(anatomy: Anatomy) -> None:
    """Refuse a layer whose maps are not plain linear maps: an adapter beside a map would not be read."""
    for index, block in enumerate(anatomy.blocks):
        for linear in block.maps:
            if not isinstance(linear, nn.Linear):
                kind = type(linear).__name__
                raise BadInput(f"layer {index} has a {kind} in the place of a linear map; adapters cannot be followed")


def shapes(anatomy: Anatomy) -> list[list[int]]:
    """The shapes of the weight matrices of all layers, in order."""
    return [list(linear.weight.shape) for block in anatomy.blocks for linear in block.maps]


def checksums(encoder: Encoder) -> dict[str, int]:
    """The sum of the bits of all weights of each kind, as float32. `sample` would miss a change in a few places."""
    kinds = {id(linear.weight): MATRICES for block in encoder.anatomy.blocks for linear in block.maps}
    for module in encoder.model.modules():
        if isinstance(module, nn.Embedding):
            kinds[id(module.weight)] = EMBEDDINGS
    found = dict.fromkeys((MATRICES, EMBEDDINGS, REST), 0)
    for name, weight in encoder.model.named_parameters():
        if not name.startswith("pooler."):
            found[kinds.get(id(weight), REST)] += int(weight.detach().float().contiguous().view(torch.int32).sum())
    return found


def sample(anatomy: Anatomy) -> np.ndarray:
    """(parts, layers, SAMPLE): some weights of each part of each layer, always from the same places."""
    return np.stack([np.stack([_drawn(_maps(part, block)) for block in anatomy.blocks]) for part in PARTS])


def _maps(part: str, block: LayerModules) -> tuple[nn.Linear, ...]:
    return (*block.linears, block.output) if part == "attention" else (block.inner, block.outer)


def _drawn(maps: tuple[nn.Linear, ...]) -> np.ndarray:
    """(SAMPLE,): weights at random places of all these maps together, drawn with replacement."""
    sizes = [linear.weight.numel() for linear in maps]
    places = np.sort(np.random.default_rng(0).integers(0, sum(sizes), SAMPLE))
    parts, start = [], 0
    for linear, size in zip(maps, sizes, strict=True):
        own = torch.from_numpy(places[(start <= places) & (places < start + size)] - start)
        weight = linear.weight.detach().reshape(-1)
        parts.append(weight[own.to(weight.device)].float().cpu().numpy())
        start += size
    return np.concatenate(parts)


def _changes(now: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(parts, layers): ‖W − W₀‖/‖W₀‖; NaN where W₀ = 0."""
    size = np.linalg.norm(first.astype(float), axis=-1)
    moved = np.linalg.norm(now.astype(float) - first, axis=-1)
    return moved / np.where(size > 0, size, np.nan)
