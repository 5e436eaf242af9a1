"""Which of the three phases the runs of a sweep are in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import xarray as xr

from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.theory import Theory

NEEDED = ("concentrated", "terminal", "least", "course")
FACTOR = 1.5
"""Of `phases.detect`: a run leaves when its distance exceeds so many times its least."""


def terminal_level(theory: Theory) -> float:
    """W₂ between the limit laws ±e of M and ±v of V, √(2 − 2|⟨e, v⟩|): the distance that the terminal phase ends at.

    NaN where they are not both two atoms.
    """
    if theory.no_limit or theory.dim != 1 or theory.terminal.dim != 1 or theory.terminal.rotates:
        return math.nan
    cosine = float((theory.attention.basis[:, 0].double() @ theory.terminal.basis[:, 0].double()).abs())
    return math.sqrt(max(0.0, 2 - 2 * cosine))


def regions(data: xr.Dataset, level: xr.DataArray | None = None) -> xr.DataArray:
    """At each point and saved time 0, 1, 2 for concentrating, metastable, terminal; NaN where nothing can be said.

    A run whose distance still falls at its end is concentrating throughout. Nothing is said of points that failed, of
    curves that never change, and of times that a run did not reach; nor, once it is concentrated, of a run that was
    not seen to leave and could not be: one whose least distance times FACTOR is above the `level` where the terminal
    phase ends.
    """
    missing = [name for name in (*NEEDED, "distance") if name not in data]
    if missing:
        raise BadInput(f"the sweep has no {missing[0]}; a map of phases needs the outputs distance and phases")
    t, courses = data["time"], data["course"].attrs["flag_meanings"].split()
    falling, still = (data["course"] == courses.index(word) for word in ("falling", "still"))
    from_, to = data["concentrated"].where(~falling, math.inf), data["terminal"].fillna(math.inf)
    found = xr.where(t < from_, 0.0, xr.where((t < to) | falling, 1.0, 2.0))
    told = (data["status"] == 0) & (falling | data["concentrated"].notnull()) & ~(still & (from_ > 0))
    if level is not None:
        unseen = data["terminal"].isnull() & (FACTOR * data["least"] >= level)
        found = found.where(~(unseen & (found == 1)))
    found = found.where(told & data["distance"].notnull())
    return found.transpose(*data["distance"].dims)
