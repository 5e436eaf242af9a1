"""The audit of an encoder, and the comparison of two, as one HTML file each that needs no network.

Heads are many, so the page draws them on demand: their numbers, spectra and heat maps lie in one block of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.io
from markupsafe import Markup

from metastable import figures
from metastable.encoder.columns import TEXT
from metastable.encoder.compare import COLUMNS as COMPARED
from metastable.encoder.report_words import ASSUMPTIONS, capital, head_sentence, making
from metastable.encoder.weights import CHECKS, COLUMNS
from metastable.figures.curves import PANELS
from metastable.figures.heads import MEASURES, meaning, median_of, spectrum_panels, written
from metastable.figures.look import CONFIG, caption, number, untitled
from metastable.report.page import figure_block, render_page, target_of, write_page

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.encoder.audit import Audit
    from metastable.encoder.compare import Comparison

FIRST_COLUMN = "prediction"
"""The heat map that is shown before another is chosen."""
UNUSUAL = 24
"""At most this many unusual values are written out; heads.csv has them all."""
MARKS = {"met": "✓", "missed": "✗", "undecided": "?", "not applicable": "–"}
CLASSES = {"met": "holds", "missed": "fails", "undecided": "without", "not applicable": "without"}
PHASES = {
    "spread": "tokens are neither close together nor just brought closer",
    "concentrating": "the layer before has brought tokens closer together",
    "metastable": "tokens are close together and stay so",
    "terminal": "the tokens of a text are one cluster",
}
SHOWN = ("mean_cosine", "effective_rank", "update_length", "beta_median")
"""The columns of the table of layers, where the audit has them."""


def write(audit: Audit, path: str | Path) -> Path:
    """Write the report of an audit to `path`, whole or not at all; missing folders are made."""
    target = target_of(path)
    return write_page(target, render(audit))


def render(audit: Audit) -> str:
    """The report as HTML."""
    said = {judgement.sentence for judgement in audit.verdict.layers}
    return render_page(
        "audit.html.j2",
        audit=audit,
        headline=capital(audit.verdict.headline),
        sentences=[capital(s) + "." for s in audit.verdict.sentences if s not in said],
        strip=_strip(audit),
        phases=PHASES,
        numbers=_key_numbers(audit),
        layers=_layers(audit),
        blocks=_blocks(audit),
        looped="" if audit.loop is None else capital(audit.loop.sentence()),
        choices=_choices(audit.heads),
        first=FIRST_COLUMN,
        unusual=_unusual(audit),
        data=embedded(_data(audit)),
        making=making(audit),
        glossary=_glossary(audit.heads),
    )


def write_comparison(comparison: Comparison, names: Sequence[str], path: str | Path) -> Path:
    """Write which heads moved between two checkpoints, `names` being theirs, to `path`, whole or not at all."""
    target = target_of(path)
    table = comparison.heads
    columns = ["rank", "layer", "head", *MEASURES, "beta_before", "beta_after", "prediction_after"]
    columns += ["largest_z"] if "largest_z" in table else []
    html = render_page(
        "comparison.html.j2",
        names=list(names),
        sentences=[capital(sentence) + "." for sentence in comparison.sentences()],
        block=figure_block("comparison", figures.comparison(comparison)),
        columns=[name.replace("_", " ") for name in columns],
        rows=[[written(row[name]) for name in columns] for _, row in table.iterrows()],
        glossary=COMPARED,
    )
    return write_page(target, html)


def embedded(data: Any) -> Markup:
    """JSON that is safe inside a script element: nothing in it can end the element or begin a comment.

    >>> print(embedded({"name": "</script><!--"}))
    {"name":"\\u003c/script\\u003e\\u003c!--"}
    """
    # ensure_ascii also takes care of U+2028 and U+2029, which old scripts read as ends of lines.
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _blocks(audit: Audit) -> dict[str, dict[str, Any]]:
    """The figures that are drawn at once: those on text, where there was text."""
    found = {}
    if any(name in audit.layers for name in PANELS):
        found["depth"] = figure_block("depth", figures.depth_curves(audit, PANELS))
    if audit.measured is not None:
        found["lengths"] = figure_block("lengths", figures.lengths(audit.measured))
    if audit.loop is not None:
        found["loop"] = figure_block("loop", figures.loop_curves(audit.loop))
    return found


def _strip(audit: Audit) -> list[dict[str, Any]]:
    """Neighbouring depths in one phase together, with the mark of each depth."""
    found = []
    for phase, group in groupby(audit.verdict.layers, key=lambda judgement: judgement.phase):
        depths = [
            {"depth": j.depth, "mark": MARKS[j.prediction], "status": CLASSES[j.prediction], "sentence": j.sentence}
            for j in group
        ]
        first, last = depths[0]["depth"], depths[-1]["depth"]
        where = f"depth {first}" if first == last else f"depths {first}–{last}"
        found.append({"phase": phase, "where": where, "depths": depths})
    return found


def _beside(audit: Audit, value: Callable[[Audit], str | None]) -> list[tuple[str, str]]:
    """The same number of the twin with random weights and of the reference, where there are such."""
    others = (("random weights", audit.twin), ("reference", audit.reference))
    return [(name, found) for name, other in others if other is not None and (found := value(other)) is not None]


def _at_the_end(column: str) -> Callable[[Audit], str | None]:
    def value(audit: Audit) -> str | None:
        if column not in audit.layers:
            return None
        known = audit.layers[column].dropna()
        return f"{number(known.iloc[0])} → {number(known.iloc[-1])}" if len(known) else None

    return value


def _time_spent(audit: Audit) -> str | None:
    return number(float(audit.layers["update_length"].sum())) if "update_length" in audit.layers else None


def _concentrating(audit: Audit) -> str:
    points = audit.heads["prediction"].str.startswith("concentrates").sum()
    return f"{points} of {len(audit.heads)}"


def _layers_needed(audit: Audit) -> str:
    return median_of(audit.heads, "layers_to_concentrate").split(" (")[0]


def _fastest(audit: Audit) -> str:
    return number(float(audit.heads["layers_to_concentrate"].min()))


def _median(column: str) -> Callable[[Audit], str | None]:
    return lambda audit: median_of(audit.heads, column) if column in audit.heads else None


def _key_numbers(audit: Audit) -> list[dict[str, Any]]:
    """The numbers to quote, each with what it means and those of the twin and the reference."""
    layers = audit.shape["layers"]
    asked: list[tuple[str, str, Callable[[Audit], str | None]]] = [
        ("mean cosine of tokens", "first → last depth; 1 is all alike", _at_the_end("mean_cosine")),
        ("effective rank", "first → last depth: directions in use", _at_the_end("effective_rank")),
        ("time spent", "attention updates of all layers, in token lengths", _time_spent),
        ("heads that concentrate", "by weights alone; others rotate or do neither", _concentrating),
        ("layers needed", f"by the median head that concentrates; there are {layers}", _layers_needed),
        ("inverse temperature β", "median head; the larger, the sharper", _median("beta")),
        ("attention entropy", "median head: 0 looks at one token, 1 at all", _median("entropy")),
        ("share on special tokens", "median head's attention on [CLS] and the like", _median("special_share")),
    ]
    if audit.measured is None:
        asked += [
            ("layers needed, fastest head", "alone and at zero temperature", _fastest),
            ("longest step of a head", "‖V‖₂ of the median head, in token lengths a layer", _median("value_norm")),
            ("offset of the scores", "median head: biases relative to B; 0 is the theory's", _median("offset")),
        ]
    found = []
    for name, what, value in asked:
        own = value(audit)
        if own is not None:
            found.append({"name": name, "value": own, "meaning": what, "beside": _beside(audit, value)})
    return found


def _layers(audit: Audit) -> dict[str, Any]:
    """The table of depths: phase, prediction, a few statistics with interval and twin, and the sentence."""
    table = audit.layers
    columns = [name for name in SHOWN if name in table]
    heads = [name for name in ("real", "complex", "negative") if name in table]
    rows = []
    judged = {judgement.depth: judgement for judgement in audit.verdict.layers}
    for place, (_, row) in enumerate(table.iterrows()):
        judgement = judged.get(int(row["depth"]))
        cells = [_layer_cell(audit, column, row, place) for column in columns]
        rows.append(
            {
                "depth": int(row["depth"]),
                "phase": judgement.phase if judgement else "",
                "prediction": judgement.prediction if judgement else "",
                "mark": MARKS[judgement.prediction] if judgement else "",
                "status": CLASSES[judgement.prediction] if judgement else "",
                "sentence": capital(judgement.sentence.split(": ", 1)[-1]) if judgement else "",
                "cells": cells,
                "heads": " / ".join(_count(row[name]) for name in heads),
            }
        )
    return {"columns": [name.replace("_", " ") for name in columns], "rows": rows, "judged": bool(judged)}


def _count(value: float) -> str:
    return "–" if math.isnan(value) else str(int(value))


def _layer_cell(audit: Audit, column: str, row: pd.Series, place: int) -> dict[str, Any]:
    low, high = (float(row.get(f"{column}_{side}", math.nan)) for side in ("low", "high"))
    interval = "" if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"

    def value(other: Audit) -> str | None:
        return number(float(other.layers[column].iloc[place])) if _has(other, column, place) else None

    return {"value": number(float(row[column])), "interval": interval, "beside": _beside(audit, value)}


def _has(audit: Audit, column: str, place: int) -> bool:
    table = audit.layers
    return column in table and place < len(table) and not math.isnan(float(table[column].iloc[place]))


def _choices(heads: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """The columns to choose a heat map from, in groups: (name, label)."""
    drawn = [c for c in heads.columns if c not in ("layer", "head", "unfolded") and not c.endswith(("_low", "_high"))]
    groups: dict[str, list[tuple[str, str]]] = {"weights": [], "on text": [], "on text, for each doubling of n": []}
    groups["assumptions of the theory"] = []
    for name in drawn:
        if name in CHECKS.values():
            groups["assumptions of the theory"].append((name, _check_name(name)))
        elif name in COLUMNS:
            groups["weights"].append((name, name.replace("_", " ")))
        elif name.endswith("_slope"):
            label = name.removesuffix("_slope").replace("_", " ")
            groups["on text, for each doubling of n"].append((name, f"{label}, slope"))
        else:
            groups["on text"].append((name, name.replace("_", " ")))
    return {group: names for group, names in groups.items() if names}


def _check_name(column: str) -> str:
    return next(name for name, found in CHECKS.items() if found == column)


def _unusual(audit: Audit) -> dict[str, Any]:
    table = audit.verdict.unusual
    rows = [
        {"place": place(row["layer"], row["head"]), "sentence": capital(str(row["sentence"]))}
        for _, row in table.head(UNUSUAL).iterrows()
    ]
    return {"rows": rows, "left": max(0, len(table) - UNUSUAL)}


def place(layer: Any, head: Any) -> str:
    """The anchor of a head's section."""
    return f"layer-{int(layer)}-head-{int(head)}"


