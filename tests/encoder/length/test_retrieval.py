"""Ranks against a literal loop, the ways to represent a document, passages, and gains against plain statistics."""

import math

import numpy as np
import pytest
from scipy import stats

from metastable.encoder.length.retrieval import MAXIMUM, MEAN, PASSAGE, chunk_ranks, passages, ranks, table_rows


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def literal(similarity):
    """1 + the number of better documents + half of the number of equally good ones."""
    found = []
    for i, own in enumerate(similarity):
        others = [s for j, s in enumerate(own) if j != i]
        found.append(1 + sum(s > own[i] for s in others) + sum(s == own[i] for s in others) / 2)
    return found


def test_ranks():
    draw = np.random.default_rng(0)
    queries, documents = draw.normal(size=(2, 7, 3))
    expected = literal([[cosine(q, d) for d in documents] for q in queries])
    np.testing.assert_array_equal(ranks(queries, documents), expected)


def test_ties_give_the_middle_rank():
    same = np.ones((5, 3))
    np.testing.assert_array_equal(ranks(same, same), [3.0] * 5)


def test_a_document_of_several_rows_counts_by_its_closest():
    draw = np.random.default_rng(1)
    queries, rows = draw.normal(size=(3, 4)), draw.normal(size=(8, 4))
    owners = [0, 0, 1, 1, 1, 2, 2, 0]
    best = [[max(cosine(q, r) for r, o in zip(rows, owners, strict=True) if o == d) for d in range(3)] for q in queries]
    np.testing.assert_array_equal(ranks(queries, rows, owners), literal(best))


def test_chunks_against_loops(meter, documents):
    own, some = meter("bert"), documents.first(6).prefixes(100)
    queries = np.random.default_rng(2).normal(size=(6, 32))
    found = chunk_ranks(own, queries, some, 32)
    pieces = [own.embed(some.of([ids[i : min(i + 30, 98)] for i in range(0, 98, 30)])) for ids in some.ids]
    means = [np.mean([p / np.linalg.norm(p) for p in each], axis=0) for each in pieces]
    np.testing.assert_array_equal(found[MEAN], literal([[cosine(q, m) for m in means] for q in queries]))
    best = [[max(cosine(q, p) for p in each) for each in pieces] for q in queries]
    np.testing.assert_array_equal(found[MAXIMUM], literal(best))


def test_passages_lie_inside_the_documents(documents):
    for n in (64, 128):
        found = passages(documents, n)
        starts = []
        for passage, ids in zip(found.ids, documents.prefixes(n).ids, strict=True):
            places = [i for i in range(len(ids) - PASSAGE + 1) if ids[i : i + PASSAGE] == passage]
            assert places
            starts.append(places[0] / (len(ids) - PASSAGE))
        assert max(starts) - min(starts) > 0.4
    short = documents.of([documents.ids[0][:5]])
    assert passages(short, 64).ids == short.ids


@pytest.fixture(scope="module")
def table(tokenizer, long_texts):
    """Rows of table_rows, and the ranks behind them, each computed by itself."""
    from metastable.encoder.length.documents import read_documents
    from metastable.encoder.length.rung import LengthMeter
    from metastable.encoder.load import load
    from metastable.encoder.texts import TextCounts
    from tests.encoder.length.conftest import encoder

    own = LengthMeter(load(encoder("bert"), tokenizer=tokenizer), "mean", 5)
    some = read_documents(tokenizer, long_texts, 128, TextCounts())[0]
    rows = table_rows(own, some, lambda n: passages(some, n), [64, 128], 64)
    whole = {n: ranks(own.embed(passages(some, n)), own.embed(some.prefixes(n))) for n in (64, 128)}
    sharp = ranks(own.embed(passages(some, 128)), own.embed(some.prefixes(128), 1.25))
    return rows, whole, sharp


def test_mean_reciprocal_ranks_and_recalls(table):
    rows, whole, _ = table
    for row, (n, found) in zip(rows, whole.items(), strict=False):
        assert (row["n"], row["way"]) == (n, "whole")
        assert math.isnan(row["chunk"])
        assert row["mrr"] == pytest.approx(np.mean([1 / rank for rank in found]))
        assert row["recall_5"] == pytest.approx(np.mean([rank <= 5 for rank in found]))


def test_whole_documents_are_compared_with_the_best_shorter_length(meter, documents):
    rows = table_rows(meter("bert"), documents, lambda n: passages(documents, n), [64, 96, 128])
    ranks = [row["mrr"] for row in rows[:3]]
    assert ranks[0] != ranks[1]
    assert rows[2]["against"] == (64 if ranks[0] > ranks[1] else 96)


def test_gains_are_paired_and_their_intervals_hold_together(table):
    rows, whole, sharp = table
    ways = [(row["way"], row["chunk"]) for row in rows[2:4]]
    assert ways == [(MEAN, 64), (MAXIMUM, 64)]
    longer = rows[1]
    difference = 1 / whole[128] - 1 / whole[64]
    assert longer["against"] == 64
    expected = stats.ttest_1samp(difference, 0).confidence_interval(0.95)
    assert (longer["mrr_gain_low"], longer["mrr_gain_high"]) == pytest.approx(tuple(expected))
    factors = [row for row in rows if row["way"].startswith("scores")]
    assert [row["way"] for row in factors] == ["scores × 1.1", "scores × 1.25", "scores × log n/log n₀"]
    expected = stats.ttest_1samp(1 / sharp - 1 / whole[128], 0).confidence_interval(1 - 0.05 / 3)
    assert factors[1]["mrr_gain"] == pytest.approx(float(np.mean(1 / sharp - 1 / whole[128])))
    assert (factors[1]["mrr_gain_low"], factors[1]["mrr_gain_high"]) == pytest.approx(tuple(expected))
    assert "against" not in rows[0]
