"""Smaller encoders from recipes: the choice of parts, their removal, healing, and the form that runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metastable.encoder.compress import surgery
from metastable.encoder.compress.fidelity import unit
from metastable.encoder.compress.healing import Targets, heal
from metastable.encoder.compress.importance import Usage, gradient, magnitude, usage
from metastable.encoder.compress.merging import merge_tokens
from metastable.encoder.compress.recipe import OURS, RULES, Recipe
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.load import Encoder
from metastable.encoder.pooling import embed, pooled
from metastable.encoder.texts import Batch

GRADIENT_TEXTS = 64
"""Texts that gradients are taken on."""
HEALED = 3
"""Layers that are missed least without healing, of which the one that is missed least with healing goes."""

ByLayer = Mapping[int, Sequence[int]]
"""Numbers of heads or neurons by layer."""
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Made:
    """A smaller encoder.

    even : in the form that plain transformers opens, without merging and int8
    removal : what is gone; healed : the number of maps that were refitted
    after : the number of layers after which tokens are merged
    """

    recipe: Recipe
    even: Encoder
    removal: Removal
    healed: int

    @property
    def after(self) -> int:
        return merge_after(len(self.even.anatomy.blocks))

    @cached_property
    def fast(self) -> Encoder:
        """In the form that runs: smaller shapes, and int8 if the recipe says so."""
        return fast_form(self.even, self.removal, self.recipe.int8)

    @contextmanager
    def running(self) -> Iterator[Encoder]:
        """The fast form, with merged tokens if the recipe says so."""
        context: Any = nullcontext()
        if self.recipe.merge:
            context = merge_tokens(self.fast.model, self.after, share=self.recipe.merge)
        with context:
            yield self.fast


def merge_after(depth: int) -> int:
    """Tokens are merged after this many of `depth` layers."""
    return max(1, depth // 2)


def fast_form(even: Encoder, removal: Removal, int8: bool) -> Encoder:
    """An encoder of its own in the cut form. Its anatomy still names the modules, but not their new shapes."""
    found = surgery.cut(even, removal)
    if int8:
        quantise(found)
    return found


def quantise(encoder: Encoder) -> None:
    """Put the linear maps of the layers in int8, by channel, with inputs quantised as they come, in place."""
    from torch.ao.nn.quantized.dynamic import Linear
    from torch.ao.quantization import per_channel_dynamic_qconfig

    names = {id(module): name for name, module in encoder.model.named_modules()}
    maps = {id(linear): linear for block in encoder.anatomy.blocks for linear in block.maps}
    for key, linear in maps.items():
        parent, _, name = names[key].rpartition(".")
        setattr(linear, "qconfig", per_channel_dynamic_qconfig)  # noqa: B010
        setattr(encoder.model.get_submodule(parent), name, Linear.from_float(linear))


def megabytes(model: nn.Module) -> float:
    """The size of all weights, 4 bytes for each number and 1 byte for each number in int8."""
    total = sum(4 * weight.numel() for weight in model.parameters())
    packed: list[Any] = [module for module in model.modules() if hasattr(module, "_weight_bias")]
    for module in packed:
        if "quantized" in type(module).__module__:
            weight, bias = module._weight_bias()
            total += weight.numel() + (0 if bias is None else 4 * bias.numel())
    return total / 1e6


@dataclass
class Builder:
    """Makes smaller encoders from one full encoder.

    fit : texts for importance and healing; select : texts for every choice between candidates
    task : the score of an encoder on a task of the user, the higher the better; None if there is none
    greedy : layers in the order in which they go, as far as it is known
    """

    full: Encoder
    fit: Sequence[Batch]
    select: Sequence[Batch]
    pooling: str
    task: Callable[[Encoder], float] | None = None
    greedy: list[int] = field(default_factory=list)

    @cached_property
    def usage(self) -> Usage:
        return usage(self.full, self.fit)

    @cached_property
    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        some, count = [], 0
        for batch in self.fit:
            if count < GRADIENT_TEXTS:
                some.append(batch)
                count += len(batch.mask)
        return gradient(self.full, some, self.usage, lambda hidden, mask: pooled(hidden, mask, self.pooling))

    @cached_property
    def _targets(self) -> Targets:
        return Targets(self.full, [*self.fit, *self.select])

    @cached_property
    def reference(self) -> Floats:
        """The embeddings of `select` by the full encoder."""
        return embed(self.full, self.select, self.pooling)

    def scores(self, kind: str, rule: str) -> list[Tensor]:
        """The scores of heads or neurons of each layer; the lowest go first."""
        place = 0 if kind == "heads" else 1
        if rule == OURS:
            return self._gradients[place]
        if rule == "update":
            return self.usage.head_update if kind == "heads" else self.usage.neuron_update
        if rule == "magnitude":
            return magnitude(self.full)[place]
        drawn = torch.Generator().manual_seed(0)
        return [torch.rand(len(score), generator=drawn) for score in magnitude(self.full)[place]]

    def make(self, recipe: Recipe) -> Made:
        """The smaller encoder of a recipe."""
        layers = self.layers(recipe.layers, recipe.rule or RULES["layers"][0])
        kept = [layer for layer in range(len(self.full.anatomy.blocks)) if layer not in layers]
        heads = self._heads(recipe.heads, recipe.rule or RULES["heads"][0], kept)
        neurons = self._neurons(recipe.neurons, recipe.rule or RULES["neurons"][0], kept)
        return self.removed(self._named(recipe, kept, heads, neurons), Removal(tuple(layers), heads, neurons))

    def _named(self, recipe: Recipe, kept: Sequence[int], heads: ByLayer, neurons: ByLayer) -> Recipe:
        """The recipe with the shares that really go: of the heads, and of the neurons, in the layers that stay."""
        every = sum(self.full.anatomy.layers[layer].heads for layer in kept)
        cells = sum(self.full.anatomy.blocks[layer].outer.in_features for layer in kept)
        return replace(
            recipe,
            heads=sum(map(len, heads.values())) / every,
            neurons=sum(map(len, neurons.values())) / cells,
        )

    def removed(self, recipe: Recipe, removal: Removal) -> Made:
        """The smaller encoder without the parts of a removal; refits that lose on `select` are undone."""
        found = surgery.without_layers(self.full, removal.layers)
        kept = [layer for layer in range(len(self.full.anatomy.blocks)) if layer not in removal.layers]
        done: set[int] = set()
        for place, layer in enumerate(kept):
            block = id(found.anatomy.blocks[place].module)
            if block in done:
                continue
            done.add(block)
            if gone := removal.heads.get(layer):
                surgery.remove_heads(found, place, gone, self.usage.head_mean[layer])
            if cells := removal.neurons.get(layer):
                surgery.remove_neurons(found, place, cells, self.usage.neuron_mean[layer])
        plain = found.separate() if recipe.healed else found
        count = heal(self._targets, found, removal, len(self.fit)) if recipe.healed else 0
        if count and not self.loss(found) < self.loss(plain):
            return Made(recipe, plain, removal, 0)
        return Made(recipe, found, removal, count)

    def loss(self, encoder: Encoder) -> float:
        """1 − the mean cosine to the full encoder, on `select`."""
        found = embed(encoder, self.select, self.pooling)
        return 1 - float((unit(found) * unit(self.reference)).sum(axis=1).mean())

    def layers(self, count: int, rule: str) -> list[int]:
        """The layers that go, by a rule."""
        allowed = surgery.removable_layers(self.full.anatomy, self.full.model.config)
        if rule == "last" or self.full.anatomy.tied:
            return sorted(allowed[len(allowed) - count :])
        if rule == "influence":
            return sorted(sorted(allowed, key=lambda layer: self.usage.influence[layer])[:count])
        if rule == "random":
            return sorted(random.Random(0).sample(allowed, count))
        while len(self.greedy) < count:
            self.greedy.append(self._next_layer([layer for layer in allowed if layer not in self.greedy]))
        return sorted(self.greedy[:count])

    def _next_layer(self, candidates: Sequence[int]) -> int:
        """The layer that is missed least: by the task if there is one, else by the cosine to the full encoder."""
        recipe = Recipe(layers=len(self.greedy) + 1, healed=False)

        def loss(layer: int, healed: bool) -> float:
            removal = Removal(tuple(sorted([*self.greedy, layer])))
            smaller = self.removed(replace(recipe, healed=healed), removal).even
            return self.loss(smaller) if self.task is None else -self.task(smaller)

        near = sorted(candidates, key=lambda layer: loss(layer, False))[:HEALED]
        return min(near, key=lambda layer: loss(layer, True))

    def _heads(self, share: float, rule: str, kept: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The heads with the lowest scores in all layers that stay; every layer keeps one head."""
        if not share:
            return {}
        scores = self.scores("heads", rule)
        if self.full.anatomy.tied:
            total = torch.stack(scores).sum(dim=0)
            gone = tuple(sorted(total.argsort()[: round(share * len(total))].tolist()[: len(total) - 1]))
            return dict.fromkeys(kept, gone)
        order = sorted((float(score), layer, head) for layer in kept for head, score in enumerate(scores[layer]))
        wanted = round(share * len(order))
        found: dict[int, list[int]] = {}
        for _, layer, head in order:
            if wanted and len(found.get(layer, [])) < len(scores[layer]) - 1:
                found.setdefault(layer, []).append(head)
                wanted -= 1
        return {layer: tuple(sorted(gone)) for layer, gone in sorted(found.items())}

    def _neurons(self, share: float, rule: str, kept: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The same number of neurons in each layer, so that plain transformers can hold the smaller shapes."""
        if not share:
            return {}
        scores = self.scores("neurons", rule)
        if self.full.anatomy.tied:
            scores = [torch.stack(list(scores)).sum(dim=0)] * len(scores)
        count = min(round(share * len(scores[0])), len(scores[0]) - 1)
        return {layer: tuple(sorted(scores[layer].argsort()[:count].tolist())) for layer in kept}
