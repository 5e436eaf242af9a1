"""The axes of a sweep, checked: names, and values of one kind that can be labels."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metastable.errors import BadInput

WORDS = ("law", "method", "engine")
LISTS = ("interaction", "value", "mean", "means", "kappas", "proportions")
REFUSED = {"t_eval": "every point is kept at the same times", "d": "the head has the dimension"}


def checked(axes: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each axis, in order, or BadInput."""
    if not isinstance(axes, Mapping) or not axes:
        raise BadInput(f'axes is {axes!r}; give at least one axis with its values, as {{"beta": [10, 100]}}')
    known(axes, (*names, *REFUSED), "axes")
    for name, why in REFUSED.items():
        if name in axes:
            raise BadInput(f"{name} cannot be an axis: {why}")
    return {name: _values(name, values) for name, values in axes.items()}


def _values(name: str, given: Any) -> list[Any]:
    values = plain(given)
    if not isinstance(values, list) or not values:
        raise BadInput(f"axis {name} is {given!r}; give a list of values")
    kinds = {kind(value) for value in values}
    if "other" in kinds or ("number" in kinds and len(kinds) > 1):
        raise BadInput(f"axis {name} is {given!r}; its values must be all numbers, all words or all lists")
    if ("word" in kinds and name not in WORDS) or ("list" in kinds and name not in LISTS):
        raise BadInput(f"axis {name} is {given!r}; its values must be numbers")
    if kinds == {"number"}:
        values = _numbers(name, values)
    if any(isinstance(value, list) and len(value) < 2 for value in values):
        raise BadInput(f"axis {name} is {given!r}; each of its values must be a list of d ≥ 2 numbers")
    if len({json.dumps(value) for value in values}) < len(values):
        raise BadInput(f"axis {name} holds a value twice; its values are labels and must differ")
    return values


def _numbers(name: str, values: list[Any]) -> list[Any]:
    if any(value != value or value == -math.inf for value in values):
        raise BadInput(f"axis {name} holds a number that is not one (nan), or -inf")
    if not all(isinstance(value, int) for value in values):
        # Adding 0 makes 0 of -0, which is the same label.
        return [float(value) + 0.0 for value in values]
    if any(abs(value) >= 2**63 for value in values):
        raise BadInput(f"axis {name} holds a whole number of more than 63 bits; take smaller ones")
    return values


def kind(value: Any) -> str:
    """number, word, list or other."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return "word" if isinstance(value, str) else "list" if isinstance(value, list) else "other"


def plain(value: Any) -> Any:
    """The same in Python's own lists, numbers and words."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    return value


def known(given: Iterable[str], names: Sequence[str], where: str) -> None:
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
            raise BadInput(f"{where}: unknown name {name!r}; {hint}")
