"""What the theory predicts for a head, and which of its assumptions hold.

At zero temperature tokens decouple: dx/dt = P_x M x/|Bᵀx| with M = V Bᵀ, so x(t) = e^{τM}x₀/|e^{τM}x₀| with the
internal clock dt/dτ = |Bᵀx|. The limit law is T_# μ₀ with T(x) = Πx/|Πx| (see `spectrum`). Later, at finite β,
clusters move by V alone: the terminal phase.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metastable import notebook
from metastable.arrays import Array, matrix, real
from metastable.errors import BadInput
from metastable.head import Head
from metastable.theory.assumptions import SINGULAR, Verdict, judge
from metastable.theory.lipschitz import one_sided_lipschitz
from metastable.theory.spectrum import Spectrum

if TYPE_CHECKING:
    from metastable.theory.plateau import Forecast


class Theory:
    """Spectrum, limit, rates and verdicts of a head. Made by `head.theory()`; parts are computed when asked for.

    `attention` is the `Spectrum` of M = V Bᵀ (the metastable limit) and `terminal` that of V (the terminal
    phase). The names `eigenvalues`, `gap`, `dim`, `basis`, `co_basis`, `projector` and `limit` are those of
    `attention`.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.attention = Spectrum(head.apply_value(head.key.T), head.query, name="M = V Bᵀ")
        if head.output is None:
            self.terminal = Spectrum(head.value, name="V")
        else:
            self.terminal = Spectrum(head.output, head.value, name="V")

    def __repr__(self) -> str:
        return f"Theory({self.attention!r}, terminal {self.terminal!r}, assumptions: {self.verdict.status})"

    def _rows(self) -> dict[str, object]:
        """The prediction in a few lines, for a notebook."""
        a, t = self.attention, self.terminal
        leading = f"{a.leading:.4g}" + (f" ± {a.frequency:.4g}i" if a.rotates else "")
        found: dict[str, object] = {"λ₁ of M = V Bᵀ": leading, "gap": notebook.number(self.gap), "dim E": self.dim}
        found["limit"] = self.no_limit or (
            "two points ±e" if self.dim == 1 else f"the unit sphere of E, dim {self.dim}"
        )
        found["rate"] = notebook.number(self.rate)
        found["λ₁ of V"] = f"{t.leading:.4g}" + (f" ± {t.frequency:.4g}i" if t.rotates else "")
        return found

    def _thumbnail(self) -> str:
        """The eigenvalues of M as inline SVG; the dominant ones are large."""
        values = self.attention.eigenvalues.numpy()
        leads = values.real >= self.attention.leading - self.attention.tolerance
        order = np.argsort(~leads, kind="stable")
        return notebook.plane(values[order], int(leads.sum()), "eigenvalues of M in the complex plane")

    def _repr_html_(self) -> str:
        """The theory in a notebook."""
        rows = self._rows() | {"assumptions": self.verdict.status}
        rows |= {"not met": ", ".join(self.verdict.unmet)} if self.verdict.unmet else {}
        return notebook.table("Theory", rows, self._thumbnail())

    @property
    def eigenvalues(self) -> Tensor:
        return self.attention.eigenvalues

    @property
    def gap(self) -> float:
        """g = λ₁ − Re λ₂; inf when every eigenvalue of M is dominant."""
        return self.attention.gap

    @property
    def dim(self) -> int:
        """dim E: 1 means that the limit law is two atoms ±e."""
        return self.attention.dim

    @property
    def basis(self) -> Tensor:
        return self.attention.basis

    @property
    def somewhere(self) -> Tensor:
        """One of the limit points, (d,)."""
        return self.basis[:, 0]

    @property
    def co_basis(self) -> Tensor:
        return self.attention.co_basis

    @property
    def projector(self) -> Tensor:
        return self.attention.projector

    def limit(self, x: Array) -> Tensor:
        """T(x) for each row of (n, d): where the theory says that a token starting at x goes."""
        reason = self.no_limit
        if reason:
            raise BadInput(reason)
        return self.attention.limit(self._points(x))

    @cached_property
    def no_limit(self) -> str | None:
        """Why there is no limit map, or None when there is one."""
        a = self.attention
        if a.rotates:
            return (
                f"M has a complex dominant pair {a.leading:.4g} ± {a.frequency:.4g}i: tokens are drawn to its plane "
                "and rotate there for ever, so there is no limit point"
            )
        if self.singular and a.leading <= a.tolerance:
            return (
                "no eigenvalue of M has positive real part and B is singular: the dominant eigenspace is the kernel, "
                "where the field is undefined; attention does not concentrate tokens anywhere of its own"
            )
        return None

    @cached_property
    def interaction_values(self) -> Tensor:
        """Singular values of B, decreasing; the zeros of a factored head are left out."""
        q, k = (a.to(torch.float64) for a in (self.head.query, self.head.key))
        if self.head.rank >= self.head.dim:
            return torch.linalg.svdvals(q.T @ k)
        return torch.linalg.svdvals(torch.linalg.qr(q.T).R @ torch.linalg.qr(k.T).R.T)

    @property
    def singular(self) -> bool:
        s = self.interaction_values
        return self.head.rank < self.head.dim or float(s[-1]) <= SINGULAR * float(s[0])

    def clock(self, x: Array) -> Tensor:
        """dt/dτ = |Bᵀx| for each row of (n, d): how much time passes per unit of internal time."""
        points = self._points(x)
        return torch.linalg.vector_norm(self.head.directions(points.to(self.head.query)), dim=1)

    def _points(self, x: Array) -> Tensor:
        points = matrix(x, "x")
        if points.shape[1] != self.head.dim:
            raise BadInput(f"x has {points.shape[1]} coordinates and the head d = {self.head.dim}; they must agree")
        return points

    @cached_property
    def rate(self) -> float:
        """c = g/max{|Bᵀe| : e in E, |e| = 1}, the slowest rate at which a token near E converges; 0 without a limit.

        inf when every eigenvalue is dominant: tokens start at their limit.
        """
        if self.no_limit or not self.attention.semisimple:
            return 0.0
        slowest = float(np.linalg.norm(self._transposed(self.attention._ranges[0]), 2))
        return self.gap / slowest if slowest > 0 else math.inf

    @cached_property
    def escape_rate(self) -> float:
        """κ = g/|Bᵀx_r|: how fast tokens near the set {Πx = 0} leave it.

        Tokens of that set are drawn to E₂, the eigenspace of the second group of eigenvalues, and x_r is a unit vector
        of E₂. If this group is a complex pair, |Bᵀx| is averaged over one turn. If dim E₂ ≥ 2, the slowest point of E₂
        counts. κ is inf if there is no such set, or if Bᵀ vanishes there: tokens then leave in finite time.
        """
        if self.no_limit or not self.attention.semisimple:
            return 0.0
        groups = self.attention.lower_groups
        if not groups or groups[0][0] < self.attention.leading - self.gap - self.attention.tolerance:
            return math.inf
        _, basis, pair = groups[0]
        clock = self._group_clock(basis, pair)
        return self.gap / clock if clock > 0 else math.inf

    def law_rate(self, p: float = 2) -> float:
        """The rate at which W_p(μ_t^∞, ν) decays, up to a factor polynomial in t.

        Let E_k be the eigenspace of the k-th group of eigenvalues, by decreasing real part, and s_k = |Bᵀx| there.
        Some tokens first come to rest near E_k. Those that have not left it by time t have the mass
        exp(−t Σ_j (λ_j − λ_k)/s_k), with the sum over all eigenvalues of larger real part, with multiplicity. They are
        at a distance of order 1 from the limit, the others at e^{−ct}. Hence the rate is

            min( c, min_k Σ_j (λ_j − λ_k)/(p·s_k) ).

        The term k = 2 is κ·dim E/p; with κ = c this is c/2 for p = 2, dim E = 1.
        """
        if not real(p, "p", "Wasserstein distances need p ≥ 1") >= 1:
            raise BadInput(f"p is {p!r}; Wasserstein distances need p ≥ 1")
        if self.no_limit or not self.attention.semisimple:
            return 0.0
        values, slowest = self.attention._values.real, self.rate
        for level, basis, pair in self.attention.lower_groups:
            clock = self._group_clock(basis, pair)
            above = values[values > level + self.attention.tolerance]
            if clock > 0:
                slowest = min(slowest, float((above - level).sum()) / (p * clock))
        return slowest

    def _group_clock(self, basis: np.ndarray, pair: bool) -> float:
        """|Bᵀx| on the unit sphere of an invariant subspace: its largest value, or its mean over a turn of a pair."""
        return self._mean_clock(basis) if pair else float(np.linalg.norm(self._transposed(basis), 2))

    def _transposed(self, columns: np.ndarray) -> np.ndarray:
        q, k = (a.detach().to("cpu", torch.float64).numpy() for a in (self.head.query, self.head.key))
        return k.T @ (q @ columns)

    def _mean_clock(self, plane: np.ndarray) -> float:
        """Mean of |Bᵀx(τ)| over one turn of x(τ) = e^{τM}y/|e^{τM}y| in an invariant plane."""
        generator = plane.T @ self.attention._L @ (plane if self.attention._R is None else self.attention._R @ plane)
        _, vectors = np.linalg.eig(generator)
        phase = np.exp(1j * 2 * np.pi * (np.arange(512) + 0.5) / 512)
        orbit = plane @ np.real(vectors[:, :1] * phase)
        return float((np.linalg.norm(self._transposed(orbit), axis=0) / np.linalg.norm(orbit, axis=0)).mean())

    @cached_property
    def lipschitz(self) -> float:
        """One-sided Lipschitz constant L of the zero-temperature field (see `lipschitz`); inf for singular B."""
        return math.inf if self.singular else one_sided_lipschitz(self.head.B, self.head.M)

    def best_time(self, beta: float) -> float:
        """log β/(2(L₊ + c)): the order of the time at which the distance to the limit is least."""
        if not real(beta, "beta", "the time scale log β needs β > 1") > 1:
            raise BadInput(f"beta is {beta!r}; the time scale log β needs β > 1")
        denominator = 2 * (max(self.lipschitz, 0.0) + self.rate)
        return math.log(beta) / denominator if denominator > 0 else math.inf

    def plateau(self, beta: float) -> Forecast:
        """When the plateau of the uniform law ends at this β, with an error: d = 2, see `plateau.forecast`."""
        from metastable.theory.plateau import forecast

        return forecast(self, beta)

    @cached_property
    def verdict(self) -> Verdict:
        """A verdict for each assumption: holds / fails / doubtful, with the number behind it."""
        return judge(self)
