"""The dominant part of a matrix M = L·R: eigenvalues, eigenspace, spectral projector, limit map.

For a flow x(τ) = e^{τM}x₀/|e^{τM}x₀| everything is decided by λ₁, the eigenvalue with the largest real part.
With m its algebraic multiplicity, X a basis of the invariant subspace and Λ its dual basis (ΛX = I), the
spectral projector is Π = XΛ: oblique unless M is normal. On that subspace M acts as T = λ₁I + N with N
nilpotent, and for large τ

    e^{τM}x₀ ≈ e^{λ₁τ} τ^{j−1}/(j−1)! · N^{j−1}Πx₀,      N^j = 0.

In the semisimple case j = 1 this is Πx₀. The **limit operator** is G = X N^{j−1} Λ, the limit map is
x ↦ Gx/|Gx|, and E is the range of G.

When L is d×k with k < d, the nonzero eigenvalues of LR are those of the k×k matrix A = RL: if AU = UT and
WᵀA = TWᵀ with WᵀU = I, then X = LU and Λ = T⁻¹WᵀR. The other d − k eigenvalues are 0. The d×d matrix is never
formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg as sl
import torch
from torch import Tensor

from metastable.errors import BadInput

SAME = 1e-5
"""Eigenvalues this close, relative to the largest one, count as one."""


@dataclass(frozen=True)
class _Group:
    """The eigenvalues of one group, as an invariant subspace: M·right = right·block, left·right = I."""

    right: np.ndarray
    left: np.ndarray
    block: np.ndarray


class Spectrum:
    """Spectrum of M = L·R, (d, k)·(k, d), or of a square M when R is not given.

    The dominant group are the eigenvalues with the largest real part, λ₁ its mean, and Π the spectral projector onto
    it. The limit map is x ↦ Gx/|Gx| with the limit operator G, which is Π if λ₁ is semisimple. E is the range of G.

    Attributes
    ----------
    eigenvalues : (d,) complex, by decreasing real part
    gap : λ₁ − max Re of the other eigenvalues; inf when there are no others
    multiplicity : algebraic multiplicity of the dominant group
    dim : dimension of E
    basis : (d, dim) orthonormal basis of E
    co_basis : (d, dim) orthonormal basis of the row space of G: the set {Gx = 0} is orthogonal to it
    projector : (d, d), Π, oblique in general
    """

    def __init__(self, left: Tensor, right: Tensor | None = None, name: str = "M") -> None:
        self.name = name
        self._like = left
        L = left.detach().to("cpu", torch.float64)
        R = None if right is None else right.detach().to("cpu", torch.float64)
        if R is not None and len(R) >= len(L):
            L, R = L @ R, None
        self.size = len(L)
        self._L, self._R = L.numpy(), None if R is None else R.numpy()
        self._small: np.ndarray = self._L if R is None else (R @ L).numpy()

    @cached_property
    def norm(self) -> float:
        """‖M‖₂."""
        if self._R is None:
            return float(np.linalg.norm(self._L, 2))
        return float(np.linalg.norm(np.linalg.qr(self._L)[1] @ np.linalg.qr(self._R.T)[1].T, 2))

    @cached_property
    def _values(self) -> np.ndarray:
        # By torch, as the products before it: taking turns with numpy's own thread pool costs ten times as much.
        found = torch.linalg.eigvals(torch.from_numpy(self._small)).numpy()
        values = np.concatenate([found, np.zeros(self.size - len(found))])
        return values[np.lexsort((-values.imag, -values.real))]

    @property
    def eigenvalues(self) -> Tensor:
        return torch.from_numpy(self._values.astype(np.complex128))

    @cached_property
    def tolerance(self) -> float:
        """Eigenvalues closer than this count as one.

        Rounding moves λ by about ε‖M‖κ, κ = 1/|⟨y, x⟩| from its unit left and right eigenvectors; it splits a 3×3
        Jordan block by 6e-6·‖M‖. The tolerance is 100 times that for λ₁, between SAME·max|λ| and SAME·‖M‖.
        """
        values, left, right = sl.eig(self._small, left=True, right=True)
        first = int(values.real.argmax())
        overlap = abs(np.vdot(left[:, first], right[:, first]))
        rounding = 100 * np.finfo(float).eps * self.norm / max(overlap, 1e-300)
        return float(max(SAME * np.abs(values).max(), min(rounding, SAME * self.norm)))

    @cached_property
    def _dominant(self) -> np.ndarray:
        return self._values[self._values.real >= self._values[0].real - self.tolerance]

    @property
    def leading(self) -> float:
        """Re λ₁, the mean over the dominant group."""
        return float(self._dominant.real.mean())

    @property
    def frequency(self) -> float:
        """The largest |Im λ| in the dominant group: 0 without rotation."""
        largest = float(np.abs(self._dominant.imag).max())
        return largest if largest > self.tolerance else 0.0

    @property
    def rotates(self) -> bool:
        return self.frequency > 0

    @property
    def multiplicity(self) -> int:
        return len(self._dominant)

    @property
    def gap(self) -> float:
        rest = self._values[self.multiplicity :]
        return float(self.leading - rest[0].real) if len(rest) else float("inf")

    @property
    def from_kernel(self) -> bool:
        """The kernel of a factored M is dominant: no eigenvalue has positive real part."""
        return self._R is not None and self._values[0].real <= self.tolerance

    def _group(self, edge: float, below: bool = False) -> _Group:
        """Invariant subspace of the eigenvalues with real part ≥ `edge`, or of those below it."""

        def chosen(re: float, im: float) -> bool:
            return (re < edge) == below

        T, Z, m = sl.schur(self._small, output="real", sort=chosen)
        T11, T12, T22 = T[:m, :m], T[:m, m:], T[m:, m:]
        Y = sl.solve_sylvester(T11, -T22, T12) if 0 < m < len(T) else np.zeros((m, len(T) - m))
        W = np.hstack([np.eye(m), Y]) @ Z.T
        if self._R is None:
            return _Group(Z[:, :m], W, T11)
        return _Group(self._L @ Z[:, :m], np.linalg.solve(T11, W @ self._R), T11)

    @cached_property
    def _leading_group(self) -> _Group:
        return self._group(self._values[0].real - self.tolerance)

    @cached_property
    def _nilpotent(self) -> np.ndarray:
        block = self._leading_group.block
        return block - np.trace(block) / len(block) * np.eye(len(block))

    @property
    def defect(self) -> float:
        """‖N‖/‖M‖ on the dominant subspace: 0 when λ₁ is semisimple (and not rotating)."""
        if self.from_kernel or self.norm == 0:
            return 0.0
        return float(np.linalg.norm(self._nilpotent, 2)) / self.norm

    @property
    def semisimple(self) -> bool:
        return self.rotates or self.defect <= SAME

    @cached_property
    def _top_power(self) -> np.ndarray:
        """N^{j−1}, the last power of N that is not zero; I in the semisimple case."""
        power = np.eye(self.multiplicity)
        if self.semisimple:
            return power
        for _ in range(self.multiplicity):
            following = power @ self._nilpotent
            if float(np.linalg.norm(following, 2)) <= SAME * max(self.norm, float(np.linalg.norm(power, 2))):
                break
            power = following
        return power

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """(X N^{j−1}, Λ): the limit operator G as a product. Not for a dominant kernel."""
        group = self._leading_group
        return group.right @ self._top_power, group.left

    @cached_property
    def _kernel(self) -> _Group:
        """For a dominant kernel, the group of all other eigenvalues: Π is I minus its projector."""
        return self._group(self._values[0].real - self.tolerance, below=True)

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormal bases of the range and of the row space of the limit operator."""
        if self.from_kernel:
            return sl.null_space(self._kernel.left), sl.null_space(self._kernel.right.T)
        outer, inner = self._factors
        # G = outer·inner; through QR of both factors its SVD is an m×m problem.
        Qo, Ro = np.linalg.qr(outer)
        Qi, Ri = np.linalg.qr(inner.T)
        U, s, Vt = np.linalg.svd(Ro @ Ri.T)
        r = max(1, int((s > SAME * s[0]).sum()))
        return Qo @ U[:, :r], Qi @ Vt[:r].T

    @property
    def dim(self) -> int:
        return int(self._ranges[0].shape[1])

    @property
    def basis(self) -> Tensor:
        return self._tensor(self._ranges[0])

    @property
    def co_basis(self) -> Tensor:
        return self._tensor(self._ranges[1])

    @property
    def projector(self) -> Tensor:
        if self.from_kernel:
            return self._tensor(np.eye(self.size) - self._kernel.right @ self._kernel.left)
        return self._tensor(self._leading_group.right @ self._leading_group.left)

    @cached_property
    def projector_norm(self) -> float:
        """‖Π‖₂: 1 for an orthogonal projector, large when tokens are thrown far across the sphere."""
        group = self._kernel if self.from_kernel else self._leading_group
        if group.right.shape[1] == 0:
            return 1.0
        # ‖I − Π‖ = ‖Π‖ for every projector that is neither 0 nor I.
        return float(np.linalg.norm(np.linalg.qr(group.right)[1] @ np.linalg.qr(group.left.T)[1].T, 2))

    @cached_property
    def lower_groups(self) -> list[tuple[float, np.ndarray, bool]]:
        """The groups of eigenvalues after the dominant one, by decreasing real part.

        Each as (real part, basis of its span (d, r), whether it is one complex pair): where tokens with no part in
        the groups before are drawn to. The kernel of a factored M is left out.
        """
        values, vectors = np.linalg.eig(self._small)
        order = np.argsort(-values.real)
        low = self._values[0].real - self.tolerance
        kept = [i for i in order if values[i].real < low and (self._R is None or abs(values[i]) > self.tolerance)]
        groups: list[list[int]] = []
        for i in kept:
            if groups and values[groups[-1][0]].real - values[i].real <= self.tolerance:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [self._span(values[group], vectors[:, group]) for group in groups]

    def _span(self, values: np.ndarray, vectors: np.ndarray) -> tuple[float, np.ndarray, bool]:
        columns = np.hstack([vectors.real, vectors.imag])
        U, s, _ = np.linalg.svd(columns if self._R is None else self._L @ columns, full_matrices=False)
        pair = len(values) == 2 and bool(abs(values[0].imag) > self.tolerance)
        return float(values[0].real), U[:, s > 1e-10 * s[0]], pair

    @cached_property
    def eigenbasis_condition(self) -> float:
        """Condition number of the unit eigenvectors (of the k×k problem when factored)."""
        return float(np.linalg.cond(np.linalg.eig(self._small)[1]))

    def limit(self, x: Tensor) -> Tensor:
        """T(x) = Gx/|Gx| for each row of (n, d). Rows with Gx = 0 have no limit and come back as NaN."""
        if self.rotates:
            raise BadInput(
                f"{self.name} has a complex dominant pair {self.leading:.4g} ± {self.frequency:.4g}i: "
                "tokens rotate for ever and have no limit point"
            )
        x64 = x.detach().to("cpu", torch.float64).numpy()
        if self.from_kernel:
            image = x64 - (x64 @ self._kernel.left.T) @ self._kernel.right.T
        else:
            outer, inner = self._factors
            image = (x64 @ inner.T) @ outer.T
        norms = np.linalg.norm(image, axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            pushed = np.where(norms > 0, image / norms, np.nan)
        return torch.from_numpy(pushed).to(dtype=x.dtype, device=x.device)

    def __repr__(self) -> str:
        pair = f" ± {self.frequency:.4g}i" if self.rotates else ""
        return f"Spectrum({self.name}: λ₁ = {self.leading:.4g}{pair}, dim {self.dim}, gap {self.gap:.4g})"

    def _tensor(self, a: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).to(dtype=self._like.dtype, device=self._like.device)
