"""The language of `--fail-on`: a condition on the columns of a table, such as `entropy < 0.05 or not complex`.

The syntax is a part of Python's, read by the `ast` module and never evaluated by Python: and, or, not, parentheses,
the comparisons < <= > >= == !=, columns, numbers, inf, nan, true, false and strings in quotes. Words of the language
may be written in any case.

A column of true/false is a condition by itself. Numbers compare with numbers. Words and true/false compare by == and !=
only, with their own kind. **Every comparison with nan is false**, also !=; `not (x <= inf)` finds nan.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from metastable.errors import BadInput, suggestion

LONGEST = 1000
"""Most characters of an expression."""
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CONSTANTS: dict[str, float | bool] = {"inf": np.inf, "nan": np.nan, "true": True, "false": False}
HINTS = {"&": "and", "|": "or", "!": "not", "=": "=="}
"""Signs of other languages, and what to write here."""


@dataclass(frozen=True)
class Expression:
    """A condition on the rows of a table. Made by `parse`."""

    text: str
    tree: ast.expr

    def __str__(self) -> str:
        return self.text

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expression names, in order of appearance."""
        named = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name))
        return tuple(dict.fromkeys(node.id for node in sorted(named, key=lambda node: node.col_offset)))

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the table that meet the condition, in their order."""
        known = [str(name) for name in table.columns]
        for name in self.columns:
            if name not in known:
                raise BadInput(f"expression {self.text!r}: there is no column {name!r}; {suggestion(name, known)}")
        return table[self._mask(self.tree, table)]

    def _mask(self, node: ast.expr, table: pd.DataFrame) -> np.ndarray:
        """Which rows meet a condition, (rows,) of bool."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return np.asarray(combine.reduce([self._mask(part, table) for part in parts]))
            case ast.UnaryOp(operand=inner):
                return ~self._mask(inner, table)
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip([left, *others], ops, others, strict=False)
                return np.asarray(np.logical_and.reduce([self._compared(*pair, table) for pair in pairs]))
        kind, values = _values(node, table)
        if kind != "true or false":
            raise self._wrong(node, f"the column holds {kind}; compare it with something")
        return values

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr, table: pd.DataFrame) -> np.ndarray:
        (kind, a), (other, b) = _values(left, table), _values(right, table)
        if kind != other:
            raise self._wrong(left, f"{kind} cannot be compared with {other}")
        if kind != "numbers" and not isinstance(op, (ast.Eq, ast.NotEq)):
            raise self._wrong(left, f"{kind} can be compared by == and != only")
        there = ~(pd.isna(a) | pd.isna(b))
        result = np.zeros(len(table), dtype=bool)
        result[there] = COMPARISONS[type(op)](a[there], b[there])
        return result

    def _wrong(self, node: ast.expr, what: str) -> BadInput:
        # Python writes infinity as 1e309.
        where = ast.unparse(node).replace("1e309", "inf")[:40]
        return BadInput(f"expression {self.text!r}: {what} (at {where!r})")


def parse(text: str, example: str = "gap < 0.01 and not complex") -> Expression:
    """Read an expression. example : how to write one, for messages

    >>> table = pd.DataFrame({"layer": [0, 0, 1], "gap": [0.5, 0.001, 0.2], "complex": [False, False, True]})
    >>> parse("gap < 0.01 or complex").rows(table).index.tolist()
    [1, 2]
    """
    if len(text) > LONGEST:
        raise BadInput(f"the expression has {len(text)} characters; at most {LONGEST} are read, so shorten it")
    try:
        tree = _NamedConstants().visit(ast.parse(_lower_words(text).strip(), mode="eval")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = getattr(error, "offset", None)
        sign = text.strip()[place - 1 : place] if place else ""
        found = f"at character {place}, {sign!r}" if sign else "at its end"
        hint = f"write {HINTS[sign]}" if sign in HINTS else f"write it as in {example!r}"
        raise BadInput(f"expression {text[:200]!r} cannot be read {found}; {hint}") from error
    expression = Expression(text, tree)
    _check(expression, tree)
    if not expression.columns:
        raise BadInput(f"expression {text!r} names no column, so it is the same for every row; name a column")
    return expression


class _NamedConstants(ast.NodeTransformer):
    """Replaces inf, nan, true and false by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = node.id.lower()
        return ast.Constant(CONSTANTS[name]) if name in CONSTANTS else node


def _lower_words(text: str) -> str:
    """The text with and, or, not in lower case, outside of strings."""
    return re.sub(
        r"('[^']*'|\"[^\"]*\")|\b(and|or|not)\b",
        lambda found: found[1] or found[2].lower(),
        re.sub(r"\s", " ", text),
        flags=re.IGNORECASE,
    )


def _check(expression: Expression, node: ast.expr) -> None:
    """Refuse every part of Python that is not part of this language."""
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check(expression, part)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            _check(expression, inner)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for part in (left, *others):
                if not (isinstance(part, ast.Name) or _constant(part) is not None):
                    raise expression._wrong(part, "expected a column, a number, true, false or a string in quotes")
            if any(type(op) not in COMPARISONS for op in ops):
                raise expression._wrong(node, "only < <= > >= == != compare")
        case ast.Name() | ast.Constant(value=bool()):
            pass
        case _:
            raise expression._wrong(node, "expected a comparison such as gap < 0.01, joined by and, or, not")


def _constant(node: ast.expr) -> float | bool | str | None:
    """The value of a number, of true, false or a string; None for everything else."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    if isinstance(value, (bool, str)):
        return value
    # float("1" * 400) is inf, where float(int("1" * 400)) overflows.
    return float(str(value)) if isinstance(value, (int, float)) else None


def _values(node: ast.expr, table: pd.DataFrame) -> tuple[str, np.ndarray]:
    """What a column or constant holds, in words, and its value for each row."""
    column = table[node.id] if isinstance(node, ast.Name) else pd.Series(np.full(len(table), _constant(node)))
    if pd.api.types.is_bool_dtype(column):
        return "true or false", column.to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(column):
        return "numbers", column.to_numpy(dtype=float)
    return "words", column.to_numpy(dtype=object)
