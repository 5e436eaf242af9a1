"""The audit of an encoder, and the comparison of two, as one HTML file each that needs no network.

There are many heads, so the page draws them on demand: their numbers, spectra and heat maps are one block of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.io
from markupsafe import Markup

from metastable import figures
from metastable.encoder.columns import CHECKS, COLUMNS, SIZES, TEXT, meaning
from metastable.encoder.compare import COLUMNS as COMPARED
from metastable.figures.curves import PANELS, Classes
from metastable.figures.heads import MEASURES, median_of, written
from metastable.figures.look import CONFIG, caption, number, untitled
from metastable.figures.spectrum import spectrum_panels
from metastable.report.page import figure_block, render_page, target_of, write_page

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.encoder.audit import Audit
    from metastable.encoder.compare import Comparison

FIRST_COLUMN = "prediction"
"""The heat map that is shown first."""
UNUSUAL = 24
"""At most this many unusual values are listed; heads.csv has all of them."""
MARKS = {"met": "✓", "missed": "✗", "undecided": "?", "not applicable": "–"}
CLASSES = {"met": "holds", "missed": "fails", "undecided": "without", "not applicable": "without"}
PHASES = {
    "spread": "tokens are not close together, and the layer before did not bring them closer",
    "concentrating": "the layer before brought tokens closer together",
    "metastable": "tokens are close together and stay close",
    "terminal": "the tokens of a text are one cluster",
}
SHOWN = ("mean_cosine", "effective_rank", "update_length", "beta_median")
"""The columns of the table of layers, if the audit has them."""
ASSUMPTIONS = {
    "B invertible": "Scores distinguish all directions. The B of a head that is narrower than the model is never "
    "invertible; the directions that it does not see are left to other heads.",
    "λ₁ real": "Tokens go to fixed points. Otherwise they rotate in a plane and have no limit.",
    "λ₁ semisimple": "Tokens approach their limit exponentially. Otherwise they approach it more slowly.",
    "gap > 0": "One direction dominates the others. A smaller gap means slower convergence.",
    "Re λ₁ > 0 if B is singular": "The directions that the head sees outgrow those that it does not see. Otherwise the "
    "head does not concentrate tokens.",
    "M near normal": "Tokens approach their limit directly. Otherwise distances may first grow for a long time.",
    "eigenbasis conditioned": "Eigenvalues change little under small changes of the weights.",
    "terminal phase of V": "Late clusters narrow and come to rest. Otherwise they circle or come apart.",
    "scores linear": "Scores depend on pairs of tokens; biases that favour some tokens for all queries are small.",
}
"""Each assumption of the theory: what it implies, and what its failure means."""


def write(audit: Audit, path: str | Path) -> Path:
    """Write the report of an audit to `path`, completely or not at all. Missing folders are made."""
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
        making=_making(audit),
        glossary=_glossary(audit.heads),
    )


def write_comparison(comparison: Comparison, names: Sequence[str], path: str | Path) -> Path:
    """Write to `path` which heads moved between two checkpoints with these names, completely or not at all."""
    target = target_of(path)
    table = comparison.heads
    columns = ["rank", "layer", "head", *MEASURES, "beta_before", "beta_after", "prediction_after"]
    columns += ["largest_z"] if "largest_z" in table else []
    html = render_page(
        "comparison.html.j2",
        names=list(names),
        sentences=[capital(sentence) + "." for sentence in comparison.sentences()],
        block=figure_block("comparison", figures.comparison(table)),
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
    """The figures that need texts, if there are texts."""
    found = {}
    if audit.measured is not None:
        drawn = figures.depth_curves(audit.layers, PANELS, _other_layers(audit), _length_classes(audit))
        found["depth"] = figure_block("depth", drawn)
        found["lengths"] = figure_block("lengths", figures.lengths(audit.measured.lengths))
    if audit.loop is not None:
        loop = audit.loop
        drawn = figures.loop_curves(loop.curves, loop.layer, loop.trained_depth, loop.angle)
        found["loop"] = figure_block("loop", drawn)
    return found


def _other_layers(audit: Audit) -> dict[str, pd.DataFrame]:
    found = {} if audit.twin is None else {"random weights, same shape": audit.twin.layers}
    if audit.reference is not None:
        found[f"reference: {audit.reference.name}"] = audit.reference.layers
    return found


def _length_classes(audit: Audit) -> Mapping[str, Classes]:
    assert audit.measured is not None
    found = {}
    for name, sums in (audit.measured.layers | audit.measured.depths).items():
        found[name] = {n: (int(part.count().max()), part.mean()) for n, part in sums.by_length().items()}
    return found


def heat_map(heads: pd.DataFrame, column: str, twin: pd.DataFrame | None = None) -> go.Figure:
    """The heat map of a column of heads, with what the column means."""
    words, usual = meaning(column)
    return figures.heat_map(heads, column, twin, meaning=words, usual=usual, logarithmic=column in SIZES)


def head_median(heads: pd.DataFrame, column: str) -> str:
    """The median of a column over heads, or its most common word, in words."""
    return median_of(heads[column], positive=column in SIZES)


def _strip(audit: Audit) -> list[dict[str, Any]]:
    """Groups of neighbouring depths in one phase, with the mark of each depth."""
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
    """The same number for the twin with random weights and for the reference, if there are any."""
    others = (("random weights", audit.twin), ("reference", audit.reference))
    return [(name, found) for name, other in others if other is not None and (found := value(other)) is not None]


def _first_and_last(column: str) -> Callable[[Audit], str | None]:
    def value(audit: Audit) -> str | None:
        if column not in audit.layers:
            return None
        known = audit.layers[column].dropna()
        return f"{number(known.iloc[0])} → {number(known.iloc[-1])}" if len(known) else None

    return value


def _median(column: str) -> Callable[[Audit], str | None]:
    return lambda audit: head_median(audit.heads, column) if column in audit.heads else None


def _key_numbers(audit: Audit) -> list[dict[str, Any]]:
    """The numbers to quote, each with its meaning and with the numbers of the twin and the reference."""

    def time_spent(audit: Audit) -> str | None:
        return number(float(audit.layers["update_length"].sum())) if "update_length" in audit.layers else None

    def concentrating(audit: Audit) -> str:
        return f"{audit.heads['prediction'].str.startswith('concentrates').sum()} of {len(audit.heads)}"

    def layers_needed(audit: Audit) -> str:
        return head_median(audit.heads, "layers_to_concentrate").split(" (")[0]

    def fastest(audit: Audit) -> str:
        return number(float(audit.heads["layers_to_concentrate"].min()))

    asked: list[tuple[str, str, Callable[[Audit], str | None]]] = [
        ("mean cosine of tokens", "first → last depth; 1 if all tokens are equal", _first_and_last("mean_cosine")),
        ("effective rank", "first → last depth: directions in use", _first_and_last("effective_rank")),
        ("time spent", "attention updates of all layers, in token lengths", time_spent),
        ("heads that concentrate", "by weights alone; the others rotate or do neither", concentrating),
        (
            "layers needed",
            f"by the median head that concentrates; the model has {audit.shape['layers']}",
            layers_needed,
        ),
        ("inverse temperature β", "median head; larger means sharper attention", _median("beta")),
        ("attention entropy", "median head: 0 for one token, 1 for all tokens alike", _median("entropy")),
        ("share on special tokens", "attention of the median head on [CLS] and the like", _median("special_share")),
    ]
    if audit.measured is None:
        asked += [
            ("layers needed, fastest head", "alone and at zero temperature", fastest),
            ("longest step of a head", "‖V‖₂ of the median head, in token lengths per layer", _median("value_norm")),
            ("offset of the scores", "median head: biases relative to B; 0 in the theory", _median("offset")),
        ]
    found = []
    for name, what, value in asked:
        own = value(audit)
        if own is not None:
            found.append({"name": name, "value": own, "meaning": what, "beside": _beside(audit, value)})
    return found


def _layers(audit: Audit) -> dict[str, Any]:
    """The table of depths: phase, prediction, a few statistics with interval and twin, and the reason in words."""
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
        if column not in other.layers:
            return None
        known = other.layers[column].iloc[place : place + 1].dropna()
        return number(float(known.iloc[0])) if len(known) else None

    return {"value": number(float(row[column])), "interval": interval, "beside": _beside(audit, value)}


def _choices(heads: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """The columns that have a heat map, in groups: (name, label)."""
    labels = {column: name for name, column in CHECKS.items()}
    groups: dict[str, list[tuple[str, str]]] = {
        "weights": [], "on text": [], "on text, for each doubling of n": [], "assumptions of the theory": [],
    }  # fmt: skip
    for name in heads.columns:
        label = labels.get(name, name.removesuffix("_slope").replace("_", " "))
        if name in labels:
            groups["assumptions of the theory"].append((name, label))
        elif name.endswith("_slope"):
            groups["on text, for each doubling of n"].append((name, f"{label}, slope"))
        elif name not in ("layer", "head", "unfolded") and not name.endswith(("_low", "_high")):
            groups["weights" if name in COLUMNS else "on text"].append((name, label))
    return {group: names for group, names in groups.items() if names}


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
    """The data of the script: heat maps of all columns; numbers, checks and spectra of all heads."""
    names = [name for group in _choices(audit.heads).values() for name, _ in group]
    twin = None if audit.twin is None else audit.twin.heads
    maps = {name: _plain(heat_map(audit.heads, name, twin)) for name in names}
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
    """A figure as data, without its title. Without uids two pages of one audit are equal."""
    title, text = figure.layout.title.text, caption(figure)
    drawn = json.loads(plotly.io.to_json(untitled(figure), validate=False, remove_uids=True))
    return {"title": title, "caption": text, "data": drawn["data"], "layout": drawn["layout"]}


def _column(audit: Audit, name: str) -> dict[str, Any]:
    what, usual = meaning(name)

    def value(other: Audit) -> str | None:
        return head_median(other.heads, name) if name in other.heads else None

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
    """A number of a head, then its interval over texts and its slope in log₂ n, if there are any."""
    low, high, slope = (row.get(f"{name}_{part}", math.nan) for part in ("low", "high", "slope"))
    notes = [] if math.isnan(low) or math.isnan(high) else [f"{number(low)} to {number(high)}"]
    notes += [] if math.isnan(slope) else [f"{'+' if slope >= 0 else ''}{number(slope)} for each doubling of n"]
    return [written(row[name]), *notes]


def _glossary(heads: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(name, meaning, usual values) of every column of heads.csv except intervals and slopes."""
    names = [*COLUMNS, *(name for name in TEXT if name in heads and name not in COLUMNS)]
    return [(name, *meaning(name)) for name in names]


