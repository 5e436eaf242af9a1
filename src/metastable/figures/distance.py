"""The distance to the limit law over time: of one run with its terms, bound and phases, or of two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from metastable.errors import BadInput, SimulationStopped
from metastable.figures import look
from metastable.figures.observables import add_panel
from metastable.run.run import BaseRun, Run
from metastable.theory.phases import Phases
from metastable.transport import NoiseFloor

DIAMETER = 2.0
"""The largest chordal distance between two laws on the unit sphere."""
ROUNDING = 1e-9
"""Distances below this are rounding errors and count as 0, as in `phases`."""
PLACED = ("graded", "fibonacci", "equally_spaced")
"""Laws whose tokens are placed by a rule and are no random sample."""
DECADES_BELOW = 1.5
"""The axis ends this many powers of ten below the least distance, because the terms may fall without end."""
NO_PHASES = {"still": "hardly any change", "one time": "only one time saved"}
"""What stands above a run without phases."""
NARROWEST = 290
"""Width of the plotting area on a small phone, in pixels, for which the labels are laid out."""
MARKS = {"circle": "plateau begins", "diamond": "plateau ends"}
"""What the marks on the curves of two runs mean."""
SHORT_NAME = 15
"""Names of at most so many characters stand in two columns on a phone."""
BAR, BETWEEN_BARS = 18, 4
"""Height of a bar of phases and of the gap below it, in pixels."""
TWO_LINES = ((look.BLUE, "solid"), (look.VERMILLION, "dash"))
"""Colour and dash of the first and of the second of two runs."""


@dataclass
class DistanceCurves:
    """The distance of a run to its limit law, and what explains it. A part that does not exist is None.

    Attributes
    ----------
    placed : whether the tokens were placed by a rule and not drawn at random
    missing : for each part that does not exist, a sentence with the reason
    """

    distance: xr.DataArray | None = None
    laplace: xr.DataArray | None = None
    lyapunov: xr.DataArray | None = None
    certificate: xr.DataArray | None = None
    floor: NoiseFloor | None = None
    phases: Phases | None = None
    placed: bool = False
    missing: list[str] = field(default_factory=list)

    @property
    def bound(self) -> np.ndarray | None:
        """Certificate + Lyapunov term, (T,): at least the distance, by the triangle inequality."""
        if self.certificate is None or self.lyapunov is None:
            return None
        return np.asarray(self.certificate.values + self.lyapunov["upper"].values)

    @property
    def vacuous_from(self) -> float | None:
        """The first saved time at which the bound reaches the diameter of the sphere and says nothing."""
        if self.bound is None or self.certificate is None:
            return None
        above = np.flatnonzero(~(self.bound < DIAMETER))
        return float(self.certificate["time"][above[0]]) if len(above) else None


def distance_curves(run: BaseRun) -> DistanceCurves:
    """Everything that a run can say about its distance to the limit law."""
    found = DistanceCurves(placed=run.cloud.law["law"] in PLACED)
    if run.theory().no_limit:
        found.missing.append(f"There is no limit law to measure a distance to: {run.theory().no_limit}.")
        return found
    found.distance, found.phases = run.distance(), run.phases()
    if not isinstance(run, Run):
        found.missing.append("A mean-field run is no sample and has no tokens to follow: it has no noise floor.")
        found.missing.append("The Laplace term, the Lyapunov term and the bound follow tokens and are left out.")
        return found
    try:
        found.floor = run.noise_floor()
    except BadInput as reason:
        found.missing.append(f"No noise floor: {reason}.")
    try:
        found.laplace, found.lyapunov = run.laplace_term(), run.lyapunov_term()
    except (BadInput, SimulationStopped) as reason:
        found.missing.append(f"The Laplace term, the Lyapunov term and the bound are left out: {reason}.")
        return found
    if not np.isfinite(run.theory().lipschitz):
        found.missing.append("The bound is left out: B is singular, so its Lipschitz constant L is infinite.")
        return found
    try:
        found.certificate = run.certificate()
    except BadInput as reason:
        found.missing.append(f"The bound is left out: {reason}.")
    return found


def distance(run: BaseRun, curves: DistanceCurves | None = None) -> go.Figure:
    """W₂ from the tokens to the limit law, on a logarithmic axis, with its two terms, the bound and the phases.

    For a head without a limit law the figure says so and shows mean cosine and effective rank instead.

    curves : `distance_curves(run)`, if the caller has them already
    """
    c = curves or distance_curves(run)
    if c.distance is None or c.phases is None:
        return _without_limit(run)
    figure = look.plain("Distance to the limit law over time", 600, _caption(c))
    low = _lowest([c.distance, [c.floor.mean if c.floor else 0.0]], [c.laplace, c.lyapunov])
    _plateaus(figure, c.phases)
    _band(figure, c.distance, low)
    for values, name, colour, width in (
        (c.distance, "W₂ to the limit law", look.BLUE, 3.5),
        (c.laplace, "Laplace term: β against zero temperature", look.VERMILLION, 2),
        (c.lyapunov, "Lyapunov term: zero temperature to limit", look.GREEN, 2),
    ):
        if values is not None:
            look.curve(figure, values["time"].values, _positive(values), name, colour, width=width)
    _bound(figure, c)
    if c.floor is not None and c.floor.mean > 0:
        name = f"noise floor {look.number(c.floor.mean)}: two samples of the limit"
        look.curve(figure, [0, run.horizon], [c.floor.mean] * 2, name, look.GREY, dash="dot")
    rows = _shade(figure, c.phases)
    _axes(figure, run.horizon, low)
    figure.update_xaxes(unifiedhovertitle_text="t = %{x:.4g}")
    height = 470 + look.LEGEND_LINE * len(figure.data)
    figure.update_layout(height=height, margin_t=look.TITLE_HEIGHT + 4 + 17 * rows)
    return figure


def _axes(figure: go.Figure, horizon: float, low: float | None, columns: int = 1) -> None:
    """The axis of time, the legend, and a logarithmic axis of distances from `low` on, or none for low = None."""
    if low is not None:
        figure.update_yaxes(
            title_text="W₂ distance (chordal)",
            type="log",
            range=[np.log10(low), np.log10(1.1 * DIAMETER)],
            minor={"ticks": "outside", "ticklen": 3, "tickcolor": look.GREY},
            dtick=1,
            exponentformat="none" if low > 1e-4 else "power",
        )
    figure.update_xaxes(title_text="time t", range=[0, horizon], showgrid=False)
    figure.update_layout(hovermode="x unified")
    look.legend_below(figure, columns=columns)


def phase_intervals(phases: Phases) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the phases that the run saw, from 0 to its horizon; empty if nothing changed."""
    if phases.concentrated is None and phases.course in NO_PHASES:
        return []
    times = [0.0, phases.concentrated, phases.terminal]
    seen = [(name, t) for name, t in zip(look.PHASE_TINTS, times, strict=True) if t is not None]
    ends = [*(t for _, t in seen[1:]), phases.horizon]
    return [(name, begin, end) for (name, begin), end in zip(seen, ends, strict=True) if end > begin]


