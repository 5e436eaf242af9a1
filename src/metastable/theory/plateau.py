"""When the metastable plateau of a head on the circle ends: a forecast with no simulation and no fitted number.

On the plateau the law is two clusters at ±e and a thin tail, which the zero-temperature flow draws out from the
repelling point x_r. At the angle φ from e the tail has the density e^{−κt}f(φ), κ = g/|Bᵀx_r|. With x ∝ re + x_r,
s_r = |Bᵀx_r| and the uniform starting law,

    f = (1/2π) e^{κI(r)} |Bᵀx||re + x_r|²/s_r,      I(r) = ∫₀^r (|Bᵀx(r')| − s_r)/(g r') dr'.

A token at e looks for û = Bᵀe/s, s = |Bᵀe|, and sees the tail there R times as strongly as its own cluster (mass ½):

    R(t) = 2 f(û) √(2π/βs) e^{βD − κt},             D = |Bᵀe| − ⟨Bᵀe, e⟩.

As R falls, V pulls the cluster away from e, by y(t) along w = P_e V e, against the rate c = g/s at which e draws it
back; D changes by D'y on the way. The tail's slope at û keeps it at a distance y₀ of order 1/β from e all the time:

    y e^{βD'y} = |w|/((c + κ) R(t)),                y₀ = (log f)'(û) ⟨e^⊥, V û^⊥⟩/(βsc).

The distance is then W₂² = (spread of the zero-temperature law)² + (y₀ ± y)², and its phases are read off as from any
other curve. To leading order departure = (βD − (3/2) log β + O(1))/κ: ½ log β from the width of the tail that is seen
and log β from y₀.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special

from metastable.arrays import positive
from metastable.errors import BadInput
from metastable.theory import phases

if TYPE_CHECKING:
    from metastable.theory import Theory

BANDS = ((23.0, 0.95, 1.05), (11.5, 0.75, 1.10))
"""From this βD on, measured departures over their forecasts lie between these two: studies/results/forecast.json."""
FINENESS = np.linspace(-40.0, 25.0, 4001)
"""log r along each of the two ways from ±x_r to e."""


class Forecast(NamedTuple):
    """The end of the plateau of the uniform law, with its error; a time is in the units of the run.

    departure : when the distance first exceeds 1.5 times its least, between `lower` and `upper`
    length : departure less the time at which the distance first came within that factor
    least : the least distance W₂ to the limit law
    """

    departure: float
    lower: float
    upper: float
    length: float
    least: float
    sentence: str


def forecast(theory: Theory, beta: float) -> Forecast:
    """When the plateau of the uniform law under this head ends at inverse temperature β (d = 2).

    The error was measured against solved mean fields of forty random heads (studies/forecast.py): every departure
    observed at such a βD lay between `lower` and `upper`. Below βD = 11.5 the forecast was wrong by up to a factor of
    2.7 and is refused. Cases without such a comparison are refused too: d > 2; no limit law, or one that is not two
    atoms; D = 0 (V fixes e too, so that the plateau does not end); clusters that come apart (⟨e, Ve⟩ ≤ 0) or do not
    attend to themselves (⟨e, Be⟩ ≤ 0); a tail whose source x_r is empty before the cluster leaves.

    Examples
    --------
    >>> from metastable import Head
    >>> found = forecast(Head.from_interaction([[1.4, 0.3], [0.3, 0.7]], [[1.1, -0.3], [-0.3, 0.6]]).theory(), 300.0)
    >>> found.lower < found.departure < found.upper
    True
    """
    beta = positive(beta, "beta")
    tail = _Tail(theory)
    shallowest = BANDS[-1][0]
    if beta * tail.D < shallowest:
        least = f"it begins at βD = {shallowest:g}, here beta = {shallowest / tail.D:.4g}"
        raise BadInput(f"beta is {beta:g} and βD = {beta * tail.D:.3g}, too little for a forecast: {least}")
    until = 1.5 * max(tail.even(beta), 0.0) + 30 / tail.kappa
    times = np.linspace(0.0, until, 301)
    found = phases.detect(times, tail.curve(beta, times))
    if found.terminal is None or found.concentrated is None:
        raise BadInput(f"the model curve has no plateau that ends up to t = {until:.4g}; follow it with ms.mean_field")
    low, high = next((a * found.terminal, b * found.terminal) for depth, a, b in BANDS if beta * tail.D >= depth)
    length = found.terminal - found.concentrated
    sentence = (
        f"the plateau of the uniform law at beta = {beta:g} ends at t = {found.terminal:.4g} "
        f"(between {low:.4g} and {high:.4g}) after {length:.4g} time units near distance {found.least:.3g}"
    )
    return Forecast(found.terminal, low, high, length, found.least, sentence)


class _Tail:
    """The tail of the zero-temperature law and the cluster that it holds, on the circle."""

    def __init__(self, theory: Theory) -> None:
        _refuse(theory)
        head, e, normal = theory.head, *(a[:, 0].double().numpy() for a in (theory.basis, theory.co_basis))
        self.B, V = head.B.double().numpy(), head.V.double().numpy()
        self.e, self.source = e, _turned(normal)
        u = self.B.T @ e
        self.s, self.D = float(np.linalg.norm(u)), self._own(e)
        self.kappa, self.rate, self.gap = theory.escape_rate, theory.gap / self.s, theory.gap
        self.pull = float(_turned(e) @ V @ e)
        self._check(float(e @ V @ e))
        ahead = e + 1e-6 * math.copysign(1.0, self.pull) * _turned(e)
        self.D_slope = (self._own(ahead / np.linalg.norm(ahead)) - self.D) / 1e-6
        self.ways = [self._way(sign) for sign in (1.0, -1.0)]
        along, across = np.linalg.solve(np.stack([e, self.source], axis=1), u / self.s)
        _, angle, log_density, _, _ = self.ways[0 if along * across > 0 else 1]
        where = math.log(abs(along / across))
        self.log_density = float(np.interp(where, FINENESS, log_density))
        near = np.abs(FINENESS - where) < 0.05
        slope = float(np.polyfit(angle[near], log_density[near], 1)[0])
        self.offset = slope * float(_turned(e) @ V @ _turned(u / self.s)) / (self.s * self.rate)

    def _own(self, x: np.ndarray) -> float:
        return float(np.linalg.norm(self.B.T @ x) - x @ self.B @ x)

    def _check(self, own_value: float) -> None:
        look = float(self.e @ self.B @ self.e)
        if self.D / self.s <= 1e-9:
            raise BadInput(f"D is {self.D:.2g}: ±e are fixed by V as well, so the plateau does not end")
        if own_value <= 0 or look <= 0:
            which, value = ("V", own_value) if own_value <= 0 else ("B", look)
            raise BadInput(f"⟨e, {which}e⟩ is {value:.3g}; the forecast needs clusters that hold together, above 0")
        dry = float(np.linalg.norm(self.B.T @ self.source) - abs(self.source @ self.B @ self.e))
        if dry <= self.D:
            where = f"D is {dry:.3g} there and {self.D:.3g} at e"
            raise BadInput(f"the source of the tail is empty before the cluster leaves ({where}); use ms.mean_field")

    def _way(self, sign: float) -> tuple[np.ndarray, ...]:
        """Along re ± x_r: the points, their angle from e, log f, the time up to a constant, and dθ₀/d log r."""
        r = np.exp(FINENESS)
        y = np.outer(r, self.e) + sign * self.source
        norm = np.linalg.norm(y, axis=1)
        x = y / norm[:, None]
        clock, rest = np.linalg.norm(x @ self.B, axis=1), self.gap / self.kappa
        late = (clock - rest) / self.gap
        late = np.concatenate([[0.0], np.cumsum(0.5 * (late[1:] + late[:-1]) * np.diff(FINENESS))])
        log_density = -math.log(2 * math.pi) + self.kappa * late + np.log(clock / rest) + 2 * np.log(norm)
        angle = np.arctan2(x @ _turned(self.e), x @ self.e)
        stretch = abs(float(_turned(self.e) @ self.source)) * r / norm**2
        return x, angle, log_density, FINENESS / self.kappa + late, stretch

    def even(self, beta: float) -> float:
        """The time at which R = 1."""
        seen = math.log(2) + self.log_density + 0.5 * math.log(2 * math.pi / (beta * self.s))
        return (beta * self.D + seen) / self.kappa

    def curve(self, beta: float, times: np.ndarray) -> np.ndarray:
        """W₂ to ν at each of the times."""
        spread = np.zeros(len(times))
        for _, angle, _, clock, stretch in self.ways:
            for i, t in enumerate(times):
                moved = np.interp(np.interp(clock + t, clock, FINENESS), FINENESS, angle)
                # The nearer of the two atoms: both keep their mass, because the law is even.
                spread[i] += np.trapezoid((2 - 2 * np.abs(np.cos(moved))) * stretch, FINENESS) / math.pi
        return np.sqrt(spread + np.minimum(self._away(beta, times) ** 2, 4.0))

    def _away(self, beta: float, times: np.ndarray) -> np.ndarray:
        """y₀ ± y: how far the cluster is from e, with a sign; 2 once nothing holds it."""
        side = math.copysign(1.0, self.pull)
        # A D' of 0 stands for the limit of small ones.
        held, k = self.offset / beta, beta * self.D_slope or 1e-12
        free = abs(self.pull) / (self.rate + self.kappa)
        z = k * free * np.exp(np.minimum(self.kappa * (times - self.even(beta)) - k * held * side, 600.0))
        lost = z < -1 / math.e
        lambert: Any = special.lambertw
        root = np.real(lambert(np.where(lost, 0.0, z)))
        return np.where(lost, 2.0, held + side * root / k)


def _turned(x: np.ndarray) -> np.ndarray:
    return np.array([-x[1], x[0]])


def _refuse(theory: Theory) -> None:
    if theory.head.dim != 2:
        raise BadInput(f"the head has d = {theory.head.dim}; the forecast of a plateau is for d = 2: use ms.simulate")
    if theory.head.offset is not None:
        raise BadInput("the forecast needs linear scores, but this head has an offset")
    if theory.no_limit:
        raise BadInput(theory.no_limit)
    if theory.dim != 1 or not theory.attention.semisimple or theory.singular:
        raise BadInput("the forecast needs an invertible B and a limit law of two atoms; this head does not have both")
