"""What is wrong with the controls: for each field that cannot be used, one line to stand beside it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metastable.errors import BadInput
from metastable.lab.controls import LAWS, MOST_NUMBERS, OF_A_TRAINED_HEAD, Controls, cloud_of
from metastable.lab.matrices import parse_matrices

DIMENSIONS = (2, 32)
MOST_TOKENS = 20_000
LARGEST_EIGENVALUE = 100.0
LARGEST_BETA = 1e6
LONGEST = 1000.0
LARGEST_ANGLE = 360.0
LARGEST_SEED = 2**53 - 1
"""The last whole number that a page's script can count to."""


def controls_problems(controls: Controls) -> dict[str, str]:
    """Field → what to do about it; empty if `simulate` can be called. No model is loaded and no token moved."""
    found: dict[str, str] = {}
    dim = _head(controls, found)
    _tokens(controls, dim, found)
    _range(found, "beta", controls.beta, 0.0, LARGEST_BETA, infinite=True)
    _range(found, "until", controls.until, 0.0, LONGEST)
    if "until" not in found and controls.until == 0:
        found["until"] = "give a number above 0"
    if not found and not controls.trained:
        try:
            cloud_of(replace(controls, n=2))
        except BadInput as error:
            # Such as graded tokens where no direction is dominant.
            found["law"] = str(error)
    return found


def _head(controls: Controls, found: dict[str, str]) -> int | None:
    """The dimension, where it is known before a model is loaded."""
    if controls.trained:
        from metastable.encoder.trained_head import parse_address

        try:
            parse_address(controls.trained)
        except BadInput as error:
            found["trained"] = str(error)
        if controls.matrices:
            found["matrices"] = "there is a trained head too; leave one of the two empty"
        return None
    if controls.matrices:
        try:
            dim = len(parse_matrices(controls.matrices)[0])
        except BadInput as error:
            found["matrices"] = str(error)
            return None
        if not DIMENSIONS[0] <= dim <= DIMENSIONS[1]:
            found["matrices"] = f"B and V are {dim}×{dim}; sizes from {DIMENSIONS[0]} to {DIMENSIONS[1]} can be run"
        return dim
    _whole(found, "d", controls.d, *DIMENSIONS)
    given = None if "d" in found else int(controls.d)
    for name in ("interaction", "value"):
        _eigenvalues(found, name, getattr(controls, name), given)
    _range(found, "angle", controls.angle, -LARGEST_ANGLE, LARGEST_ANGLE)
    return given


def _tokens(controls: Controls, dim: int | None, found: dict[str, str]) -> None:
    _whole(found, "n", controls.n, 2 if controls.trained else 1, MOST_TOKENS)
    _whole(found, "seed", controls.seed, 0, LARGEST_SEED)
    if "n" not in found and dim is not None and controls.n * dim > MOST_NUMBERS:
        found["n"] = f"in d = {dim} at most {_spaced(MOST_NUMBERS // dim)} tokens fit the memory of a page"
    known = OF_A_TRAINED_HEAD if controls.trained else [law for law in LAWS if law != "tokens"]
    if controls.law not in known:
        of = "the law of a trained head is" if controls.trained else "choose"
        found["law"] = f"{_shown(controls.law)}: {of} one of {', '.join(known).replace('_', ' ')}"
    for law, wanted in (("fibonacci", 3), ("equally_spaced", 2)):
        if controls.law == law and dim is not None and dim != wanted:
            found["law"] = f"{law} is for d = {wanted}, and d is {dim}"


def _eigenvalues(found: dict[str, str], name: str, given: Any, dim: int | None) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str):
        found[name] = "give numbers with commas, as 1.5, 1.0, 0.6"
        return
    wrong = [x for x in given if not abs(_real(x)) <= LARGEST_EIGENVALUE]
    if wrong:
        limit = f"{LARGEST_EIGENVALUE:g}"
        found[name] = f"{_shown(wrong[0])}: eigenvalues are numbers from −{limit} to {limit}"
    elif dim is not None and len(given) != dim:
        found[name] = f"{len(given)} given, and d = {dim} needs {dim}"


def _whole(found: dict[str, str], name: str, value: Any, least: int, most: int) -> None:
    right = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not right or not least <= int(value) <= most:
        found[name] = f"{_shown(value)}: give a whole number from {least} to {_spaced(most)}"


def _range(found: dict[str, str], name: str, value: Any, least: float, most: float, infinite: bool = False) -> None:
    number = _real(value)
    if least <= number <= most or (infinite and number == math.inf):
        return
    low = f"{least:g}".replace("-", "−")
    found[name] = f"{_shown(value)}: give a number from {low} to {_spaced(most)}{', or inf' if infinite else ''}"


def _real(value: Any) -> float:
    """The number, NaN where it is none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    text = " ".join(str(value).split())
    return text if len(text) <= 30 else f"{text[:30]}…"


def _spaced(number: float) -> str:
    r"""Thin spaces between thousands.

    >>> _spaced(20000)
    '20\u202f000'
    """
    return f"{number:,.0f}".replace(",", "\u202f")
