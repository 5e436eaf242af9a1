"""Documents as token ids, and batches of documents that all have the same length.

A document of n tokens is its first n − k tokens between the k special tokens that the tokenizer adds. All texts of a
batch have the same n, so there is no padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from metastable.encoder.texts import TOKENS, Batch, TextCounts, tokenized
from metastable.errors import BadInput

SHORTEST = 32
"""The first rung of the ladder, in tokens."""

MOST_TOKENS = 2**22
"""Texts are read until they have this many tokens, so that memory is bounded."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Documents:
    """Texts as token ids without the special tokens at their ends.

    ids : the ids of each text, cut to the longest rung
    before, after : the special tokens that the tokenizer adds
    special : ids that count as special inside a text
    extra : names of further inputs of the model, which are 0 (token_type_ids)
    """

    ids: tuple[Ids, ...]
    before: Ids
    after: Ids
    special: frozenset[int]
    extra: tuple[str, ...]

    @property
    def added(self) -> int:
        """k, the number of special tokens around a text."""
        return len(self.before) + len(self.after)

    def __len__(self) -> int:
        return len(self.ids)

    def length(self, index: int) -> int:
        """n of a whole text, special tokens included."""
        return len(self.ids[index]) + self.added

    def of(self, ids: Iterable[Ids]) -> Documents:
        """Other documents of the same tokenizer."""
        return Documents(tuple(ids), self.before, self.after, self.special, self.extra)

    def at_least(self, n: int) -> Documents:
        """The documents with at least n tokens."""
        return self.of(ids for ids in self.ids if len(ids) + self.added >= n)

    def tokenized(self, tokenizer: Any, texts: Sequence[str], most: int) -> Documents:
        """Other texts of any length, each cut to `most` tokens. A blank text has special tokens only."""
        rows = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=most - self.added)
        return self.of(tuple(row) for row in rows["input_ids"])

    def first(self, many: int) -> Documents:
        return self.of(self.ids[:many])

    def half(self) -> Documents:
        """Every other document, from the first."""
        return self.of(self.ids[::2])

    def prefixes(self, n: int) -> Documents:
        """Their first n tokens."""
        return self.of(ids[: n - self.added] for ids in self.ids)

    def glued(self, n: int) -> Documents:
        """Documents of n tokens, each made of consecutive texts. The rest of the last text of each is left out, so that
        every document begins where a text begins.
        """
        size = n - self.added
        pieces: list[Ids] = []
        held: Ids = ()
        for ids in self.ids:
            held += ids
            if len(held) >= size:
                pieces.append(held[:size])
                held = ()
        return self.of(pieces)

    def piece(self, number: int, n: int) -> Documents:
        """The piece of n tokens of each document with that number, counted from 0. Documents must be long enough."""
        size = n - self.added
        return self.of(ids[number * size : (number + 1) * size] for ids in self.ids)

    def chunks(self, n: int) -> tuple[Documents, list[int]]:
        """Pieces of at most n tokens that cover each document, and the document of each piece."""
        size = n - self.added
        places = [(owner, start) for owner, ids in enumerate(self.ids) for start in range(0, len(ids), size)]
        return self.of(self.ids[owner][i : i + size] for owner, i in places), [owner for owner, _ in places]

    def parts(self, size: int) -> Iterator[Documents]:
        """Parts of at most `size` neighbouring documents of equal length, and of at most `TOKENS` tokens."""
        place = 0
        while place < len(self.ids):
            n = self.length(place)
            most = max(1, min(size, TOKENS // n))
            end = place + 1
            while end < len(self.ids) and end - place < most and self.length(end) == n:
                end += 1
            yield self.of(self.ids[place:end])
            place = end

    def batch(self) -> Batch:
        """Documents of equal length as inputs of the model."""
        rows = torch.tensor([(*self.before, *ids, *self.after) for ids in self.ids])
        mask = torch.ones_like(rows, dtype=torch.bool)
        inputs = {"input_ids": rows, "attention_mask": mask.long()}
        inputs |= {name: torch.zeros_like(rows) for name in self.extra}
        special = torch.isin(rows, torch.tensor(sorted(self.special), dtype=rows.dtype))
        return Batch(inputs, mask, special, torch.arange(len(self)))


def read_documents(
    tokenizer: Any, texts: Iterable[str], longest: int, counts: TextCounts
) -> tuple[Documents, list[int]]:
    """The texts as documents of at most `longest` tokens, and the number of the text of each, counted from 0.

    Texts without an ordinary token are left out. BadInput if no text has `SHORTEST` tokens.
    """
    ids: list[Ids] = []
    numbers: list[int] = []
    before: Ids = ()
    after: Ids = ()
    extra: tuple[str, ...] = ()
    most = held = 0
    for row in tokenized(tokenizer, texts, longest, counts):
        own = row.inputs["input_ids"]
        first, last = _ordinary(row.added)
        before, after = tuple(own[:first]), tuple(own[last:])
        extra = tuple(name for name in row.inputs if name not in ("input_ids", "attention_mask"))
        ids.append(tuple(own[first:last]))
        numbers.append(row.number)
        most, held = max(most, len(own)), held + len(own)
        if held > MOST_TOKENS:
            break
    counts.check()
    if most < SHORTEST:
        raise BadInput(f"the longest text has {most} tokens; effects of length need texts of {SHORTEST} tokens or more")
    special = frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return Documents(tuple(ids), before, after, special, extra), numbers


def _ordinary(added: Sequence[bool]) -> tuple[int, int]:
    """The first token of a text, and the first special token behind it."""
    first = next(i for i, special in enumerate(added) if not special)
    last = len(added) - next(i for i, special in enumerate(reversed(added)) if not special)
    return first, last
