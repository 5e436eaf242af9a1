"""The effects of length on one encoder: a ladder of lengths, forecasts, causes and retrieval.

The ladder has the lengths 32, 64, 128, … up to the limit of the encoder. All rungs are measured on the same documents,
those that reach the last rung, so that two rungs differ by the length alone. Where documents are too short for the
upper rungs, texts glued together are measured instead. Glued texts show what attention does. They are not documents, so
nothing about embeddings is measured on them.

Forecasts are made from one half of the documents, cut to n₀ tokens, and they are complete before any longer text is
measured. They are scored on the other half.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm
from scipy.stats import t as student

from metastable import files
from metastable.arrays import whole
from metastable.encoder.audit import frame, records
from metastable.encoder.expression import parse
from metastable.encoder.length import forecast, retrieval
from metastable.encoder.length.causes import agreement, attention_parts, embedding_parts, jackknife, leave_one_out
from metastable.encoder.length.dilution import MEASURED, STATISTICS
from metastable.encoder.length.documents import SHORTEST, Documents, read_documents
from metastable.encoder.length.retrieval import mean_interval
from metastable.encoder.length.rung import DEPTHS, Floats, LengthMeter, Place, Rung
from metastable.encoder.length.temperature import sharpened
from metastable.encoder.load import Encoder, load
from metastable.encoder.texts import TextCounts, blank, read_lines
from metastable.errors import BadInput, choice, suggestion
from metastable.run import storage as store

SCHEMA = "metastable.length/1"
FEWEST = 8
"""The smallest number of documents on a rung. Half of them make the forecast and half of them score it."""
MOST = 32
"""Documents that are measured, the first ones that are long enough."""
GLUED = 16
"""Glued texts that are measured."""
BEYOND = 3
"""The number of doublings beyond the last rung that are forecast."""
UNTABLED = 1024
"""The last rung of encoders without a table of positions, unless another one is asked for."""
FOCUS = 0.25
"""A head has focus where the mean top weight of its queries is at least this, …"""
SHARE = 0.5
"""… and its participation is at most this share of n."""
FACTORS = (1.1, 1.25)
"""Constant factors of the scores that are tried as a remedy, beside log n/log n₀."""
CANDIDATES = 1000
"""Documents that compete in retrieval, the first ones."""
TABLES = ("heads", "focus", "depths", "documents", "forecasts", "skill", "causes", "retrieval", "remedies")


@dataclass(frozen=True)
class Length:
    """The effects of length on one encoder. Made by `length`, or read from length.json by `Length.load`.

    limit : the longest text of the encoder, in tokens
    start : n₀, the length that forecasts are made from
    top : the longest rung of whole documents; last : the last rung, of glued texts if it is above `top`
    heads : a row for each length, source ("prefix" or "glued"), layer and head: `dilution.MEASURED` with intervals
    focus : a row a head: where it loses its focus, by measurement and by forecast; the parts of its entropy change
    depths : a row for each length, source and depth: `rung.DEPTHS` with intervals
    documents : a row for each length: cosine between documents, agreement with the mean of pieces, with intervals
    forecasts : a row for each forecast of a head, with error bars and, where it was measured, the measured value
    skill : a row for each length, statistic and method: errors, and the skill of the forecast against the method
    causes : a row for each part of a change of entropy or of similarity, see `causes`
    retrieval : a row for each length and way of representing a document; empty without queries
    remedies : a row for each factor of the scores that was tried; empty without queries
    """

    name: str
    family: str
    fingerprint: str
    limit: int
    pooling: str
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
    remedies: pd.DataFrame
    reference: Length | None = None

    def __repr__(self) -> str:
        many = f"{self.counts['documents']} documents of {self.top} tokens"
        return f"Length({self.name!r}, {self.family}, n = {SHORTEST} to {self.last}, {many})"

    def findings(self, expression: str) -> pd.DataFrame:
        """The rows that meet an expression such as "n == 512 and top_weight < 0.1": of the first table that has its
        columns, in the order of `TABLES`.
        """
        parsed = parse(expression)
        for name in TABLES:
            table: pd.DataFrame = getattr(self, name)
            if set(parsed.columns) <= set(table.columns):
                return parsed.rows(table)
        known = sorted({str(column) for name in TABLES for column in getattr(self, name).columns})
        unknown = next((name for name in parsed.columns if name not in known), None)
        if unknown is not None:
            raise BadInput(f"expression {expression!r}: there is no column {unknown!r}; {suggestion(unknown, known)}")
        raise BadInput(f"expression {expression!r}: no table has all of its columns; ask about one table at a time")

    def to_dict(self) -> dict[str, Any]:
        """Everything except the reference, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in (*TABLES, "reference")}
        return {"schema": SCHEMA, **plain, **{name: records(getattr(self, name)) for name in TABLES}}

    @classmethod
    def load(cls, path: str | Path) -> Length:
        """The result in a file length.json, or in the folder of that file."""
        file = Path(path) / "length.json" if Path(path).is_dir() else Path(path)
        saved = files.read_json(file, "the result of `metastable length`")
        if saved.pop("schema", None) != SCHEMA:
            raise BadInput(f"{file} is not a result of `metastable length` ({SCHEMA}); give its length.json")
        try:
            return cls(**{**saved, **{name: frame(saved[name]) for name in TABLES}})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{file} is damaged: {type(error).__name__}: {error}") from error

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write length.json and one CSV file a table that is not empty, each completely or not at all."""
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        written = {"length": out / "length.json"}
        files.write_json(written["length"], self.to_dict())
        for name in TABLES:
            if len(getattr(self, name)):
                written[name] = out / f"{name}.csv"
                files.write_text(written[name], getattr(self, name).to_csv(index=False))
        return written


@dataclass(frozen=True)
class Ladder:
    """Which documents are measured at which length.

    cohort : documents of at least `top` tokens; glued : texts joined to documents of the last rung
    """

    rungs: tuple[int, ...]
    start: int
    top: int
    cohort: Documents
    glued: Documents

    @property
    def last(self) -> int:
        return self.rungs[-1]

    @property
    def source(self) -> str:
        """What forecasts are made from."""
        return "prefix" if self.start <= self.top else "glued"

    @property
    def upper(self) -> str:
        """What reaches the last rung."""
        return "prefix" if self.last <= self.top else "glued"

    def documents(self, source: str, n: int) -> Documents:
        return (self.cohort if source == "prefix" else self.glued).prefixes(n)

    @classmethod
    def of(cls, documents: Documents, start: int, longest: int) -> Ladder:
        """The ladder up to `longest` tokens that these documents reach, alone or glued."""
        possible = [SHORTEST * 2**i for i in range(40) if SHORTEST * 2**i <= longest]
        reached = {n: len(documents.at_least(n)) for n in possible}
        if not possible or reached[SHORTEST] < FEWEST:
            few = f"{reached.get(SHORTEST, 0)} of {len(documents)} texts have {SHORTEST} tokens or more"
            raise BadInput(f"{few}; effects of length need at least {FEWEST} such texts")
        top = max(n for n in possible if reached[n] >= FEWEST)
        rungs = [n for n in possible if n <= top or len(documents.glued(n)) >= FEWEST]
        return cls(
            tuple(rungs),
            start=max(SHORTEST, min(start, rungs[-1] // 4)),
            top=top,
            cohort=documents.at_least(top).first(MOST),
            glued=documents.glued(rungs[-1]).first(GLUED),
        )


def length(
    model: Any,
    texts: str | Path | Iterable[str],
    queries: Sequence[str] | None = None,
    *,
    start: int = 128,
    up_to: int | None = None,
    pooling: str | None = None,
    reference: Length | str | Path | None = None,
    batch_size: int = 32,
    allow_pickle: bool = False,
    tokenizer: Any = None,
    progress: Callable[[int], None] | None = None,
    forecasted: Callable[[pd.DataFrame], None] | None = None,
    meter: Callable[..., LengthMeter] = LengthMeter,
) -> Length:
    """What happens to an encoder as texts grow.

    The model of a host program is not touched: a copy of its modules that shares the weights is measured.

    texts : a list, or a file with one text a line; in a file `.jsonl` a field query beside text makes pairs
    queries : the query of each text, for retrieval
    start : n₀, the length in tokens that forecasts are made from; lower if the ladder ends below 4·n₀
    up_to : the last length of the ladder, at most the limit of the encoder
    pooling : "mean" or "cls"; None takes that of the model's sentence-transformers files, or "mean"
    reference : the result for another encoder, shown for comparison
    progress : called with the number of tokens done
    forecasted : called with the table of forecasts before any text longer than n₀ is measured
    meter : what measures documents, in this process or on workers
    """
    beside = Length.load(reference) if isinstance(reference, (str, Path)) else reference
    encoder = load(model, allow_pickle=allow_pickle, tokenizer=tokenizer)
    own_tokenizer = encoder.reads_text()
    known, asked = _texts_and_queries(texts, queries)
    way = pooling_of(encoder, pooling)
    measuring = meter(encoder, way, batch_size, progress)
    longest = _longest(measuring, up_to)
    counts = TextCounts()
    documents, numbers = read_documents(own_tokenizer, known, longest, counts)
    ladder = Ladder.of(documents, whole(start, "start", SHORTEST, f"it must be {SHORTEST} or more"), longest)
    study = _Study(measuring, ladder)
    if forecasted is not None:
        forecasted(study.forecast_table())
    study.measure()
    retrieved, remedies = (
        study.retrieval(documents, [asked[number] for number in numbers])
        if asked is not None
        else (pd.DataFrame(), pd.DataFrame())
    )
    return Length(
        name=encoder.name,
        family=encoder.anatomy.family,
        fingerprint=encoder.fingerprint,
        limit=encoder.limit,
        pooling=way,
        start=ladder.start,
        top=ladder.top,
        last=ladder.last,
        counts={**vars(counts), "documents": len(ladder.cohort), "glued": len(ladder.glued)},
        made={**store.versions(), "transformers": metadata.version("transformers")},
        heads=study.head_table(),
        focus=study.focus_table(),
        depths=study.depth_table(),
        documents=study.document_table(),
        forecasts=study.forecast_table(),
        skill=study.skill_table(),
        causes=study.cause_table(),
        retrieval=retrieved,
        remedies=remedies,
        reference=beside,
    )


def _texts_and_queries(
    texts: str | Path | Iterable[str], queries: Sequence[str] | None
) -> tuple[Iterable[str], Sequence[str] | None]:
    """The texts and the query of each, if every text has one."""
    if not isinstance(texts, (str, Path)):
        known = list(texts)
        if queries is not None and len(queries) != len(known):
            raise BadInput(f"there are {len(queries)} queries for {len(known)} texts; give one query for each text")
        return known, queries
    if queries is not None:
        raise BadInput('queries are given beside a file of texts; give them as the field "query" of a .jsonl file')
    found = [line for line in read_lines(texts) if not blank(line.text or "")]
    asked = [line.query for line in found if line.query is not None]
    if asked and len(asked) < len(found):
        some = f"{len(asked)} of {len(found)} texts in {str(texts)!r} have a query"
        raise BadInput(f"{some}; give all of them one, or none")
    return [line.text or "" for line in found], asked or None


def pooling_of(encoder: Encoder, asked: str | None) -> str:
    """How token embeddings become one: as asked, as the model's sentence-transformers files say, or their mean."""
    if asked is not None:
        return choice(asked, "pooling", ("mean", "cls"))
    settings = encoder.folder / "1_Pooling" / "config.json" if encoder.folder is not None else None
    if settings is not None and settings.is_file() and json.loads(settings.read_text()).get("pooling_mode_cls_token"):
        return "cls"
    return "mean"


