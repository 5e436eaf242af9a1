"""What is said of one text, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any

import numpy as np
import torch

from metastable.encoder.hooks import Passage
from metastable.monitor.scoring import Judged

SHOWN = 3
"""Tokens in a record at most."""

LONGEST = 40
"""Characters of a word that are shown."""

CANDIDATES = 8
"""Tokens looked at for a record: several of them may be pieces of one word, which is named once."""

NO_TOKEN = "has no token of its own; give a text with a word in it"
NOT_FINITE = "has hidden states that are not finite; check the model's precision"


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text. value : how strange, in standard deviations of the clean tokens' values."""

    text: str
    value: float


@dataclass(frozen=True, slots=True)
class Record:
    """One text, judged, or rejected with the reason.

    status : "scored" or "rejected"
    p_value : calibration-conditional: with probability 0.9 over calibration sets, at most this share of clean texts is
        so strange
    p_marginal : the rank among the calibration texts over their number + 1; what alarms take
    score : higher is stranger
    first_layer : of a strange text, the first depth where it is strange at level `alpha`, corrected for the number of
        depths; None where it is at none. Depth 0 is the first layer's input.
    tokens : the words that contribute most, at most three
    detector : the one that finds it strangest
    n : tokens that are neither special nor padding
    cut : whether the text was longer than the model takes; None where that is not known
    line, id : of the text where it came from
    alpha, least : the level at which a text counts as strange, and the smallest p_value that there can be
    because : what it means to be strange to `detector`, or why the text was rejected
    shown_by : the detector that `tokens` come from
    text : the text itself where a sink asked for it; never in `to_dict`
    """

    status: str
    p_value: float | None = None
    p_marginal: float | None = None
    score: float | None = None
    first_layer: int | None = None
    tokens: tuple[Token, ...] = ()
    detector: str | None = None
    n: int = 0
    cut: bool | None = None
    line: int | None = None
    id: Any = None
    alpha: float = 0.01
    least: float = 0.0
    because: str = ""
    shown_by: str | None = None
    text: str | None = None

    @classmethod
    def rejected(cls, because: str, n: int = 0, line: int | None = None, id: Any = None) -> Record:
        return cls("rejected", n=n, because=because, line=line, id=id)

    @property
    def strange(self) -> bool:
        """Whether p_value is at most alpha."""
        return self.p_value is not None and self.p_value <= self.alpha

    @property
    def reason(self) -> str:
        """In words."""
        return self._said(self.tokens)

    def _said(self, tokens: tuple[Token, ...]) -> str:
        if self.p_value is None:
            return self.because
        if not self.strange:
            return f"ordinary: p = {_up(self.p_value)}"
        p = f"p is at most {_up(self.p_value)}" if self.p_value <= self.least else f"p = {_up(self.p_value)}"
        where = "no depth alone is so strange, but all together:"
        if self.first_layer is not None:
            where = f"it begins at depth {self.first_layer}, because"
        words = ", ".join(f"‘{token.text}’" for token in tokens)
        # Words that another detector points to are not why this one finds the text strange.
        join = ": " if self.shown_by == self.detector else "; most unusual of its words: "
        return f"{p}: at most {_in(self.p_value)} clean texts are this strange; {where} {self.because}" + (
            f"{join}{words}" if words else ""
        )

    def to_dict(self, words: bool = True) -> dict[str, Any]:
        """For JSON; what there is none of is None. Without `words`, nothing of the text itself is in it."""
        tokens = self.tokens if words else ()
        return {
            "line": self.line,
            "id": self.id,
            "status": self.status,
            "p_value": self.p_value,
            "p_marginal": self.p_marginal,
            "score": self.score,
            "first_layer": self.first_layer,
            "detector": self.detector,
            "tokens": [{"text": token.text, "value": token.value} for token in tokens],
            "n": self.n,
            "cut": self.cut,
            "reason": self._said(tokens),
        }


def records(
    judged: Judged, passage: Passage, tokenizer: Any, texts: Sequence[str] | None = None, alpha: float = 0.01
) -> list[Record]:
    """One record for each text of a passage.

    tokenizer : for the words, which are left out where it is None
    texts : the texts themselves where they are at hand: words are shown as they stand in them
    """
    fired = judged.p_by_depth <= alpha
    layers = [judged.depths[row.argmax()] if row.any() else None for row in fired]
    shown, places, values = _strangest(judged)
    top = [int(np.argmax(row)) if ok else 0 for row, ok in zip(judged.by_member, judged.usable, strict=True)]
    ids, masks = passage.ids.tolist(), passage.mask.tolist()
    found = []
    for i, usable in enumerate(judged.usable):
        n = int(judged.lengths[i])
        if not usable:
            found.append(Record.rejected(NO_TOKEN if n == 0 else NOT_FINITE, n))
            continue
        tokens: tuple[Token, ...] = ()
        if tokenizer is not None and shown[i] is not None:
            own = Words(tokenizer, ids[i], masks[i], None if texts is None else texts[i])
            tokens = own.tokens(places[i], values[i])
        found.append(
            Record(
                "scored",
                p_value=float(judged.p_value[i]),
                p_marginal=float(judged.p_marginal[i]),
                score=float(judged.score[i]),
                first_layer=layers[i] if judged.p_value[i] <= alpha else None,
                tokens=tokens,
                detector=judged.names[top[i]],
                n=n,
                alpha=alpha,
                least=judged.least,
                because=judged.words[top[i]],
                shown_by=shown[i],
            )
        )
    return found


