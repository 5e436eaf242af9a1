"""Merging tokens at run time: tokens that have come together are one token that counts as many.

After the first k layers of a forward pass, the ordinary tokens of each text are put into clusters, and each cluster C
goes on as one token: with hidden states x_i and weight w = |C|,

    x_C = (1/w) Σ_{i in C} x_i,   scores of key C in every later layer: s_C + log w.

The second rule makes the token count w times in the softmax. It is exact for tokens that are equal. After the last
layer each position gets the state of its cluster, so that the output keeps its shape.

With a `share`, clusters are those of Ward's method: the pair whose union raises Σ_C Σ_{i in C} |x_i − x_C|² the least
is merged first, until the share of the text's ordinary tokens is gone. The lengths of the x_i count here: unit
vectors gave worse embeddings in trials. With a `distance`, clusters are those of average linkage: the closest pair
is merged first, by the mean of 1 − cos(x_i, x_j) over members i and j, until the closest pair is at least the distance
apart.

A cluster has the position of its first member, where later layers use positions: rotations and windows (ModernBERT) and
relative positions (MPNet, DeBERTa-v2).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from metastable.arrays import real, whole
from metastable.encoder.families import FAMILIES
from metastable.encoder.families.stack import blocked
from metastable.encoder.load import Encoder
from metastable.errors import BadInput
from metastable.files import Mutex

IMPLEMENTATIONS = ("eager", "sdpa")
"""Attention of transformers that takes a number for each key."""

_ACTIVE: WeakSet[nn.Module] = WeakSet()
"""The base models whose tokens are being merged."""

SPECIAL = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id", "mask_token_id")
"""Settings of a model that name special tokens."""


def merge_tokens(model: Any, after: int, share: float | None = None, distance: float | None = None) -> TokenMerging:
    """Merge tokens in every forward pass of a live model, as a context manager.

    >>> with ms.merge_tokens(model, after=3, share=0.25) as merging:       # doctest: +SKIP
    ...     output = model(**inputs)
    >>> merging.merged.tokens_in, merging.merged.tokens_kept               # doctest: +SKIP

    Special tokens are not merged: those that the settings of the model or the tokenizer of an `Encoder` name, the first
    and the last token of a text, and tokens with the same ids as these two. Padding is not merged and not counted.
    Texts of a batch do not influence each other. A pass in which nothing is merged, as with share 0, is bit for bit
    that of the plain model.

    The time of the layers after `after` falls by about the share. Clusters are made on the CPU, one text after the
    other, which takes a few per cent of a pass. Single texts of some 20 tokens become slower, and single texts of some
    100 tokens gain little; batches and longer texts become faster. Enter the context once for many passes. `distance`
    promises no speed: it may merge nothing.

    Hidden states between layers and attention weights would have the shapes of merged tokens, so passes with
    output_hidden_states or output_attentions are refused. Leave the context when no other thread runs the model.

    model : a model of transformers with or without a task head, in eval mode, or an `Encoder`
    after : k, the number of layers before the merging, from 1 to the number of layers − 1
    share : the share of each text's ordinary tokens that disappear, 0 ≤ share < 1, rounded down to whole tokens
    distance : the cosine distance below which clusters are merged, from 0 to 2; the number of tokens varies by text
    """
    return TokenMerging(model, after, share, distance)


@dataclass(frozen=True)
class Merged:
    """Counts of forward passes, and of their tokens without padding before and after merging."""

    passes: int = 0
    tokens_in: int = 0
    tokens_kept: int = 0


class TokenMerging:
    """The context manager of `merge_tokens`, which explains its arguments.

    merged : the counts so far; they stay after the end
    """

    def __init__(self, model: Any, after: int, share: float | None, distance: float | None) -> None:
        self._base, tokenizer = _live(model)
        self._layers = _layers(self._base)
        last = len(self._layers) - 1
        if last < 1:
            raise BadInput("the model has 1 layer; tokens are merged between layers, so it needs 2 or more")
        rule = f"the model has {last + 1} layers, so give a whole number from 1 to {last}"
        self.after = whole(after, "after", 1, rule)
        if self.after > last:
            raise BadInput(f"after is {after}; {rule}")
        if (share is None) == (distance is None):
            raise BadInput(f"share is {share} and distance is {distance}; give exactly one of them")
        self.share = None if share is None else real(share, "share", "give 0 ≤ share < 1", allowed=lambda s: s < 1)
        self.distance = (
            None if distance is None else real(distance, "distance", "give 0 ≤ distance ≤ 2", allowed=lambda d: d <= 2)
        )
        self.merged = Merged()
        config = self._base.config
        ids = {getattr(config, name, None) for name in SPECIAL} | set(getattr(tokenizer, "all_special_ids", ()))
        self._special = torch.tensor(sorted(i for i in ids if isinstance(i, int)), dtype=torch.long)
        kinds = {type(module) for module in (self._base, *self._layers)}
        self._signatures = {kind: inspect.signature(kind.forward) for kind in kinds}
        # DeBERTa has a mask of its keys, but takes no numbers for them.
        self._after_softmax = config.model_type == "deberta-v2"
        self._local = threading.local()
        self._lock = Mutex()
        self._handles: list[Any] = []

    def __repr__(self) -> str:
        how = f"distance={self.distance:g}" if self.share is None else f"share={self.share:g}"
        counts = self.merged
        return (
            f"TokenMerging(after layer {self.after} of {len(self._layers)}, {how}: {counts.passes} passes, "
            f"{counts.tokens_in} tokens in, {counts.tokens_kept} kept)"
        )

    def __enter__(self) -> TokenMerging:
        if self._base in _ACTIVE:
            raise BadInput("the tokens of this model are merged already; leave that context first")
        _ACTIVE.add(self._base)
        add = self._handles.append
        try:
            add(self._base.register_forward_pre_hook(self._hook(self._begin), with_kwargs=True))
            add(self._base.register_forward_hook(self._hook(self._end), always_call=True))
            # A shared layer stands in the list many times.
            for layer in dict.fromkeys(self._layers):
                add(layer.register_forward_pre_hook(self._hook(self._before), with_kwargs=True))
                add(layer.register_forward_hook(self._hook(self._behind)))
                if self._after_softmax:
                    add(layer.attention.self.dropout.register_forward_hook(self._hook(self._reweigh)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _ACTIVE.discard(self._base)

    def _hook(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method as a function, which a copy of the model can share. It does nothing after the end."""

        def hook(module: nn.Module, *rest: Any) -> Any:
            return method(module, *rest) if self._handles else None

        return hook

    def _passes(self) -> list[_Pass]:
        """The passes of this thread, the innermost last."""
        if not hasattr(self._local, "passes"):
            self._local.passes = []
        passes: list[_Pass] = self._local.passes
        return passes

    def _begin(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        own = _Pass()
        self._passes().append(own)
        if module.training:
            raise BadInput("the model is in training mode, where tokens are not merged; call model.eval()")
        if torch.jit.is_tracing() or torch.compiler.is_compiling():
            raise BadInput("the model is being traced, and other texts need other clusters; trace it without merging")
        given = self._signatures[type(module)].bind_partial(module, *arguments, **named).arguments
        given = {**given.get("kwargs", {}), **given}
        for name in ("output_hidden_states", "output_attentions"):
            asked = given.get(name)
            if asked or (asked is None and getattr(module.config, name, False)):
                raise BadInput(f"{name} is set, and merged tokens have other shapes; switch it off or do not merge")
        own.ids, own.mask = given.get("input_ids"), given.get("attention_mask")
        if own.mask is not None and getattr(own.mask, "ndim", 0) != 2:
            raise BadInput("the attention mask is not of shape (texts, n), so padding is not known; give such a mask")

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        passes = self._passes()
        if not passes:
            # The pass began before the context was entered.
            return
        own = passes.pop()
        # Without an output the model failed.
        if output is not None:
            with self._lock:
                so_far = self.merged
                self.merged = Merged(
                    so_far.passes + 1, so_far.tokens_in + own.tokens_in, so_far.tokens_kept + own.tokens_kept
                )

    def _before(self, layer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The arguments of a layer, for merged tokens."""
        passes = self._passes()
        if not passes:
            return None
        own = passes[-1]
        own.layer += 1
        if own.layer < self.after:
            return None
        bound = self._signatures[type(layer)].bind(layer, *arguments, **named)
        given = bound.arguments
        if own.layer == self.after:
            self._merge(own, given["hidden_states"])
            if own.clusters is not None:
                given["hidden_states"] = own.clusters.means(given["hidden_states"])
        if own.clusters is None:
            return None
        if self._after_softmax:
            given["attention_mask"] = own.clusters.real[:, None, None, :]
        else:
            given["attention_mask"] = own.clusters.scores(given["hidden_states"], _window(self._base, layer))
        for name, moved in POSITIONS.items():
            if given.get(name) is not None:
                given[name] = moved(own.clusters, given[name], layer)
        return bound.args[1:], bound.kwargs

    def _behind(self, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """The output of the last layer, for all positions."""
        passes = self._passes()
        if not passes or passes[-1].clusters is None or passes[-1].layer != len(self._layers) - 1:
            return None
        clusters = passes[-1].clusters
        return (clusters.spread(output[0]), *output[1:]) if isinstance(output, tuple) else clusters.spread(output)

    def _reweigh(self, dropout: nn.Module, arguments: tuple[Any, ...], attention: Tensor) -> Tensor | None:
        """Attention p ∝ e^s after the softmax becomes p ∝ w e^s."""
        passes = self._passes()
        if not passes or passes[-1].clusters is None:
            return None
        counted = attention * passes[-1].clusters.weight[:, None, None, :].to(attention)
        return counted / counted.sum(dim=-1, keepdim=True)

    def _merge(self, own: _Pass, hidden: Tensor) -> None:
        """Put the tokens of a pass into clusters. `own.clusters` stays None if nothing is merged."""
        texts, n = hidden.shape[:2]
        mask = hidden.new_ones((texts, n), dtype=torch.bool) if own.mask is None else own.mask.bool().to(hidden.device)
        own.tokens_in = own.tokens_kept = int(mask.sum())
        ordinary = self._ordinary(mask, own.ids)
        found = self._first_members(hidden.detach(), ordinary)
        if found is not None:
            own.clusters = _Clusters.of(found.to(hidden.device), mask)
            own.tokens_kept = int(own.clusters.real.sum())

    def _ordinary(self, mask: Tensor, ids: Tensor | None) -> Tensor:
        """(texts, n) of bool: the tokens that may be merged."""
        positions = torch.arange(mask.shape[1], device=mask.device)
        first = mask.int().argmax(dim=1, keepdim=True)
        ordinary = mask & (positions != first)
        if self._base.config.model_type == "vit":
            # The last token is a part of the image like the others.
            return ordinary
        last = torch.where(mask, positions, 0).amax(dim=1, keepdim=True)
        ordinary &= positions != last
        if ids is not None:
            ids = ids.to(mask.device)
            ordinary &= ~torch.isin(ids, self._special.to(ids.device))
            # The settings of BERT do not name [CLS] and [SEP].
            ordinary &= (ids != ids.gather(1, first)) & (ids != ids.gather(1, last))
        return ordinary

    def _first_members(self, hidden: Tensor, ordinary: Tensor) -> Tensor | None:
        """(texts, n): the position of the first member of each position's cluster; None if nothing is merged."""
        counts = ordinary.sum(dim=1)
        most = (counts - 1).clamp_min(0)
        if self.share is not None:
            # A share such as 0.29 of 100 tokens is 28.999999999999996 tokens in floating point.
            most = torch.minimum(most, (self.share * counts.double() + 1e-9).long())
        limits, chosen = most.tolist(), ordinary.cpu().numpy()
        if not any(limits):
            return None
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            apart = _distances(hidden.float(), cosine=self.share is None).cpu().numpy()
        first = np.tile(np.arange(ordinary.shape[1]), (len(limits), 1))
        changed = False
        for text in np.flatnonzero(limits):
            places = np.flatnonzero(chosen[text])
            between = squareform(apart[text][np.ix_(places, places)], checks=False)
            if not np.isfinite(between).all():
                # The model goes on with its own infinite or undefined numbers.
                continue
            merges = linkage(between, "average" if self.share is None else "ward")[: limits[text]]
            if self.distance is not None:
                merges = merges[merges[:, 2] < self.distance]
            first[text, places] = places[_first(merges[:, :2].astype(np.intp), len(places))]
            changed = changed or len(merges) > 0
        return torch.from_numpy(first) if changed else None


@dataclass
class _Pass:
    """One forward pass.

    ids, mask : the inputs of the model
    layer : the number of the current layer
    clusters : None before the merging, and where nothing was merged
    """

    ids: Tensor | None = None
    mask: Tensor | None = None
    layer: int = -1
    clusters: _Clusters | None = None
    tokens_in: int = 0
    tokens_kept: int = 0


@dataclass(frozen=True)
class _Clusters:
    """The clusters of the texts of a batch, in the order of their first members; m is the largest number in a text.

    mask : (texts, n) of bool, tokens that are no padding
    slot : (texts, n), the number of the cluster of each position; 0 for padding
    first : (texts, m), the position of the first member
    real : (texts, m) of bool, False for padding
    weight : (texts, m) of float32, the number of members; 1 for padding
    """

    mask: Tensor
    slot: Tensor
    first: Tensor
    real: Tensor
    weight: Tensor
    made: dict[Any, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, first: Tensor, mask: Tensor) -> _Clusters:
        """first : (texts, n), the position of the first member of each position's cluster."""
        kept = mask & (first == torch.arange(first.shape[1], device=first.device))
        counts = kept.sum(dim=1, keepdim=True)
        m = int(counts.max())
        slot = (kept.cumsum(dim=1) - 1).gather(1, first).masked_fill(~mask, 0)
        places = (~kept).int().argsort(dim=1, stable=True)[:, :m]
        weight = torch.zeros(places.shape, device=mask.device).scatter_add_(1, slot, mask.float())
        return cls(mask, slot, places, torch.arange(m, device=mask.device) < counts, weight.clamp_min_(1.0))

    def means(self, hidden: Tensor) -> Tensor:
        """(texts, n, d) → (texts, m, d); 0 for padding."""
        texts, m = self.first.shape
        flat = self.slot + m * torch.arange(texts, device=self.slot.device)[:, None]
        # Padding may hold NaN, so it is left out and not multiplied by 0.
        sums = hidden.new_zeros((texts * m, hidden.shape[2])).index_add(0, flat[self.mask], hidden[self.mask])
        return sums.unflatten(0, (texts, m)) / self.weight.to(hidden)[..., None]

    def spread(self, states: Tensor) -> Tensor:
        """(texts, m, d) → (texts, n, d): each position gets the state of its cluster, padding that of the first."""
        return states.gather(1, self.slot[..., None].expand(-1, -1, states.shape[2]))

    def scores(self, hidden: Tensor, window: int | None) -> Tensor:
        """What is added to the scores, (texts, 1, 1 or m, m): log w, and the most negative number for what is not seen.

        window : the largest distance of positions that a token sees; None for all
        """
        if window not in self.made:
            seen = self.real[:, None, None, :]
            if window is not None:
                seen = seen & ((self.first[:, :, None] - self.first[:, None, :]).abs() <= window)[:, None]
            device = hidden.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
            counts = self.weight.log().to(dtype)
            self.made[window] = blocked(seen, counts) + counts[:, None, None, :]
        return self.made[window]

    def rotations(self, given: tuple[Tensor, ...], layer: Any) -> tuple[Tensor, ...]:
        """Cosines and sines, each (1 or texts, n, width) → (texts, m, width)."""
        return tuple(
            part.expand(len(self.first), -1, -1).gather(1, self.first[..., None].expand(-1, -1, part.shape[2]))
            for part in given
        )

    def bias(self, given: Tensor, layer: Any) -> Tensor:
        """The bias of relative positions, (texts, heads, n, n) and the same for all texts → (texts, heads, m, m)."""
        if "bias" not in self.made:
            self.made["bias"] = given[0][:, self.first[:, :, None], self.first[:, None, :]].transpose(0, 1)
        return self.made["bias"]

    def relative(self, given: Tensor, layer: Any) -> Tensor:
        """Relative positions, (1, n, n) → (1, texts·heads, m, m), which is the only form that DeBERTa takes by text."""
        if "relative" not in self.made:
            self.made["relative"] = given[0][self.first[:, :, None], self.first[:, None, :]]
        return self.made["relative"].repeat_interleave(layer.attention.self.num_attention_heads, dim=0)[None]


POSITIONS: dict[str, Callable[[_Clusters, Any, Any], Any]] = {
    "position_embeddings": _Clusters.rotations,
    "position_bias": _Clusters.bias,
    "relative_pos": _Clusters.relative,
}
"""Arguments of layers that depend on positions, and the same for clusters."""


def _live(model: Any) -> tuple[Any, Any]:
    """The base model that hooks are put on, and the tokenizer if it is known."""
    from transformers import PreTrainedModel

    if isinstance(model, Encoder):
        base, tokenizer = model.model, model.tokenizer
    elif isinstance(model, PreTrainedModel):
        base, tokenizer = model.base_model, None
    else:
        kind = f"the name {str(model)!r}" if isinstance(model, str) else f"of type {type(model).__name__}"
        raise BadInput(f"model is {kind}; give a live model of transformers or an Encoder")
    config = base.config
    if config.model_type not in FAMILIES:
        raise BadInput(f"model type {config.model_type!r} is not known; known are {', '.join(sorted(FAMILIES))}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise BadInput("the model is set up as a decoder (is_decoder), where tokens see only earlier tokens")
    if (attention := config._attn_implementation or "eager") not in IMPLEMENTATIONS:
        raise BadInput(f"attention {attention!r} takes no weights of tokens; load with attn_implementation='sdpa'")
    if any(hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) for part in base.modules()):
        raise BadInput("the model is compiled, and compiled code skips hooks; merge tokens in the plain model")
    return base, tokenizer


def _layers(base: Any) -> list[Any]:
    """The layers in the order of a pass. Their weights are not looked at: they may be int8, or lack heads."""
    family = base.config.model_type
    if family == "albert":
        depth, groups = base.config.num_hidden_layers, base.encoder.albert_layer_groups
        return [layer for i in range(depth) for layer in groups[int(i / (depth / len(groups)))].albert_layers]
    if family == "distilbert":
        return list(base.transformer.layer)
    return list(base.layers if family in ("modernbert", "vit") else base.encoder.layer)


def _window(base: Any, layer: Any) -> int | None:
    """The largest distance of positions that a token sees in a layer; None for all."""
    slides = getattr(layer, "attention_type", "") == "sliding_attention"
    return int(base.config.sliding_window) if slides else None


def _distances(x: Tensor, cosine: bool) -> Tensor:
    """(texts, n, d) → (texts, n, n): 1 − cos(x_i, x_j), or |x_i − x_j|."""
    if cosine:
        unit = nn.functional.normalize(x, dim=2)
        return (1 - unit @ unit.mT).clamp_min_(0)
    squares = x.square().sum(dim=2)
    both = squares[:, :, None] + squares[:, None, :]
    return both.baddbmm_(x, x.mT, alpha=-2).clamp_min_(0).sqrt_()


def _first(merges: np.ndarray, count: int) -> np.ndarray:
    """(count,): the first member of each token's cluster.

    merges : (r, 2), the clusters that are merged, in order, as `linkage` numbers them: merge t makes cluster count + t
    """
    root = np.arange(count + len(merges))
    for t in reversed(range(len(merges))):
        root[merges[t]] = root[count + t]
    _, first, cluster = np.unique(root[:count], return_index=True, return_inverse=True)
    return first[cluster]
