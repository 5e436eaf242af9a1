"""The audit of an encoder, and the comparison of two, as one HTML file each that needs no network.

There are many heads, so the page draws them on demand: their numbers, spectra and heat maps are one block of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.io
from jinja2.utils import htmlsafe_json_dumps

from metastable import figures
from metastable.decimals import decimals
from metastable.encoder.checks import summary, usual
from metastable.encoder.columns import CHECKS, COLUMNS, SIZES, TEXT, meaning
from metastable.encoder.compare import COLUMNS as COMPARED
from metastable.figures.curves import PANELS
from metastable.figures.heads import MEASURES, median_of, written
from metastable.figures.look import CONFIG, caption, number, untitled
from metastable.figures.spectrum import spectrum_panels
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.encoder.audit import Audit
    from metastable.encoder.compare import Comparison

FIRST_COLUMN = "prediction"
"""The heat map that is shown first."""
FIRST_PANELS = ("hidden_cosine", "effective_rank")
"""The curves of the first picture."""
UNUSUAL = 24
"""At most this many unusual values are listed; heads.csv has all of them."""
MARKS = {
    "met": ("✓", "holds"),
    "missed": ("✗", "without"),
    "undecided": ("?", "without"),
    "not applicable": ("–", "without"),
}
"""The sign of an outcome, and its class in style.css."""
PHASES = {
    "spread": "tokens are not close together, and the layer before lowered their spread, about 1 − mean cosine, by at "
    "most 5 % or within the error",
    "concentrating": "the layer before lowered the spread of the tokens by more than 5 % and beyond the error",
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
FORECASTS = {
    "hidden_cosine": "cosine of hidden states",
    "effective_rank": "effective rank",
    "length": "cosine, whole texts",
    "removal": "effect of removing a layer",
    "loop": "dispersion in the loop",
}
"""The entries of the ledger, by key."""
METHODS = {
    "hidden_cosine": "Attention alone: the layers of the second half are replaced by their attention heads, without "
    "biases, positions and perceptron, and start from the tokens of the middle depth. Baselines: no change since the "
    "middle depth, and the straight line through the depths before it.",
    "length": "Extrapolation from halves and quarters: the cosine changes by the same amount for each doubling of the "
    "number of tokens. Baseline: no change since the first half of the text.",
    "removal": "Linear response: a small part of the layer's update is taken away, the change of the mean last hidden "
    "state is measured, and it is scaled up to the whole update. The effect is 1 − cosine between the mean last hidden "
    "states with and without the layer. Baselines: block influence, 1 − cosine between a token before and after the "
    "layer, and its mean over layers.",
    "loop": "Geometric extrapolation: each step changes the dispersion by a fixed multiple of the change before, which "
    "the first steps give. Baselines: no change since the last of these steps, and the straight line through them.",
}
"""How each entry of the ledger is made, by key; the effective rank is made like the cosine."""
PLACES = {"hidden_cosine": "depth", "effective_rank": "depth", "removal": "layer", "loop": "step"}
"""What the curves of the ledger are over."""
LATE = {
    "narrows": "late clusters would narrow",
    "circles": "late clusters would circle",
    "spreads": "late clusters would come apart",
    "neither": "late clusters would neither narrow nor come apart",
}
"""What V alone does, by the column `terminal`."""


def write(audit: Audit, path: str | Path) -> Path:
    """Write the report of an audit to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(audit))


