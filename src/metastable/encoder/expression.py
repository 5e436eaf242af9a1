"""The language of `--fail-on`: a condition on the columns of a table, read by a parser of its own, never by `eval`.

    condition  = both { "or" both }
    both       = negation { "and" negation }
    negation   = "not" negation | "(" condition ")" | comparison
    comparison = operand [ ("<" | "<=" | ">" | ">=" | "==" | "!=") operand ]
    operand    = column | ["-" | "+"] number | ["-" | "+"] "inf" | "nan" | "true" | "false" | a string in quotes

A column of true/false is a condition by itself: `not complex`. Numbers compare with numbers; words and true/false only
by == and !=, with their kind. **A comparison with nan is false, whichever it is**, != too; `not (x <= inf)` finds nan.
Words of the language may be written in any case, column names and strings only in their own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from metastable.errors import BadInput

LONGEST = 1000
"""Characters in an expression."""
DEEPEST = 50
"""Parentheses and `not`s inside one another."""

Literal = float | bool | str
COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
CONSTANTS: dict[str, Literal] = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}
WORDS = {"and", "or", "not", *CONSTANTS}
TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<sign><=|>=|==|!=|[<>()+-])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    place: int

    @property
    def word(self) -> str:
        """The word of the language that this is, or the sign; '' for names, numbers and strings."""
        if self.kind == "sign":
            return self.text
        return self.text.lower() if self.kind == "name" and self.text.lower() in WORDS else ""


@dataclass(frozen=True)
class Column:
    name: str
    place: int


Operand = Column | Literal


@dataclass(frozen=True)
class Comparison:
    left: Operand
    sign: str
    right: Operand
    place: int


@dataclass(frozen=True)
class Truth:
    """A column of true/false, or one of these words, as a condition."""

    operand: Operand


@dataclass(frozen=True)
class Not:
    inner: Condition


@dataclass(frozen=True)
class Several:
    """All of the parts, or any of them."""

    every: bool
    parts: tuple[Condition, ...]


Condition = Comparison | Truth | Not | Several


@dataclass(frozen=True)
class Expression:
    """A condition on the rows of a table. Made by `parse`."""

    text: str
    condition: Condition

    def __str__(self) -> str:
        return self.text

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, in the order of appearance."""
        return tuple(dict.fromkeys(column.name for column in _named(self.condition)))

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the table that meet it, in their order."""
        known = [str(name) for name in table.columns]
        for column in _named(self.condition):
            if column.name not in known:
                near = difflib.get_close_matches(column.name, known, n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
                raise _error(self.text, column.place, f"there is no column {column.name!r}; {hint}")
        return table[_Evaluation(self.text, table).mask(self.condition)]


def parse(text: str) -> Expression:
    """Read an expression.

    >>> table = pd.DataFrame({"layer": [0, 0, 1], "gap": [0.5, 0.001, 0.2], "complex": [False, False, True]})
    >>> parse("gap < 0.01 or complex").rows(table).index.tolist()
    [1, 2]
    """
    if len(text) > LONGEST:
        raise BadInput(f"expression of {len(text)} characters; at most {LONGEST} are read, so shorten it")
    expression = Expression(text, _Parser(text).whole())
    if not expression.columns:
        raise BadInput(
            f"expression {text!r} names no column, so it is the same for every row; name one, as in 'gap < 0.01'"
        )
    return expression


def _error(text: str, place: int, what: str) -> BadInput:
    near = text[place : place + 20]
    where = f"at character {place + 1}, {near!r}" if near.strip() else "at its end"
    return BadInput(f"expression: {what} ({where})")


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while text[place:].strip():
        found = TOKEN.match(text, place)
        if found is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise _error(text, start, _unreadable(text[start:]))
        kind = str(found.lastgroup)
        yield Token(kind, found[kind], found.start(kind))
        place = found.end()
    yield Token("end", "", len(text))


def _unreadable(rest: str) -> str:
    if rest[0] in "'\"":
        return "a string without its closing quote"
    instead = {"=": "==", "&": "and", "|": "or", "!": "not"}.get(rest[0])
    return f"{rest[0]!r} is no sign of this language" + (f"; write {instead}" if instead else "")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.next = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def accept(self, *words: str) -> Token | None:
        token = self.token
        if token.word not in words:
            return None
        self.next += 1
        return token

    def wrong(self, what: str) -> BadInput:
        return _error(self.text, self.token.place, what)

    def whole(self) -> Condition:
        condition = self.several(every=False)
        if self.token.kind == "end":
            return condition
        if self.token.word in COMPARE:
            raise self.wrong("a comparison has two sides; join two comparisons with and")
        if self.token.word == ")":
            raise self.wrong("a parenthesis closes that was never opened")
        raise self.wrong("expected and, or, or the end")

    def several(self, every: bool) -> Condition:
        """Parts joined by `and` (every) or by `or`, whose parts are joined by `and`."""
        parts: list[Condition] = []
        while not parts or self.accept("and" if every else "or"):
            parts.append(self.negation() if every else self.several(every=True))
        return parts[0] if len(parts) == 1 else Several(every, tuple(parts))

    def negation(self) -> Condition:
        opening = self.accept("not", "(")
        if opening is None:
            return self.comparison()
        self.depth += 1
        if self.depth > DEEPEST:
            raise _error(self.text, opening.place, f"more than {DEEPEST} parentheses and nots inside one another")
        if opening.word == "not":
            inner: Condition = Not(self.negation())
        else:
            inner = self.several(every=False)
            if not self.accept(")"):
                raise self.wrong("expected a closing parenthesis")
        self.depth -= 1
        return inner

    def comparison(self) -> Condition:
        place = self.token.place
        left = self.operand()
        sign = self.accept(*COMPARE)
        if sign is not None:
            return Comparison(left, sign.text, self.operand(), place)
        if isinstance(left, (Column, bool)):
            return Truth(left)
        raise self.wrong("expected one of < <= > >= == !=")

    def operand(self) -> Operand:
        sign = self.accept("-", "+")
        token = self.token
        self.next += token.kind != "end"
        if token.kind == "number" or token.word == "inf":
            return (-1.0 if sign and sign.text == "-" else 1.0) * float(token.text)
        if sign is not None:
            raise _error(self.text, token.place, f"expected a number after {sign.text}")
        if token.kind == "string":
            return token.text[1:-1]
        if token.word in CONSTANTS:
            return CONSTANTS[token.word]
        if token.kind == "name" and not token.word:
            return Column(token.text, token.place)
        raise _error(self.text, token.place, "expected a column, a number, a string in quotes, true or false")


def _named(condition: Condition) -> Iterator[Column]:
    match condition:
        case Comparison(left, _, right):
            yield from (operand for operand in (left, right) if isinstance(operand, Column))
        case Truth(operand):
            yield from (o for o in (operand,) if isinstance(o, Column))
        case Not(inner):
            yield from _named(inner)
        case Several(_, parts):
            for part in parts:
                yield from _named(part)


@dataclass(frozen=True)
class _Evaluation:
    text: str
    table: pd.DataFrame

    def mask(self, condition: Condition) -> np.ndarray:
        """(rows,) of bool."""
        match condition:
            case Several(every, parts):
                combine = np.logical_and if every else np.logical_or
                return combine.reduce([self.mask(part) for part in parts])
            case Not(inner):
                return ~self.mask(inner)
            case Truth(operand):
                kind, values = self.values(operand)
                if kind != "true or false":
                    assert isinstance(operand, Column)
                    raise self._wrong(operand.place, f"{operand.name} holds {kind}; compare it with something")
                return values
            case Comparison():
                return self._compared(condition)

    def _compared(self, comparison: Comparison) -> np.ndarray:
        kind, left = self.values(comparison.left)
        other, right = self.values(comparison.right)
        if kind != other:
            raise self._wrong(comparison.place, f"{kind} cannot be compared with {other}")
        if kind != "numbers" and comparison.sign not in ("==", "!="):
            raise self._wrong(comparison.place, f"{kind} compare by == and != only, not by {comparison.sign}")
        there = ~(pd.isna(left) | pd.isna(right))
        result = np.zeros(len(self.table), dtype=bool)
        result[there] = COMPARE[comparison.sign](left[there], right[there])
        return result

    def values(self, operand: Operand) -> tuple[str, np.ndarray]:
        """What the operand holds, in words, and its value for each row."""
        if not isinstance(operand, Column):
            kind = "true or false" if isinstance(operand, bool) else "words" if isinstance(operand, str) else "numbers"
            dtype = {"words": object, "numbers": float, "true or false": bool}[kind]
            return kind, np.full(len(self.table), operand, dtype=dtype)
        column = self.table[operand.name]
        if pd.api.types.is_bool_dtype(column):
            return "true or false", column.to_numpy(dtype=bool)
        if pd.api.types.is_numeric_dtype(column):
            return "numbers", column.to_numpy(dtype=float)
        return "words", column.to_numpy(dtype=object)

    def _wrong(self, place: int, what: str) -> BadInput:
        return _error(self.text, place, what)
