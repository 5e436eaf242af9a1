"""The record of one text: its numbers, and the reason in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from typing import Any

import numpy as np
import torch

from metastable.encoder.hooks import Passage
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.exposure import EXPOSURE, called
from metastable.monitor.scoring import Assessment
from metastable.monitor.spoiling import KINDS
from metastable.notebook import gauge, table

# Most words in a record.
SHOWN = 3
# Characters of a word that are shown.
LONGEST = 40
# Tokens that are considered for a record. Several may be pieces of one word, which is named once.
CANDIDATES = 8

# A text with a p-value up to this one is called unusual, if it is not strange.
UNUSUAL = 0.05

# The surprise, −log of a tail probability, from which a detector alone explains a text: one in a thousand clean texts.
SURE = 6.9

# What is written of a record, in order.
WRITTEN = (
    *(
        "line",
        "id",
        "status",
        "p_value",
        "p_marginal",
        "score",
        "first_layer",
        "p_by_depth",
        "detector",
        "like",
        "tokens",
    ),
    *("n", "cut", "reason", "sha", "log_e", "alarm"),
    *("episode", "slice", "slice_log_e", "slice_alarm"),
)

NO_TOKEN = "has no token of its own; give a text with a word in it"
NOT_FINITE = "has hidden states that are not finite; check the model's precision"
FAILED = "could not be scored"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, and how anomalous it is, in standard deviations of clean tokens' values."""

    text: str
    value: float


@dataclass(frozen=True, slots=True)
class Record:
    """One text with its numbers, or rejected with a reason. Fields that do not apply are None.

    status : "scored" or "rejected"
    p_value : calibration-conditional: with probability 0.9 over calibration sets, at most this share of clean texts is
        as anomalous as this text
    p_marginal : the rank among the m calibration texts divided by m + 1; the alarm takes this p-value
    score : higher is more anomalous
    first_layer : the first depth at which the text is anomalous at level `alpha`, corrected for the number of depths;
        None for ordinary texts. Depth 0 is the first layer's input.
    tokens : the words that a detector of single words finds most unusual, at most three
    detector : the detector to which the text is most anomalous; "exposure" is the classifier of spoilt texts
    like : the kind of spoilt text that it is most like, if the classifier finds it most anomalous
    n : tokens that are neither special nor padding
    cut : whether the text was longer than the model's limit; None if that is not known
    line, id : line number and id of the text, if it came from a file or a pipe
    sha : the first 12 hexadecimal digits of the SHA-256 of that line
    log_e : the evidence of the alarm after this text; None if no monitor has taken the record
    alarm : whether this very text raised the alarm
    episode : the number of the episode, from 1: alarms restart it, if the monitor was told so; see `episodes`
    slice : the slice that the text belongs to, if it has one
    slice_log_e, slice_alarm : evidence of the alarm of this slice after this text, and whether this text raised it
    alpha : a text is anomalous if p_value ≤ alpha
    least : the smallest possible p_value
    because : what an anomaly means to `detector`, or why the text was rejected
    shown_by : the detector that `tokens` come from
    text : the text itself, if a sink asked for it; never in `to_dict`
    p_by_depth : the p-value of each depth, corrected for the number of depths, by the depth as a string
    traits : (k,), what is averaged when texts are tested together, see `windows`; never in `to_dict`
    """

    status: str
    p_value: float | None = None
    p_marginal: float | None = None
    score: float | None = None
    first_layer: int | None = None
    tokens: tuple[Word, ...] = ()
    detector: str | None = None
    like: str | None = None
    n: int = 0
    cut: bool | None = None
    line: int | None = None
    id: Any = None
    sha: str | None = None
    log_e: float | None = None
    alarm: bool = False
    episode: int | None = None
    slice: str | int | None = None
    slice_log_e: float | None = None
    slice_alarm: bool = False
    alpha: float = 0.01
    least: float = 0.0
    because: str = ""
    shown_by: str | None = None
    text: str | None = None
    p_by_depth: dict[str, float] = field(default_factory=dict)
    traits: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def rejected(cls, because: str, n: int = 0) -> Record:
        return cls("rejected", n=n, because=because)

    @property
    def strange(self) -> bool:
        """Whether p_value is at most alpha."""
        return self.p_value is not None and self.p_value <= self.alpha

    @property
    def reason(self) -> str:
        """What was found, in words."""
        if self.p_value is None:
            return self.because
        if not self.strange:
            if self.p_value > UNUSUAL:
                return f"ordinary: p = {_rounded_up(self.p_value)}"
            why = f"; {self.because}" if self.because else ""
            return f"unusual, but not strange: p = {_rounded_up(self.p_value)} is larger than {self.alpha:g}{why}"
        relation = "is at most" if self.p_value <= self.least else "="
        share = f"p {relation} {_rounded_up(self.p_value)}: at most {_ratio(self.p_value)} clean texts are this strange"
        if self.first_layer is not None:
            where = f"it begins at depth {self.first_layer}"
        else:
            where = "no single depth is this strange, but all depths together are"
        words = ", ".join(f"‘{token.text}’" for token in self.tokens)
        # Words that another detector points to are not the reason of this one.
        join = ": " if self.shown_by == self.detector else "; most unusual of its words: "
        return f"{share}; {self.because}" + (f"{join}{words}" if words else "") + f"; {where}"

    def _repr_html_(self) -> str:
        """The record in a notebook."""
        if self.p_value is None:
            return table("rejected", {"reason": self.reason})
        rows: dict[str, object] = {"p-value": _rounded_up(self.p_value), "reason": self.reason}
        rows |= {"first layer": self.first_layer} if self.first_layer is not None else {}
        rows |= {"words": ", ".join(f"{word.text} ({word.value:g})" for word in self.tokens)} if self.tokens else {}
        rows |= {
            "detector": called(self.detector or ""),
            "tokens": self.n,
            "cut": "not known" if self.cut is None else "yes" if self.cut else "no",
        }
        name = "a text" if self.line is None else f"text {self.line}"
        title = f"{name}: {'strange' if self.strange else 'not strange'} at {self.alpha:g}"
        return table(title, rows, gauge(self.p_value, self.alpha))

    def to_dict(self, words: bool = True) -> dict[str, Any]:
        """The record for JSON. Without `words`, no word of the text is in it."""
        if not words:
            return replace(self, tokens=()).to_dict()
        return {name: getattr(self, name) for name in WRITTEN} | {
            "tokens": [{"text": own.text, "value": own.value} for own in self.tokens]
        }


