"""What the weights alone say about each head, without texts: tables of heads and of layers, and the unusual heads.

Each head is folded (see `fold`) to unit tokens, ‖B‖₂ = 1 and one layer as the unit of time. Everything then follows
from two k×k matrices. With V = O·V_h, Q O V_h Kᵀ has the nonzero eigenvalues of M = V Bᵀ, and V_h O has those of V.
Each matrix is decomposed once, and no d×d matrix is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm as normal
from torch import Tensor

from metastable.arrays import set_own_threads
from metastable.encoder.anatomy import Anatomy
from metastable.encoder.columns import CHECKS, COLUMNS, LAYER_COLUMNS, LOGARITHMIC
from metastable.encoder.fold import FoldedHead, fold_heads
from metastable.errors import BadInput
from metastable.theory import Theory
from metastable.theory.spectrum import SAME, Spectrum, _Group

P = ParamSpec("P")
T = TypeVar("T")

LINEAR = ("alignment",)
UNUSUAL = 3.5
"""The threshold of robust scores, the usual one for median and MAD. One normal value in 2150 exceeds it."""
FEWEST = 8
"""The smallest number of values for a median absolute deviation."""


Eigenvalues = tuple[np.ndarray, np.ndarray]
"""The eigenvalues of M and V that can be nonzero, by decreasing real part: (k,) and (r,), complex."""


@dataclass(frozen=True)
class Weights:
    """heads : the table, see `COLUMNS`. spectra : (layer, head) → `Eigenvalues`."""

    heads: pd.DataFrame
    spectra: dict[tuple[int, int], Eigenvalues]


def on_one_core(function: Callable[P, T]) -> Callable[P, T]:
    """The function, computed by a thread of its own that uses one core.

    The k×k problems of heads are too small to share: on a busy machine two threads take ten times as long as one.
    """

    @wraps(function)
    def alone(*args: P.args, **named: P.kwargs) -> T:
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(set_own_threads, 1, torch.get_num_threads()).result()
            return pool.submit(function, *args, **named).result()

    return alone


@on_one_core
def theories(anatomy: Anatomy, residuals: Sequence[float] | None = None) -> Theories:
    """The theory of every head. `residuals`: measured ρ for each layer, see `fold`."""
    measured: Sequence[float | None] = residuals or [None] * len(anatomy.layers)
    return [
        [SmallTheory(head) for head in fold_heads(layer, residual)]
        for layer, residual in zip(anatomy.layers, measured, strict=True)
    ]


def weigh(anatomy: Anatomy, residuals: Sequence[float] | None = None, known: Theories | None = None) -> Weights:
    """The table of heads and their spectra. `residuals`: measured ρ for each layer, see `fold`.

    known : the `theories` of the heads, if they are there already and no ρ was measured

    `layers_to_concentrate` is log β/c. The distance of a token to E shrinks like e^{−ct}, and finite temperature adds a
    term of order 1/β (the Laplace term of the theory). The first falls to the second at t = log β/c, in layers. It is
    an order of magnitude for this head alone, without constants. It is inf if there is no rate, or if β ≤ 1.
    """
    return _table(theories(anatomy, residuals) if known is None or residuals else known)


@on_one_core
def _table(known: Theories) -> Weights:
    rows, found = [], {}
    for theory in (theory for layer in known for theory in layer):
        folded = theory.folded
        rows.append(_row(folded, theory))
        found[folded.layer, folded.head] = theory.attention.small_eigenvalues, theory.terminal.small_eigenvalues
    return Weights(pd.DataFrame(rows, columns=list(COLUMNS)), found)


def layer_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Totals over the heads of each layer, the columns of `LAYER_COLUMNS`.

    These are counts and ranges, not a prediction. The heads of a layer attend separately and their updates add. The sum
    is not a head of the theory: it has no B, and its limit and rate do not follow from those of the heads.
    """
    kinds = {"real": ~heads["complex"] & ~heads["negative"], "complex": heads["complex"] & ~heads["negative"]}
    groups = heads.assign(**kinds, rate=heads["rate"].where(heads["rate"] > 0)).groupby("layer")
    columns = {
        "heads": groups.size(),
        "beta_median": groups["beta"].median(),
        "beta_low": groups["beta"].min(),
        "beta_high": groups["beta"].max(),
        "real": groups["real"].sum(),
        "complex": groups["complex"].sum(),
        "negative": groups["negative"].sum(),
        "rate_median": groups["rate"].median().fillna(0.0),
        "value_norm_sum": groups["value_norm"].apply(lambda norms: norms.sum()),
        "strongest": groups["value_norm"].apply(lambda norms: heads["head"].loc[norms.idxmax()]),
    }
    return pd.DataFrame(columns).reset_index()[list(LAYER_COLUMNS)]