def capital(sentence: str) -> str:
    """The sentence with a capital letter at its start. A formula such as β = 3 stays as it is."""
    return sentence[:1].upper() + sentence[1:] if sentence[1:2].isalpha() else sentence


def head_sentence(row: pd.Series, layers: int) -> str:
    """What the theory predicts for a head from its weights alone, in words."""
    prediction, needed = str(row["prediction"]), float(row["layers_to_concentrate"])
    if prediction == "rotates":
        words = f"rotates tokens in a plane by {number(float(row['frequency']))} radians per layer, without a limit."
    elif prediction == "nowhere of its own":
        words = "does not concentrate tokens."
    elif math.isfinite(needed):
        alone = f"Alone and at zero temperature it would need about {number(needed)} layers; the model has {layers}."
        words = f"{prediction}. {alone}"
    else:
        words = f"{prediction}, at no exponential rate."
    late = {
        "narrows": "late clusters would narrow",
        "circles": "late clusters would circle",
        "spreads": "late clusters would come apart",
        "neither": "late clusters would neither narrow nor come apart",
    }.get(str(row["terminal"]))
    return f"By its weights this head {words}" + ("" if late is None else f" By V alone, {late}.")


def _making(audit: Audit) -> dict[str, list[tuple[str, str]]]:
    """The encoder, the texts, versions and settings, for the last section of the report."""
    shape = [(name.replace("_", " "), str(value)) for name, value in audit.shape.items()]
    shared = "all layers share their weights" if audit.tied else "each layer has its own weights"
    encoder = [("model", audit.name), ("family", audit.family), *shape, ("weights", shared)]
    encoder.append(("SHA-256 of the weights", audit.fingerprint))
    if audit.reference is not None:
        encoder.append(("reference", audit.reference.name))
    found = {"Encoder": encoder, "Texts": _texts(audit)}
    return {**found, "Versions and settings": [(str(key), str(value)) for key, value in audit.made.items()]}


def _texts(audit: Audit) -> list[tuple[str, str]]:
    if audit.measured is None:
        return [("texts", "none: this is an audit of the weights alone")]
    counts = audit.measured.counts
    kept = audit.measured.special == "include"
    twin = None if audit.twin is None else audit.twin.measured
    beside = [] if twin is None else [("texts measured with random weights", length(twin.counts.texts))]
    special = "belong to the cloud of tokens" if kept else "receive attention, but do not belong to the cloud of tokens"
    return [
        ("texts measured", length(counts.texts)),
        *beside,
        ("tokens", f"{length(counts.tokens)}, of them {length(counts.special)} special"),
        ("cut to the model's limit", length(counts.cut)),
        ("skipped, no word in them", length(counts.skipped)),
        ("special tokens", special),
        ("padding", "is never a token"),
    ]


def length(count: int) -> str:
    r"""A count with thin spaces between thousands.

    >>> length(1234567)
    '1\u202f234\u202f567'
    """
    return f"{count:,}".replace(",", "\u202f")