def _positive(values: Any) -> np.ndarray:
    """The values with NaN for those that a logarithmic axis cannot show: zeros and their rounding errors."""
    y = np.array(values, dtype=float)
    y[~(np.isfinite(y) & (y >= ROUNDING))] = np.nan
    return y


def _finite(*curves: Any) -> np.ndarray:
    """The numbers of all curves that a logarithmic axis can show."""
    y = np.concatenate([_positive(curve) for curve in curves])
    return y[np.isfinite(y)]


def _lowest(main: Sequence[Any], terms: Sequence[Any] = ()) -> float:
    """Lower end of the axis: below all values of the main curves, and as much of the terms as fits."""
    shown, everything = _finite(*main), _finite(*main, *(term for term in terms if term is not None))
    if len(everything) == 0:
        return 1e-3
    least = shown.min() if len(shown) else everything.min()
    return float(min(max(everything.min(), least * 10**-DECADES_BELOW) / 1.3, 0.1))


def _plateaus(figure: go.Figure, phases: Phases) -> None:
    """A broad pale line under each part of the curve where the distance hardly changes."""
    x = [t for plateau in phases.plateaus for t in (plateau.start, plateau.end, None)]
    y = [level for plateau in phases.plateaus for level in (plateau.level, plateau.level, None)]
    if x:
        below = {"hoverinfo": "skip", "hovertemplate": None, "zorder": -1, "legendrank": 2000}
        look.curve(figure, x, y, "at rest", look.PLATEAU, width=13, **below)


