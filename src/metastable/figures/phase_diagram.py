"""Maps of a sweep: phase or distance over time and β, and any of its numbers over two of its axes.

Colours show what was measured. Two lines show what the theory predicts, on maps of time and β:

    log β line     t = log β/c + a. The slope comes from the rate c of the law: the distance falls like e^{−ct} to a
                   plateau of height of order 1/β. The offset a is the median, over the colder half of the runs, of
                   the measured times of concentration minus log β/c.
    departure      `theory.plateau(β).departure`, without a fitted number, for the uniform law in d = 2 and βD ≥ 11.5
"""

from __future__ import annotations

import html
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from metastable.errors import BadInput
from metastable.figures import look
from metastable.theory import Theory
from metastable.theory.phases import Phases

Floats = np.ndarray[Any, np.dtype[np.float64]]

PHASES = {"concentrating": "#F4DC8C", "metastable": look.GREEN, "terminal": look.VERMILLION}
"""Names and colours of the three phases, in the order in which a run goes through them."""
NAMES = {
    "phase": "Phase",
    "distance": "Distance W₂ to the limit law",
    "least": "Least distance",
    "least_time": "Time of least distance",
    "concentrated": "Time of concentration",
    "terminal": "Time of departure",
}
SHORT = {"time": "t", "beta": "β", "gamma": "γ", "n": "N"}
EVENTS = frozenset({"concentrated", "terminal"})
"""Times of events. A run that did not see an event may still see it later."""
LOGARITHMIC = frozenset({"distance", "least"})
"""Variables drawn on a logarithmic colour scale."""
MOST_CELLS, MOST_ON_A_LINE = 400, 50
"""Of an axis with more values only every second, third, … value is drawn."""
LOGARITHMIC_FROM = 15.0
"""An axis is logarithmic if its largest value is at least this many times its least value."""


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
    x, y : two axes of the sweep; one of them may be "time". The default of y is β, or the first axis without β
    theory : theory of the head, for the lines on maps of time and β, and for `level`
    time : the saved time nearest to it is shown, for a value that depends on time if neither axis is "time"
    level : `terminal_level` of the head, as a function of the axes that change the head
    at : values of the other axes. Without a value for seed, the median over seeds is shown (for phases the most
        frequent one); a run that did not see an event counts as later than all others
    """
    dims = [str(name) for name in data["status"].dims]
    y = y or ("beta" if "beta" in dims else next(iter(dims), "beta"))
    if level is None and theory is not None:
        level = xr.DataArray(terminal_level(theory))
    shown = _slice(data, value, (x, y), time, at, level)
    across, up = _Axis.of(data, x), _Axis.of(data, y)
    table = shown.transpose(y, x).values[np.ix_(up.order, across.order)]
    name = NAMES.get(value) or str(data[value].attrs.get("description", value)).capitalize()
    title = f"{name} over {SHORT.get(x, x)} and {SHORT.get(y, y)}"
    figure = look.plain(title, 560, "", _where(data, shown, at))
    words = _draw_cells(figure, table, across, up, name, None if value == "phase" else data[value])
    if (x, y) == ("time", "beta") and theory is not None:
        words += _draw_lines(figure, data, theory, up, at)
    figure.update_layout(
        meta={"caption": " ".join(words)},
        margin={"b": 132, "t": look.TITLE_HEIGHT + 34},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 13}},
    )
    for update, axis, called in ((figure.update_xaxes, across, x), (figure.update_yaxes, up, y)):
        update(title_text=_axis_title(data, called), showgrid=False, range=[axis.edges[0], axis.edges[-1]])
        update(tickvals=axis.ticks, ticktext=axis.labels)
    return figure


def terminal_level(theory: Theory) -> float:
    """W₂ between the limit laws ±e of M and ±v of V, √(2 − 2|⟨e, v⟩|): the distance at which the terminal phase ends.

    NaN if one of the two laws does not consist of two atoms.
    """
    if theory.no_limit or theory.dim != 1 or theory.terminal.dim != 1 or theory.terminal.rotates:
        return math.nan
    cosine = float((theory.attention.basis[:, 0].double() @ theory.terminal.basis[:, 0].double()).abs())
    return math.sqrt(max(0.0, 2 - 2 * cosine))


def regions(data: xr.Dataset, level: xr.DataArray | None = None) -> xr.DataArray:
    """At each point and saved time 0, 1, 2 for concentrating, metastable, terminal, and NaN if that is unknown.

    A run whose distance still falls at its end is concentrating throughout. The phase is unknown at points that failed,
    on curves that never change, and at times that a run did not reach. A metastable run that did not leave is unknown
    too if it could not be seen to leave, because 1.5 times its least distance (`Phases.factor`) is above `level`.

    level : the distance at which the terminal phase ends, see `terminal_level`
    """
    missing = [n for n in ("concentrated", "terminal", "least", "course", "distance") if n not in data]
    if missing:
        raise BadInput(f"the sweep has no {missing[0]}; a map of phases needs the outputs distance and phases")
    t, courses = data["time"], data["course"].attrs["flag_meanings"].split()
    falling, still = (data["course"] == courses.index(word) for word in ("falling", "still"))
    begin, end = data["concentrated"].where(~falling, math.inf), data["terminal"].fillna(math.inf)
    found = xr.where(t < begin, 0.0, xr.where((t < end) | falling, 1.0, 2.0))
    known = (data["status"] == 0) & (falling | data["concentrated"].notnull()) & ~(still & (begin > 0))
    if level is not None:
        unseen = data["terminal"].isnull() & (Phases.factor * data["least"] >= level)
        found = found.where(~(unseen & (found == 1)))
    found = found.where(known & data["distance"].notnull())
    return found.transpose(*data["distance"].dims)


def _slice(
    data: xr.Dataset,
    value: str,
    axes: tuple[str, str],
    time: float | None,
    at: dict[str, Any],
    level: xr.DataArray | None = None,
) -> xr.DataArray:
    """The value over two axes, with the other axes fixed or, for seeds, averaged."""
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
    rest = [name for name in map(str, found.dims) if name not in axes and name != "seed"]
    several = [name for name in rest if data.sizes[name] > 1]
    if several:
        values = ", ".join(_label(v) for v in data[several[0]].values.tolist()[:6])
        raise BadInput(f"the sweep has several {several[0]} ({values}); choose one: {several[0]}=...")
    found = found.isel(dict.fromkeys(rest, 0))
    if "seed" not in found.dims or "seed" in axes:
        return found
    if value != "phase":
        missing = math.inf if value in EVENTS else math.nan
        middle = found.fillna(missing).median("seed", skipna=True)
        return middle.where(np.isfinite(middle))
    votes = xr.concat([(found == code).sum("seed") for code in range(len(PHASES))], "code")
    return votes.argmax("code").astype(float).where(votes.sum("code") > 0)


def _nearest(data: xr.Dataset, name: str, wanted: Any) -> Any:
    values = data[name].values.tolist()
    close = [v for v in values if v == wanted or (_is_number(v) and _is_number(wanted) and math.isclose(v, wanted))]
    if not close:
        raise BadInput(f"{name} = {wanted!r} is not in the sweep; it has {', '.join(map(_label, values[:8]))}")
    return close[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _label(value: Any) -> str:
    return look.number(float(value)) if _is_number(value) else str(value)


@dataclass(frozen=True)
class _Axis:
    """Where the values of an axis lie on paper: in increasing order, on a logarithmic scale if wide, ∞ at the end.

    order : indices of the values in the dataset
    edges : the n + 1 sides of the cells
    """

    values: list[Any]
    order: list[int]
    edges: Floats
    ticks: list[float]
    labels: list[str]
    logs: bool = False

    @classmethod
    def of(cls, data: xr.Dataset, name: str) -> _Axis:
        values = data[name].values.tolist()
        if not all(map(_is_number, values)):
            order = list(range(len(values)))
            labels = [look.wrapped(html.escape(_label(v)), 16) for v in values]
            return cls(
                values, order, np.arange(len(values) + 1, dtype=np.float64) - 0.5, [float(i) for i in order], labels
            )
        order = sorted(range(len(values)), key=lambda i: values[i])
        order = order[:: math.ceil(len(order) / MOST_CELLS)]
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
        return cls(values, order, edges, ticks, labels, logs)


def _ticks(finite: Floats, logs: bool) -> tuple[list[float], list[str]]:
    """Places and labels of all values, or of about six round numbers between them."""
    if len(finite) <= 6:
        found = [float(v) for v in finite]
    elif logs:
        found = look.round_numbers(float(np.log10(finite[0])), float(np.log10(finite[-1])))
    else:
        least = float(finite[-1] - finite[0]) / 6
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))
        found = [float(v) for v in np.arange(math.ceil(finite[0] / step), finite[-1] / step + 1e-9) * step]
    return [math.log10(v) if logs else v for v in found], [look.number(v) for v in found]


def _draw_cells(
    figure: go.Figure, table: Floats, across: _Axis, up: _Axis, name: str, everywhere: xr.DataArray | None
) -> list[str]:
    """Colour the cells of a map. Returns the sentences of the caption.

    everywhere : the numbers of the whole sweep, so that all its maps have the same colour scale; None for phases
    """
    z = table
    if everywhere is None:
        names = list(PHASES)
        written = [["not decided" if math.isnan(v) else names[int(v)] for v in row] for row in table.tolist()]
        colours = look.word_colours(PHASES)
        sentences = [
            "Colours are the phase of each run at each time, read from its own distance curve.",
            "White: not computed, or the metastable and the terminal phase are too close to tell apart.",
        ]
    else:
        written = [[look.number(v) for v in row] for row in table.tolist()]
        known = everywhere.values[np.isfinite(everywhere.values)]
        logs = everywhere.name in LOGARITHMIC and bool((known > 0).any())
        known = np.log10(known[known > 0]) if logs else known
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if logs:
            z = np.full_like(table, math.nan)
            z[table == 0] = low
            z[table > 0] = np.log10(table[table > 0])
        colours = look.number_colours(low, high, logs)
        scale = ", on a logarithmic scale" if logs else ""
        sentences = [f"Colours: {name[0].lower()}{name[1:]}{scale}.", "White: not seen."]
    texts = [
        [f"{_label(x)}, {_label(y)}: {words}" for x, words in zip(across.values, row, strict=True)]
        for y, row in zip(up.values, written, strict=True)
    ]
    hover = {"text": texts, "hovertemplate": "%{text}<extra></extra>"}
    called = "phase" if everywhere is None else str(everywhere.name)
    figure.add_heatmap(x=across.edges, y=up.edges, z=look.cells(z), coloraxis="coloraxis", name=called, **hover)
    figure.update_layout(coloraxis=colours)
    return sentences


def _draw_lines(figure: go.Figure, data: xr.Dataset, theory: Theory, up: _Axis, at: dict[str, Any]) -> list[str]:
    """Draw the two lines of the theory. Returns a sentence on each."""
    sentences: list[str] = []
    betas = np.array([b for b in up.values if math.isfinite(b) and b > 1], dtype=float)
    if len(betas) > 1 and "concentrated" in data:
        rate = theory.law_rate()
        times = _slice(data, "concentrated", ("beta", "beta"), None, at).sel(beta=betas).values
        offsets = times - np.log(betas) / rate if 0 < rate < math.inf else np.array([math.nan])
        cold = offsets[len(offsets) // 2 :]
        if np.isfinite(cold).any():
            a = float(np.nanmedian(cold))
            _add_line(figure, up, np.log(betas) / rate + a, betas, "log β line", "solid")
            sentences.append(
                f"The solid line is t = log β/c + a with the rate c = {look.number(rate)} of the theory; the offset "
                f"a = {look.number(a)} is the median of the measured offsets on the colder half."
            )
    some = betas[:: math.ceil(len(betas) / MOST_ON_A_LINE)] if _is_uniform(data) else betas[:0]
    forecasts = []
    for beta in some.tolist():
        # There is no forecast for every head and every β.
        with suppress(BadInput):
            forecasts.append((beta, theory.plateau(beta).departure))
    if len(forecasts) > 1:
        where, when = np.array(forecasts).T
        _add_line(figure, up, when, where, "forecast departure", "dash")
        sentences.append("The dashed line is the theory's forecast of the departure, with no number fitted.")
    return sentences


def _add_line(figure: go.Figure, up: _Axis, times: Floats, betas: Floats, name: str, dash: str) -> None:
    y = np.log10(betas) if up.logs else betas
    shared: dict[str, Any] = {"hoverinfo": "skip", "hovertemplate": None, "legendgroup": name}
    look.curve(figure, times, y, "", "white", width=6, showlegend=False, **shared)
    look.curve(figure, times, y, name, look.BLACK, width=2.5, dash=dash, **shared)


def _is_uniform(data: xr.Dataset) -> bool:
    """Whether the tokens represent the uniform law, for which the forecast is made."""
    cloud = json.loads(data.attrs.get("configuration", "{}")).get("cloud") or {}
    return "law" not in data.dims and cloud.get("law", "uniform") in ("uniform", "graded", "circle")


def _where(data: xr.Dataset, shown: xr.DataArray, at: dict[str, Any]) -> str:
    """The values of the other axes, in words."""
    parts = [f"{name} = {_label(wanted)}" for name, wanted in at.items()]
    if "time" in shown.coords and "time" not in shown.dims:
        parts.append(f"t = {look.number(float(shown['time']))}")
    seeds = data.sizes.get("seed", 1)
    if seeds > 1 and "seed" not in at and "seed" not in shown.dims:
        parts.append(f"median over {seeds} seeds")
    return ", ".join(parts)


def _axis_title(data: xr.Dataset, name: str) -> str:
    if name in ("time", "beta"):
        return {"time": "time t", "beta": "β"}[name]
    described = str(data[name].attrs.get("description", SHORT.get(name, name))).split(";")[0].split(":")[0]
    return described + (" (degrees)" if data[name].attrs.get("units") == "degrees" else "")
