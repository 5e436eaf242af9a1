"""The zero-temperature field of several heads, with its exact derivative.

For a law of full support head h sends a token at x towards V_h û_h, with u_h = B_hᵀx + a_h and û_h = u_h/|u_h|. Heads
add, and a further smooth field g (such as a perceptron) may be added too:

    F(x) = P_x G(x),       G(x) = Σ_h V_h û_h + g(x).

The derivative of G and the covariant derivative of F on the tangent space at x are

    DG(x) = Σ_h ( V_h B_hᵀ − (V_h û_h)(B_h û_h)ᵀ )/|u_h| + Dg(x),       A(x) = P_x DG(x) P_x − ⟨G(x), x⟩ P_x.

F is undefined, and in general discontinuous, where some u_h = 0. The term of that head counts as 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from metastable.cloud import uniform
from metastable.errors import BadInput
from metastable.head import Head

Smooth = Callable[[Tensor], Tensor]
"""g: float64 rows (n, d) to float64 rows (n, d), each row on its own."""

DIFFERENCE = 1e-5
"""Step of the central differences of g: truncation and rounding are then both about 1e-11."""
SINGULAR = 1e-12
"""Singular values of B below this fraction of the largest count as 0."""
ELEMENTS = 4_000_000
"""Numbers in one batch of d×d matrices: 32 MB."""


class SeveralHeads:
    """F, DG and A of heads of one dimension, in float64 on the CPU.

    heads : one head or more
    field : g, optional; it need not be tangent to the sphere
    """

    def __init__(self, heads: Sequence[Head], field: Smooth | None = None) -> None:
        if not heads:
            raise BadInput("heads is empty; give one head or more")
        dims = sorted({head.dim for head in heads})
        if len(dims) > 1 or dims[0] < 2:
            raise BadInput(f"the heads have d = {', '.join(map(str, dims))}; they must agree, with d ≥ 2")
        self.heads = [head.to(torch.float64, "cpu") for head in heads]
        self.field = field
        self.dim = dims[0]
        self.batch = max(1, ELEMENTS // self.dim**2)
        self._M = torch.stack([head.M for head in self.heads])

    @property
    def odd(self) -> bool:
        """F(−x) = −F(x) for certain: no offsets and no further field."""
        return self.field is None and all(head.offset is None for head in self.heads)

    def push(self, x: Tensor) -> Tensor:
        """G at the rows of x, (n, d)."""
        total = torch.zeros_like(x) if self.field is None else self.field(x).to(torch.float64)
        for head in self.heads:
            total = total + head.values(_direction(head, x)[0])
        return total

    def __call__(self, x: Tensor) -> Tensor:
        """F at the unit rows of x, (n, d)."""
        return project(x, self.push(x))

    def derivative(self, x: Tensor) -> Tensor:
        """DG at the rows of x: (n, d, d)."""
        inverse, DG = [], torch.zeros(len(x), self.dim, self.dim, dtype=x.dtype)
        for head in self.heads:
            direction, norm = _direction(head, x)
            inverse.append(torch.where(norm > 0, 1 / norm, torch.zeros_like(norm)))
            pulled = (direction @ head.key.T) @ head.query
            DG.baddbmm_((inverse[-1] * head.values(direction)).unsqueeze(2), pulled.unsqueeze(1), alpha=-1)
        DG += torch.tensordot(torch.cat(inverse, dim=1), self._M, dims=1)
        return DG if self.field is None else DG + self._field_derivative(x)

    def covariant(self, x: Tensor) -> Tensor:
        """A + xxᵀ at the unit rows of x: (n, d, d). It maps tangent vectors as A does, and x to itself."""
        # P DG P by rank-one updates: a product of d×d matrices would cost more than Newton's linear solve.
        A, push = self.derivative(x), self.push(x)
        along = (push * x).sum(dim=1).view(-1, 1, 1)
        column, row = x.unsqueeze(2), x.unsqueeze(1)
        A -= column @ (row @ A)
        A -= (A @ column) @ row
        A += (1 + along) * (column @ row)
        A.diagonal(dim1=1, dim2=2).sub_(along.squeeze(2))
        return A

    def tangent_eigenvalues(self, x: Tensor) -> Tensor:
        """Eigenvalues of A(x) on the tangent space, by decreasing real part: (n, d − 1), complex."""
        parts = []
        for part in x.split(self.batch):
            # The last d − 1 columns of a complete QR factorisation of x are a basis of the tangent space.
            frame = torch.linalg.qr(part.unsqueeze(2), mode="complete").Q[:, :, 1:]
            found = torch.linalg.eigvals(frame.transpose(1, 2) @ self.covariant(part) @ frame)
            parts.append(found.gather(1, found.real.argsort(dim=1, descending=True)))
        return torch.cat(parts) if parts else torch.empty(0, self.dim - 1, dtype=torch.complex128)

    def scale(self, seed: int = 0) -> float:
        """Root mean square of |F| over the sphere, from 256 random points; 1 if the field vanishes. An inverse time."""
        x = uniform(256, self.dim, seed).points
        found = float(self(x).square().sum(dim=1).mean().sqrt())
        return found if found > 1e-12 * float(torch.linalg.matrix_norm(self._M).max()) and found > 0 else 1.0

    def undefined_somewhere(self) -> bool:
        """Whether some B_hᵀx + a_h vanishes at a point of the sphere.

        The solutions of B_hᵀx = −a_h are x₀ + ker B_hᵀ, x₀ the least one. They meet the sphere if |x₀| ≤ 1 and the
        kernel is not {0}, or if |x₀| = 1.
        """
        for head in self.heads:
            Bt = head.B.T
            values = torch.linalg.svdvals(Bt)
            kernel = bool(values[-1] <= SINGULAR * values[0])
            a = torch.zeros(self.dim, dtype=torch.float64) if head.offset is None else head.offset
            least = -(torch.linalg.pinv(Bt, rtol=SINGULAR) @ a)
            solved = float((Bt @ least + a).norm()) <= 1e-9 * max(float(a.norm()), float(values[0]))
            if solved and ((kernel and float(least.norm()) <= 1) or abs(float(least.norm()) - 1) < 1e-9):
                return True
        return False

    def _field_derivative(self, x: Tensor) -> Tensor:
        """Dg by central differences. A field may compute in numpy, which automatic differentiation cannot follow."""
        assert self.field is not None
        columns = []
        for k in range(self.dim):
            step = torch.zeros(self.dim, dtype=x.dtype)
            step[k] = DIFFERENCE
            columns.append((self.field(x + step) - self.field(x - step)) / (2 * DIFFERENCE))
        return torch.stack(columns, dim=2).to(torch.float64)


def project(x: Tensor, w: Tensor) -> Tensor:
    """P_x w for each row."""
    return w - (w * x).sum(dim=1, keepdim=True) * x


def unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)


def _direction(head: Head, x: Tensor) -> tuple[Tensor, Tensor]:
    """û and |u| for each row; û = 0 where u = 0."""
    u = head.directions(x)
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    return torch.where(norm > 0, u / norm, torch.zeros_like(u)), norm
