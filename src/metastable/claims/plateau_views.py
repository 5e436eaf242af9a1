"""Plateaus on the circle as tables and pictures."""

from __future__ import annotations

import math

import numpy as np

from metastable.claims.finding import Panel, Picture, Series, Table
from metastable.claims.plateau_runs import Curves, Drawn, Numbers, Seen, Spaced, numbers
from metastable.head import Head


def tables(head: Head, curves: Curves, drawn: Drawn, spaced: Spaced) -> tuple[Table, ...]:
    rows = []
    for name, one, found in [("followed", head, curves), *((f"random {i}", h, c) for i, (h, c) in enumerate(drawn))]:
        q = numbers(one)
        for beta, seen in found:
            forecast = one.theory().plateau(beta).departure
            rows.append((name, beta, beta * q.D, beta * q.D / q.kappa, forecast, seen.departure, seen.least))
    columns = ("head", "beta", "beta D", "beta D / kappa", "forecast of the departure", "departure", "least distance")
    q = numbers(head)
    tokens = tuple((n, shift, math.log(n) / q.kappa, math.log(n) / q.rate, *found) for n, shift, *found in spaced)
    names = ("N", "shift, spacings", "log N / kappa", "log N / c", "departure", "half-way time")
    return Table("plateaus of the mean field", columns, tuple(rows)), Table("equal tokens", names, tokens)


def pictures(q: Numbers, curves: Curves, drawn: Drawn, spaced: Spaced, stairs: Seen | None) -> tuple[Picture, ...]:
    depths = tuple(beta * q.D for beta, _ in curves)
    dots = [(b * numbers(h).D, s.departure * numbers(h).kappa) for h, c in drawn for b, s in c]
    law = np.linspace(min(depths), max(depths), 50)
    shift = q.kappa * curves[-1][1].departure + 1.5 * math.log(curves[-1][0]) - depths[-1]
    series = [
        Series("mean field", depths, tuple(q.kappa * s.departure for _, s in curves), "points"),
        Series("βD − (3/2) log β + constant", tuple(law), tuple(law - 1.5 * np.log(law / q.D) + shift), "dashed"),
        Series("random heads", tuple(x for x, _ in dots), tuple(y for _, y in dots), "points"),
        Series("equal tokens", tuple(float(row[0]) for row in spaced), tuple(r[3] for r in spaced), "points", panel=1),
    ]
    if spaced:
        ends = (float(spaced[0][0]), float(spaced[-1][0]))
        series.append(Series("mean field, same β", ends, (curves[-1][1].left,) * 2, panel=1))
    for beta, seen in (curves[0], curves[-1]):
        series.append(Series(f"β = {beta:.4g}", tuple(seen.times), tuple(seen.curve), panel=2))
    one = Picture(
        "When the plateau ends",
        "First: κ times the departure of the mean field, against βD. Second: when N equally spaced tokens are half-way "
        "to V's eigenvector, at the largest of these β. Third: the distance to the limit law at the smallest and the "
        "largest β.",
        (
            Panel("βD", "κ × departure"),
            Panel("number of tokens N", "half-way time, time units", log_x=True),
            Panel("time t", "W₂ to the limit law", log_y=True),
        ),
        tuple(series),
    )
    if stairs is None:
        return (one,)
    curve = Series("W₂ to the limit law", tuple(stairs.times), tuple(stairs.curve))
    caption = "One run of the mean field past its departure: it rests on further steps on the way to V's eigenvector."
    return one, Picture("A staircase", caption, (Panel("time t", "W₂ to the limit law"),), (curve,))
