"""The effects of length on one encoder, step by step: forecasts, measurements, causes and retrieval.

Forecasts are made from one half of the documents, cut to n₀ tokens, and they are complete before any longer text is
measured. They are scored on the other half.

The phase of the tokens at each depth is that of the audit (see `verdict`): the spread of the tokens is compared with
that of a twin with random weights, which is measured on a few of the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metastable.arrays import whole
from metastable.encoder.length import forecast, retrieval
from metastable.encoder.length.causes import agreement, attention_parts, embedding_parts, leave_one_out
from metastable.encoder.length.dilution import MEASURED, STATISTICS
from metastable.encoder.length.documents import SHORTEST, Documents, read_documents
from metastable.encoder.length.intervals import jackknife, mean_interval, named
from metastable.encoder.length.ladder import LengthLadder
from metastable.encoder.length.result import FOCUS, RISK, SHARE, TABLES, Length, part_column, table_of
from metastable.encoder.length.rung import DEPTHS, Floats, LengthMeter, PlaceInDocument, Rung, Work, run_here
from metastable.encoder.load import load, twin
from metastable.encoder.pooling import pooling_of
from metastable.encoder.texts import TextCounts, blank, read_lines
from metastable.encoder.verdict import phases, spread_of
from metastable.errors import BadInput
from metastable.versions import versions

BEYOND = 3
"""The number of doublings beyond the last rung that are forecast."""
UNTABLED = 1024
"""The last rung of encoders without a table of positions, unless another one is asked for."""
CANDIDATES = {"pairs": 200, "passages": 100}
"""Documents that compete in retrieval, the first ones."""
ENOUGH = 30
"""Retrieval is measured up to the last length that this many documents reach, or up to the last length of documents."""
TWINS = 8
"""Documents that the twin with random weights is measured on, the first ones."""


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
    fail_on: str | None = None,
    progress: Callable[[int], None] | None = None,
    forecasted: Callable[[pd.DataFrame], None] | None = None,
    work: Work = run_here,
) -> Length:
    """What happens to an encoder as texts grow.

    The model of a host program is not touched: a copy of its modules that shares the weights is measured.

    texts : a list, or a file with one text a line; in a file `.jsonl` a field query beside text makes pairs
    queries : the query of each text, for retrieval; without them, passages of the texts are looked up
    start : n₀, the length in tokens that forecasts are made from: the nearest rung below, and at most a quarter of the
        last rung
    up_to : the last length of the ladder, at most the limit of the encoder
    pooling : "mean", "cls" or "max"; None takes that of a model of sentence-transformers, or "mean"
    reference : the result for another encoder, for comparison
    fail_on : an expression (see `Length.findings`); one that does not fit the tables is refused before texts are read
    progress : called with the number of tokens done
    forecasted : called with the table of forecasts before any text longer than n₀ is measured
    work : runs the passes of the model, here or on workers (`scale.corpora.JobsOnWorkers`)
    """
    if fail_on is not None:
        table_of(fail_on)
    whole(start, "start", SHORTEST, f"it must be a whole number, {SHORTEST} or more")
    whole(batch_size, "the batch size", 1, "it must be at least 1")
    beside = Length.load(reference) if isinstance(reference, (str, Path)) else reference
    encoder = load(model, allow_pickle=allow_pickle, tokenizer=tokenizer)
    own_tokenizer = encoder.reads_text()
    way = pooling_of(encoder, pooling)
    meter = LengthMeter(encoder, way, batch_size, progress, work)
    longest = _longest(meter, up_to)
    known, asked = _texts_and_queries(texts, queries)
    counts = TextCounts()
    documents, numbers = read_documents(own_tokenizer, known, longest, counts)
    ladder = LengthLadder.of(documents, start, longest)
    study = _Study(meter, ladder)
    if forecasted is not None:
        forecasted(study.forecast_table())
    study.measure()
    study.retrieve(documents, None if asked is None else [asked[number] for number in numbers])
    return Length(
        name=encoder.name,
        family=encoder.anatomy.family,
        fingerprint=encoder.fingerprint,
        limit=meter.limit,
        pooling=way,
        asked="passages" if asked is None else "pairs",
        start=ladder.start,
        top=ladder.top,
        last=ladder.last,
        counts={**vars(counts), "documents": len(ladder.cohort), "glued": len(ladder.glued)},
        made={**versions(), "transformers": metadata.version("transformers")},
        heads=study.head_table(),
        focus=study.focus_table(),
        depths=study.depth_table(),
        documents=study.document_table(),
        forecasts=study.forecast_table(),
        skill=study.skill_table(),
        causes=study.cause_table(),
        retrieval=_table("retrieval", study.retrieved),
        reference=beside,
    )


def _texts_and_queries(
    texts: str | Path | Iterable[str], queries: Sequence[str] | None
) -> tuple[Iterable[str], Sequence[str] | None]:
    """The texts, and the query of each text or None."""
    if not isinstance(texts, (str, Path)):
        if queries is None:
            return texts, None
        known, asked = list(texts), _checked(queries)
        if len(asked) != len(known):
            raise BadInput(f"there are {len(asked)} queries for {len(known)} texts; give one query for each text")
        return known, asked
    if queries is not None:
        raise BadInput('queries are given beside a file of texts; give them as the field "query" of a .jsonl file')
    found = [line for line in read_lines(texts) if not blank(line.text or "")]
    asked = _checked([line.query for line in found if line.query is not None])
    if asked and len(asked) < len(found):
        some = f"{len(asked)} of {len(found)} texts in {str(texts)!r} have a query"
        raise BadInput(f"{some}; give all of them one, or none")
    return [line.text or "" for line in found], asked or None


def _checked(queries: Iterable[Any]) -> list[str]:
    """The queries; BadInput for one that is no text or that is blank."""
    if isinstance(queries, str):
        raise BadInput("queries is one string; give a list with one query for each text")
    found = []
    for number, query in enumerate(queries):
        if not isinstance(query, str):
            raise BadInput(f"query {number} is of type {type(query).__name__}; give a string for each text")
        # A lone surrogate is no text, and tokenizers refuse it.
        whole = query.encode("utf-8", "replace").decode("utf-8")
        if blank(whole):
            raise BadInput(f"query {number} is blank; give every text a query")
        found.append(whole)
    return found


def _longest(meter: LengthMeter, up_to: int | None) -> int:
    """The longest text that is read, in tokens."""
    limit = meter.limit
    if limit < SHORTEST:
        raise BadInput(f"the encoder reads at most {limit} tokens; effects of length begin at {SHORTEST} tokens")
    if up_to is None:
        return limit if meter.positions is not None else min(limit, UNTABLED)
    rule = f"it must be a whole number from {SHORTEST} to {limit}, the limit of the encoder"
    if whole(up_to, "up_to", SHORTEST, rule) > limit:
        raise BadInput(f"up_to is {up_to}; {rule}")
    return up_to


class _Study:
    """One study under way. It is made with the rungs up to n₀ and the forecasts from them; `measure` adds the others.

    rungs : by source and length, see `Ladder.measured`
    made : forecasts from n₀ at the upper rungs; beyond : forecasts from the last rung
    usual : the spread of the tokens of a twin with random weights at each depth, by the length of whole documents
    early, own : the documents in pieces of n₀ tokens, at the first positions and at their own positions; own is None
        without a table of positions
    """

    def __init__(self, meter: LengthMeter, ladder: LengthLadder) -> None:
        self.meter, self.ladder = meter, ladder
        self.rungs: dict[tuple[str, int], Rung] = {}
        self.beyond: list[forecast.LengthForecast] = []
        self.early: list[Rung] = []
        self.own: list[Rung] | None = None if meter.positions is None else []
        self.retrieved: list[dict[str, Any]] = []
        self.usual: dict[int, Floats] = {}
        self._measure([(source, n) for source, n in ladder.measured if n <= ladder.start])
        self.made = self._forecasts(ladder.start, [n for n in ladder.rungs if n > ladder.start])

    def _forecasts(self, start: int, lengths: list[int]) -> list[forecast.LengthForecast]:
        """Forecasts from one half of the documents that reach the last rung, cut to `start` tokens."""
        source = self.ladder.upper
        half = self.ladder.documents(source, start).half()
        known = {n: self.rungs[source, n].some(slice(0, None, 2)) for n in self.ladder.rungs if n <= start}
        return forecast.Forecaster(self.meter, half, start, known).forecasts(lengths)

    def measure(self) -> None:
        """Measure the upper rungs, the pieces of documents and the twin, and forecast beyond the last rung."""
        ladder = self.ladder
        self._measure([(source, n) for source, n in ladder.measured if n > ladder.start])
        self._measure_pieces()
        self._measure_twin()
        self.beyond = self._forecasts(ladder.last, [ladder.last * 2**i for i in range(1, BEYOND + 1)])

    def _measure(self, wanted: Iterable[tuple[str, int]]) -> None:
        for source, n in wanted:
            self.rungs[source, n] = self.meter.measure(self.ladder.documents(source, n))

    def _measure_pieces(self) -> None:
        ladder = self.ladder
        if ladder.top <= ladder.start:
            return
        first = len(ladder.cohort.before)
        size = ladder.start - ladder.cohort.added
        for number in range((ladder.top - ladder.cohort.added) // size):
            piece = ladder.cohort.piece(number, ladder.start)
            self.early.append(self.meter.measure(piece, [ladder.top]))
            if self.own is not None:
                place = PlaceInDocument(gap=number * size, at=first)
                self.own.append(self.meter.measure(piece, [ladder.top], place) if number else self.early[0])

    def _scored_on(self, made: forecast.LengthForecast) -> Rung:
        """The half of the documents that the forecast was not made from, at its length."""
        return self.rungs[self.ladder.upper, made.n].some(slice(1, None, 2))

    def widened(self, statistic: str) -> float:
        """How much wider than expected error bars beyond the last rung must be, see `forecast.widening`."""
        return forecast.widening(self.made, [self._scored_on(made) for made in self.made], statistic)

    def _measure_twin(self) -> None:
        random = LengthMeter(twin(self.meter.encoder), self.meter.pooling, self.meter.batch_size)
        for n in self._whole_documents():
            rung = random.measure(self.ladder.cohort.first(TWINS).prefixes(n))
            self.usual[n] = spread_of(*_cosines(rung))[0]

    def retrieve(self, documents: Documents, queries: Sequence[str] | None) -> None:
        """Rank documents for their queries by length and way; with queries of the user, at other temperatures too."""
        meter = self.meter
        reached = [n for n in self._whole_documents() if len(documents.at_least(n)) >= ENOUGH]
        top = reached[-1] if reached else self.ladder.top
        lengths = [n for n in self._whole_documents() if retrieval.SMALLEST <= n <= top]
        if queries is None:
            some = documents.at_least(top).first(CANDIDATES["passages"])
            self.retrieved = retrieval.table_rows(meter, some, lambda n: retrieval.passages(some, n), lengths)
            return
        long = [i for i in range(len(documents)) if documents.length(i) >= top][: CANDIDATES["pairs"]]
        some = documents.of(documents.ids[i] for i in long)
        asked = some.tokenized(meter.encoder.tokenizer, [queries[i] for i in long], meter.limit)
        self.retrieved = retrieval.table_rows(meter, some, lambda n: asked, lengths, self.ladder.start)

    def head_table(self) -> pd.DataFrame:
        parts = []
        for (source, n), rung in self.rungs.items():
            columns: dict[str, Any] = {"n": n, "source": source, **_places(rung.heads["entropy"][0])}
            for name in MEASURED:
                columns |= named(name, mean_interval(rung.heads[name].reshape(len(rung), -1)))
            columns["participation"] = np.exp(columns["log_participation"])
            columns["focus"] = _focus(columns, n)
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def depth_table(self) -> pd.DataFrame:
        parts = []
        for (source, n), rung in self.rungs.items():
            columns: dict[str, Any] = {"n": n, "source": source}
            columns["depth"] = np.arange(rung.depths["mean_cosine"].shape[1])
            none = np.ones(len(columns["depth"]))
            usual = self.usual[n] if source == "prefix" else none
            columns["phase"] = phases(rung.depths["mean_cosine"].mean(axis=0), spread_of(*_cosines(rung)), usual)
            for name in DEPTHS:
                columns |= named(name, mean_interval(rung.depths[name]))
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def document_table(self) -> pd.DataFrame:
        """Cosines between documents at each rung, and above n₀ the agreement with the mean of the pieces."""
        rows: list[dict[str, Any]] = []
        for n in self._whole_documents():
            rung = self.rungs["prefix", n]
            row = {"n": n, **named("document_cosine", jackknife(*leave_one_out(rung.pooled)))}
            if n > self.ladder.start:
                row |= named("agreement", mean_interval(agreement(self._inside(self.early, n), rung)))
            rows.append(row)
        return _table("documents", rows)

    def _whole_documents(self) -> list[int]:
        return [n for n in self.ladder.rungs if n <= self.ladder.top]

    def _inside(self, pieces: list[Rung], n: int) -> list[Rung]:
        """The pieces that lie in the first n tokens of each document."""
        added = self.ladder.cohort.added
        return pieces[: (n - added) // (self.ladder.start - added)]

    def forecast_table(self) -> pd.DataFrame:
        """All forecasts so far; `measured` is NaN for lengths that were not measured."""
        parts = []
        for made in self.made:
            known = self._scored_on(made) if self.beyond else None
            parts += [_forecast_rows(made, name, 1.0, known) for name in STATISTICS]
        for made in self.beyond:
            parts += [_forecast_rows(made, name, self.widened(name), None) for name in STATISTICS]
        return pd.concat(parts, ignore_index=True) if parts else _table("forecasts", [])

    def skill_table(self) -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        for made in self.made:
            measured = self._scored_on(made)
            for name in STATISTICS:
                rows += forecast.score(made, measured.heads[name], name)
        return _table("skill", rows)

    def cause_table(self) -> pd.DataFrame:
        """The parts of each change from n₀ on, see `causes`."""
        rows: list[dict[str, Any]] = []
        for n in self._whole_documents():
            if n > self.ladder.start:
                own = None if self.own is None else self._inside(self.own, n)
                parts = embedding_parts(self._inside(self.early, n), own, self.rungs["prefix", n])
                for name, ends in parts.items():
                    rows.append({"quantity": "document_cosine", "n": n, "part": name, **named("change", ends)})
        for name, values in self._entropy_parts().items():
            ends = mean_interval(values.mean(axis=(1, 2)))
            rows.append({"quantity": "entropy", "n": self.ladder.top, "part": name, **named("change", ends)})
        return _table("causes", rows)

    def _entropy_parts(self) -> dict[str, Floats]:
        if not self.early:
            return {}
        return attention_parts(self.early, self.own, self.rungs["prefix", self.ladder.top])

    def focus_table(self) -> pd.DataFrame:
        """One row a head: where it loses its focus, by measurement and by forecast."""
        start = self.ladder.start
        rungs = {n: self.rungs[self.ladder.upper, n] for n in self.ladder.rungs}
        means = {name: {n: rung.heads[name].mean(axis=0).ravel() for n, rung in rungs.items()} for name in MEASURED}
        focus = {n: _focus({name: means[name][n] for name in MEASURED}, n) for n in rungs}
        last = self.ladder.last
        ahead = {made.n: _forecast_focus(made) for made in self.made}
        later = {made.n: _forecast_focus(made, self.widened("top_weight")) for made in self.beyond}
        columns: dict[str, Any] = {
            **_places(rungs[start].heads["entropy"][0]),
            "focus_at_start": focus[start],
            "loses_focus_at": _first_without(focus, start),
            "forecast_to_lose_at": _first_without({start: focus[start], **ahead}, start),
            "forecast_to_lose_later": _first_without({last: focus[start] & focus[last], **later}, last),
            "score_gap": means["score_gap"][start],
            "gap_growth": _slope(means["score_gap"]),
        }
        for name, values in self._entropy_parts().items():
            columns[part_column(name)] = values.mean(axis=0).ravel()
        return pd.DataFrame(columns, columns=list(TABLES["focus"]))


def _table(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(TABLES[name]))


def _cosines(rung: Rung) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Mean cosine and mean squared cosine of the tokens at each depth, with their intervals."""
    cosine, square = (mean_interval(rung.depths[name]) for name in ("mean_cosine", "mean_square_cosine"))
    return cosine, square