def unusual(heads: pd.DataFrame, linear: Sequence[str] = LINEAR) -> pd.DataFrame:
    """The values with |score| > UNUSUAL: layer, head, column, value, median, score, expected; ordered by |score|.

    score = (v − median v)/(1.4826·MAD v) over all heads. v is the value, or its logarithm for the columns in
    `LOGARITHMIC`; `median` is on the scale of the value. `expected` is the expected number of values with such a score
    among all N values if each column were normal, N·2Φ(−|score|): a number near 1 means chance. Columns with fewer than
    FEWEST values, or with more than half of them equal, are left out.

    linear : the columns that are compared without a logarithm
    """
    found, looked_at = [], 0
    for column in (*LOGARITHMIC, *linear):
        values = heads[column].to_numpy(dtype=float)
        taking_part = np.isfinite(values) & ((values > 0) | (column in linear))
        seen = values[taking_part] if column in linear else np.log(values[taking_part])
        if len(seen) < FEWEST:
            continue
        median = np.median(seen)
        spread = 1.4826 * float(np.median(np.abs(seen - median)))
        # Heads of tied layers differ by rounding only.
        if spread <= SAME * max(abs(float(median)), 1.0):
            continue
        looked_at += len(seen)
        shown = float(median if column in linear else np.exp(median))
        for place, score in zip(np.flatnonzero(taking_part), (seen - median) / spread, strict=True):
            if abs(score) > UNUSUAL:
                where = heads.iloc[int(place)]
                found.append((int(where["layer"]), int(where["head"]), column, values[place], shown, float(score)))
    names = ["layer", "head", "column", "value", "median", "score"]
    table = pd.DataFrame(found, columns=names).sort_values("score", key=np.abs, ascending=False, kind="stable")
    table["expected"] = looked_at * 2 * normal.sf(table["score"].abs().to_numpy(dtype=float))
    return table.reset_index(drop=True)


class SmallSpectrum(Spectrum):
    """The `Spectrum` of M = L·R from one decomposition A = X diag(λ) X⁻¹ of A = RL, k×k.

    The columns of X are unit vectors. same_norm : a small matrix with the singular values of M that can be nonzero
    effective_rank : exp of the entropy of the squared singular values of M, as shares of their sum; 0 for M = 0
    """

    def __init__(self, left: Tensor, right: Tensor, name: str, same_norm: Tensor) -> None:
        super().__init__(left, right, name)
        # The largest eigenvalue of the Gram matrix is as exact as the largest singular value, in half the time.
        squares = torch.linalg.eigvalsh(same_norm.T @ same_norm).clamp_min(0.0)
        self.norm = math.sqrt(float(squares[-1]))
        shares = squares / squares.sum().clamp_min(1e-300)
        self.effective_rank = float(torch.exp(-torch.special.xlogy(shares, shares).sum())) if self.norm > 0 else 0.0

    @cached_property
    def _decomposition(self) -> tuple[np.ndarray, Tensor, np.ndarray | None]:
        """λ (k,), X (k, k) and X⁻¹. X⁻¹ is None if X is singular to rounding: A is then defective or close to it."""
        values, vectors = torch.linalg.eig(torch.from_numpy(self._small))
        inverse, failed = torch.linalg.inv_ex(vectors)
        sound = not int(failed) and bool(inverse.abs().max() < 1e8)
        return values.numpy(), vectors, inverse.numpy() if sound else None

    @property
    def small_eigenvalues(self) -> np.ndarray:
        """(k,) by decreasing real part: without the d − k zeros."""
        values = self._decomposition[0]
        return values[np.lexsort((-values.imag, -values.real))]

    @cached_property
    def _values(self) -> np.ndarray:
        found = self._decomposition[0]
        values = np.concatenate([found, np.zeros(self.size - len(found))])
        return values[np.lexsort((-values.imag, -values.real))]

    @cached_property
    def tolerance(self) -> float:
        values, _, inverse = self._decomposition
        if inverse is None:
            return super().tolerance
        # For unit columns of X, the row of X⁻¹ has the length 1/|⟨y, x⟩|.
        sensitivity = float(np.linalg.norm(inverse[values.real.argmax()]))
        rounding = 100 * np.finfo(float).eps * self.norm * sensitivity
        return float(max(SAME * np.abs(values).max(), min(rounding, SAME * self.norm)))

    @cached_property
    def eigenbasis_condition(self) -> float:
        s = torch.linalg.svdvals(self._decomposition[1])
        return float(s[0] / s[-1]) if float(s[-1]) > 0 else math.inf

    @cached_property
    def _leading_group(self) -> _Group:
        values, vectors, inverse = self._decomposition
        chosen = np.flatnonzero(values.real >= self._values[0].real - self.tolerance)
        simple = len(chosen) == 1 or (len(chosen) == 2 and abs(values[chosen[0]].imag) > self.tolerance)
        if inverse is None or not simple:
            return super()._leading_group
        first = int(chosen[0])
        u, w, value = vectors[:, first].numpy(), inverse[first], values[first]
        if len(chosen) == 1:
            right, left, block = u.real[:, None], w.real[None], np.array([[value.real]])
        else:
            right, left = np.stack([u.real, u.imag], axis=1), 2 * np.stack([w.real, -w.imag])
            block = np.array([[value.real, value.imag], [-value.imag, value.real]])
        if self._R is None:
            return _Group(right, left, block)
        return _Group(self._L @ right, np.linalg.solve(block, left @ self._R), block)

    @property
    def dim(self) -> int:
        # Only the size of the kernel's basis, d×(d − k), is needed.
        return self.size - self._kernel.right.shape[1] if self.from_kernel else super().dim


