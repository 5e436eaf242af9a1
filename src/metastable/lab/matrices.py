"""B and V as users paste them into the page."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from metastable.errors import BadInput

Matrix = list[list[float]]
LONGEST = 200_000
"""The largest number of characters."""
LARGEST = 1000.0
"""The largest absolute value of an entry; beyond it the time steps become too short."""
FORMS = 'two JSON matrices [[…], […]], {"B": …, "V": …}, or rows of numbers with an empty line between B and V'


def parse_matrices(text: str) -> tuple[Matrix, Matrix]:
    """B and V, square and of the same size, from one of three forms:

    two JSON matrices one after the other; one JSON object with the keys B and V; or rows of numbers, one row per line,
    with spaces, commas or semicolons between numbers and an empty line between B and V.

    >>> parse_matrices("1 0.5\\n0 2\\n\\n3, 0\\n0, 4")
    ([[1.0, 0.5], [0.0, 2.0]], [[3.0, 0.0], [0.0, 4.0]])
    """
    if len(text) > LONGEST:
        raise BadInput(f"the matrices have {len(text)} characters; at most {LONGEST} are allowed")
    plain = text.replace("\u2212", "-").replace("\r\n", "\n").strip()
    found = _from_json(plain) if plain[:1] in ("[", "{") else _from_rows(plain)
    if len(found) != 2:
        raise BadInput(f"found {len(found)} {'matrix' if len(found) == 1 else 'matrices'}; give B and V: {FORMS}")
    B, V = (_matrix(rows, name) for rows, name in zip(found, "BV", strict=True))
    if len(B) != len(V):
        raise BadInput(f"B is {len(B)}×{len(B)} and V is {len(V)}×{len(V)}; they must have the same size")
    return B, V


def _from_json(text: str) -> list[Any]:
    reader = json.JSONDecoder()
    values: list[Any] = []
    while text:
        try:
            value, end = reader.raw_decode(text)
        except (ValueError, RecursionError) as error:
            why = f"{error.msg} in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too long"
            raise BadInput(f"matrix {'BV'[min(len(values), 1)]} is not valid JSON ({why}); give {FORMS}") from error
        values.append(value)
        text = text[end:].lstrip()
    if len(values) == 1 and isinstance(values[0], dict):
        if set(values[0]) != {"B", "V"}:
            raise BadInput(f"the JSON object has the keys {', '.join(values[0]) or 'none'}; give B and V")
        return [values[0]["B"], values[0]["V"]]
    return values


def _from_rows(text: str) -> list[Any]:
    blocks = [block for block in re.split(r"\n[^\S\n]*\n", text) if block.strip()]
    return [[re.findall(r"[^\s,;]+", line) for line in block.splitlines() if line.strip()] for block in blocks]


def _matrix(rows: Any, name: str) -> Matrix:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise BadInput(f"{name} is not a list of rows; write it as [[1, 0], [0, 1]]")
    for i, row in enumerate(rows, 1):
        if len(row) != len(rows):
            wrong = f"row {i} of {name} has length {len(row)} but {name} has {len(rows)} rows"
            raise BadInput(f"{wrong}; give a square matrix")
    return [[_entry(entry, i, name) for entry in row] for i, row in enumerate(rows, 1)]


def _entry(entry: Any, row: int, name: str) -> float:
    try:
        value = float(entry) if isinstance(entry, (str, int, float)) and not isinstance(entry, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= LARGEST:
        shown = str(entry)[:20] + "…" * (len(str(entry)) > 20)
        raise BadInput(f"row {row} of {name} contains {shown!r}; entries are numbers from −{LARGEST:g} to {LARGEST:g}")
    return value
