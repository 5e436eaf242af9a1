"""A block: the family of models that the laboratory knows, from one head to a whole layer of a transformer.

With x the directions of the tokens (points of the unit sphere), a block adds to the stream of a token

    f(x) = Σ_h V_h m_h(x) + p(x),     m_h the mean of the tokens by the attention of head h, p a perceptron,

and the normalisation says what becomes of f. The state of a token is h = r x with a radius r:

    post   x' = P_x f(x)                      the sphere; r = 1. The model of the paper
    pre    h' = f(x), so x' = P_x f/r         the update is small against a stream that has grown
    peri   h' = f(x)/|f(x)|                   also called sandwich: the update is normalised before it is added
    ngpt   x' = P_x f(x)/|f(x)|               the sphere, with updates of length one
    none   h' = f(h)                          no normalisation; shown as z = e^{−tV} h with V = Σ_h V_h

The time t counts layers in all of them: one layer of step η is x ← N(x + ηf) or h ← h + ηf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metastable.arrays import Array, matmul, matrix, moved, real, seeded, shape_of, vector, whole
from metastable.errors import BadInput, choice
from metastable.head import MATRICES, Head

if TYPE_CHECKING:
    from metastable.theory import Theory
    from metastable.theory.block import BlockTheory

KERNELS = ("softmax", "unnormalised", "sigmoid", "linear")
"""How attention weighs tokens; see `attention`."""
NORMS = {
    "post": "post-LN",
    "pre": "pre-LN",
    "peri": "peri-LN",
    "ngpt": "nGPT normalisation",
    "none": "no normalisation",
}
"""Normalisations, by name, with their names for people."""
SPHERES = ("post", "ngpt")
"""Normalisations under which tokens stay on the unit sphere."""
ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda a: torch.nn.functional.gelu(a, approximate="tanh"),
    "relu": torch.relu,
    "tanh": torch.tanh,
}


class Perceptron:
    """p(x) = W₂ φ(W₁ x + b₁) + b₂ for each token alone: the other half of a transformer layer.

    Parameters
    ----------
    inner : (m, d), W₁
    outer : (d, m), W₂
    inner_offset, outer_offset : (m,) and (d,), b₁ and b₂; 0 by default
    activation : φ, one of gelu, gelu_tanh, relu and tanh

    Examples
    --------
    >>> Perceptron.random(d=3, width=16, seed=0)
    Perceptron(d=3, width=16, gelu)
    """

    def __init__(
        self,
        inner: Array,
        outer: Array,
        inner_offset: Array | None = None,
        outer_offset: Array | None = None,
        activation: str = "gelu",
    ) -> None:
        self.inner, self.outer = matrix(inner, "inner"), matrix(outer, "outer")
        width, d = self.inner.shape
        if self.outer.shape != (d, width):
            raise BadInput(f"inner is {shape_of(self.inner)} and outer {shape_of(self.outer)}, expected m×d and d×m")
        zeros = self.inner.new_zeros
        self.inner_offset = zeros(width) if inner_offset is None else vector(inner_offset, "inner_offset", width)
        self.outer_offset = zeros(d) if outer_offset is None else vector(outer_offset, "outer_offset", d)
        self.activation = choice(activation, "activation", ACTIVATIONS)

    @classmethod
    def random(cls, d: int, width: int, seed: int = 0, strength: float = 1.0, activation: str = "gelu") -> Perceptron:
        """W₁ has independent standard normal entries and W₂ entries of variance strength²/(width·d).

        On unit tokens the inputs of the neurons then have variance 1, and |p(x)| is about strength·(mean φ²)^{1/2}.
        """
        d = whole(d, "d", 2, "the sphere needs a whole number of dimensions, 2 or more")
        width = whole(width, "width", 1, "a perceptron needs a whole number of neurons, 1 or more")
        strength = real(strength, "strength", "it must be a number, 0 or more")
        generator = seeded(seed)
        inner = torch.randn(width, d, generator=generator, dtype=torch.float64)
        outer = torch.randn(d, width, generator=generator, dtype=torch.float64) * strength / (width * d) ** 0.5
        return cls(inner, outer, activation=activation)

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The weights by name: `Perceptron(**arrays, activation=…)` is the same perceptron."""
        return {name: getattr(self, name) for name in ("inner", "outer", "inner_offset", "outer_offset")}

    @property
    def width(self) -> int:
        """m, the number of neurons."""
        return len(self.inner)

    def __call__(self, x: Tensor) -> Tensor:
        """p(x) for each row of (n, d)."""
        inside = ACTIVATIONS[self.activation](matmul(x, self.inner.T) + self.inner_offset)
        return matmul(inside, self.outer.T) + self.outer_offset

    def to(self, dtype: torch.dtype | None = None, device: Any = None) -> Perceptron:
        """The same perceptron in another dtype or on another device; this one itself if nothing changes."""
        found = {name: moved(part, dtype, device) for name, part in self.arrays.items()}
        same = all(part is getattr(self, name) for name, part in found.items())
        return self if same else Perceptron(**found, activation=self.activation)

    def __repr__(self) -> str:
        return f"Perceptron(d={self.inner.shape[1]}, width={self.width}, {self.activation})"


