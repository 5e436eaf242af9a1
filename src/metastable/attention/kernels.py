"""The family of attention kernels. A kernel turns tokens y_j with weights w_j and a query u into a vector m(u).

    softmax         Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩}
    unnormalised    Σ w_j e^{⟨u,y_j⟩} y_j
    sigmoid         Σ w_j σ(⟨u,y_j⟩) y_j,  σ(s) = 1 / (1 + e^{−s})
    linear          ȳ + Cu, the softmax mean to first order in u

Under a causal mask the sums of token i run over j ≤ i, and the weights stay as they are: w_j = 1/N. They cancel in
softmax and linear, which see the first i tokens as a law of their own. In the other two, earlier tokens have smaller
sums, as a mask on the formula says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from metastable.attention.causal import Causal, radius
from metastable.attention.dense import argmax_mean
from metastable.attention.engines import choose
from metastable.attention.linear import causal_linear_mean, linear_mean
from metastable.attention.prepared import Prepared
from metastable.attention.sigmoid import sigmoid_sum
from metastable.attention.unnormalised import share, times_partition
from metastable.errors import BadInput, choice


def _softmax(means: Prepared | Causal, points: Tensor, queries: Tensor) -> Tensor:
    return means(points, queries, paired=True)


def _unnormalised(means: Prepared | Causal, points: Tensor, queries: Tensor) -> Tensor:
    if means.engine != "tree":
        found = means.sums(points, queries)
        return times_partition(found.mean, found.log_z)
    # log Z in float32 would be off by more than the tolerance.
    tol = share(float(means.tol), radius(points))
    found = means.sums_within(points.double(), queries.double(), tol, paired=True)
    return times_partition(found.mean, found.log_z).to(queries)


def _sigmoid(means: Prepared | Causal, points: Tensor, queries: Tensor) -> Tensor:
    return sigmoid_sum(points, means.log_weights, queries, means.causal)


def _linear(means: Prepared | Causal, points: Tensor, queries: Tensor) -> Tensor:
    if means.causal:
        return causal_linear_mean(points, queries)
    return linear_mean(points, means.log_weights, queries)


KERNELS: dict[str, Callable[[Prepared | Causal, Tensor, Tensor], Tensor]] = {
    "softmax": _softmax,
    "unnormalised": _unnormalised,
    "sigmoid": _sigmoid,
    "linear": _linear,
}


class Attention:
    """m(u_i) of every token i for a kernel, with or without a causal mask, for log-weights (N,).

    The engine is "auto", "tree" or one of `ENGINES`. The choice of "auto" depends on the dimension, so it is
    made at the first call: `engine` is "auto" before and the engine that is used afterwards. With "tree" the error is
    at most `tol`, for the unnormalised kernel `tol`·Z(u).
    """

    def __init__(self, kernel: str, causal: bool, log_weights: Tensor, engine: str, tol: float) -> None:
        self.kernel, self.causal = choice(kernel, "kernel", KERNELS), causal
        self._means = (Causal if causal else Prepared)(log_weights, engine, tol)
        # Refuses engines that cannot serve the kernel. The dimension matters for "auto" only.
        self._choose(d=1, without=())

    def _choose(self, d: int, without: Collection[str] | None = None) -> str:
        means, n = self._means, len(self.log_weights)
        return choose(means.engine, means.log_weights, d, n, means.tol, self.kernel, self.causal, without)

    @property
    def engine(self) -> str:
        return self._means.engine

    @property
    def log_weights(self) -> Tensor:
        return self._means.log_weights

    def __call__(self, points: Tensor, queries: Tensor, hard: bool = False) -> Tensor:
        """m at the rows u_i of `queries` (N, d) for tokens at `points` (N, d), query i of token i: (N, d).

        `hard` is the limit β → ∞ of softmax attention, which other kernels do not have. It is exact.
        """
        if hard and self.kernel != "softmax":
            raise BadInput(f"beta is inf and the kernel is {self.kernel!r}; only softmax attention has a hardmax limit")
        if hard:
            return argmax_mean(points, self.log_weights, queries, self.causal)
        self._means.engine = self._choose(points.shape[1])
        return KERNELS[self.kernel](self._means, points, queries)

    def forget(self) -> None:
        """Drop what was kept from earlier calls: see `Prepared`."""
        self._means.forget()
