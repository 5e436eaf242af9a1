"""Laws without full support, which `theory()` cannot warn of: it knows the head and not the law.

A hole around û: m_β tends to the best point y of the support, not to û; at an edge with the angle η from û the softmax
weights fall off like e^{−κ s sin η}, so |m_β − y| ≈ 1/(κ sin η). At the limit point e, where a law of full support
would hold a token at rest, the velocity tends to P_e V y.

Does that stop the tokens from following T? Not in the end: tokens from nearer {Πx = 0} are swept through the hole and
refill it, so the plateau comes and ends as if there were none. A hole of half-width ω around {Πx = 0} itself (d = 2:
two arcs around the repelling points ±x_r) is never refilled. The flow widens it until it reaches û(e), at a time
that does not depend on β, and then the cluster leaves. So the departures for two widths differ by the time that the
edge of the narrow hole takes to the edge of the wide one, on the side from which tokens reach e by way of û(e).
Derived here.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from metastable.attention import attend
from metastable.claims import laws
from metastable.claims.beyond import Part, Sizes
from metastable.claims.finding import Series, overlapping, within
from metastable.claims.fitting import line
from metastable.claims.prescribed import circle_head
from metastable.cloud import Cloud, equally_spaced
from metastable.flow.exact import zero_temperature_flow
from metastable.flow.fields import velocity
from metastable.head import Head
from metastable.run.simulation import simulate
from metastable.transport import to_limit

EDGE = 0.02
"""Relative, of the leading order at the edge of a hole: the next one is 1/(κ tan η), 10⁻³ at κ = 10³."""
REFILLED = 0.1
"""Relative, between the departures with and without a hole around û: tokens leave one by one, 1/(κ log N) apart."""
SAME = 0.2
"""Relative, between departures at two β; in the mean field of full support β = 300 and 1000 differ by a factor 2.6."""
WIDTHS = 0.1
"""Relative, of the difference of departures for two widths at the larger β: the softmax blurs edges by β^{−1/2}."""
LEFT = 0.12
"""A cluster has left when W₂ rises to this, about half of its distance from V's eigenvector."""


def hole(head: Head, sizes: Sizes, near: float = 0.5, far: float = 0.9) -> Part:
    """The uniform law of the circle without an arc around the û of the limit point e; its nearer edge is at η = 0.5."""
    e = head.theory().basis[:, 0].numpy()
    look = head.B.numpy().T @ e
    size = float(np.linalg.norm(look))
    u = look / size
    centre = math.atan2(u[0], u[1])
    edge, other = centre + near, centre + 2 * math.pi - far
    y = np.array([math.sin(edge), math.cos(edge)])
    to_edge, to_look, speeds = [], [], []
    for beta in sizes.betas:
        phi, w = laws.nodes(laws.edges(edge, 2 / (beta * size * math.sin(near)), edge, other), edge, math.inf)
        cloud = Cloud(np.stack([np.sin(phi), np.cos(phi)], axis=1), weights=w)
        m = attend(cloud, beta * head.directions(torch.from_numpy(e)[None]), engine="dense")[0].numpy()
        to_edge.append(float(np.linalg.norm(m - y)))
        to_look.append(float(np.linalg.norm(m - u)))
        speeds.append(velocity(head, cloud, beta, at=e[None], engine="dense")[0].numpy())
    kappas = np.array(sizes.betas) * size
    pushed = head.V.numpy() @ y
    wanted = pushed - (pushed @ e) * e
    slope = line(np.log(sizes.betas), np.log(to_edge)).interval
    constant = to_edge[-1] * kappas[-1] * math.sin(near)
    error = float(np.linalg.norm(speeds[-1] - wanted) / np.linalg.norm(wanted))
    checks = (
        within("hole: |m_β − û| over 2 sin(η/2)", to_look[-1] / (2 * math.sin(near / 2)), 1 - EDGE, 1 + EDGE),
        overlapping("hole: slope of |m_β − y| in β, y the edge", slope, -1 - EDGE, -1 + EDGE),
        within("hole: κ sin η |m_β − y|", constant, 1 - EDGE, 1 + EDGE),
        within("hole: relative error of the velocity P V y at the limit point", error, high=EDGE),
    )
    instead = f"m_β stays {to_look[-1]:.4f} from û; a token at the limit point moves at {np.linalg.norm(wanted):.3f}"
    return Part("support with a hole around û", "none: theory() sees the head only", instead, checks)


