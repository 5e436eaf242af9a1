"""The attention layers of an encoder in one form for all families: weights, normalisations, modules to read from.

Tokens reach an attention layer as x = γ⊙z + b, the output of a normalisation with gain γ and offset b: z has mean zero
and length √d. The layer computes, for each of its heads,

    q = W_q x + b_q,   k = W_k x + b_k,   v = W_v x + b_v,   s_ij = scale·⟨q_i, k_j⟩ (+ what cannot be folded),
    update of token i = Σ_heads W_o Σ_j softmax_j(s_ij) v_j + b_o,

and adds the update to the residual: to x itself where the normalisation comes after (BERT), to the unnormalised stream
h with z = norm(h) where it comes before (ViT, ModernBERT).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

Scores = Callable[[Tensor, Tensor], Tensor]
"""(q, k), each (texts, heads, n, width), → scores (texts, heads, n, n), before padding is masked.

Scores outside a sliding window are −inf. After padding is masked, a row of padding may have no finite score.
"""

Step = Callable[[Tensor, Tensor], Tensor]
"""(hidden (texts, n, d), mask (texts, n) of bool, True for tokens) → hidden after one whole layer."""


FAINT, GAP = 0.05, 10.0
"""Features are erased if their gains are at most FAINT times the median gain and GAP times smaller than all others:
later layers do not see them."""


@dataclass(frozen=True)
class Norm:
    """x = gain⊙z + offset, z = (h − mean h)/√(var h + eps), over the d features."""

    gain: Tensor
    offset: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Norm:
        gain = module.weight if module.weight is not None else torch.ones(module.normalized_shape)
        offset = module.bias if module.bias is not None else torch.zeros_like(gain)
        return cls(gain.detach(), offset.detach(), module.eps)

    @property
    def seen(self) -> Tensor:
        """The features that are not erased, (d,) of bool.

        Some trained gains are 1e-33, others 1e-4 of the median. No fixed cut is right for all encoders, but the erased
        gains are far below the others: they end at the last gap by a factor of `GAP` among the faint gains.
        """
        size = self.gain.abs()
        ordered = size.sort().values
        ends = (ordered[:-1] <= FAINT * size.median()) & (ordered[1:] >= GAP * ordered[:-1])
        last = ends.nonzero()
        return size > ordered[last[-1]] if len(last) else torch.ones_like(size, dtype=torch.bool)

    def standardise(self, h: Tensor) -> Tensor:
        """z, of length √d up to eps."""
        return nn.functional.layer_norm(h, h.shape[-1:], eps=self.eps)


@dataclass(frozen=True)
class Projection:
    """One of q, k, v for all heads: weight (heads, width, d), bias (heads, width)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, linear: nn.Linear, heads: int) -> Projection:
        weight = linear.weight.detach()
        bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
        return cls(weight.reshape(heads, -1, weight.shape[1]), bias.reshape(heads, -1))

    def __call__(self, x: Tensor) -> Tensor:
        """(texts, n, d) → (texts, heads, n, width)."""
        heads, width, d = self.weight.shape
        flat = nn.functional.linear(x, self.weight.reshape(heads * width, d), self.bias.reshape(-1))
        return flat.unflatten(-1, (heads, width)).transpose(1, 2)


def projections(linears: Sequence[nn.Linear], heads: int) -> list[Projection]:
    """Query, key and value from their linear maps, or from one linear map that holds all three."""
    if len(linears) > 1:
        return [Projection.of(linear, heads) for linear in linears]
    fused = Projection.of(linears[0], 3 * heads)
    return [Projection(w, b) for w, b in zip(fused.weight.chunk(3), fused.bias.chunk(3), strict=True)]


class Site(NamedTuple):
    """Where the tokens of a depth pass in one forward pass.

    module : with a `norm` it is the normalisation: its first argument is h and its output is x. Without one it is the
        attention module, and its first argument is x.
    call : which call of `module`, counted from 0: a shared layer is called many times.
    pre_norm : whether the stream of this depth is h (True) or x (False).
    """

    module: nn.Module
    call: int
    norm: Norm | None
    pre_norm: bool


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer.

    site, call, norm : where the tokens of the layer pass, see `Site`; `norm` is None in the first layer of ALBERT.
    pre_norm : whether updates are added to h (True) or to x (False).
    output : (heads, d, width) W_o by heads, and output_bias (d,).
    unfolded : names of the score terms that depend on positions and cannot be folded into B and a.
    scores : the full scores from q and k where there are such terms, else None and scores are scale·⟨q, k⟩.
    """

    index: int
    site: nn.Module
    norm: Norm | None
    query: Projection
    key: Projection
    value: Projection
    output: Tensor
    output_bias: Tensor
    scale: float
    call: int = 0
    pre_norm: bool = False
    unfolded: tuple[str, ...] = ()
    scores: Scores | None = None

    @property
    def heads(self) -> int:
        return len(self.query.weight)

    @property
    def width(self) -> int:
        """d, the number of features."""
        return int(self.query.weight.shape[2])


@dataclass(frozen=True)
class LayerModules:
    """The modules of one whole layer, whose weights `compress` changes.

    module : the layer as the model calls it
    linears : the linear maps of query, key and value, or one linear map for all three
    output : the linear map of the attention output
    inner, outer : the linear maps into and out of the neurons of the perceptron
    gated : whether `inner` holds two numbers for each neuron, its input and, after all inputs, its gate
    middle : the normalisation whose output the perceptron reads; None if it is not known
    activation : the name of the perceptron's activation in the configuration of the model
    """

    module: nn.Module
    linears: tuple[nn.Linear, ...]
    output: nn.Linear
    inner: nn.Linear
    outer: nn.Linear
    gated: bool
    middle: nn.LayerNorm | None = None
    activation: str = ""

    @property
    def maps(self) -> tuple[nn.Linear, ...]:
        """All linear maps."""
        return (*self.linears, self.output, self.inner, self.outer)


@dataclass(frozen=True)
class Anatomy:
    """An encoder's attention layers in the order of depth.

    model : the encoder itself
    blocks : the modules of each layer; a shared layer stands here many times
    final : the normalisation whose *output* is the last hidden state (texts, n, d) of the encoder.
    final_call : which call of `final` in one forward pass writes the last hidden state, counted from 0.
    steps : for each layer, the whole layer (attention, MLP, normalisations) as a function, see `Step`. It takes what
        the layer's updates are added to: x, or h where the layer is `pre_norm`.
    tied : whether all layers share their weights.
    notes : sentences about what the folding leaves out, for the report.
    pre_norm : whether the stream leaves the last layer unnormalised, so that `final` is applied to what it returns.
    limit : the longest sequence the encoder takes, special tokens included.
    """

    model: nn.Module
    family: str
    layers: tuple[AttentionLayer, ...]
    blocks: tuple[LayerModules, ...]
    final: nn.LayerNorm
    steps: tuple[Step, ...]
    final_call: int = 0
    tied: bool = False
    notes: tuple[str, ...] = ()
    pre_norm: bool = False
    limit: int = sys.maxsize

    def last_hidden(self, stream: Tensor) -> Tensor:
        """The encoder's last hidden state from what its last step returned, (texts, n, d)."""
        return self.final(stream) if self.pre_norm else stream

    @property
    def sites(self) -> list[Site]:
        """The site of each depth 0, …, L: the input of each layer, and the output of the encoder."""
        layers = [Site(layer.site, layer.call, layer.norm, layer.pre_norm) for layer in self.layers]
        return [*layers, Site(self.final, self.final_call, Norm.of(self.final), False)]
