"""The Laplace principle: m_β[μ](x) tends to û = Bᵀx/|Bᵀx|, and how fast depends on what μ is like near û.

The paper bounds sup_x |m_β − û| by a multiple of √(log(β+1)/β) for laws that are bounded below. With κ = β|Bᵀx|, the
softmax weights are a Gaussian of radius κ^{−1/2} around û, and to leading order (derived here)

    uniform        1 − A_d(κ) ≈ (d − 1)/2κ, with A_d = I_{d/2}/I_{d/2−1}, exactly
    smooth f       (1/κ) √( ((d − 1)/2)² + |∇ log f(û)|² )
    jump 1 : h     κ^{−½} G(h),  G(h) = max_j (1 − h) n(j)/(h N(j) + 1 − N(j)),  û at the distance jκ^{−½} from the jump
    atom           κ^{−½} max_σ σρ/(1 + ρ),  ρ = a (κ/2π)^{(d−1)/2} e^{−σ²/2}, for density 1 and an atom of mass a at
                   the distance σκ^{−½} from û: it outweighs the rest up to σ² ≈ (d − 1) log κ

(n and N are the normal density and distribution). So the slopes are −1, −1, −½, and for the atom −½ with a logarithm,
κ·gap² ~ (d − 1) log κ: among laws that are merely bounded below, the paper's bound cannot be improved.
Means are taken by the package's attention over quadratures that resolve every β; there is no sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ive
from scipy.stats import norm

from metastable.attention import attend
from metastable.claims import laws
from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.fitting import line
from metastable.claims.queries import all_over, near_equator, near_pole, sources
from metastable.cloud import Cloud
from metastable.head import Head

SLOPE_TOLERANCE = 0.02
"""Of a slope over the upper half of the β's: the next order is κ^{−½} relative, 0.03 at β = 10³ and less beyond."""
CONSTANT_TOLERANCE = 0.02
"""Of the leading constant at the largest β: κ^{−½} is 0.003 there, and the grid of û misses a maximum by up to 1 %."""
CLOSED_FORM = 1e-6
"""Largest relative error against 1 − A_d(κ): the quadrature reaches 1e-10 in |m|, divided by a gap of 1e-5."""
GROWTH = 1.05
"""The constant of the paper's bound may not grow by more than this over the upper half of the β's."""
LOGARITHM = 0.5
"""Least slope of κ·gap² against log κ for the atom: d − 1 = 1 in the end, about ¾ at these β, 0 without a logarithm."""

Law = Callable[[np.ndarray, float], Cloud]


@dataclass(frozen=True)
class Sizes:
    betas: tuple[float, ...]
    angles: int
    offsets: int


LAWS: dict[str, Law] = {
    "uniform": lambda u, kappa: laws.cloud(u, kappa, laws.uniform),
    "smooth": lambda u, kappa: laws.cloud(u, kappa, laws.smooth),
    "jump": lambda u, kappa: laws.cloud(u, kappa, laws.jump),
    "atom": laws.with_atom,
}


def own_heads() -> tuple[Head, ...]:
    """Non-symmetric B in two and in three dimensions; V plays no part."""
    two = torch.tensor([[1.2, 0.3], [-0.2, 0.9]], dtype=torch.float64)
    three = torch.tensor([[1.1, 0.3, 0.0], [-0.2, 0.9, 0.2], [0.1, -0.1, 1.2]], dtype=torch.float64)
    return tuple(Head.from_interaction(B, torch.eye(len(B), dtype=torch.float64)) for B in (two, three))


def gaps(head: Head, law: Law, directions: np.ndarray, beta: float) -> np.ndarray:
    """|m_β(x) − û| for each û, by the package's scores and its softmax mean."""
    x, sizes = sources(head, directions)
    queries = beta * head.directions(torch.from_numpy(x))
    found = [
        attend(law(u, beta * size), query[None], engine="dense")[0].numpy()
        for u, size, query in zip(directions, sizes, queries, strict=True)
    ]
    return np.linalg.norm(np.array(found) - directions, axis=1)


