"""The tokens of the theory in a running encoder: hooks that read and change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm


@dataclass(frozen=True)
class Tokens:
    """Tokens of a batch at one depth, float32; 0 where there is padding.

    z : (texts, n, d), the standardised stream; x itself where no normalisation stands before the layer
    unit : (texts, n, d), x̂ = z/|z|, without the features that the normalisation's gain erases
    length : (texts, n), the |z| that is; 1 where there is padding
    stream : (texts, n), |C h|, the length of the stream before it was standardised, mean over features taken off
    hidden : (texts, n, d), the hidden state as the model hands it on: γz + b, or h in a pre-norm encoder
    """

    z: Tensor
    unit: Tensor
    length: Tensor
    stream: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, h: Tensor, norm: Norm | None, mask: Tensor, pre_norm: bool = False) -> Tokens:
        # Some models write NaN where there is padding only. This is also the copy that the model cannot write into.
        h = torch.where(mask.unsqueeze(-1), h.detach().float(), 0.0)
        centred = h - h.mean(dim=-1, keepdim=True)
        z = h if norm is None else norm.standardise(h)
        # Features that the gain erases are no part of a token, but z without them would not be what heads read.
        visible = z if norm is None else z * norm.seen
        length = torch.where(mask, torch.linalg.vector_norm(visible, dim=-1).clamp_min(1e-30), 1.0)
        unit = visible / length.unsqueeze(-1)
        hidden = h if norm is None or pre_norm else torch.addcmul(norm.offset.to(z), norm.gain.to(z), z)
        return cls(z, unit, length, torch.linalg.vector_norm(centred, dim=-1), hidden)


Visit = Callable[[int, Tokens], None]
"""(depth, tokens): called at depths 0, …, L in this order, the last one after the forward pass."""


@contextmanager
def watching(anatomy: Anatomy, mask: Tensor, visit: Visit) -> Iterator[None]:
    """Read the tokens of one forward pass within: at each layer's input, and after the last layer.

    After the last layer z is that of the last normalisation, as at all depths before. Where the last module is no
    layer normalisation, z is its output, standardised. Nothing is kept, so memory does not grow with depth.

    mask : (texts, n) of bool, which places of the batch are tokens.
    """
    sites: dict[nn.Module, list[AttentionLayer]] = defaultdict(list)
    for layer in anatomy.layers:
        sites[layer.site].append(layer)
    seen: list[int] = []
    last: list[Tokens] = []
    handles = []
    try:
        for site, layers in sites.items():
            reader = _reader(layers, mask, visit, seen)
            handles.append(site.register_forward_pre_hook(reader, with_kwargs=True))
        handles.append(_last(anatomy.final, mask, last))
        yield
    finally:
        for handle in handles:
            handle.remove()
    if seen != list(range(len(anatomy.layers))) or not last:
        raise RuntimeError(f"the forward pass came by layers {seen}: the anatomy does not fit the model")
    visit(len(anatomy.layers), last[0])


def _reader(layers: list[AttentionLayer], mask: Tensor, visit: Visit, seen: list[int]) -> Any:
    by_call = {layer.call: layer for layer in layers}
    calls = count()

    def read(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        layer = by_call.get(next(calls))
        if layer is not None:
            seen.append(layer.index)
            visit(layer.index, Tokens.of(_first(arguments, named), layer.norm, mask, layer.pre_norm))

    return read


def _last(final: nn.Module, mask: Tensor, last: list[Tokens]) -> Any:
    """A shared module is called many times, and its last call counts."""
    if isinstance(final, nn.LayerNorm):
        norm = Norm.of(final)

        def before(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            last[:] = [Tokens.of(_first(arguments, named), norm, mask)]

        return final.register_forward_pre_hook(before, with_kwargs=True)

    def after(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        last[:] = [Tokens.of(hidden, Norm(torch.ones(()), torch.zeros(()), 1e-12), mask)]

    return final.register_forward_hook(after)


def _first(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    return arguments[0] if arguments else next(iter(named.values()))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; every module's own training flag is put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.inference_mode():
            yield
    finally:
        for module, flag in flags:
            module.training = flag
