"""A compression as one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from metastable.figures.compress import fidelity_front
from metastable.report.page import figure_block, render_page, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.compress.result import Compression

COLUMNS = ("removed", "method", "speed", "MB", "mean cosine", "10th percentile", "same neighbours", "rank correlation")


def write(found: Compression, path: str | Path) -> Path:
    """Write the report to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(found))


def render(found: Compression) -> str:
    """The report as HTML."""
    baseline = found.options["baseline"].astype(bool)
    groups = [
        ("All options", "options", found.options[~baseline], True),
        ("Baselines: other rules, and the same without refits", "baselines", found.options[baseline], False),
    ]
    return render_page(
        "compress.html.j2",
        found=found,
        sentences=found.sentences(),
        front=figure_block("front", fidelity_front(found.options, found.front(), found.chosen)),
        columns=COLUMNS,
        tables=[(title, name, _rows(rows), shown) for title, name, rows, shown in groups if len(rows)],
    )


def _rows(options: pd.DataFrame) -> list[tuple[str, ...]]:
    def ends(row: pd.Series, name: str) -> str:
        return f"{row[name]:.3f} ({row[f'{name}_low']:.3f}–{row[f'{name}_high']:.3f})"

    return [
        (
            row["recipe"],
            row["method"],
            f"{row['speed']:.2f}× ({row['speed_low']:.2f}–{row['speed_high']:.2f})",
            f"{row['megabytes']:.1f}",
            *(ends(row, name) for name in ("cosine", "cosine_p10", "nn_overlap", "spearman")),
        )
        for _, row in options.iterrows()
    ]
