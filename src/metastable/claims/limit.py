"""The limit law: at zero temperature every token x ends at T(x) = Πx/|Πx|, so the law ends at ν = T_# μ₀.

Π is the spectral projector of M = V Bᵀ onto the eigenspace of its dominant eigenvalue λ₁, along the other invariant
subspaces. The tokens are followed by the exact flow x(t) = e^{τM}x₀/|e^{τM}x₀|, dt/dτ = |Bᵀx|. This file builds Π a
second time without eigenvectors, as the limit of e^{s(M − λ₁)} for large s; the other eigenvalues leave an error of the
order e^{−sg}, where g is the gap.

Tokens that start near {Πx = 0} arrive late. Those that have not arrived at time t carry a mass of the order e^{−2rt}
with r the predicted rate of W₂ (`Theory.law_rate`), so every run lasts until rt = 7: then a share of about 10⁻⁶ has not
arrived, and W₂ should be some multiple of e^{−7} ≈ 10⁻³. The largest distance of a single token is no measure. But each
token has a bound of its own, because its internal time is at least t/‖B‖: for every x₀ with Πx₀ ≠ 0

    |x(t) − T(x₀)| ≤ 2 ‖e^{τ(M − λ₁)} − Π‖ |x₀ − Πx₀| / |Πx₀|,      τ = t/‖B‖,

as soon as the norm decreases.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import expm

from metastable.claims.experiment import Finding, Panel, Tell, claim, size, told
from metastable.claims.heads import prescribed, too_long, without_limit
from metastable.cloud import Cloud, mixture, uniform, von_mises_fisher
from metastable.errors import SimulationStopped
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.transport import to_limit

HORIZON = 7.0
"""Runs end at rt = 7, r the predicted rate of W₂: long enough for three decades, short enough for d = 64."""
W2_LEFT = 20 * math.exp(-HORIZON)
"""Largest W₂ at the end: twenty times e^{−rt}; constants are of order 1 to 10 for projectors of norm up to 5."""
ARRIVED = 0.1
"""A token has arrived when |x − T(x₀)| is at most this, a hundred times e^{−rt}."""
SHARE = 0.995
"""Least share of arrived tokens: those with |Πx₀| < e^{−7}/0.1 are later, at most 0.3 % (d = 64, dim E = 2)."""
BOUNDED = 0.9999
"""Least share of tokens within their own bound: all of them, except for rounding near {Πx = 0}."""
SAME_MAP = 1e-8
"""Largest |Πx|·|T − T'|/‖Π‖ between the package's map and the one built here: rounding times the condition of M."""
STARTS = ("uniform", "von Mises–Fisher", "mixture")


class Case(NamedTuple):
    """One head and one start; `values` are the eigenvalues of M, in the order of `prescribed`."""

    kind: str
    values: tuple[float, ...]
    start: str
    seed: int

    @property
    def name(self) -> str:
        leading = sum(v == max(self.values) for v in self.values)
        return f"d = {len(self.values)}, {self.kind}, dim E = {leading}, {self.start}"


def _ladder(d: int, leading: int) -> tuple[float, ...]:
    """λ₁ = 1 with the multiplicity `leading`, then evenly spaced values from 0.4 down to −0.6."""
    return (1.0,) * leading + tuple(np.linspace(0.4, -0.6, d - leading).tolist())


QUICK = (
    Case("symmetric", _ladder(2, 1), "uniform", 1),
    Case("non-symmetric", _ladder(2, 1), "von Mises–Fisher", 2),
    Case("non-normal", _ladder(3, 1), "mixture", 3),
    Case("symmetric", _ladder(3, 2), "von Mises–Fisher", 4),
    Case("non-symmetric", _ladder(8, 1), "uniform", 5),
    Case("non-normal", _ladder(8, 3), "mixture", 6),
    Case("non-normal", _ladder(64, 1), "uniform", 7),
    Case("symmetric", _ladder(64, 2), "mixture", 8),
    Case("non-symmetric", _ladder(64, 3), "von Mises–Fisher", 9),
)
KINDS = ("symmetric", "non-symmetric", "non-normal")
EVERY = [case for case in product((2, 3, 8, 64), (1, 2, 3), KINDS, STARTS) if case[1] < case[0]]
FULL = tuple(Case(kind, _ladder(d, m), start, seed) for seed, (d, m, kind, start) in enumerate(EVERY))


def tokens_of(start: str, n: int, d: int, seed: int) -> Cloud:
    """`n` tokens: uniform, one mode of concentration 2, or two modes of unequal share with concentrations 6 and 2."""
    rng = np.random.default_rng(1000 + seed)
    if start == "uniform":
        return uniform(n, d, seed)
    if start == "von Mises–Fisher":
        return von_mises_fisher(n, rng.standard_normal(d), 2.0, seed)
    return mixture(n, rng.standard_normal((2, d)), (6.0, 2.0), (0.3, 0.7), seed)


def shifted(head: Head) -> tuple[np.ndarray, float]:
    """M − λ₁, computed here from V and B, and its gap."""
    M = head.V.double().numpy() @ head.B.double().numpy().T
    values = np.linalg.eigvals(M)
    leading = float(values.real.max())
    below = values.real[values.real < leading - 1e-4 * np.abs(values).max()]
    return M - leading * np.eye(len(M)), leading - float(below.max())


def projector(head: Head) -> np.ndarray:
    """Π = lim e^{s(M − λ₁)}."""
    generator, gap = shifted(head)
    return np.asarray(expm(45 / gap * generator))


def follow(head: Head, cloud: Cloud, frames: int) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Follow a cloud to rt = 7 and compare it with its image under T.

    Returns the row of the table, the times rt, and W₂ with its lower and upper bound at each of them, (T, 3).
    """
    theory, P = head.theory(), projector(head)
    rate, times = theory.law_rate(2), np.linspace(0, HORIZON, frames)
    x0 = cloud.points.numpy()
    image = x0 @ P.T
    norms = np.linalg.norm(image, axis=1, keepdims=True)
    end = image / norms
    ours = theory.limit(cloud.points).numpy()
    path = zero_temperature_flow(head, cloud, torch.from_numpy(times / rate))
    basis = np.linalg.svd(P)[0][:, : round(float(np.trace(P)))]
    distances = [to_limit(cloud.moved_to(x), end, basis, exact_up_to=0) for x in path]
    w2 = np.array([(w.value, w.lower, w.upper) for w in distances])
    away = np.linalg.norm(path[-1].numpy() - end, axis=1)
    late = times[-1] / rate / float(np.linalg.norm(head.B.numpy(), 2))
    factor = 2 * float(np.linalg.norm(expm(late * shifted(head)[0]) - P, 2))
    bounded = away * norms[:, 0] <= factor * np.linalg.norm(x0 - image, axis=1)
    row = {
        "norm of the projector": theory.attention.projector_norm,
        "predicted rate r of W₂": rate,
        "error of the map": float((norms[:, 0] * np.linalg.norm(ours - end, axis=1)).max() / np.linalg.norm(P, 2)),
        "share arrived": float((away <= ARRIVED).mean()),
        "share in bounds": float(bounded.mean()),
        "median distance at the end": float(np.median(away)),
        "W₂ at the end": float(w2[-1, 0]),
        "its lower bound": float(w2[-1, 1]),
    }
    return row, times, w2


