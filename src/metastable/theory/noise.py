"""Tokens with B = V = I and noise: where the uniform law becomes unstable, and the stationary laws below.

Tokens on S^(d-1) move by dx = P_x m dt + σ P_x ∘ dW; the noise has the generator (σ²/2)Δ (Laplace–Beltrami). The mean
m is that of softmax attention or of unnormalised attention, with Z_μ(u) = ∫ e^{⟨u,y⟩} dμ(y):

    softmax        m(x) = ∫ y e^{β⟨x,y⟩}dμ / ∫ e^{β⟨x,y⟩}dμ = ∇ log Z_μ(βx)
    unnormalised   m(x) = ∫ y e^{β⟨x,y⟩}dμ = ∇Z_μ(βx)

**Stationary laws.** The gradient of x ↦ φ(βx) on the sphere is βP_x∇φ(βx), so P_x m = (1/β) grad ψ with ψ = log Z_μ(βx)
or Z_μ(βx). The law obeys ∂_t μ = −div(μ grad ψ/β) + (σ²/2)Δμ. For a given potential this linear equation has one
stationary law, which has no flux, (1/β) grad ψ = (σ²/2) grad log μ. Stationary laws are the solutions of

    softmax   μ ∝ Z_μ(βx)^{2/(σ²β)},                unnormalised   μ ∝ exp( (2/(σ²β)) Z_μ(βx) ).

**Growth at the uniform law.** Let μ = (1 + εY)·uniform with a spherical harmonic Y of degree l. By Funk and Hecke
Z_μ(βx) = λ_0 + ελ_l Y, λ_l = Γ(d/2)(2/β)^{d/2−1} I_{l+d/2−1}(β). So δψ = (λ_l/λ_0)Y or λ_l Y, and ΔY = −l(l+d−2)Y gives

    rate(l) = l(l+d−2)·( λ_l/(βλ_0) − σ²/2 ),       unnormalised: l(l+d−2)·( λ_l/β − σ²/2 ).

λ_l decreases with l: the uniform law is unstable exactly if σ < σ_c with σ_c² = 2λ_1/(βλ_0) = 2A_d(β)/β, A_d =
I_{d/2}/I_{d/2−1} (unnormalised: 2λ_1/β).

**β → 0.** Both fields become P_x r, r = ∫ y dμ: the noisy Kuramoto model. μ ∝ e^{κ⟨x,e⟩} with κ = 2|r|/σ² and
|r| = A_d(κ); σ_c = √(2/d).

**Kind of the transition on the circle (d = 2).** Let a_k be the k-th Fourier coefficient of μ and a = a_1. At σ = σ_c,
with p = λ_1/λ_0 and ρ = λ_2/λ_1, the stationary equation to third order is 0 = Ca³ with

    softmax   C = (1−p)·( (1−p)ρ/(2(1−ρ)) − p − ½ ),       unnormalised   C = ½( ρ/(1−ρ) − 1 ).

C < 0 means that the ordered law appears continuously. For softmax C < 0 for every β. For unnormalised C > 0 as soon as
I_2(β) > I_1(β)/2 (β > 2.45): the ordered law then jumps, and exists beside the stable uniform law for some σ > σ_c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from metastable.arrays import positive, real, whole
from metastable.errors import BadInput
from metastable.theory.bessel import LARGEST, bessel_ratio, log_sphere_mean

KERNELS = ("softmax", "unnormalised")
NODES = 16
"""Gauss–Legendre nodes of a panel of angles."""
MOST_NODES = 3000
"""Limit of memory: a few matrices of this size."""
KURAMOTO = 1e-7
"""Below this β the limit β → 0 is used; the error is of the order of β."""
SPREAD = 0.02
"""Amplitude of the nearly uniform start; below this order parameter a law is next to the uniform one."""
LEAP = 0.2
"""Largest change of the order parameter in one step of Newton's method."""
PICARD, NEWTON = 3000, 40
"""Most iterations of the fixed-point equation, and of Newton's method after it."""


def critical_noise(beta: float, d: int, kernel: str = "softmax") -> float:
    """σ_c: the uniform law is linearly unstable exactly for σ < σ_c.

    softmax: √(2A_d(β)/β), √(2/d) at β = 0. unnormalised: √(2λ_1/β), which grows like e^{β/2}; inf where that overflows.
    """
    beta, d = _checked(beta, d, kernel)
    log_square = math.log(2) + _log_growth(1, beta, d, kernel)
    return math.exp(0.5 * log_square) if log_square < 1400 else math.inf


