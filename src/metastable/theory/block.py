"""What is known about a block that is more than one softmax head on the sphere.

- *One head, another clock* (norm pre, peri or ngpt): at zero temperature each token moves along the same orbit as on
  the sphere, because x' is P_x V Bᵀx/|Bᵀx| divided by a positive number. So the limit law is that of the head. The
  rates are other ones: exponential for ngpt, a power of t for pre and peri, where the radius grows like t.
- *Several heads, a perceptron*: the zero-temperature field is F(x) = P_x(Σ_h V_h B_hᵀx/|B_hᵀx| + p(x)), homogeneous but
  not linear. Its fixed points are searched for, see `fixed_points`. A token goes to the stable one in whose basin it
  starts.
- *Everything else* (a mask, another kernel, noise, no normalisation, gains of a trained layer) has no limit law here,
  and `no_limit` gives the reason.

Without a perceptron a single cluster moves by the sum of the V_h alone: `terminal` is its spectrum.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from metastable.arrays import Array, matrix
from metastable.errors import BadInput
from metastable.theory.assumptions import Check, Verdict
from metastable.theory.fixed_points import Basins, FixedPoints, fixed_points
from metastable.theory.spectrum import Spectrum
from metastable.theory.theory import Theory

if TYPE_CHECKING:
    from metastable.block import Block

LARGEST = 64
"""Fixed points are searched for up to this dimension."""
ASTRAY = 0.01
"""With a larger share of the sphere that reaches no stable fixed point there is no limit law."""
SAMPLE = 2000
"""The tokens that are followed to estimate the basins."""


class BlockTheory:
    """Limit, rates and verdict of a block. Made by `block.theory()`; parts are computed when asked for."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @cached_property
    def terminal(self) -> Spectrum | None:
        """The spectrum of Σ_h V_h, which moves a single cluster; None if something else moves it too."""
        if self.block.perceptron is not None or self.block.residuals is not None or self.block.norm == "none":
            return None
        return Spectrum(self.block.V.double(), name="V" if len(self.block.heads) == 1 else "the sum of the V")

    @property
    def attention(self) -> Spectrum | None:
        """The spectrum of M for one head; None where there is no M."""
        return None if self.one_head is None else self.one_head.attention

    @property
    def lipschitz(self) -> float:
        """There is no bound of how fast zero-temperature flows of a block separate."""
        return math.inf

    def law_rate(self, p: float = 2) -> float:
        """No rate of the law is known."""
        return 0.0

    def __repr__(self) -> str:
        return f"BlockTheory({self.block.name}: {self.no_limit or 'has a limit law'})"

    @cached_property
    def one_head(self) -> Theory | None:
        """The theory of the head whose orbits are those of the block; None if there is no such head."""
        block = self.block
        alone = len(block.heads) == 1 and block.perceptron is None
        return block.head.theory() if alone and self._missing is None else None

    @cached_property
    def _missing(self) -> str | None:
        """Why no limit law is known whatever the weights are; None if there may be one."""
        block = self.block
        if block.residuals is not None:
            return "a trained layer has gains and offsets, for which there is no theory"
        if block.noise:
            return "with noise the law tends to a stationary law, not to points"
        if block.causal:
            return "under a causal mask the first token moves by V alone and the others follow it one after another"
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
            return self.one_head.no_limit
        if self.block.dim > LARGEST:
            return f"fixed points of several heads are searched for up to d = {LARGEST}, and d is {self.block.dim}"
        if not len(self.fixed_points.stable):
            return "no stable fixed point of the zero-temperature field was found"
        astray = self.basins.nowhere
        if astray > ASTRAY:
            return f"{100 * astray:.2g} % of the sphere reaches no stable fixed point of the zero-temperature field"
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
            raise BadInput(self.no_limit)
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
        """The slowest exponential rate at which a token near its limit converges; 0 if there is none.

        ngpt: with |V Bᵀe| = λ₁ the field is P_x Mx/|Mx|, so c = g/λ₁. pre and peri: r grows like t, which makes the
        approach a power of t.
        """
        if self.no_limit is not None or self.block.norm in ("pre", "peri"):
            return 0.0
        if self.one_head is None:
            stable = [
                rate
                for rate, kind in zip(self.fixed_points.rates, self.fixed_points.kinds, strict=True)
                if kind == "stable"
            ]
            return float(min(stable)) if self.block.norm == "post" else 0.0
        leading = self.one_head.attention.leading
        return self.gap / leading if leading > 0 and self.one_head.rate > 0 else 0.0

    @cached_property
    def verdict(self) -> Verdict:
        """The assumptions of the theory that the block meets; those of its head, if its orbits are the head's."""
        block = self.block
        checks = [
            Check("softmax attention", _status(block.kernel == "softmax"), 0.0, f"The kernel is {block.kernel}."),
            Check("no mask", _status(not block.causal), 0.0, "A causal mask is not part of the theory."),
            Check("no noise", _status(not block.noise), block.noise, "The number is the strength of the noise."),
            Check("tokens on the sphere", _status(block.norm in ("post", "ngpt"), "doubtful"), 0.0, _about_norm(block)),
            Check("one head", _status(len(block.heads) == 1, "doubtful"), len(block.heads), "The number of heads."),
            Check(
                "no perceptron", _status(block.perceptron is None, "doubtful"), 0.0, "A perceptron adds its own field."
            ),
        ]
        if self.one_head is not None:
            checks += self.one_head.verdict.checks
        return Verdict(tuple(checks))


def _status(met: bool, otherwise: str = "fails") -> str:
    return "holds" if met else otherwise


def _about_norm(block: Block) -> str:
    if block.norm == "none":
        return "Without normalisation tokens leave the sphere."
    if block.norm in ("pre", "peri"):
        return "Directions move along the orbits of the sphere, at a speed that falls with the radius."
    return "Tokens stay on the unit sphere."