def _band(figure: go.Figure, curve: xr.DataArray, low: float) -> None:
    """The band between the lower and the upper bound of a distance that is not exact."""
    if np.allclose(curve["lower"], curve["upper"], rtol=1e-9, atol=1e-15):
        return
    lower, upper = (np.clip(curve[side].values, low, DIAMETER) for side in ("lower", "upper"))
    names = ("lower bound of W₂", "W₂ lies in here (not exact)")
    look.band(figure, curve["time"].values, lower, upper, look.BAND, names, hovertemplate="%{y:.3g}")


def _bound(figure: go.Figure, c: DistanceCurves) -> None:
    """min(bound, 2), which is itself a bound, up to the time where it becomes vacuous."""
    if c.bound is None or c.certificate is None:
        return
    times, y = c.certificate["time"].values, np.minimum(c.bound, DIAMETER)
    name = "bound, nothing fitted"
    if c.vacuous_from is not None:
        y = np.where(times > c.vacuous_from, np.nan, y)
        name += f"; vacuous from t = {look.number(c.vacuous_from)}"
    look.curve(figure, times, _positive(y), name, look.INK, dash="dash")


def _shade(figure: go.Figure, phases: Phases) -> int:
    """Shade and name the phases. Returns how many rows the names take."""
    row_ends = [-math.inf] * 3
    intervals = phase_intervals(phases)
    for name, begin, end in intervals:
        figure.add_vrect(begin, end, name=name, line_width=0, fillcolor=look.PHASE_TINTS[name], layer="below")
        if end - begin > 0.01 * phases.horizon:
            text = name if len(intervals) > 1 else "concentration, not complete"
            _label(figure, text, begin, end, phases.horizon, row_ends)
    if not intervals:
        _label(figure, NO_PHASES[phases.course], 0.0, phases.horizon, phases.horizon, row_ends)
    _transitions(figure, phases)
    return sum(end > -math.inf for end in row_ends)


def _label(figure: go.Figure, text: str, begin: float, end: float, horizon: float, row_ends: list[float]) -> None:
    """Name a phase above its interval, in the first row that has space for it on a phone.

    row_ends : where the last name of each row ends, in pixels
    """
    width, centre = 6.8 * len(text) + 10, 0.5 * (begin + end) / horizon * NARROWEST
    outside = centre + width / 2 > NARROWEST + 10
    left = NARROWEST - width if outside else centre - width / 2
    row = next(i for i, edge in enumerate(row_ends) if left >= edge)
    row_ends[row] = left + width
    place = {"x": end, "xanchor": "right"} if outside else {"x": 0.5 * (begin + end), "xanchor": "center"}
    place |= {"y": 1, "yref": "y domain", "yanchor": "bottom", "yshift": 2 + 17 * row}
    figure.add_annotation(text=text, showarrow=False, font={"size": 13, "color": look.INK}, **place)


def _transitions(figure: go.Figure, phases: Phases) -> None:
    """A vertical line where a phase begins, with its time on the outer side if there is space."""
    times = {"concentrated": phases.concentrated, "terminal": phases.terminal}
    seen = {name: t for name, t in times.items() if t is not None}
    space, sides = 0.22 * phases.horizon, {}
    if "concentrated" in seen:
        sides["concentrated"] = "right" if seen["concentrated"] > space else "left"
    if "terminal" in seen:
        sides["terminal"] = "left" if seen["terminal"] < phases.horizon - space else "right"
    crowded = len(set(sides.values())) < len(seen) and max(seen.values()) - min(seen.values()) < space
    for name, t in seen.items():
        figure.add_vline(t, name=f"{name} at", line={"color": look.GREY, "width": 1.5})
        if t >= 0.01 * phases.horizon:
            place = {"x": t, "xanchor": sides[name], "y": 0, "yref": "y domain", "yanchor": "bottom"}
            place["yshift"] = 18 if crowded and name == "terminal" else 0
            font = {"size": 13, "color": look.GREY}
            figure.add_annotation(text=f"t = {look.number(t)}", showarrow=False, font=font, **place)