def records(
    found: Assessment, passage: Passage, tokenizer: Any, texts: Sequence[str] | None = None, alpha: float = 0.01
) -> list[Record]:
    """One record for each text of a passage.

    tokenizer : for the words; without it records have none
    texts : the texts themselves, if they are known: words are then shown as they are written there
    """
    fired = found.p_by_depth <= alpha
    layers = [found.depths[row.argmax()] if row.any() else None for row in fired]
    depths = [str(depth) for depth in found.depths]
    shown, places, values = _most_anomalous(found)
    top = [_decisive(row, found.names) if ok else 0 for row, ok in zip(found.by_term, found.usable, strict=True)]
    ids, masks = passage.ids.tolist(), passage.mask.tolist()
    # Once for all texts: a tokenizer of transformers takes long to find an attribute.
    unknown = None if tokenizer is None else tokenizer.unk_token_id
    made = []
    for i, usable in enumerate(found.usable):
        n = int(found.lengths[i])
        if not usable:
            made.append(Record.rejected(NO_TOKEN if n == 0 else NOT_FINITE, n))
            continue
        tokens: tuple[Word, ...] = ()
        if tokenizer is not None and shown[i] is not None:
            own = _Words(tokenizer, unknown, ids[i], masks[i], None if texts is None else texts[i])
            tokens = own.top(places[i], values[i])
        made.append(
            Record(
                "scored",
                p_value=float(found.p_value[i]),
                p_marginal=float(found.p_marginal[i]),
                score=float(found.score[i]),
                first_layer=layers[i] if found.p_value[i] <= alpha else None,
                p_by_depth=dict(zip(depths, found.p_by_depth[i].tolist(), strict=True)),
                tokens=tokens,
                detector=found.names[top[i]],
                like=_like(found, i) if found.names[top[i]] == EXPOSURE else None,
                n=n,
                alpha=alpha,
                least=found.least,
                because=_because(found, i, found.names[top[i]]),
                shown_by=shown[i],
                traits=found.traits[i].astype(np.float32),
            )
        )
    return made


def _decisive(surprises: np.ndarray, names: Sequence[str]) -> int:
    """The place of the term that explains a text: the largest surprise.

    A detector goes before the classifier if it alone is sure: all that the classifier can say of a text in another
    language is which spoilt texts are the nearest.
    """
    own = [place for place, name in enumerate(names) if name != EXPOSURE and DETECTORS[name].explains]
    own = own or list(range(len(names)))
    best = max(own, key=lambda place: surprises[place])
    classifier = names.index(EXPOSURE) if EXPOSURE in names else best
    return best if surprises[best] >= SURE or surprises[best] >= surprises[classifier] else classifier


