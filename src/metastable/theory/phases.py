"""The phases of a run, read off a curve of distances: concentration, metastable plateaus, terminal phase."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastable.arrays import finite, vector
from metastable.errors import BadInput

Floats = NDArray[np.float64]


class _ShortRepr:
    """A dataclass whose numbers are printed with six digits."""

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in values.items())})"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' if len(value) == 1 else ''})"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


@dataclass(frozen=True, repr=False)
class Plateau(_ShortRepr):
    """A stretch of time, [start, end], in which the distance rests near `level` (its median there)."""

    start: float
    end: float
    level: float


@dataclass(frozen=True, repr=False)
class Phases(_ShortRepr):
    """When a run concentrated, rested and left. A time is None if the event was not seen up to `horizon`.

    Attributes
    ----------
    concentrated : the first time at which the distance is within `factor` of its least
    terminal : the first time after `least_time` at which the distance exceeds `factor` times its least
    horizon : the last saved time
    least, least_time : the least distance, and the first time at which it is attained
    plateaus : stretches of time, from `start` to `end`, in which the distance rests near `level`, in their order; those
        that start after `terminal` are later rests
    factor : what counts as a change
    course : "one time" (a single point is no curve), "still" (the distance stays within `factor`), "falling" (it was
        falling when the run ended) or "settled" (it came to a least value or to rest)
    """

    concentrated: float | None
    terminal: float | None
    horizon: float
    least: float
    least_time: float
    plateaus: tuple[Plateau, ...]
    factor: float = 1.5
    course: str = "settled"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in plain English, one line each."""
        until = f"up to t = {self.horizon:.4g}"
        if self.course == "one time":
            return (f"distance {self.least:.3g} at t = {self.horizon:.4g}, the only time saved: no phases to tell",)
        if self.course == "still":
            rest = f"the distance stays within a factor {self.factor:g} of {self.least:.3g} {until}"
            return (rest, f"terminal phase not seen {until}")
        concentration = f"concentration not complete {until}: the distance is still falling"
        if self.concentrated is not None:
            within = f"within a factor {self.factor:g} of the least distance"
            concentration = f"concentrated from t = {self.concentrated:.4g}: {within}"
        lines = [concentration, f"least distance {self.least:.3g} at t = {self.least_time:.4g}"]
        left = math.inf if self.terminal is None else self.terminal
        lines += [self._rest("plateau", each) for each in self.plateaus if each.start < left]
        if self.terminal is None:
            return (*lines, f"terminal phase not seen {until}")
        above = f"the distance exceeds {self.factor:g} times its least"
        departure = f"terminal phase from t = {self.terminal:.4g}: {above}"
        later = [self._rest("then at rest", each) for each in self.plateaus if each.start >= left]
        return (*lines, departure, *later)

    def _rest(self, name: str, plateau: Plateau) -> str:
        end = "the end of the run" if plateau.end == self.horizon else f"t = {plateau.end:.4g}"
        return f"{name} at distance {plateau.level:.3g} from t = {plateau.start:.4g} to {end}"


def detect(times: Any, distance: Any, factor: float = 1.5, floor: float = 1e-9) -> Phases:
    """Concentration, plateaus and terminal phase of a curve D(t) of distances to the limit law.

    With D̃ = max(D, floor), between saved times interpolated linearly in log D̃:

    - least = min D̃, first attained at least_time.
    - concentrated = the first t with D̃(t) ≤ factor·least.
    - terminal = the first t after least_time with D̃(t) > factor·least.
    - A window of time is *quiet* if log D̃ varies in it by at most q = min(¼ log factor, 0.1). Let f be the fastest
      change of log D̃, taken over changes by log factor or more. A plateau is a union of overlapping quiet windows
      of length 1/f (and at least three saved times) in which D̃ varies by no more than `factor`. A union that varies
      by more is searched again by itself, with its own, smaller f, so that a sudden departure does not make the slow
      fall before it look quiet. Neighbouring plateaus within one factor of each other are one. A plateau also lasts
      at least 1/f for the f of the changes just before it and of those just after it.
    - If D̃ never leaves a factor of its least, nothing happens, and concentrated is None (but a curve at the floor
      was concentrated from the start). If no plateau holds the least and D̃ has not risen by more than e^q since,
      the curve is still falling, and concentrated is None.

    Parameters
    ----------
    times : (n,)
        Increasing.
    distance : (n,)
        Finite, 0 or more.
    factor : float
        What counts as a change, more than 1.
    floor : float
        Distances below this are not told apart: rounding, or the noise floor of the run.

    Examples
    --------
    >>> t = np.linspace(0, 20, 201)
    >>> found = detect(t, np.exp(-t) + 0.01 + 0.01 * np.exp(2 * (t - 15)))
    >>> round(found.concentrated, 1), round(found.terminal, 1)
    (5.3, 14.7)
    >>> print(detect(t, np.exp(-t)).sentences[0])
    concentration not complete up to t = 20: the distance is still falling
    """
    t, d = _curve(times, distance)
    if not finite(factor, "factor") > 1:
        raise BadInput(f"factor is {factor!r}; it must be a number above 1, such as 1.5")
    if not finite(floor, "floor") >= 0:
        raise BadInput(f"floor is {floor!r}; it must be 0 or more, the distance that counts as zero")
    floor = max(floor, float(np.finfo(np.float64).tiny))
    d = np.maximum(d, floor)
    logs = np.log(d)
    step, first = math.log(factor), int(logs.argmin())
    bound = logs[first] + step
    plateaus = _plateaus(t, logs, step)
    course = _course(t, logs, step, plateaus)
    concentrated = terminal = None
    if course == "settled" or (course == "still" and d.max() <= floor):
        concentrated = _crossing(t, logs, int((logs <= bound).argmax()), bound)
    above = np.flatnonzero(logs[first:] > bound)
    if len(above):
        terminal = _crossing(t, logs, first + int(above[0]), bound)
    levels = tuple(Plateau(float(t[i]), float(t[j]), float(np.median(d[i : j + 1]))) for i, j in plateaus)
    least, when = float(d[first]), float(t[first])
    return Phases(concentrated, terminal, float(t[-1]), least, when, levels, float(factor), course)


