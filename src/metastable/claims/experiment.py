"""The parts of every experiment: the claim, the finding with its checks, tables and pictures, and line fits."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats

from metastable.errors import BadInput
from metastable.head import Head

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"

Tell = Callable[[float], None]
"""An experiment calls it with the share of its work that is done, 0 to 1."""
Interval = tuple[float, float, float]
"""A measured value, and the lower and upper end of its interval."""
Item = TypeVar("Item")


class Size(NamedTuple):
    """The two values of an experiment's argument: for minutes, and for hours."""

    quick: Any
    full: Any


def size(quick: Item, full: Item) -> Item:
    """The default value of an experiment's argument; `Claim` replaces it by the value of its size."""
    return cast(Item, Size(quick, full))


@dataclass(frozen=True)
class Claim:
    """One statement of the theory, with the experiment that can refute it.

    Attributes
    ----------
    name : the word on the command line
    title, statement : for the report; the statement has the formula and its source ([paper], [derived], a reference)
    experiment : (head or None, tell, **sizes) → Finding. Without a head, it uses heads of its own. Defaults that were
        made by `size` have a quick and a full value
    obstacle : why a given head cannot be tested, or None if it can
    identity_only : whether the statement is about B = V = I only, so that no given head can be tested
    """

    name: str
    title: str
    statement: str
    experiment: Callable[..., Finding]
    obstacle: Callable[[Head], str | None] = lambda head: None
    identity_only: bool = False

    def __call__(
        self, head: Head | None = None, tell: Tell = lambda share: None, full: bool = False, **sizes: Any
    ) -> Finding:
        """Run the experiment in its quick or its full size; `sizes` replaces single sizes."""
        if head is not None:
            if self.identity_only:
                return not_tried(self.name, "this claim is about B = V = I only")
            if head.offset is not None:
                return not_tried(self.name, "the scores of this head have an offset, which the theory does not cover")
            if reason := self.obstacle(head):
                return not_tried(self.name, reason)
            head = head.to(torch.float64)
        for name, argument in inspect.signature(self.experiment).parameters.items():
            if isinstance(argument.default, Size):
                sizes.setdefault(name, argument.default.full if full else argument.default.quick)
        return self.experiment(head, tell, **sizes)


def claim(name: str, title: str, **attributes: Any) -> Callable[[Callable[..., Finding]], Claim]:
    """Make a `Claim` of an experiment: a decorator. The first paragraph of the docstring is the statement."""

    def made(experiment: Callable[..., Finding]) -> Claim:
        statement = (inspect.getdoc(experiment) or "").split("\n\n")[0]
        return Claim(name, title, " ".join(statement.split()), experiment, **attributes)

    return made


def told(items: Sequence[Item], tell: Tell, start: float = 0.0, end: float = 1.0) -> Iterator[Item]:
    """Loop over the items; after each, `tell` gets the share that is done, on the way from `start` to `end`."""
    for i, item in enumerate(items):
        yield item
        tell(start + (end - start) * (i + 1) / len(items))


@dataclass(frozen=True)
class ClaimCheck:
    """One number against its prediction.

    Attributes
    ----------
    name : what was measured, and for which head or law
    measured : the number, None if there is none
    low, high : the range of the prediction with its tolerance; either may be infinite
    outcome : PASS, FAIL or INCONCLUSIVE
    note : the reason, if the numbers alone do not give it
    """

    name: str
    measured: float | None
    low: float
    high: float
    outcome: str
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a picture."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    title: str = ""


@dataclass
class Series:
    """One curve of a picture. `style` is line, dashed, dotted, points or band (between low and high)."""

    name: str
    x: Any
    y: Any = ()
    style: str = "line"
    panel: int = 0
    low: Any = ()
    high: Any = ()

    def __post_init__(self) -> None:
        for values in ("x", "y", "low", "high"):
            setattr(self, values, np.asarray(getattr(self, values), dtype=float).tolist())


@dataclass
class Picture:
    """A figure as plain data: one to four panels, one below the other. `claims.report` draws it."""

    title: str
    caption: str
    panels: list[Panel]
    series: list[Series] = field(default_factory=list)

    def add(self, name: str, x: ArrayLike, *values: Any, **options: Any) -> None:
        """Add a curve; the arguments are those of `Series`."""
        self.series.append(Series(name, x, *values, **options))