def _strangest(judged: Judged) -> tuple[list[str | None], list[list[int]], list[list[float]]]:
    """For each text: the detector whose tokens are shown, their places, strangest first, and their values.

    It is the detector that finds the text strangest, among those that look at single tokens.
    """
    texts = len(judged.usable)
    able = [place for place, name in enumerate(judged.names) if name in judged.tokens]
    if not able:
        return [None] * texts, [[]] * texts, [[]] * texts
    by_member = np.nan_to_num(judged.by_member[:, able], nan=-math.inf)
    best = by_member.argmax(axis=1)
    stacked = torch.stack([judged.tokens[judged.names[place]] for place in able])
    own = stacked[torch.from_numpy(best).to(stacked.device), torch.arange(texts, device=stacked.device)]
    top = own.topk(min(CANDIDATES, own.shape[1]), dim=1)
    return [judged.names[able[b]] for b in best], top.indices.tolist(), top.values.tolist()


class Words:
    """The words of one text: where each token's word begins and ends, and how it is written.

    Where the text is at hand and the tokenizer knows offsets, words are the tokenizer's own, as they stand in the
    text. Else pieces that WordPiece marks as continuing (##) are put to the piece before them, and other tokens stand
    alone, as they are decoded.
    """

    def __init__(self, tokenizer: Any, ids: Sequence[int], mask: Sequence[bool], text: str | None) -> None:
        self._tokenizer, self._text = tokenizer, text
        self._ids = list(compress(ids, mask))
        # A place in the padded row to a place among the tokens.
        self._places = [place - 1 for place in accumulate(map(int, mask))]
        self._encoding: Any = None
        if text is not None and getattr(tokenizer, "is_fast", False):
            # A word is a few characters; what lies far beyond the last token need not be tokenized again.
            encoding = tokenizer(text[: 32 * len(self._ids)], truncation=True, max_length=len(self._ids))
            if encoding["input_ids"] == self._ids:
                self._encoding = encoding

    def tokens(self, places: Sequence[int], values: Sequence[float]) -> tuple[Token, ...]:
        """At most three words, the strangest first; each once, with its strangest token's value."""
        found: dict[tuple[int, int], Token] = {}
        for place, value in zip(places, values, strict=True):
            if not value > 0 or len(found) == SHOWN:
                break
            span = self._span(self._places[place])
            if span not in found and span[0] < span[1]:
                found[span] = Token(_shown(self._written(span)), round(value, 3))
        return tuple(found.values())

    def _span(self, token: int) -> tuple[int, int]:
        """Of the word: characters in the text, or tokens."""
        if self._encoding is not None:
            word = self._encoding.token_to_word(token)
            span = self._encoding.token_to_chars(token) if word is None else self._encoding.word_to_chars(word)
            # A token that stands nowhere in the text has no word to show.
            return (0, 0) if span is None else (int(span.start), int(span.end))
        first, last = token, token + 1
        while first > 0 and self._continues(first):
            first -= 1
        while last < len(self._ids) and self._continues(last):
            last += 1
        return first, last

    def _continues(self, token: int) -> bool:
        return str(self._tokenizer.convert_ids_to_tokens(self._ids[token])).startswith("##")

    def _written(self, span: tuple[int, int]) -> str:
        if self._encoding is not None and self._text is not None:
            return self._text[slice(*span)]
        return str(self._tokenizer.decode(self._ids[slice(*span)])).strip()


def _shown(word: str) -> str:
    """On one line, not too long."""
    word = "".join(c if c.isprintable() else "�" for c in word)
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"


def _up(p: float) -> str:
    """Two digits, rounded up: a p-value is never said to be smaller than it is."""
    if p >= 1:
        return "1"
    digits = 1 - math.floor(math.log10(p))
    return f"{math.ceil(p * 10**digits - 1e-9) / 10**digits:.{digits}f}".rstrip("0")


def _in(p: float) -> str:
    """ "2 in 1000", rounded up."""
    out_of = 10 ** math.ceil(-math.log10(p) - 1e-9)
    return f"{math.ceil(p * out_of - 1e-9)} in {out_of}"