def _longest(meter: LengthMeter, up_to: int | None) -> int:
    limit = meter.limit
    if up_to is None:
        return limit if meter.positions is not None else min(limit, UNTABLED)
    rule = f"it must be a whole number from {SHORTEST} to {limit}, the limit of the encoder"
    if whole(up_to, "up_to", SHORTEST, rule) > limit:
        raise BadInput(f"up_to is {up_to}; {rule}")
    return up_to


class _Study:
    """One study under way: the rungs measured so far, and what was forecast before they were measured."""

    def __init__(self, meter: LengthMeter, ladder: Ladder) -> None:
        self.meter, self.ladder = meter, ladder
        self.rungs: dict[tuple[str, int], Rung] = {}
        self.beyond: list[forecast.Forecast] = []
        half = ladder.documents(ladder.source, ladder.start).half(odd=False)
        low = {n: meter.measure(half.prefixes(n)) for n in ladder.rungs if n <= ladder.start}
        self.forecaster = forecast.Forecaster(meter, half, ladder.start, low)
        self.made = [self.forecaster.forecast(n) for n in ladder.rungs if n > ladder.start]

    def measure(self) -> None:
        """Measure every rung and the pieces of documents, and forecast beyond the last rung."""
        ladder = self.ladder
        for source in ("prefix", "glued"):
            for n in ladder.rungs:
                documents = ladder.documents(source, n)
                if len(documents) and (source == "glued" or n <= ladder.top):
                    self.rungs[source, n] = self.meter.measure(documents)
        self._measure_pieces()
        upper = ladder.documents(ladder.upper, ladder.last)
        measured = {n: self.rungs[ladder.upper, n] for n in ladder.rungs}
        forecaster = forecast.Forecaster(self.meter, upper, ladder.last, measured)
        self.beyond = [forecaster.forecast(ladder.last * 2**i) for i in range(1, BEYOND + 1)]

    def _measure_pieces(self) -> None:
        """The documents in pieces of n₀ tokens, at the first positions and at their own."""
        ladder = self.ladder
        self.early: list[Rung] = []
        self.own: list[Rung] | None = None if self.meter.positions is None else []
        size = ladder.start - ladder.cohort.added
        documents = ladder.documents("prefix", ladder.top)
        for number in range((ladder.top - ladder.cohort.added) // size if ladder.top > ladder.start else 0):
            piece = documents.piece(number, ladder.start)
            self.early.append(self.meter.measure(piece, [ladder.top]))
            if self.own is not None:
                self.own.append(self.meter.measure(piece, [ladder.top], Place(shift=number * size)))

    def widened(self, statistic: str) -> float:
        """How much wider than expected the error bars must be, from the forecasts that could be scored; at least 1."""
        found = [forecast.misses(made, self._scored_on(made).heads[statistic], statistic) for made in self.made]
        if not found:
            return 1.0
        return max(1.0, float(np.quantile(np.stack(found), forecast.COVERAGE)) / norm.ppf(0.5 + forecast.COVERAGE / 2))

    def _scored_on(self, made: forecast.Forecast) -> Rung:
        """The documents that the forecast was not made from, at its length."""
        source = "prefix" if made.n <= self.ladder.top else "glued"
        rung = self.rungs[source, made.n]
        return rung.some(slice(1, None, 2)) if source == self.ladder.source else rung

    def head_table(self) -> pd.DataFrame:
        parts = []
        for (source, n), rung in self.rungs.items():
            layer, head = (index.ravel() for index in np.indices(rung.heads["entropy"].shape[1:]))
            columns: dict[str, Any] = {"n": n, "source": source, "layer": layer, "head": head}
            for name in MEASURED:
                columns |= _with_interval(name, rung.heads[name].reshape(len(rung), -1))
            columns["participation"] = np.exp(columns["log_participation"])
            columns["focus"] = _focus(columns["top_weight"], columns["log_participation"], n)
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def depth_table(self) -> pd.DataFrame:
        parts = []
        for (source, n), rung in self.rungs.items():
            depths = np.arange(rung.depths["mean_cosine"].shape[1])
            columns: dict[str, Any] = {"n": n, "source": source, "depth": depths}
            for name in DEPTHS:
                columns |= _with_interval(name, rung.depths[name])
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def document_table(self) -> pd.DataFrame:
        """Cosines between documents at each rung, and above n₀ the agreement with the mean of the pieces."""
        rows = []
        for n in self.ladder.rungs:
            if n > self.ladder.top:
                break
            rung = self.rungs["prefix", n]
            found = dict(zip(_ends("document_cosine"), jackknife(*leave_one_out(rung.pooled)), strict=True))
            if n > self.ladder.start:
                values = agreement(self._pieces(self.early, n), rung)
                found |= dict(zip(_ends("agreement"), mean_interval(values), strict=True))
            rows.append({"n": n, **found})
        return pd.DataFrame(rows)

    def _pieces(self, pieces: list[Rung], n: int) -> list[Rung]:
        """The pieces that lie in the first n tokens of each document."""
        added = self.ladder.cohort.added
        return pieces[: (n - added) // (self.ladder.start - added)]

    def forecast_table(self) -> pd.DataFrame:
        """All forecasts; `measured` is NaN for lengths that were not measured."""
        parts = []
        for made in (*self.made, *self.beyond):
            layer, head = (index.ravel() for index in np.indices(made.deviation["entropy"].shape))
            known = bool(self.rungs) and made in self.made
            for name in STATISTICS:
                low, high = made.interval(name, 1.0 if made in self.made else self.widened(name))
                value = made.values[name][forecast.FORECAST]
                measured = self._scored_on(made).heads[name].mean(axis=0).ravel() if known else np.nan
                columns = {
                    "made_from": made.start, "n": made.n, "layer": layer, "head": head, "statistic": name,
                    "forecast": value.ravel(), "low": low.ravel(), "high": high.ravel(), "measured": measured,
                }  # fmt: skip
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def skill_table(self) -> pd.DataFrame:
        rows = []
        for made in self.made:
            measured = self._scored_on(made)
            for name in STATISTICS:
                rows += forecast.score(made, measured.heads[name], name)
        return pd.DataFrame(rows)

    def cause_table(self) -> pd.DataFrame:
        """The parts of each change from n₀ on, see `causes`."""
        rows: list[dict[str, Any]] = []
        for n in self.ladder.rungs:
            if self.ladder.start < n <= self.ladder.top:
                whole_rung = self.rungs["prefix", n]
                own = None if self.own is None else self._pieces(self.own, n)
                parts = embedding_parts(self._pieces(self.early, n), own, whole_rung)
                rows += [_cause("document_cosine", n, name, *values) for name, values in parts.items()]
        for name, values in self._entropy_parts().items():
            rows.append(_cause("entropy", self.ladder.top, name, *mean_interval(values.mean(axis=(1, 2)))))
        return pd.DataFrame(rows)

    def _entropy_parts(self) -> dict[str, Floats]:
        if not self.early:
            return {}
        return attention_parts(self.early, self.own, self.rungs["prefix", self.ladder.top])

    def retrieval(self, documents: Documents, queries: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Ranks of documents for their queries by length and way, and with other temperatures at the last length."""
        ladder = self.ladder
        asked = documents.tokenized(self.meter.encoder.tokenizer, queries, ladder.start)
        embedded = self.meter.embed(asked)
        rows, known = [], {}
        for n in ladder.rungs:
            if ladder.start <= n <= ladder.top:
                for way, found in retrieval.ranks_by_way(self.meter, embedded, documents, n, ladder.start).items():
                    rows.append({"n": n, "way": way, "queries": len(found), **retrieval.row(found)})
                    known[n, way] = found
        remedies = []
        scaling = math.log(ladder.top) / math.log(ladder.start)
        for name, factor in [(f"{factor:g}", factor) for factor in FACTORS] + [("log n/log n₀", scaling)]:
            with sharpened(self.meter.encoder, factor):
                found = retrieval.ranks_by_way(self.meter, embedded, documents, ladder.top, ladder.top)["whole"]
            gain = mean_interval(1 / found - 1 / known[ladder.top, "whole"])
            ends = dict(zip(_ends("mrr_gain"), gain, strict=True))
            remedies.append({"remedy": name, "factor": factor, "n": ladder.top, **retrieval.row(found), **ends})
        return pd.DataFrame(rows), pd.DataFrame(remedies)

    def focus_table(self) -> pd.DataFrame:
        """One row a head: its focus by length, where it is lost, by measurement and by forecast."""
        own = {n: rung for (source, n), rung in self.rungs.items() if source == self.ladder.upper}
        first = next(iter(own.values()))
        layer, head = (index.ravel() for index in np.indices(first.heads["entropy"].shape[1:]))
        means = {name: {n: rung.heads[name].mean(axis=0).ravel() for n, rung in own.items()} for name in MEASURED}
        columns: dict[str, Any] = {"layer": layer, "head": head}
        for n in own:
            columns[f"top_weight_{n}"] = means["top_weight"][n]
        focus = {n: _focus(means["top_weight"][n], means["log_participation"][n], n) for n in own}
        ahead = {made.n: self._forecast_focus(made) for made in (*self.made, *self.beyond)}
        columns["focus_at_start"] = focus[self.ladder.start]
        columns["loses_focus_at"] = _first_without(focus, self.ladder.start)
        now = {self.ladder.start: focus[self.ladder.start]}
        columns["forecast_to_lose_at"] = _first_without(now | ahead, self.ladder.start)
        columns["score_gap"] = means["score_gap"][self.ladder.start]
        columns["gap_growth"] = _slope(means["score_gap"])
        for name, values in self._entropy_parts().items():
            columns[f"entropy_{name.replace(' ', '_')}"] = values.mean(axis=0).ravel()
        return pd.DataFrame(columns)

    def _forecast_focus(self, made: forecast.Forecast) -> np.ndarray:
        found = {name: made.values[name][forecast.FORECAST].ravel() for name in ("top_weight", "log_participation")}
        return _focus(found["top_weight"], found["log_participation"], made.n)


def _focus(top_weight: Floats, log_participation: Floats, n: int) -> np.ndarray:
    return np.asarray((top_weight >= FOCUS) & (np.exp(log_participation) <= SHARE * n))


def _first_without(focus: dict[int, np.ndarray], start: int) -> Floats:
    """The first length above n₀ at which a head that has focus at n₀ has none; NaN if there is none."""
    found = np.full(len(focus[start]), np.nan)
    for n in sorted(focus, reverse=True):
        if n > start:
            found = np.where(focus[start] & ~focus[n], n, found)
    return found


def _slope(values: dict[int, Floats]) -> Floats:
    """The least-squares slope of values against log n."""
    x = np.log(np.array(list(values), dtype=float))
    y = np.stack(list(values.values()))
    centred = x - x.mean()
    return np.asarray(np.tensordot(centred, y, axes=1) / (centred**2).sum())


def _cause(quantity: str, n: int, part: str, value: float, low: float, high: float) -> dict[str, Any]:
    return {"quantity": quantity, "n": n, "part": part, "change": value, "change_low": low, "change_high": high}


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _with_interval(name: str, values: Floats) -> dict[str, Floats]:
    """The mean over documents and its interval of 95 % (Student's), from (documents, columns)."""
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values))
    reach = student.ppf(0.975, len(values) - 1) * error
    return {name: mean, f"{name}_low": mean - reach, f"{name}_high": mean + reach}
