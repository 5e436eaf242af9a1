"""What a claim leaves behind: checks with the numbers that decided, tables and pictures, all of it plain data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"


@dataclass(frozen=True)
class Check:
    """One number against its prediction.

    Attributes
    ----------
    name : what was measured, with the problem ("W₂ rate, d = 3, non-normal M")
    measured : the number, None if there is none
    low, high : where the prediction and the tolerance want it; either may be infinite
    outcome : PASS, FAIL or INCONCLUSIVE
    note : why, if the numbers alone do not say
    """

    name: str
    measured: float | None
    low: float
    high: float
    outcome: str
    note: str = ""


def within(name: str, measured: float, low: float = -math.inf, high: float = math.inf, note: str = "") -> Check:
    """PASS if low ≤ measured ≤ high, FAIL otherwise, NaN included."""
    outcome = PASS if low <= measured <= high else FAIL
    return Check(name, float(measured), float(low), float(high), outcome, note)


def overlapping(name: str, interval: tuple[float, float, float], low: float, high: float, note: str = "") -> Check:
    """A measured (value, lower, upper) against [low, high].

    PASS if the value is inside, FAIL if the whole interval is outside, INCONCLUSIVE if only its edge is inside, or if
    the interval is longer than [low, high] and so says little.
    """
    value, lower, upper = (float(x) for x in interval)
    touches = upper >= low and lower <= high
    vague = touches and upper - lower > high - low
    outcome = PASS if low <= value <= high and not vague else INCONCLUSIVE if touches else FAIL
    error = f"interval {lower:.4g} to {upper:.4g}"
    return Check(name, value, float(low), float(high), outcome, f"{error}; {note}" if note else error)


def undecided(name: str, note: str, measured: float | None = None) -> Check:
    """A check that could not be made, and why."""
    return Check(name, measured, -math.inf, math.inf, INCONCLUSIVE, note)


@dataclass(frozen=True)
class Table:
    """Rows for people and for CSV; a column name says its unit, if there is one."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Series:
    """One curve of a picture. `style` is line, dashed, dotted, points or band (between low and high)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...] = ()
    style: str = "line"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    panel: int = 0


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a picture."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as data: `figures.picture` draws it. One to four panels, one under the other."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Finding:
    """What one claim found.

    Attributes
    ----------
    sentence : the result in one sentence with its most telling numbers
    horizon : over which times, β and sizes it was looked at ("t ≤ 12, β = 10 … 10⁴, N = 20 000")
    explanation : for a FAIL or INCONCLUSIVE that is a finding: what was seen instead
    """

    sentence: str
    horizon: str
    checks: tuple[Check, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    explanation: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def outcome(self) -> str:
        """FAIL if any check fails, else INCONCLUSIVE if any is (or there is none), else PASS."""
        found = {check.outcome for check in self.checks}
        return FAIL if FAIL in found else PASS if found == {PASS} else INCONCLUSIVE

    @property
    def headline(self) -> str:
        """The sentence, with what was left undecided if nothing failed but something was."""
        open_ = [check for check in self.checks if check.outcome == INCONCLUSIVE]
        if self.outcome != INCONCLUSIVE or not open_ or (open_[0].note and open_[0].note in self.sentence):
            return self.sentence
        more = f" and {len(open_) - 1} more" if len(open_) > 1 else ""
        return f"undecided: {open_[0].name}{more} ({open_[0].note}); {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that JSON does not have become the strings "inf", "-inf" and "nan"."""
        return _plain(dataclasses.asdict(self) | {"outcome": self.outcome})

    @staticmethod
    def from_json(record: dict[str, Any]) -> Finding:
        """The inverse of `to_json`."""
        read = _numbers({key: value for key, value in record.items() if key != "outcome"})
        return Finding(
            **{
                **read,
                "checks": tuple(Check(**c) for c in read["checks"]),
                "tables": tuple(
                    Table(t["name"], tuple(t["columns"]), tuple(tuple(r) for r in t["rows"])) for t in read["tables"]
                ),
                "pictures": tuple(_picture(p) for p in read["pictures"]),
            }
        )


def _picture(record: dict[str, Any]) -> Picture:
    panels = tuple(Panel(**p) for p in record["panels"])
    series = tuple(Series(**_tuples(s)) for s in record["series"])
    return Picture(record["title"], record["caption"], panels, series)


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value
