"""A whole layer of a trained encoder as a block of the family: all heads, the perceptron, gains, offsets and biases.

Tokens are x = z/√d with z the standardised hidden states (mean 0, length √d). In a post-norm layer the stream of a
token is γ₀⊙z + b₀. Divided by √d, which the normalisation after it does not see, the layer is

    y  = N( γ₀⊙x + o₀ + Σ_h V_h m_h ),              o₀ = (b₀ + b_o + Σ_h W_o(W_v b₀ + b_v))/√d,
    x⁺ = N( γ₁⊙y + o₁ + W₂φ(√d W₁(γ₁⊙y) + c)/√d ),  o₁ = (b₁ + b₂)/√d,   c = W₁b₁ + its bias,

where N subtracts the mean over features and divides by the length, V_h = W_o W_v diag γ₀, and the scores are those of
`fold`, with one β for all heads, the largest of theirs. In a pre-norm layer the state is Ch/√d, of any length, the
gains in front of x and y are 1, and the offsets are those of the updates alone; what is lost is the mean of h over
features, which no normalisation sees.

The small number eps that a normalisation adds to the variance is left out: a relative error of eps/(2 variance).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from metastable.arrays import whole
from metastable.block import Block, Perceptron, Residual
from metastable.encoder.anatomy import Norm
from metastable.encoder.fold import fold_heads
from metastable.encoder.load import load
from metastable.errors import BadInput
from metastable.head import Head

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"), "gelu_tanh"),
}
"""Names of activations in configurations, and their names here."""


def fold_layer(model: Any, layer: int, *, allow_pickle: bool = False) -> Block:
    """The block of a layer; see `Block.from_encoder`.

    model : a folder, a hub id or a model of transformers. BadInput for layers whose scores depend on positions, whose
        perceptron is gated, or whose tokens are not normalised
    """
    encoder = load(model, allow_pickle=allow_pickle)
    layers = encoder.anatomy.layers
    index = whole(layer, "layer", 0, f"the encoder has the layers 0 to {len(layers) - 1}")
    if index >= len(layers):
        raise BadInput(f"layer is {layer}; the encoder has the layers 0 to {len(layers) - 1}")
    found, modules = layers[index], encoder.anatomy.blocks[index]
    if found.scores is not None or found.unfolded:
        raise BadInput(f"layer {index} of {encoder.name} has {', '.join(found.unfolded)}, which a block does not have")
    if found.norm is None:
        raise BadInput(f"nothing normalises the tokens of layer {index} of {encoder.name}; take a later layer")
    if modules.gated:
        raise BadInput(f"the perceptron of layer {index} of {encoder.name} is gated, which a block does not have")
    if modules.middle is None:
        raise BadInput(f"layer {index} of {encoder.name} is not built of attention and a perceptron as a block is")
    activation = ACTIVATIONS.get(modules.activation)
    if activation is None:
        raise BadInput(f"the activation {modules.activation!r} is not one of {', '.join(ACTIVATIONS)}")
    folded = fold_heads(found)
    root, beta = math.sqrt(found.width), max(head.beta for head in folded) or 1.0
    heads = []
    for head in folded:
        strength = math.sqrt(found.width * found.scale / beta)
        offset = root * found.scale * (head.query_offset @ head.key) / beta
        heads.append(Head(strength * head.query, strength * head.key, head.value, output=head.output, offset=offset))
    carried = sum((head.output @ head.value_offset for head in folded), found.output_bias.double())
    before, middle = found.norm, Norm.of(modules.middle)
    perceptron, bias = _perceptron(modules.inner, modules.outer, middle, activation)
    return Block(
        heads,
        perceptron,
        norm="pre" if found.pre_norm else "post",
        sequential=True,
        residuals=(_residual(before, carried, found.pre_norm), _residual(middle, bias, found.pre_norm)),
        centred=True,
        beta=beta,
    )


def _residual(norm: Norm, bias: torch.Tensor, pre_norm: bool) -> Residual:
    """What an update with this constant part is added to: the output of the normalisation, or the stream itself."""
    gain, offset = norm.gain.double().cpu(), norm.offset.double().cpu()
    if pre_norm:
        gain, offset = torch.ones_like(gain), torch.zeros_like(offset)
    return Residual(gain, (offset + bias.cpu()) / math.sqrt(len(gain)))


def _perceptron(inner: nn.Linear, outer: nn.Linear, norm: Norm, activation: str) -> tuple[Perceptron, torch.Tensor]:
    """The perceptron on unit tokens before the gain of its normalisation, without b₂, and b₂."""
    gain, offset = norm.gain.double().cpu(), norm.offset.double().cpu()
    first, second = (linear.weight.detach().double().cpu() for linear in (inner, outer))
    biases = [
        weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().double().cpu()
        for linear, weight in ((inner, first), (outer, second))
    ]
    root = math.sqrt(len(gain))
    shifted = first @ offset + biases[0]
    return Perceptron(root * first * gain, second / root, shifted, activation=activation), biases[1]
