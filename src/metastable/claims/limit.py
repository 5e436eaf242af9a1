"""The limit law: at zero temperature every token x ends at T(x) = Πx/|Πx|, so the law ends at ν = T_# μ₀.

Π is the spectral projector of M = V Bᵀ onto the eigenspace of its dominant eigenvalue λ₁, along the other invariant
subspaces. The tokens are followed by the exact flow x(t) = e^{τM}x₀/|e^{τM}x₀|, dt/dτ = |Bᵀx|. Π is built here a
second time without any eigenvector, as the limit of e^{s(M − λ₁)} for large s: what is left of the other eigenvalues
is of the order e^{−sg}, g being the gap.

Tokens that start near {Πx = 0} arrive late. Those that have not arrived at time t carry a mass of the order e^{−2rt}
with r the predicted rate of W₂ (`Theory.law_rate`), so every run lasts until rt = 7: then a share of about 10⁻⁶ is
still on its way, and W₂ should be some multiple of e^{−7} ≈ 10⁻³. The largest distance of a single token says nothing;
but each token has a bound of its own, because its internal time is at least t/‖B‖: for every x₀ with Πx₀ ≠ 0

    |x(t) − T(x₀)| ≤ 2 ‖e^{τ(M − λ₁)} − Π‖ |x₀ − Πx₀| / |Πx₀|,      τ = t/‖B‖,

as soon as the norm decreases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import expm

from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import Check, Finding, Panel, Picture, Series, Table, overlapping, undecided, within
from metastable.claims.prescribed import prescribed, too_long, without_limit
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
"""Share that must have arrived: later are those with |Πx₀| < e^{−7}/0.1, at most 0.3 % (d = 64, dim E = 2)."""
BOUNDED = 0.9999
"""Share of tokens within their own bound: all of them, but for the rounding of tokens that start on {Πx = 0}."""
SAME_MAP = 1e-8
"""Largest |Πx|·|T − T'|/‖Π‖ between the package's map and the one built here: rounding times the condition of M."""


@dataclass(frozen=True)
class Case:
    """One head and one start; `values` are the eigenvalues of M, in the order that `prescribed` wants."""

    kind: str
    values: tuple[float, ...]
    start: str
    seed: int = 0

    @property
    def name(self) -> str:
        leading = sum(v == max(self.values) for v in self.values)
        return f"d = {len(self.values)}, {self.kind}, dim E = {leading}, {self.start}"


@dataclass(frozen=True)
class Sizes:
    cases: tuple[Case, ...]
    tokens: int
    frames: int


def _ladder(d: int, leading: int) -> tuple[float, ...]:
    """λ₁ = 1 as often as wanted, then evenly spaced values from 0.4 down to −0.6."""
    return (1.0,) * leading + tuple(np.linspace(0.4, -0.6, d - leading).tolist())


STARTS = ("uniform", "von Mises–Fisher", "mixture")


def start(name: str, n: int, d: int, seed: int) -> Cloud:
    """`n` tokens: uniform, one hump of concentration 2, or two humps of unequal share with concentrations 6 and 2."""
    rng = np.random.default_rng(1000 + seed)
    if name == "uniform":
        return uniform(n, d, seed)
    if name == "von Mises–Fisher":
        return von_mises_fisher(n, rng.standard_normal(d), 2.0, seed)
    return mixture(n, rng.standard_normal((2, d)), (6.0, 2.0), (0.3, 0.7), seed)


def shifted(head: Head) -> tuple[np.ndarray, float]:
    """M − λ₁ with M = V Bᵀ formed here, and its gap."""
    M = head.V.double().numpy() @ head.B.double().numpy().T
    values = np.linalg.eigvals(M)
    leading = float(values.real.max())
    below = values.real[values.real < leading - 1e-4 * np.abs(values).max()]
    return M - leading * np.eye(len(M)), leading - float(below.max())


def projector(head: Head) -> np.ndarray:
    """Π = lim e^{s(M − λ₁)}."""
    generator, gap = shifted(head)
    return np.asarray(expm(45 / gap * generator))


@dataclass(frozen=True)
class Followed:
    """One run: times in units of 1/r, W₂ and its bounds there, and the distances of the tokens from T."""

    scaled: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    median: np.ndarray
    arrived: float
    bounded: float
    map_error: float


def followed(head: Head, cloud: Cloud, frames: int) -> Followed:
    theory, P = head.theory(), projector(head)
    scaled = np.linspace(0, HORIZON, frames)
    x0 = cloud.points.numpy()
    image = x0 @ P.T
    size = np.linalg.norm(image, axis=1, keepdims=True)
    end = image / size
    ours = theory.limit(cloud.points).numpy()
    error = float((size[:, 0] * np.linalg.norm(ours - end, axis=1)).max() / np.linalg.norm(P, 2))
    path = zero_temperature_flow(head, cloud, torch.from_numpy(scaled / theory.law_rate(2)))
    basis = np.linalg.svd(P)[0][:, : round(float(np.trace(P)))]
    found = [to_limit(cloud.moved_to(x), end, basis, exact_up_to=0) for x in path]
    away = np.linalg.norm(path.numpy() - end, axis=2)
    value, low, high = (np.array([getattr(w, part) for w in found]) for part in ("value", "lower", "upper"))
    late = scaled[-1] / theory.law_rate(2) / float(np.linalg.norm(head.B.numpy(), 2))
    factor = 2 * float(np.linalg.norm(expm(late * shifted(head)[0]) - P, 2))
    bounded = away[-1] * size[:, 0] <= factor * np.linalg.norm(x0 - image, axis=1)
    shares = float((away[-1] <= ARRIVED).mean()), float(bounded.mean())
    return Followed(scaled, value, low, high, np.median(away, axis=1), *shares, error)


def _checks(name: str, run: Followed) -> list[Check]:
    last = (run.value[-1], run.low[-1], run.high[-1])
    return [
        within(f"{name}: limit map against e^(sM)", run.map_error, high=SAME_MAP),
        within(f"{name}: share of tokens within {ARRIVED:g} of T", run.arrived, low=SHARE),
        within(f"{name}: share of tokens within their own bound", run.bounded, low=BOUNDED),
        overlapping(f"{name}: W₂ at rt = {HORIZON:g}", last, -math.inf, W2_LEFT),
    ]


def _given(head: Head, sizes: Sizes) -> tuple[list[tuple[str, Head, Cloud]], str | None]:
    """The runs for a given head, or why there are none."""
    reason = without_limit(head)
    if reason is not None:
        return [], reason
    theory, d = head.theory(), head.dim
    tokens = max(200, min(sizes.tokens, int(sizes.tokens * (64 / d) ** 2)))
    reason = too_long(head, HORIZON / theory.law_rate(2))
    if reason is not None:
        return [], reason
    head = head.to(torch.float64)
    return [(name, head, start(name, tokens, d, seed)) for seed, name in enumerate(STARTS)], None


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Follow every start to rt = 7 and compare it, token by token and as a law, with its image under T."""
    if head is not None:
        runs, reason = _given(head, sizes)
        if reason is not None:
            return Finding(f"no limit to test: {reason}", "nothing was run", (undecided("limit law", reason),))
    else:
        runs = []
        for case in sizes.cases:
            made = prescribed(case.kind, case.values, case.seed)
            runs.append((case.name, made, start(case.start, sizes.tokens, len(case.values), case.seed)))
    checks: list[Check] = []
    rows: list[tuple] = []
    done = []
    for i, (name, own, cloud) in enumerate(runs):
        try:
            run = followed(own, cloud, sizes.frames)
        except SimulationStopped as stopped:
            checks.append(undecided(name, str(stopped)))
            continue
        checks += _checks(name, run)
        done.append((name, run))
        norm = own.theory().attention.projector_norm
        final = (float(run.median[-1]), float(run.value[-1]), float(run.low[-1]))
        rows.append((name, norm, own.theory().law_rate(2), run.map_error, run.arrived, run.bounded, *final))
        tell((i + 1) / len(runs))
    return _finding(checks, done, rows)