def render(audit: Audit) -> str:
    """The report as HTML."""
    said = {judgement.sentence for judgement in audit.verdict.layers}
    found, checks = audit.verdict.unusual, audit.checks()
    unusual = [(place(row.layer, row.head), capital(row.sentence)) for row in found.itertuples()]
    return render_page(
        "audit.html.j2",
        audit=audit,
        name=short_name(audit.name),
        headline=capital(audit.verdict.headline),
        sentences=[capital(s) + "." for s in audit.verdict.sentences],
        theory=[capital(s) + "." for s in audit.verdict.theory if s not in said],
        ladder=[] if audit.ladder is None else [capital(s) + "." for s in audit.ladder.sentences()],
        ledger=_ledger(audit),
        checks=checks,
        summary=summary(checks),
        audited=usual()["encoders"],
        strip=[(phase, list(group)) for phase, group in groupby(audit.verdict.layers, key=lambda j: j.phase)],
        marks=MARKS,
        phases=PHASES,
        numbers=_key_numbers(audit),
        layers=_layers(audit),
        blocks=_blocks(audit),
        looped="" if audit.loop is None else capital(audit.loop.sentence()),
        choices=_choices(audit.heads),
        first=FIRST_COLUMN,
        unusual=unusual[:UNUSUAL],
        left=max(0, len(unusual) - UNUSUAL),
        # Nothing in this JSON can end its script element or begin a comment.
        data=htmlsafe_json_dumps(_data(audit, unusual), allow_nan=False, separators=(",", ":")),
        making=_making(audit),
        glossary=_glossary(audit.heads),
    )


def write_comparison(comparison: Comparison, names: Sequence[str], path: str | Path) -> Path:
    """Write to `path` which heads moved between two checkpoints with these names, completely or not at all."""
    target, table = target_of(path), comparison.heads
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


def _blocks(audit: Audit) -> dict[str, dict[str, Any]]:
    """The figures that need texts, if there are texts."""
    found = {}
    if audit.measured is not None:
        others = {} if audit.twin is None else {"random weights, same shape": audit.twin.layers}
        if audit.reference is not None:
            others[f"reference: {audit.reference.name}"] = audit.reference.layers
        by_length = {}
        for name, sums in (audit.measured.layers | audit.measured.depths).items():
            by_length[name] = {n: (int(part.count().max()), part.mean()) for n, part in sums.by_length().items()}
        first = figures.depth_curves(audit.layers, FIRST_PANELS, others, by_length, "How tokens move with depth")
        found["first"] = figure_block("first", first)
        rest = tuple(name for name in PANELS if name not in FIRST_PANELS)
        found["depth"] = figure_block("depth", figures.depth_curves(audit.layers, rest, others, by_length))
        found["lengths"] = figure_block("lengths", figures.lengths(audit.measured.lengths))
    if audit.ladder is not None:
        beside = None if audit.twin is None or audit.twin.ladder is None else audit.twin.ladder.wide()
        found["ladder"] = figure_block("ladder", figures.ladder_map(audit.ladder.wide(), beside))
    if audit.ledger is not None and len(audit.ledger.curves):
        found["ledger"] = figure_block("ledger", figures.ledger_curves(audit.ledger.curves, FORECASTS, PLACES))
    if audit.loop is not None:
        loop = audit.loop
        drawn = figures.loop_curves(loop.curves, loop.layer, loop.trained_depth, loop.angle)
        found["loop"] = figure_block("loop", drawn)
    return found


def _ledger(audit: Audit) -> dict[str, Any] | None:
    """Sentences and table of the forecasts; None if there are none."""
    if audit.ledger is None:
        return None
    rows = [
        {
            "name": FORECASTS[row.key],
            "method": row.method,
            "baseline": row.baseline,
            "skill": "undefined" if math.isnan(row.skill) else decimals(row.skill, 2),
            "interval": ""
            if math.isnan(row.skill)
            else " to ".join(decimals(x, 2) for x in (row.skill_low, row.skill_high)),
            "numbers": [number(x) for x in (row.forecast, row.measured, row.error, row.baseline_error)],
            "verdict": row.verdict,
            "texts": row.texts,
        }
        for row in audit.ledger.entries.itertuples()
    ]
    said = [capital(sentence) + "." for sentence in audit.ledger.sentences()]
    left_out = [capital(words) + "." for words in audit.ledger.left_out]
    methods = [what for key, what in METHODS.items() if (audit.ledger.entries["key"] == key).any()]
    return {"sentences": said, "rows": rows, "left_out": left_out, "methods": methods}