def _caption(c: DistanceCurves) -> str:
    sentences = [
        "The blue line falls while tokens gather at the limit law, stays low on the metastable plateau and rises when "
        "clusters leave."
    ]
    if c.laplace is not None:
        sentences.append("It never exceeds the sum of the Laplace term and the Lyapunov term.")
    if c.floor is not None and c.floor.mean > 0:
        sentences.append(
            f"Dotted: the distance between two random samples of the limit law, {c.floor.size} tokens each."
        )
        sentences.append(
            "These tokens are a quadrature and no random sample, so distances below the dotted line are meaningful."
            if c.placed
            else "With another sample of tokens the distance would differ by about this much. The distance of these "
            "tokens to their own limit can be smaller."
        )
    return " ".join([*sentences, *c.missing])


def _without_limit(run: BaseRun) -> go.Figure:
    """Mean cosine and effective rank, under the reason why there is no limit law."""
    text = (
        "There is no limit law, so there is no distance to draw. Shown instead: the mean cosine between tokens (1 if "
        f"all are equal) and their effective rank (1 for one direction, {run.cloud.dim} if all are equally used)."
    )
    title = "No limit law to measure a distance to"
    keys = ("mean_cosine", "effective_rank")
    grid: dict[str, Any] = {"rows": 2, "cols": 1, "shared_xaxes": True, "vertical_spacing": 0.16}
    figure = look.plain(title, 520, text, **grid, subplot_titles=[key.replace("_", " ") for key in keys])
    figure.update_annotations({"x": 0, "xanchor": "left"})
    seen = run.observables()
    for row, key in enumerate(keys, start=1):
        add_panel(figure, run, seen, key, row, 1)
    figure.update_xaxes(title_text="time t", row=2, col=1)
    sentence = look.wrapped(f"Theory: {run.theory().no_limit}.", 46)
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom", "align": "left"}
    place |= {"yshift": 26, "xshift": -52}
    figure.add_annotation(text=sentence, name="no limit", showarrow=False, font={"size": 13}, **place)
    lines = sentence.count("<br>") + 1
    figure.update_layout(margin_t=look.TITLE_HEIGHT + 28 + 19 * lines, showlegend=False)
    return figure