def ratio_of_bessel(d: int, kappa: float) -> float:
    """A_d(κ), the length of the mean of the uniform law."""
    return float(ive(d / 2, kappa) / ive(d / 2 - 1, kappa))


def jump_constant(low: float) -> float:
    """G(h)."""
    j = np.linspace(-4, 4, 80_001)
    return float(((1 - low) * norm.pdf(j) / (low * norm.cdf(j) + norm.sf(j))).max())


def atom_constant(d: int, kappa: float) -> float:
    """max_σ σρ/(1 + ρ)."""
    sigma = np.linspace(0, 12, 24_001)
    rho = laws.ATOM * (kappa / (2 * math.pi)) ** ((d - 1) / 2) * np.exp(-(sigma**2) / 2)
    return float((sigma * rho / (1 + rho)).max())


@dataclass(frozen=True)
class Curve:
    """sup_x |m_β − û| at each β, beside its leading order; κ is that of the x which decides the leading order."""

    law: str
    d: int
    betas: np.ndarray
    sup: np.ndarray
    leading: np.ndarray
    kappas: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.law}, d = {self.d}"

    @property
    def constant(self) -> np.ndarray:
        """C(β) of the paper's bound."""
        return np.asarray(self.sup / np.sqrt(np.log(self.betas + 1) / self.betas))


def measured(head: Head, law: str, sizes: Sizes, betas: np.ndarray) -> Curve:
    """The supremum over a grid of directions, finer where the law is rough."""
    d, even, found = head.dim, all_over(head, sizes.angles), []
    for beta in betas:
        directions, kappa = even, beta * sources(head, even)[1]
        if law == "uniform":
            sizes_at = np.array([1 - ratio_of_bessel(d, k) for k in kappa])
        elif law == "smooth":
            slopes = laws.SMOOTH_SLOPE**2 * (1 - even[:, -1] ** 2)
            sizes_at = np.sqrt(((d - 1) / 2) ** 2 + slopes) / kappa
        elif law == "jump":
            rough, least = near_equator(head, beta, sizes.angles, sizes.offsets)
            directions, kappa = np.vstack([even, rough]), np.array([least])
            sizes_at = jump_constant(laws.JUMP_LOW) / np.sqrt(kappa)
        else:
            rough, there = near_pole(head, beta, 4 * sizes.offsets)
            directions, kappa = np.vstack([even, rough]), np.array([there])
            sizes_at = atom_constant(d, there) / np.sqrt(kappa)
        best = int(sizes_at.argmax())
        found.append((gaps(head, LAWS[law], directions, beta).max(), sizes_at[best], kappa[best]))
    sup, leading, kappas = np.array(found).T
    return Curve(law, d, betas, sup, leading, kappas)


def _checks(curve: Curve) -> list[Check]:
    upper = curve.betas >= np.sqrt(curve.betas[0] * curve.betas[-1]) * (1 - 1e-9)
    share = curve.sup / curve.leading
    # For the atom the slope of the leading order itself, which has a logarithm.
    model = line(np.log(curve.betas[upper]), np.log(curve.leading[upper])).slope
    wanted = {"jump": -0.5, "atom": model}.get(curve.law, -1.0)
    slope = line(np.log(curve.betas[upper]), np.log(curve.sup[upper])).interval
    checks = [overlapping(f"{curve.name}: slope in β", slope, wanted - SLOPE_TOLERANCE, wanted + SLOPE_TOLERANCE)]
    if curve.law == "atom":
        rise = line(np.log(curve.kappas[upper]), (curve.kappas * curve.sup**2)[upper]).interval
        checks.append(overlapping(f"{curve.name}: slope of κ·gap² against log κ", rise, LOGARITHM, math.inf))
        most = float((curve.sup / np.sqrt((curve.d - 1) * np.log(curve.kappas) / curve.kappas)).max())
        checks.append(within(f"{curve.name}: gap over √((d−1) log κ/κ)", most, high=GROWTH))
    else:
        growth = float(curve.constant[upper].max() / curve.constant[~upper].max())
        checks.append(within(f"{curve.name}: growth of the bound's constant", growth, high=GROWTH))
    if curve.law == "uniform":
        worst = float(np.abs(share - 1).max())
        return [*checks, within(f"{curve.name}: relative error against 1 − A_d(κ)", worst, high=CLOSED_FORM)]
    edge = 1 - CONSTANT_TOLERANCE, 1 + CONSTANT_TOLERANCE
    return [*checks, within(f"{curve.name}: gap over its leading order at the largest β", float(share[-1]), *edge)]


