"""Moments of rows that come in batches, and what is computed from them: covariances, regressions, whitening.

Memory is that of a few d × d matrices, however many rows there are. Within a batch, products are computed in float32
about a centre near the mean, and summed in float64. The error of a covariance is below 1e-6 of its trace. The centre is
the mean of the first batch, so rows far from 0 and close to each other lose no precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metastable.errors import BadInput

# The smallest share of the identity in a covariance. x̂ has no component along (1, …, 1), so some would be singular.
SHRINKAGE = 0.01
# Most rows whose products are summed in float32.
ROWS = 1024
# The smallest mean variance. Tokens have length about 1, and rounding alone moves their features by 1e-8.
LEAST = 1e-12


class Moments:
    """Sums over rows x of width d about a fixed centre c, with y = x − c: n, Σy, Σyyᵀ, Σ|y|²y and Σ|y|⁴.

    Together they determine the mean of |x − mean|⁴, which Ledoit and Wolf's shrinkage needs, without a second pass.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.centre, self.first, self.third = (torch.zeros(width, dtype=torch.float64) for _ in range(3))
        # No memory before the first rows: a detector that is only restored never needs any.
        self.second = torch.zeros(1, 1, dtype=torch.float64).expand(width, width)
        self.fourth = 0.0

    def add(self, rows: Tensor) -> None:
        """rows : (any number, d)"""
        rows = rows.detach().float()
        if self.count == 0 and len(rows):
            self.centre = rows.double().mean(dim=0).float().double().cpu()
        centre = self.centre.to(rows)
        for part in rows.split(ROWS):
            y = part - centre
            squares = torch.linalg.vecdot(y, y)
            self.count += len(y)
            # Not in place: a tensor made in inference mode cannot be changed outside of it.
            self.first = self.first + y.sum(dim=0).double().cpu()
            self.second = self.second + (y.T @ y).double().cpu()
            self.third = self.third + (squares @ y).double().cpu()
            self.fourth += float(squares.double().square().sum())

    @property
    def mean(self) -> Tensor:
        """(d,)"""
        self._need_rows()
        return self.centre + self.first / self.count

    @property
    def covariance(self) -> Tensor:
        """(d, d), the mean of (x − mean)(x − mean)ᵀ."""
        self._need_rows()
        mean = self.first / self.count
        return self.second / self.count - torch.outer(mean, mean)

    def ledoit_wolf(self) -> float:
        """The share α of the identity that Ledoit and Wolf estimate for n rows; at least `SHRINKAGE`, at most 1.

            α = (mean |x − mean|⁴ − |S|²)/n / |S − (tr S/d) I|²,      in Frobenius norms

        "A well-conditioned estimator for large-dimensional covariance matrices", Journal of Multivariate Analysis 88,
        2004.
        """
        self._need_rows()
        scatter, d = self.covariance, len(self.centre)
        level = torch.trace(scatter) / d
        spread = float((scatter - level * torch.eye(d, dtype=torch.float64)).square().sum())
        noise = (self._fourth_central() / self.count - float(scatter.square().sum())) / self.count
        # Rows without any spread have spread 0.
        return min(max(noise / max(spread, 1e-30), SHRINKAGE), 1.0)

    def _fourth_central(self) -> float:
        """Σ|x − mean|⁴: with t = c − mean, |y + t|² = |y|² + 2⟨y, t⟩ + |t|², squared and summed."""
        t = self.centre - self.mean
        square, trace = t @ t, torch.trace(self.second)
        quadratic = 4 * (t @ (self.second @ t)) + 2 * square * trace + self.count * square**2
        return self.fourth + float(quadratic + 4 * (self.third @ t) + 4 * square * (self.first @ t))

    def _need_rows(self) -> None:
        if self.count == 0:
            raise BadInput("the detector has learned from 0 tokens; give texts with words in them")


def blended(covariance: Tensor, share: float = SHRINKAGE) -> Tensor:
    """(1 − α) S + α (tr S/d) I, and never singular."""
    d = len(covariance)
    level = (torch.trace(covariance) / d).clamp_min(LEAST)
    return (1 - share) * covariance + share * level * torch.eye(d, dtype=covariance.dtype)


def whitening(covariance: Tensor) -> Tensor:
    """W with W C Wᵀ = I, (d, d), the inverse of C's Cholesky factor: |W(x − μ)|² is Mahalanobis' distance, squared."""
    factor = torch.linalg.cholesky(covariance.double())
    eye = torch.eye(len(covariance), dtype=torch.float64, device=covariance.device)
    return torch.linalg.solve_triangular(factor, eye, upper=False)


def regression(covariance: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A and the covariance of y − A c, where rows are (y, c) and y has `width` columns: a ridge regression of y on c.

    A = S_yc ((1 − α) S_cc + α (tr/k) I)^{-1}, α = `SHRINKAGE`. The covariance of the rest is that of this A, which is
    slightly different from the least-squares one.
    """
    own, cross, around = covariance[:width, :width], covariance[width:, :width], covariance[width:, width:]
    a = torch.linalg.solve(blended(around), cross).T
    part = a @ cross
    return a, own - part - part.T + a @ around @ a.T
