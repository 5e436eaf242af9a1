"""The exit layer for a task as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from metastable.decimals import signed
from metastable.encoder.exit.labelled import FEWEST, FOLDS
from metastable.encoder.exit.result import NAMES, three
from metastable.encoder.exit.scores import RESAMPLES, SCORES, WIDER, Interval
from metastable.figures import look
from metastable.report.page import figure_block, render_page, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.exit.result import Exit

HEIGHT = 340
"""Height of the picture, in pixels."""


def write(found: Exit, path: str | Path) -> Path:
    """Write the report to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(found))


def render(found: Exit) -> str:
    """The report as HTML."""
    columns, rows = _table(found)
    return render_page(
        "exit.html.j2",
        found=found,
        sentences=found.sentences(),
        block=figure_block("depths", picture(found)),
        columns=columns,
        rows=rows,
        unit="documents" if found.counts["documents"] else "texts",
        fewest=FEWEST,
        folds=FOLDS,
        resamples=RESAMPLES,
        wider=f"{WIDER:g}",
        loss=f"{found.loss:g}",
        baseline=three(found.baseline),
        making=_making(found),
    )


def picture(found: Exit) -> go.Figure:
    """The score by depth with intervals, with the chosen layer marked."""
    table, name = found.layers, found.score
    word = NAMES[name]
    figure = look.plain(
        f"{word[0].upper()}{word[1:]} by depth",
        HEIGHT,
        f"{word[0].upper()}{word[1:]} of a linear probe at each depth, on texts that it was not trained on. Bars are "
        f"95 % intervals. The dashed line is full depth. {_large_point(found)}The table has the differences to full "
        "depth.",
    )
    full = float(table[name].iloc[-1])
    ends = [float(table["depth"].iloc[0]), float(table["depth"].iloc[-1])]
    look.curve(figure, ends, [full, full], "full depth", look.GREY, width=1, dash="dash", hoverinfo="skip")
    up, down = table[f"{name}_high"] - table[name], table[name] - table[f"{name}_low"]
    figure.add_scatter(
        x=table["depth"],
        y=table[name],
        error_y={"type": "data", "array": up, "arrayminus": down, "color": look.BLUE, "thickness": 1.5, "width": 4},
        mode="lines+markers",
        line={"color": look.BLUE, "width": 2},
        marker={"color": look.BLUE, "size": 7},
        name="each depth",
        hovertemplate="depth %{x}: %{y:.3f}<extra></extra>",
    )
    if mark := _mark(found):
        figure.add_scatter(
            x=[found.layer],
            y=[found.of_depth(found.layer)[0]],
            mode="markers",
            marker={"color": look.VERMILLION, "size": 15, "line": {"color": "white", "width": 2}},
            name=f"layer {found.layer}, {mark}",
            hovertemplate=f"layer %{{x}}, {mark}: %{{y:.3f}}<extra></extra>",
        )
    figure.update_xaxes(title={"text": "depth (number of layers)"}, dtick=1 if found.depth <= 16 else 2)
    figure.update_yaxes(title={"text": word})
    figure.update_layout(hovermode="closest")
    look.legend_below(figure)
    return figure


def _mark(found: Exit) -> str:
    """What the chosen layer is called in the picture and the table; empty if the verdict is that there is none."""
    if found.verdict == "unpredictable":
        return ""
    return "not enough" if found.verdict == "needed" and found.layer < found.depth else "chosen"


def _large_point(found: Exit) -> str:
    mark = _mark(found)
    what = "the chosen layer" if mark == "chosen" else f"layer {found.layer}, which is not enough"
    return f"The large point is {what}. " if mark else ""


def _table(found: Exit) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
    """The names of the columns; and for each depth its name and its cells, each a value and its interval."""
    names = list(SCORES[found.task])
    columns = ["depth", *(NAMES[name] for name in names), *(f"{NAMES[name]}, difference" for name in names)]
    rows, mark = [], _mark(found)
    for depth in found.layers["depth"]:
        place = f"{depth} ({mark})" if mark and depth == found.layer else str(depth)
        scores = [_with_interval(found.of_depth(depth, name), three) for name in names]
        changes = [
            _with_interval(found.of_depth(depth, name, difference=True), partial(signed, digits=3)) for name in names
        ]
        rows.append((place, scores + ([("–", "")] * len(names) if depth == found.depth else changes)))
    return columns, rows


def _with_interval(ends: Interval, shown: Callable[[float], str]) -> tuple[str, str]:
    value, low, high = map(shown, ends)
    return value, f"{low} to {high}"


def _making(found: Exit) -> dict[str, dict[str, Any]]:
    """The encoder, the texts and the versions, for the last section of the report."""
    counts = found.counts
    encoder = {"model": found.name, "family": found.family, "SHA-256 of the weights": found.fingerprint}
    texts = {
        "texts": counts["texts"],
        "texts without a word": counts["skipped"],
        "texts cut": counts["cut"],
        "labels": f"{len(found.classes)} classes" if found.classes else "numbers",
        "largest loss": f"{found.loss:g}",
        "seed": found.seed,
    }
    if counts["documents"]:
        texts = {"documents": counts["documents"], **texts}
    return {"Encoder": encoder, "Texts": texts, "Versions": found.made}
