"""Which heads, neurons and layers matter: scores from one pass over texts, from gradients, and from weights alone.

With a the input of a map out of heads or neurons, ā its mean over tokens and W_u the columns of unit u (a head or a
neuron), removing u and keeping its mean changes the map's output by W_u (a_u − ā_u).

- *update*: E |W_u (a_u − ā_u)|², the mean square of that change;
- *gradient*: E |∂f/∂ξ_u|² at ξ = 1 for the embedding f of unit length, where a_u is replaced by ā_u + ξ_u (a_u − ā_u):
  the mean square of the change of the embedding, to first order. The norm is estimated with random directions;
- *magnitude*: |W_u|² times the squared length of the rows that write a_u, from the weights alone;
- *influence* of a layer: 1 − E cos(h, h'), between its input and its output.

Larger means that more is lost. β, rates and spectra of the theory are no guide to pruning, and they are not used here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metastable.encoder.compress.healing import Layers, LeastSquares
from metastable.encoder.load import Encoder
from metastable.encoder.texts import Batch

DIRECTIONS = 8
"""Random directions for the norm of a gradient, for each batch."""

Pool = Callable[[Tensor, Tensor], Tensor]
"""(hidden (texts, n, d), mask (texts, n)) → embeddings (texts, d)."""


@dataclass(frozen=True)
class Usage:
    """What passes the maps of an encoder, from one pass over texts; one entry a layer.

    head_mean : (heads·width,); neuron_mean : (neurons,), mean inputs of the output map and of the map out of neurons
    head_update : (heads,); neuron_update : (neurons,), see *update*
    influence : of the layer
    """

    head_mean: list[Tensor]
    neuron_mean: list[Tensor]
    head_update: list[Tensor]
    neuron_update: list[Tensor]
    influence: list[float]


def usage(encoder: Encoder, batches: Sequence[Batch]) -> Usage:
    """One pass of a private encoder over the batches."""
    found = Usage([], [], [], [], [])
    layers = Layers(encoder, batches)
    while layers.place < len(encoder.anatomy.blocks):
        heads, neurons, cosines, after = LeastSquares(), LeastSquares(), [], []
        for number, mask in enumerate(layers.masks):
            passed = layers.passed(number)
            nothing = passed.attention.y.new_zeros(len(passed.attention.y), 1)
            heads.add(passed.attention.a, nothing)
            neurons.add(passed.neurons.a, nothing)
            cosines.append(torch.cosine_similarity(layers.hidden[number][mask], passed.hidden[mask], dim=-1))
            after.append(passed)
        block = encoder.anatomy.blocks[layers.place]
        count = encoder.anatomy.layers[layers.place].heads
        found.head_mean.append((heads.a / heads.count).float())
        found.neuron_mean.append((neurons.a / neurons.count).float())
        found.head_update.append(_update(block.output, heads.covariance(), count))
        spread = neurons.covariance().diagonal()
        found.neuron_update.append(spread * block.outer.weight.detach().double().square().sum(dim=0))
        found.influence.append(1 - float(torch.cat(cosines).mean()))
        layers.move(after)
    return found


def _update(output: nn.Linear, covariance: Tensor, heads: int) -> Tensor:
    """tr(W_h S_h W_hᵀ) for each head, S_h the covariance of its context."""
    width = len(covariance) // heads
    weight = output.weight.detach().double().unflatten(1, (heads, width))
    blocks = torch.stack([covariance[h * width : (h + 1) * width, h * width : (h + 1) * width] for h in range(heads)])
    return torch.einsum("dhi,hij,dhj->h", weight, blocks, weight)


def magnitude(encoder: Encoder) -> tuple[list[Tensor], list[Tensor]]:
    """The scores of heads and of neurons of each layer from the weights alone."""
    heads, neurons = [], []
    for layer, block in zip(encoder.anatomy.layers, encoder.anatomy.blocks, strict=True):
        heads.append(layer.output.square().sum(dim=(1, 2)) * layer.value.weight.square().sum(dim=(1, 2)))
        inner = block.inner.weight.detach().square().sum(dim=1)
        into = inner.unflatten(0, (2, -1)).sum(dim=0) if block.gated else inner
        neurons.append(into * block.outer.weight.detach().square().sum(dim=0))
    return heads, neurons


def gradient(encoder: Encoder, batches: Sequence[Batch], known: Usage, pool: Pool) -> tuple[list[Tensor], list[Tensor]]:
    """The scores of heads and of neurons of each layer, (heads,) and (neurons,)."""
    blocks, random = encoder.anatomy.blocks, torch.Generator().manual_seed(0)
    heads = [torch.zeros(layer.heads, dtype=torch.float64) for layer in encoder.anatomy.layers]
    neurons = [torch.zeros(block.outer.in_features, dtype=torch.float64) for block in blocks]
    texts = 0
    for batch in batches:
        many = len(batch.mask)
        texts += many
        of_heads = [torch.ones(many, len(total), dtype=torch.float32, requires_grad=True) for total in heads]
        of_neurons = [torch.ones(many, len(total), dtype=torch.float32, requires_grad=True) for total in neurons]
        with torch.enable_grad(), _scaled(encoder, known, of_heads, of_neurons):
            hidden = encoder.model(**batch.inputs).last_hidden_state
            embedding = nn.functional.normalize(pool(hidden, batch.mask), dim=-1)
            for _ in range(DIRECTIONS):
                direction = torch.randn(embedding.shape, generator=random, dtype=torch.float32)
                found = torch.autograd.grad(
                    (embedding * direction).sum(), [*of_heads, *of_neurons], retain_graph=True, materialize_grads=True
                )
                for total, slope in zip([*heads, *neurons], found, strict=True):
                    total += slope.double().square().sum(dim=0) / DIRECTIONS
    return [total / texts for total in heads], [total / texts for total in neurons]


@contextmanager
def _scaled(encoder: Encoder, known: Usage, heads: Sequence[Tensor], neurons: Sequence[Tensor]) -> Iterator[None]:
    """Within this context a_u is ā_u + ξ_u (a_u − ā_u), with ξ (texts, units) of each layer, call by call."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    for place, block in enumerate(encoder.anatomy.blocks):
        calls.setdefault(block.output, []).append((known.head_mean[place], heads[place]))
        calls.setdefault(block.outer, []).append((known.neuron_mean[place], neurons[place]))

    def scale(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mean, factor = calls[module].pop(0)
        each = factor.repeat_interleave(len(mean) // factor.shape[1], dim=1).unsqueeze(1)
        return (mean + each * (arguments[0] - mean), *arguments[1:])

    handles = [module.register_forward_pre_hook(scale) for module in calls]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