@dataclass
class Finding:
    """The result of one experiment, which fills it while it runs.

    Attributes
    ----------
    sentence : the result in one sentence, with its most important numbers
    horizon : the times, β and sizes of the experiment ("t ≤ 12, β = 10 … 10⁴, N = 20 000")
    tables : rows by the name of the table; a row has a value for each column, and the column's name has its unit
    seconds : how long the experiment took
    """

    horizon: str
    sentence: str = ""
    checks: list[ClaimCheck] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False)

    def within(
        self, name: str, measured: float, low: float = -math.inf, high: float = math.inf, note: str = ""
    ) -> None:
        """Add a check: PASS if low ≤ measured ≤ high. NaN is a FAIL."""
        outcome = PASS if low <= measured <= high else FAIL
        self.checks.append(ClaimCheck(name, float(measured), float(low), float(high), outcome, note))

    def near(self, name: str, measured: float, tolerance: float, target: float = 1.0) -> None:
        """Add a check: PASS if the relative error of `measured` is at most `tolerance`."""
        self.within(name, measured, (1 - tolerance) * target, (1 + tolerance) * target)

    def overlapping(self, name: str, interval: Interval, low: float, high: float, note: str = "") -> None:
        """Add a check of a measured (value, lower, upper) against [low, high].

        FAIL if the interval lies outside. PASS if the value is inside and the interval is not longer than [low, high].
        INCONCLUSIVE otherwise.
        """
        value, lower, upper = (float(x) for x in interval)
        touches = upper >= low and lower <= high
        vague = touches and upper - lower > high - low
        outcome = PASS if low <= value <= high and not vague else INCONCLUSIVE if touches else FAIL
        error = f"interval {lower:.4g} to {upper:.4g}"
        note = f"{error}; {note}" if note else error
        self.checks.append(ClaimCheck(name, value, float(low), float(high), outcome, note))

    def slope(
        self, name: str, x: ArrayLike, y: ArrayLike, low: float, high: float, too_few: str = "", least: int = 3
    ) -> FittedLine | None:
        """Add a check of the slope of the line through the points; undecided, and None, for fewer than `least`."""
        if len(np.asarray(x)) < least:
            self.undecided(name, too_few)
            return None
        fit = line(x, y)
        self.overlapping(name, fit.interval, low, high)
        return fit

    def undecided(self, name: str, note: str, measured: float | None = None) -> None:
        """Add a check that could not be made, with the reason."""
        self.checks.append(ClaimCheck(name, measured, -math.inf, math.inf, INCONCLUSIVE, note))

    def row(self, table: str, values: dict[str, Any]) -> None:
        """Add a row to a table."""
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
        self.tables.setdefault(table, []).append(plain)

    def picture(self, title: str, caption: str, *panels: Panel) -> Picture:
        """Add a picture without curves."""
        self.pictures.append(Picture(title, caption, list(panels)))
        return self.pictures[-1]

    @property
    def outcome(self) -> str:
        """FAIL if any check fails, else INCONCLUSIVE if any check is (or there is none), else PASS."""
        found = {check.outcome for check in self.checks}
        return FAIL if FAIL in found else PASS if found == {PASS} else INCONCLUSIVE

    @property
    def tally(self) -> str:
        """How many checks passed, in words."""
        return f"{sum(check.outcome == PASS for check in self.checks)} of {len(self.checks)} checks"

    @property
    def headline(self) -> str:
        """The sentence; if the outcome is INCONCLUSIVE, the undecided checks come first."""
        undecided = [check for check in self.checks if check.outcome == INCONCLUSIVE]
        if self.outcome != INCONCLUSIVE or not undecided or (undecided[0].note and undecided[0].note in self.sentence):
            return self.sentence
        more = f" and {len(undecided) - 1} more" if len(undecided) > 1 else ""
        return f"undecided: {undecided[0].name}{more} ({undecided[0].note}); {self.sentence}"

    @property
    def explanation(self) -> str:
        """The checks that did not pass, with their reasons or numbers."""
        unmet = [check for check in self.checks if check.outcome != PASS]
        return "; ".join(f"{c.name}: {c.note or f'{c.measured:.4g}, not {c.low:.4g} to {c.high:.4g}'}" for c in unmet)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; infinities are still numbers."""
        tables = [
            {"name": name, "columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
            for name, rows in self.tables.items()
        ]
        return dataclasses.asdict(self) | {"tables": tables, "explanation": self.explanation, "outcome": self.outcome}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Finding:
        """The inverse of `to_json`; infinities may be the strings "inf", "-inf" and "nan"."""
        read = _numbers(record)
        found = Finding(read["horizon"], read["sentence"], [ClaimCheck(**check) for check in read["checks"]])
        found.seconds = read["seconds"]
        for table in read["tables"]:
            found.tables[table["name"]] = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for drawn in read["pictures"]:
            picture = found.picture(drawn["title"], drawn["caption"], *(Panel(**panel) for panel in drawn["panels"]))
            picture.series = [Series(**series) for series in drawn["series"]]
        return found


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def not_tried(what: str, reason: str) -> Finding:
    """The finding of an experiment that does not apply to the given head."""
    found = Finding("nothing was run", f"not tried: {reason}")
    found.undecided(what, reason)
    return found


class FittedLine(NamedTuple):
    """y ≈ slope·x + offset, with the confidence interval of the slope and the root mean square of the residuals."""

    slope: float
    low: float
    high: float
    offset: float
    rms: float

    @property
    def interval(self) -> Interval:
        return self.slope, self.low, self.high

    def __call__(self, x: ArrayLike) -> np.ndarray:
        return self.slope * np.asarray(x, dtype=float) + self.offset


def line(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> FittedLine:
    """Fit by least squares; the interval is Student's t of the slope, so curvature in the points widens it.

    >>> found = line([0, 1, 2, 3], [1, 3, 5, 7])
    >>> round(found.slope, 6), round(found.offset, 6)
    (2.0, 1.0)
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 3 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise BadInput(f"a line with its interval needs three or more finite points, not {a.shape} and {b.shape}")
    fit = stats.linregress(a, b)
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(a) - 2) * fit.stderr)
    residuals = b - (fit.slope * a + fit.intercept)
    slope = float(fit.slope)
    return FittedLine(slope, slope - reach, slope + reach, float(fit.intercept), float(np.sqrt(np.mean(residuals**2))))


def first_below(times: np.ndarray, values: np.ndarray, level: float) -> float:
    """The first time at which the values are at most `level`, interpolated linearly; inf if they never are.

    >>> first_below(np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 1.0]), 2.0)
    1.5
    """
    below = np.flatnonzero(values <= level)
    if len(below) == 0:
        return math.inf
    k = int(below[0])
    if k == 0:
        return float(times[0])
    share = (values[k - 1] - level) / (values[k - 1] - values[k])
    return float(times[k - 1] + share * (times[k] - times[k - 1]))