def growth_rate(l: int, beta: float, d: int, sigma: float, kernel: str = "softmax") -> float:  # noqa: E741
    """l(l+d−2)(λ_l/(βλ_0) − σ²/2), unnormalised: l(l+d−2)(λ_l/β − σ²/2): the growth of harmonics of degree l ≥ 1."""
    beta, d = _checked(beta, d, kernel)
    degree = whole(l, "l", 1, "the degree of a spherical harmonic that can grow is a whole number, 1 or more")
    sigma = real(sigma, "sigma", "the strength of the noise must be a finite number, 0 or more", allowed=math.isfinite)
    if beta < KURAMOTO:
        drift = 1 / d if degree == 1 else 0.0
    else:
        drift = math.exp(min(_log_growth(degree, beta, d, kernel), 709.0))
    return degree * (degree + d - 2) * (drift - sigma**2 / 2)


def _log_growth(l: int, beta: float, d: int, kernel: str) -> float:  # noqa: E741
    """log( λ_l/(βλ_0) ), unnormalised: log( λ_l/β )."""
    nu = d / 2 - 1
    if beta < KURAMOTO:
        return -math.log(d) if l == 1 else -math.inf
    ratio = math.prod(bessel_ratio(nu + k, beta) for k in range(l))
    found = (math.log(ratio) if ratio > 0 else -math.inf) - math.log(beta)
    return found if kernel == "softmax" else found + float(log_sphere_mean(nu, np.array([beta]))[0])


@dataclass(frozen=True, eq=False)
class Law:
    """A law that depends on the angle θ from an axis e only."""

    angle: np.ndarray
    """(n,) nodes θ between 0 and π."""
    log_density: np.ndarray
    """(n,) logarithm of the density relative to the uniform law at the nodes."""
    mass: np.ndarray
    """(n,) weights of the nodes: ∫ f(⟨x, e⟩)dμ = Σ mass·f(cos θ)."""
    residual: float
    """Σ|mass after one more iteration − mass|."""

    @property
    def order(self) -> float:
        """The order parameter |∫ x dμ|: 0 for the uniform law, 1 for a Dirac."""
        return abs(float(self.mass @ np.cos(self.angle)))


@dataclass(frozen=True, eq=False)
class Stationary:
    """The axially symmetric stationary laws that are reached from a concentrated and from a nearly uniform start."""

    concentrated: Law
    spread: Law

    @property
    def order(self) -> float:
        """Order parameter of the law that is reached from a concentrated start."""
        return self.concentrated.order

    @property
    def hysteresis(self) -> bool:
        """Whether the two starts end in different laws: the transition is of first order there."""
        return abs(self.concentrated.order - self.spread.order) > 1e-4


def stationary_law(beta: float, d: int, sigma: float, kernel: str = "softmax") -> Stationary:
    """Solve μ ∝ Z_μ(βx)^{2/(σ²β)} (unnormalised: exp((2/(σ²β))Z_μ(βx))) among laws of the angle from an axis.

    With t = cos θ, Z(θ) = Σ_θ' mass(θ') e^{βtt'} Ω(β sin θ sin θ'), Ω the mean over the sphere of the d − 1 directions
    orthogonal to e. The equation is iterated and then solved by Newton's method. The uniform law solves it for every σ;
    a nearly uniform start stays there exactly if σ ≥ σ_c.

    Examples
    --------
    >>> law = stationary_law(beta=1.0, d=3, sigma=0.4)
    >>> round(law.order, 3), law.hysteresis
    (0.905, False)
    """
    beta, d = _checked(beta, d, kernel)
    sigma = positive(sigma, "sigma")
    equation = _Equation(beta, d, sigma, kernel)
    return Stationary(equation.solve(equation.dirac_potential()), equation.from_uniform())


