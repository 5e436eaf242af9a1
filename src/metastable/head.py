"""A head: the query, key and value matrices that make tokens attend to one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metastable import notebook
from metastable.arrays import Array, finite, matmul, matrix, moved, seeded, shape_of, vector
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.theory import Theory

MATRICES = ("query", "key", "value", "output", "offset")


QUICK = 512
"""A notebook shows the spectrum of heads with at most this many rows of Q and K, which takes below a second."""


class Head:
    """One attention head, with scores ⟨Qx, Ky⟩ = ⟨Bᵀx, y⟩, B = QᵀK, and value matrix V.

    Parameters
    ----------
    query, key : (k, d)
        Q and K. Any softmax scale such as 1/√k belongs in β or in Q.
    value : (d, d), or (r, d) when `output` is given
        V itself, or the inner factor V_h of V = O·V_h.
    output : (d, r), optional
        O, the output matrix of a trained head.
    offset : (d,), optional
        a, for a folded head with scores ⟨Bᵀx + a, y⟩ (a trained head with biases).

    Examples
    --------
    >>> import torch, metastable as ms
    >>> head = ms.Head(torch.eye(3), torch.eye(3), torch.diag(torch.tensor([3.0, 2.0, 1.0])))
    >>> round(head.theory().gap, 6)
    1.0
    """

    def __init__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        output: Array | None = None,
        offset: Array | None = None,
    ) -> None:
        self.query = matrix(query, "query")
        self.key = matrix(key, "key")
        self.value = matrix(value, "value")
        self.output = None if output is None else matrix(output, "output")
        if self.query.shape != self.key.shape:
            raise BadInput(f"query is {shape_of(self.query)} and key {shape_of(self.key)}: both must be k×d")
        d = self.dim
        rows = self.rank
        if self.output is None and rows != d and self.value.shape == (rows, rows):
            raise BadInput(
                f"query and key are {rows}×{d} but value is {rows}×{rows}: transpose query and key to k×{rows}"
            )
        if self.output is None and self.value.shape != (d, d):
            raise BadInput(f"value is {shape_of(self.value)}, expected {d}×{d} (or r×{d} with output= of shape {d}×r)")
        if self.output is not None and (self.value.shape[1] != d or self.output.shape != (d, len(self.value))):
            raise BadInput(
                f"output is {shape_of(self.output)} and value {shape_of(self.value)}, expected {d}×r and r×{d}"
            )
        self.offset = None if offset is None else vector(offset, "offset", d)
        self._theory: Theory | None = None
        dtype = torch.float64 if any(a.dtype == torch.float64 for a in self.matrices.values()) else torch.float32
        for name, part in self.matrices.items():
            setattr(self, name, part.to(dtype=dtype, device=self.query.device))

    @classmethod
    def from_interaction(cls, interaction: Array, value: Array) -> Head:
        """The head with B = `interaction` (d×d) and V = `value` (d×d): Q = I, K = B."""
        B = matrix(interaction, "interaction")
        if B.shape[0] != B.shape[1]:
            raise BadInput(f"interaction is {shape_of(B)}, expected a square matrix B = QᵀK")
        return cls(torch.eye(len(B), dtype=B.dtype, device=B.device), B, value)

    @classmethod
    def from_spectra(
        cls,
        interaction: Sequence[float],
        value: Sequence[float],
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        angle: float | None = None,
    ) -> Head:
        """A head with symmetric B and V of the given eigenvalues.

        B = R diag(interaction) Rᵀ and V = S diag(value) Sᵀ, where R and S are independent random rotations drawn from
        `seed`: B and V do not commute, and M = V Bᵀ is not normal.

        angle : in degrees, instead of random rotations: R = I, and S rotates by `angle` in the plane of the first two
            axes. It is the angle between the leading eigenvectors of B and V if the first eigenvalue is the largest
        """
        b = vector(interaction, "interaction", None).to(dtype)
        v = vector(value, "value", len(b)).to(dtype)
        if angle is not None:
            if len(b) < 2:
                raise BadInput(f"interaction has {len(b)} number; angle needs d ≥ 2")
            G = _plane_rotation(len(b), finite(angle, "angle"))
            return cls.from_interaction(torch.diag(b), torch.from_numpy(G @ np.diag(v.numpy()) @ G.T).to(dtype))
        generator = seeded(seed)
        R, S = (_rotation(len(b), generator).to(dtype) for _ in range(2))
        return cls.from_interaction(R @ torch.diag(b) @ R.T, S @ torch.diag(v) @ S.T)

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The matrices that make the head, by name: `Head(**head.matrices)` is the same head."""
        return {name: part for name in MATRICES if (part := getattr(self, name)) is not None}

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def dim(self) -> int:
        """d, the dimension of the tokens."""
        return int(self.query.shape[1])

    @property
    def rank(self) -> int:
        """k, the number of rows of Q and K. The head is factored when k < d."""
        return int(self.query.shape[0])

    @property
    def B(self) -> Tensor:
        """The interaction matrix B = QᵀK, (d, d)."""
        return self.query.T @ self.key

    @property
    def V(self) -> Tensor:
        """The value matrix, (d, d): O·V_h when the head was given an output matrix."""
        return self.value if self.output is None else self.output @ self.value

    @property
    def M(self) -> Tensor:
        """M = V Bᵀ, (d, d), the generator of the zero-temperature flow."""
        return self.apply_value(self.key.T) @ self.query

    def apply_value(self, columns: Tensor) -> Tensor:
        """V times `columns` (d, m), through the factors when there are any."""
        inner = self.value @ columns
        return inner if self.output is None else self.output @ inner

    def directions(self, x: Tensor) -> Tensor:
        """Bᵀx + a for each row x of (n, d): what a token looks for. Scores are ⟨directions(x), y⟩."""
        u = matmul(matmul(x, self.query.T), self.key)
        return u if self.offset is None else u + self.offset

    def values(self, m: Tensor) -> Tensor:
        """V m for each row m of (n, d)."""
        inner = matmul(m, self.value.T)
        return inner if self.output is None else matmul(inner, self.output.T)

    def to(self, dtype: torch.dtype | None = None, device: Any = None) -> Head:
        """The same head in another dtype or on another device; this head itself if nothing changes."""
        found = {name: moved(part, dtype, device) for name, part in self.matrices.items()}
        return self if all(part is getattr(self, name) for name, part in found.items()) else Head(**found)

    def theory(self) -> Theory:
        """What the theory predicts for this head: spectrum, limit map, rates, and which assumptions hold."""
        from metastable.theory import Theory

        if self._theory is None:
            self._theory = Theory(self)
        return self._theory

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process computes its own theory.
        return {**self.__dict__, "_theory": None}

    def __repr__(self) -> str:
        extras = "".join(f", {name}" for name in ("output", "offset") if getattr(self, name) is not None)
        return f"Head(d={self.dim}, k={self.rank}{extras}, {str(self.query.dtype).removeprefix('torch.')})"

    def _repr_html_(self) -> str:
        """The head in a notebook: its sizes, and its theory if the spectrum is quickly found."""
        rows: dict[str, object] = {"d": self.dim, "k": self.rank, "dtype": str(self.dtype).removeprefix("torch.")}
        rows |= {name: "yes" for name in ("output", "offset") if getattr(self, name) is not None}
        if self.rank > QUICK:
            return notebook.table("Head", rows)
        th = self.theory()
        rows["assumptions"] = th.verdict.status
        return notebook.table("Head", rows | th._rows(), th._thumbnail())


def _plane_rotation(d: int, angle: float) -> np.ndarray:
    """The rotation by `angle` degrees in the plane of the first two axes."""
    theta, rotation = math.radians(angle), np.eye(d)
    rotation[:2, :2] = [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]]
    return rotation


def _rotation(d: int, generator: torch.Generator) -> Tensor:
    """A Haar-distributed orthogonal matrix: QR of a Gaussian matrix with the signs of R's diagonal put right."""
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q * torch.sign(torch.diagonal(r))