def _obstacle(head: Head) -> str | None:
    return without_limit(head) or too_long(head, HORIZON / head.theory().law_rate(2))


def tokens_in_words(share: float) -> str:
    """At least which share of the tokens, rounded down."""
    if share > 1 - 1e-9:
        return "all tokens"
    return f"at least {math.floor(1e4 * share) / 100:g} % of the tokens"


@claim("limit", "Limit law", obstacle=_obstacle)
def check(
    head: Head | None,
    tell: Tell,
    cases: tuple[Case, ...] = size(QUICK, full=FULL),
    tokens: int = size(1500, full=8000),
    frames: int = size(15, full=29),
) -> Finding:
    """At zero temperature the law of the tokens tends to the push-forward of its start under T(x) = Πx/|Πx|, Π being
    the spectral projector of M = V Bᵀ onto its dominant eigenspace E [paper]; W₂ decays at the rate r of the late
    tokens [derived].

    Follow every start to rt = 7 and compare it, token by token and as a law, with its image under T.

    cases : the claim's own heads and starts; a given head has all three starts
    tokens, frames : tokens of a run, and its saved times
    """
    if head is None:
        runs = [(c.name, prescribed(c.kind, c.values, c.seed), c.start, tokens, c.seed) for c in cases]
    else:
        fewer = max(200, min(tokens, int(tokens * (64 / head.dim) ** 2)))
        runs = [(start, head, start, fewer, seed) for seed, start in enumerate(STARTS)]
    found = Finding(f"rt ≤ {HORIZON:g}")
    curves: list[tuple[str, np.ndarray, np.ndarray]] = []
    for name, own, start, n, seed in told(runs, tell):
        try:
            row, times, w2 = follow(own, tokens_of(start, n, own.dim, seed), frames)
        except SimulationStopped as stopped:
            found.undecided(name, str(stopped))
            continue
        curves.append((name, times, w2[:, 0]))
        found.row("limit", {"case": name, **row})
        found.within(f"{name}: limit map against e^(sM)", row["error of the map"], high=SAME_MAP)
        found.within(f"{name}: share of tokens within {ARRIVED:g} of T", row["share arrived"], low=SHARE)
        found.within(f"{name}: share of tokens within their own bound", row["share in bounds"], low=BOUNDED)
        found.overlapping(f"{name}: W₂ at rt = {HORIZON:g}", w2[-1], -math.inf, W2_LEFT)
    if not curves:
        found.sentence = f"no run came to its end: {found.checks[0].note}"
        return found
    picture = found.picture(
        "The law comes to its image under T",
        "W₂ between the law at time t and the push-forward of its start, over time in units of the predicted rate r. "
        "Samples of tokens fall below the predicted decay once the last late token has arrived.",
        Panel("time rt", "W₂ to the limit law", log_y=True),
    )
    for name, times, w2 in curves[:: math.ceil(len(curves) / 7)]:
        picture.add(name, times, w2)
    grid = np.linspace(0, HORIZON, 60)
    picture.add("e^(−rt)", grid, np.exp(-grid), "dashed")
    rows = found.tables["limit"]
    least, median = min(row["share arrived"] for row in rows), max(row["median distance at the end"] for row in rows)
    worst = max(row["W₂ at the end"] for row in rows)
    found.sentence = (
        f"at rt = {HORIZON:g}, in each of {len(rows)} runs, {tokens_in_words(least)} are within "
        f"{ARRIVED:g} of T(x), the median token within {median:.2g}, and W₂ to the limit law is at most {worst:.2g}"
    )
    return found