@dataclass(frozen=True)
class Residual:
    """The stream that a trained layer adds an update to: gain ⊙ x + offset in place of x, both (d,).

    The gain and the offset are those of the normalisation before; biases of the update are part of the offset.
    """

    gain: Tensor
    offset: Tensor

    def change(self, x: Tensor) -> Tensor:
        """(gain − 1) ⊙ x + offset for each row of (n, d)."""
        return (self.gain - 1) * x + self.offset

    def to(self, dtype: torch.dtype | None, device: Any) -> Residual:
        return Residual(moved(self.gain, dtype, device), moved(self.offset, dtype, device))


class Block:
    """A member of the family: heads that add, a perceptron, a kernel, a mask, a normalisation and noise.

    Parameters
    ----------
    heads : one or several heads of one dimension
    perceptron : p, or None
    kernel : "softmax"; "unnormalised", weights e^{β⟨Bᵀx, y⟩} w without division by their sum; "sigmoid", weights
        σ(β⟨Bᵀx, y⟩) w; "linear", the softmax mean to first order in β
    causal : whether token i attends to the tokens j ≤ i only
    norm : "post", "pre", "peri", "ngpt" or "none", see the module
    sequential : in discrete layers, the perceptron follows attention and sees its result. In continuous time both
        orders are the same flow
    noise, noise_seed : σ of a Brownian motion on the sphere, dx = P_x f dt + σ P_x ∘ dW, and the seed of its increments
    residuals : for a folded layer, what attention and the perceptron add to, see `Residual`
    centred : for a folded layer, whether the mean over features is subtracted before tokens are normalised
    beta : for a folded layer, the inverse temperature at which the block is that layer

    Examples
    --------
    >>> import metastable as ms
    >>> heads = [ms.Head.from_spectra([1.0, 0.5], [1.0, 0.3], seed=s) for s in (0, 1)]
    >>> ms.Block(heads, causal=True, norm="pre")
    Block(d=2, softmax attention, 2 heads, causal, pre-LN)
    """

    def __init__(
        self,
        heads: Head | Sequence[Head],
        perceptron: Perceptron | None = None,
        *,
        kernel: str = "softmax",
        causal: bool = False,
        norm: str = "post",
        sequential: bool = False,
        noise: float = 0.0,
        noise_seed: int = 0,
        residuals: tuple[Residual, Residual] | None = None,
        centred: bool = False,
        beta: float | None = None,
    ) -> None:
        if not isinstance(heads, (Head, Sequence)):
            raise BadInput(f"heads is {heads!r}; a block is made of a head or a list of heads (ms.Head)")
        self.heads = (heads,) if isinstance(heads, Head) else tuple(heads)
        if not self.heads:
            raise BadInput("a block needs at least one head; give a list of heads")
        wrong = next((head for head in self.heads if not isinstance(head, Head)), None)
        if wrong is not None:
            raise BadInput(f"heads holds {wrong!r}; a block is made of heads (ms.Head)")
        dims = sorted({head.dim for head in self.heads})
        if len(dims) > 1:
            raise BadInput(f"the heads have d = {', '.join(map(str, dims))}; they must agree")
        if perceptron is not None and not isinstance(perceptron, Perceptron):
            raise BadInput(f"perceptron is {perceptron!r}; give an ms.Perceptron or None")
        if perceptron is not None and perceptron.inner.shape[1] != dims[0]:
            raise BadInput(f"the perceptron has d = {perceptron.inner.shape[1]} and the heads d = {dims[0]}")
        # Tokens, heads, perceptron and gains are of one dtype.
        single = all(head.dtype == torch.float32 for head in self.heads)
        dtype, device = torch.float32 if single else torch.float64, self.heads[0].query.device
        self.heads = tuple(head.to(dtype, device) for head in self.heads)
        self.perceptron = None if perceptron is None else perceptron.to(dtype, device)
        self.kernel = choice(kernel, "kernel", KERNELS)
        self.norm = choice(norm, "norm", NORMS)
        self.causal, self.sequential = _flag(causal, "causal"), _flag(sequential, "sequential")
        self.noise = strength(noise, self.norm)
        self.noise_seed = whole(noise_seed, "noise_seed", 0, "it must be a whole number, 0 or more")
        if self.sequential and perceptron is None and residuals is None:
            raise BadInput("sequential is true, but there is no perceptron that could follow attention; leave it out")
        self.residuals = None
        if residuals is not None:
            self.residuals = (residuals[0].to(dtype, device), residuals[1].to(dtype, device))
        self.centred, self.beta = centred, beta
        self._theory: Theory | BlockTheory | None = None

    @classmethod
    def from_encoder(cls, model: Any, layer: int, *, allow_pickle: bool = False) -> Block:
        """A whole layer of a trained encoder as a block; `block.beta` is its inverse temperature.

        One step of `simulate(block, cloud, block.beta, until=1, method="layers", step=1)` is the layer itself. Tokens
        are x = z/√d with z the standardised hidden states before the layer, without gain and offset.
        """
        from metastable.encoder.trained_block import fold_layer

        return fold_layer(model, layer, allow_pickle=allow_pickle)

    @property
    def dim(self) -> int:
        """d, the dimension of the tokens."""
        return self.heads[0].dim

    @property
    def dtype(self) -> torch.dtype:
        return self.heads[0].dtype

    @property
    def plain(self) -> bool:
        """Whether this is the model of the paper: one softmax head, tokens on the sphere and nothing else."""
        alone = len(self.heads) == 1 and self.perceptron is None and self.residuals is None
        return alone and self.kernel == "softmax" and self.norm == "post" and not self.causal and not self.noise

    @property
    def head(self) -> Head:
        """The head of a block with one head; BadInput if there are several."""
        if len(self.heads) > 1:
            raise BadInput(f"this block has {len(self.heads)} heads, not one; see block.heads")
        return self.heads[0]

    @property
    def V(self) -> Tensor:
        """Σ_h V_h, (d, d): what moves a single cluster under softmax attention."""
        return torch.stack([head.V for head in self.heads]).sum(dim=0)

    @property
    def name(self) -> str:
        """The member of the family in words."""
        count = len(self.heads)
        parts = [f"{self.kernel} attention", "one head" if count == 1 else f"{count} heads"]
        parts += ["causal"] if self.causal else []
        parts += [] if self.norm == "post" else [NORMS[self.norm]]
        if self.perceptron is not None:
            order = "after attention" if self.sequential else "beside attention"
            parts.append(f"{self.perceptron.width} neurons {order}")
        parts += ["gains and offsets of a trained layer"] if self.residuals is not None else []
        parts += [f"noise {self.noise:g}"] if self.noise else []
        return ", ".join(parts)

    def to(self, dtype: torch.dtype | None = None, device: Any = None) -> Block:
        """The same block in another dtype or on another device; this block itself if nothing changes."""
        heads = tuple(head.to(dtype, device) for head in self.heads)
        if all(new is old for new, old in zip(heads, self.heads, strict=True)):
            return self
        folded = {name: getattr(self, name) for name in ("residuals", "centred", "beta")}
        return Block(heads, self.perceptron, **self.options, **folded)

    @property
    def options(self) -> dict[str, Any]:
        """What makes the member of the family, besides the weights: arguments of `Block`."""
        return {name: getattr(self, name) for name in OPTIONS}

    @property
    def member(self) -> dict[str, Any]:
        """Everything besides the weights that tokens move by, for checksums."""
        activation = None if self.perceptron is None else self.perceptron.activation
        return {**self.options, "activation": activation, "centred": self.centred}

    @property
    def arrays(self) -> dict[str, Tensor]:
        """All weights, under names that tell them apart, for checksums and files."""
        found = {f"head{i}_{name}": part for i, head in enumerate(self.heads) for name, part in head.matrices.items()}
        if self.perceptron is not None:
            found |= {f"perceptron_{name}": part for name, part in self.perceptron.arrays.items()}
        for i, residual in enumerate(self.residuals or ()):
            found |= {f"residual{i}_gain": residual.gain, f"residual{i}_offset": residual.offset}
        return found

    def to_json(self) -> dict[str, Any]:
        """The block as plain data for JSON; `from_json` is the inverse."""
        perceptron = None
        if self.perceptron is not None:
            weights = {name: part.tolist() for name, part in self.perceptron.arrays.items()}
            perceptron = {**weights, "activation": self.perceptron.activation}
        residuals = [{"gain": r.gain.tolist(), "offset": r.offset.tolist()} for r in self.residuals or ()]
        return {
            "name": self.name,
            "heads": [{name: part.tolist() for name, part in head.matrices.items()} for head in self.heads],
            "perceptron": perceptron,
            "residuals": residuals or None,
            **self.options,
            "centred": self.centred,
            "beta": self.beta,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any], dtype: torch.dtype) -> Block:
        def read(numbers: Any) -> Tensor:
            return torch.tensor(numbers, dtype=dtype)

        heads = [Head(**{name: read(head[name]) for name in MATRICES if name in head}) for head in record["heads"]]
        perceptron, residuals = record["perceptron"], record["residuals"]
        if perceptron is not None:
            weights = {name: read(part) for name, part in perceptron.items() if name != "activation"}
            perceptron = Perceptron(**weights, activation=perceptron["activation"])
        if residuals is not None:
            first, second = (Residual(read(r["gain"]), read(r["offset"])) for r in residuals)
            residuals = (first, second)
        options = {name: record[name] for name in (*OPTIONS, "centred", "beta")}
        return cls(heads, perceptron, residuals=residuals, **options)

    def theory(self) -> Theory | BlockTheory:
        """What is known about this block: that of its head if it is plain, else see `theory.block`."""
        from metastable.theory.block import BlockTheory

        if self._theory is None:
            self._theory = self.head.theory() if self.plain else BlockTheory(self)
        return self._theory

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process computes its own theory.
        return {**self.__dict__, "_theory": None}

    def __repr__(self) -> str:
        return f"Block(d={self.dim}, {self.name})"


OPTIONS = ("kernel", "causal", "norm", "sequential", "noise", "noise_seed")
"""The arguments of `Block` that are no weights. They are also keys of a [block] table and axes of a sweep."""


def as_block(model: Head | Block) -> Block:
    """The block of a head alone, or the block itself."""
    if isinstance(model, Head):
        return Block(model)
    if not isinstance(model, Block):
        raise BadInput(f"a simulation needs a head or a block (ms.Head, ms.Block), not {type(model).__name__}")
    return model


def strength(noise: Any, norm: str = "post") -> float:
    """σ as a float."""
    rule = "it is the strength of a Brownian motion, a finite number, 0 or more"
    found = real(noise, "noise", rule, allowed=math.isfinite)
    if found and norm != "post":
        raise BadInput(
            f"noise is {found:g} and norm {norm!r}; noise is a Brownian motion on the sphere and needs norm 'post'"
        )
    return found


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {value!r}; it must be true or false")
    return value