def departure(head: Head, cloud: Cloud, beta: float, until: float) -> tuple[float, np.ndarray, np.ndarray]:
    """When W₂ to the limit law, after its least, rises to LEFT (NaN if never), and the curve."""
    theory = head.theory()
    ends = theory.limit(cloud.points)
    run = simulate(head, cloud, beta, until, t_eval=81, tol=1e-5, engine="flash", progress=False)
    times = np.asarray(run.times, dtype=float)
    w2 = np.array([to_limit(run.at(i), ends, theory.basis).value for i in range(len(times))])
    least = int(w2.argmin())
    above = np.flatnonzero(w2[least:] > LEFT)
    if len(above) == 0 or above[0] == 0:
        return math.nan, times, w2
    part = slice(least + above[0] - 1, least + above[0] + 1)
    return float(np.interp(LEFT, w2[part], times[part])), times, w2


def arcs(n: int, axis: np.ndarray, width: float) -> Cloud:
    """About n tokens, even on the circle without the angles below `width` from ±axis; tokens sit at all four edges."""
    share = np.linspace(0, 1, n // 2)
    angles = math.atan2(axis[1], axis[0]) + width + share * (math.pi - 2 * width)
    angles = np.concatenate([angles, angles + math.pi])
    return Cloud(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def widening(head: Head, narrow: float, wide: float) -> float:
    """How long the zero-temperature flow takes from the angle `narrow` to `wide` from ±x_r, on the way to û(e), e."""
    theory = head.theory()
    e, normal = theory.basis[:, 0].numpy(), theory.co_basis[:, 0].numpy()
    normal = normal if normal @ e > 0 else -normal
    repelling = np.array([-normal[1], normal[0]])
    # û(e) = αe + γx_r lies between e and the repelling point of γ's sign, and between −e and the other for α < 0.
    alpha, gamma = np.linalg.solve(np.stack([e, repelling], axis=1), head.B.numpy().T @ e)
    repelling = repelling if alpha * gamma > 0 else -repelling
    edge = Cloud((math.cos(narrow) * repelling + math.sin(narrow) * normal)[None])
    times = np.linspace(0, 3 * math.log(wide / narrow) / theory.escape_rate, 400)
    path = zero_temperature_flow(head, edge, torch.from_numpy(times))[:, 0].numpy()
    return float(np.interp(wide, np.arctan2(path @ normal, path @ repelling), times))


def emptied(sizes: Sizes, betas: tuple[float, float] = (300.0, 1000.0)) -> Part:
    """Runs of equal tokens: full circle, a hole around û(e), and holes of two widths around {Πx = 0}."""
    # û(e) is 15 degrees from e.
    head, n = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)), sizes.particles
    look = (head.B.T @ head.theory().basis[:, 0]).numpy()
    normal = head.theory().co_basis[:, 0].numpy()
    repelling = np.array([-normal[1], normal[0]])
    narrow, wide = 0.05, 0.3
    cases = [("no hole", equally_spaced(n), betas[1]), ("hole around û", arcs(n, look, 0.6), betas[1])]
    cases += [(f"hole {w:g} at Πx = 0, β = {b:g}", arcs(n, repelling, w), b) for w in (narrow, wide) for b in betas]
    found, series = [], []
    for name, cloud, beta in cases:
        when, times, w2 = departure(head, cloud, beta, 12.0)
        found.append(when)
        if beta == betas[1]:
            series.append(Series(name, tuple(times), tuple(w2), panel=3))
    full, refilled, *left = found
    apart = (left[1] - left[3]) / widening(head, narrow, wide)
    checks = (
        within("hole around û: departure over that without a hole", refilled / full, 1 - REFILLED, 1 + REFILLED),
        within(f"hole {narrow:g} around Πx = 0: departures at two β, ratio", left[1] / left[0], 1 - SAME, 1 + SAME),
        within(f"hole {wide:g} around Πx = 0: departures at two β, ratio", left[3] / left[2], 1 - SAME, 1 + SAME),
        within("holes around Πx = 0: difference of departures over the flow's", apart, 1 - WIDTHS, 1 + WIDTHS),
        within(f"hole {wide:g} around Πx = 0: departure over that without a hole", left[3] / full, high=1 - REFILLED),
    )
    instead = (
        f"the flow refills a hole around û (departure {refilled:.2f}, without a hole {full:.2f}); one of {wide:g} "
        f"around Πx = 0 ends the plateau at {left[2]:.2f} and {left[3]:.2f} for β = {betas[0]:g} and {betas[1]:g}"
    )
    return Part("holes under the flow", "none: theory() sees the head only", instead, checks, tuple(series))
