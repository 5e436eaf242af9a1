"""Softmax sums under a causal mask: query i belongs to token i and sees the tokens j ≤ i only.

"dense", "flash" and "direct" mask their blocks: exact, in half the time of all pairs. The tree divides and conquers. A
range of tokens is halved. All queries of the second half see all tokens of the first half, which is one unmasked call
with log Z. The two halves follow in the same way, and LEAF tokens or fewer are one masked block. Each level has N/2
tokens and N/2 queries, so the cost is that of about log₂(N / LEAF) unmasked calls.

*Pieces.* The tokens that query i sees are split into pieces p with Z_p and m_p. With π_p = Z_p / Σ_q Z_q,

    Z = Σ_p Z_p,     m = Σ_p π_p m_p.

*Error.* Let |m̃_p − m_p| ≤ e and |log Z̃_p − log Z_p| ≤ η for every piece, and |y_j| ≤ R for every token. Then

    |log Z̃ − log Z| ≤ η,     |m̃ − m| ≤ e + R η.                                                                    (1)

The first is clear: Z̃ lies between e^{−η} Z and e^η Z. For the second, m̃ − m = Σ π̃_p (m̃_p − m_p) + Σ (π̃_p − π_p) m_p,
and the first sum is at most e. The weights are tilted: π̃_p ∝ π_p e^{a_p} with |a_p| ≤ η. Let π(t) ∝ π e^{t a} lead from
π to π̃. In a unit direction v, d/dt Σ π_p(t) ⟨m_p, v⟩ = Cov_{π(t)}(a, ⟨m, v⟩). A quantity in [−x, x] has a standard
deviation of at most x, so that the covariance is at most η R, and so is the second sum.

Every piece is asked for with the tolerance t = tol / (1 + R), for its mean and for log Z. By (1) the error is at most
tol. A product Z m, as in `unnormalised`, is a sum over the pieces: its error is at most the sum of theirs, relative to
Z that of one piece.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metastable.attention.engines import ENGINES
from metastable.attention.prepared import Sums, as_numpy, check_tolerance, exact_sums, grow
from metastable.errors import BadInput

LEAF = 4_000
"""Up to this many tokens one masked block is computed by "direct"; halving such a block again would cost more."""


class Causal:
    """m_i = Σ_{j≤i} w_j e^{⟨u_i,y_j⟩} y_j / Z_i and Z_i = Σ_{j≤i} w_j e^{⟨u_i,y_j⟩} for equal log-weights (N,).

    Nothing is kept between calls.
    """

    causal = True

    def __init__(self, log_weights: Tensor, engine: str, tol: float) -> None:
        if engine == "tree":
            check_tolerance(tol)
        if bool((log_weights != log_weights[0]).any()):
            raise BadInput(
                "the weights are unequal and the mask is causal; a causal mask needs tokens in an order, and tokens of "
                "unequal weight are a quadrature of a law without one; use equal weights"
            )
        self.log_weights, self.engine, self.tol = log_weights, engine, tol

    def __call__(self, points: Tensor, queries: Tensor, paired: bool = True) -> Tensor:
        """The means at the rows u_i of `queries` (N, d) for tokens at `points` (N, d): (N, d)."""
        if self.engine != "tree":
            return ENGINES[self.engine](points, self.log_weights, queries, causal=True)
        return self.sums(points, queries).mean

    def sums(self, points: Tensor, queries: Tensor) -> Sums:
        """The means and log Z_i with bounds, by the tree each within `tol`.

        If a query is not finite, all means and log Z of the tree are NaN.
        """
        if self.engine != "tree":
            return exact_sums(self.engine, points, self.log_weights, queries, causal=True)
        return self.sums_within(points, queries, float(self.tol) / (1.0 + radius(points)))

    def sums_within(self, points: Tensor, queries: Tensor, tol: float, paired: bool = True) -> Sums:
        """`sums` by the tree, of pieces that are each within `tol`."""
        if not bool(torch.isfinite(queries).all()):
            return Sums.unknown(queries)
        # The tree computes in float64, and so must the leaves: float32 would lose log Z.
        found = _combined(points.double().cpu(), self.log_weights.double().cpu(), queries.double().cpu(), tol)
        return Sums(*(values.to(queries) for values in found))

    def forget(self) -> None:
        """Nothing is kept between calls."""


def radius(points: Tensor) -> float:
    """R, the largest norm of a token."""
    return float(torch.linalg.vector_norm(points, dim=1).max())


def _combined(points: Tensor, log_weights: Tensor, queries: Tensor, tol: float) -> Sums:
    """The sums over all pieces. Each piece is added to those before it by (1)."""
    means, log_z = torch.zeros_like(queries), torch.full_like(queries[:, 0], -torch.inf)
    bounds, log_z_bounds = torch.zeros_like(log_z), torch.zeros_like(log_z)
    for rows, piece in _pieces(points, log_weights, queries, tol):
        total = torch.logaddexp(log_z[rows], piece.log_z)
        share = (piece.log_z - total).exp()
        means[rows] += share.unsqueeze(1) * (piece.mean - means[rows])
        log_z[rows] = total
        bounds[rows] = torch.maximum(bounds[rows], piece.bound)
        log_z_bounds[rows] = torch.maximum(log_z_bounds[rows], piece.log_z_bound)
    return Sums(means, log_z, bounds + radius(points) * log_z_bounds, log_z_bounds)


def _pieces(points: Tensor, log_weights: Tensor, queries: Tensor, tol: float) -> Iterator[tuple[slice, Sums]]:
    """The queries of each piece, as a slice, and its sums."""
    todo = [(0, len(points))]
    while todo:
        lo, hi = todo.pop()
        if hi - lo <= LEAF:
            rows = slice(lo, hi)
            yield rows, exact_sums("direct", points[rows], log_weights[rows], queries[rows], causal=True)
            continue
        mid = (lo + hi) // 2
        asked = as_numpy(queries[mid:hi])
        tree = grow(as_numpy(points[lo:mid]), as_numpy(log_weights[lo:mid]), asked, tol)
        yield slice(mid, hi), tree.sums(asked, tol)
        todo += [(mid, hi), (lo, mid)]
