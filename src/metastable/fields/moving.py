"""The velocity of tokens at their own places, evaluated again and again as they move."""

from __future__ import annotations

import math

from torch import Tensor

from metastable.attention import Prepared, argmax_mean, choose
from metastable.fields.tangent import tangent
from metastable.head import Head


class Moving:
    """x ↦ 𝒱_β[μ](x) at the tokens x (N, d) of μ = Σ w_j δ_{x_j} itself; β = inf is hardmax.

    What depends on the weights alone is prepared once. `head` must have the dtype and the device of the tokens.
    """

    def __init__(self, head: Head, log_weights: Tensor, beta: float, engine: str, tol: float) -> None:
        self.head, self.beta = head, beta
        self.mean = Prepared(log_weights, choose(engine, log_weights, head.dim, len(log_weights), tol), tol)

    def __call__(self, x: Tensor) -> Tensor:
        u = self.head.directions(x)
        hard = math.isinf(self.beta)
        mean = argmax_mean(x, self.mean.log_weights, u) if hard else self.mean(x, self.beta * u, paired=True)
        return tangent(x, self.head.values(mean))

    def forget(self) -> None:
        """Drop what was kept from earlier evaluations: see `Prepared`."""
        self.mean.forget()