def _finding(checks: list[Check], done: list[tuple[str, Followed]], rows: list[tuple]) -> Finding:
    if not done:
        return Finding(f"no limit to test: {checks[0].note}", "nothing was run", tuple(checks))
    worst = max(float(run.value[-1]) for _, run in done)
    least, median = min(run.arrived for _, run in done), max(run.median[-1] for _, run in done)
    sentence = (
        f"at rt = {HORIZON:g}, in each of {len(done)} runs, at least {100 * least:.4g} % of the tokens are within "
        f"{ARRIVED:g} of T(x), the median token within {median:.2g}, and W₂ to the limit law is at most {worst:.2g}"
    )
    chosen = done[:: max(1, math.ceil(len(done) / 7))]
    series = [Series(name, tuple(run.scaled), tuple(run.value)) for name, run in chosen]
    grid = np.linspace(0, HORIZON, 60)
    series.append(Series("e^(−rt)", tuple(grid), tuple(np.exp(-grid)), style="dashed"))
    columns = (
        "case",
        "norm of the projector",
        "predicted rate r of W₂",
        "error of the map",
        "share arrived",
        "share in bounds",
    )
    ends = ("median distance at the end", "W₂ at the end", "its lower bound")
    picture = Picture(
        "The law comes to its image under T",
        "W₂ between the law at time t and the push-forward of its start, over time in units of the predicted rate r. "
        "Samples of tokens fall below the predicted decay once the last late token has arrived.",
        (Panel("time rt", "W₂ to the limit law", log_y=True),),
        tuple(series),
    )
    table = Table("limit", (*columns, *ends), tuple(rows))
    return Finding(sentence, f"rt ≤ {HORIZON:g}", tuple(checks), (picture,), (table,))


_QUICK = (
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
_FULL = tuple(
    Case(kind, _ladder(d, m), name, seed)
    for seed, (d, m, kind, name) in enumerate(
        (d, m, kind, name)
        for d in (2, 3, 8, 64)
        for m in (1, 2, 3)
        if m < d
        for kind in ("symmetric", "non-symmetric", "non-normal")
        for name in STARTS
    )
)

CLAIM = Claim(
    "limit",
    "Limit law",
    "At zero temperature the law of the tokens tends to the push-forward of its start under T(x) = Πx/|Πx|, Π being "
    "the spectral projector of M = V Bᵀ onto its dominant eigenspace E [paper]; W₂ decays at the rate r of the late "
    "tokens [derived].",
    check,
    quick=Sizes(_QUICK, 1500, 15),
    full=Sizes(_FULL, 8000, 29),
)