def _data(audit: Audit) -> dict[str, Any]:
    """What the script draws from: heat maps of all columns, and numbers, checks and spectrum of all heads."""
    names = [name for group in _choices(audit.heads).values() for name, _ in group]
    twin = None if audit.twin is None else audit.twin.heads
    maps = {name: _plain(figures.heat_map(audit.heads, name, twin)) for name in names}
    spectra = audit.weights.spectra
    first = next(iter(spectra.values()))
    width = audit.shape["width"]
    numbers = [n for n in names if n not in CHECKS.values() and not n.endswith("_slope")]
    unusual: dict[str, list[str]] = {}
    for _, row in audit.verdict.unusual.iterrows():
        unusual.setdefault(place(row["layer"], row["head"]), []).append(capital(str(row["sentence"])))
    return {
        "maps": maps,
        "columns": [_column(audit, name) for name in numbers],
        "checks": [{"name": name, "meaning": ASSUMPTIONS[name]} for name in CHECKS],
        "heads": [_head(audit, row, numbers, unusual, width) for _, row in audit.heads.iterrows()],
        "spectrum": _plain(figures.eigenvalues(*first, "Eigenvalues of M and V", width)),
        "config": CONFIG,
        "first": FIRST_COLUMN,
    }


def _plain(figure: go.Figure) -> dict[str, Any]:
    """A figure as data, title apart. `remove_uids` keeps the page the same from one writing to the next."""
    title, text = figure.layout.title.text, caption(figure)
    drawn = json.loads(plotly.io.to_json(untitled(figure), validate=False, remove_uids=True))
    return {"title": title, "caption": text, "data": drawn["data"], "layout": drawn["layout"]}


