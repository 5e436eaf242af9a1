"""The rows of a table that meet --fail-on, as they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MOST_SHOWN = 5
"""Rows that are printed; the tables have all of them."""
PLACE = ("n", "source", "depth", "layer", "head", "statistic", "method", "quantity", "part", "way", "chunk")
"""The columns that name a row of a table."""

Place = dict[str, object]


def places(rows: pd.DataFrame, asked: Iterable[str]) -> list[Place]:
    """The columns that name each row and those of the expression, as far as they apply."""
    columns = [name for name in dict.fromkeys((*PLACE, *asked)) if name in rows]
    return [{key: value for key, value in row.items() if value == value} for row in rows[columns].to_dict("records")]


def met(found: list[Place] | None) -> list[str]:
    """The rows for a terminal; nothing without --fail-on."""
    if found is None:
        return []
    shown = ["  " + ", ".join(f"{key} {_short(at)}" for key, at in place.items()) for place in found[:MOST_SHOWN]]
    more = [f"  and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    return [f"--fail-on: rows that meet it: {len(found)}", *shown, *more]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
