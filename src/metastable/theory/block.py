"""What is known about a block that is more than one softmax head on the sphere.

- *One head, another clock* (norm pre, peri or ngpt; heads with the same B are one head): at zero temperature each token
  moves along the same orbit as on the sphere, because x' is P_x V Bᵀx/|Bᵀx| divided by a positive number. So the limit
  law is that of the head, if tokens do not reach the origin before. The rates are other ones: exponential for ngpt, a
  power of t for pre and peri, where the radius grows like t if λ₁ > 0.
- *Several heads, a perceptron*: the zero-temperature field is F(x) = P_x(Σ_h V_h B_hᵀx/|B_hᵀx| + p(x)), homogeneous but
  not linear. Its fixed points are searched for, see `fixed_points`. A token goes to the stable one in whose basin it
  starts.
- *Everything else* (a mask, another kernel, noise, no normalisation, gains of a trained layer) has no limit law here,
  and `no_limit` gives the reason.

Under softmax attention and without a perceptron a single cluster moves by the sum of the V_h alone: `terminal` is its
spectrum. Unnormalised and sigmoid attention of one head change the speed on the same orbits. With several heads they
weigh each V_h by a factor of its own, and there is no `terminal`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metastable.arrays import Array, matrix
from metastable.block import NORMS, SPHERES
from metastable.errors import BadInput
from metastable.head import Head
from metastable.theory.assumptions import AssumptionCheck, Verdict
from metastable.theory.fixed_points import Basins, FixedPoints, fixed_points
from metastable.theory.noise import KERNELS as NOISY
from metastable.theory.several_heads import SeveralHeads
from metastable.theory.spectrum import Spectrum
from metastable.theory.theory import Theory

if TYPE_CHECKING:
    from metastable.block import Block

LARGEST = 64
"""Fixed points are searched for up to this dimension."""
ASTRAY = 0.01
"""With a larger share of the sphere that reaches no stable fixed point there is no limit law."""
EQUAL = 1e-6
"""Matrices that differ by less, relative to their norm, are equal."""
SAMPLE = 2000
"""The tokens that are followed to estimate the basins."""


class BlockTheory:
    """Limit, rates and verdict of a block. Made by `block.theory()`; parts are computed when asked for."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @cached_property
    def terminal(self) -> Spectrum | None:
        """The spectrum of Σ_h V_h, whose flow has the orbits of a single cluster; None if they are others."""
        block = self.block
        if block.perceptron is not None or block.residuals is not None or block.norm == "none" or block.noise:
            return None
        if len(block.heads) > 1 and block.kernel in ("unnormalised", "sigmoid"):
            return None
        return Spectrum(self.block.V.double(), name="V" if len(self.block.heads) == 1 else "the sum of the V")

    @property
    def attention(self) -> Spectrum | None:
        """The spectrum of M for one head; None where there is no M."""
        return None if self.one_head is None else self.one_head.attention

    @property
    def lipschitz(self) -> float:
        """inf: no bound is known of how fast two tokens separate under the zero-temperature flow of a block."""
        return math.inf

    def law_rate(self, p: float = 2) -> float:
        """NaN: no rate of the law is known."""
        return math.nan

    def __repr__(self) -> str:
        return "\n  ".join([f"BlockTheory({self.block.name})", *self.known])

    @cached_property
    def known(self) -> tuple[str, ...]:
        """What is known about this member, in sentences. Claims of the family check these results."""
        block = self.block
        found = [f"There is no limit law: {self.no_limit}." if self.no_limit else self._about_limit()]
        if self.power is not None:
            found.append(f"At zero temperature a token comes to its limit like t^(−{self.power:.3g}), by gap/λ₁ of M.")
        elif self.rate > 0:
            found.append(f"At zero temperature a token comes to its limit like e^(−{self.rate:.3g}t) or faster.")
        if block.causal and not block.noise and block.kernel == "softmax" and self.terminal is not None:
            found.append(f"The first token moves by {self.terminal.name} alone. No token depends on later ones.")
            if self._alone and _identity(block.V):
                found.append("For V = I almost every start converges to the first token.")
        alone = self._alone and not block.causal
        if alone and not block.noise and block.kernel == "unnormalised" and _multiple(block.V, block.head.B):
            found.append(
                "V is a multiple of a symmetric B: in continuous time the energy ∬ e^(β⟨Bᵀx, y⟩) never decreases."
            )
        if alone and block.noise and block.kernel in NOISY and _identity(block.V) and _identity(block.head.B):
            found.append(
                "For B = V = I the uniform law is unstable exactly if the noise is below "
                f"theory.noise.critical_noise(beta, d={block.dim}, kernel={block.kernel!r})."
            )
        return tuple(found)

    def _about_limit(self) -> str:
        if self.one_head is not None:
            heads = "the head" if len(self.block.heads) == 1 else "one head, because all heads have the same B"
            return f"At zero temperature tokens go to the limit law of {heads}, on the orbits of the sphere."
        stable = self.fixed_points.count("stable")
        points = "the stable fixed point" if stable == 1 else f"one of {stable} stable fixed points"
        return f"At zero temperature a token goes to {points}; see fixed_points and basins."

    @property
    def _alone(self) -> bool:
        """Whether one head on the sphere is all that moves tokens, besides noise."""
        block = self.block
        return len(block.heads) == 1 and block.perceptron is None and block.residuals is None and block.norm == "post"

    @property
    def power(self) -> float | None:
        """k of the approach t^(−k) of a token to its limit under pre and peri with one head; None elsewhere.

        Near e the radius grows like r' = λ₁/|Bᵀe| (pre) and the direction converges at the rate (g/|Bᵀe|)/r, so that
        |x − e| ~ t^{−g/λ₁}. For peri both have the further factor 1/|f|.
        """
        if self.no_limit is not None or self.one_head is None or self.block.norm not in ("pre", "peri"):
            return None
        leading = self.one_head.attention.leading
        return self.gap / leading if leading > 0 and math.isfinite(self.gap) and self.one_head.rate > 0 else None

    @cached_property
    def one_head(self) -> Theory | None:
        """The theory of the head whose orbits are those of the block; None if there is no such head."""
        block = self.block
        if block.perceptron is not None or self._missing is not None:
            return None
        if len(block.heads) == 1:
            return block.head.theory()
        first, *others = block.heads
        plain = all(head.offset is None for head in block.heads)
        if plain and all(torch.equal(head.B, first.B) for head in others):
            return Head.from_interaction(first.B, block.V).theory()
        return None

    @cached_property
    def _missing(self) -> str | None:
        """Why no limit law is known whatever the weights are; None if there may be one."""
        block = self.block
        if block.residuals is not None:
            return "a trained layer has gains and offsets, for which there is no theory"
        if block.noise:
            return "with noise the law tends to a stationary law, not to points"
        if block.causal:
            return "the limit law is a statement about attention to all tokens, not about a causal mask"
        if block.kernel != "softmax":
            return f"the limit law is a statement about softmax attention, not about {block.kernel} attention"
        if block.norm == "none":
            return "without normalisation tokens leave the sphere on which the limit law lives"
        return None

    @cached_property
    def no_limit(self) -> str | None:
        """Why there is no limit law, or None when there is one."""
        if self._missing is not None:
            return self._missing
        if self.one_head is not None:
            return self.one_head.no_limit or self._shrinking(self.one_head.attention.leading)
        if self.block.dim > LARGEST:
            return f"fixed points of several heads are searched for up to d = {LARGEST}, and d is {self.block.dim}"
        if not len(self.fixed_points.stable):
            return "no stable fixed point of the zero-temperature field was found"
        astray = self.basins.nowhere
        if astray > ASTRAY:
            return f"{100 * astray:.2g} % of the sphere reaches no stable fixed point of the zero-temperature field"
        stable = self.fixed_points.stable
        field = SeveralHeads(self.block.heads, self.block.perceptron)
        return self._shrinking(float((field.push(stable) * stable).sum(dim=1).min()))

    def _shrinking(self, outwards: float) -> str | None:
        """Why tokens do not stay at their limit points under pre and peri, or None; `outwards` is ⟨x, f⟩ there.

        r' = ⟨x, f⟩ has its sign. A radius that reaches 0 in a finite time takes the direction with it.
        """
        if self.block.norm in ("pre", "peri") and outwards <= 0:
            return f"under {NORMS[self.block.norm]} the radius of tokens shrinks to 0 near a limit point"
        return None

    @cached_property
    def fixed_points(self) -> FixedPoints:
        """The fixed points of the zero-temperature field that were found, with their spectra."""
        if self._missing is not None:
            raise BadInput(f"there is no zero-temperature field to search: {self._missing}")
        return fixed_points(self.block.heads, self.block.perceptron)

    @cached_property
    def basins(self) -> Basins:
        """The shares of the uniform law that go to each stable fixed point."""
        return self.fixed_points.basins(SAMPLE)

    def limit(self, x: Array) -> Tensor:
        """T(x) for each row of (n, d): where the theory says that a token starting at x goes."""
        if self.no_limit is not None:
            raise BadInput(f"this block has no limit law: {self.no_limit}")
        if self.one_head is not None:
            return self.one_head.limit(x)
        points = matrix(x, "x")
        return self.fixed_points.limit(points).to(points)

    @property
    def basis(self) -> Tensor | None:
        """A basis of the dominant eigenspace, as columns; None if limit points are isolated fixed points."""
        return None if self.one_head is None else self.one_head.basis

    @property
    def dim(self) -> int:
        """The dimension of the dominant eigenspace; 0 if limit points are isolated fixed points."""
        return 0 if self.one_head is None else self.one_head.dim

    @property
    def somewhere(self) -> Tensor:
        """One of the limit points, (d,)."""
        return self.fixed_points.stable[0] if self.one_head is None else self.one_head.somewhere

    @property
    def gap(self) -> float:
        """The gap of M for one head; NaN where there is no M."""
        return math.nan if self.one_head is None else self.one_head.gap

    @property
    def rate(self) -> float:
        """The slowest exponential rate at which a token near its limit converges; NaN if none is known.

        ngpt: the field is P_x Mx/|Mx| and |Me| = |λ₁|, so c = g/|λ₁|. pre and peri: r grows like t, which makes the
        approach a power of t, see `power`, and the rate 0.
        """
        if self.no_limit is not None:
            return math.nan
        if self.block.norm in ("pre", "peri"):
            return 0.0
        if self.one_head is None:
            stable = [
                rate
                for rate, kind in zip(self.fixed_points.rates, self.fixed_points.kinds, strict=True)
                if kind == "stable"
            ]
            return float(min(stable)) if self.block.norm == "post" else math.nan
        if self.block.norm == "post":
            return self.one_head.rate
        leading = abs(self.one_head.attention.leading)
        return self.gap / leading if leading > 0 and self.one_head.rate > 0 else math.nan

    @cached_property
    def verdict(self) -> Verdict:
        """The assumptions of the theory that the block meets; those of its head, if its orbits are the head's."""
        block = self.block
        neurons = 0 if block.perceptron is None else block.perceptron.width
        checks = [
            AssumptionCheck(
                "softmax attention", _status(block.kernel == "softmax"), math.nan, f"The kernel is {block.kernel}."
            ),
            AssumptionCheck("attention to all tokens", _status(not block.causal), math.nan, _about_mask(block)),
            AssumptionCheck(
                "motion without noise", _status(not block.noise), block.noise, "The number is the strength of noise."
            ),
            AssumptionCheck("tokens on the sphere", _status(block.norm in SPHERES), math.nan, _about_norm(block)),
            AssumptionCheck(
                "a single head", _status(len(block.heads) == 1), len(block.heads), "The number is that of the heads."
            ),
            AssumptionCheck(
                "attention alone", _status(neurons == 0), neurons, "The number is that of the perceptron's neurons."
            ),
        ]
        if block.residuals is not None:
            words = "A trained layer has gains and offsets; the theory has none."
            checks.append(AssumptionCheck("no gains and offsets", "fails", math.nan, words))
        if self.one_head is not None:
            checks += self.one_head.verdict.checks
        return Verdict(tuple(checks))


def _status(met: bool) -> str:
    return "holds" if met else "fails"


def _identity(A: Tensor) -> bool:
    return bool((torch.eye(len(A), dtype=A.dtype, device=A.device) == A).all())


def _multiple(V: Tensor, B: Tensor) -> bool:
    """Whether B is symmetric and V = cB with c > 0, up to rounding."""
    size = B.norm()
    if not bool(size > 0):
        return False
    c = (V * B).sum() / size.square()
    return bool(c > 0) and bool((V - c * B).norm() <= EQUAL * V.norm()) and bool((B - B.T).norm() <= EQUAL * size)


def _about_mask(block: Block) -> str:
    return "Token i attends to the tokens j ≤ i only." if block.causal else "Every token attends to every token."


def _about_norm(block: Block) -> str:
    if block.norm == "none":
        return "Without normalisation tokens leave the sphere."
    if block.norm in ("pre", "peri"):
        return "Directions move along the orbits of the sphere, at a speed that falls with the radius."
    return "Tokens stay on the unit sphere."
