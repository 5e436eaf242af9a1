"""Removing layers, heads and neurons from an encoder.

A head that goes is replaced by its mean contribution, which costs nothing: with c_h the context of head h and W_h its
columns of the output map, Σ_h W_h c_h + b becomes Σ_{h kept} W_h c_h + (b + Σ_{h gone} W_h c̄_h). Neurons go in the
same way, with their activations in place of contexts. A layer goes without a replacement; `healing` makes up for it.

A removal has two forms that compute the same. In the *even* form the weights of removed heads and neurons are zero, the
shapes stay, and plain transformers opens the model. In the *cut* form they are gone, and the model is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, LayerModules
from metastable.encoder.families import anatomy
from metastable.encoder.load import Encoder
from metastable.errors import BadInput

UNCUT = ("mpnet", "deberta-v2")
"""Families whose heads also read tables of relative positions that all heads or layers share. Their heads are removed
in the even form only."""

NEURONS = ("intermediate_size", "hidden_dim")
"""Names of the number of neurons in the configurations of the families."""


@dataclass(frozen=True)
class Removal:
    """What goes, by the numbers of the layers of the full encoder.

    heads, neurons : by layer
    """

    layers: tuple[int, ...] = ()
    heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    neurons: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        by_layer = {"heads": self.heads, "neurons": self.neurons}
        return {
            "layers": list(self.layers),
            **{name: {str(layer): list(gone) for layer, gone in part.items()} for name, part in by_layer.items()},
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Removal:
        heads, neurons = (
            {int(layer): tuple(gone) for layer, gone in saved[name].items()} for name in ("heads", "neurons")
        )
        return cls(tuple(saved["layers"]), heads, neurons)


def removable_layers(found: Anatomy, family_config: Any) -> list[int]:
    """The layers that can go such that the rest is a model of the same family.

    Of a shared layer only the last calls can go. Layers of ALBERT in several groups stay. The first layers stay where
    they differ from the others: ModernBERT's first layer has no normalisation of its own, and a convolution lies
    between the first and the second layer of some DeBERTa.
    """
    depth = len(found.blocks)
    if found.tied:
        return list(range(1, depth))
    if len({id(block.module) for block in found.blocks}) < depth or found.family == "albert":
        return []
    convolved = getattr(family_config, "conv_kernel_size", 0) > 0
    return list(range(2 if convolved else 1 if found.family == "modernbert" else 0, depth))


def without_layers(encoder: Encoder, gone: Iterable[int]) -> Encoder:
    """An encoder with weights of its own, without some layers."""
    found = encoder.separate()
    gone = sorted(set(gone))
    if not gone:
        return found
    allowed, depth = removable_layers(found.anatomy, found.model.config), len(found.anatomy.blocks)
    wrong = [layer for layer in gone if layer not in allowed]
    if wrong or len(gone) >= depth:
        which = f"removable are {allowed[0]} to {allowed[-1]}, and one must stay" if allowed else "none is removable"
        raise BadInput(f"layers {gone} cannot be removed from {encoder.name!r}; {which}")
    kept = [layer for layer in range(depth) if layer not in gone]
    config = found.model.config
    if not found.anatomy.tied:
        layers = _module_list(found)
        modules = [layers[layer] for layer in kept]
        del layers[len(kept) :]
        for place, module in enumerate(modules):
            layers[place] = module
        types = getattr(config, "layer_types", None)
        if types is not None:
            config.layer_types = [types[layer] for layer in kept]
    config.num_hidden_layers = len(kept)
    return replace(found, anatomy=anatomy(found.model))


def first_layers(encoder: Encoder, count: int) -> Encoder:
    """An encoder with weights of its own and only the first `count` layers."""
    return without_layers(encoder, range(count, len(encoder.anatomy.blocks)))


def _module_list(encoder: Encoder) -> nn.ModuleList:
    first = encoder.anatomy.blocks[0].module
    return next(m for m in encoder.model.modules() if isinstance(m, nn.ModuleList) and len(m) and m[0] is first)


def remove_heads(encoder: Encoder, layer: int, heads: Sequence[int], mean: Tensor) -> None:
    """Replace heads by their mean contribution, in the even form.

    mean : (heads·width,), the mean input of the output map, all heads side by side
    """
    columns = torch.zeros(encoder.anatomy.layers[layer].heads, dtype=torch.bool)
    columns[list(heads)] = True
    output = encoder.anatomy.blocks[layer].output
    _silence(output, columns.repeat_interleave(output.in_features // len(columns)), mean)


def remove_neurons(encoder: Encoder, layer: int, neurons: Sequence[int], mean: Tensor) -> None:
    """Replace neurons by their mean contribution, in the even form. mean : (neurons,), their mean activations"""
    outer = encoder.anatomy.blocks[layer].outer
    columns = torch.zeros(outer.in_features, dtype=torch.bool)
    columns[list(neurons)] = True
    _silence(outer, columns, mean)


def _silence(linear: nn.Linear, columns: Tensor, mean: Tensor) -> None:
    with torch.no_grad():
        if linear.bias is not None:
            linear.bias.add_(linear.weight[:, columns] @ mean[columns].to(linear.weight))
        linear.weight[:, columns] = 0.0


def plain_form(encoder: Encoder, removal: Removal) -> Encoder:
    """The encoder as plain transformers can hold it, without the removed neurons, which are as many in each layer.

    Removed heads stay as zeros: transformers derives the width of a head from their number.
    """
    found = cut(encoder, Removal(removal.layers, {}, removal.neurons))
    for name in NEURONS:
        if hasattr(found.model.config, name):
            setattr(found.model.config, name, found.anatomy.blocks[0].outer.in_features)
    return found


def cut(encoder: Encoder, removal: Removal) -> Encoder:
    """The encoder in the cut form. It is given in the even form, without the removed layers; see `Removal`."""
    found = encoder.separate()
    kept = [layer for layer in range(len(found.anatomy.blocks) + len(removal.layers)) if layer not in removal.layers]
    done: set[int] = set()
    for place, layer in enumerate(kept):
        block = found.anatomy.blocks[place]
        if id(block.module) in done:
            continue
        done.add(id(block.module))
        if removal.heads.get(layer) and found.anatomy.family not in UNCUT:
            _cut_heads(block, removal.heads[layer], found.anatomy.layers[place].heads)
        if removal.neurons.get(layer):
            keep = _others(removal.neurons[layer], block.outer.in_features)
            _keep_rows(block.inner, torch.cat([keep, keep + block.outer.in_features]) if block.gated else keep)
            _keep_columns(block.outer, keep)
    return found


def _cut_heads(block: LayerModules, heads: Sequence[int], count: int) -> None:
    keep = _others(heads, count)
    width = block.output.in_features // count
    numbers = torch.arange(block.output.in_features).reshape(count, width)[keep].reshape(-1)
    rows = numbers
    if len(block.linears) == 1:
        rows = torch.cat([numbers + part * block.output.in_features for part in range(3)])
    for linear in block.linears:
        _keep_rows(linear, rows)
    _keep_columns(block.output, numbers)


def _others(gone: Sequence[int], count: int) -> Tensor:
    return torch.tensor([number for number in range(count) if number not in set(gone)], dtype=torch.long)


def _keep_rows(linear: nn.Linear, rows: Tensor) -> None:
    linear.weight = nn.Parameter(linear.weight.detach()[rows].clone(), requires_grad=False)
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach()[rows].clone(), requires_grad=False)
    linear.out_features = len(rows)


def _keep_columns(linear: nn.Linear, columns: Tensor) -> None:
    linear.weight = nn.Parameter(linear.weight.detach()[:, columns].clone(), requires_grad=False)
    linear.in_features = len(columns)