def _curve(times: Any, distance: Any) -> tuple[Floats, Floats]:
    t = vector(times, "times", None).double().cpu().numpy()
    d = vector(distance, "distance", len(t)).double().cpu().numpy()
    if not (np.diff(t) > 0).all():
        k = int((np.diff(t) <= 0).argmax())
        raise BadInput(f"times go from {t[k]:g} to {t[k + 1]:g} at index {k}; they must increase")
    if d.min() < 0:
        raise BadInput(f"distance is {d.min():g} at t = {t[d.argmin()]:g}; distances must be 0 or more")
    return t, d


def _course(t: Floats, logs: Floats, step: float, plateaus: list[tuple[int, int]]) -> str:
    if len(t) == 1:
        return "one time"
    if np.ptp(logs) <= step:
        return "still"
    least = int(logs.argmin())
    at_rest = any(i <= least <= j for i, j in plateaus)
    turned = logs[least:].max() - logs[least] > _quiet(step)
    return "settled" if at_rest or turned else "falling"


def _quiet(step: float) -> float:
    """How much log D̃ may vary in a quiet window. Below ½, so that quiet windows cannot cover the fastest change."""
    return min(0.25 * step, 0.1)


def _crossing(t: Floats, logs: Floats, k: int, bound: float) -> float:
    """The time at which the line between saved times k − 1 and k meets the bound."""
    if k == 0:
        return float(t[0])
    share = (bound - logs[k - 1]) / (logs[k] - logs[k - 1])
    return float(t[k - 1] + share * (t[k] - t[k - 1]))


def _plateaus(t: Floats, logs: Floats, step: float) -> list[tuple[int, int]]:
    """First and last index of each plateau, in order."""
    if len(t) < 3 or np.ptp(logs) <= step:
        return [(0, len(t) - 1)] if len(t) >= 3 else []
    merged: list[tuple[int, int]] = []
    for i, j in _search(t, logs, 0, len(t) - 1, step):
        if merged and np.ptp(logs[merged[-1][0] : j + 1]) <= step:
            merged[-1] = (merged[-1][0], j)
        else:
            merged.append((i, j))
    return [found for k, found in enumerate(merged) if _lasts(t, logs, step, merged, k)]


def _lasts(t: Floats, logs: Floats, step: float, found: list[tuple[int, int]], k: int) -> bool:
    """Whether plateau k lasts as long as a change by a factor e takes before it, and after it.

    One sudden change elsewhere must not turn every slow start into a plateau.
    """
    i, j = found[k]
    before = found[k - 1][1] if k > 0 else 0
    after = found[k + 1][0] if k + 1 < len(found) else len(t) - 1
    speeds = [_fastest(t[a : b + 1], logs[a : b + 1], step) for a, b in ((before, i), (j, after))]
    return all(speed * (t[j] - t[i]) >= 1 for speed in speeds if speed > 0)


def _search(t: Floats, logs: Floats, start: int, end: int, step: float) -> list[tuple[int, int]]:
    """Plateaus within [start, end], where log D̃ varies by more than `step`."""
    speed = _fastest(t[start : end + 1], logs[start : end + 1], step)
    found: list[tuple[int, int]] = []
    for i, j in _quiet_unions(t, logs, start, end, 1.0 / speed, _quiet(step)):
        if np.ptp(logs[i : j + 1]) <= step:
            found.append((i, j))
        elif (i, j) != (start, end):
            found += _search(t, logs, i, j, step)
    return found


def _fastest(t: Floats, logs: Floats, step: float) -> float:
    """max |Δ log D̃| / Δt over changes by at least `step`, each taken from its start to where it is first complete."""
    fastest = 0.0
    for i in range(len(t) - 1):
        change = np.abs(logs[i + 1 :] - logs[i])
        k = int((change >= step).argmax())
        if change[k] >= step:
            fastest = max(fastest, float(change[k] / (t[i + 1 + k] - t[i])))
    return fastest


def _quiet_unions(t: Floats, logs: Floats, start: int, end: int, length: float, quiet: float) -> list[tuple[int, int]]:
    """Maximal unions of overlapping windows, at least `length` and three saved times long, with range ≤ quiet."""
    unions: list[tuple[int, int]] = []
    for i in range(start, end - 1):
        j = max(i + 2, int(np.searchsorted(t, t[i] + length)))
        if j > end:
            break
        if np.ptp(logs[i : j + 1]) > quiet:
            continue
        if unions and i <= unions[-1][1]:
            unions[-1] = (unions[-1][0], j)
        else:
            unions.append((i, j))
    return unions