def distances(runs: Sequence[Run], curves: Sequence[DistanceCurves], names: Sequence[str]) -> go.Figure:
    """W₂ to the limit law of two runs of one head, with the times at which their phases begin.

    Without a limit law the mean cosine between tokens is shown instead.

    curves : `distance_curves` of each run
    names : what distinguishes the runs, such as "β = 10" and "β = 1000"
    """
    horizon = max(run.horizon for run in runs)
    if any(c.distance is None for c in curves):
        reason = f"There is no limit law to measure a distance to: {runs[0].theory().no_limit}."
        text = f"{reason} The mean cosine is 1 if all tokens are equal."
        figure = look.plain("Mean cosine between tokens", 520, text)
        for run, name, (colour, dash) in zip(runs, names, TWO_LINES, strict=True):
            seen = run.observables()["mean_cosine"]
            look.curve(figure, seen["time"].values, seen.values, name, colour, width=3, dash=dash)
        figure.update_yaxes(title_text="mean cosine between tokens")
        _axes(figure, horizon, None)
        return figure
    text = (
        "W₂ of each run to the limit law of its own tokens. A circle marks where tokens have concentrated and the "
        "plateau begins, a diamond where it ends and the terminal phase begins. The two bars above the curves are the "
        "phases of the two runs, each framed in the colour of its run. Dotted: the noise floor, which is the distance "
        "between two random samples of the limit law."
    )
    figure = look.plain("Distance to the limit law", 560, text)
    floors = []
    for row, (c, name, (colour, dash)) in enumerate(zip(curves, names, TWO_LINES, strict=True)):
        assert c.distance is not None
        assert c.phases is not None
        _phase_bar(figure, c.phases, row, name, colour)
        y = _positive(c.distance)
        look.curve(figure, c.distance["time"].values, y, f"W₂, {name}", colour, width=3, dash=dash)
        _begins(figure, c, name, colour)
        floors.append((0.0 if c.floor is None else c.floor.mean, f"noise, {name}", colour))
    low = _lowest([*(c.distance for c in curves), [floor for floor, _, _ in floors]])
    if max(floors)[0] < 1.05 * min(floors)[0]:
        # The two lines could not be told apart.
        floors = [(floors[0][0], f"noise {look.number(floors[0][0])}", look.GREY)]
    for floor, name, colour in floors:
        if floor > 0:
            look.curve(figure, [0, horizon], [floor] * 2, name, colour, width=1.5, dash="dot")
    _explain_marks(figure)
    listed = [trace.name for trace in figure.data if trace.showlegend is not False]
    _axes(figure, horizon, low, columns=2 if max(map(len, listed)) <= SHORT_NAME else 1)
    # The legend leaves little height for the title of the axis.
    figure.update_yaxes(title_text="W₂")
    left = max(64, min(120, 7 * max(map(len, names)) + 14))
    figure.update_layout(margin={"l": left, "t": look.TITLE_HEIGHT + 2 * (BAR + BETWEEN_BARS)})
    return figure


def _phase_bar(figure: go.Figure, phases: Phases, row: int, run: str, colour: str) -> None:
    """The phases of one of two runs: a bar above the curves, with a frame and a name in the colour of the run."""
    low = BETWEEN_BARS + (BAR + BETWEEN_BARS) * (1 - row)
    place = {"yref": "paper", "ysizemode": "pixel", "yanchor": 1, "y0": low, "y1": low + BAR}
    intervals = phase_intervals(phases)
    for name, begin, end in intervals:
        line = {"color": colour, "width": 2}
        figure.add_shape(name=name, x0=begin, x1=end, fillcolor=look.PHASE_COLOURS[name], line=line, **place)
    if intervals:
        beside = {"x": 0, "xref": "paper", "xanchor": "right", "xshift": -4, "y": 1, "yref": "paper"}
        beside |= {"yanchor": "middle", "yshift": low + BAR / 2, "showarrow": False}
        figure.add_annotation(text=run, font={"size": 13, "color": colour}, **beside)


def _explain_marks(figure: go.Figure) -> None:
    """Entries of the legend for the marks and the phases that were drawn."""
    drawn = [symbol for trace in figure.data if trace.mode == "markers" for symbol in trace.marker.symbol]
    seen = {shape.name for shape in figure.layout.shapes}
    entries = [(MARKS[symbol], symbol, "white", 2) for symbol in MARKS if symbol in drawn]
    entries += [(name, "square", colour, 1) for name, colour in look.PHASE_COLOURS.items() if name in seen]
    for name, symbol, colour, width in entries:
        marker = {"size": 11, "symbol": symbol, "color": colour, "line": {"width": width, "color": look.INK}}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")


def _begins(figure: go.Figure, c: DistanceCurves, name: str, colour: str) -> None:
    """Markers where the phases of a run begin."""
    assert c.phases is not None
    level = max(c.phases.factor * c.phases.least, ROUNDING)
    marks = (("concentrated", c.phases.concentrated, "circle"), ("terminal", c.phases.terminal, "diamond"))
    seen = [(t, f"{what} from t = {look.number(t)}", symbol) for what, t, symbol in marks if t]
    if seen:
        times, words, symbols = zip(*seen, strict=True)
        figure.add_scatter(
            x=times,
            y=[level] * len(times),
            text=words,
            name=f"phases, {name}",
            mode="markers",
            marker={"size": 11, "symbol": symbols, "color": colour, "line": {"width": 2, "color": look.INK}},
            hovertemplate="%{text}<extra>" + name + "</extra>",
            showlegend=False,
        )