def _places(of_heads: Floats) -> dict[str, Any]:
    """The columns layer and head for values (layers, heads)."""
    layer, head = np.indices(of_heads.shape)
    return {"layer": layer.ravel(), "head": head.ravel()}


def _forecast_rows(made: forecast.LengthForecast, statistic: str, widened: float, known: Rung | None) -> pd.DataFrame:
    value = made.values[statistic][forecast.FORECAST]
    low, high = made.interval(statistic, widened)
    measured = np.full(value.shape, np.nan) if known is None else known.heads[statistic].mean(axis=0)
    values = {"forecast": value, "low": low, "high": high, "measured": measured}
    columns = {"made_from": made.start, "n": made.n, **_places(value), "statistic": statistic}
    return pd.DataFrame({**columns, **{name: each.ravel() for name, each in values.items()}})


def _focus(values: Mapping[str, Floats], n: int) -> np.ndarray:
    """Whether each head has focus, from its statistics at n tokens."""
    return np.asarray((values["top_weight"] >= FOCUS) & (np.exp(values["log_participation"]) <= SHARE * n))


def _forecast_focus(made: forecast.LengthForecast, widened: float = 1.0) -> np.ndarray:
    """Whether each head is forecast to have focus: a head at `RISK` counts as one that loses it."""
    few = np.exp(made.values["log_participation"][forecast.FORECAST]) <= SHARE * made.n
    return np.asarray(few & (made.probability_below("top_weight", FOCUS, widened) < RISK)).ravel()


def _first_without(focus: dict[int, np.ndarray], start: int) -> Floats:
    """The first length above `start` from which on a head with focus at `start` has none; NaN if there is none."""
    found, lost = np.full(len(focus[start]), np.nan), focus[start].copy()
    for n in sorted(focus, reverse=True):
        if n > start:
            lost &= ~focus[n]
            found = np.where(lost, n, found)
    return found


def _slope(values: dict[int, Floats]) -> Floats:
    """The least-squares slope of values against log n; NaN for one length."""
    if len(values) < 2:
        return np.full_like(next(iter(values.values())), np.nan)
    x = np.log(np.array(list(values), dtype=float))
    centred = x - x.mean()
    return np.asarray(np.tensordot(centred, np.stack(list(values.values())), axes=1) / (centred**2).sum())
