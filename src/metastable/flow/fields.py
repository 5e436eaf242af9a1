"""Velocity fields of tokens, for every member of the family and every inverse temperature from β = 0 to β = ∞.

    softmax            𝒱_β[μ](x) = P_x V m_β[μ](x),     m_β[μ](x) = ∫ y e^{β⟨Bᵀx, y⟩}dμ(y) / ∫ e^{β⟨Bᵀx, y⟩}dμ(y)
    hardmax            P_x V m, m the weighted mean of the tokens that attain max_j ⟨Bᵀx, x_j⟩
    zero_temperature   𝒱_∞(x) = P_x V Bᵀx/|Bᵀx|

`hardmax` is the limit β → ∞ for finitely many tokens. `zero_temperature` is the limit for a law of full support, where
the best token is Bᵀx/|Bᵀx| itself, so that tokens do not interact. The two fields differ. `TokenField` is the field of
a whole block: see `block` for what its normalisation does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from metastable.arrays import Array, inverse_temperature
from metastable.attention import Attention, argmax_mean, choose, softmax_mean
from metastable.attention.compilation import missing
from metastable.attention.engines import needed
from metastable.block import SPHERES, Block, as_block
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.flow.steppers import unit
from metastable.head import Head

EVALUATIONS = 500
"""A run evaluates its field about this many times."""


def tangent(x: Tensor, w: Tensor) -> Tensor:
    """P_x w = w − ⟨w, x⟩x for each row of w (n, d) at the unit rows x: the projection onto the tangent space."""
    return w - (w * x).sum(dim=1, keepdim=True) * x


def zero_temperature(head: Head, x: Tensor) -> Tensor:
    """The zero-temperature field of a law with full support: (n, d). It is 0 where Bᵀx = 0 (undefined there)."""
    u = head.directions(x)
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    return tangent(x, head.values(torch.where(norm > 0, u / norm, torch.zeros_like(u))))


def velocity(
    head: Head | Block, cloud: Cloud, beta: float, at: Array | None = None, engine: str = "auto", tol: float = 1e-6
) -> Tensor:
    """𝒱_β[μ] at the rows of `at` (n, d), scaled to the sphere, by default at the tokens; β = inf is hardmax.

    `engine` and `tol` are those of `attend`. For a block with tokens off the sphere (norm "pre", "peri" or "none") it
    is h' for tokens of radius 1. `at` is for a single softmax head.

    Examples
    --------
    >>> import torch, metastable as ms
    >>> head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    >>> cloud = ms.Cloud([[1.0, 0.0], [0.0, 1.0]])
    >>> ms.velocity(head, cloud, beta=0.0)[0].tolist()
    [0.0, 0.5]
    """
    beta, block = inverse_temperature(beta), as_block(head)
    if block.dim != cloud.dim:
        raise BadInput(f"the head has d = {block.dim} and the cloud d = {cloud.dim}; they must agree")
    block = block.to(cloud.dtype, cloud.points.device)
    if not block.plain:
        if at is not None:
            raise BadInput(f"at is for a single softmax head; this block ({block.name}) is evaluated at its tokens")
        return TokenField(block, cloud.log_weights, beta, engine, tol)(cloud.points, 0.0)
    choose(engine, cloud.log_weights, cloud.dim, 1, tol)
    x = cloud.points if at is None else Cloud(at).points.to(dtype=cloud.dtype, device=cloud.points.device)
    if x.shape[1] != cloud.dim:
        raise BadInput(f"at has {x.shape[1]} coordinates and the cloud d = {cloud.dim}; they must agree")
    u = block.head.directions(x)
    if math.isinf(beta):
        mean = argmax_mean(cloud.points, cloud.log_weights, u)
    else:
        mean = softmax_mean(cloud, beta * u, engine, tol, paired=x is cloud.points)
    return tangent(x, block.head.values(mean))


def engine_of(
    block: Block, log_weights: Tensor, engine: str, tol: float, without: Collection[str] | None = None
) -> str:
    """The engine that `engine` stands for; `without` as in `choose`."""
    if block.norm == "none":
        # Tokens off the sphere.
        if "tree" in needed(engine):
            raise BadInput(
                f"engine is {engine!r}, which needs tokens on the unit sphere; for norm 'none' use 'direct' or 'auto'"
            )
        if engine == "auto" and block.kernel != "softmax":
            return "dense"
        # The tree is not chosen for this tolerance.
        tol = math.inf
    return choose(engine, log_weights, block.dim, len(log_weights), tol, block.kernel, block.causal, without)


def engines_to_come(block: Block, log_weights: Tensor, beta: float, engine: str, tol: float) -> frozenset[str]:
    """The engines that a run does without because they are still to be compiled: see `compilation.missing`."""
    if engine != "auto" or math.isinf(beta):
        return frozenset()
    n = len(log_weights)
    best = engine_of(block, log_weights, engine, tol, without=())
    return missing(best, block.dim, log_weights.dtype, float(n) * n * EVALUATIONS)


class TokenField:
    """The velocity of the state (N, d) of all tokens of μ = Σ w_j δ_{x_j} under a block; β = inf is hardmax.

    The state is x on the sphere for the norms of `SPHERES`, h for "pre" and "peri", z = e^{−tV} h for "none".

    Everything that depends on the weights alone is prepared once. `block` must have the dtype and the device of the
    tokens. `engine`, `tol` and `without` are those of `choose`.
    """

    def __init__(
        self,
        block: Block,
        log_weights: Tensor,
        beta: float,
        engine: str,
        tol: float,
        without: Collection[str] | None = None,
    ) -> None:
        self.block, self.beta = block, beta
        engine = engine_of(block, log_weights, engine, tol, () if math.isinf(beta) else without)
        self.attention = Attention(block.kernel, block.causal, log_weights, engine, tol)
        self.on_sphere = block.norm in SPHERES

    @property
    def log_weights(self) -> Tensor:
        return self.attention.log_weights

    def __call__(self, state: Tensor, t: float) -> Tensor:
        """The velocity of the state at time t, (N, d)."""
        if self.block.norm == "none":
            return self._rescaled(state, t)
        x = state if self.on_sphere else unit(state)
        update = self._update(x)
        return tangent(x, update) if self.on_sphere else update

    def _update(self, x: Tensor, halves: slice = slice(None)) -> Tensor:
        """What the chosen halves (attention, perceptron) add to the stream of tokens with the directions x."""
        update = None
        both: list[Callable[[Tensor], Tensor | None]] = [self.attended, self._perceived]
        for half in both[halves]:
            part = half(x)
            if part is not None:
                update = part if update is None else update + part
        assert update is not None
        if self.block.centred:
            update = update - update.mean(dim=1, keepdim=True)
        if self.block.norm not in ("peri", "ngpt"):
            return update
        length = torch.linalg.vector_norm(update, dim=1, keepdim=True)
        return torch.where(length > 0, update / length, torch.zeros_like(update))

    def _perceived(self, x: Tensor) -> Tensor | None:
        """p(x), with the change of the stream that belongs to it; None in a block without a perceptron."""
        perceptron, residuals = self.block.perceptron, self.block.residuals
        found = None if perceptron is None else perceptron(x)
        if residuals is None:
            return found
        changed = residuals[1].change(x)
        return changed if found is None else found + changed

    def attended(self, x: Tensor) -> Tensor:
        """Σ_h V_h m_h for tokens with the directions x, (N, d), and the change of the stream that belongs to it."""
        first, *others = self.block.heads
        found = first.values(self._mean(x, first.directions(x)))
        for head in others:
            found = found + head.values(self._mean(x, head.directions(x)))
        return found if self.block.residuals is None else found + self.block.residuals[0].change(x)

    def _mean(self, points: Tensor, directions: Tensor) -> Tensor:
        """The mean of `points` by attention with the scores β⟨directions, points⟩, (N, d)."""
        if math.isinf(self.beta):
            return self.attention(points, directions, hard=True)
        return self.attention(points, self.beta * directions)

    def _rescaled(self, z: Tensor, t: float) -> Tensor:
        """z' = Σ_h e^{−tV}V_h e^{tV} m_h(z) + e^{−tV}p(h) − Vz, with h = e^{tV}z and the scores ⟨e^{tVᵀ}Bᵀh, z⟩."""
        V = self.block.V
        grow, shrink = torch.linalg.matrix_exp(t * V), torch.linalg.matrix_exp(-t * V)
        h = z @ grow.T
        velocity = -(z @ V.T)
        for head in self.block.heads:
            mean = self._mean(z, head.directions(h) @ grow)
            # V of a single head commutes with e^{tV}, and the product with both exponentials would lose digits.
            alone = len(self.block.heads) == 1
            velocity = velocity + (head.values(mean) if alone else head.values(mean @ grow.T) @ shrink.T)
        if self.block.perceptron is not None:
            velocity = velocity + self.block.perceptron(h) @ shrink.T
        return velocity

    def layer(self, state: Tensor, step: float) -> Tensor:
        """The state after one discrete layer of length `step`: N(x + step·f) or h + step·f.

        In a sequential block the perceptron is applied to the result of attention. Unlike a step of Euler's method, a
        layer adds the whole update and not only its tangential part.
        """
        both = self.block.sequential and (self.block.perceptron is not None or self.block.residuals is not None)
        for halves in (slice(0, 1), slice(1, 2)) if both else (slice(None),):
            x = state if self.on_sphere else unit(state)
            state = state + step * self._update(x, halves)
            state = unit(state) if self.on_sphere else state
        return state

    def forget(self) -> None:
        """Drop what was kept from earlier evaluations: see `Prepared`."""
        self.attention.forget()