def _refused(head: Head) -> str | None:
    if head.offset is not None:
        return "the scores of this head have an offset: û is not Bᵀx/|Bᵀx|"
    if head.theory().singular:
        return "B is singular: where Bᵀx vanishes û is undefined, and near there no β is large"
    return None


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """The supremum of |m_β − û| against β for every law that the dimension allows."""
    if head is not None and (reason := _refused(head)):
        return Finding(f"no supremum to test: {reason}", "nothing was run", (undecided("Laplace principle", reason),))
    plan = []
    for one in own_heads() if head is None else (head.to(torch.float64),):
        # On a given head β is counted from where its weakest direction is at κ = 10.
        unit = 1.0 if head is None else float(one.theory().interaction_values[-1])
        names = ["uniform", "smooth", "jump", "atom"][: {2: 4, 3: 3}.get(one.dim, 1)]
        plan += [(one, name, np.array(sizes.betas) / unit) for name in names]
    curves = []
    for i, (one, name, betas) in enumerate(plan):
        curves.append(measured(one, name, sizes, betas))
        tell((i + 1) / len(plan))
    return _finding(curves)


def _finding(curves: list[Curve]) -> Finding:
    checks = [made for curve in curves for made in _checks(curve)]
    slopes: dict[str, list[float]] = {}
    for made in checks:
        if "slope in β" in made.name and made.measured is not None:
            slopes.setdefault(made.name.split(",")[0].split(":")[0], []).append(made.measured)
    powers = ", ".join(f"β^{{{min(found):.2f}}} ({law})" for law, found in slopes.items())
    sentence = (
        f"sup |m_β − û| falls like {powers}; the constant of the bound √(log(β+1)/β) is at most "
        f"{max(c.constant.max() for c in curves):.2f}"
    )
    rows = [
        (c.law, c.d, *(float(v) for v in values))
        for c in curves
        for values in zip(c.betas, c.sup, c.leading, c.constant, strict=True)
    ]
    betas = np.geomspace(min(c.betas[0] for c in curves), max(c.betas[-1] for c in curves), 60)
    series = [Series(c.name, tuple(c.betas), tuple(c.sup)) for c in curves]
    series.append(Series("√(log(β+1)/β)", tuple(betas), tuple(np.sqrt(np.log(betas + 1) / betas)), style="dashed"))
    picture = Picture(
        "The softmax mean comes to its maximiser",
        "Largest distance over x between the softmax mean and û, for laws from smooth to rough. Dashed: the "
        "form of the paper's bound. Smooth laws fall like 1/β, a jump like β^(−1/2), an atom like the bound itself.",
        (Panel("inverse temperature β", "sup over x of |m_β − û|", log_x=True, log_y=True),),
        tuple(series),
    )
    columns = ("law", "d", "beta", "sup of the gap", "predicted leading order", "gap over √(log(β+1)/β)")
    horizon = f"β = {betas[0]:.3g} to {betas[-1]:.3g}, t = 0"
    return Finding(sentence, horizon, tuple(checks), (picture,), (Table("laplace", columns, tuple(rows)),))


_DECADES = tuple(float(10**e) for e in np.linspace(1, 5, 9))

CLAIM = Claim(
    "laplace",
    "Laplace principle",
    "For a law bounded below, |m_β[μ](x) − Bᵀx/|Bᵀx|| ≤ C √(log(β+1)/β) for all x [paper]. The true rate is 1/β for a "
    "smooth density, β^{−1/2} at a jump, and that of the bound itself for a law with an atom [derived].",
    check,
    quick=Sizes(_DECADES, 10, 17),
    full=Sizes(tuple(float(10**e) for e in np.linspace(1, 5, 17)), 64, 97),
)
