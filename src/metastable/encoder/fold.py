"""A trained head as a head of the theory: normalisation, biases, score scale and output matrix folded in.

With x = γ⊙z + b the scores are, up to a constant for each query that the softmax does not see,

    scale·⟨W_q x + b_q, W_k x' + b_k⟩ = ⟨Bᵀz + a, z'⟩ + const,
    B = scale·(W_q γC)ᵀ(W_k γC),   a = scale·(W_k γC)ᵀ(W_q b + b_q),

where C subtracts the mean over features. It does not change z, whose mean is 0.

Tokens of the theory are unit vectors: x̂ = z/√d. Then ⟨Bᵀz + a, z'⟩ = β⟨B̂ᵀx̂ + â, x̂'⟩ with the **effective inverse
temperature** β = d‖B‖₂, B̂ = B/‖B‖₂ and â = √d a/β. One layer moves a token by C W_o W_v γ z', because the
next normalisation subtracts the mean. The update is added to a stream of length ρ√d. So V = C W_o W_v γ C / ρ, and
**one layer is one unit of time**.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from metastable.encoder.anatomy import AttentionLayer
from metastable.head import Head


@dataclass(frozen=True)
class FoldedHead:
    """One head in terms of z: q = query z + query_offset and so on; float64.

    query, key (k, d), value (r, d), output (d, r); offsets (k,), (k,), (r,). `residual` is ρ, the root mean square of
    the stream that updates are added to. `gain_spread` is std γ / |mean γ|; it is 0 if γ is constant.
    """

    layer: int
    head: int
    query: Tensor
    query_offset: Tensor
    key: Tensor
    key_offset: Tensor
    value: Tensor
    value_offset: Tensor
    output: Tensor
    scale: float
    residual: float
    gain_spread: float
    unfolded: tuple[str, ...]

    @property
    def dim(self) -> int:
        return int(self.query.shape[1])

    @cached_property
    def triangular(self) -> tuple[Tensor, Tensor]:
        """Triangular factors (k, k) of queryᵀ and keyᵀ: QᵀK has the singular values of the one times the other's ᵀ."""
        return torch.linalg.qr(self.query.T, mode="r").R, torch.linalg.qr(self.key.T, mode="r").R

    @cached_property
    def singular_values(self) -> Tensor:
        """Those of queryᵀ key, decreasing, without the zeros of rank: (k,)."""
        q, k = self.triangular
        return torch.linalg.svdvals(q @ k.T)

    @property
    def beta(self) -> float:
        """The effective inverse temperature, d‖B‖₂."""
        return self.dim * self.scale * float(self.singular_values[0])

    @property
    def strength(self) -> float:
        """What query and key are multiplied with for unit tokens and ‖B‖₂ = 1."""
        return math.sqrt(self.dim * self.scale / self.beta) if self.beta > 0 else 1.0

    def theory_head(self) -> tuple[Head, float]:
        """The `Head` on unit tokens with ‖B‖₂ = 1, and its β. One unit of its time is one layer."""
        beta, strength = self.beta, self.strength
        offset = math.sqrt(self.dim) * self.scale * (self.query_offset @ self.key) / beta if beta > 0 else None
        output = (self.output - self.output.mean(dim=0, keepdim=True)) / self.residual
        return Head(strength * self.query, strength * self.key, self.value, output=output, offset=offset), beta


def fold(layer: AttentionLayer, head: int, residual: float | None = None) -> FoldedHead:
    """One head of a layer. `residual` is ρ where it was measured; for post-norm layers the weights give it."""
    return fold_heads(layer, residual, range(head, head + 1))[0]


def fold_heads(layer: AttentionLayer, residual: float | None = None, heads: range | None = None) -> list[FoldedHead]:
    """Consecutive heads of a layer, all by default. `residual` is as in `fold`."""
    numbers = range(layer.heads) if heads is None else heads
    some = slice(numbers.start, numbers.stop)
    gain, offset = torch.ones(layer.width, dtype=torch.float64), torch.zeros(layer.width, dtype=torch.float64)
    if layer.norm is not None:
        gain, offset = layer.norm.gain.to(gain), layer.norm.offset.to(gain)
    if residual is None:
        residual = 1.0 if layer.pre_norm else float((gain.square() + offset.square()).mean().sqrt())
    folded = {"output": layer.output[some].to(gain)}
    for name, projection in (("query", layer.query), ("key", layer.key), ("value", layer.value)):
        weight, bias = projection.weight[some].to(gain), projection.bias[some].to(gain)
        rows = weight * gain
        folded[name] = rows if layer.norm is None else rows - rows.mean(dim=2, keepdim=True)
        folded[f"{name}_offset"] = weight @ offset + bias
    return [
        FoldedHead(
            layer=layer.index,
            head=head,
            scale=layer.scale,
            residual=residual,
            gain_spread=float(gain.std() / gain.mean().abs().clamp_min(1e-300)),
            unfolded=layer.unfolded,
            **{name: parts[place] for name, parts in folded.items()},
        )
        for place, head in enumerate(numbers)
    ]
