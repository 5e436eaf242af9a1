"""Maps of a sweep: distance or phase over time and β, and any of its numbers over two of its axes.

Colours are what was measured. Two lines are what the theory says, for maps of time and β (c and the forecast are of
`Theory`):

    log β line     t = log β/c + a, the slope from the law's rate c, the height a the median, over the colder half of
                   the runs, of the measured times of concentration: the distance falls like e^{−ct} to a plateau of
                   a height of order 1/β
    departure      `theory.plateau(β).departure`, with no fitted number, for the uniform law in d = 2 and from
                   βD = 11.5 on
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from metastable.errors import BadInput
from metastable.figures import look
from metastable.figures.regions import regions, terminal_level

if TYPE_CHECKING:
    from metastable.theory import Theory

Floats = np.ndarray[Any, np.dtype[np.float64]]

PHASES = {"concentrating": "#F4DC8C", "metastable": look.GREEN, "terminal": look.VERMILLION}
"""Names and colours of the three regions, in the order in which a run goes through them."""
UNDECIDED = "not computed, or metastable and terminal phase too close to be told apart"
TIMES = frozenset({"concentrated", "terminal"})
"""Where a run has none of these, it may still come later."""
SMALL = frozenset({"distance", "least"})
"""Drawn on a logarithmic colour scale."""
HEIGHT = 560
MOST, MOST_ON_A_LINE = 400, 50
"""Of more values of an axis only every second, third, … is drawn."""
LOGARITHMIC_FROM = 15.0
"""An axis whose largest value is this many times its least is logarithmic."""


def phase_diagram(
    data: xr.Dataset,
    value: str = "phase",
    /,
    x: str = "time",
    y: str | None = None,
    theory: Theory | None = None,
    time: float | None = None,
    level: xr.DataArray | None = None,
    **at: Any,
) -> go.Figure:
    """A map of a sweep's `value` over two of its axes.

    Parameters
    ----------
    data : what `sweep` returned
    value : "phase" (three regions), or a variable of the sweep: "distance", "least", "concentrated", "terminal", ...
    x, y : two axes of the sweep; one of them may be "time". y is β, or where that is no axis the first one
    theory : of the head, to draw the theory's lines into maps of time and β, and for `level`
    time : for "phase" and what else depends on time, when neither axis is "time": the saved time nearest to it
    level : `terminal_level` of the head, over the axes that make it, where there are such axes
    at : the values of the other axes. Over seeds that are not given, the median is taken (of phases the commonest); a
        run that never got there counts as one that gets there later than all
    """
    y = y or next((name for name in ("beta", *map(str, data["status"].dims)) if name in data["status"].dims), "beta")
    if level is None and theory is not None:
        level = xr.DataArray(terminal_level(theory))
    shown = _slice(data, value, (x, y), time, at, level)
    across, up = _Axis.of(data, x), _Axis.of(data, y)
    table = shown.transpose(y, x).values[np.ix_(up.order, across.order)]
    where = _where(data, shown, at)
    title, note = _titles(data, value, x, y, where)
    figure = look.plain(title, HEIGHT, "", note)
    # The same colours for every slice of a sweep, so that maps can be compared.
    colours = _Phase() if value == "phase" else _Number(_name(data, value), value in SMALL, data[value].values)
    _cells(figure, table, across, up, value, colours)
    words = [f"{colours.words} White: {UNDECIDED if value == 'phase' else 'not seen'}."]
    if (x, y) == ("time", "beta") and theory is not None:
        words += _lines(figure, data, theory, across, up, at)
    figure.update_layout(
        meta={"caption": " ".join(words)},
        coloraxis=colours.axis(),
        margin={"b": 132, "t": look.TITLE_HEIGHT + 34},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 13}},
    )
    figure.update_xaxes(title_text=_word(data, x), showgrid=False, range=[across.edges[0], across.edges[-1]])
    figure.update_yaxes(title_text=_word(data, y), showgrid=False, range=[up.edges[0], up.edges[-1]])
    figure.update_xaxes(tickvals=across.ticks, ticktext=across.labels)
    figure.update_yaxes(tickvals=up.ticks, ticktext=up.labels)
    return figure


def _slice(
    data: xr.Dataset,
    value: str,
    axes: tuple[str, str],
    time: float | None,
    at: dict[str, Any],
    level: xr.DataArray | None = None,
) -> xr.DataArray:
    """The value over two axes, everything else chosen or, for seeds, averaged."""
    dims = [str(name) for name in data["status"].dims]
    for name in (*axes, *at):
        if name not in (*dims, "time") or (name in axes and name in at):
            raise BadInput(f"{name!r} is no free axis of the sweep; it has {', '.join(dims)} and time")
    if value != "phase" and value not in data:
        known = [str(n) for n in data.data_vars if n not in ("status", "reason", "cloud_seed", "course")]
        raise BadInput(f"the sweep has no {value!r}; choose phase or one of {', '.join(known)}")
    found = regions(data, level) if value == "phase" else data[value].where(data["status"] == 0)
    if "time" in found.dims and "time" not in axes:
        moment = float(data["time"][-1]) if time is None else time
        found = found.sel(time=moment, method="nearest")
    if "time" in axes and "time" not in found.dims:
        raise BadInput(f"{value} is one number a run, not one a time; choose an axis of the sweep instead of time")
    found = found.sel({name: _nearest(data, name, wanted) for name, wanted in at.items()})
    left = [name for name in map(str, found.dims) if name not in axes and name != "seed"]
    several = [name for name in left if data.sizes[name] > 1]
    if several:
        values = ", ".join(_label(v) for v in data[several[0]].values.tolist()[:6])
        raise BadInput(f"the sweep has several {several[0]} ({values}); choose one: {several[0]}=...")
    found = found.isel(dict.fromkeys(left, 0))
    if "seed" not in found.dims or "seed" in axes:
        return found
    if value != "phase":
        missing = math.inf if value in TIMES else math.nan
        middle = found.fillna(missing).median("seed", skipna=True)
        return middle.where(np.isfinite(middle))
    votes = xr.concat([(found == code).sum("seed") for code in range(len(PHASES))], "code")
    return votes.argmax("code").astype(float).where(votes.sum("code") > 0)


def _nearest(data: xr.Dataset, name: str, wanted: Any) -> Any:
    values = data[name].values.tolist()
    close = [v for v in values if v == wanted or (_number(v) and _number(wanted) and math.isclose(v, wanted))]
    if not close:
        raise BadInput(f"{name} = {wanted!r} is not in the sweep; it has {', '.join(map(_label, values[:8]))}")
    return close[0]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class _Axis:
    """Where the values of an axis lie on paper: in increasing order, logarithms where they span much, ∞ at the end.

    order : the places of the values in the dataset
    positions, edges : middle of each cell, and the n + 1 sides
    """

    values: list[Any]
    order: list[int]
    positions: Floats
    edges: Floats
    ticks: list[float]
    labels: list[str]
    logs: bool = False

    @classmethod
    def of(cls, data: xr.Dataset, name: str) -> _Axis:
        values = data[name].values.tolist()
        if not all(map(_number, values)):
            places = np.arange(len(values), dtype=float)
            labels = [look.wrapped(html.escape(_label(v)), 16) for v in values]
            edges = np.arange(len(values) + 1, dtype=np.float64) - 0.5
            return cls(values, list(range(len(values))), places, edges, [*places], labels)
        order = sorted(range(len(values)), key=lambda i: values[i])
        order = order[:: math.ceil(len(order) / MOST)]
        values = [values[i] for i in order]
        finite = np.array([v for v in values if math.isfinite(v)], dtype=float)
        logs = bool(len(finite) > 1 and finite[0] > 0 and finite[-1] >= LOGARITHMIC_FROM * finite[0])
        places = np.log10(finite) if logs else finite
        step = float(np.median(np.diff(places))) if len(places) > 1 else 1.0
        if len(finite) < len(values):
            places = np.append(places, (places[-1] if len(places) else 0.0) + step)
        if len(places) == 1:
            edges = np.array([places[0] - 0.5, places[0] + 0.5])
        else:
            middle = (places[1:] + places[:-1]) / 2
            edges = np.array([2 * places[0] - middle[0], *middle, 2 * places[-1] - middle[-1]])
        if name == "time" and edges[0] < 0 <= places[0]:
            edges[0] = places[0]
        ticks, labels = _ticks(finite, logs)
        if len(finite) < len(values):
            ticks, labels = [*ticks, float(places[-1])], [*labels, "∞"]
        return cls(values, order, places, edges, ticks, labels, logs)

    def place(self, value: float) -> float:
        """Where a finite value lies that need not be one of the axis."""
        return math.log10(value) if self.logs else value


def _ticks(finite: Floats, logs: bool) -> tuple[list[float], list[str]]:
    if len(finite) <= 6:
        found = [float(v) for v in finite]
    elif logs:
        found = look.round_numbers(float(np.log10(finite[0])), float(np.log10(finite[-1])))
    else:
        step = _round_step(float(finite[-1] - finite[0]) / 6)
        found = [float(v) for v in np.arange(math.ceil(finite[0] / step), finite[-1] / step + 1e-9) * step]
    return [math.log10(v) if logs else v for v in found], [look.number(v) for v in found]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))


class _Phase:
    """Three colours for three regions."""

    words = "Colours are the phase that each run is in at each time, read off its own distance curve."

    def number(self, z: float) -> float:
        return z

    def written(self, z: float) -> str:
        return "not decided" if math.isnan(z) else list(PHASES)[int(z)]

    def axis(self) -> dict[str, Any]:
        steps = [[(i + side) / 3, c] for i, c in enumerate(PHASES.values()) for side in (0, 1)]
        bar = _bar() | {"tickvals": [0, 1, 2], "ticktext": list(PHASES)}
        return {"colorscale": steps, "cmin": -0.5, "cmax": 2.5, "colorbar": bar}


class _Number:
    """A colour scale that colour-blind readers can follow, logarithmic for distances."""

    def __init__(self, name: str, logs: bool, table: Floats) -> None:
        positive = table[np.isfinite(table) & (table > 0)]
        self.logs = logs and len(positive) > 0
        known = np.log10(positive) if self.logs else table[np.isfinite(table)]
        self.low, self.high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if self.high - self.low < 1e-12:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.words = f"Colours: {name[0].lower()}{name[1:]}{', on a logarithmic scale' if self.logs else ''}."

    def number(self, z: float) -> float:
        if not self.logs:
            return z
        return math.log10(z) if z > 0 else (self.low if z == 0 else math.nan)

    def written(self, z: float) -> str:
        return look.number(z)

    def axis(self) -> dict[str, Any]:
        bar = _bar()
        if self.logs:
            ticks = look.round_numbers(self.low, self.high)
            bar |= {"tickvals": [math.log10(t) for t in ticks], "ticktext": [look.number(t) for t in ticks]}
        return {"colorscale": "Cividis", "cmin": self.low, "cmax": self.high, "colorbar": bar}


def _bar() -> dict[str, Any]:
    bar: dict[str, Any] = {"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "thickness": 14}
    return bar | {"x": 0.5, "len": 1.0, "tickfont": {"size": 13}, "outlinewidth": 0, "nticks": 6}


def _cells(figure: go.Figure, table: Floats, across: _Axis, up: _Axis, value: str, colours: _Phase | _Number) -> None:
    z = [[None if math.isnan(c := colours.number(v)) else round(c, 5) for v in row] for row in table.tolist()]
    texts = [
        [f"{_label(x)}, {_label(y)}: {colours.written(v)}" for x, v in zip(across.values, row, strict=True)]
        for y, row in zip(up.values, table.tolist(), strict=True)
    ]
    figure.add_heatmap(
        x=across.edges,
        y=up.edges,
        z=z,
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        coloraxis="coloraxis",
        name=value,
    )


def _lines(
    figure: go.Figure, data: xr.Dataset, theory: Theory, across: _Axis, up: _Axis, at: dict[str, Any]
) -> list[str]:
    """Draw the theory's two lines; what to say about them."""
    said: list[str] = []
    betas = np.array([b for b in up.values if math.isfinite(b) and b > 1], dtype=float)
    if len(betas) > 1 and "concentrated" in data:
        rate = theory.law_rate()
        times = _slice(data, "concentrated", ("beta", "beta"), None, at).sel(beta=betas).values
        heights = times - np.log(betas) / rate if 0 < rate < math.inf else np.array([math.nan])
        cold = heights[len(heights) // 2 :]
        if np.isfinite(cold).any():
            a = float(np.nanmedian(cold))
            _line(figure, up, np.log(betas) / rate + a, betas, "log β line", "solid")
            said.append(
                f"The solid line is t = log β/c + a with the rate c = {look.number(rate)} of the theory; its height "
                f"a = {look.number(a)} is the median of what was measured on the colder half."
            )
    some = betas[:: math.ceil(len(betas) / MOST_ON_A_LINE)] if _uniform(data) else betas[:0]
    forecasts = [(b, f) for b in some if (f := _departure(theory, float(b))) is not None]
    if len(forecasts) > 1:
        where = np.array([b for b, _ in forecasts])
        _line(figure, up, np.array([f for _, f in forecasts]), where, "forecast departure", "dash")
        said.append("The dashed line is the theory's forecast of the departure, with no number fitted.")
    return said


def _line(figure: go.Figure, up: _Axis, times: Floats, betas: Floats, name: str, dash: str) -> None:
    y = [up.place(float(b)) for b in betas]
    common: dict[str, Any] = {"x": times, "y": y, "mode": "lines", "hoverinfo": "skip", "legendgroup": name}
    figure.add_scatter(**common, line={"width": 6, "color": "white"}, showlegend=False)
    figure.add_scatter(**common, line={"width": 2.5, "color": look.BLACK, "dash": dash}, name=name)


def _departure(theory: Theory, beta: float) -> float | None:
    try:
        return theory.plateau(beta).departure
    except BadInput:
        return None


def _uniform(data: xr.Dataset) -> bool:
    """Whether the tokens stand for the uniform law, which the forecast is about."""
    cloud = json.loads(data.attrs.get("configuration", "{}")).get("cloud") or {}
    return "law" not in data.dims and cloud.get("law", "uniform") in ("uniform", "graded", "circle")


def _where(data: xr.Dataset, shown: xr.DataArray, at: dict[str, Any]) -> str:
    """What was held fixed, in words."""
    parts = [f"{name} = {_label(wanted)}" for name, wanted in at.items()]
    if "time" in shown.coords and "time" not in shown.dims:
        parts.append(f"t = {look.number(float(shown['time']))}")
    seeds = data.sizes.get("seed", 1)
    if seeds > 1 and "seed" not in at and "seed" not in shown.dims:
        parts.append(f"median over {seeds} seeds")
    return ", ".join(parts)


def _name(data: xr.Dataset, value: str) -> str:
    names: dict[str, str] = {"phase": "Phase", "distance": "Distance W₂ to the limit law", "least": "Least distance"}
    names |= {"concentrated": "Time of concentration", "terminal": "Time of departure"}
    names["least_time"] = "Time of least distance"
    return names.get(value) or str(data[value].attrs.get("description", value)).capitalize()


def _titles(data: xr.Dataset, value: str, x: str, y: str, where: str) -> tuple[str, str]:
    return f"{_name(data, value)} over {_short(x)} and {_short(y)}", where


def _word(data: xr.Dataset, name: Hashable) -> str:
    short = _short(str(name))
    described = str(data[name].attrs.get("description", short)).split(";")[0].split(":")[0]
    units = {"degrees": " (degrees)"}.get(str(data[name].attrs.get("units")), "")
    return {"t": "time t", "β": "β"}.get(short, described + units)


def _short(name: str) -> str:
    return {"time": "t", "beta": "β", "n": "N"}.get(name, name)


def _label(value: Any) -> str:
    return look.number(float(value)) if _number(value) else str(value)