class SmallTheory(Theory):
    """The `Theory` of a folded head, with a `SmallSpectrum` of M and of V."""

    attention: SmallSpectrum
    terminal: SmallSpectrum

    def __init__(self, folded: FoldedHead) -> None:
        if not (math.isfinite(folded.residual) and folded.residual > 0):
            raise BadInput(f"layer {folded.layer}: the residual has size {folded.residual}; it must be positive")
        self.folded = folded
        self.head = head = folded.theory_head()[0]
        assert head.output is not None
        # With triangular factors Qᵀ = U q and so on, ‖QᵀK‖ = ‖q kᵀ‖ and the orthogonal U are not needed.
        q = folded.strength * folded.triangular[0]
        v, o = (_triangular(part) for part in (head.value.T, head.output))
        inner = head.value @ head.key.T
        self.interaction_values = folded.strength**2 * folded.singular_values
        self.attention = SmallSpectrum(head.output @ inner, head.query, "M = V Bᵀ", o @ inner @ q.T)
        self.terminal = SmallSpectrum(head.output, head.value, "V", o @ v.T)


Theories = list[list[SmallTheory]]
"""The theories of the heads of each layer."""


def _triangular(tall: Tensor) -> Tensor:
    """R with RᵀR = AᵀA, for norms: by Cholesky if AᵀA is definite to rounding, else by the slower QR."""
    factor, failed = torch.linalg.cholesky_ex(tall.T @ tall)
    return torch.linalg.qr(tall, mode="r").R if int(failed) else factor.T


def _row(folded: FoldedHead, theory: SmallTheory) -> dict[str, Any]:
    m, v, beta = theory.attention, theory.terminal, folded.beta
    negative = theory.singular and m.leading <= m.tolerance
    statuses = {CHECKS[check.name]: check.status for check in theory.verdict.checks}
    offset, linear = _offset(folded, theory)
    return {
        "layer": folded.layer,
        "head": folded.head,
        "beta": beta,
        "leading": m.leading,
        "frequency": m.frequency,
        "gap": _gap(m),
        "dim": m.dim,
        "multiplicity": m.multiplicity,
        "second": m.leading - _gap(m),
        "complex": m.rotates,
        "negative": negative,
        "nonnormality": m.projector_norm,
        "eigenbasis_condition": m.eigenbasis_condition,
        "rate": theory.rate,
        "layers_to_concentrate": math.log(beta) / theory.rate if beta > 1 and theory.rate > 0 else math.inf,
        "value_leading": v.leading,
        "value_frequency": v.frequency,
        "value_gap": _gap(v),
        "value_norm": v.norm,
        "value_rank": v.effective_rank,
        "terminal": _terminal(v),
        "offset": offset,
        "gain_spread": folded.gain_spread,
        "residual": folded.residual,
        "unfolded": ", ".join(folded.unfolded),
        "alignment": _alignment(m, v),
        **{"check_linear": linear, **statuses},
        "prediction": _prediction(theory, negative),
    }


def _gap(spectrum: Spectrum) -> float:
    return spectrum.gap if math.isfinite(spectrum.gap) else 0.0


def _offset(folded: FoldedHead, theory: Theory) -> tuple[float, str]:
    """|a|/‖B‖ on unit tokens, and the status of linear scores for a head with B = 0, which has no offset."""
    if theory.head.offset is not None:
        return float(theory.head.offset.norm()) / float(theory.interaction_values[0]), ""
    constant = bool((folded.query_offset @ folded.key).abs().max() > 0)
    return (math.inf, "fails") if constant else (0.0, "holds")


def _terminal(v: Spectrum) -> str:
    if v.rotates:
        return "circles"
    if abs(v.leading) <= v.tolerance:
        return "neither"
    return "narrows" if v.leading > 0 else "spreads"


def _alignment(m: Spectrum, v: Spectrum) -> float:
    if any(s.rotates or s.from_kernel or s.multiplicity != 1 for s in (m, v)):
        return math.nan
    (e,), (f,) = m.basis.T, v.basis.T
    return abs(float(e @ f))


def _prediction(theory: Theory, negative: bool) -> str:
    m = theory.attention
    if negative or math.isinf(m.gap):
        return "nowhere of its own"
    if m.rotates:
        return "rotates"
    where = "two points ±e" if m.dim == 1 else f"the sphere of a space of dimension {m.dim}"
    return f"concentrates on {where}" if m.semisimple else f"concentrates, more slowly than any rate, on {where}"