def _like(found: Assessment, text: int) -> str | None:
    """The kind of spoilt text that a text is most like."""
    return None if found.kinds is None else list(KINDS)[int(found.kinds[text])]


def _because(found: Assessment, text: int, term: str) -> str:
    """What an anomaly means to a detector, or to the classifier of spoilt texts, and a length that is unusual."""
    if term == EXPOSURE:
        words = f"of the spoilt texts that the monitor knows, it is most like those with {_like(found, text)}"
    else:
        words = DETECTORS[term].words
    n, (least, most) = int(found.lengths[text]), found.usual
    if least <= n <= most:
        return words
    return f"it has {n} token{'' if n == 1 else 's'}, and almost all clean texts have {least} to {most}; {words}"


def _most_anomalous(found: Assessment) -> tuple[list[str | None], list[list[int]], list[list[float]]]:
    """For each text: the detector whose tokens are shown, their places, most anomalous first, and their values.

    Among the detectors that look at single tokens, it is the one to which the text is most anomalous.
    """
    texts = len(found.usable)
    able = [place for place, name in enumerate(found.names) if name in found.tokens]
    if not able:
        return [None] * texts, [[]] * texts, [[]] * texts
    by_term = np.nan_to_num(found.by_term[:, able], nan=-math.inf)
    best = by_term.argmax(axis=1)
    stacked = torch.stack([found.tokens[found.names[place]] for place in able])
    own = stacked[torch.from_numpy(best).to(stacked.device), torch.arange(texts, device=stacked.device)]
    top = own.topk(min(CANDIDATES, own.shape[1]), dim=1)
    return [found.names[able[b]] for b in best], top.indices.tolist(), top.values.tolist()


class _Words:
    """The words of one text: where each token's word begins and ends, and how it is written.

    If the text is known and the tokenizer has offsets, words are the tokenizer's own, as written in the text. Otherwise
    pieces that WordPiece marks as continuing (##) belong to the piece before them, and every other token is a word of
    its own, as decoded.
    """

    def __init__(
        self, tokenizer: Any, unknown: int | None, ids: Sequence[int], mask: Sequence[bool], text: str | None
    ) -> None:
        self._tokenizer, self._unknown, self._text = tokenizer, unknown, text
        self._ids = list(compress(ids, mask))
        # From a place in the padded row to a place among the tokens.
        self._places = [place - 1 for place in accumulate(map(int, mask))]
        self._encoding: Any = None
        if text is not None and getattr(tokenizer, "is_fast", False):
            # A token is a few characters: text far beyond the last token need not be tokenized again.
            encoding = tokenizer(text[: 32 * len(self._ids)], truncation=True, max_length=len(self._ids))
            if encoding["input_ids"] == self._ids:
                self._encoding = encoding

    def top(self, places: Sequence[int], values: Sequence[float]) -> tuple[Word, ...]:
        """At most three words, most anomalous first; each once, with the value of its most anomalous token."""
        found: dict[str, Word] = {}
        for place, value in zip(places, values, strict=True):
            if not value > 0 or len(found) == SHOWN:
                break
            token = self._places[place]
            span = self._span(token)
            if span[0] >= span[1] or self._ids[token] == self._unknown:
                continue
            word = _shown(self._written(span))
            found.setdefault(word.casefold(), Word(word, round(value, 3)))
        return tuple(found.values())

    def _span(self, token: int) -> tuple[int, int]:
        """Begin and end of the word of a token: characters in the text, or tokens."""
        if self._encoding is not None:
            word = self._encoding.token_to_word(token)
            span = self._encoding.token_to_chars(token) if word is None else self._encoding.word_to_chars(word)
            # A token without characters in the text has no word.
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
    """The word on one line, cut if it is long."""
    word = "".join(c if c.isprintable() else "�" for c in word)
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"


def _rounded_up(p: float) -> str:
    """Two digits, rounded up: a p-value is never said to be smaller than it is."""
    if p >= 1:
        return "1"
    digits = 1 - math.floor(math.log10(p))
    return f"{math.ceil(p * 10**digits - 1e-9) / 10**digits:.{digits}f}".rstrip("0").rstrip(".")


def _ratio(p: float) -> str:
    """ "2 in 1000", rounded up."""
    out_of = 10 ** math.ceil(-math.log10(p) - 1e-9)
    return f"{math.ceil(p * out_of - 1e-9)} in {out_of}"


def kind(reason: str) -> str:
    """A reason without what is particular to its text.

    >>> kind("is not UTF-8 (byte 0xc3 at place 5); save it as UTF-8 text")
    'is not UTF-8'
    """
    return re.split(r"\s*[(,;]", reason, maxsplit=1)[0]
