"""Scored pairs of texts: a similarity task of the user, dealt into two halves.

With f(a_k) and f(b_k) the embeddings of the two texts of pair k, and s_k its score, an encoder's score on the task is
Spearman's rank correlation of cos(f(a_k), f(b_k)) and s_k over the pairs.

The *select* half makes choices, the *test* half is read for the numbers only. Pairs that share a text, directly or
through other pairs, form a group. A group stays in one half, and a resample of the bootstrap draws whole groups. Only
some pairs of a large group are used, so that each half has at least 20 groups; see `LEAST_GROUPS`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from metastable.encoder.compress.fidelity import unit
from metastable.encoder.exit.labelled import LARGEST
from metastable.encoder.exit.scores import Bootstrap, Interval, spearman, value
from metastable.encoder.load import Encoder
from metastable.encoder.pooling import embed
from metastable.encoder.texts import Batch, TextCounts, batches, blank, lines, tokenized, unusable
from metastable.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST = 200
"""Pairs that are needed at least. On STS-B and two encoders, one choice in twenty by 100 pairs lost 0.03 and 0.11 of
the score of the best layer, and one choice in twenty by 200 pairs 0.01 and 0.03; see the last table of
docs/compression.md."""
LEAST_GROUPS = 40
"""Groups that are needed at least. No group has more than 1/40 of all pairs that are used, so that each half has at
least 20 groups however they are dealt: resamples draw groups, and fewer vary too little."""
MOST = 1000
"""Pairs of a half, at most. A correlation r of n pairs has a standard error of about (1 − r²)/√n (Fisher's z), which is
0.011 for r = 0.8 and n = 1000."""
FIELDS = ("sentence1", "sentence2", "score")
WANTED = 'give one object a line with the fields "sentence1", "sentence2" and "score"'


@dataclass(frozen=True)
class Pair:
    """Two texts and a number: the more alike they are, the higher it is. name : what messages call the pair"""

    first: str
    second: str
    score: float
    name: str


def read_pairs(pairs: str | Path | Iterable[Any]) -> list[Pair]:
    """Pairs from a file `.jsonl`, or from (text, text, number); BadInput if they are unusable, too few or constant."""
    rows = _file_rows(pairs) if isinstance(pairs, (str, Path)) else _rows(pairs)
    found = [_pair(row, name) for row, name in rows]
    if len(found) < LEAST:
        raise BadInput(f"there are {len(found)} scored pairs; give at least {LEAST}, better a thousand")
    if len({pair.score for pair in found}) == 1:
        raise BadInput(f"the score of every pair is {found[0].score:g}; give pairs with different scores")
    return found


def _file_rows(path: str | Path) -> Iterator[tuple[tuple[Any, ...], str]]:
    if Path(path).suffix.lower() != ".jsonl":
        raise BadInput(f"the pairs {str(path)!r} are no .jsonl file; {WANTED}")
    if not Path(path).is_file():
        raise BadInput(f"the pairs {str(path)!r} are no file; give a .jsonl file of pairs")
    for line in lines(path, jsonl=False):
        name = f"line {line.number} of {str(path)!r}"
        if line.text is None:
            raise BadInput(f"{name} {line.reason}")
        if blank(line.text):
            continue
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{name} is not JSON; {WANTED}") from error
        for field in FIELDS:
            if not isinstance(record, dict) or field not in record:
                raise BadInput(f'{name} has no "{field}" field; {WANTED}')
        yield tuple(record[field] for field in FIELDS), name


def _rows(pairs: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if not isinstance(pairs, Iterable):
        raise BadInput(f"pairs is of type {type(pairs).__name__}; give a .jsonl file or a list of (text, text, number)")
    for number, row in enumerate(pairs):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise BadInput(f"pair {number} is not of the form (text, text, number); give one such tuple for each pair")
        yield tuple(row), f"pair {number}"


def _pair(row: tuple[Any, ...], name: str) -> Pair:
    *texts, score = row
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"{name} has a text of type {type(text).__name__}; both texts must be strings")
        if blank(text):
            raise BadInput(f"{name} has a blank text; give two texts with a word in them")
        if reason := unusable(text):
            raise BadInput(f"a text of {name} {reason}")
    plain = score.item() if hasattr(score, "item") else score
    if not isinstance(plain, (int, float)) or isinstance(plain, bool):
        raise BadInput(f"{name} has a score of type {type(plain).__name__}; give a number")
    # The comparison is false for NaN.
    if not abs(plain) < LARGEST:
        raise BadInput(f"{name} has the score {str(plain)[:20]}; give a finite number below {LARGEST:g}")
    return Pair(texts[0], texts[1], float(plain), name)


@dataclass(frozen=True)
class Half:
    """Some of the pairs, ready for an encoder.

    batches : the different texts; places : (pairs, 2), the place of both texts of a pair in the order of the batches
    scores : (pairs,); groups : (pairs,), the number of the group of each pair
    """

    batches: list[Batch]
    places: Ints
    scores: Floats
    groups: Ints

    def cosines(self, encoder: Encoder, pooling: str) -> Floats:
        """The cosine of the embeddings of each pair."""
        found = embed(encoder, self.batches, pooling)
        if not (np.isfinite(found).all() and found.any(axis=1).all()):
            raise BadInput("the encoder returns an embedding that is zero or not finite, which has no direction")
        first, second = (unit(found)[self.places[:, side]] for side in (0, 1))
        return np.asarray((first * second).sum(axis=1))

    def correlation(self, encoder: Encoder, pooling: str) -> float:
        """The score of the encoder on these pairs."""
        return value(spearman, self.scores, self.cosines(encoder, pooling))

    def compared(self, full: Floats, smaller: Floats, seed: int) -> tuple[Interval, Interval, Interval]:
        """From the cosines by two encoders: the score of the full one, of the smaller one, and their difference.

        Intervals of 95 % are over groups of pairs; the difference is that of both scores on the same resamples.
        """
        both = Bootstrap(self.groups, seed).compare(spearman, self.scores, [full, smaller], 0, wider=1.0)
        return both[0][0], *both[1]

    def identity(self) -> list[Any]:
        """Everything that a score depends on beside the encoder, for a hash."""
        tokens = [batch.inputs["input_ids"].tolist() for batch in self.batches]
        return [tokens, self.places.tolist(), self.scores.tolist(), self.groups.tolist()]

    def tokens(self) -> set[tuple[int, ...]]:
        """The token ids of each text."""
        rows = ((batch.inputs["input_ids"], batch.mask) for batch in self.batches)
        return {tuple(row[there].tolist()) for ids, mask in rows for row, there in zip(ids, mask, strict=True)}


@dataclass(frozen=True)
class Task:
    """The two halves of the pairs; see the module."""

    select: Half
    test: Half


def deal(encoder: Encoder, pairs: Sequence[Pair], length: int, batch_size: int, seed: int) -> Task:
    """The pairs in two halves. Texts with the same tokens, as far as they are read, are the same text."""
    texts = [text for pair in pairs for text in (pair.first, pair.second)]
    counts = TextCounts()
    same: dict[tuple[int, ...], int] = {}
    ends = np.full(len(texts), -1, dtype=np.int64)
    for row in tokenized(encoder.tokenizer, texts, length, counts):
        ends[row.number] = same.setdefault(tuple(row.inputs["input_ids"]), len(same))
    if (ends < 0).any():
        raise BadInput(
            f"{pairs[int(ends.argmin()) // 2].name} has a text of special tokens only; give texts with words"
        )
    counts.check_known()
    edges = ends.reshape(-1, 2)
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(len(same), len(same)))
    many, part_of = connected_components(graph, directed=False)
    if many < LEAST_GROUPS:
        raise BadInput(
            f"the pairs share so many texts that the number of groups without a common text is {many}; choices and "
            f"numbers need different texts, so give at least {LEAST_GROUPS} such groups"
        )
    groups: dict[int, list[int]] = {}
    for number, group in enumerate(part_of[edges[:, 0]].tolist()):
        groups.setdefault(group, []).append(number)
    dealt = list(groups.values())
    largest = _largest([len(some) for some in dealt])
    used = sum(min(len(some), largest) for some in dealt)
    if used < LEAST:
        raise BadInput(
            f"the pairs share so many texts that only {used} of {len(pairs)} can be used; give at least {LEAST} pairs, "
            "most of which share no text with others"
        )
    draw = random.Random(seed)
    draw.shuffle(dealt)
    halves: tuple[list[int], list[int]] = ([], [])
    for some in dealt:
        min(halves, key=len).extend(some if len(some) <= largest else draw.sample(some, largest))
    words = {int(place): text for place, text in zip(ends, texts, strict=True)}
    select, test = (
        _half(encoder, edges[half[:MOST]], words, [pairs[i].score for i in half[:MOST]], part_of, length, batch_size)
        for half in halves
    )
    return Task(select, test)


def _largest(sizes: Sequence[int]) -> int:
    """The number of pairs of a group that are used at most; see `LEAST_GROUPS`."""
    tried = range(1, min(max(sizes), 2 * MOST // LEAST_GROUPS) + 1)
    return max(size for size in tried if LEAST_GROUPS * size <= sum(min(each, size) for each in sizes))


def _half(
    encoder: Encoder, edges: Ints, words: dict[int, str], scores: list[float], part_of: Ints, length: int, size: int
) -> Half:
    if len(set(scores)) < 2:
        raise BadInput(
            f"all pairs of one half have the score {scores[0]:g}; give more pairs that share no text and have "
            "different scores"
        )
    used, places = np.unique(edges, return_inverse=True)
    found = list(batches(encoder.tokenizer, [words[int(text)] for text in used], length, size))
    # Batches hold texts by length.
    order = np.argsort(np.concatenate([batch.numbers.numpy() for batch in found]))
    groups = np.unique(part_of[edges[:, 0]], return_inverse=True)[1].astype(np.int64)
    return Half(found, order[places.reshape(-1, 2)].astype(np.int64), np.array(scores), groups)
