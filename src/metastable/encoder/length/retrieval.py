"""Retrieval by length: does the embedding of a document still answer its query when the document is long?

Each pair is a query and its document. All documents, cut to n tokens, are ranked by their cosine with a query. A
document is represented by its own embedding, by the mean of the embeddings of its chunks, or by all of its chunks, of
which the one closest to the query counts (maximum).

MRR is the mean of 1/rank; recall@k is the share of queries whose document is among the first k.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metastable.encoder.length.documents import Documents
from metastable.encoder.length.intervals import mean_interval
from metastable.encoder.length.rung import Floats, LengthMeter, unit

CUTOFFS = (1, 5, 10)
WAYS = ("whole", "mean of chunks", "maximum over chunks")


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


def ranks_by_way(meter: LengthMeter, queries: Floats, documents: Documents, n: int, chunk: int) -> dict[str, Floats]:
    """The ranks with documents cut to n tokens, for each of `WAYS`; only "whole" if n is not above the chunk size."""
    cut = documents.prefixes(n)
    embeddings = meter.embed(cut)
    found = {"whole": ranks(queries, embeddings)}
    if n > chunk:
        pieces, owners = cut.chunks(chunk)
        embedded = unit(meter.embed(pieces))
        sums = np.zeros_like(embeddings)
        np.add.at(sums, owners, embedded)
        found["mean of chunks"] = ranks(queries, sums)
        found["maximum over chunks"] = ranks(queries, embedded, owners)
    return found


def row(found: Floats) -> dict[str, float]:
    """MRR with its interval of 95 %, and recalls."""
    mean, low, high = map(float, mean_interval(1 / found))
    recalls = {f"recall_{k}": float((found <= k).mean()) for k in CUTOFFS}
    return {"mrr": mean, "mrr_low": low, "mrr_high": high, **recalls}
