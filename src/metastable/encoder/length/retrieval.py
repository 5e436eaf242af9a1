"""Retrieval by length: does the embedding of a document still answer its query when the document is long?

Each document has one query. All documents, cut to n tokens, are ranked by their cosine with the query. A document is
represented by its own embedding (*whole*), by the mean of the embeddings of its chunks, or by all of its chunks, of
which the one closest to the query counts (*maximum*).

Queries are those of the user. Without them, the query of a document is a *passage*: `PASSAGE` tokens of the document
itself, at a random place among its first n tokens. This measures how much of a passage is left in the embedding of the
document around it, which is easier than to answer a question.

MRR is the mean of 1/rank; recall@k is the share of queries whose document is among the first k. Two ways are compared
query by query: the *gain* is the mean difference of 1/rank with its interval. The intervals are Bonferroni's, so that
those of a family hold at once with probability 95 %: all pairs of lengths, all ways with chunks, all factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metastable.encoder.length.documents import Documents
from metastable.encoder.length.intervals import LEVEL, mean_interval, named
from metastable.encoder.length.rung import Floats, LengthMeter, unit

CUTOFFS = (1, 5, 10)
WHOLE, MEAN, MAXIMUM = "whole", "mean of chunks", "maximum over chunks"
FACTORS = (1.1, 1.25)
"""Constant factors of the scores that are tried as a remedy, beside log n/log n₀."""
PASSAGE = 32
"""The length of a passage in tokens, without special tokens."""
SMALLEST = 2 * PASSAGE
"""The smallest length of documents and chunks."""


def passages(documents: Documents, n: int, seed: int = 0) -> Documents:
    """A passage of each document cut to n tokens; the place of a document's passage is the same share at every n."""
    shares = np.random.default_rng(seed).random(len(documents))
    found = []
    for ids, share in zip(documents.prefixes(n).ids, shares, strict=True):
        first = round(share * max(0, len(ids) - PASSAGE))
        found.append(ids[first : first + PASSAGE])
    return documents.of(found)


def ranks(queries: Floats, documents: Floats, owners: Sequence[int] | None = None) -> Floats:
    """The rank of each query's own document, from 1. Ties count half, so equal embeddings give the middle rank.

    owners : the document of each row of `documents`; a document has the similarity of its closest row
    """
    similarity = unit(queries) @ unit(documents).T
    if owners is not None:
        best = np.full((len(queries), max(owners) + 1), -np.inf)
        np.maximum.at(best.T, np.asarray(owners), similarity.T)
        similarity = best
    own = similarity.diagonal()[:, None]
    others = ~np.eye(len(queries), similarity.shape[1], dtype=bool)
    above = ((similarity > own) & others).sum(axis=1)
    return np.asarray(1 + above + 0.5 * ((similarity == own) & others).sum(axis=1), dtype=np.float64)


def chunk_ranks(meter: LengthMeter, queries: Floats, documents: Documents, chunk: int) -> dict[str, Floats]:
    """The ranks of documents in chunks of at most `chunk` tokens, by the mean and by the maximum over chunks."""
    pieces, owners = documents.chunks(chunk)
    embedded = unit(meter.embed(pieces))
    sums = np.zeros((len(documents), embedded.shape[1]))
    np.add.at(sums, owners, embedded)
    return {MEAN: ranks(queries, sums), MAXIMUM: ranks(queries, embedded, owners)}


def table_rows(
    meter: LengthMeter,
    documents: Documents,
    queries: Callable[[int], Documents],
    lengths: Sequence[int],
    start: int | None = None,
) -> list[dict[str, Any]]:
    """A row for whole documents at each length and, at the last one, for each chunk size, way and factor of the scores.

    queries : the query of each document cut to n tokens
    lengths : of documents, increasing
    start : n₀, in the factor log n/log n₀; without it no factors are tried
    """
    rows: list[dict[str, Any]] = []
    whole: dict[int, Floats] = {}
    asked: Floats = np.empty(0)
    for n in lengths:
        asked = meter.embed(queries(n))
        found = ranks(asked, meter.embed(documents.prefixes(n)))
        rows.append(_row(n, WHOLE, math.nan, found))
        if whole:
            best = max(whole, key=lambda length: float((1 / whole[length]).mean()))
            rows[-1] |= _gain(best, found, whole[best], math.comb(len(lengths), 2))
        whole[n] = found
    if len(lengths) < 2:
        return rows
    top, cut = lengths[-1], documents.prefixes(lengths[-1])
    chunks = [
        (top, way, chunk, found)
        for chunk in lengths[:-1]
        for way, found in chunk_ranks(meter, asked, cut, chunk).items()
    ]
    factors: dict[str, float] = {}
    if start is not None and top > start:
        factors = {f"{factor:g}": factor for factor in FACTORS} | {"log n/log n₀": math.log(top) / math.log(start)}
    remedies = []
    for name, factor in factors.items():
        # Long documents only: queries are short and keep their embeddings.
        remedies.append((top, f"scores × {name}", math.nan, ranks(asked, meter.embed(cut, factor))))
    for family in (chunks, remedies):
        rows += [_row(*each) | _gain(top, each[-1], whole[top], len(family)) for each in family]
    return rows


def _row(n: int, way: str, chunk: float, found: Floats) -> dict[str, Any]:
    recalls = {f"recall_{k}": float((found <= k).mean()) for k in CUTOFFS}
    place = {"n": n, "way": way, "chunk": chunk, "queries": len(found)}
    mean, low, high = mean_interval(1 / found)
    return {**place, **named("mrr", (mean, max(low, 0.0), min(high, 1.0))), **recalls}


def _gain(against: int, found: Floats, other: Floats, compared: int) -> dict[str, Any]:
    """The gain over whole documents of `against` tokens; `compared` ways are compared with them."""
    ends = mean_interval(1 / found - 1 / other, 1 - (1 - LEVEL) / compared)
    return {"against": against, **named("mrr_gain", ends)}