def heat_map(heads: pd.DataFrame, column: str, twin: pd.DataFrame | None = None) -> go.Figure:
    """The heat map of a column of heads, with what the column means."""
    words, usual = meaning(column)
    return figures.heat_map(heads, column, twin, meaning=words, usual=usual, logarithmic=column in SIZES)


def _beside(audit: Audit, value: Callable[[Audit], str | None]) -> list[tuple[str, str]]:
    """The same number for the twin with random weights and for the reference, if there are any."""
    others = (("random weights", audit.twin), ("reference", audit.reference))
    return [(name, found) for name, other in others if other is not None and (found := value(other)) is not None]


def _first_and_last(column: str, audit: Audit) -> str | None:
    known = audit.layers.get(column, pd.Series()).dropna()
    return f"{number(known.iloc[0])} → {number(known.iloc[-1])}" if len(known) else None


def _median(column: str, audit: Audit) -> str | None:
    """The median of a column over heads, or its most common word; None if the audit does not have the column."""
    return median_of(audit.heads[column], positive=column in SIZES) if column in audit.heads else None


def _total(column: str, audit: Audit) -> str | None:
    return number(float(audit.layers[column].sum())) if column in audit.layers else None


def _concentrating(column: str, audit: Audit) -> str:
    return f"{audit.heads[column].str.startswith('concentrates').sum()} of {len(audit.heads)}"


def _finite_median(column: str, audit: Audit) -> str:
    return median_of(audit.heads[column], positive=True).split(" (")[0]


def _least(column: str, audit: Audit) -> str:
    return number(float(audit.heads[column].min()))


def _key_numbers(audit: Audit) -> list[dict[str, Any]]:
    """The numbers to quote, each with its meaning and with the numbers of the twin and the reference."""
    needed = f"by the median head that concentrates; the model has {audit.shape['layers']}"
    asked: list[tuple[str, str, Callable[[str, Audit], str | None], str]] = [
        ("mean cosine of tokens", "first → last depth; 1 if all tokens are equal", _first_and_last, "mean_cosine"),
        ("effective rank", "first → last depth: directions in use", _first_and_last, "effective_rank"),
        ("time spent", "attention updates of all layers, in token lengths", _total, "update_length"),
        ("heads that concentrate", "by weights alone; the others rotate or do neither", _concentrating, "prediction"),
        ("layers needed", needed, _finite_median, "layers_to_concentrate"),
        ("inverse temperature β", "median head; larger means sharper attention", _median, "beta"),
        ("attention entropy", "median head: 0 for one token, 1 for all tokens alike", _median, "entropy"),
        ("share on special tokens", "attention of the median head on [CLS] and the like", _median, "special_share"),
    ]
    if audit.measured is None:
        asked += [
            ("layers needed, fastest head", "alone and at zero temperature", _least, "layers_to_concentrate"),
            ("longest step of a head", "‖V‖₂ of the median head, in token lengths per layer", _median, "value_norm"),
            ("offset of the scores", "median head: biases relative to B; 0 in the theory", _median, "offset"),
        ]
    found = []
    for name, what, function, column in asked:
        own = function(column, audit)
        if own is not None:
            beside = _beside(audit, partial(function, column))
            found.append({"name": name, "value": own, "meaning": what, "beside": beside})
    return found


def _layers(audit: Audit) -> dict[str, Any]:
    """The table of depths: phase, prediction, a few statistics with interval and twin, and the reason in words."""
    table = audit.layers
    columns = [name for name in SHOWN if name in table]
    judged = {judgement.depth: judgement for judgement in audit.verdict.layers}
    rows = []
    for place, (_, row) in enumerate(table.iterrows()):
        judgement = judged.get(int(row["depth"]))
        counts = row[["real", "complex", "negative"]]
        rows.append(
            {
                "depth": int(row["depth"]),
                "judgement": judgement,
                "reason": capital(judgement.sentence.split(": ", 1)[-1]) if judgement else "",
                "cells": [_layer_cell(audit, column, row, place) for column in columns],
                "heads": " / ".join("–" if math.isnan(count) else str(int(count)) for count in counts),
            }
        )
    return {"columns": [name.replace("_", " ") for name in columns], "rows": rows, "judged": bool(judged)}


