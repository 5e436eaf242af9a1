"""The result of `length`: tables, words, files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from metastable import files
from metastable.encoder.audit import frame, records
from metastable.encoder.expression import parse
from metastable.encoder.length.causes import ATTENTION
from metastable.encoder.length.dilution import MEASURED
from metastable.encoder.length.documents import SHORTEST
from metastable.encoder.length.retrieval import CUTOFFS
from metastable.encoder.length.rung import DEPTHS
from metastable.errors import BadInput, suggestion

if TYPE_CHECKING:
    from metastable.encoder.length.advice import Advice

SCHEMA = "metastable.length/2"
FOCUS = 0.25
"""A head has focus where the mean top weight of its queries is at least this, …"""
SHARE = 0.5
"""… and its participation is at most this share of n."""
RISK = 0.25
"""A head is forecast to lose its focus if the probability of that, by the error bars of its top weight, is at least
this."""


def _ends(*names: str) -> tuple[str, ...]:
    return tuple(name + end for name in names for end in ("", "_low", "_high"))


def part_column(part: str) -> str:
    """The column of a part of the change of the entropy, see `causes`."""
    return f"entropy_{part.replace(' ', '_')}"


TABLES: dict[str, tuple[str, ...]] = {
    "heads": ("n", "source", "layer", "head", *_ends(*MEASURED), "participation", "focus"),
    "focus": (
        *("layer", "head", "focus_at_start", "loses_focus_at", "forecast_to_lose_at", "forecast_to_lose_later"),
        *("score_gap", "gap_growth"),
        *map(part_column, ATTENTION),
    ),
    "depths": ("n", "source", "depth", "phase", *_ends(*DEPTHS)),
    "documents": ("n", *_ends("document_cosine", "agreement")),
    "forecasts": ("made_from", "n", "layer", "head", "statistic", "forecast", "low", "high", "measured"),
    "skill": ("made_from", "n", "statistic", "method", "error", *_ends("skill")),
    "causes": ("quantity", "n", "part", *_ends("change")),
    "retrieval": (
        *("n", "way", "chunk", "queries", *_ends("mrr"), *(f"recall_{k}" for k in CUTOFFS)),
        *("against", *_ends("mrr_gain")),
    ),
}
"""The tables of a result and their columns. Values that do not apply are NaN."""


def table_of(expression: str) -> str:
    """The first table, in the order of `TABLES`, that has all columns of an expression; BadInput if none has."""
    columns = parse(expression).columns
    for name, own in TABLES.items():
        if set(columns) <= set(own):
            # One made-up row shows whether words and numbers are compared with their like.
            parse(expression).rows(pd.DataFrame([{column: _example(column) for column in own}]))
            return name
    known = sorted({column for own in TABLES.values() for column in own})
    unknown = next((name for name in columns if name not in known), None)
    if unknown is not None:
        raise BadInput(f"expression {expression!r}: there is no column {unknown!r}; {suggestion(unknown, known)}")
    raise BadInput(f"expression {expression!r}: no table has all of its columns; ask about one table at a time")


def _example(column: str) -> Any:
    words = ("source", "phase", "statistic", "method", "quantity", "part", "way")
    return "" if column in words else False if column in ("focus", "focus_at_start") else 0.0


@dataclass(frozen=True)
class Length:
    """The effects of length on one encoder. Made by `length`, or read from length.json by `Length.load`.

    limit : the longest text of the encoder, in tokens
    start : n₀, the length that forecasts are made from
    top : the longest rung of whole documents; last : the last rung, of glued texts if it is above `top`
    heads : a row for each length, source ("prefix" or "glued"), layer and head: `dilution.MEASURED` with intervals
    focus : a row a head: the length at which it loses its focus: measured, forecast from n₀, and forecast from the
        last rung for longer texts; its score gap and the slope of the gap in log n; the parts of its entropy change
    depths : a row for each length, source and depth: the phase of the tokens as in an audit, `rung.DEPTHS` with
        intervals. Glued texts have no twin, so their phases are those without one
    documents : a row for each length: cosine between documents, agreement with the mean of pieces, with intervals
    forecasts : a row for each forecast of a head, with error bars and, where it was measured, the measured value
    skill : a row for each length, statistic and method: errors, and the skill of the forecast against the method
    causes : a row for each part of a change of entropy or of similarity, see `causes`
    asked : the queries of `retrieval`: "pairs" of the user, or "passages" of the documents themselves
    retrieval : a row for each length and way of representing a document, with its gain over whole documents of
        `against` tokens: the best shorter length for whole documents, the same length for the other ways
    """

    name: str
    family: str
    fingerprint: str
    limit: int
    pooling: str
    asked: str
    start: int
    top: int
    last: int
    counts: dict[str, int]
    made: dict[str, str]
    heads: pd.DataFrame
    focus: pd.DataFrame
    depths: pd.DataFrame
    documents: pd.DataFrame
    forecasts: pd.DataFrame
    skill: pd.DataFrame
    causes: pd.DataFrame
    retrieval: pd.DataFrame
    reference: Length | None = None

    def __repr__(self) -> str:
        many = f"{self.counts['documents']} documents of {self.top} tokens"
        return f"Length({self.name!r}, {self.family}, n = {SHORTEST} to {self.last}, {many})"

    def findings(self, expression: str) -> pd.DataFrame:
        """The rows that meet an expression such as "n == 512 and top_weight < 0.1", of its table, see `table_of`."""
        table: pd.DataFrame = getattr(self, table_of(expression))
        return parse(expression).rows(table) if len(table) else table

    def advice(self) -> list[Advice]:
        """What to do, each piece of advice with the numbers that carry it."""
        from metastable.encoder.length.advice import advice

        return advice(self)

    def sentences(self) -> list[str]:
        """The advice and what was found, in words."""
        from metastable.encoder.length.advice import sentences

        return sentences(self)

    def report(self, path: str | Path) -> Path:
        """Write everything as one HTML file that needs no network."""
        from metastable.encoder.length.report import write

        return write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything except the reference, for JSON, with the advice and the sentences."""
        plain = {name: value for name, value in vars(self).items() if name not in (*TABLES, "reference")}
        words = {"advice": [vars(piece) for piece in self.advice()], "sentences": self.sentences()}
        return {"schema": SCHEMA, **plain, **words, **{name: records(getattr(self, name)) for name in TABLES}}

    @classmethod
    def load(cls, path: str | Path) -> Length:
        """The result in a file length.json, or in the folder of that file."""
        return files.read_result(path, "length", SCHEMA, lambda saved, _: cls._from_dict(saved))

    @classmethod
    def _from_dict(cls, saved: dict[str, Any]) -> Length:
        plain = {field.name: saved[field.name] for field in fields(cls) if field.name != "reference"}
        return cls(**{**plain, **{name: _table(name, saved[name]) for name in TABLES}})

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write report.html, length.json and one CSV file for each table, each completely or not at all."""
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        written = {"length": out / "length.json", "report": self.report(out / "report.html")}
        files.write_text(written["length"], files.to_json(self.to_dict(), indent=None))
        for name in TABLES:
            written[name] = out / f"{name}.csv"
            files.write_text(written[name], getattr(self, name).to_csv(index=False))
        return written


def _table(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return frame(rows) if rows else pd.DataFrame(columns=list(TABLES[name]))