class _Equation:
    """The stationary equation on nodes of θ, for the logarithm φ of the density relative to the uniform law."""

    def __init__(self, beta: float, d: int, sigma: float, kernel: str) -> None:
        self.beta, self.kernel = beta, kernel
        self.uniform_is_stable = sigma >= critical_noise(beta, d, kernel)
        # Width of the law next to a Dirac, where Z = e^{β cos θ}.
        width = sigma if kernel == "softmax" else sigma * math.exp(-beta / 2)
        self.angle, self.log_weight = _nodes(beta, d, width)
        self.cosine, sine = np.cos(self.angle), np.sin(self.angle)
        # log( 2/(σ²β) ), or of 2/σ² in the limit β → 0.
        self.log_strength = math.log(2) - 2 * math.log(sigma) - (math.log(beta) if beta >= KURAMOTO else 0.0)
        if beta >= KURAMOTO:
            across = log_sphere_mean((d - 3) / 2, beta * np.outer(sine, sine))
            self.log_kernel = beta * np.outer(self.cosine, self.cosine) + across

    def dirac_potential(self) -> np.ndarray:
        """log μ for Z = e^{β cos θ}, the potential of a Dirac at e."""
        if self.beta < KURAMOTO:
            return math.exp(self.log_strength) * self.cosine
        return self._power(self.beta * self.cosine)[0]

    def _power(self, log_Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log μ up to a constant, and its derivative in log Z."""
        strength = math.exp(self.log_strength)
        if self.kernel == "softmax":
            return strength * log_Z, np.full_like(log_Z, strength)
        exponent = self.log_strength + log_Z
        if exponent.max() > 700:
            raise BadInput("sigma is so small that the exponent of the stationary law overflows; use a larger sigma")
        found = np.exp(exponent)
        return found, found

    def _mass(self, phi: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(self._normalised(phi) + self.log_weight))

    def _normalised(self, phi: np.ndarray) -> np.ndarray:
        return np.asarray(phi - logsumexp(phi + self.log_weight))

    def _next(self, phi: np.ndarray, derivative: bool = False) -> tuple[np.ndarray, Any]:
        """The right-hand side of the equation, and its derivative in the logarithms of the masses if wanted."""
        if self.beta < KURAMOTO:
            strength, mass = math.exp(self.log_strength), self._mass(phi)
            slope = strength * np.outer(self.cosine, self.cosine * mass)
            return self._normalised(strength * self.cosine * (mass @ self.cosine)), slope
        log_terms = self.log_kernel + (self._normalised(phi) + self.log_weight)
        log_Z = logsumexp(log_terms, axis=1)
        new, slope = self._power(log_Z)
        return self._normalised(new), slope[:, None] * np.exp(log_terms - log_Z[:, None]) if derivative else None

    def from_uniform(self) -> Law:
        """The law that is reached from next to the uniform law, which is itself a solution for every σ.

        Where it is unstable but growth is slow, Newton's method may fall back to it. Larger starts then follow.
        """
        if self.uniform_is_stable:
            return self.solve(np.zeros_like(self.angle))
        amplitude = SPREAD
        while (law := self.solve(amplitude * self.cosine)).order < 1e-6 and amplitude < 10:
            amplitude *= 2
        return law

    def solve(self, phi: np.ndarray) -> Law:
        phi = self._normalised(phi)
        for _ in range(PICARD):
            new, _ = self._next(phi)
            change = float(np.abs(self._mass(new) - self._mass(phi)).sum())
            phi = new
            order = abs(float(self._mass(phi) @ self.cosine))
            if change < 1e-3 * order or (self.uniform_is_stable and order < SPREAD):
                break
        for _ in range(NEWTON):
            new, slope = self._next(phi, derivative=True)
            residual = float(np.abs(self._mass(new) - self._mass(phi)).sum())
            if residual < 1e-13:
                break
            mass, following = self._mass(phi), self._mass(new)
            # Both normalisations take the mean away: I − 1·massᵀ before, I − 1·followingᵀ after.
            slope = slope - np.outer(slope.sum(axis=1), mass)
            slope = slope - following @ slope
            step = np.linalg.solve(np.eye(len(phi)) - slope, new - phi)
            trial = self._normalised(phi + step)
            # Next to σ_c a good step may overshoot and raise the residual for once; a leap to another law is refused.
            leap = abs(float((self._mass(trial) - mass) @ self.cosine))
            phi = trial if leap < LEAP else new
        new, _ = self._next(phi)
        mass = self._mass(phi)
        return Law(self.angle, phi, mass, float(np.abs(self._mass(new) - mass).sum()))


def _nodes(beta: float, d: int, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes on panels of [0, π], and the logarithms of the uniform law's masses there.

    Panels are at most 4 standard deviations of the kernel (1/√β) and of the uniform law (1/√d) wide; where the law of a
    narrow cluster has its mass they are at most 4·`width` wide.
    """
    widest = min(math.pi / 8, 4 / math.sqrt(d), 4 / math.sqrt(max(beta, 1e-300)))
    bulk = width * (math.sqrt(d / 2) + 8)
    edges, size = [0.0], min(4 * width, widest)
    while edges[-1] < math.pi and len(edges) * NODES <= MOST_NODES:
        edges.append(edges[-1] + size)
        size = size if edges[-1] < bulk else min(1.5 * size, widest)
    if edges[-1] < math.pi:
        raise BadInput(
            f"beta = {beta:.4g} and a cluster of width {width:.4g} need more than {MOST_NODES} nodes; "
            "use a smaller beta or a larger sigma"
        )
    cut = np.minimum(np.array(edges), math.pi)
    x, w = np.polynomial.legendre.leggauss(NODES)
    half = 0.5 * np.diff(cut)[:, None]
    angle = (half * x + cut[:-1, None] + half).ravel()
    log_weight = np.log((half * w).ravel()) + (d - 2) * np.log(np.sin(angle))
    return angle, np.asarray(log_weight - logsumexp(log_weight))


def _checked(beta: float, d: int, kernel: str) -> tuple[float, int]:
    if kernel not in KERNELS:
        raise BadInput(f"kernel is {kernel!r}; use one of {', '.join(KERNELS)}")
    d = whole(d, "d", 2, "the sphere needs a whole number of dimensions, 2 or more")
    if d > 2 * LARGEST:
        raise BadInput(f"d is {d}; noise is computed for d ≤ {2 * LARGEST:.0f}")
    return real(beta, "beta", "it must be a finite number, 0 or more", allowed=math.isfinite), d