def _column(audit: Audit, name: str) -> dict[str, Any]:
    what, usual = meaning(name)

    def value(other: Audit) -> str | None:
        return median_of(other.heads, name) if name in other.heads else None

    beside = [f"{who}: {found}" for who, found in _beside(audit, value)]
    label = name.replace("_", " ")
    return {"name": label, "meaning": what, "usual": usual, "median": value(audit), "beside": beside}


def _head(
    audit: Audit, row: pd.Series, numbers: list[str], unusual: dict[str, list[str]], width: int
) -> dict[str, Any]:
    layer, head = int(row["layer"]), int(row["head"])
    return {
        "place": place(layer, head),
        "layer": layer,
        "head": head,
        "sentence": head_sentence(row, audit.shape["layers"]),
        "values": [_value(row, name) for name in numbers],
        "checks": [str(row[column]) for column in CHECKS.values()],
        "unusual": unusual.get(place(layer, head), []),
        "spectrum": spectrum_panels(*audit.weights.spectra[layer, head], width),
    }


def _value(row: pd.Series, name: str) -> list[str]:
    """A head's number, and its interval over texts and its slope in log₂ n where it has them."""
    low, high, slope = (row.get(f"{name}_{part}", math.nan) for part in ("low", "high", "slope"))
    notes = [] if math.isnan(low) or math.isnan(high) else [f"{number(low)} to {number(high)}"]
    notes += [] if math.isnan(slope) else [f"{'+' if slope >= 0 else ''}{number(slope)} for each doubling of n"]
    return [written(row[name]), *notes]


def _glossary(heads: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(name, meaning, what to expect) of every column of heads.csv, intervals and slopes apart."""
    names = [*COLUMNS, *(name for name in TEXT if name in heads and name not in COLUMNS)]
    return [(name, *meaning(name)) for name in names]
