"""A compression as one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from metastable.decimals import signed
from metastable.encoder.compress.surgery import UNCUT
from metastable.encoder.compress.words import GOOD, ends, few_texts, findings, warnings
from metastable.figures.compress import fidelity_front
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.compress.result import Compression

COLUMNS = {
    "speed": "speed",
    "megabytes": "MB in memory",
    "cosine": "mean cosine",
    "cosine_p10": "10th percentile",
    "nn_overlap": "same neighbours",
    "spearman": "rank correlation",
}
"""The numbers of an option, and what they are called on the page."""
TASK_COLUMNS = {
    **{name: what for name, what in COLUMNS.items() if name not in ("cosine_p10", "spearman")},
    "task": "score on your pairs",
    "task_difference": "difference to full",
}
"""The same if there are scored pairs: a screen has room for six columns, and the file options.csv has all of them."""
TILES = ("speed", "cosine", "nn_overlap", "megabytes")
"""The numbers that are shown large if there is one option only, and thus no picture."""


def write(found: Compression, path: str | Path) -> Path:
    """Write the report to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(found))


def render(found: Compression) -> str:
    """The report as HTML."""
    options = found.options
    baseline = options["baseline"].astype(bool)
    pairs = found.full_task is not None
    columns = TASK_COLUMNS if pairs else COLUMNS
    large = [name for name in columns if name in TILES or name not in COLUMNS]
    rows = _rows(options, found.chosen, list(columns))
    single = len(options) == 1
    groups = [
        ("The option" if single else "All options", "options", ~baseline),
        ("For comparison: other rules, and the same without refits", "baselines", baseline),
    ]
    headline, *others = findings(found)
    return render_page(
        "compress.html.j2",
        found=found,
        name=short_name(found.name),
        warnings=warnings(found),
        few_texts="cosine_p10" in columns and few_texts(found),
        headline=headline,
        sentences=list(dict.fromkeys(others)),
        kept=_kept(options[~baseline]),
        int8=bool(options["int8"].any()),
        compared=bool(baseline.any()),
        only=[(columns[name], *_cell(options.iloc[0], name)) for name in large],
        front=None if single else figure_block("front", fidelity_front(options, found.front(), found.chosen)),
        columns=list(columns.values()),
        tables=[
            (title, name, [row for row, one in zip(rows, shown, strict=True) if one])
            for title, name, shown in groups
            if shown.any()
        ],
        uncut=found.family in UNCUT,
    )


def _kept(ours: pd.DataFrame) -> str:
    """What a good mean cosine means for nearest texts, by the options of this study; empty if none is good."""
    good = 100 * ours.loc[ours["cosine"] >= GOOD, "nn_overlap"]
    if len(ours) == 1 or not len(good):
        return ""
    low, high = f"{good.min():.0f}", f"{good.max():.0f}"
    share = f"{low} %" if low == high else f"{low} to {high} %"
    return f"In this study, options with a mean cosine of at least {GOOD:g} keep {share} of the 10 nearest texts."


def _rows(options: pd.DataFrame, chosen: int | None, columns: list[str]) -> list[dict[str, Any]]:
    """The table: name, rule, whether it is the chosen option, and pairs of a number and its interval."""
    return [
        {
            "name": row["recipe"],
            "rule": row["method"],
            "layers": row["removed_layers"],
            "chosen": place == chosen,
            "cells": [_cell(row, name) for name in columns],
        }
        for place, (_, row) in enumerate(options.iterrows())
    ]


def _cell(row: pd.Series, name: str) -> tuple[str, str]:
    if name == "megabytes":
        return f"{row[name]:.1f}", ""
    if name == "task_difference":
        return signed(row[name], 3), f"{signed(row[f'{name}_low'], 3)} to {signed(row[f'{name}_high'], 3)}"
    digits, sign = (2, "×") if name == "speed" else (3, "")
    return f"{row[name]:.{digits}f}{sign}", ends(row, name, digits, "–")