def _layer_cell(audit: Audit, column: str, row: pd.Series, place: int) -> dict[str, Any]:
    def value(other: Audit) -> str | None:
        known = other.layers.get(column, pd.Series()).iloc[place : place + 1].dropna()
        return number(float(known.iloc[0])) if len(known) else None

    return {"value": number(row[column]), "interval": _interval(row, column), "beside": _beside(audit, value)}


def _interval(row: pd.Series, column: str) -> str:
    """The 95 % interval over texts of a number in a row of a table; empty if there is none."""
    low, high = (float(row.get(f"{column}_{side}", math.nan)) for side in ("low", "high"))
    return "" if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"


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


def place(layer: Any, head: Any) -> str:
    """The anchor of a head's section."""
    return f"layer-{int(layer)}-head-{int(head)}"


def _data(audit: Audit, unusual: list[tuple[str, str]]) -> dict[str, Any]:
    """The data of the script: heat maps of all columns; numbers, checks and spectra of all heads.

    unusual : (anchor of a head, sentence)
    """
    names = [name for group in _choices(audit.heads).values() for name, _ in group]
    twin = None if audit.twin is None else audit.twin.heads
    numbers = [n for n in names if n not in CHECKS.values() and not n.endswith("_slope")]
    spectra, width = audit.weights.spectra, audit.shape["width"]
    heads = []
    for _, row in audit.heads.iterrows():
        layer, head = int(row["layer"]), int(row["head"])
        here = place(layer, head)
        heads.append(
            {
                "place": here,
                "layer": layer,
                "head": head,
                "sentence": head_sentence(row, audit.shape["layers"]),
                "values": [_value(row, name) for name in numbers],
                "checks": [str(row[column]) for column in CHECKS.values()],
                "unusual": [sentence for where, sentence in unusual if where == here],
                "spectrum": spectrum_panels(*spectra[layer, head], width),
            }
        )
    return {
        "maps": {name: _plain(heat_map(audit.heads, name, twin)) for name in names},
        "columns": [_column(audit, name) for name in numbers],
        "checks": [{"name": name, "meaning": ASSUMPTIONS[name]} for name in CHECKS],
        "heads": heads,
        "spectrum": _plain(figures.eigenvalues(*next(iter(spectra.values())), "Eigenvalues of M and V", width)),
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
    value = partial(_median, name)
    beside = [f"{who}: {found}" for who, found in _beside(audit, value)]
    label = name.replace("_", " ")
    return {"name": label, "meaning": what, "usual": usual, "median": value(audit), "beside": beside}


def _value(row: pd.Series, name: str) -> list[str]:
    """A number of a head, then its interval over texts and its slope in log₂ n, if there are any."""
    slope = row.get(f"{name}_slope", math.nan)
    change = "" if math.isnan(slope) else f"{'+' if slope >= 0 else ''}{number(slope)} for each doubling of n"
    return [written(row[name]), *filter(None, (_interval(row, name), change))]


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
    late = LATE.get(str(row["terminal"]))
    return f"By its weights this head {words}" + ("" if late is None else f" By V alone, {late}.")


def _making(audit: Audit) -> dict[str, list[tuple[str, str]]]:
    """The encoder, the texts, versions and settings, for the last section of the report."""
    shape = [(name.replace("_", " "), str(value)) for name, value in audit.shape.items()]
    shared = "all layers share their weights" if audit.tied else "each layer has its own weights"
    encoder = [("model", audit.name), ("family", audit.family), *shape, ("weights", shared)]
    encoder.append(("SHA-256 of the weights", audit.fingerprint))
    if audit.reference is not None:
        encoder.append(("reference", audit.reference.name))
    versions = [(str(key), str(value)) for key, value in audit.made.items()]
    return {"Encoder": encoder, "Texts": _texts(audit), "Versions and settings": versions}


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
