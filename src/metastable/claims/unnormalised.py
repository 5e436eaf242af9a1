"""Unnormalised attention with V = B symmetric: tokens follow the gradient of an interaction energy.

Let Φ' = φ and let every token attend with the weights w_j φ(β⟨Bᵀx, x_j⟩). For B symmetric and V = cB, c > 0,

    E = (1/2β) Σ_ij w_i w_j Φ(β⟨Bᵀx_i, x_j⟩),      x_i' = P_{x_i} V m_i,      m_i = Σ_j w_j φ(β⟨Bᵀx_i, x_j⟩) x_j.

Both arguments of Φ contain x_i, and B = Bᵀ makes the two terms equal, so the derivative of E in x_i is w_i B m_i. Its
tangential part is w_i x_i'/c. Hence x' is c times the gradient of E in the metric Σ_i w_i⟨·,·⟩, and

    dE/dt = (1/c) Σ_i w_i |x_i'|² ≥ 0.

φ = Φ = e^s is unnormalised attention (Geshkovski, Letrouit, Polyanskiy and Rigollet, "A mathematical perspective on
transformers", arXiv 2312.10794). φ = σ with Φ = log(1 + e^s) is sigmoid attention. Softmax divides m_i by
Z_i = Σ_j w_j e^{β⟨Bᵀx_i, x_j⟩}, so with the energy of e^s it has dE/dt = (1/c) Σ_i w_i Z_i |x_i'|² ≥ 0.

*Two tokens* with B = V = I, at the angle φ, turn towards each other at the speeds w₂ φ(β cos φ) sin φ and
w₁ φ(β cos φ) sin φ. The weights add up to 1, so dφ/dt = −sin φ · e^{β cos φ} for unnormalised attention.

*Another V.* At the top eigenvector e of B the energy of a single token, e^{β⟨x, Bx⟩}/2β, is largest. Let V = B + A with
A = feᵀ − efᵀ, which rotates the plane of e and a unit vector f orthogonal to e. The token leaves e at the speed
e^{β⟨e, Be⟩}, and the energy falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.special import expit

from metastable.block import Block
from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.claims.heads import identity
from metastable.cloud import Cloud
from metastable.flow.fields import velocity
from metastable.head import Head
from metastable.run.run import Run
from metastable.run.simulation import simulate

TOL = 1e-8
"""Tolerance of a time step."""
FALL = 1e-6
"""Largest relative fall of the energy between two saved times. A step with the error TOL changes log E by at most
2β‖B‖·TOL, about 1e-7 at the largest β, and there are a few steps between two saved times."""
SAME = 1e-6
"""Largest ‖B − Bᵀ‖ and ‖V − cB‖, relative to ‖B‖ and ‖V‖, of a given head: heads in float32 keep about 1e-7."""
GROWTH = 1e-5
"""Largest error of dE/dt, relative to the largest dE/dt of the run: rounding, or SAME for a given head."""
ANGLE = 1e-5
"""Largest error of the angle between two tokens in radians: TOL times the number of steps, at most 1000."""
START = 1.5
"""Angle of two tokens at t = 0, in radians."""
LEFT = 0.3
"""A token under V = B + A is followed until it has moved by about this angle away from e."""
FALLEN = 0.03
"""Least fall of log E by then, in β(λ₁ − λ₂). It is sin²(angle) for f = the second eigenvector and more for others; the
angle is at least 0.25, since B and the smaller weight of later times hold the token back."""
POTENTIALS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unnormalised": np.exp,
    "sigmoid": lambda s: np.log1p(np.exp(s)),
    "softmax": np.exp,
}
"""Φ of each kernel. Complex scores are allowed."""


def energy(head: Head, kernel: str, beta: float, x: np.ndarray, w: np.ndarray) -> complex:
    """(1/2β) Σ_ij w_i w_j Φ(β⟨Bᵀx_i, x_j⟩) of tokens (N, d), which may be complex."""
    return complex(w @ POTENTIALS[kernel](beta * x @ head.B.numpy() @ x.T) @ w) / (2 * beta)


def growth(head: Head, kernel: str, beta: float, cloud: Cloud) -> tuple[float, float]:
    """dE/dt along the velocity of the package, and (1/c) Σ w|x'|² (for softmax Σ wZ|x'|²).

    The derivative is Im E(x + iεx')/ε. It has no error of order ε, since nothing is subtracted.
    """
    x, w, step = cloud.points.numpy(), cloud.weights.numpy(), 1e-30
    v = velocity(Block(head, kernel=kernel), cloud, beta).numpy()
    along = energy(head, kernel, beta, x + 1j * step * v, w).imag / step
    metric = np.exp(beta * x @ head.B.numpy() @ x.T) @ w if kernel == "softmax" else np.ones(len(x))
    return along, float((w * metric * np.square(v).sum(axis=1)).sum()) / factor(head)


def factor(head: Head) -> float:
    """c of V ≈ cB, by least squares."""
    return float((head.V * head.B).sum() / (head.B * head.B).sum())


def obstacle(head: Head) -> str | None:
    """Why unnormalised attention with this head is no gradient flow, or None if it is one."""
    B, V = head.B.double(), head.V.double()
    if not bool(B.any()) or not bool(V.any()):
        return "B or V is 0: nothing moves by attention"
    skew = float((B - B.T).norm() / B.norm())
    if skew > SAME:
        return f"the energy needs a symmetric B; ‖B − Bᵀ‖ is {skew:.2g}‖B‖"
    c = factor(head)
    off = float((V - c * B).norm() / V.norm())
    if c <= 0 or off > SAME:
        return f"the energy needs V = cB with c > 0; the best c is {c:.3g} and leaves ‖V − cB‖ = {off:.2g}‖V‖"
    return None


def own_head(d: int, seed: int, turned: bool = False) -> Head:
    """B = S diag(1, 0.4, …, −0.6) Sᵀ with a random rotation S. V is B, or B + A with A as the module says."""
    rng = np.random.default_rng([d, seed])
    S = np.linalg.qr(rng.standard_normal((d, d)))[0]
    B = S @ np.diag([1.0, *np.linspace(0.4, -0.6, d - 1)]) @ S.T
    B = (B + B.T) / 2
    f = S[:, 1:] @ rng.standard_normal(d - 1)
    A = np.outer(f, S[:, 0]) / np.linalg.norm(f)
    return Head.from_interaction(torch.from_numpy(B), torch.from_numpy(B + A - A.T if turned else B))


def follow(head: Head, kernel: str, beta: float, cloud: Cloud, until: float, frames: int) -> Run:
    """A run in `frames` saved times; they are denser at early times, when tokens gather."""
    times = until * np.linspace(0, 1, frames) ** 3
    block = Block(head, kernel=kernel)
    return simulate(block, cloud, beta, until, tol=TOL, t_eval=times.tolist(), progress=False)


def two_tokens(kernel: str, beta: float, share: float, until: float) -> float:
    """Largest error of the angle between two tokens of the weights `share` and 1 − share."""
    points = torch.tensor([[1.0, 0.0], [math.cos(START), math.sin(START)]], dtype=torch.float64)
    cloud = Cloud(points, weights=[share, 1 - share])
    run = follow(identity(2), kernel, beta, cloud, until, 21)
    weight = np.exp if kernel == "unnormalised" else expit

    def slope(_: float, phi: np.ndarray) -> np.ndarray:
        return np.asarray(-np.sin(phi) * weight(beta * np.cos(phi)))

    exact = solve_ivp(slope, (0.0, until), [START], "DOP853", run.times.numpy(), rtol=1e-11, atol=1e-13).y[0]
    first, second = run.frames[:, 0], run.frames[:, 1]
    sines = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    return float(np.abs(torch.atan2(sines, (first * second).sum(dim=1)).numpy() - exact).max())


def fallen(d: int, seed: int, beta: float) -> float:
    """Fall of log E of a token that starts at e and moves by V = B + A, in β(λ₁ − λ₂)."""
    head = own_head(d, seed, turned=True)
    values, vectors = torch.linalg.eigh(head.B)
    until = LEFT * math.exp(-beta * float(values[-1]))
    run = follow(head, "unnormalised", beta, Cloud(vectors[:, -1:].T), until, 2)
    first, last = (energy(head, "unnormalised", beta, x, np.ones(1)).real for x in run.frames.numpy())
    return math.log(first / last) / (beta * float(values[-1] - values[-2]))


@claim("unnormalised", "Unnormalised attention climbs the energy", obstacle=obstacle)
def check(
    head: Head | None,
    tell: Tell,
    seeds: tuple[int, ...] = size((0,), full=(0, 1, 2, 3)),
    dims: tuple[int, ...] = size((2, 4), full=(2, 3, 4, 16)),
    betas: tuple[float, ...] = size((1.0, 3.0), full=(0.5, 1.0, 2.0, 4.0, 6.0)),
    tokens: int = size(12, full=48),
    frames: int = size(17, full=81),
) -> Finding:
    """For V = B symmetric, unnormalised attention x' = P_x V ∫ y e^{β⟨Bᵀx, y⟩}dμ(y) is the gradient flow of
    E = (1/2β)∬ e^{β⟨Bᵀx, y⟩}dμdμ: dE/dt is the mean of |x'|² over μ, so E never falls (Geshkovski et al., arXiv
    2312.10794). The same holds for sigmoid attention with log(1 + e^s) in place of e^s, and for softmax with the mean
    weighted by Z [derived]. With another V the energy can fall.

    Follow random tokens with equal and with random weights for each kernel; then two tokens, and a token under V ≠ B.

    seeds, dims : the random heads; a given head replaces them, and its tokens still come from the seeds
    betas : β‖B‖
    """
    found = Finding(f"N = {tokens}, β‖B‖ = {min(betas):g} … {max(betas):g}, until tokens have gathered")
    picture = found.picture(
        "The energy of tokens under attention",
        "Above: the share of its growth that the energy has made. Below: its slope, measured (lines) and from the "
        "speeds of the tokens (dots). Both for the first head and the largest β.",
        Panel("time t, in units of the end", "share of the growth of E"),
        Panel("time t, in units of the end", "dE/dt in units of its largest value"),
    )
    own = [(f"d = {d}, seed {seed}", seed, own_head(d, seed)) for seed in seeds for d in dims]
    cases = own if head is None else [(f"the given head, seed {seed}", seed, head) for seed in seeds]
    for name, seed, one in told(cases, tell, end=0.9):
        scale, strength = (float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (one.B, one.V))
        rng = np.random.default_rng(seed)
        points = torch.from_numpy(rng.standard_normal((tokens, one.dim)))
        clouds = {"equal": Cloud(points), "random": Cloud(points, weights=rng.exponential(size=tokens))}
        for kernel, (weights, cloud), cold in product(POTENTIALS, clouds.items(), betas):
            # Unnormalised weights are between e^{−β‖B‖} and e^{β‖B‖}, and tokens gather in a time in between.
            until = 8 / strength * math.exp(-cold / 2 if kernel == "unnormalised" else 0.0)
            run = follow(one, kernel, cold / scale, cloud, until, frames)
            E = np.array([energy(one, kernel, run.beta, x, cloud.weights.numpy()).real for x in run.frames.numpy()])
            measured, predicted = np.array([growth(one, kernel, run.beta, run.at(k)) for k in range(frames)]).T
            fall = float(np.maximum(1 - E[1:] / E[:-1], 0.0).max())
            error = float(np.abs(measured - predicted).max() / predicted.max())
            case = f"{kernel}, {name}, {weights} weights, β‖B‖ = {cold:g}"
            found.within(f"largest relative fall of E, {case}", fall, high=FALL)
            found.within(f"error of dE/dt = mean of |x'|², {case}", error, high=GROWTH)
            values = {"E at t = 0": E[0], "E at the end": E[-1], "largest fall": fall, "error of dE/dt": error}
            found.row("energies", {"kernel": kernel, "head": name, "weights": weights, "β‖B‖": cold, **values})
            if name == cases[0][0] and weights == "random" and cold == max(betas):
                time, largest = run.times.numpy() / until, predicted.max()
                picture.add(kernel, time, (E - E[0]) / (E[-1] - E[0]))
                picture.add(kernel, time, measured / largest, panel=1)
                picture.add(f"mean of |x'|², {kernel}", time, predicted / largest, "dotted", panel=1)
    fall, error = (max(row[key] for row in found.tables["energies"]) for key in ("largest fall", "error of dE/dt"))
    found.sentence = f"the energy falls by at most {fall:.1e} of itself, and dE/dt is the mean of |x'|² to {error:.1e}"
    if head is not None:
        return found
    for kernel, beta, share in product(("unnormalised", "sigmoid"), betas, (0.5, 0.2)):
        error = two_tokens(kernel, beta, share, 4.0)
        found.within(f"angle of two tokens, {kernel}, β = {beta:g}, weight {share:g}", error, high=ANGLE)
        found.row("two tokens", {"kernel": kernel, "beta": beta, "weight": share, "largest error of the angle": error})
    falls = [fallen(d, seed, beta) for seed, d, beta in product(seeds, dims, betas)]
    found.within("least fall of log E with V = B + A, in β(λ₁ − λ₂)", min(falls), low=FALLEN)
    found.sentence += f"; with a rotation added to V, log E falls by at least {min(falls):.2g} β(λ₁ − λ₂)"
    return found
