"""B and V as people paste them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from metastable.errors import BadInput

Matrix = list[list[float]]
LONGEST = 200_000
LARGEST = 1000.0
"""No entry is larger: steps would become too short to go anywhere."""
FORMS = 'two JSON matrices [[…], […]], {"B": …, "V": …}, or rows of numbers with an empty line between B and V'


def parse_matrices(text: str) -> tuple[Matrix, Matrix]:
    """B and V, square and of one size, from one of three forms:

    two JSON matrices one after the other; one JSON object with the keys B and V; or rows of numbers, a line a row, with
    spaces, commas or semicolons between numbers and an empty line between B and V.

    >>> parse_matrices("1 0.5\\n0 2\\n\\n3, 0\\n0, 4")
    ([[1.0, 0.5], [0.0, 2.0]], [[3.0, 0.0], [0.0, 4.0]])
    """
    if len(text) > LONGEST:
        raise BadInput(f"the matrices are {len(text)} characters long; at most {LONGEST} are read")
    plain = text.replace("\u2212", "-").strip()
    found = _json(plain) if plain[:1] in ("[", "{") else _rows(plain)
    B, V = (_matrix(rows, name) for rows, name in zip(found, "BV", strict=True))
    if len(B) != len(V):
        raise BadInput(f"B is {len(B)}×{len(B)} and V {len(V)}×{len(V)}; they must be of one size")
    return B, V


def _json(text: str) -> tuple[Any, Any]:
    reader = json.JSONDecoder()
    values: list[Any] = []
    while text:
        try:
            value, end = reader.raw_decode(text)
        except (ValueError, RecursionError) as error:
            why = f"{error.msg} in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too long"
            raise BadInput(f"matrix {'BV'[min(len(values), 1)]} is no JSON ({why}); give {FORMS}") from error
        values.append(value)
        text = text[end:].lstrip()
    if len(values) == 1 and isinstance(values[0], dict):
        if set(values[0]) != {"B", "V"}:
            raise BadInput(f"the JSON object has the keys {', '.join(values[0]) or 'none'}; give B and V")
        return values[0]["B"], values[0]["V"]
    if len(values) != 2:
        raise BadInput(f"there {_count(len(values))}; give B and V: {FORMS}")
    return values[0], values[1]


def _rows(text: str) -> tuple[Any, Any]:
    blocks = [block for block in re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n")) if block.strip()]
    if len(blocks) != 2:
        raise BadInput(f"there {_count(len(blocks))}; give B and V: {FORMS}")
    first, second = ([_words(line) for line in block.splitlines() if line.strip()] for block in blocks)
    return first, second


def _words(line: str) -> list[str]:
    return [word for word in re.split(r"[\s,;]+", line.strip()) if word]


def _count(found: int) -> str:
    return "is 1 matrix" if found == 1 else f"are {found} matrices"


def _matrix(rows: Any, name: str) -> Matrix:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise BadInput(f"{name} is no list of rows; write it as [[1, 0], [0, 1]]")
    for i, row in enumerate(rows, 1):
        if len(row) != len(rows):
            numbers = f"{len(row)} number" + ("" if len(row) == 1 else "s")
            raise BadInput(f"row {i} of {name} has {numbers} and there are {len(rows)} rows; {name} must be square")
    return [[_number(entry, i, name) for entry in row] for i, row in enumerate(rows, 1)]


def _number(entry: Any, row: int, name: str) -> float:
    try:
        found = math.nan if isinstance(entry, (bool, list, dict)) or entry is None else float(entry)
    except (ValueError, OverflowError):
        found = math.nan
    if not abs(found) <= LARGEST:
        shown = str(entry) if len(str(entry)) <= 20 else f"{str(entry)[:20]}…"
        raise BadInput(f"row {row} of {name} holds {shown!r}; entries are numbers from −{LARGEST:g} to {LARGEST:g}")
    return found
