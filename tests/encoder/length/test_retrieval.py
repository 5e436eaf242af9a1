"""Ranks against a literal loop, and the ways to represent a document."""

import numpy as np
import pytest

from metastable.encoder.length.retrieval import ranks, ranks_by_way, row


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


def test_ways_against_loops(meter, documents):
    own, some = meter("bert"), documents.first(6)
    queries = np.random.default_rng(2).normal(size=(6, 32))
    found = ranks_by_way(own, queries, some, n=100, chunk=32)
    pieces = [own.embed(some.of([ids[i : min(i + 30, 98)] for i in range(0, 98, 30)])) for ids in some.ids]
    means = [np.mean([p / np.linalg.norm(p) for p in each], axis=0) for each in pieces]
    np.testing.assert_array_equal(found["mean of chunks"], literal([[cosine(q, m) for m in means] for q in queries]))
    best = [[max(cosine(q, p) for p in each) for each in pieces] for q in queries]
    np.testing.assert_array_equal(found["maximum over chunks"], literal(best))
    assert list(ranks_by_way(own, queries, some, n=32, chunk=32)) == ["whole"]


def test_mean_reciprocal_rank_and_recalls():
    found = row(np.array([1.0, 2.0, 4.0, 20.0]))
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 20) / 4)
    assert (found["recall_1"], found["recall_5"], found["recall_10"]) == (0.25, 0.75, 0.75)
